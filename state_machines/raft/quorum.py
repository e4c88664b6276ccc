"""Majorities, and pairs of them: who has won, and how far a quorum's logs agree.

A joint configuration (Raft, section 6) decides only when a majority of the incoming `voters` and a
majority of the `outgoing` ones both do. Nobody can be elected, and nothing commits, without voters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum

from state_machines.raft.messages import Configuration


class Outcome(Enum):
    """What the votes counted so far have decided."""

    PENDING = "pending"
    WON = "won"
    LOST = "lost"


def majority(count: int) -> int:
    """The smallest number that is more than half of `count`."""
    return count // 2 + 1


def agreed_index(configuration: Configuration, match: Callable[[int], int]) -> int:
    """The largest index that a quorum has reached, where `match` tells a voter's index."""
    agreed = _majority_index(configuration.voters, match)
    if configuration.outgoing:
        agreed = min(agreed, _majority_index(configuration.outgoing, match))
    return agreed


def has_quorum(configuration: Configuration, present: Collection[int]) -> bool:
    """Whether those present are enough to decide."""
    return _majority_present(configuration.voters, present) and (
        not configuration.outgoing or _majority_present(configuration.outgoing, present)
    )


def tally(configuration: Configuration, votes: Mapping[int, bool]) -> Outcome:
    """Count the votes. Those of replicas that do not vote in this configuration are passed over."""
    halves = [_tally(configuration.voters, votes)]
    if configuration.outgoing:
        halves.append(_tally(configuration.outgoing, votes))
    if Outcome.LOST in halves:
        return Outcome.LOST
    return Outcome.PENDING if Outcome.PENDING in halves else Outcome.WON


def _majority_index(voters: tuple[int, ...], match: Callable[[int], int]) -> int:
    if not voters:
        return 0
    ascending = sorted(map(match, voters))
    return ascending[len(voters) - majority(len(voters))]


def _majority_present(voters: tuple[int, ...], present: Collection[int]) -> bool:
    return sum(voter in present for voter in voters) >= majority(len(voters))


def _tally(voters: tuple[int, ...], votes: Mapping[int, bool]) -> Outcome:
    needed = majority(len(voters))
    granted = sum(votes.get(voter, False) for voter in voters)
    if granted >= needed:
        return Outcome.WON
    refused = sum(not votes.get(voter, True) for voter in voters)
    return Outcome.LOST if len(voters) - refused < needed else Outcome.PENDING
