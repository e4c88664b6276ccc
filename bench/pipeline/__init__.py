"""How long the jobs of the pipeline take, and what they need, at a million and at ten million rows.

    make bench-jobs                                        # 1 000 000 and 10 000 000 rows
    make bench-jobs ARGS="--rows 100000 --jobs lag,fsck"   # less

`made` writes what a job reads: a whole cut, one before it, the operation history, a watermark table
and what an archive of offsets has, the same rows for the same size every time, a chunk in memory at
once. A few rows are broken, so many as `numbers.findings` says, and *fsck* has to find these alone.
`run` runs each job at each size as `metaray report` does, by a local Spark that is started for it:
inputs checked against the cut's manifest, every output sorted into Parquet, pictures and a page.
What is measured is that whole, and the peak memory of the driver's Java process, in which a local
Spark does all of its work. A figure is one run: on a shared machine look at orders of magnitude.
"""
