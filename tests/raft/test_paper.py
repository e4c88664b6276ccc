"""The rules of the Raft paper (extended version, sections 5.1 to 5.4), one test each.

Every test has three parts: a replica in some state, something that happens to it, and what the
paper says must follow. They look at a single `Raft` from outside, through messages and `Ready`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from state_machines.errors import NotLeader
from state_machines.raft import (
    Append,
    AppendReply,
    Candidate,
    Configuration,
    Entry,
    Follower,
    HardState,
    Heartbeat,
    Leader,
    Message,
    Raft,
    RaftConfig,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from state_machines.raft.log import Log

CONFIG = RaftConfig(
    heartbeat_ticks=1,
    election_ticks_min=10,
    election_ticks_max=20,
    pre_vote=False,  # the paper's elections; pre-vote and leases came with the thesis
    check_quorum=False,
)


def log_of(*terms: int) -> list[Entry]:
    return [Entry(term, index, b"%d" % index) for index, term in enumerate(terms, start=1)]


def replica(
    id: int = 1,
    size: int = 3,
    terms: Sequence[int] = (),
    term: int | None = None,
    vote: int = 0,
    seed: int = 1,
) -> Raft:
    configuration = Configuration(voters=tuple(range(1, size + 1)))
    last = max(terms, default=0)
    return Raft(
        id=id,
        config=CONFIG,
        rng=random.Random(seed),
        snapshot=SnapshotMeta(0, 0, configuration),
        entries=log_of(*terms),
        hard_state=HardState(last if term is None else term, vote),
    )


def turn(raft: Raft) -> list[Message]:
    """Do all it wants done, and return what it said."""
    said: list[Message] = []
    while (ready := raft.ready()) is not None:
        said += ready.messages
        raft.advance(ready)
        said += ready.promises
    return said


def applied(raft: Raft) -> list[Entry]:
    entries: list[Entry] = []
    while (ready := raft.ready()) is not None:
        raft.advance(ready)
        entries += ready.committed
    return entries


def candidate(**past: object) -> Raft:
    raft = replica(**past)  # type: ignore[arg-type]  # the same keywords
    raft.campaign()
    turn(raft)
    return raft


def leader(size: int = 3, terms: Sequence[int] = (), **past: object) -> Raft:
    """One that has just been elected; its no-op is saved and sent, and not yet answered."""
    raft = candidate(size=size, terms=terms, **past)
    for voter in range(2, size // 2 + 2):
        raft.step(VoteReply(voter, 1, raft.term, granted=True))
    assert isinstance(raft.role, Leader)
    return raft


# 5.1 Raft basics


@pytest.mark.parametrize("make", [replica, candidate, leader])
def test_a_larger_term_is_adopted(make: object) -> None:
    """5.1: a server whose term is smaller than another's takes the larger one."""
    raft: Raft = make(terms=(1,))  # type: ignore[operator]
    raft.step(AppendReply(2, 1, 9, 0))
    assert raft.term == 9


@pytest.mark.parametrize("make", [candidate, leader])
def test_an_out_of_date_candidate_or_leader_becomes_follower(make: object) -> None:
    """5.1: a candidate or leader that discovers that its term is out of date reverts at once."""
    raft: Raft = make(terms=(1,))  # type: ignore[operator]
    raft.step(Heartbeat(2, 1, raft.term + 1, 0))
    assert isinstance(raft.role, Follower)
    assert raft.leader == 2


@pytest.mark.parametrize(
    "stale",
    [
        RequestVote(2, 1, 1, 99, 99),
        Append(2, 1, 1, 0, 0, 0, tuple(log_of(1))),
        Heartbeat(2, 1, 1, 1),
    ],
)
def test_a_request_of_a_stale_term_is_rejected(stale: Message) -> None:
    """5.1: a server that receives a request with a stale term number rejects it."""
    raft = replica(terms=(1, 2), term=5)
    raft.step(stale)
    (reply,) = turn(raft)
    assert reply.term == 5
    match reply:
        case VoteReply(granted=granted):
            assert not granted
        case AppendReply(rejected=rejected):
            assert rejected
    assert (raft.vote, raft.last_index, raft.commit) == (0, 2, 0)


def test_at_most_one_leader_a_term() -> None:
    """5.1: a term has one leader at most, even if two are candidates in it."""
    one, other = candidate(id=1), candidate(id=2)
    voter = replica(id=3)
    for each in (one, other):
        voter.step(RequestVote(each.id, 3, 1, 0, 0))
    for reply in turn(voter):
        (one if reply.receiver == 1 else other).step(reply)
    assert isinstance(one.role, Leader)
    assert isinstance(other.role, Candidate)


