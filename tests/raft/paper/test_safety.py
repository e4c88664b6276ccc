"""Raft paper (extended version), section 5.4: why what is committed stays."""

from __future__ import annotations

from itertools import chain, combinations

import pytest

from state_machines.raft import (
    Append,
    AppendReply,
    Candidate,
    Configuration,
    Entry,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Leader,
    Message,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from state_machines.raft.log import Log
from state_machines.raft.quorum import has_quorum
from tests.raft.cluster import Cluster
from tests.raft.paper.rig import Table, applied, leader, log_of, replica, terms_of, turn

UNTESTED = {
    "Paper 5.4.3 ¶1": "says how the proof goes: by contradiction, in the steps below",
    "Paper 5.4.3 step 7": "an inference: by log matching a later last term means the entry",
}


def test_who_was_away_cannot_overwrite_what_was_committed() -> None:
    """Paper 5.4 ¶1: a follower that was away meanwhile must not be elected and overwrite it."""
    table = Table("cluster 3", "quietly lead 1", "cut 3", "propose 1 a b", "quietly settle")
    assert table.raft(1).commit == 3
    table.do("heal", "crash 1")
    table.patience(2, 3)
    table.do("quietly campaign 3", "quietly settle")
    assert table.leader() != 3
    table.do("quietly timeout 2", "quietly settle", "restart 1", "quietly tick 2 2")
    table.do("quietly settle")
    assert [table.raft(number).snapshot_meta(3).term for number in (1, 2, 3)] == [1, 1, 1]


def test_every_leader_has_everything_committed() -> None:
    """Paper 5.4 ¶2: the leader of any term has all entries committed in earlier terms."""
    table = Table("cluster 3")
    committed: dict[int, int] = {}
    for round_ in range(6):
        number = 1 + round_ % 3
        table.patience(*({1, 2, 3} - {table.leader()}))
        table.do(f"quietly lead {number}")
        raft = table.raft(number)
        for index, term in committed.items():
            assert raft.snapshot_meta(index).term == term
        away = 6 - number - (1 + number % 3)  # neither this leader nor the next
        table.do(f"cut {away}", f"propose {number} x{round_}", "quietly settle", "heal")
        span = range(1, raft.commit + 1)
        committed = {index: raft.snapshot_meta(index).term for index in span}
    assert len(committed) >= 12


# 5.4.1 Election restriction


def test_entries_flow_from_leaders_to_followers_only() -> None:
    """Paper 5.4.1 ¶1: a new leader has what is committed from the start; nobody sends it more."""
    table = Table("cluster 5", "quietly lead 1", "cut 4 5", "propose 1 a b", "quietly settle")
    table.do("heal", "crash 1")
    table.patience(2, 3, 4, 5)
    seen = table.do("campaign 2", "settle", "tick 2 2", "settle")
    assert table.leader() == 2
    assert [table.raft(number).last_index for number in (2, 3, 4, 5)] == [4, 4, 4, 4]
    assert not [line for line in seen if "to 2: append" in line or "snapshot" in line]


def subsets(members: tuple[int, ...]) -> list[set[int]]:
    sizes = range(len(members) + 1)
    return [set(each) for each in chain(*(combinations(members, size) for size in sizes))]


def test_a_request_for_votes_tells_about_the_log() -> None:
    """Paper 5.4.1 ¶2: the request includes the index and term of the candidate's last entry."""
    raft = replica(terms=(1, 2))
    raft.campaign()
    assert turn(raft) == [RequestVote(1, peer, 3, 2, 2) for peer in (2, 3)]


@pytest.mark.parametrize("holders", [{2, 3, 4}, {2, 3, 5}, {3, 4, 5}, {2, 3, 4, 5}])
def test_who_lacks_a_committed_entry_cannot_win(holders: set[int]) -> None:
    """Paper 5.4.1 ¶2: a candidate needs a majority, and in each is one who has the entry."""
    asking = replica(size=5, terms=(1,))
    asking.campaign()
    for request in turn(asking):
        voter = replica(
            id=request.receiver, size=5, terms=(1, 1) if request.receiver in holders else (1,)
        )
        voter.step(request)
        for reply in turn(voter):
            asking.step(reply)
    assert not isinstance(asking.role, Leader)


@pytest.mark.parametrize(
    ("terms", "last_term", "last_index", "granted"),
    [
        ((1,), 1, 1, True),
        ((1,), 1, 2, True),
        ((1, 1), 2, 1, True),
        ((1, 1), 1, 1, False),
        ((1, 2), 1, 3, False),
        ((2,), 1, 5, False),
        ((2, 2), 2, 1, False),
    ],
)
def test_which_log_is_more_up_to_date(
    terms: tuple[int, ...], last_term: int, last_index: int, granted: bool
) -> None:
    """Paper 5.4.1 ¶3: the later last term is more up to date, then the longer log."""
    raft = replica(id=2, terms=terms)
    raft.step(RequestVote(1, 2, 3, last_index, last_term))
    assert turn(raft) == [VoteReply(2, 1, 3, granted)]


# 5.4.2 Committing entries from previous terms


def test_an_entry_of_an_older_term_on_a_majority_is_not_committed() -> None:
    """Paper 5.4.2 ¶1: a later leader goes on replicating it, but may not conclude from that."""
    raft = leader(terms=(1, 2), size=5)
    turn(raft)
    for peer in (2, 3):
        raft.step(AppendReply(peer, 1, 3, 2))
    assert raft.commit == 0


@pytest.mark.parametrize(("match", "commit"), [(1, 0), (2, 0), (3, 3)])
def test_only_entries_of_the_own_term_commit_by_counting(match: int, commit: int) -> None:
    """Paper 5.4.2 ¶2: older entries commit beneath one of the leader's term, never by counting,
    not even when every replica has them."""
    raft = leader(terms=(1, 2))
    turn(raft)
    for peer in (2, 3):
        raft.step(AppendReply(peer, 1, 3, match))
    assert raft.commit == commit


def test_entries_keep_their_terms() -> None:
    """Paper 5.4.2 ¶3: a leader that replicates older entries leaves their terms as they were."""
    one, other = leader(terms=(1, 1, 4), term=6), replica(id=2, term=6)
    for _ in range(4):
        for message in turn(one):
            if message.receiver == 2:
                other.step(message)
        for message in turn(other):
            one.step(message)
    assert terms_of(other) == [1, 1, 4, 7]


# 5.4.3 Safety argument


def test_step_1_a_leader_deletes_nothing() -> None:
    """Paper 5.4.3 step 1: leaders never delete or overwrite entries."""
    raft = leader(terms=(1, 1), size=5)
    turn(raft)
    meta = SnapshotMeta(2, 1, Configuration(voters=(1, 2, 3, 4, 5)))
    words: list[Message] = [
        AppendReply(2, 1, 2, 2, True, 0, 0),
        AppendReply(3, 1, 2, 3),
        Append(2, 1, 1, 0, 0, 2, (Entry(1, 1, b"other"),)),
        InstallSnapshot(2, 1, 1, meta),
        HeartbeatReply(4, 1, 2, 77),
        VoteReply(5, 1, 2, False),
        RequestVote(5, 1, 2, 9, 2),
    ]
    for word in words:
        raft.step(word)
        turn(raft)
        assert isinstance(raft.role, Leader)
        assert terms_of(raft) == [1, 1, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7])
