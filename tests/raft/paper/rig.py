"""What the tests of the paper stand on: one replica with a past, and a table of several.

A test has three parts: replicas in some state, something that happens, and what the paragraph says
must follow. They look at the core from outside, through messages and `Ready`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from state_machines.raft import (
    Configuration,
    Entry,
    HardState,
    Leader,
    Message,
    Raft,
    RaftConfig,
    SnapshotMeta,
    VoteReply,
)
from tests.raft.script import Script

CONFIG = RaftConfig(
    heartbeat_ticks=1,
    election_ticks_min=10,
    election_ticks_max=20,
    pre_vote=False,  # the paper's elections; pre-vote and leases came with the thesis
    check_quorum=False,
)


def log_of(*terms: int) -> list[Entry]:
    """Entries of these terms from index 1 on."""
    return [Entry(term, index, b"%d" % index) for index, term in enumerate(terms, start=1)]


def replica(
    id: int = 1,
    size: int = 3,
    terms: Sequence[int] = (),
    term: int | None = None,
    vote: int = 0,
    seed: int = 1,
    config: RaftConfig = CONFIG,
) -> Raft:
    """One of `size` voters that has been started over this past."""
    configuration = Configuration(voters=tuple(range(1, size + 1)))
    last = max(terms, default=0)
    return Raft(
        id=id,
        config=config,
        rng=random.Random(seed),
        snapshot=SnapshotMeta(0, 0, configuration),
        entries=log_of(*terms),
        hard_state=HardState(last if term is None else term, vote),
    )


def turn(raft: Raft) -> list[Message]:
    """Do all it wants done, and return what it said."""
    said: list[Message] = []
    while (ready := raft.ready()) is not None:
        said += ready.messages
        raft.advance(ready)
        said += ready.promises
    return said


def applied(raft: Raft) -> list[Entry]:
    """Do all it wants done, and return what was to be applied."""
    entries: list[Entry] = []
    while (ready := raft.ready()) is not None:
        raft.advance(ready)
        entries += ready.committed
    return entries


def candidate(**past: object) -> Raft:
    """One that has just asked for votes."""
    raft = replica(**past)  # type: ignore[arg-type]  # the same keywords
    raft.campaign()
    turn(raft)
    return raft


def leader(size: int = 3, terms: Sequence[int] = (), **past: object) -> Raft:
    """One that has just been elected; its no-op is not sent or answered yet."""
    raft = candidate(size=size, terms=terms, **past)
    for voter in range(2, size // 2 + 2):
        raft.step(VoteReply(voter, 1, raft.term, granted=True))
    assert isinstance(raft.role, Leader)
    return raft


def terms_of(raft: Raft) -> list[int]:
    """The terms of what is in its log."""
    span = range(raft.first_index, raft.last_index + 1)
    return [raft.snapshot_meta(index).term for index in span]


class Table(Script):
    """Several replicas, moved by the commands of the golden scripts."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.do(*lines)

    def do(self, *lines: str) -> list[str]:
        """Carry out these commands, and return what was seen."""
        seen = self.block(list(lines))
        return [] if seen == ["(nothing)"] else seen

    def leader(self) -> int:
        """Who leads in the highest term, 0 for nobody."""
        leading = [
            (seat.raft.term, number)
            for number, seat in self.seats.items()
            if seat.raft is not None and isinstance(seat.raft.role, Leader)
        ]
        return max(leading, default=(0, 0))[1]

    def patience(self, *numbers: int) -> None:
        """Nobody of these has heard a leader for so long that they vote again."""
        for number in numbers:
            self.do(f"quietly tick {number} {self.settings.election_ticks_min}")
