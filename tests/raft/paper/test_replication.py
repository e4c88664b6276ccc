"""Raft paper (extended version), section 5.3: the log, its replication, and its repair."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

import pytest

from state_machines.errors import NotLeader
from state_machines.raft import (
    Append,
    AppendReply,
    Entry,
    Heartbeat,
    Raft,
    RequestVote,
    VoteReply,
)
from tests.raft.cluster import Cluster
from tests.raft.paper.rig import (
    Table,
    applied,
    candidate,
    leader,
    log_of,
    replica,
    terms_of,
    turn,
)

UNTESTED: dict[str, str] = {}

FIGURE_7 = {
    "a": (1, 1, 1, 4, 4, 5, 5, 6, 6),
    "b": (1, 1, 1, 4),
    "c": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6),
    "d": (1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7),
    "e": (1, 1, 1, 4, 4, 4, 4),
    "f": (1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3),
}
LEADER_8 = (1, 1, 1, 4, 4, 5, 5, 6, 6, 6)


def test_a_leader_appends_and_replicates() -> None:
    """Paper 5.3 ¶1: the leader appends the command and sends it to all others in parallel."""
    raft = leader()
    turn(raft)
    for peer in (2, 3):
        raft.step(AppendReply(peer, 1, 1, 1))
    turn(raft)
    index = raft.propose(b"x")
    entry = Entry(1, index, b"x")
    assert turn(raft) == [Append(1, peer, 1, 1, 1, 1, (entry,)) for peer in (2, 3)]


@pytest.mark.parametrize("make", [replica, candidate])
def test_only_a_leader_takes_commands(make: Callable[[], Raft]) -> None:
    """Paper 5.3 ¶1: once elected, the leader begins to service clients' requests; others do not."""
    with pytest.raises(NotLeader):
        make().propose(b"x")


def test_a_command_is_applied_when_it_is_safely_replicated() -> None:
    """Paper 5.3 ¶1: only when a majority has the entry does the leader apply it."""
    raft = leader()
    turn(raft)
    raft.step(AppendReply(2, 1, 1, 1))
    turn(raft)
    index = raft.propose(b"x")
    assert applied(raft) == []
    raft.step(AppendReply(2, 1, 1, index))
    assert applied(raft) == [Entry(1, index, b"x")]


def test_entries_are_sent_until_everybody_has_them() -> None:
    """Paper 5.3 ¶1: it retries without end, even after it has answered, until all have all."""
    table = Table("cluster 3", "quietly lead 1", "crash 3", "propose 1 a b c", "quietly settle")
    assert table.raft(1).commit == 4
    for _ in range(50):
        table.do("quietly tick 1 2", "quietly settle")
    table.do("restart 3")
    for _ in range(3):
        table.do("quietly tick 1 2", "quietly settle")
    assert table.raft(3).applied_handed == 4


def test_an_entry_has_a_term_and_a_place() -> None:
    """Paper 5.3 ¶2: an entry holds a command, the term it came in, and an index: its place."""
    raft = leader(terms=(1, 1), term=6)
    assert [raft.propose(word) for word in (b"a", b"b")] == [4, 5]
    turn(raft)
    raft.step(AppendReply(2, 1, 7, 5))
    assert applied(raft) == [*log_of(1, 1), Entry(7, 3), Entry(7, 4, b"a"), Entry(7, 5, b"b")]


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
    """Paper 5.3 ¶3: an entry is committed once its leader has replicated it on a majority."""
    raft = leader(size=size)
    turn(raft)
    for peer in range(2, 2 + answers):
        raft.step(AppendReply(peer, 1, 1, 1))
    assert raft.commit == int(committed)


@pytest.mark.parametrize("terms", [(1,), (1, 1), (1, 2), (1, 2, 2)])
def test_what_precedes_commits_too(terms: tuple[int, ...]) -> None:
    """Paper 5.3 ¶3: this commits all that precedes, also what earlier leaders created."""
    raft = leader(terms=terms)
    turn(raft)
    last = len(terms) + 1
    raft.step(AppendReply(2, 1, raft.term, last))
    assert [entry.index for entry in applied(raft)] == [*range(1, last + 1)]


