"""What must be fast, measured: workloads over the public client, on a real cluster.

    metaray bench                # every row, own figures
    metaray bench --rows put-1   # some rows

A workload is what a user would write, nothing it uses is there for it alone. Figures are medians of
rounds on a fresh cluster of three replicas on this machine; every acknowledged write is synced on a
majority. An absolute figure says little on a shared machine: what counts is the ratio of two
systems measured in turns in one run.
"""
