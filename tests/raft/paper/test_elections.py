"""Raft paper (extended version), sections 5.1 and 5.2: terms, roles and elections."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from state_machines.errors import NotLeader
from state_machines.raft import (
    Append,
    AppendReply,
    Candidate,
    Configuration,
    Follower,
    HardState,
    Heartbeat,
    InstallSnapshot,
    Leader,
    Message,
    Raft,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from tests.raft.paper.rig import (
    CONFIG,
    Table,
    candidate,
    leader,
    log_of,
    replica,
    turn,
)

UNTESTED = {
    "Paper 5.2 ¶7": "a design that was given up: ranks of candidates",
}

Make = Callable[..., Raft]
each_role = pytest.mark.parametrize("make", [replica, candidate, leader])


# 5.1 Raft basics


def test_followers_are_passive() -> None:
    """Paper 5.1 ¶1: followers make no requests of their own; they only answer."""
    raft = replica(id=2)
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
        assert turn(raft) == []
    raft.step(Append(1, 2, 1, 0, 0, 0, tuple(log_of(1))))
    assert turn(raft) == [AppendReply(2, 1, 1, 1)]


def test_a_follower_sends_clients_to_the_leader() -> None:
    """Paper 5.1 ¶1: the leader handles all requests; a follower that is asked names the leader."""
    raft = replica(id=2)
    raft.step(Heartbeat(3, 2, 1, 0))
    with pytest.raises(NotLeader) as refused:
        raft.propose(b"x")
    assert refused.value.leader == "3"


def test_five_bear_the_failure_of_two() -> None:
    """Paper 5.1 ¶1: a group of five goes on without any two of its members."""
    table = Table("cluster 5", "quietly lead 1", "crash 4", "crash 5", "propose 1 a")
    table.do("settle")
    assert table.raft(1).commit == 2


def test_at_most_one_leader_a_term() -> None:
    """Paper 5.1 ¶2: a term has one leader at most, even if two are candidates in it."""
    one, other = candidate(id=1), candidate(id=2)
    voter = replica(id=3)
    for each in (one, other):
        voter.step(RequestVote(each.id, 3, 1, 0, 0))
    for reply in turn(voter):
        (one if reply.receiver == 1 else other).step(reply)
    assert isinstance(one.role, Leader)
    assert isinstance(other.role, Candidate)


def test_a_split_vote_ends_its_term_without_a_leader() -> None:
    """Paper 5.1 ¶2: terms are consecutive; one with a split vote has no leader, the next may."""
    table = Table("cluster 4 pre_vote=0", "campaign 1", "campaign 2", "turn 1", "turn 2")
    table.do("deliver 1 3", "deliver 2 4", "quietly settle")
    assert table.leader() == 0
    assert {table.raft(number).term for number in (1, 2, 3, 4)} == {1}
    table.do("quietly timeout 1", "quietly settle")
    assert (table.leader(), table.raft(1).term) == (1, 2)


@each_role
def test_a_larger_term_is_adopted(make: Make) -> None:
    """Paper 5.1 ¶3: whose term is smaller than another's takes the larger one."""
    raft = make(terms=(1,))
    raft.step(AppendReply(2, 1, 9, 0))
    assert raft.term == 9


@each_role
def test_a_term_never_goes_back(make: Make) -> None:
    """Paper 5.1 ¶3: the term grows monotonically, whatever older messages come."""
    raft = make(terms=(1,), term=5)
    term = raft.term
    for old in (Heartbeat(2, 1, 1, 0), VoteReply(2, 1, 2, True), RequestVote(3, 1, 3, 9, 3)):
        raft.step(old)
        assert raft.term == term


@pytest.mark.parametrize("make", [candidate, leader])
def test_an_out_of_date_candidate_or_leader_becomes_follower(make: Make) -> None:
    """Paper 5.1 ¶3: a candidate or leader that finds its term out of date reverts at once."""
    raft = make(terms=(1,))
    raft.step(Heartbeat(2, 1, raft.term + 1, 0))
    assert isinstance(raft.role, Follower)
    assert raft.leader == 2


@pytest.mark.parametrize(
    "stale",
    [
        RequestVote(2, 1, 1, 99, 99),
        Append(2, 1, 1, 0, 0, 0, tuple(log_of(1))),
        Heartbeat(2, 1, 1, 1),
        InstallSnapshot(2, 1, 1, SnapshotMeta(9, 1, Configuration(voters=(1, 2, 3)))),
    ],
)
def test_a_request_of_a_stale_term_is_rejected(stale: Message) -> None:
    """Paper 5.1 ¶3: who receives a request with a stale term number rejects it."""
    raft = replica(terms=(1, 2), term=5)
    raft.step(stale)
    (reply,) = turn(raft)
    assert reply.term == 5
    match reply:
        case VoteReply(granted=granted):
            assert not granted
        case AppendReply(rejected=rejected):
            assert rejected
        case _:
            raise AssertionError(f"not a refusal: {reply}")
    assert (raft.vote, raft.last_index, raft.commit) == (0, 2, 0)


