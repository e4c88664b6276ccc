"""Who leads a segment and who is in sync with it.

The leader reports its ISR (`UpdateIsr`), and every fence is in the apply, against the rows of the
same log: the caller is the leader, of this leader epoch, in this life of its broker, and the
segment is at the epoch that the caller has seen. The new ISR has the leader in it and replicas
only, and who joins it is online, in the life that the leader has heard of.

The controller changes leaders (`ChangeLeaders`): away from a broker that is offline, gone, or has
registered again since it was chosen, and back to the preferred one. A new leader is always of the
ISR, so it has all that was acknowledged; whether it may lead is decided here, by the rows, not by
what the planner saw. With nobody left the segment is unavailable and remembers its last ISR: only
a node of that may lead it again, unless an operator gives up what only those had (`ForceLeader`).

Who registers again may have lost its disk. A leader that did leaves the ISR with its leadership,
unless nobody else can lead. Under which epoch a follower joined is not kept: one that registers
again stays in sync until its leader, which sees what it has, takes it out. So a broker whose copies
are gone must not come back under its name while the leader is away.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Conflict, Fenced, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.metadata.node import NODES, Node
from state_machines.metadata.segments import (
    SEQUENCE_MAX,
    UNAVAILABLE,
    Segment,
    broker,
    check_name,
    check_nodes,
    check_some,
    in_use,
    led,
    named,
    online,
    put_segment,
    settled,
)
from state_machines.op import Stamp, command
from state_machines.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrChange:
    """The ISR that a leader has found.

    `isr_epochs` are the broker epochs under which the leader knows them, in the same order: one
    that has registered since may have lost what it had. Without them that is not checked.
    """

    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int
    uid: int
    leader_epoch: int
    segment_epoch: int
    isr: tuple[str, ...]
    isr_epochs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChange:
    """Who is to lead instead; nobody (empty) when nobody of the ISR can."""

    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int
    uid: int
    leader_epoch: int  #: the one that is to end
    leader: str


@command("metadata.segment.isr")
class UpdateIsr(Batch):
    """The leader of segments says who is in sync. Each that is OK is at `segment_epoch` + 1."""

    node_id: str
    broker_epoch: int
    items: tuple[IsrChange, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.node_id, "node_id")
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)
            if not item.isr:
                raise Invalid("items.isr: empty")
            check_nodes(item.isr, "items.isr")
            if len(item.isr_epochs) not in (0, len(item.isr)):
                raise Invalid(
                    f"items.isr_epochs: {len(item.isr_epochs)} for an ISR of {len(item.isr)}"
                )

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced: not the leader, an old leader or broker epoch. Conflict: another segment epoch,
        or a caller that is marked offline: alone in the ISR it would keep all others from leading.

        Invalid: an ISR without its leader, or beyond the replicas.
        """
        node = broker(db, self.node_id, self.broker_epoch)
        if not node.online:
            raise Conflict(f"node_id: {self.node_id!r} is offline until its next heartbeat")

        def update(item: IsrChange) -> None:
            segment = named(db, item.tenant, item.shard, item.sequence, item.uid)
            in_use(segment)
            led(db, node, segment, item.leader_epoch)
            if item.segment_epoch != segment.segment_epoch:
                raise Conflict(
                    f"segment_epoch: {item.segment_epoch}, the segment is at "
                    f"{segment.segment_epoch}"
                )
            _check_isr(db, segment, item)
            epoch = segment.segment_epoch + 1
            put_segment(db, segment, replace(segment, isr=item.isr, segment_epoch=epoch))

        return each(db, self.items, update)


def _check_isr(db: Tables, segment: Segment, item: IsrChange) -> None:
    if segment.leader not in item.isr:
        raise Invalid(f"isr: without its leader {segment.leader!r}")
    epochs = item.isr_epochs or (0,) * len(item.isr)
    for node_id, epoch in zip(item.isr, epochs, strict=True):
        if node_id not in segment.replicas:
            raise Invalid(f"isr: {node_id!r} is no replica")
        node = db.get(NODES, node_id)
        if node_id not in segment.isr and (node is None or not node.online):
            raise Conflict(f"isr: {node_id!r} is not online")
        if epoch and (node is None or node.epoch != epoch):
            raise Fenced(f"isr_epochs: {node_id!r} is not at {epoch} any more")


