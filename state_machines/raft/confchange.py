"""Membership changes by joint consensus (Raft, section 6), as functions of configurations.

Changing the voters takes two entries. `enter` makes the first: a joint configuration in which the
old voters (`outgoing`) and the new ones (`voters`) both have to agree, from the moment it is
appended. Once it is committed, the leader of that moment appends the second by itself: `leave`
simply drops `outgoing`, so there is nothing to remember between the two and a group never stays
joint for longer than it takes to commit an entry. Learners have no vote, so a change that touches
only them takes one entry.

A new member starts as a learner and is promoted once it has caught up: a voter that has nothing yet
would take part in every majority and help none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from state_machines.errors import Conflict, Invalid
from state_machines.raft.messages import MEMBERS_MAX, Configuration

ID_MAX: Final = 2**63 - 1
"""Replica ids are positive and fit a signed 64-bit integer."""


@dataclass(frozen=True, slots=True)
class Change:
    """What to change: learners to promote, new learners, and members that go."""

    add_voters: tuple[int, ...] = ()
    add_learners: tuple[int, ...] = ()
    remove: tuple[int, ...] = ()


def enter(old: Configuration, change: Change, caught_up: Callable[[int], bool]) -> Configuration:
    """The configuration that the first entry of this change carries.

    Raises `Invalid` for a change that makes no sense in `old`, and `Conflict` for one that cannot
    be made yet: another change is under way, or a learner to promote is too far behind.
    """
    if old.joint:
        raise Conflict("another membership change is under way")
    _check_ids(change)
    for learner in change.add_voters:
        if learner in old.voters:
            raise Invalid(f"add_voters: {learner} is a voter already")
        if learner not in old.learners:
            raise Invalid(f"add_voters: {learner} is not a member; add it as a learner first")
        if not caught_up(learner):
            raise Conflict(f"add_voters: {learner} has not caught up with the log yet")
    for learner in change.add_learners:
        if learner in old.members:
            raise Invalid(f"add_learners: {learner} is a member already")
    for member in change.remove:
        if member not in old.members:
            raise Invalid(f"remove: {member} is not a member")
    gone = {*change.remove}
    voters = tuple(sorted({*old.voters, *change.add_voters} - gone))
    if not voters:
        raise Invalid("remove: the last voter cannot be removed")
    learners = {*old.learners, *change.add_learners} - gone - {*change.add_voters}
    for name, members in (("add_voters", voters), ("add_learners", learners)):
        if len(members) > MEMBERS_MAX:  # no follower could read an entry that names more
            raise Invalid(
                f"{name}: the group would have {len(members)}, the limit is {MEMBERS_MAX}"
            )
    return Configuration(
        voters=voters,
        outgoing=old.voters if voters != old.voters else (),
        learners=tuple(sorted(learners)),
    )


def leave(joint: Configuration) -> Configuration:
    """The configuration that ends a joint one."""
    assert joint.joint, f"not joint: {joint}"
    return Configuration(voters=joint.voters, learners=joint.learners)


def _check_ids(change: Change) -> None:
    named = (*change.add_voters, *change.add_learners, *change.remove)
    if not named:
        raise Invalid("change: it names nobody")
    for member in named:
        if not 0 < member <= ID_MAX:
            raise Invalid(f"change: replica id {member} is not in 1..{ID_MAX}")
    if len({*named}) != len(named):
        raise Invalid("change: an id is named twice")