def test_requests_are_retried_and_go_to_all_at_once() -> None:
    """Paper 5.1 ¶4: requests that get no answer are made again; they are made in parallel."""
    table = Table("cluster 3", "quietly lead 1", "propose 1 a")
    assert table.do("turn 1")[:2] == [
        "1 to 2: append 2@1=a after 1@1, commit 1",
        "1 to 3: append 2@1=a after 1@1, commit 1",
    ]
    table.do("lose 1 2", "lose 1 3", "quietly settle")
    assert table.raft(2).last_index == 1
    table.do("tick 1 2", "settle")  # the next heartbeat finds out
    assert table.raft(2).last_index == table.raft(3).last_index == table.raft(1).commit == 2


# 5.2 Leader election


def test_it_starts_as_follower() -> None:
    """Paper 5.2 ¶1: when servers start up, they begin as followers."""
    assert isinstance(replica(terms=(1, 2), term=7, vote=1).role, Follower)


def test_a_leader_sends_heartbeats_to_all() -> None:
    """Paper 5.2 ¶1: leaders send periodic heartbeats to all followers to keep their authority."""
    raft = leader()
    turn(raft)
    for _ in range(3):
        raft.tick()
        assert turn(raft) == [Heartbeat(1, 2, 1, 0), Heartbeat(1, 3, 1, 0)]


@pytest.mark.parametrize(
    "word", [Heartbeat(1, 2, 1, 0), Append(1, 2, 1, 0, 0, 0, tuple(log_of(1)))]
)
def test_a_follower_that_hears_a_leader_stays_one(word: Message) -> None:
    """Paper 5.2 ¶1: it remains a follower as long as it hears from a leader."""
    raft = replica(id=2)
    for _ in range(3 * CONFIG.election_ticks_max):
        raft.tick()
        raft.step(word)
    assert isinstance(raft.role, Follower)
    assert raft.term == 1


def test_granting_a_vote_puts_off_the_election() -> None:
    """Paper 5.2 ¶1: hearing from a candidate counts too, if it gets the vote."""
    raft = replica(id=3)
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
    raft.step(RequestVote(1, 3, 1, 0, 0))
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
    assert isinstance(raft.role, Follower)


def test_silence_begins_an_election() -> None:
    """Paper 5.2 ¶1: hearing nobody for an election timeout, it assumes that there is no leader."""
    raft = replica(id=2, term=1)
    raft.step(Heartbeat(1, 2, 1, 0))
    for _ in range(CONFIG.election_ticks_max):
        raft.tick()
    assert isinstance(raft.role, Candidate)
    assert raft.leader == 0


def test_an_election_begins_with_its_own_vote() -> None:
    """Paper 5.2 ¶2: it raises its term, votes for itself and asks all the others in parallel: once
    its vote is saved, and not in yet another term if that takes long."""
    raft = replica(term=4)
    for _ in range(3 * CONFIG.election_ticks_max):
        raft.tick()
    assert (raft.term, raft.vote) == (5, 1)
    assert turn(raft) == [RequestVote(1, 2, 5, 0, 0), RequestVote(1, 3, 5, 0, 0)]


def test_a_candidate_stays_one_until_something_decides() -> None:
    """Paper 5.2 ¶2: it goes on as candidate until it wins, another leads, or time is up."""
    raft = candidate(size=5)
    for word in (
        VoteReply(2, 1, 1, granted=True),
        VoteReply(3, 1, 1, granted=False),
        RequestVote(4, 1, 1, 0, 0),
        AppendReply(5, 1, 1, 0),
    ):
        raft.step(word)
        raft.tick()
        assert isinstance(raft.role, Candidate)
        assert raft.term == 1


@pytest.mark.parametrize(
    ("size", "granted", "refused", "role"),
    [
        (1, 0, 0, Leader),
        (3, 2, 0, Leader),
        (3, 1, 0, Leader),
        (3, 0, 0, Candidate),
        (3, 0, 1, Candidate),
        (3, 0, 2, Follower),
        (5, 4, 0, Leader),
        (5, 2, 2, Leader),
        (5, 1, 2, Candidate),
        (5, 1, 3, Follower),
    ],
)
def test_a_majority_wins(size: int, granted: int, refused: int, role: type) -> None:
    """Paper 5.2 ¶3: it wins with the votes of a majority of the full cluster in its term."""
    raft = candidate(size=size)
    for voter in range(2, 2 + granted):
        raft.step(VoteReply(voter, 1, 1, granted=True))
    for voter in range(2 + granted, 2 + granted + refused):
        raft.step(VoteReply(voter, 1, 1, granted=False))
    assert isinstance(raft.role, role)
    assert raft.term == 1


