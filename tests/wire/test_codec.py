"""Raft messages: the same both ways, and only WireError for what no replica can have sent."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from state_machines.raft import messages
from state_machines.raft.config import TERM_MAX
from state_machines.raft.messages import (
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
from state_machines.wire import codec
from state_machines.wire import raft_pb2 as pb
from state_machines.wire.codec import WireError

A, B = 2**63 - 1, 7
JOINT = Configuration((3, 7), (5, 7), (9,))
ENTRIES = (
    Entry(4, 11),
    Entry(4, 12, b"\x00\xff"),
    Entry(6, 13, b"", EntryKind.CONFIGURATION, JOINT),
)
META = SnapshotMeta(index=12, term=4, configuration=JOINT)

MESSAGES: list[Message] = [
    RequestVote(A, B, 6, last_index=0, last_term=0),
    RequestVote(A, B, 6, last_index=9, last_term=6, pre=True),
    RequestVote(A, B, TERM_MAX, last_index=codec.INDEX_MAX, last_term=5, transfer=True),
    VoteReply(A, B, 0, granted=False),
    VoteReply(A, B, 6, granted=True, pre=True),
    Append(A, B, 6, prev_index=0, prev_term=0, commit=0),
    Append(A, B, 6, prev_index=10, prev_term=3, commit=12, entries=ENTRIES),
    AppendReply(A, B, 6, match_index=0),
    AppendReply(A, B, 6, match_index=8, rejected=True, conflict_index=5, conflict_term=2),
    Heartbeat(A, B, 6, commit=0),
    Heartbeat(A, B, 6, commit=8, round=2**64 - 1),
    HeartbeatReply(A, B, 6),
    HeartbeatReply(A, B, 6, round=2**40),
    TimeoutNow(A, B, 6),
    InstallSnapshot(A, B, 6, META),
]
NAMES = [f"{number}-{type(each).__name__}" for number, each in enumerate(MESSAGES)]


def envelope(*carried: Message) -> bytes:
    return codec.encode_envelope(
        cluster="a cluster", group="mqtt-0", sender=A, seat="mqtt-0/1", messages=carried
    )


def test_what_an_encoder_has_made_before_changes_no_bytes() -> None:
    """It puts them together itself, around an entry that it has encoded for another peer."""
    encoder = codec.Encoder(cluster="c", group="mqtt-0", sender=A, seat="mqtt-0/1")
    sizes = (0, 1, 100, 127, 128, 129, 16_383, 16_384, 20_000, 2_100_000)
    entries = [Entry(6, 11, bytes(size)) for size in sizes]
    appends = [Append(A, to, 6, 10, 3, 12, (each,)) for each in entries for to in (B, B + 1, B)]
    together: list[list[Message]] = [[each] for each in appends]
    together += [[*appends[-4:]], [*MESSAGES, *appends[:6]]]
    for some in together:
        made = [pb.RaftMessage.FromString(codec.encode_message(each)) for each in some]
        whole = pb.Envelope(
            cluster="c", group="mqtt-0", sender=A, seat="mqtt-0/1", messages=made
        ).SerializeToString()
        assert encoder.envelope(some) == whole


def test_the_table_has_every_kind_of_message() -> None:
    declared = {
        kind
        for kind in vars(messages).values()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    }
    assert {type(each) for each in MESSAGES} == declared


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_both_ways(message: Message) -> None:
    data = codec.encode_message(message)
    assert codec.decode_message(data) == message
    assert codec.encode_message(codec.decode_message(data)) == data


def test_envelope_both_ways() -> None:
    found = codec.decode_envelope(envelope(*MESSAGES))
    assert found == codec.Envelope("a cluster", "mqtt-0", A, "mqtt-0/1", tuple(MESSAGES))
    assert codec.decode_envelope(envelope()).messages == ()


def survive(decode: Callable[[bytes], object], data: bytes) -> None:
    """Either something valid, which then is the same once more, or WireError; nothing else."""
    try:
        found = decode(data)
    except WireError:
        return
    if isinstance(found, Message):
        assert codec.decode_message(codec.encode_message(found)) == found


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_cut_at_every_offset(message: Message) -> None:
    for decode, data in (
        (codec.decode_message, codec.encode_message(message)),
        (codec.decode_envelope, envelope(message)),
    ):
        for size in range(len(data)):
            survive(decode, data[:size])


@pytest.mark.parametrize("message", MESSAGES, ids=NAMES)
def test_every_single_flipped_bit(message: Message) -> None:
    for decode, data in (
        (codec.decode_message, codec.encode_message(message)),
        (codec.decode_envelope, envelope(message)),
    ):
        for bit in range(8 * len(data)):
            flipped = bytearray(data)
            flipped[bit >> 3] ^= 1 << (bit & 7)
            survive(decode, bytes(flipped))


def test_bytes_of_any_kind() -> None:
    rng = random.Random(20)
    whole = envelope(*MESSAGES)
    for _ in range(3_000):
        data = rng.randbytes(rng.randrange(200))
        survive(codec.decode_message, data)
        survive(codec.decode_envelope, data)
        start = rng.randrange(len(whole))
        survive(codec.decode_envelope, whole[:start] + data + whole[start:])
    survive(codec.decode_envelope, rng.randbytes(64 << 10))


@pytest.mark.parametrize("decode", [codec.decode_message, codec.decode_envelope])
def test_too_large_is_refused_before_it_is_taken_apart(
    decode: Callable[[bytes], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "pb", None)  # whoever looks inside now fails otherwise
    with pytest.raises(WireError, match=r"bytes, the limit is 16777216"):
        decode(bytes(codec.ENVELOPE_BYTES_MAX + 1))


def made(change: Callable[[pb.RaftMessage], object], message: Message) -> bytes:
    """The bytes of a message after a change that no codec of ours would make."""
    found = pb.RaftMessage.FromString(codec.encode_message(message))
    change(found)
    return found.SerializeToString()


VOTE, APPEND, REPLY, SNAPSHOT = MESSAGES[1], MESSAGES[6], MESSAGES[8], MESSAGES[14]
BEAT = MESSAGES[10]


def entry(found: pb.RaftMessage, number: int) -> pb.Entry:
    return found.append.entries[number]


def configure(
    found: pb.RaftMessage, voters: list[int], outgoing: list[int], learners: list[int]
) -> None:
    data = pb.Configuration(voters=voters, outgoing=outgoing, learners=learners)
    entry(found, 2).data = data.SerializeToString()


def assign(path: str, value: object) -> Callable[[pb.RaftMessage], object]:
    *parents, name = path.split(".")

    def change(found: object) -> None:
        for parent in parents:
            found = found[int(parent)] if parent.isdigit() else getattr(found, parent)  # type: ignore[index]
        setattr(found, name, value)

    return change


WRONG: list[tuple[str, Message, Callable[[pb.RaftMessage], object], str]] = [
    ("no sender", VOTE, assign("sender", 0), "sender: 0"),
    ("sender of 64 bits", VOTE, assign("sender", 2**63), "sender: 9223372036854775808"),
    ("no receiver", VOTE, assign("receiver", 0), "receiver: 0"),
    ("to itself", VOTE, assign("receiver", A), "receiver: .* is the sender"),
    ("term", VOTE, assign("term", TERM_MAX + 1), "term: .* the limit is"),
    ("no body", VOTE, lambda found: found.ClearField("request_vote"), "body: missing"),
    ("last index", VOTE, assign("request_vote.last_index", codec.INDEX_MAX + 1), "last_index: "),
    ("last term above the term", VOTE, assign("request_vote.last_term", 7), "last_term: 7"),
    ("last term of nothing", VOTE, assign("request_vote.last_index", 0), "last_term: 6 at 0"),
    ("last index without term", VOTE, assign("request_vote.last_term", 0), "last_term: 0 at 9"),
    ("append in term 0", APPEND, assign("term", 0), "term: nobody leads"),
    ("prev index", APPEND, assign("append.prev_index", 2**62 + 1), "prev_index: "),
    ("prev term above the term", APPEND, assign("append.prev_term", 7), "prev_term: 7 at 10"),
    ("prev term of nothing", APPEND, assign("append.prev_index", 0), "prev_term: 3 at 0"),
    ("prev index without term", APPEND, assign("append.prev_term", 0), "prev_term: 0 at 10"),
    ("commit", APPEND, assign("append.commit", 2**63), "commit: "),
    ("a gap", APPEND, assign("append.entries.1.index", 13), "entries: 13 after 11"),
    ("an index twice", APPEND, assign("append.entries.1.index", 11), "entries: 11 after 11"),
    ("not behind prev", APPEND, assign("append.prev_index", 9), "entries: 11 after 9"),
    ("a falling term", APPEND, assign("append.entries.1.term", 3), "entries: term 3 at 12 after 4"),
    ("a term to come", APPEND, assign("append.entries.2.term", 7), "entries: term 7"),
    ("an unknown kind", APPEND, assign("append.entries.0.kind", 9), "kind: 9"),
    ("no configuration", APPEND, assign("append.entries.2.data", b"\xff"), "data: not an encoded"),
    ("an empty configuration", APPEND, assign("append.entries.2.data", b""), "voters: there is"),
    ("outgoing alone", APPEND, lambda found: configure(found, [], [1], []), "voters: there is"),
    ("voters unsorted", APPEND, lambda found: configure(found, [2, 1], [], []), "voters: not sor"),
    ("a voter twice", APPEND, lambda found: configure(found, [2, 2], [], []), "voters: not sorted"),
    ("outgoing unsorted", APPEND, lambda found: configure(found, [1], [3, 2], []), "outgoing: "),
    ("voter 0", APPEND, lambda found: configure(found, [0, 1], [], []), "voters: 0"),
    ("a voting learner", APPEND, lambda found: configure(found, [1], [], [1]), "learners: a vo"),
    ("a leaving learner", APPEND, lambda found: configure(found, [1], [2], [2]), "learners: a vo"),
    ("too many", APPEND, lambda found: configure(found, [*range(1, 66)], [], []), "voters: 65, t"),
    ("match index", REPLY, assign("append_reply.match_index", 2**63), "match_index: "),
    ("conflict index", REPLY, assign("append_reply.conflict_index", 2**63), "conflict_index: "),
    ("conflict term", REPLY, assign("append_reply.conflict_term", TERM_MAX + 1), "conflict_term: "),
    ("heartbeat commit", BEAT, assign("heartbeat.commit", 2**62 + 1), "commit: "),
    ("snapshot of nothing", SNAPSHOT, assign("install_snapshot.meta.index", 0), "meta: index 0"),
    ("snapshot in term 0", SNAPSHOT, assign("install_snapshot.meta.term", 0), "meta: .* term 0"),
    ("snapshot to come", SNAPSHOT, assign("install_snapshot.meta.term", 7), "meta: .* term 7"),
    (
        "snapshot without members",
        SNAPSHOT,
        lambda found: found.install_snapshot.meta.ClearField("configuration"),
        "voters: there is none",
    ),
]


@pytest.mark.parametrize(
    ("message", "change", "says"), [each[1:] for each in WRONG], ids=[each[0] for each in WRONG]
)
def test_what_no_replica_can_have_sent(
    message: Message, change: Callable[[pb.RaftMessage], object], says: str
) -> None:
    data = made(change, message)
    with pytest.raises(WireError, match=says):
        codec.decode_message(data)
    whole = pb.Envelope(
        cluster="c", group="g", sender=A, messages=[pb.RaftMessage.FromString(data)]
    )
    with pytest.raises(WireError):
        codec.decode_envelope(whole.SerializeToString())


def test_an_envelope_speaks_for_its_sender_only() -> None:
    with pytest.raises(WireError, match="sender: a message of"):
        codec.decode_envelope(envelope(MESSAGES[0], replace(MESSAGES[1], sender=4)))
    with pytest.raises(WireError, match="sender: 0"):
        codec.decode_envelope(pb.Envelope(cluster="c", group="g").SerializeToString())


def test_an_envelope_has_limits() -> None:
    many = pb.Envelope(cluster="c", sender=A, messages=[pb.RaftMessage()] * 4_097)
    with pytest.raises(WireError, match="messages: 4097, the limit is 4096"):
        codec.decode_envelope(many.SerializeToString())
    for field in ("cluster", "group", "seat"):
        long = pb.Envelope(sender=A, **{field: "x" * 257})  # type: ignore[arg-type]
        with pytest.raises(WireError, match="longer than 256"):
            codec.decode_envelope(long.SerializeToString())


def test_only_messages_are_encoded() -> None:
    with pytest.raises(TypeError, match="not a message"):
        codec.encode_message(Message(A, B, 1))
