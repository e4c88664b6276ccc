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


MEMBERS: Final = range(1, 10)
NEWCOMERS: Final = range(10, 14)
CASES: Final = 8
CASE_BYTES: Final = len(MEMBERS) + len(NEWCOMERS)


def asked(luck: bytes) -> tuple[Configuration, Change]:
    """A configuration and a change that makes sense in it: a byte for each member decides whether
    it votes, listens or is none, and whether it goes or is promoted; others for newcomers."""
    voters = tuple(each for each in MEMBERS if luck[each - 1] % 3 == 1) or (1,)
    learners = tuple(each for each in MEMBERS if luck[each - 1] % 3 == 2 and each not in voters)
    moves = {each: luck[each - 1] // 3 % 3 for each in MEMBERS}
    promoted = tuple(each for each in learners if moves[each] == 1)
    added = tuple(each for each in NEWCOMERS if luck[each - 1] % 4 == 0)
    removed = tuple(each for each in (*voters, *learners) if moves[each] == 2)
    if not {*voters, *promoted} - {*removed}:
        removed = tuple(each for each in removed if each != voters[0])
    if not (promoted or added or removed):
        added = (NEWCOMERS[0],)
    return Configuration(voters=voters, learners=learners), Change(promoted, added, removed)


@holds(
    long=2_500,
    cases=CASES,
    luck=st.binary(min_size=CASES * CASE_BYTES, max_size=CASES * CASE_BYTES),
    order=st.integers(0, 2**32),
)
def all_at_once_ends_where_one_at_a_time_does(luck: bytes, order: int) -> None:
    shuffle = Random(order).shuffle
    for at in range(0, len(luck), CASE_BYTES):
        old, change = asked(luck[at : at + CASE_BYTES])
        coming = [Change(add_voters=(member,)) for member in change.add_voters]
        coming += [Change(add_learners=(member,)) for member in change.add_learners]
        going = [Change(remove=(member,)) for member in change.remove]
        shuffle(coming)
        shuffle(going)
        now = old
        for each in (*coming, *going):  # first who comes, so that somebody always votes
            now = made(now, each)
        promoted, added, removed = {*change.add_voters}, {*change.add_learners}, {*change.remove}
        voters = ({*old.voters} | promoted) - removed
        learners = ({*old.learners} | added) - promoted - removed
        assert now == Configuration(tuple(sorted(voters)), (), tuple(sorted(learners)))
        assert made(old, change) == now
