"""Analysis: what Spark says about the rows that the groups keep.

A job is a function from DataFrames to DataFrames and a function from what was found to what is
shown (`job`, `view`). It knows nothing of Ray, of replicas or of the clock: the moment a report
speaks of is an argument, so the same rows give the same numbers for ever. Around the jobs stand
the modules with effects:

    session     the one place that starts and ends Spark: on the Ray cluster (RayDP), or here
                (jvm finds and ends the Java process beside this one, watchdog sees that nobody
                waits for a Spark that is lost)
    datasets    pages of Arrow in, DataFrame out, page by page
    sources     which datasets: of a cut's directory, an earlier one, the history, single files
    report      runs any job, writes Parquet, pictures, a page and a manifest that says of which cut
                (plot, page and tables draw its view: as PNG and SVG, in HTML, for a terminal;
                words is how they all write a value)

`catalogue` lists the jobs. Reading order: job, view, head, lag, churn, sessions, stored,
chargeback, diff, loads, hotspots, advice, advice_sql, schemas, datasets, sources, session, jvm,
report, words, plot, page, tables.

Spark reads what a group exported and nothing else. It holds no lock, no placement group of a
replica and no connection to one, so an outage of Spark is not seen by the metadata service.

Left out: incremental jobs (each run reads a whole cut), and Python UDFs (a JVM that calls back
into Python for every row is slower than the whole job).
"""
