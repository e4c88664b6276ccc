"""When a leader takes its own disk for hung, and to whom it hands over then."""

from __future__ import annotations

import random

from state_machines.raft import (
    AppendReply,
    Change,
    Configuration,
    HeartbeatReply,
    Leader,
    Raft,
    RaftConfig,
    Ready,
    SnapshotMeta,
    VoteReply,
)

CONFIG = RaftConfig(heartbeat_ticks=2, election_ticks_min=10, election_ticks_max=20, pre_vote=False)
VOTERS = Configuration(voters=(1, 2, 3))


class Leading:
    """Replica 1, which leads in term 1. Its disk saves when `saves` is called."""

    def __init__(self, members: Configuration) -> None:
        self.raft = Raft(
            id=1, config=CONFIG, rng=random.Random(1), snapshot=SnapshotMeta(0, 0, members)
        )
        self.saving: Ready | None = None
        self.raft.campaign()
        self.saves()
        for voter in members.voters[1:]:
            self.raft.step(VoteReply(voter, 1, 1, granted=True))
        self.saves()
        self.have(*members.voters[1:], *members.learners)
        assert (self.raft.leader, self.raft.commit, self.raft.durable_index) == (1, 1, 1)

    def saves(self) -> None:
        """All that there is to save is saved."""
        while ready := self.saving or self.raft.ready():
            self.raft.advance(ready)
            self.saving = None

    def begins(self) -> None:
        """The save of an entry begins."""
        self.raft.propose(b"x")
        self.saving = self.raft.ready()
        assert self.saving is not None

    def have(self, *peers: int) -> None:
        """These have everything on their disks."""
        for peer in peers:
            self.raft.step(AppendReply(peer, 1, 1, self.raft.last_index))

    def timeout(self, *heard: int) -> int:
        """An election timeout passes, in which these are heard. Who is to lead then, 0: it goes
        on."""
        for peer in heard:
            self.raft.step(HeartbeatReply(peer, 1, 1))
        for _ in range(CONFIG.election_ticks_min):
            self.raft.tick()
            self.raft.check()
        assert isinstance(self.raft.role, Leader)
        return self.raft.role.transfer.target if self.raft.role.transfer else 0


def test_it_hands_over_when_a_majority_had_more_for_a_whole_election_timeout() -> None:
    one = Leading(VOTERS)
    one.begins()
    assert one.timeout(2, 3) == 0
    one.have(2, 3)
    assert [one.timeout(2, 3), one.timeout(2, 3)] == [0, 3]


def test_it_goes_on_while_no_majority_has_more() -> None:
    one = Leading(VOTERS)
    one.begins()
    one.have(2)
    assert [one.timeout(2, 3) for _ in range(9)] == [0] * 9


def test_it_goes_on_while_its_disk_is_slow_and_does_not_hang() -> None:
    one = Leading(VOTERS)
    for _ in range(9):
        one.begins()
        one.have(2, 3)
        assert one.timeout(2, 3) == 0
        one.saves()


def test_it_goes_on_while_there_is_nothing_to_save() -> None:
    one = Leading(VOTERS)
    assert [one.timeout(2, 3) for _ in range(9)] == [0] * 9


def test_who_is_silent_is_not_the_one() -> None:
    """Else it would be the same dead one again, when the first transfer is given up."""
    one = Leading(VOTERS)
    one.begins()
    one.have(2, 3)
    assert [one.timeout(2), one.timeout(2), one.timeout(3)] == [0, 2, 3]


def test_learners_are_not_the_ones() -> None:
    one = Leading(Configuration(voters=(1, 2, 3), learners=(4,)))
    one.begins()
    one.have(2, 3, 4)
    assert [one.timeout(2, 3, 4), one.timeout(2, 3, 4)] == [0, 3]


def test_who_leaves_is_not_the_one() -> None:
    one = Leading(Configuration(voters=(1, 2, 4), learners=(3,)))
    one.raft.change(Change(add_voters=(3,), remove=(4,)))
    one.raft.ready()
    assert one.raft.configuration.outgoing == (1, 2, 4)
    one.have(2, 3, 4)
    assert [one.timeout(2, 3, 4), one.timeout(2, 3, 4)] == [0, 3]


def test_a_leader_that_was_removed_waits_for_that() -> None:
    one = Leading(VOTERS)
    one.raft.change(Change(remove=(1,)))
    one.raft.ready()
    one.have(2, 3)
    one.raft.ready()
    assert not one.raft.configuration.outgoing
    assert [one.timeout(2, 3) for _ in range(3)] == [0] * 3


def test_a_transfer_that_is_under_way_is_not_disturbed() -> None:
    one = Leading(VOTERS)
    one.begins()
    one.have(2, 3)
    assert one.timeout(2, 3) == 0
    one.raft.transfer(2)
    assert one.timeout(2, 3) == 0, "it is given up, and not begun anew in the same tick"
    assert one.timeout(2, 3) == 3