def test_step_2_somebody_both_accepted_and_voted(size: int) -> None:
    """Paper 5.4.3 step 2: the majority that stored and the one that voted share a member."""
    members = tuple(range(1, size + 1))
    configuration = Configuration(voters=members)
    quorums = [each for each in subsets(members) if has_quorum(configuration, each)]
    assert quorums
    assert all(stored & voted for stored in quorums for voted in quorums)


def test_step_3_who_has_voted_accepts_nothing_of_an_older_term() -> None:
    """Paper 5.4.3 step 3: after its vote in U a voter refuses the append of a T before U."""
    voter = replica(id=3)
    voter.step(RequestVote(2, 3, 5, 0, 0))
    turn(voter)
    voter.step(Append(1, 3, 4, 0, 0, 0, tuple(log_of(4))))
    (reply,) = turn(voter)
    assert reply == AppendReply(3, 1, 5, 0, rejected=True)
    assert voter.last_index == 0


def test_step_4_a_leader_that_has_the_entry_takes_it_from_nobody() -> None:
    """Paper 5.4.3 step 4: a follower drops only what conflicts with the leader's log."""
    voter = replica(id=3, terms=(1, 2))
    voter.step(Append(1, 3, 4, 1, 1, 0, (Entry(2, 2, b"2"), Entry(4, 3))))
    voter.step(Append(2, 3, 6, 0, 0, 0, tuple(log_of(1, 2))))
    voter.step(Append(2, 3, 6, 2, 2, 0))
    turn(voter)
    assert terms_of(voter) == [1, 2, 4]


