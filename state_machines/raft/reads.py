"""When a read is safe (thesis 6.4): rounds of heartbeats that prove the leader still leads.

A read must see every write acknowledged before it arrived. The leader knows them all once it has
committed an entry of its own term, so it notes its commit index, and then has to know that nobody
led after it when it noted that. A *round* shows it: heartbeats with the round's number go out, and
a quorum of replies *to that round* come from replicas that had not left the term by then.

Reads that arrive while a round is under way wait in `waiting` and share the next one: their
heartbeats must leave after they came. A round's number is never used again, so a late reply to an
older round proves nothing about a younger one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from state_machines.raft.messages import ReadState


@dataclass(slots=True)
class Round:
    """One round of heartbeats: who is in `acks` was still in the leader's term after it began."""

    number: int
    index: int
    contexts: list[int]
    acks: set[int]


@dataclass(slots=True)
class Reads:
    """The reads of one leadership. They are lost with it; the shell fails those it waits for."""

    waiting: list[int] = field(default_factory=list)
    round: Round | None = None

    @property
    def round_number(self) -> int:
        """The round under way, 0 if there is none: what the leader's heartbeats carry."""
        return self.round.number if self.round is not None else 0

    def begin(self, number: int, index: int, leader: int) -> None:
        """Start a round for all that wait; `index` is the leader's commit index now."""
        assert self.round is None, f"round {self.round_number} is still under way"
        assert self.waiting, "a round serves at least one read"
        self.round = Round(number, index, self.waiting, {leader})
        self.waiting = []

    def acknowledge(self, peer: int, number: int) -> bool:
        """Note a reply; whether it answered the round under way."""
        if self.round is None or number != self.round.number:
            return False
        self.round.acks.add(peer)
        return True

    def finish(self) -> list[ReadState]:
        """A quorum has answered the round: its reads are safe at its index."""
        assert self.round is not None, "no round is under way"
        done, self.round = self.round, None
        return [ReadState(context, done.index) for context in done.contexts]