# 5.2 Leader election


def test_a_server_starts_as_follower() -> None:
    """5.2: when servers start up, they begin as followers."""
    assert isinstance(replica().role, Follower)


def test_a_leader_sends_heartbeats_to_all() -> None:
    """5.2: leaders send periodic heartbeats to all followers to keep their authority."""
    raft = leader()
    turn(raft)
    raft.tick()
    said = turn(raft)
    assert said == [Heartbeat(1, 2, 1, 0), Heartbeat(1, 3, 1, 0)]


def test_a_follower_that_hears_a_leader_stays_one() -> None:
    """5.2: a server remains a follower as long as it hears from a leader or candidate."""
    raft = replica(id=2)
    for _ in range(10 * CONFIG.election_ticks_max):
        raft.tick()
        raft.step(Heartbeat(1, 2, 1, 0))
    assert isinstance(raft.role, Follower)
    assert raft.term == 1


def test_an_election_begins_after_a_timeout() -> None:
    """5.2: hearing nothing it increments its term, votes for itself and asks all others."""
    raft = replica(term=4)
    for _ in range(CONFIG.election_ticks_max):
        raft.tick()
    assert isinstance(raft.role, Candidate)
    assert (raft.term, raft.vote) == (5, 1)
    assert turn(raft) == [RequestVote(1, 2, 5, 0, 0), RequestVote(1, 3, 5, 0, 0)]


def test_granting_a_vote_puts_off_the_election() -> None:
    """5.2: a follower that granted a vote waits a whole timeout before it stands itself."""
    raft = replica(id=3)
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
    raft.step(RequestVote(1, 3, 1, 0, 0))
    for _ in range(CONFIG.election_ticks_min - 1):
        raft.tick()
    assert isinstance(raft.role, Follower)


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
    """5.2: a candidate wins with the votes of a majority of the full cluster in its term."""
    raft = candidate(size=size)
    for voter in range(2, 2 + granted):
        raft.step(VoteReply(voter, 1, 1, granted=True))
    for voter in range(2 + granted, 2 + granted + refused):
        raft.step(VoteReply(voter, 1, 1, granted=False))
    assert isinstance(raft.role, role)
    assert raft.term == 1


def test_a_vote_counts_once() -> None:
    """5.2: one vote a server, however often its reply arrives."""
    raft = candidate(size=5)
    for _ in range(4):
        raft.step(VoteReply(2, 1, 1, granted=True))
    assert isinstance(raft.role, Candidate)


@pytest.mark.parametrize(
    ("vote", "asker", "granted"), [(0, 1, True), (0, 3, True), (1, 1, True), (3, 1, False)]
)
def test_first_come_first_served(vote: int, asker: int, granted: bool) -> None:
    """5.2: each server votes for at most one candidate in a term, first come, first served."""
    raft = replica(id=2, term=1, vote=vote)
    raft.step(RequestVote(asker, 2, 1, 0, 0))
    assert turn(raft) == [VoteReply(2, asker, 1, granted)]


@pytest.mark.parametrize("term", [1, 2])
def test_a_candidate_yields_to_a_leader(term: int) -> None:
    """5.2: a candidate that hears a leader of its term or a later one returns to follower."""
    raft = candidate()
    raft.step(Append(2, 1, term, 0, 0, 0))
    assert isinstance(raft.role, Follower)
    assert (raft.term, raft.leader) == (term, 2)


def test_a_candidate_without_a_winner_tries_again() -> None:
    """5.2: a candidate that neither wins nor loses times out and starts a new election."""
    raft = candidate()
    for _ in range(CONFIG.election_ticks_max):
        raft.tick()
    assert isinstance(raft.role, Candidate)
    assert raft.term == 2


@pytest.mark.parametrize("make", [replica, candidate])
def test_election_timeouts_are_random(make: object) -> None:
    """5.2: timeouts are chosen from a fixed interval, so that split votes are rare."""
    seen = set()
    for seed in range(200):
        raft: Raft = make(seed=seed)  # type: ignore[operator]
        start, ticks = raft.term, 0
        while raft.term == start:
            raft.tick()
            ticks += 1
        seen.add(ticks)
    assert seen == {*range(CONFIG.election_ticks_min, CONFIG.election_ticks_max)}