def test_step_5_a_vote_goes_to_a_log_as_up_to_date() -> None:
    """Paper 5.4.3 step 5: the voter's own log decides, with what it has just accepted."""
    voter = replica(id=3, terms=(1,))
    voter.step(Append(1, 3, 2, 1, 1, 0, (Entry(2, 2),)))  # not even saved
    voter.step(RequestVote(2, 3, 3, 1, 1))
    assert VoteReply(3, 2, 3, granted=False) in turn(voter)


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_step_6_with_the_same_last_term_the_longer_log_has_all(length: int) -> None:
    """Paper 5.4.3 step 6: of two logs with the same last term the candidate's is not shorter."""
    voter = replica(id=3, terms=(1, 2, 2))
    voter.step(RequestVote(2, 3, 3, length, 2))
    assert turn(voter) == [VoteReply(3, 2, 3, granted=length >= 3)]


def test_step_8_leaders_are_complete() -> None:
    """Paper 5.4.3 step 8: so every later leader has what was committed. The cluster asks each new
    leader for it, whatever went wrong before."""
    changes = committed = 0
    for seed in range(100, 140):
        cluster = Cluster(seed)
        cluster.run(steps=200)
        changes += len(cluster.leaders) - 1
        committed += len(cluster.committed)
    assert changes >= 12
    assert committed >= 100


def test_what_is_committed_is_never_overwritten() -> None:
    """Paper 5.4.3 ¶2: an append that contradicts what is committed cannot come from a leader."""
    raft = replica(id=2, terms=(1, 1, 1))
    raft.step(Append(1, 2, 1, 3, 1, 2))
    raft.step(Append(3, 2, 2, 0, 0, 0, (Entry(2, 1), Entry(2, 2))))
    turn(raft)
    assert terms_of(raft) == [1, 1, 1]
    log = Log(SnapshotMeta(0, 0, Configuration(voters=(1,))), log_of(1, 1, 1), commit=2)
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(1)


def test_what_is_applied_is_the_same_everywhere() -> None:
    """Paper 5.4.3 ¶2: no two replicas apply different entries at one index."""
    table = Table("cluster 3", "quietly lead 1", "cut 3", "propose 1 a", "quietly settle")
    table.do("heal", "cut 1", "propose 1 lost")
    table.patience(2, 3)
    table.do("quietly lead 2", "propose 2 b", "quietly settle", "heal", "quietly tick 2 4")
    seen = table.do("settle", "tick 2 2", "settle")
    assert "1 applies 4@2=b" in seen
    assert not [line for line in seen if "applies" in line and "lost" in line]


def test_entries_are_applied_in_the_order_of_the_log() -> None:
    """Paper 5.4.3 ¶3: entries are applied in log order, each once."""
    raft = replica(id=2, terms=(1,) * 9)
    done = []
    for commit in (2, 2, 1, 5, 9, 4):
        raft.step(Heartbeat(1, 2, 1, commit))
        done += [entry.index for entry in applied(raft)]
    assert done == [*range(1, 10)]


def test_a_candidate_with_an_older_log_stays_one() -> None:
    """Paper 5.4.3 step 5: refused by those who have more, it wins nothing."""
    asking = replica(size=3, terms=(1,))
    asking.campaign()
    turn(asking)
    asking.step(VoteReply(2, 1, 2, granted=False))
    assert isinstance(asking.role, Candidate)
