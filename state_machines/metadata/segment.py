"""The life of segments: written, followed by the next, sealed, deleted.

The leader says when a segment is full and where it ends (`CreateNextSegments`), and, when all its
replicas have that much, what times it spans (`SealSegments`). Sealed segments go by retention,
the oldest first, so what is left of a shard is always one run of offsets. Deleting is asked and
answered: a segment is marked, every broker that keeps a copy deletes it and says so under its own
epoch (`DeletedSegments`), and when all have, or are not registered any more, the controller removes
the row (`FinishSegments`), with its last segment a shard that is being deleted.

Who leads and who is in sync is in `leadership.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Conflict, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.metadata.node import NODES
from state_machines.metadata.segments import (
    DELETED,
    PRE_SEAL,
    PREPARE_DELETE,
    SEALED,
    SEGMENTS,
    SEQUENCE_MAX,
    Segment,
    SegmentName,
    broker,
    check_name,
    check_nodes,
    check_some,
    in_use,
    led,
    named,
    prepare_delete,
    put_segment,
    remove_segment,
    settled,
)
from state_machines.metadata.shard_placement import Fleet
from state_machines.metadata.shards import DELETING, SHARDS, new_segment, writable
from state_machines.op import Stamp, command
from state_machines.tables import Tables

OFFSET_MAX: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class NextSegment:
    """Where the active segment ends. Without `nodes` the least loaded ones keep the next."""

    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int
    uid: int
    leader_epoch: int
    end_offset: int
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSeal:
    """What times a segment spans: of its first and of its last record, Unix milliseconds."""

    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int
    uid: int
    leader_epoch: int
    start_ms: int
    end_ms: int


@command("metadata.segment.create")
class CreateNextSegments(Batch):
    """Go on to the next segments, each from where the active one ends. Its leader asks."""

    heavy: ClassVar[bool] = True
    node_id: str
    broker_epoch: int
    items: tuple[NextSegment, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.node_id, "node_id")
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)
            if item.sequence == SEQUENCE_MAX:
                raise Invalid(f"items.sequence: {item.sequence} is the last one")
            if not 0 <= item.end_offset <= OFFSET_MAX:
                raise Invalid(f"items.end_offset: {item.end_offset}, the limit is {OFFSET_MAX}")
            check_nodes(item.nodes, "items.nodes")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict unless the segment is the active one; Fenced unless the caller leads it.

        With fewer nodes online than the shard has replicas the next segment has fewer, as long as
        they are enough to be in sync: writing goes on.
        """
        node = broker(db, self.node_id, self.broker_epoch)
        fleet = Fleet.online(db) if not all(each.nodes for each in self.items) else Fleet(())

        def create(item: NextSegment) -> None:
            nonlocal fleet
            segment = named(db, item.tenant, item.shard, item.sequence, item.uid)
            shard = writable(db, item.tenant, item.shard)
            if item.sequence != shard.active_sequence:
                raise Conflict(f"sequence: {item.sequence}, active is {shard.active_sequence}")
            led(db, node, segment, item.leader_epoch)
            if item.end_offset < segment.start_offset:
                raise Invalid(
                    f"end_offset: {item.end_offset}, the segment starts at {segment.start_offset}"
                )
            config = shard.config
            nodes = item.nodes or fleet.choose(config.replicas, config.min_isr)
            following = new_segment(db, shard, item.sequence + 1, nodes, item.end_offset)
            ended = replace(segment, status=PRE_SEAL, end_offset=item.end_offset)
            put_segment(db, segment, ended)
            # None, unless a version that did not look has restored one beyond the active one.
            there = db.get(SEGMENTS, item.tenant, item.shard, following.sequence)
            put_segment(db, there, following)
            db.put(SHARDS, replace(shard, active_sequence=following.sequence))
            if there is None:
                fleet.add(nodes, following.leader)
            else:
                fleet = Fleet.online(db)  # other nodes have less now

        outcomes = each(db, self.items, create)
        fleet.keep(db)
        return outcomes


