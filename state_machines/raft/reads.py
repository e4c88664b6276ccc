"""When a read is safe (thesis 6.4): rounds of heartbeats that prove the leader still leads.

A read must see every write acknowledged before it arrived. The leader knows them all once it has
committed an entry of its own term, so it notes its commit index, and then has to know that nobody
led after it when it noted that. A *round* shows it: heartbeats with the round's number go out, and
a quorum of replies *to that round* come from replicas that had not left the term by then.

Reads that arrive while a round is under way wait in `waiting` and share the next one: their
heartbeats must leave after they came. A round's number is never used again, so a late reply to an
older round proves nothing about a younger one.

A round asks no more than a quorum needs: those whose replies ended the round before. Should one of
them be silent, all are asked with the next tick, or as soon as its connection breaks, and whoever
replies is asked from then on. A slow one is found out too: the longer its rounds take, the likelier
a tick falls into one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from state_machines.raft.messages import Configuration, ReadState
from state_machines.raft.quorum import has_quorum, majority


@dataclass(slots=True)
class Round:
    """One round of heartbeats: who is in `acks` was still in the leader's term after it began."""

    number: int
    index: int
    contexts: list[int]
    acks: list[int]


@dataclass(slots=True)
class Reads:
    """The reads of one leadership. They are lost with it; the shell fails those it waits for."""

    waiting: list[int] = field(default_factory=list)
    round: Round | None = None
    quick: list[int] = field(default_factory=list)  # who replied to the round before

    @property
    def round_number(self) -> int:
        """The round under way, 0 if there is none: what the leader's heartbeats carry."""
        return self.round.number if self.round is not None else 0

    def begin(
        self, number: int, index: int, leader: int, configuration: Configuration
    ) -> list[int]:
        """Start a round for all that wait; `index` is the leader's commit index now. Returns whom
        to ask."""
        assert self.round is None, f"round {self.round_number} is still under way"
        assert self.waiting, "a round serves at least one read"
        self.round = Round(number, index, self.waiting, [leader])
        self.waiting = []
        asked = [peer for peer in self.quick if configuration.has_vote(peer)]
        if has_quorum(configuration, [leader, *asked]):
            return asked
        return self.silent(configuration)

    def silent(self, configuration: Configuration) -> list[int]:
        """The voters that have not replied to the round under way."""
        assert self.round is not None, "no round is under way"
        voters = dict.fromkeys((*configuration.voters, *configuration.outgoing))
        return [voter for voter in voters if voter not in self.round.acks]

    def broken(self, peer: int) -> None:
        """What was sent to it may be lost: do not rely on its reply."""
        if peer in self.quick:
            self.quick.remove(peer)

    def acknowledge(self, peer: int, number: int) -> bool:
        """Note a reply; whether it answered the round under way."""
        if self.round is None or number != self.round.number:
            return False
        if peer not in self.round.acks:
            self.round.acks.append(peer)
        return True

    def finish(self, configuration: Configuration) -> list[ReadState]:
        """A quorum has answered the round: its reads are safe at its index."""
        assert self.round is not None, "no round is under way"
        done, self.round = self.round, None
        # The leader comes first; of two halves, whoever replied may be needed.
        enough = None if configuration.joint else majority(len(configuration.voters))
        self.quick = done.acks[1:enough]
        return [ReadState(context, done.index) for context in done.contexts]
