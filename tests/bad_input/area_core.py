"""What peers say: every kind of message, plausible and absurd, to a live core in each of its roles.

Messages go through the codec, as they do in a group: what it refuses no core hears. A core may stop
at what it hears only where a peer must have lied (two leaders of one term, an answer to entries
that were never sent, a commit of what was not), saying so; then its disk is as good as before.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Final

from state_machines.errors import MetarayError
from state_machines.raft import Raft
from state_machines.raft.confchange import Change
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
from state_machines.wire.codec import WireError
from tests.bad_input.battery import Case, Outcome, Wrong, refused
from tests.bad_input.replica import ROLES, SELF, TERM, VOTERS, Replica

LIES: Final = re.compile(
    r"two leaders in term \d+: \d+, \d+"
    r"|\d+ has \d+, beyond the log"
    r"|\d+\.\.\d+ is committed and stays"
    r"|terms go down at \d+: \d+ -> \d+"  # behind entries that are not those committed
)
"""What stops a replica, in its own words: no honest peer brings it about, however late, often or
mixed up its messages come."""

ABSURD: Final = (2**31, 2**32, 2**40, 2**62 - 1, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1)
IDS: Final = (2, 2, 2, 3, 3, 4, 5, 9, 1, 7, 0, 2**63 - 1, 2**63)
CONFIGURATIONS: Final = (
    VOTERS,
    Configuration(),
    Configuration((2, 3)),
    Configuration((1,)),
    Configuration((2, 3), (1, 2, 3), (4,)),
    Configuration((5, 6, 7)),
    Configuration((3, 2, 1)),
    Configuration((1, 1, 2)),
    Configuration((1, 2), (), (2,)),
    Configuration((), (1, 2)),
    Configuration((1, 2, 2**63)),
    Configuration(tuple(range(1, 80))),
)

Act = Callable[[Raft], object]


def _index(rng: Random) -> int:
    near = rng.choice((*range(12), *range(4, 11)))
    return near if rng.random() < 0.95 else rng.choice(ABSURD)


def _term(rng: Random) -> int:
    near = rng.choice((*range(7), 3, 3, 4, 4, 4, 4))
    return near if rng.random() < 0.93 else rng.choice(ABSURD)


def _entry(rng: Random, term: int, index: int) -> Entry:
    if rng.random() < 0.2:
        configuration = rng.choice(CONFIGURATIONS)
        return Entry(term, index, b"", EntryKind.CONFIGURATION, configuration)
    return Entry(term, index, rng.choice((b"", b"x", b"%d" % index, b"\xff" * 100)))


def _entries(rng: Random, prev_index: int, prev_term: int, term: int) -> tuple[Entry, ...]:
    """Mostly as a leader has them: without gaps, terms rising up to its own."""
    made = []
    index, at = prev_index, max(prev_term, 1)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        index += 1 if rng.random() < 0.95 else rng.choice((0, 2, -1))
        at = min(at + rng.choice((0, 0, 1)), max(term, at))
        if rng.random() < 0.03:
            at = max(0, at + rng.choice((-1, 5)))
        made.append(_entry(rng, at % 2**64, max(0, index) % 2**64))
    return tuple(made)


def drawn(rng: Random, receiver: int = SELF) -> Message:
    """A message of any kind, most of it plausible to a replica in term 3 or 4."""
    sender, term = rng.choice(IDS), _term(rng)
    if rng.random() < 0.03:
        receiver = rng.choice(IDS)
    match rng.randrange(9):
        case 0:
            pre = rng.random() < 0.5
            last = (_index(rng), rng.choice((0, 1, 2, 3, 4, term)))
            return RequestVote(sender, receiver, term, *last, pre=pre, transfer=rng.random() < 0.2)
        case 1:
            return VoteReply(sender, receiver, term, rng.random() < 0.7, rng.random() < 0.5)
        case 2 | 3:
            prev_index = _index(rng)
            prev_term = (
                rng.choice((0, 1, 2, 3, 4, term)) if prev_index else rng.choice((0, 0, 0, 1))
            )
            entries = _entries(rng, prev_index, prev_term, term)
            return Append(sender, receiver, term, prev_index, prev_term, _index(rng), entries)
        case 4:
            lie = rng.random() < 0.5
            return AppendReply(sender, receiver, term, _index(rng), lie, _index(rng), _term(rng))
        case 5:
            return Heartbeat(sender, receiver, term, _index(rng), rng.choice((0, 1, 2, 2**64 - 1)))
        case 6:
            return HeartbeatReply(sender, receiver, term, rng.choice((0, 1, 2, 2**64 - 1)))
        case 7:
            return TimeoutNow(sender, receiver, term)
        case _:
            meta = SnapshotMeta(_index(rng), _term(rng), rng.choice(CONFIGURATIONS))
            return InstallSnapshot(sender, receiver, term, meta)


def requested(rng: Random) -> Act:
    """What operators and shells ask of a core, with names of anyone."""

    def some() -> tuple[int, ...]:
        return tuple(
            rng.choice((1, 2, 3, 4, 5, 9, 0, -1, 2**63, 2**70)) for _ in range(rng.randrange(3))
        )

    match rng.randrange(7):
        case 0 | 1:
            change = Change(some(), some(), some())
            return lambda core: core.change(change)
        case 2:
            target = rng.choice((1, 2, 3, 4, 5, 0, -1, 2**63))
            return lambda core: core.transfer(target)
        case 3:
            data = bytes(rng.choice((0, 1, 70 << 10)))
            return lambda core: core.propose(data)
        case 4:
            context = rng.choice((0, 1, -1, 2**64))
            return lambda core: core.read(context)
        case 5:
            ticks = rng.choice((1, 3, 25))

            def wait(core: Raft) -> None:
                for _ in range(ticks):
                    core.tick()

            return wait
        case _:
            peer = rng.choice((1, 2, 3, 4, 5, 0, 2**63))
            return rng.choice(
                (
                    lambda core: core.unreachable(peer),
                    lambda core: core.snapshot_sent(peer),
                    lambda core: core.snapshot_failed(peer),
                    lambda core: core.campaign(),
                )
            )


def say(replica: Replica, message: Message) -> Outcome:
    """One message, by way of the codec."""
    try:
        heard = codec.decode_message(codec.encode_message(message))
    except WireError as error:
        return refused(error)
    before = (replica.core.term, replica.core.last_index, replica.core.commit, replica.core.vote)
    replica.told(lambda core: core.step(heard))
    after = (replica.core.term, replica.core.last_index, replica.core.commit, replica.core.vote)
    return Outcome.DROPPED if before == after else Outcome.TAKEN


def run(role: str, seed: str, count: int) -> Outcome:
    """Some messages and requests to a replica in this role."""
    rng = Random(seed)
    replica = ROLES[role]()
    outcome = Outcome.DROPPED
    try:
        for _ in range(count):
            if rng.random() < 0.15:
                outcome = ask(replica, requested(rng))
            else:
                outcome = say(replica, drawn(rng, replica.core.id))
    except Wrong:
        raise
    except AssertionError as stopped:
        if not LIES.fullmatch(str(stopped)):
            raise
        outcome = Outcome.STOPPED
    replica.again()
    return outcome


def ask(replica: Replica, act: Act) -> Outcome:
    before = (replica.core.term, replica.core.last_index, replica.core.commit)
    try:
        replica.told(act)
    except MetarayError as error:
        if before != (replica.core.term, replica.core.last_index, replica.core.commit):
            raise Wrong("changed", f"refused, and yet: {error.detail}") from None
        return refused(error)
    return Outcome.TAKEN


class Core:
    """Messages and requests to a core."""

    name = "core"
    frame_bytes = codec.ENVELOPE_BYTES_MAX
    listed = 0

    def case(self, number: int) -> Case:
        role = tuple(ROLES)[number % len(ROLES)]
        count = (1, 1, 2, 4, 12)[number // len(ROLES) % 5]
        seed = f"core {number}"
        return Case(f"{role}, {count} messages", partial(run, role, seed, count))


__all__ = ["TERM", "Core"]
