"""Timeouts that are drawn anew each time (5.2), and votes that come late or twice."""

from __future__ import annotations

from dataclasses import replace

from state_machines.raft import Candidate, Heartbeat, PreCandidate, Raft, VoteReply
from tests.raft.paper.rig import CONFIG, replica, turn


def patience(raft: Raft) -> int:
    """Ticks until it begins the next election."""
    term, ticks = raft.term, 0
    while raft.term == term:
        raft.tick()
        turn(raft)
        ticks += 1
    return ticks


def test_a_candidate_draws_another_timeout_for_each_election() -> None:
    """Two that split the votes would else split them for ever."""
    raft = replica()
    assert len({patience(raft) for _ in range(12)}) > 3


def test_a_follower_of_a_new_leader_draws_another_timeout() -> None:
    """After a candidate, or a leader, has heard of a later one."""
    drawn = set()
    for leaders in range(12):
        raft = replica()
        for term in range(leaders):
            raft.step(Heartbeat(2, 1, term + 1, 0, 0))
            turn(raft)
        drawn.add(patience(raft))
    assert len(drawn) > 3


def test_a_refusal_that_comes_late_takes_no_pre_vote_back() -> None:
    """Who is asked again may have granted meanwhile; the replies can pass each other."""
    raft = replica(size=5, config=replace(CONFIG, pre_vote=True))
    raft.campaign()
    turn(raft)
    assert isinstance(raft.role, PreCandidate)
    raft.step(VoteReply(2, 1, raft.term + 1, granted=True, pre=True))
    raft.step(VoteReply(2, 1, raft.term, granted=False, pre=True))
    raft.step(VoteReply(3, 1, raft.term + 1, granted=True, pre=True))
    assert isinstance(raft.role, Candidate)
