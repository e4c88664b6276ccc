"""What a replica has to keep: a vote that is all the news there is, and which members when."""

from __future__ import annotations

import random

from state_machines.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    HardState,
    Heartbeat,
    InstallSnapshot,
    Raft,
    RaftConfig,
    Ready,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from state_machines.raft.log import Log
from state_machines.raft.messages import EntryKind
from tests.raft.paper.rig import replica, turn

THREE = Configuration(voters=(1, 2, 3))


def test_a_vote_in_a_term_that_is_known_already_is_saved_before_it_leaves() -> None:
    raft = Raft(
        id=1,
        config=RaftConfig(),
        rng=random.Random(1),
        snapshot=SnapshotMeta(0, 0, THREE),
        hard_state=HardState(term=4),
    )
    raft.step(RequestVote(2, 1, 4, 0, 0))
    ready = raft.ready()
    assert ready is not None
    assert ready.hard_state == HardState(term=4, vote=2)
    assert ready.messages == ()
    assert ready.promises == (VoteReply(1, 2, 4, granted=True),)


def test_a_snapshot_has_the_members_of_its_own_index() -> None:
    two = Configuration(voters=(1, 2))
    four = Configuration(voters=(1, 2), learners=(4,))
    changes = {2: two, 5: four}
    entries = [
        Entry(1, index, b"", EntryKind.CONFIGURATION, changes[index])
        if index in changes
        else Entry(1, index, b"x")
        for index in range(1, 7)
    ]
    log = Log(SnapshotMeta(0, 0, THREE), entries, commit=6)
    assert log.configuration_before == two
    members = [log.meta(index).configuration for index in range(7)]
    assert members == [THREE, THREE, two, two, two, four, four]
    log.take_committed()
    log.compact(3)
    assert [log.meta(index).configuration for index in range(3, 7)] == [two, two, four, four]


def test_an_append_that_begins_before_the_log_does_is_taken_from_there_on() -> None:
    """Answers were lost, and the leader does not know how far this replica has come."""
    raft = replica(id=2, terms=[1] * 5)
    raft.step(Append(1, 2, 1, 5, 1, commit=5))
    turn(raft)
    raft.compact(5)
    raft.step(Append(1, 2, 1, 3, 1, 5, tuple(Entry(1, index) for index in (4, 5, 6))))
    assert turn(raft) == [AppendReply(2, 1, 1, 6)]


def test_a_ready_without_a_save_ends_no_save() -> None:
    raft = replica(id=2)
    raft.step(Append(1, 2, 1, 0, 0, 0, (Entry(1, 1),)))
    saving = raft.ready()
    assert saving is not None
    raft.advance(Ready())
    assert (raft.durable_index, raft.ready()) == (0, None)
    raft.advance(saving)
    assert raft.durable_index == 1


def test_what_is_committed_is_applied_while_a_save_is_under_way() -> None:
    raft = replica(id=2, terms=[1])
    raft.step(Append(1, 2, 1, 1, 1, 0, (Entry(1, 2),)))
    saving = raft.ready()
    assert saving is not None
    assert saving.committed == ()
    raft.step(Heartbeat(1, 2, 1, 2))
    ready = raft.ready()
    assert ready is not None
    assert [each.index for each in ready.committed] == [1], "the other is not saved yet"


def test_what_is_told_of_the_log_is_what_is_in_memory() -> None:
    raft = replica(id=2, terms=[1] * 6)
    raft.step(Heartbeat(1, 2, 1, 4))
    turn(raft)
    raft.compact(2)
    assert raft.kept(2, 5) == ()
    assert [each.index for each in raft.kept(3, 5)] == [3, 4, 5]
    assert [each.index for each in raft.kept(5, 99)] == [5, 6]
    assert [each.index for each in raft.committed(3, 1 << 20)] == [3, 4], "and no others"


def test_who_installs_a_snapshot_has_its_vote() -> None:
    raft = replica(id=2)
    raft.step(InstallSnapshot(1, 2, 1, SnapshotMeta(5, 1, THREE)))
    assert raft.installing
    assert raft.votes


def test_a_commit_index_beyond_the_log_says_no_more_than_the_log() -> None:
    raft = Raft(
        id=1,
        config=RaftConfig(),
        rng=random.Random(1),
        snapshot=SnapshotMeta(0, 0, THREE),
        entries=[Entry(1, 1)],
        hard_state=HardState(term=1, commit=9),
    )
    assert raft.commit == 1
    raft.step(Heartbeat(2, 1, 1, commit=9))
    assert raft.commit == 1
