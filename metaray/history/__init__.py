"""The operation history: committed entries of every group become rows of Parquet, once each.

    source      which replica is asked for the next entries, and who is told how far it has come
    rows        an entry of a log becomes rows of `jobs.operations.OPERATIONS`
    store       the files of one directory: added whole, merged, deleted when they are too old
    exporter    one line a group: ask, decode, gather, add; what went missing is written down
    actor       the exporter as the service runs it, in an actor
    audit       who did what when: the rows that pass a filter, and the gaps among them
    changes     what the commands between two revisions of a group were about

What the files look like, and which of them count, is said in `jobs.operation_files`. The position
of an export is nowhere but in the names of the files: what is durable is exported, and nothing
else is. So whoever is killed, at whatever moment, goes on where the files end.
"""
