"""Raft messages to bytes and back. What comes in is checked here, so the core need not.

`decode_envelope` either returns messages that the core may be told of, or raises WireError: for
bytes that are no envelope, ids or terms out of range, entries with gaps or falling terms, an
unknown body, a configuration without voters, and for anything beyond the limits, which are checked
before the bytes are taken apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from state_machines.errors import Invalid
from state_machines.raft.config import TERM_MAX
from state_machines.raft.messages import (
    MEMBERS_MAX,
    Append,
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
)
from state_machines.wire import raft_pb2 as pb
from state_machines.wire.bounds import Inside, too_many_fields
from state_machines.wire.varint import varint

ENVELOPE_BYTES_MAX: Final = 16 << 20  #: some appends of one entry each, of the largest there is
MESSAGES_MAX: Final = 4_096
INDEX_MAX: Final = 2**62
ID_MAX: Final = 2**63 - 1
CONFIGURATION_BYTES_MAX: Final = 4 << 10  #: thrice as many members, each of ten bytes, and more
FIELDS_MAX: Final = 1 << 16  #: of an envelope, its messages, and their entries
NAME_MAX: Final = 256


class WireError(Invalid):
    """Bytes from a peer that are not a message a replica can have sent."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """What one call between two replicas of a group carries."""

    cluster: str
    group: str
    sender: int
    seat: str
    messages: tuple[Message, ...]


def encode_envelope(
    *, cluster: str, group: str, sender: int, seat: str, messages: Sequence[Message]
) -> bytes:
    """An envelope as bytes."""
    return Encoder(cluster=cluster, group=group, sender=sender, seat=seat).envelope(messages)


class Encoder:
    """Makes the envelopes of one replica. What is the same again is encoded once: what they begin
    with, and an entry that goes to each peer in turn."""

    def __init__(self, *, cluster: str, group: str, sender: int, seat: str) -> None:
        envelope = pb.Envelope(cluster=cluster, group=group, sender=sender, seat=seat)
        self._head = envelope.SerializeToString()
        self._entry: Entry | None = None
        self._entry_data = b""

    def envelope(self, messages: Sequence[Message]) -> bytes:
        """An envelope with these messages."""
        parts = [self._head]
        for each in messages:
            if type(each) is Append and len(each.entries) == 1:
                self._append(parts, each)
            else:
                data = encode_message(each)
                parts += (_MESSAGES_FIELD, varint(len(data)), data)
        return b"".join(parts)

    def _append(self, parts: list[bytes], message: Append) -> None:
        """The same bytes as `encode_message` makes, around those of the entry."""
        entry = message.entries[0]
        if entry is not self._entry:
            self._entry, self._entry_data = entry, _entry_to(entry).SerializeToString()
        data = self._entry_data
        made = pb.RaftMessage(
            sender=message.sender, receiver=message.receiver, term=message.term
        ).SerializeToString()
        append = pb.Append(
            prev_index=message.prev_index, prev_term=message.prev_term, commit=message.commit
        ).SerializeToString()
        append += _ENTRIES_FIELD + varint(len(data))
        made += _APPEND_FIELD + varint(len(append) + len(data)) + append
        parts += (_MESSAGES_FIELD, varint(len(made) + len(data)), made, data)


_MESSAGES_FIELD: Final = b"\x2a"  # of an Envelope: 5, with a length
_APPEND_FIELD: Final = b"\x32"  # of a RaftMessage: 6
_ENTRIES_FIELD: Final = b"\x22"  # of an Append: 4


def decode_envelope(data: bytes) -> Envelope:
    """The envelope in `data`. Raises WireError."""
    if not isinstance(data, bytes):
        raise WireError(f"envelope: bytes are wanted, not {type(data).__name__}")
    if len(data) > ENVELOPE_BYTES_MAX:
        raise WireError(f"envelope: {len(data)} bytes, the limit is {ENVELOPE_BYTES_MAX}")
    if too_many_fields(data, _ENVELOPE, FIELDS_MAX):
        raise WireError(f"envelope: more fields than {FIELDS_MAX}, the limit")
    try:
        found = pb.Envelope.FromString(data)
    except DecodeError:
        raise WireError("envelope: not an encoded Envelope") from None
    if len(found.messages) > MESSAGES_MAX:
        raise WireError(f"messages: {len(found.messages)}, the limit is {MESSAGES_MAX}")
    if max(len(found.cluster), len(found.group), len(found.seat)) > NAME_MAX:
        raise WireError(f"cluster, group or seat: longer than {NAME_MAX}")
    sender = _id(found.sender, "sender")
    messages = tuple(map(_message_from, found.messages))
    for each in messages:
        if each.sender != sender:
            raise WireError(f"sender: a message of {each.sender} in an envelope of {sender}")
    return Envelope(found.cluster, found.group, sender, found.seat, messages)


_MESSAGE: Final[Inside] = {6: {}, 11: None}  # append, for its entries; install_snapshot
_ENVELOPE: Final[Inside] = {5: _MESSAGE}


def encode_message(message: Message) -> bytes:
    """One message as bytes."""
    return _message_to(message).SerializeToString()


def decode_message(data: bytes) -> Message:
    """The message in `data`. Raises WireError."""
    if len(data) > ENVELOPE_BYTES_MAX:
        raise WireError(f"message: {len(data)} bytes, the limit is {ENVELOPE_BYTES_MAX}")
    if too_many_fields(data, _MESSAGE, FIELDS_MAX):
        raise WireError(f"message: more fields than {FIELDS_MAX}, the limit")
    try:
        found = pb.RaftMessage.FromString(data)
    except DecodeError:
        raise WireError("message: not an encoded RaftMessage") from None
    return _message_from(found)


def decode_meta(data: bytes) -> SnapshotMeta:
    """The point of a snapshot, as one says it of itself. Raises WireError."""
    try:
        found = pb.SnapshotMeta.FromString(data)
    except DecodeError:
        raise WireError("meta: not an encoded SnapshotMeta") from None
    meta = _meta_from(found)
    if not (meta.index and meta.term):
        raise WireError(f"meta: index {meta.index}, term {meta.term}")
    return meta


def _message_to(message: Message) -> pb.RaftMessage:
    made = pb.RaftMessage(sender=message.sender, receiver=message.receiver, term=message.term)
    match message:
        case Append():
            made.append.prev_index = message.prev_index
            made.append.prev_term = message.prev_term
            made.append.commit = message.commit
            made.append.entries.extend([_entry_to(each) for each in message.entries])
        case AppendReply():
            reply = made.append_reply
            reply.match_index = message.match_index
            if message.rejected or message.conflict_index or message.conflict_term:
                reply.rejected = message.rejected
                reply.conflict_index = message.conflict_index
                reply.conflict_term = message.conflict_term
            reply.SetInParent()
        case Heartbeat():
            made.heartbeat.commit = message.commit
            made.heartbeat.round = message.round
        case HeartbeatReply():
            made.heartbeat_reply.round = message.round
            made.heartbeat_reply.SetInParent()  # a reply to round 0 is still a reply
        case RequestVote():
            made.request_vote.pre = message.pre
            made.request_vote.last_index = message.last_index
            made.request_vote.last_term = message.last_term
            made.request_vote.transfer = message.transfer
            made.request_vote.SetInParent()
        case VoteReply():
            made.vote_reply.pre = message.pre
            made.vote_reply.granted = message.granted
            made.vote_reply.SetInParent()
        case TimeoutNow():
            made.timeout_now.SetInParent()
        case InstallSnapshot():
            made.install_snapshot.meta.CopyFrom(_meta_to(message.meta))
        case _:
            raise TypeError(f"not a message: {message!r}")
    if made.WhichOneof("body") is None:
        getattr(made, _FIELDS[type(message)]).SetInParent()
    return made


_FIELDS: Final = {
    Append: "append",
    AppendReply: "append_reply",
    Heartbeat: "heartbeat",
}


def _message_from(found: pb.RaftMessage) -> Message:
    sender, receiver, term = found.sender, found.receiver, found.term
    if not (0 < sender <= ID_MAX and 0 < receiver <= ID_MAX and term <= TERM_MAX):
        _id(sender, "sender")
        _id(receiver, "receiver")
        _term(term, "term")
    if sender == receiver:
        raise WireError(f"receiver: {receiver} is the sender")
    match found.WhichOneof("body"):
        case "append":
            return _append_from(sender, receiver, term, found.append)
        case "append_reply":
            reply = found.append_reply
            match_index, conflict_index = reply.match_index, reply.conflict_index
            conflict_term = reply.conflict_term
            if max(match_index, conflict_index) > INDEX_MAX or conflict_term > TERM_MAX:
                _index(match_index, "match_index")
                _index(conflict_index, "conflict_index")
                _term(conflict_term, "conflict_term")
            return AppendReply(
                sender, receiver, term, match_index, reply.rejected, conflict_index, conflict_term
            )
        case "heartbeat":
            beat = found.heartbeat
            return Heartbeat(sender, receiver, term, _index(beat.commit, "commit"), beat.round)
        case "heartbeat_reply":
            return HeartbeatReply(sender, receiver, term, found.heartbeat_reply.round)
        case "request_vote":
            vote = found.request_vote
            last_index = _index(vote.last_index, "last_index")
            last_term = _term(vote.last_term, "last_term")
            if last_term > term or (last_index == 0) != (last_term == 0):
                raise WireError(f"last_term: {last_term} at {last_index} in term {term}")
            return RequestVote(
                sender, receiver, term, last_index, last_term, vote.pre, vote.transfer
            )
        case "vote_reply":
            granted, pre = found.vote_reply.granted, found.vote_reply.pre
            return VoteReply(sender, receiver, term, granted, pre)
        case "timeout_now":
            return TimeoutNow(sender, receiver, term)
        case "install_snapshot":
            meta = _meta_from(found.install_snapshot.meta)
            if not (meta.index and 0 < meta.term <= term):
                raise WireError(f"meta: index {meta.index}, term {meta.term} in term {term}")
            return InstallSnapshot(sender, receiver, term, meta)
        case _:
            raise WireError("body: missing or of an unknown kind")


def _append_from(sender: int, receiver: int, term: int, found: pb.Append) -> Append:
    index, last_term, commit = found.prev_index, found.prev_term, found.commit
    prev_index, prev_term = index, last_term
    if prev_index > INDEX_MAX or prev_term > TERM_MAX:
        _index(prev_index, "prev_index")
        _term(prev_term, "prev_term")
    if term == 0:
        raise WireError("term: nobody leads in term 0")
    if prev_term > term or (prev_index == 0) != (prev_term == 0):
        raise WireError(f"prev_term: {prev_term} at {prev_index} in a message of term {term}")
    entries = []
    for each in found.entries:
        entry = _entry_from(each)
        if entry.index != index + 1:
            raise WireError(f"entries: {entry.index} after {index}")
        if not max(last_term, 1) <= entry.term <= term:
            raise WireError(f"entries: term {entry.term} at {entry.index} after {last_term}")
        index, last_term = entry.index, entry.term
        entries.append(entry)
    if commit > INDEX_MAX:
        _index(commit, "commit")
    return Append(sender, receiver, term, prev_index, prev_term, commit, tuple(entries))


def _entry_to(entry: Entry) -> pb.Entry:
    data = entry.data
    if entry.configuration is not None:
        data = _configuration_to(entry.configuration).SerializeToString()
    return pb.Entry(term=entry.term, index=entry.index, kind=_KINDS[entry.kind], data=data)


_KINDS: Final = {
    EntryKind.NORMAL: pb.NORMAL,
    EntryKind.CONFIGURATION: pb.CONFIGURATION,
}


def _entry_from(found: pb.Entry) -> Entry:
    term, index = found.term, found.index
    if term > TERM_MAX or index > INDEX_MAX:
        _term(term, "entry.term")
        _index(index, "entry.index")
    if found.kind == pb.NORMAL:
        return Entry(term, index, found.data)
    if found.kind != pb.CONFIGURATION:
        raise WireError(f"entry.kind: {found.kind} is not known")
    if len(found.data) > CONFIGURATION_BYTES_MAX:
        raise WireError(
            f"entry.data: {len(found.data)} bytes, the limit is {CONFIGURATION_BYTES_MAX}"
        )
    try:
        members = pb.Configuration.FromString(found.data)
    except DecodeError:
        raise WireError("entry.data: not an encoded Configuration") from None
    return Entry(term, index, b"", EntryKind.CONFIGURATION, _configuration_from(members))


def _configuration_to(configuration: Configuration) -> pb.Configuration:
    return pb.Configuration(
        voters=configuration.voters,
        outgoing=configuration.outgoing,
        learners=configuration.learners,
    )


def _configuration_from(found: pb.Configuration) -> Configuration:
    parts = []
    for name in ("voters", "outgoing", "learners"):
        ids = tuple([_id(each, name) for each in getattr(found, name)])
        if len(ids) > MEMBERS_MAX:
            raise WireError(f"{name}: {len(ids)}, the limit is {MEMBERS_MAX}")
        if any(left >= right for left, right in itertools.pairwise(ids)):
            raise WireError(f"{name}: not sorted, or an id twice")
        parts.append(ids)
    if not parts[0]:
        raise WireError("voters: there is none")
    if {*parts[0], *parts[1]} & {*parts[2]}:
        raise WireError("learners: a voter is among them")
    return Configuration(*parts)


def _meta_to(meta: SnapshotMeta) -> pb.SnapshotMeta:
    members = _configuration_to(meta.configuration)
    return pb.SnapshotMeta(index=meta.index, term=meta.term, configuration=members)


def _meta_from(found: pb.SnapshotMeta) -> SnapshotMeta:
    return SnapshotMeta(
        _index(found.index, "meta.index"),
        _term(found.term, "meta.term"),
        _configuration_from(found.configuration),
    )


def _id(value: int, field: str) -> int:
    if not 0 < value <= ID_MAX:
        raise WireError(f"{field}: {value} is not a replica id")
    return value


def _term(value: int, field: str) -> int:
    if value > TERM_MAX:
        raise WireError(f"{field}: {value}, the limit is {TERM_MAX}")
    return value


def _index(value: int, field: str) -> int:
    if value > INDEX_MAX:
        raise WireError(f"{field}: {value}, the limit is {INDEX_MAX}")
    return value
