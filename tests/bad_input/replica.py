"""One replica's core in each of its roles, over a disk that keeps what a save would.

Its past: replicas 1, 2 and 3 vote, 4 listens, 9 was voted out; eight entries of the terms 1 to 3,
five of them committed. Whatever it is told, its invariants hold after every message, what was
committed stays, its term makes no leap, and from its disk it can start again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from state_machines.raft import Raft
from state_machines.raft.confchange import Change
from state_machines.raft.config import TERM_JUMP_MAX, RaftConfig
from state_machines.raft.messages import (
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    Message,
    Ready,
    SnapshotMeta,
    VoteReply,
)
from tests.bad_input.battery import Wrong

SELF: Final = 1
VOTERS: Final = Configuration((1, 2, 3), (), (4,))
FOUNDERS: Final = Configuration((1, 2, 3, 9), (), (4,))
TERMS: Final = (1, 1, 2, 2, 2, 2, 3, 3)
COMMITTED: Final = 5
TERM: Final = 3
CONFIG: Final = RaftConfig(heartbeat_ticks=2, election_ticks_min=10, election_ticks_max=20)


def _entries(after: int) -> list[Entry]:
    made = []
    for index, term in enumerate(TERMS, 1):
        if index == 3:  # where 9 was voted out
            made.append(Entry(term, index, b"", EntryKind.CONFIGURATION, VOTERS))
        else:
            made.append(Entry(term, index, b"%d" % index))
    return made[after:]


@dataclass(slots=True)
class Replica:
    """A core and its disk. `told` takes one input and checks everything."""

    core: Raft
    snapshot: SnapshotMeta
    entries: list[Entry]
    hard: HardState
    committed: dict[int, Entry] = field(default_factory=dict)  #: all that was ever applied
    applied: int = COMMITTED

    @classmethod
    def make(cls, *, after: int = 0, joins: bool = False, me: int = SELF) -> Replica:
        """One that has just started: whole, compacted up to `after`, or new to the group."""
        if joins:
            snapshot, entries, hard, applied = (
                SnapshotMeta(0, 0, Configuration()),
                [],
                HardState(),
                0,
            )
        else:
            term = TERMS[after - 1] if after else 0
            snapshot = SnapshotMeta(after, term, VOTERS if after >= 3 else FOUNDERS)
            entries, hard, applied = _entries(after), HardState(TERM, 0, COMMITTED), COMMITTED
        made = cls(_start(me, snapshot, entries, hard, applied), snapshot, list(entries), hard)
        made.applied = applied
        made.committed = {each.index: each for each in entries if each.index <= applied}
        made.drain()
        return made

    def told(self, act: Callable[[Raft], object]) -> None:
        """Do something to the core, then everything that it wants done."""
        before = self.core.term
        act(self.core)
        self.drain()
        if self.core.term > before + TERM_JUMP_MAX:
            raise Wrong("changed", f"the term leapt from {before} to {self.core.term}")
        self.core.check()

    def drain(self) -> None:
        while (ready := self.core.ready()) is not None:
            self._save(ready)
            for each in ready.committed:
                known = self.committed.setdefault(each.index, each)
                if known != each or each.index != self.applied + 1:
                    raise Wrong("changed", f"{each} applied after {self.applied}, was {known}")
                self.applied = each.index
            self.core.advance(ready)

    def _save(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            if ready.snapshot.index <= self.applied:
                raise Wrong("changed", f"{ready.snapshot} replaces what is applied: {self.applied}")
            self.snapshot, self.entries = ready.snapshot, []
            self.applied = ready.snapshot.index
        if ready.entries:
            first = ready.entries[0].index
            self.entries = [each for each in self.entries if each.index < first]
            self.entries += ready.entries
        if ready.hard_state is not None:
            self.hard = ready.hard_state

    def again(self) -> None:
        """Start from the disk: the invariants hold there too, and what was committed is there."""
        core = _start(self.core.id, self.snapshot, self.entries, self.hard, self.applied)
        core.check()
        found = {each.index: each for each in self.entries}
        for index, entry in self.committed.items():
            if index > self.snapshot.index and found.get(index) != entry:
                raise Wrong("changed", f"committed {entry}, on the disk {found.get(index)}")


def _start(
    me: int, snapshot: SnapshotMeta, entries: list[Entry], hard: HardState, applied: int
) -> Raft:
    return Raft(
        id=me,
        config=CONFIG,
        rng=Random(5),
        snapshot=snapshot,
        entries=entries,
        hard_state=hard,
        applied=applied,
    )


def follower() -> Replica:
    made = Replica.make()
    made.told(lambda core: core.step(Heartbeat(2, SELF, TERM, COMMITTED)))
    return made


def compacted() -> Replica:
    made = Replica.make(after=5)
    made.told(lambda core: core.step(Heartbeat(2, SELF, TERM, COMMITTED)))
    return made


def pre_candidate() -> Replica:
    made = Replica.make()
    made.told(lambda core: core.campaign())
    return made


def candidate() -> Replica:
    made = pre_candidate()
    made.told(lambda core: core.step(VoteReply(2, SELF, TERM + 1, True, pre=True)))
    return made


def leader() -> Replica:
    made = candidate()
    made.told(lambda core: core.step(VoteReply(2, SELF, TERM + 1, True)))
    return made


def serving() -> Replica:
    """A leader whose first entry is committed, with a write, a read and a learner under way."""
    made = leader()
    last = made.core.last_index
    made.told(lambda core: core.step(AppendReply(2, SELF, TERM + 1, last)))
    made.told(lambda core: core.propose(b"a write"))
    made.told(lambda core: core.read(7))
    made.told(lambda core: core.step(AppendReply(4, SELF, TERM + 1, last)))
    return made


def joint() -> Replica:
    """A leader in the middle of voting 3 out."""
    made = serving()
    made.told(lambda core: core.change(Change(remove=(3,))))
    return made


def handing_over() -> Replica:
    made = serving()
    made.told(lambda core: core.transfer(3))
    return made


ROLES: Final[dict[str, Callable[[], Replica]]] = {
    "new": lambda: Replica.make(joins=True, me=7),
    "started": Replica.make,
    "follower": follower,
    "learner": lambda: Replica.make(me=4),
    "removed": lambda: Replica.make(me=9),
    "compacted": compacted,
    "pre-candidate": pre_candidate,
    "candidate": candidate,
    "leader": leader,
    "serving": serving,
    "joint": joint,
    "handing over": handing_over,
}


def heard(role: str, message: Message) -> Replica:
    """A replica in this role after one message."""
    made = ROLES[role]()
    made.told(lambda core: core.step(message))
    return made
