"""Membership changes as functions: what follows from any sequence of them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.errors import Conflict, Invalid
from state_machines.raft import Change, Configuration
from state_machines.raft.confchange import enter, leave

IDS = st.lists(st.integers(-1, 8), max_size=3).map(tuple)
CHANGES = st.builds(Change, add_voters=IDS, add_learners=IDS, remove=IDS)


@settings(deadline=None, max_examples=400)
@given(st.lists(CHANGES, max_size=12))
def test_any_sequence_of_changes(changes: list[Change]) -> None:
    now = Configuration(voters=(1, 2, 3))
    for change in changes:
        try:
            entered = enter(now, change, lambda learner: True)
        except Invalid:
            continue
        after = leave(entered) if entered.joint else entered
        assert after.voters, "somebody votes"
        assert not {*after.voters} & {*after.learners}, "nobody is both"
        for part in (entered.voters, entered.outgoing, entered.learners):
            assert part == tuple(sorted({*part})), "sorted, and nobody twice"
        assert entered.joint == (after.voters != now.voters), "joint exactly if the voters change"
        assert entered.outgoing == (now.voters if entered.joint else ())
        before = {*now.members}
        assert {*after.members} == (before | {*change.add_learners}) - {*change.remove}
        assert {*after.voters} == ({*now.voters} | {*change.add_voters}) - {*change.remove}
        assert all(member > 0 for member in after.members)
        now = after


def test_a_joint_configuration_takes_no_change() -> None:
    with pytest.raises(Conflict):
        enter(Configuration((1, 2), (1,)), Change(remove=(2,)), lambda learner: True)
