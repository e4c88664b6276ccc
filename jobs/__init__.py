"""Analysis: what Spark says about the rows that the groups keep.

A job is a function from DataFrame to DataFrame. It knows nothing of Ray, of replicas or of the
clock: the moment a report speaks of is an argument, so the same rows give the same numbers for
ever. Around the jobs stand three modules with effects:

    session     the one place that starts and ends Spark: on the Ray cluster (RayDP), or here
                (jvm finds and ends the Java process beside this one)
    datasets    pages of Arrow in, DataFrame out, page by page
    report      runs the jobs, writes Parquet, a picture and a manifest that says of which cut
                (plot and tables draw it, for a file and for a terminal)

and the jobs themselves:

    progress    consumers: commits, latest offset, lag, commit rate per tenant, group and topic
    sessions    MQTT sessions: active, disconnected, expired, by broker and by expiry

Reading order: progress, sessions, schemas, datasets, session, jvm, report, plot, tables.

Spark reads what a group exported and nothing else. It holds no lock, no placement group of a
replica and no connection to one, so an outage of Spark is not seen by the metadata service.

Left out: incremental jobs (each run reads a whole cut), and Python UDFs (a JVM that calls back
into Python for every row is slower than the whole job).
"""
