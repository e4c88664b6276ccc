"""Whom a round of reads asks: those that ended the one before, if they are enough, or else all."""

from __future__ import annotations

from state_machines.raft.messages import Configuration, ReadState
from state_machines.raft.reads import Reads

FIVE = Configuration(voters=(1, 2, 3, 4, 5))
JOINT = Configuration(voters=(1, 2, 3), outgoing=(1, 4, 5), learners=(6,))


def asked(reads: Reads, configuration: Configuration) -> list[int]:
    """Whom the next round of the leader 1 asks."""
    reads.waiting.append(7)
    return reads.begin(reads.round_number + 1, 9, 1, configuration)


def answered(configuration: Configuration, *peers: int) -> Reads:
    """A round is over, which these answered in this order."""
    reads = Reads()
    asked(reads, configuration)
    for peer in peers:
        assert reads.acknowledge(peer, 1)
    assert reads.finish(configuration) == [ReadState(7, 9)]
    return reads


def test_no_more_are_asked_than_a_quorum_needs() -> None:
    assert asked(answered(FIVE, 4, 2, 3), FIVE) == [4, 2]


def test_all_are_asked_when_too_few_are_left() -> None:
    reads = answered(FIVE, 4, 2)
    reads.broken(2)
    assert asked(reads, FIVE) == [2, 3, 4, 5]


def test_who_answers_twice_counts_once() -> None:
    assert asked(answered(FIVE, 4, 4, 2), FIVE) == [4, 2]


def test_of_two_halves_both_are_asked() -> None:
    assert asked(Reads(), JOINT) == [2, 3, 4, 5]
    assert asked(answered(JOINT, 2, 4), JOINT) == [2, 4]