def test_two_followers_seldom_time_out_together() -> None:
    """5.2: in most cases only a single server times out."""
    together = 0
    for seed in range(300):
        pair = [replica(id=1, seed=2 * seed), replica(id=2, seed=2 * seed + 1)]
        while all(isinstance(raft.role, Follower) for raft in pair):
            for raft in pair:
                raft.tick()
        together += all(isinstance(raft.role, Candidate) for raft in pair)
    assert together < 300 // 4


# 5.3 Log replication


def test_a_leader_appends_and_replicates() -> None:
    """5.3: the leader appends the command to its log and sends it to all others in parallel."""
    raft = leader()
    turn(raft)
    for peer in (2, 3):
        raft.step(AppendReply(peer, 1, 1, 1))
    turn(raft)
    index = raft.propose(b"x")
    entry = Entry(1, index, b"x")
    assert turn(raft) == [Append(1, peer, 1, 1, 1, 1, (entry,)) for peer in (2, 3)]


@pytest.mark.parametrize("make", [replica, candidate])
def test_only_a_leader_takes_commands(make: object) -> None:
    """5.3: clients' requests are serviced by the leader."""
    raft: Raft = make()  # type: ignore[operator]
    with pytest.raises(NotLeader):
        raft.propose(b"x")


@pytest.mark.parametrize(
    ("size", "answers", "committed"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 1, True),
        (3, 0, False),
        (3, 1, True),
        (5, 1, False),
        (5, 2, True),
        (5, 4, True),
    ],
)
def test_an_entry_commits_on_a_majority(size: int, answers: int, committed: bool) -> None:
    """5.3: an entry is committed once the leader has replicated it on a majority."""
    raft = leader(size=size)
    turn(raft)
    for peer in range(2, 2 + answers):
        raft.step(AppendReply(peer, 1, 1, 1))
    assert raft.commit == int(committed)


@pytest.mark.parametrize("terms", [(1,), (1, 1), (1, 2), (1, 2, 2)])
def test_what_precedes_commits_too(terms: tuple[int, ...]) -> None:
    """5.3: this also commits all preceding entries, including those of previous leaders."""
    raft = leader(terms=terms)
    turn(raft)
    last = len(terms) + 1
    raft.step(AppendReply(2, 1, raft.term, last))
    assert [entry.index for entry in applied(raft)] == [*range(1, last + 1)]


def test_a_follower_learns_the_commit_index() -> None:
    """5.3: once a follower learns that an entry is committed, it applies it, in log order."""
    raft = replica(id=2)
    entries = tuple(log_of(1, 1))
    raft.step(Append(1, 2, 1, 0, 0, 0, entries))
    assert applied(raft) == []
    raft.step(Heartbeat(1, 2, 1, 1))
    assert applied(raft) == [entries[0]]
    raft.step(Append(1, 2, 1, 2, 1, 2))
    assert applied(raft) == [entries[1]]


def test_the_commit_index_is_not_beyond_what_the_append_covers() -> None:
    """5.3, figure 2: commitIndex = min(leaderCommit, index of last new entry)."""
    raft = replica(id=2, terms=(1, 1, 1))
    raft.step(Append(1, 2, 2, 1, 1, 3))
    assert raft.commit == 1


@pytest.mark.parametrize(
    ("prev", "accepted"),
    [
        ((0, 0), True),
        ((1, 1), True),
        ((2, 2), True),
        ((1, 2), False),
        ((2, 1), False),
        ((3, 2), False),
    ],
)
def test_the_consistency_check(prev: tuple[int, int], accepted: bool) -> None:
    """5.3: a follower refuses an append if it lacks the entry before it with the same term."""
    raft = replica(id=2, terms=(1, 2))
    raft.step(Append(1, 2, 3, *prev, 0))
    (reply,) = turn(raft)
    assert isinstance(reply, AppendReply)
    assert reply.rejected != accepted
    if accepted:
        assert reply.match_index == prev[0]


@pytest.mark.parametrize(
    ("prev", "new", "after"),
    [
        ((2, 2), (3,), (1, 2, 3)),
        ((1, 1), (3, 4), (1, 3, 4)),
        ((0, 0), (1,), (1, 2)),  # nothing conflicts, so nothing is dropped
        ((0, 0), (3,), (3,)),
    ],
)
def test_conflicting_entries_are_overwritten(
    prev: tuple[int, int], new: tuple[int, ...], after: tuple[int, ...]
) -> None:
    """5.3: conflicting entries are deleted with all that follow, and only those."""
    raft = replica(id=2, terms=(1, 2))
    entries = tuple(Entry(term, prev[0] + 1 + at) for at, term in enumerate(new))
    raft.step(Append(1, 2, 4, *prev, 0, entries))
    turn(raft)
    assert tuple(raft.snapshot_meta(at).term for at in range(1, raft.last_index + 1)) == after


