"""Membership changes as functions: what follows from any sequence of them, and that a change made
at once by way of a joint configuration ends where one member at a time does."""

from __future__ import annotations

from random import Random
from typing import Final

from hypothesis import strategies as st

from state_machines.errors import Invalid
from state_machines.raft import Change, Configuration
from state_machines.raft.confchange import enter, leave
from tests.properties.ask import holds

IDS: Final = st.lists(st.integers(-1, 8), max_size=3).map(tuple)
CHANGES: Final = st.builds(Change, add_voters=IDS, add_learners=IDS, remove=IDS)


def made(old: Configuration, change: Change) -> Configuration:
    """Where a change ends, joint or not on its way."""
    entered = enter(old, change, lambda learner: True)
    return leave(entered) if entered.joint else entered


@holds(long=5_000, sample=60, changes=st.lists(CHANGES, max_size=12))
def any_sequence_of_changes_leaves_a_sound_group(changes: list[Change]) -> None:
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


@st.composite
def configurations_and_changes(draw: st.DrawFn) -> tuple[Configuration, Change]:
    """A configuration and a change that makes sense in it."""
    members = draw(st.lists(st.integers(1, 9), min_size=1, max_size=9, unique=True))
    cut = draw(st.integers(1, len(members)))
    voters, learners = members[:cut], members[cut:]
    old = Configuration(voters=tuple(sorted(voters)), learners=tuple(sorted(learners)))
    promoted = draw(st.lists(st.sampled_from(learners), unique=True)) if learners else []
    added = draw(st.lists(st.integers(10, 14), unique=True, max_size=3))
    goes = [member for member in members if member not in promoted]
    removed = draw(st.lists(st.sampled_from(goes), unique=True)) if goes else []
    if not {*voters, *promoted} - {*removed}:
        removed = [member for member in removed if member != voters[0]]
    if not promoted and not added and not removed:
        added = [10]
    return old, Change(tuple(promoted), tuple(added), tuple(removed))


@holds(
    long=20_000,
    sample=120,
    asked=configurations_and_changes(),
    luck=st.randoms(use_true_random=False),
)
def all_at_once_ends_where_one_at_a_time_does(
    asked: tuple[Configuration, Change], luck: Random
) -> None:
    old, change = asked
    single = [Change(add_voters=(member,)) for member in change.add_voters]
    single += [Change(add_learners=(member,)) for member in change.add_learners]
    luck.shuffle(single)
    leaving = [Change(remove=(member,)) for member in change.remove]
    luck.shuffle(leaving)
    now = old
    for each in (*single, *leaving):  # first who comes, so that somebody always votes
        now = made(now, each)
    assert made(old, change) == now