@command("metadata.segment.seal")
class SealSegments(Batch):
    """Say what times segments span that have ended. They never change again."""

    node_id: str
    broker_epoch: int
    items: tuple[SegmentSeal, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.node_id, "node_id")
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)
            if not 0 <= item.start_ms <= item.end_ms:
                raise Invalid(f"items.end_ms: {item.end_ms}, it starts at {item.start_ms}")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict unless the segment has ended and is not sealed; Fenced unless the caller leads.

        One that is sealed with the same times stays as it is.
        """
        node = broker(db, self.node_id, self.broker_epoch)

        def seal(item: SegmentSeal) -> None:
            segment = named(db, item.tenant, item.shard, item.sequence, item.uid)
            in_use(segment)
            led(db, node, segment, item.leader_epoch)
            sealed = replace(segment, status=SEALED, start_ms=item.start_ms, end_ms=item.end_ms)
            if segment.status != PRE_SEAL and segment != sealed:
                raise Conflict(f"status: segment {segment.sequence} is {segment.status}")
            put_segment(db, segment, sealed)

        return each(db, self.items, seal)


@command("metadata.segment.delete")
class DeleteSegments(Batch):
    """Have sealed segments deleted, the oldest of a shard first. The controller does the rest."""

    items: tuple[SegmentName, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict for one that is not sealed, and for one that older ones are kept of."""

        def delete(item: SegmentName) -> None:
            segment = named(db, item.tenant, item.shard, item.sequence, item.uid)
            in_use(segment)
            shard = writable(db, item.tenant, item.shard)
            if settled(segment) != SEALED:
                raise Conflict(f"status: segment {item.sequence} is {segment.status}")
            if item.sequence != shard.first_sequence:
                raise Conflict(f"sequence: {item.sequence}, the oldest is {shard.first_sequence}")
            prepare_delete(db, segment)
            db.put(SHARDS, replace(shard, first_sequence=item.sequence + 1))

        return each(db, self.items, delete)


@command("metadata.segment.deleted")
class DeletedSegments(Batch):
    """A broker has deleted its copies of segments that were to go. It may say so again."""

    node_id: str
    broker_epoch: int
    items: tuple[SegmentName, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.node_id, "node_id")
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced with an epoch that is not in force; Conflict for a segment that is to stay."""
        node = broker(db, self.node_id, self.broker_epoch)

        def deleted(item: SegmentName) -> None:
            segment = named(db, item.tenant, item.shard, item.sequence, item.uid)
            if segment.status not in (PREPARE_DELETE, DELETED):
                raise Conflict(f"status: segment {item.sequence} is {segment.status}")
            if node.node_id not in segment.replicas:
                raise Invalid(f"node_id: {node.node_id!r} keeps no copy of it")
            _acknowledge(db, segment, (node.node_id,))

        return each(db, self.items, deleted)


def _acknowledge(db: Tables, segment: Segment, node_ids: tuple[str, ...]) -> Segment:
    """These nodes keep no copy any more. In the order of the replicas, so that bytes agree."""
    gone = frozenset((*segment.deleted_by, *node_ids))
    by = tuple([each for each in segment.replicas if each in gone])
    status = DELETED if by == segment.replicas else PREPARE_DELETE
    now = replace(segment, deleted_by=by, status=status)
    put_segment(db, segment, now)
    return now


@command("metadata.segment.finish")
class FinishSegments:
    """The controller removes segments whose copies are all deleted.

    A node that is not registered any more counts as having deleted its own. The reply says of each
    whether it is gone.
    """

    many: ClassVar[str] = "items"
    controller_epoch: int
    items: tuple[SegmentName, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        check_some(self.items)
        for item in self.items:
            check_name(item.tenant, item.shard, item.sequence, item.uid)

    def apply(self, db: Tables, at: Stamp) -> tuple[bool, ...]:
        """What is not to go stays; with its last segment a shard that is being deleted goes."""
        pass_fence(db, self.controller_epoch)
        gone = tuple([_finish(db, item) for item in self.items])
        # Once a shard, not once a segment: each look passes all that was just removed.
        for tenant, name in dict.fromkeys([(item.tenant, item.shard) for item in self.items]):
            shard = db.get(SHARDS, tenant, name)
            deleting = shard is not None and shard.status == DELETING
            if deleting and not db.has_any(SEGMENTS, tenant, name):
                db.delete(SHARDS, tenant, name)
        return gone


def _finish(db: Tables, item: SegmentName) -> bool:
    segment = db.get(SEGMENTS, item.tenant, item.shard, item.sequence)
    if segment is None or segment.uid != item.uid:
        return True
    if segment.status not in (PREPARE_DELETE, DELETED):
        return False
    away = tuple([each for each in segment.replicas if db.get(NODES, each) is None])
    segment = _acknowledge(db, segment, away)
    if segment.status != DELETED:
        return False
    remove_segment(db, segment)
    return True
