"""What reaches the wrong replica, or comes too late, moves nothing."""

from __future__ import annotations

import random

import pytest

from state_machines.raft import (
    Append,
    AppendReply,
    Configuration,
    Heartbeat,
    HeartbeatReply,
    Message,
    Raft,
    RaftConfig,
    RequestVote,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
)
from state_machines.raft.progress import Progress, ProgressState

FOUNDERS = SnapshotMeta(0, 0, Configuration(voters=(1, 2, 3)))


def messages(sender: int, receiver: int, term: int) -> list[Message]:
    return [
        Append(sender, receiver, term, 0, 0, 0),
        AppendReply(sender, receiver, term, 0),
        Heartbeat(sender, receiver, term, 0, 0),
        HeartbeatReply(sender, receiver, term, 0),
        RequestVote(sender, receiver, term, 9, 1),
        VoteReply(sender, receiver, term, True),
        TimeoutNow(sender, receiver, term),
    ]


@pytest.mark.parametrize(
    "message",
    [*messages(sender=2, receiver=3, term=7), *messages(sender=1, receiver=1, term=7)],
    ids=lambda message: f"{type(message).__name__} of {message.sender} for {message.receiver}",
)
def test_a_message_for_somebody_else_is_as_good_as_none(message: Message) -> None:
    """An address is an incarnation: a replica that took over a seat hears what its former holder
    was told."""
    raft = Raft(id=1, config=RaftConfig(), rng=random.Random(1), snapshot=FOUNDERS)
    raft.step(message)
    assert (raft.term, raft.vote, raft.leader, raft.role.name) == (0, 0, 0, "follower")
    assert raft.ready() is None


def test_a_rejection_that_comes_twice_begins_one_probe() -> None:
    progress = Progress(next_index=10)
    progress.sent(10, 1)
    assert progress.rejected(prev_index=9, hint=4)
    assert (progress.next_index, progress.probing) == (5, False)
    progress.sent(5, 1)
    assert not progress.rejected(prev_index=9, hint=4)
    assert (progress.state, progress.next_index) == (ProgressState.PROBE, 5)
    assert progress.probing, "the append that was sent is still unanswered"
