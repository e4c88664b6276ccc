"""What goes over a wire or to a disk comes back as it was: every kind of message that a replica can
send, alone and in an envelope, and every record of the log and the state."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from zlib import crc32

from hypothesis import strategies as st

from state_machines.raft.config import TERM_MAX
from state_machines.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    RequestVote,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
)
from state_machines.wire import codec
from storage import records
from storage.engine import seal, unseal
from storage.errors import CorruptRecord
from tests.properties.ask import holds

ID_MAX: Final = codec.ID_MAX
IDS: Final = st.one_of(st.integers(1, 9), st.integers(1, ID_MAX))
TERMS: Final = st.one_of(st.integers(1, 9), st.integers(1, TERM_MAX))
INDEXES: Final = st.one_of(st.integers(0, 9), st.integers(0, codec.INDEX_MAX - 100))
DATA: Final = st.one_of(st.binary(max_size=40), st.binary(min_size=200, max_size=400))
FLAGS: Final = st.booleans()
ROUNDS: Final = st.integers(0, 2**64 - 1)
NAMES: Final = st.text(max_size=codec.NAME_MAX // 4)


def ascending(ids: set[int]) -> tuple[int, ...]:
    return tuple(sorted(ids))


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """Any that can be in force."""
    voters = draw(st.sets(IDS, min_size=1, max_size=7))
    outgoing = draw(st.one_of(st.just(set[int]()), st.sets(IDS, min_size=1, max_size=7)))
    learners = draw(st.sets(IDS, max_size=3)) - voters - outgoing
    return Configuration(ascending(voters), ascending(outgoing), ascending(learners))


@st.composite
def entries(draw: st.DrawFn, first: int, least: int, most: int) -> tuple[Entry, ...]:
    """Contiguous ones from `first` on, of terms that rise from `least` to `most` at most."""
    terms = sorted(draw(st.lists(st.integers(max(least, 1), most), max_size=4)))
    found = []
    for index, term in enumerate(terms, first):
        if draw(st.integers(0, 3)) == 0:
            members = draw(configurations())
            found.append(Entry(term, index, b"", EntryKind.CONFIGURATION, members))
        else:
            found.append(Entry(term, index, draw(DATA)))
    return tuple(found)


@st.composite
def metas(draw: st.DrawFn, term_max: int = TERM_MAX) -> SnapshotMeta:
    index = draw(INDEXES.filter(bool))
    return SnapshotMeta(index, draw(st.integers(1, term_max)), draw(configurations()))


@st.composite
def messages(draw: st.DrawFn) -> Message:
    """Any message that a replica can send."""
    sender, receiver = draw(st.tuples(IDS, IDS).filter(lambda pair: pair[0] != pair[1]))
    term = draw(TERMS)
    who = (sender, receiver, term)
    last_term = draw(st.integers(0, term))
    last_index = draw(INDEXES.filter(bool)) if last_term else 0
    match draw(st.integers(0, 7)):
        case 0:
            return RequestVote(*who, last_index, last_term, draw(FLAGS), draw(FLAGS))
        case 1:
            return VoteReply(*who, draw(FLAGS), draw(FLAGS))
        case 2:
            sent = draw(entries(last_index + 1, last_term, term))
            return Append(*who, last_index, last_term, draw(INDEXES), sent)
        case 3:
            rejected = draw(FLAGS)
            return AppendReply(*who, draw(INDEXES), rejected, draw(INDEXES), draw(TERMS))
        case 4:
            return Heartbeat(*who, draw(INDEXES), draw(ROUNDS))
        case 5:
            return HeartbeatReply(*who, draw(ROUNDS))
        case 6:
            return TimeoutNow(*who)
        case _:
            return InstallSnapshot(*who, draw(metas(term)))


@holds(long=10_000, sample=120, message=messages())
def a_message_comes_back(message: Message) -> None:
    data = codec.encode_message(message)
    found = codec.decode_message(data)
    assert found == message
    assert type(found) is type(message)
    assert codec.encode_message(found) == data


@holds(
    long=2_000,
    cluster=NAMES,
    group=NAMES,
    seat=NAMES,
    sender=IDS,
    carried=st.lists(messages(), max_size=5),
)
def an_envelope_comes_back(
    cluster: str, group: str, seat: str, sender: int, carried: list[Message]
) -> None:
    sent = tuple(
        replace(each, sender=sender, receiver=each.receiver % ID_MAX + 1)
        for each in carried
        if each.receiver % ID_MAX + 1 != sender
    )
    data = codec.encode_envelope(
        cluster=cluster, group=group, sender=sender, seat=seat, messages=sent
    )
    found = codec.decode_envelope(data)
    assert found == codec.Envelope(cluster, group, sender, seat, sent)


@holds(long=2_000, sent=entries(1, 1, 2**63 - 1))
def an_entry_comes_back_from_the_disk(sent: tuple[Entry, ...]) -> None:
    for each in sent:
        assert records.entry_from(records.entry_to(each)) == each


@holds(
    long=2_000,
    state=st.builds(HardState, st.integers(0, TERM_MAX), st.integers(0, ID_MAX), INDEXES),
)
def a_hard_state_comes_back_from_the_disk(state: HardState) -> None:
    assert records.hard_state_from(records.hard_state_to(state)) == state


@holds(long=2_000, meta=st.one_of(metas(), st.just(SnapshotMeta(0, 0, Configuration()))))
def a_point_comes_back_from_the_disk(meta: SnapshotMeta) -> None:
    data = records.meta_to(meta)
    assert records.meta_from(data) == meta
    assert records.meta_to(records.meta_from(data)) == data


@holds(
    long=2_000,
    table=st.text(min_size=1, max_size=20),
    key=st.binary(min_size=1, max_size=40),
    value=DATA,
    bit=st.integers(0, 10_000),
)
def a_seal_is_broken_by_every_bit(table: str, key: bytes, value: bytes, bit: int) -> None:
    sealed = seal(table, key, value)
    assert unseal("here", table, key, sealed) == value
    at = bit % (8 * len(sealed))
    flipped = bytearray(sealed)
    flipped[at >> 3] ^= 1 << (at & 7)
    moved = (table, key + b"x") if crc32(key) % 2 else (table + "x", key)
    for where, stored in (((table, key), bytes(flipped)), (moved, sealed)):
        try:
            unseal("here", *where, stored)
        except CorruptRecord:
            continue
        raise AssertionError(f"{where}: bit {at} or another place was not noticed")
