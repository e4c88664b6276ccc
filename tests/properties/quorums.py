"""Majority and joint arithmetic against twins that are too simple to be wrong: they list every
majority there is and look whether one of them is present."""

from __future__ import annotations

from functools import cache
from itertools import combinations
from typing import Final

from hypothesis import strategies as st

from state_machines.raft.messages import Configuration
from state_machines.raft.quorum import Outcome, agreed_index, has_quorum, tally
from tests.properties.ask import holds

MEMBERS: Final = tuple(range(1, 10))
LEARNER: Final = 10
ALL: Final = 2 ** len(MEMBERS) - 1
INDEX_MAX: Final = 12


def some(mask: int) -> tuple[int, ...]:
    """The members whose bits are set. A number is drawn faster than a set, and shrinks as well."""
    return tuple(member for member in range(1, LEARNER + 1) if mask >> (member - 1) & 1)


VOTERS: Final = st.integers(1, ALL).map(some)
CONFIGURATIONS: Final = st.tuples(
    st.integers(1, ALL), st.one_of(st.just(0), st.integers(0, ALL))
).map(lambda masks: Configuration(some(masks[0]), some(masks[1]), (LEARNER,)))

CASES: Final = 8
"""So many are made of one piece of luck, since the drawing takes longer than the looking."""

LUCK: Final = st.binary(min_size=CASES * LEARNER, max_size=CASES * LEARNER)


def cases(luck: bytes) -> list[bytes]:
    """A byte for each member, once a case."""
    return [luck[at : at + LEARNER] for at in range(0, len(luck), LEARNER)]


@cache
def quorums(voters: tuple[int, ...]) -> list[set[int]]:
    """Every set of voters that is more than half of them."""
    sizes = range(len(voters) // 2 + 1, len(voters) + 1)
    return [set(chosen) for size in sizes for chosen in combinations(voters, size)]


def decides(configuration: Configuration, present: set[int]) -> bool:
    """Whether some majority of each half is present."""
    halves = [half for half in (configuration.voters, configuration.outgoing) if half]
    return all(any(chosen <= present for chosen in quorums(half)) for half in halves)


@holds(long=7_500, sample=60, cases=CASES, configuration=CONFIGURATIONS, luck=LUCK)
def the_agreed_index_is_the_largest_a_quorum_has(configuration: Configuration, luck: bytes) -> None:
    for case in cases(luck):
        matches = {member: each % (INDEX_MAX + 1) for member, each in enumerate(case, 1) if each}
        for largest in range(INDEX_MAX, -1, -1):
            if decides(configuration, {m for m in MEMBERS if matches.get(m, 0) >= largest}):
                break
        assert agreed_index(configuration, lambda voter: matches.get(voter, 0)) == largest  # noqa: B023


@holds(long=7_500, sample=60, cases=CASES, configuration=CONFIGURATIONS, luck=LUCK)
def a_quorum_is_a_majority_of_each_half(configuration: Configuration, luck: bytes) -> None:
    for case in cases(luck):
        present = {member for member, each in enumerate(case, 1) if each % 2}
        assert has_quorum(configuration, present) == decides(configuration, present)


@holds(long=7_500, sample=60, cases=CASES, configuration=CONFIGURATIONS, luck=LUCK)
def votes_are_won_lost_or_open(configuration: Configuration, luck: bytes) -> None:
    for case in cases(luck):
        votes = {member: each % 3 == 1 for member, each in enumerate(case, 1) if each % 3}
        granted = {voter for voter, yes in votes.items() if yes}
        refused = {voter for voter, yes in votes.items() if not yes}
        everybody = {*configuration.voters, *configuration.outgoing}
        if decides(configuration, granted):
            expected = Outcome.WON
        elif decides(configuration, everybody - refused):
            expected = Outcome.PENDING  # those who have not answered could still decide it
        else:
            expected = Outcome.LOST
        assert tally(configuration, votes) is expected


@holds(long=1_250, sample=40, cases=CASES, voters=VOTERS, luck=LUCK)
def joint_of_equal_halves_is_simple(voters: tuple[int, ...], luck: bytes) -> None:
    joint = Configuration(voters=voters, outgoing=voters)
    for case in cases(luck):
        present = {member for member, each in enumerate(case, 1) if each % 2}
        assert has_quorum(joint, present) == has_quorum(Configuration(voters=voters), present)


@holds(long=1_250, sample=40, cases=CASES, old=VOTERS, new=VOTERS, luck=LUCK)
def joint_quorums_meet_those_of_either_half(
    old: tuple[int, ...], new: tuple[int, ...], luck: bytes
) -> None:
    joint = Configuration(voters=new, outgoing=old)
    for case in cases(luck):
        one = {member for member, each in enumerate(case, 1) if each % 2}
        other = {member for member, each in enumerate(case, 1) if each & 2}
        if has_quorum(joint, one):
            for half in (old, new):
                if has_quorum(Configuration(voters=half), other):
                    assert one & other & {*half}
