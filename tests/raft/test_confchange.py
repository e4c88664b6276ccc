"""A change that has to wait. `tests/properties/changes.py` asks what follows from any others."""

from __future__ import annotations

import pytest

from state_machines.errors import Conflict, Invalid
from state_machines.raft import Change, Configuration
from state_machines.raft.confchange import ID_MAX, enter
from state_machines.raft.messages import MEMBERS_MAX


def test_a_joint_configuration_takes_no_change() -> None:
    with pytest.raises(Conflict):
        enter(Configuration((1, 2), (1,)), Change(remove=(2,)), lambda learner: True)


def test_no_configuration_has_more_members_than_an_entry_may_name() -> None:
    """The 65th learner was taken, and no follower could read the entry that named it."""
    many = tuple(range(1, MEMBERS_MAX + 1))
    learner = MEMBERS_MAX + 1
    with pytest.raises(Invalid, match=f"add_voters: .* {MEMBERS_MAX + 1}, the limit is"):
        enter(Configuration(many, learners=(learner,)), Change(add_voters=(learner,)), bool)
    full = tuple(range(2, MEMBERS_MAX + 2))
    with pytest.raises(Invalid, match=f"add_learners: .* {MEMBERS_MAX + 1}, the limit is"):
        enter(Configuration((1,), learners=full), Change(add_learners=(100,)), bool)
    swapped = enter(Configuration((1,), learners=full), Change((), (100,), (2,)), bool)
    assert len(swapped.learners) == MEMBERS_MAX


def test_an_id_is_any_positive_one_of_64_bits() -> None:
    assert enter(Configuration((1,)), Change(add_learners=(ID_MAX,)), bool).learners == (ID_MAX,)
    for wrong in (0, ID_MAX + 1):
        with pytest.raises(Invalid, match=f"replica id {wrong} is not in 1"):
            enter(Configuration((1,)), Change(add_learners=(wrong,)), bool)
