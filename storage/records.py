"""What the records of log and state look like: protobuf (`proto/raft.proto`), sealed with a CRC.

Only the schema decides what is on the disk, so a release may add fields and still read old data.
"""

from __future__ import annotations

from state_machines.raft.messages import Configuration, Entry, EntryKind, HardState, SnapshotMeta
from state_machines.wire import raft_pb2
from storage.engine import Change, seal

_KINDS = {
    EntryKind.NORMAL: raft_pb2.NORMAL,
    EntryKind.CONFIGURATION: raft_pb2.CONFIGURATION,
}


def sealed(table: str, key: bytes, value: bytes) -> Change:
    """The change that stores `value` with its checksum."""
    return table, key, seal(table, key, value)


def entry_to(entry: Entry) -> bytes:
    """An entry's bytes. The data of a configuration entry is the configuration."""
    data = entry.data
    if entry.configuration is not None:
        data = _configuration_to(entry.configuration).SerializeToString()
    return raft_pb2.Entry(
        term=entry.term, index=entry.index, kind=_KINDS[entry.kind], data=data
    ).SerializeToString()


def entry_from(value: bytes) -> Entry:
    """The reverse of `entry_to`. Raises ValueError for a kind that is not known."""
    read = raft_pb2.Entry.FromString(value)
    kind = EntryKind(read.kind)
    if kind is EntryKind.NORMAL:
        return Entry(read.term, read.index, read.data, kind)
    members = _configuration_from(raft_pb2.Configuration.FromString(read.data))
    return Entry(read.term, read.index, b"", kind, members)


def hard_state_to(state: HardState) -> bytes:
    """A hard state's bytes."""
    return raft_pb2.HardState(
        term=state.term, vote=state.vote, commit=state.commit
    ).SerializeToString()


def hard_state_from(value: bytes) -> HardState:
    """The reverse of `hard_state_to`."""
    read = raft_pb2.HardState.FromString(value)
    return HardState(read.term, read.vote, read.commit)


def _configuration_to(members: Configuration) -> raft_pb2.Configuration:
    return raft_pb2.Configuration(
        voters=members.voters, outgoing=members.outgoing, learners=members.learners
    )


def _configuration_from(read: raft_pb2.Configuration) -> Configuration:
    return Configuration(tuple(read.voters), tuple(read.outgoing), tuple(read.learners))


def meta_to(point: SnapshotMeta) -> bytes:
    """A point's bytes: index, term and configuration."""
    return raft_pb2.SnapshotMeta(
        index=point.index,
        term=point.term,
        configuration=_configuration_to(point.configuration),
    ).SerializeToString()


def meta_from(value: bytes) -> SnapshotMeta:
    """The reverse of `meta_to`."""
    read = raft_pb2.SnapshotMeta.FromString(value)
    return SnapshotMeta(read.index, read.term, _configuration_from(read.configuration))
