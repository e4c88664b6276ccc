"""What a broken connection does to a peer that a snapshot is on its way to."""

from __future__ import annotations

from state_machines.raft import AppendReply, HeartbeatReply
from state_machines.raft.progress import ProgressState
from tests.raft.paper.rig import leader, turn


def test_a_snapshot_under_way_is_not_begun_again_because_a_connection_broke() -> None:
    """The stream is the shell's: it says itself how it ended."""
    raft = leader(terms=[1] * 5)
    turn(raft)
    raft.step(AppendReply(2, 1, raft.term, raft.last_index))
    turn(raft)
    raft.compact(raft.commit)
    raft.step(HeartbeatReply(3, 1, raft.term, 0))
    raft.unreachable(3)
    asked = 0
    for _ in range(3):
        while (ready := raft.ready()) is not None:
            raft.advance(ready)
            asked += list(ready.snapshot_to).count(3)
        raft.tick()
        raft.step(AppendReply(3, 1, raft.term, 5, True, 0, 0))
        raft.step(HeartbeatReply(3, 1, raft.term, 0))
        if asked:
            assert raft.progress[3].state is ProgressState.SNAPSHOT
            raft.unreachable(3)
            raft.step(AppendReply(3, 1, raft.term, 0))  # from before that
    assert asked == 1


def test_any_state_from_where_the_log_begins_ends_the_wait_for_a_snapshot() -> None:
    """What is streamed may be older than what is committed meanwhile."""
    raft = leader(terms=[1] * 5)
    turn(raft)
    raft.step(AppendReply(2, 1, raft.term, raft.last_index))
    turn(raft)
    raft.compact(3)
    raft.step(AppendReply(3, 1, raft.term, 5, True, 0, 0))
    turn(raft)
    states = [raft.progress[3].state]
    raft.step(AppendReply(3, 1, raft.term, 3))
    states.append(raft.progress[3].state)
    assert states == [ProgressState.SNAPSHOT, ProgressState.REPLICATE]