def test_the_commit_index_travels_with_appends_and_heartbeats() -> None:
    """Paper 5.3 ¶3: the leader includes the highest index it knows committed in what follows."""
    raft = leader()
    turn(raft)
    for peer in (2, 3):
        raft.step(AppendReply(peer, 1, 1, 1))
    raft.propose(b"x")
    assert [word.commit for word in turn(raft) if isinstance(word, Append)] == [1, 1]
    raft.step(AppendReply(2, 1, 1, 2))
    raft.tick()
    beats = [word for word in turn(raft) if isinstance(word, Heartbeat)]
    assert beats == [Heartbeat(1, 2, 1, 2), Heartbeat(1, 3, 1, 1)]


def test_a_follower_applies_what_it_learns_to_be_committed() -> None:
    """Paper 5.3 ¶3: once a follower learns that an entry is committed, it applies it, in order."""
    raft = replica(id=2)
    entries = tuple(log_of(1, 1))
    raft.step(Append(1, 2, 1, 0, 0, 0, entries))
    assert applied(raft) == []
    raft.step(Heartbeat(1, 2, 1, 1))
    assert applied(raft) == [entries[0]]
    raft.step(Append(1, 2, 1, 2, 1, 2))
    assert applied(raft) == [entries[1]]


def test_the_commit_index_is_not_beyond_what_the_append_covers() -> None:
    """Paper 5.3 ¶3, figure 2: the lesser of the leader's commit and the last new entry."""
    raft = replica(id=2, terms=(1, 1, 1))
    raft.step(Append(1, 2, 2, 1, 1, 3))
    assert raft.commit == 1


def test_logs_match() -> None:
    """Paper 5.3 ¶4: where two logs have the same index and term, all up to there is the same."""
    compared = 0
    for seed in range(12):
        cluster = Cluster(seed)
        cluster.run(steps=60)
        disks = [node.disk for node in cluster.nodes.values()]
        for one, other in permutations(disks, 2):
            theirs = {(entry.index, entry.term) for entry in other.entries}
            shared = [entry for entry in one.entries if (entry.index, entry.term) in theirs]
            if shared:
                last = shared[-1].index
                floor = max(one.snapshot.index, other.snapshot.index)
                mine = [entry for entry in one.entries if floor < entry.index <= last]
                assert mine == [entry for entry in other.entries if floor < entry.index <= last]
                compared += len(mine)
    assert compared > 100


def test_one_entry_a_place_and_term() -> None:
    """Paper 5.3 ¶5: a leader makes at most one entry for an index in its term; it never moves."""
    raft = leader(terms=(1,))
    places = [raft.propose(b"x") for _ in range(5)]
    assert places == [3, 4, 5, 6, 7]
    turn(raft)
    assert terms_of(raft) == [1, 2, 2, 2, 2, 2, 2]


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
    """Paper 5.3 ¶5: a follower refuses entries if it lacks the one before them, of that term."""
    raft = replica(id=2, terms=(1, 2))
    raft.step(Append(1, 2, 3, *prev, 0))
    (reply,) = turn(raft)
    assert isinstance(reply, AppendReply)
    assert reply.rejected != accepted
    if accepted:
        assert reply.match_index == prev[0]


def test_figure_7_can_come_about() -> None:
    """Paper 5.3 ¶6: logs may lack entries, have extra ones, or both, and one of them may lead.

    The leader of term 8 needs three votes beside its own: a, b, e and f are no more up to date.
    """
    granted = set()
    for name, terms in FIGURE_7.items():
        voter = replica(id=2, size=7, terms=terms, term=7)
        voter.step(RequestVote(1, 2, 8, len(LEADER_8), LEADER_8[-1]))
        (reply,) = turn(voter)
        assert isinstance(reply, VoteReply)
        if reply.granted:
            granted.add(name)
    assert granted == {"a", "b", "e", "f"}