@command("metadata.segment.leader")
class ChangeLeaders(Batch):
    """The controller changes who leads. Who is not online leaves the ISR with it."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    items: tuple[LeaderChange, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)
            names.name(item.leader, "items.leader", empty=True)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict for a leader epoch that has passed, and for a leader that cannot lead."""
        pass_fence(db, self.controller_epoch)

        def change(item: LeaderChange) -> None:
            segment = named(db, item.tenant, item.shard, item.sequence, item.uid)
            in_use(segment)
            if item.leader_epoch != segment.leader_epoch:
                raise Conflict(
                    f"leader_epoch: {item.leader_epoch}, the segment is at {segment.leader_epoch}"
                )
            put_segment(db, segment, _changed(db, segment, item.leader))

        return each(db, self.items, change)


def _changed(db: Tables, segment: Segment, leader: str) -> Segment:
    """The segment under another leader, or under none."""
    able = segment.isr or segment.last_known_isr
    alive = {each: node for each in able if (node := online(db, each)) is not None}
    if leader:
        if leader not in able:
            raise Conflict(f"leader: {leader!r} is not in sync")
        if leader not in alive:
            raise Conflict(f"leader: {leader!r} is not online")
        return _under(segment, alive[leader], _in_sync(segment, alive, leader))
    if alive:
        raise Conflict(f"leader: {min(alive)!r} is in sync and online")
    if not segment.leader:
        raise Conflict(f"status: segment {segment.sequence} is {segment.status}")
    return replace(
        segment,
        isr=(),
        last_known_isr=segment.isr,
        leader="",
        leader_broker_epoch=0,
        leader_epoch=segment.leader_epoch + 1,
        segment_epoch=segment.segment_epoch + 1,
        status=UNAVAILABLE,
    )


def _in_sync(segment: Segment, alive: Mapping[str, Node], leader: str) -> tuple[str, ...]:
    """Those alive, without a former leader that has registered again, unless it leads again: it may
    have lost what it had, and has to catch up like everyone."""
    former = alive.get(segment.leader)
    again = former is not None and former.epoch != segment.leader_broker_epoch
    left_out = segment.leader if again and segment.leader != leader else ""
    return tuple([each for each in alive if each != left_out])


def _under(segment: Segment, leader: Node, isr: tuple[str, ...]) -> Segment:
    return replace(
        segment,
        isr=isr,
        last_known_isr=(),
        leader=leader.node_id,
        leader_broker_epoch=leader.epoch,
        leader_epoch=segment.leader_epoch + 1,
        segment_epoch=segment.segment_epoch + 1,
        status=settled(segment),
    )


@command("metadata.segment.force_leader")
class ForceLeader:
    """Have a replica lead that was not in sync. What was acknowledged and it does not have is lost.

    For an unavailable segment whose last ISR will not be back: an operator asks, the controller
    never does. In sync is then the new leader alone.
    """

    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int
    uid: int
    leader_epoch: int  #: the one at which it was seen to be unavailable
    leader: str

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.name(self.shard, "shard")
        if not 0 <= self.sequence <= SEQUENCE_MAX:
            raise Invalid(f"sequence: {self.sequence}, the range is 0 to {SEQUENCE_MAX}")
        names.positive(self.uid, "uid")
        names.positive(self.leader_epoch, "leader_epoch")
        names.name(self.leader, "leader")

    def apply(self, db: Tables, at: Stamp) -> Segment:
        """Conflict unless the segment is unavailable, at this leader epoch, and the leader online.

        Conflict, too, while one of the last ISR is online: it loses nothing. Invalid: no replica.
        """
        segment = named(db, self.tenant, self.shard, self.sequence, self.uid)
        if segment.status != UNAVAILABLE:
            raise Conflict(f"status: segment {self.sequence} is {segment.status}")
        if self.leader_epoch != segment.leader_epoch:
            raise Conflict(
                f"leader_epoch: {self.leader_epoch}, the segment is at {segment.leader_epoch}"
            )
        if self.leader not in segment.replicas:
            raise Invalid(f"leader: {self.leader!r} is no replica")
        node = online(db, self.leader)
        if node is None:
            raise Conflict(f"leader: {self.leader!r} is not online")
        able = segment.last_known_isr
        alive = [each for each in able if online(db, each) is not None]
        if alive and self.leader not in able:
            raise Conflict(f"leader: {alive[0]!r} was in sync and is online")
        forced = _under(segment, node, (self.leader,))
        put_segment(db, segment, forced)
        return forced