def test_a_vote_counts_once() -> None:
    """Paper 5.2 ¶3: one vote a server, however often its reply arrives."""
    raft = candidate(size=5)
    for _ in range(4):
        raft.step(VoteReply(2, 1, 1, granted=True))
    assert isinstance(raft.role, Candidate)


def test_votes_of_another_term_do_not_count() -> None:
    """Paper 5.2 ¶3: the votes have to be for the same term."""
    raft = candidate(term=3)
    raft.step(VoteReply(2, 1, 3, granted=True))
    assert isinstance(raft.role, Candidate)


@pytest.mark.parametrize(
    ("vote", "asker", "granted"), [(0, 1, True), (0, 3, True), (1, 1, True), (3, 1, False)]
)
def test_first_come_first_served(vote: int, asker: int, granted: bool) -> None:
    """Paper 5.2 ¶3: each votes for at most one candidate in a term, first come, first served."""
    raft = replica(id=2, term=1, vote=vote)
    raft.step(RequestVote(asker, 2, 1, 0, 0))
    assert turn(raft) == [VoteReply(2, asker, 1, granted)]


def test_a_winner_tells_everybody_at_once() -> None:
    """Paper 5.2 ¶3: the winner sends messages to all others, which prevents new elections."""
    raft = candidate(size=5)
    for voter in (2, 3):
        raft.step(VoteReply(voter, 1, 1, granted=True))
    assert {word.receiver for word in turn(raft) if isinstance(word, Append)} == {2, 3, 4, 5}
    loser = candidate(id=2, size=5)
    loser.step(Append(1, 2, 1, 0, 0, 0, tuple(log_of(1))))
    assert (loser.leader, loser.term) == (1, 1)


@pytest.mark.parametrize("term", [1, 2])
def test_a_candidate_yields_to_a_leader(term: int) -> None:
    """Paper 5.2 ¶4: one that hears a leader of its term or a later one returns to follower."""
    raft = candidate()
    raft.step(Append(2, 1, term, 0, 0, 0))
    assert isinstance(raft.role, Follower)
    assert (raft.term, raft.leader) == (term, 2)


def test_a_candidate_rejects_a_leader_of_an_older_term() -> None:
    """Paper 5.2 ¶4: a leader of a smaller term is refused, and the candidate goes on."""
    raft = candidate(term=3)
    raft.step(Append(2, 1, 3, 0, 0, 0))
    assert isinstance(raft.role, Candidate)
    assert turn(raft) == [AppendReply(1, 2, 4, 0, rejected=True)]


def test_a_candidate_without_a_winner_tries_again() -> None:
    """Paper 5.2 ¶5: one that neither wins nor loses times out and starts a new election."""
    raft = candidate()
    for term in (2, 3, 4):
        for _ in range(CONFIG.election_ticks_max):
            raft.tick()
            if raft.term == term:
                break
        assert isinstance(raft.role, Candidate)
        assert raft.term == term
        assert {word.receiver for word in turn(raft)} == {2, 3}


@pytest.mark.parametrize("make", [replica, candidate])
def test_election_timeouts_are_random(make: Make) -> None:
    """Paper 5.2 ¶6: timeouts are chosen from a fixed interval, and anew for each election."""
    seen = set()
    for seed in range(200):
        raft = make(seed=seed)
        start, ticks = raft.term, 0
        while raft.term == start:
            raft.tick()
            ticks += 1
        seen.add(ticks)
    assert seen == {*range(CONFIG.election_ticks_min, CONFIG.election_ticks_max)}


def test_two_followers_seldom_time_out_together() -> None:
    """Paper 5.2 ¶6: in most cases only a single server times out."""
    together = 0
    for seed in range(300):
        pair = [replica(id=1, seed=2 * seed), replica(id=2, seed=2 * seed + 1)]
        while all(isinstance(raft.role, Follower) for raft in pair):
            for raft in pair:
                raft.tick()
        together += all(isinstance(raft.role, Candidate) for raft in pair)
    assert together < 300 // 4


def test_a_promise_is_on_disk_before_it_is_made() -> None:
    """Paper 5.2 ¶3, figure 2: term, vote and entries are stored before an answer leaves."""
    raft = replica(id=2)
    raft.step(RequestVote(1, 2, 7, 0, 0))
    ready = raft.ready()
    assert ready is not None
    assert ready.hard_state == HardState(term=7, vote=1)
    assert ready.messages == ()
    assert ready.promises == (VoteReply(2, 1, 7, granted=True),)
    raft.advance(ready)
    raft.step(Append(1, 2, 7, 0, 0, 0, tuple(log_of(7))))
    ready = raft.ready()
    assert ready is not None
    assert ready.entries == tuple(log_of(7))
    assert ready.messages == ()
    assert ready.promises == (AppendReply(2, 1, 7, 1),)
