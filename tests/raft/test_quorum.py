"""Majority and joint arithmetic against twins that are too simple to be wrong."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.raft.messages import Configuration
from state_machines.raft.quorum import Outcome, agreed_index, has_quorum, majority, tally

IDS = st.integers(1, 9)
VOTERS = st.sets(IDS, min_size=1, max_size=7).map(lambda ids: tuple(sorted(ids)))
CONFIGURATIONS = st.builds(
    Configuration, voters=VOTERS, outgoing=st.one_of(st.just(()), VOTERS), learners=st.just((42,))
)
MATCHES = st.dictionaries(IDS, st.integers(0, 12))


def quorums(voters: tuple[int, ...]) -> list[set[int]]:
    """Every set of voters that is more than half of them."""
    sizes = range(len(voters) // 2 + 1, len(voters) + 1)
    return [set(chosen) for size in sizes for chosen in combinations(voters, size)]


def decides(configuration: Configuration, present: set[int]) -> bool:
    """Whether some majority of each half is present."""
    halves = [half for half in (configuration.voters, configuration.outgoing) if half]
    return all(any(chosen <= present for chosen in quorums(half)) for half in halves)


@settings(deadline=None, max_examples=800)
@given(CONFIGURATIONS, MATCHES)
def test_agreed_index_is_the_largest_a_quorum_has(
    configuration: Configuration, matches: dict[int, int]
) -> None:
    def holders(index: int) -> set[int]:
        return {voter for voter in range(1, 10) if matches.get(voter, 0) >= index}

    largest = max(index for index in range(13) if decides(configuration, holders(index)))
    assert agreed_index(configuration, lambda voter: matches.get(voter, 0)) == largest


@settings(deadline=None, max_examples=800)
@given(CONFIGURATIONS, st.sets(st.one_of(IDS, st.just(42))))
def test_has_quorum(configuration: Configuration, present: set[int]) -> None:
    assert has_quorum(configuration, present) == decides(configuration, present)


@settings(deadline=None, max_examples=800)
@given(CONFIGURATIONS, st.dictionaries(st.one_of(IDS, st.just(42)), st.booleans()))
def test_tally(configuration: Configuration, votes: dict[int, bool]) -> None:
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


@settings(deadline=None, max_examples=400)
@given(VOTERS, st.sets(IDS))
def test_joint_of_equal_halves_is_simple(voters: tuple[int, ...], present: set[int]) -> None:
    joint = Configuration(voters=voters, outgoing=voters)
    assert has_quorum(joint, present) == has_quorum(Configuration(voters=voters), present)


@settings(deadline=None, max_examples=400)
@given(VOTERS, VOTERS, st.sets(IDS), st.sets(IDS))
def test_joint_quorums_meet_those_of_either_half(
    old: tuple[int, ...], new: tuple[int, ...], one: set[int], other: set[int]
) -> None:
    joint = Configuration(voters=new, outgoing=old)
    if has_quorum(joint, one):
        for half in (old, new):
            if has_quorum(Configuration(voters=half), other):
                assert one & other & set(half)


def test_majority_of_small_groups() -> None:
    assert [majority(count) for count in (1, 2, 3, 4, 5)] == [1, 2, 2, 3, 3]


def test_nobody_decides_without_voters() -> None:
    nobody = Configuration(learners=(1, 2))
    assert not has_quorum(nobody, {1, 2})
    assert tally(nobody, {1: True}) is not Outcome.WON
    assert agreed_index(nobody, lambda voter: 9) == 0
