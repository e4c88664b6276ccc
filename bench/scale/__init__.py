"""How a replica fares as its rows grow: memory, write cost, one change among many, restart.

    make bench-scale                                       # to a million sessions, some minutes
    make bench-scale ARGS="--sizes 10000,1000000,10000000" # to ten million, up to an hour

What is measured is one replica in a process of its own (`seat`): the seat, the core, the log that
is synced at every save, the machine, the state in LMDB and the flushes are those of a cluster, with
the settings of a cluster, and what Ray brings into an actor's process is loaded too. Only Ray's own
threads are not there, and no peers: a group of one, so that a figure is about one replica and not
about the network. Requests are encoded beforehand and handed to the seat as Ray or a link would.

Every size is held against the smallest in turns, round by round in one run, because on a shared
machine only such ratios say something. Memory is what belongs to the process alone (USS), without
the pages of its LMDB files: those are the kernel's page cache, which it takes back when it wants.
"""
