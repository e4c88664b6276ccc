"""The floor of bytes and durability: what a replica has promised, and what it has applied.

A replica owns one directory (`identity`), locked, with an id that is never used elsewhere. In it
are two environments, because they are written differently. The **log** (`log.RaftLog`) is synced at
every save, before anything that it promises leaves. The **state** (`state.State`) takes rows into a
`layer` in memory and flushes them now and then (`flush`), together with the index they stand for; a
crash loses the layer, and replaying the log from there rebuilds it. `stores.open_stores` opens both
and brings them into step.

Below them is one port, `engine.Engine`: named tables, one synced transaction at a time, views.
`disk.DiskEngine` is LMDB; `memory.MemoryEngine` is its twin, and passes the same tests. `keys` is
the only place where tuples become bytes. A **snapshot** (`snapshot`) is the state as a stream of
checksummed chunks, received beside the state in force and put in its place by one rename (`shelf`).
`copies` are of the whole environment, for a reader on the same disk who takes long.

The laws of this floor: what was promised is on the disk first; what is read is checked (a CRC over
table, key and value); what does not match is named and stops the replica, never served; and after a
failed commit the process exits. Not here: any decision about consensus, any row's meaning, any
clock but the wait for a lock.

Reading order: `engine`, `disk`, `keys`, `log`, `layer`, `state`, `flush`, `shelf`, `snapshot`,
`copies`, `identity`, `stores`.
"""
