"""Majorities of small groups, and of none. `tests/properties/quorums.py` asks about all others."""

from __future__ import annotations

from state_machines.raft.messages import Configuration
from state_machines.raft.quorum import Outcome, agreed_index, has_quorum, majority, tally


def test_majority_of_small_groups() -> None:
    assert [majority(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_nobody_decides_without_voters() -> None:
    nobody = Configuration(learners=(1, 2))
    assert not has_quorum(nobody, {1, 2})
    assert tally(nobody, {1: True}) is not Outcome.WON
    assert agreed_index(nobody, lambda voter: 9) == 0