@pytest.mark.parametrize(
    ("prev", "new", "after"),
    [
        ((2, 2), (3,), [1, 2, 3]),
        ((1, 1), (3, 4), [1, 3, 4]),
        ((0, 0), (1,), [1, 2]),  # nothing conflicts, so nothing is dropped
        ((0, 0), (3,), [3]),
    ],
)
def test_conflicting_entries_are_overwritten(
    prev: tuple[int, int], new: tuple[int, ...], after: list[int]
) -> None:
    """Paper 5.3 ¶7: what conflicts is overwritten with the leader's entries, and only that."""
    raft = replica(id=2, terms=(1, 2))
    entries = tuple(Entry(term, prev[0] + 1 + at) for at, term in enumerate(new))
    raft.step(Append(1, 2, 4, *prev, 0, entries))
    turn(raft)
    assert terms_of(raft) == after


def test_a_new_leader_begins_behind_its_last_entry() -> None:
    """Paper 5.3 ¶8: each next index begins just after the last entry of the leader's log."""
    raft = leader(terms=(1, 1, 1))
    assert {peer.next_index for peer in raft.progress.values()} == {4}
    sent = [word for word in turn(raft) if isinstance(word, Append)]
    assert {(word.prev_index, word.prev_term) for word in sent} == {(3, 1)}


def test_a_leader_retries_from_further_back() -> None:
    """Paper 5.3 ¶8: after a rejection it lowers the next index and retries."""
    raft = leader(terms=(1, 1, 1))
    turn(raft)
    raft.step(AppendReply(2, 1, 2, 3, rejected=True, conflict_index=1, conflict_term=1))
    (retry,) = turn(raft)
    assert isinstance(retry, Append)
    assert (retry.receiver, retry.prev_index, len(retry.entries)) == (2, 1, 3)


def converge(one: Raft, other: Raft) -> int:
    """Carry messages between a leader and one follower until their logs agree; the refusals."""
    refusals = 0
    for _ in range(1_000):
        if one.progress[other.id].match_index == one.last_index:
            return refusals
        for message in turn(one):
            if message.receiver == other.id:
                other.step(message)
        for message in turn(other):
            refusals += isinstance(message, AppendReply) and message.rejected
            one.step(message)
    raise AssertionError("the logs never met")


@pytest.mark.parametrize("name", FIGURE_7)
def test_a_leader_brings_followers_logs_into_consistency(name: str) -> None:
    """Paper 5.3 ¶8: whatever a follower's log holds, it ends as the leader's (figure 7)."""
    one = leader(terms=LEADER_8, term=7)
    other = replica(id=2, terms=FIGURE_7[name], term=7)
    converge(one, other)
    assert terms_of(one) == terms_of(other) == [*LEADER_8, 8]


def test_a_term_costs_one_refusal() -> None:
    """Paper 5.3 ¶9: a hint skips all conflicting entries of a term at once, not one by one."""
    one = leader(terms=(1,) * 3 + (9,) * 200)
    other = replica(id=2, terms=(1,) * 3 + (4,) * 90 + (5,) * 90 + (6,) * 90, term=9)
    assert converge(one, other) <= 4
    assert terms_of(other) == terms_of(one)


def test_coming_to_power_takes_no_special_action() -> None:
    """Paper 5.3 ¶10: a new leader just begins to work; the checks of its appends do the rest."""
    raft = leader(terms=(1, 2))
    said = turn(raft)
    assert {type(word) for word in said} == {Append}
    assert [entry.term for word in said if isinstance(word, Append) for entry in word.entries] == [
        3,
        3,
    ]


def test_a_leader_never_overwrites_its_own_entries() -> None:
    """Paper 5.3 ¶10: leader append-only: it only appends, whatever followers say."""
    raft = leader(terms=(1, 1))
    turn(raft)
    for conflict in (2, 1, 0):
        raft.step(AppendReply(2, 1, 2, 2, True, conflict, 1))
        turn(raft)
    assert terms_of(raft) == [1, 1, 2]


def test_one_round_trip_to_a_majority_is_enough() -> None:
    """Paper 5.3 ¶11: an entry takes one round to a majority; who is slow holds nobody up."""
    table = Table("cluster 5", "quietly lead 1", "crash 5", "propose 1 a", "quietly turn 1")
    for peer in (2, 3):  # 4 is slow
        table.do(f"deliver 1 {peer}", f"quietly turn {peer}", f"deliver {peer} 1")
    assert table.raft(1).commit == 2
    assert table.do("ready 1")[0] == "1 applies 2@1=a"
