"""Who stands for election when it is told to, who refuses another, and how long each waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from state_machines.raft import (
    AppendReply,
    Candidate,
    Follower,
    Heartbeat,
    HeartbeatReply,
    Leader,
    Message,
    PreCandidate,
    Raft,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from tests.raft.paper.rig import CONFIG, candidate, leader, replica, turn

SEEDS = range(8)


@pytest.mark.parametrize("make", [candidate, leader])
def test_who_stands_or_leads_does_not_begin_again(make: Callable[[], Raft]) -> None:
    """However often it is told that the leader is gone: the votes it has would be lost."""
    raft = make()
    role, term = raft.role, raft.term
    raft.campaign()
    assert raft.role is role
    assert raft.term == term


def test_a_leader_that_is_told_to_stand_goes_on() -> None:
    raft = leader()
    raft.step(TimeoutNow(2, 1, raft.term))
    assert (raft.role.name, raft.term) == ("leader", 1)


def test_who_has_no_vote_does_not_stand_though_a_leader_asks_it_to() -> None:
    raft = replica(id=9)
    raft.step(TimeoutNow(1, 9, 1))
    assert (raft.role.name, raft.term) == ("follower", 1)


def test_a_follower_forgets_the_leader_whose_connection_broke_and_no_other() -> None:
    raft = replica(id=2)
    raft.step(Heartbeat(1, 2, 1, 0))
    raft.unreachable(3)
    assert raft.leader == 1
    raft.unreachable(1)
    assert raft.leader == 0


def test_a_new_leader_has_a_whole_timeout_to_be_heard() -> None:
    """Time that passed while it was a candidate does not count."""
    raft = candidate(config=replace(CONFIG, check_quorum=True))
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
    raft.step(VoteReply(2, 1, raft.term, granted=True))
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
        assert isinstance(raft.role, Leader)
    raft.tick()
    assert isinstance(raft.role, Follower)


@pytest.mark.parametrize(
    "answer",
    [
        AppendReply(2, 1, 2, 2),
        AppendReply(2, 1, 2, 1, rejected=True, conflict_index=0),
        HeartbeatReply(2, 1, 2),
    ],
)
def test_a_leader_is_heard_by_whoever_answers(answer: Message) -> None:
    raft = leader(terms=(1,), config=replace(CONFIG, check_quorum=True))
    turn(raft)
    raft.step(answer)
    for _ in range(CONFIG.election_ticks_min):
        raft.tick()
    assert isinstance(raft.role, Leader)


def test_votes_of_the_election_before_are_no_refusals_of_a_pre_vote() -> None:
    raft = replica(config=replace(CONFIG, pre_vote=True), term=4)
    raft.campaign()
    for voter in (2, 3):
        raft.step(VoteReply(voter, 1, 4, granted=False))
    assert isinstance(raft.role, PreCandidate)


@pytest.mark.parametrize("pre", [False, True])
def test_who_has_a_leader_votes_for_nobody_else_in_its_term(pre: bool) -> None:
    raft = replica(id=2)
    raft.step(Heartbeat(1, 2, 1, 0))
    turn(raft)
    raft.step(RequestVote(3, 2, 1, 9, 1, pre=pre))
    assert turn(raft) == [VoteReply(2, 3, 1, granted=False, pre=pre)]
    assert raft.vote == 0


def test_without_the_check_of_the_quorum_followers_alone_refuse_a_pre_vote() -> None:
    """A leader does not know then that anybody hears it."""
    follower, leading = replica(term=1), leader()
    follower.step(Heartbeat(2, 1, 1, 0))
    for raft in (follower, leading):
        turn(raft)
        raft.step(RequestVote(3, 1, 2, 9, 1, pre=True))
    assert turn(follower) == [VoteReply(1, 3, 1, False, pre=True)]
    assert turn(leading) == [VoteReply(1, 3, 2, True, pre=True)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_candidate_that_cannot_win_puts_nobody_off(seed: int) -> None:
    raft = replica(id=2, terms=(1, 1), seed=seed)
    for _ in range(CONFIG.election_ticks_max):
        raft.step(RequestVote(3, 2, raft.term + 1, 1, 1))
        raft.tick()
        if isinstance(raft.role, Candidate):
            return
    raise AssertionError("it never stands")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", [candidate, leader])
def test_who_gives_way_waits_before_it_stands(make: Callable[..., Raft], seed: int) -> None:
    """Whoever is ahead of it has that time to win."""
    raft = make(seed=seed)
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
        turn(raft)
    raft.step(AppendReply(2, 1, raft.term + 1, 0, rejected=True))
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
        assert isinstance(raft.role, Follower)