def test_a_leader_retries_from_further_back() -> None:
    """5.3: after a rejection the leader decrements nextIndex and retries, until the logs match."""
    raft = leader(terms=(1, 1, 1))
    turn(raft)
    raft.step(AppendReply(2, 1, 2, 3, rejected=True, conflict_index=1, conflict_term=1))
    (retry,) = turn(raft)
    assert isinstance(retry, Append)
    assert (retry.receiver, retry.prev_index, len(retry.entries)) == (2, 1, 3)


@pytest.mark.parametrize(
    "terms",
    [
        (1, 1, 1, 4, 4, 5, 5, 6, 6),
        (1, 1, 1, 4),
        (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
        (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
        (1, 1, 1, 4, 4, 4, 4),
        (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
    ],
    ids="abcdef",
)
def test_a_leader_brings_followers_logs_into_consistency(terms: tuple[int, ...]) -> None:
    """5.3, figure 7: whatever a follower's log holds, it ends as the leader's."""
    one = leader(terms=(1, 1, 1, 4, 4, 5, 5, 6, 6, 6), term=7)
    other = replica(id=2, terms=terms, term=7)
    trips = 0
    while one.progress[2].match_index < one.last_index:
        trips += 1
        assert trips < 10, "the conflict hint skips whole terms"
        for message in turn(one):
            if message.receiver == 2:
                other.step(message)
        for message in turn(other):
            one.step(message)
    for index in range(1, one.last_index + 1):
        assert one.snapshot_meta(index).term == other.snapshot_meta(index).term
    assert one.last_index == other.last_index


def test_a_leader_never_overwrites_its_own_entries() -> None:
    """5.3, leader append-only: it only appends, whatever followers say."""
    raft = leader(terms=(1, 1))
    turn(raft)
    for conflict in (2, 1, 0):
        raft.step(AppendReply(2, 1, 2, 2, True, conflict, 1))
        turn(raft)
    assert (raft.last_index, raft.snapshot_meta(2).term) == (3, 1)


# 5.4 Safety


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
def test_a_voter_refuses_a_less_complete_log(
    terms: tuple[int, ...], last_term: int, last_index: int, granted: bool
) -> None:
    """5.4.1: a voter denies its vote if its own log is more up-to-date than the candidate's."""
    raft = replica(id=2, terms=terms)
    raft.step(RequestVote(1, 2, 3, last_index, last_term))
    assert turn(raft) == [VoteReply(2, 1, 3, granted)]


def test_a_request_for_votes_tells_about_the_log() -> None:
    """5.4.1: RequestVote includes the index and term of the candidate's last entry."""
    raft = replica(terms=(1, 2))
    raft.campaign()
    assert turn(raft) == [RequestVote(1, peer, 3, 2, 2) for peer in (2, 3)]


@pytest.mark.parametrize(("match", "commit"), [(1, 0), (2, 0), (3, 3)])
def test_only_entries_of_the_own_term_commit_by_counting(match: int, commit: int) -> None:
    """5.4.2: entries of previous terms are never committed by counting replicas."""
    raft = leader(terms=(1, 2))
    turn(raft)
    raft.step(AppendReply(2, 1, 3, match))
    assert raft.commit == commit


def test_what_is_committed_is_never_overwritten() -> None:
    """5.4.3: an append that contradicts what is committed cannot come from a leader."""
    raft = replica(id=2, terms=(1, 1, 1))
    raft.step(Append(1, 2, 1, 3, 1, 2))
    raft.step(Append(3, 2, 2, 0, 0, 0, (Entry(2, 1), Entry(2, 2))))
    turn(raft)
    assert [raft.snapshot_meta(index).term for index in (1, 2, 3)] == [1, 1, 1]
    log = Log(SnapshotMeta(0, 0, Configuration(voters=(1,))), log_of(1, 1, 1), commit=2)
    with pytest.raises(AssertionError, match="committed"):
        log.truncate(1)


def test_state_survives_restarts() -> None:
    """5.2, figure 2: currentTerm, votedFor and log[] are stored before responding to RPCs."""
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
