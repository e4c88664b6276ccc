"""Names of seats: `offset-0/2` has a voter, `offset-0/learner-0` a learner that never votes.

A seat's name is its actor's, and all that anybody knows of a seat before it has answered: clients
that choose whom to ask, the controller's planner, and whoever places it. So the name says which of
the two it is, and nothing has to be looked up for that. Which replica sits there, its directory
says (law 1); those of learners lie in a folder of their own, so no voter ever sits on a learner's
seat, and no learner on a voter's, not even where they share a node.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

LEARNER: Final = "learner-"  #: what a learner's name has before its number
LEARNERS_FOLDER: Final = "learners"  #: below a node's data: the directories of its learners


def voter_seats(group: str, count: int) -> tuple[str, ...]:
    """The seats of a group's voters, by number."""
    return tuple(f"{group}/{number}" for number in range(count))


def learner_seats(group: str, count: int) -> tuple[str, ...]:
    """The seats of a group's learners, by number."""
    return tuple(f"{group}/{LEARNER}{number}" for number in range(count))


def group_of(seat: str) -> str:
    """The group a seat belongs to; empty for what is no seat."""
    return seat.rpartition("/")[0]


def kind_of(group: str) -> str:
    """The kind of a group: `mqtt` of `mqtt-3`."""
    return group.rpartition("-")[0]


def is_learner(seat: str) -> bool:
    """Whether the replica of this seat never votes."""
    return seat.rpartition("/")[2].startswith(LEARNER)


def learners_among(seats: Iterable[str]) -> tuple[str, ...]:
    """The learners' seats of these, sorted."""
    return tuple(sorted(filter(is_learner, seats)))
