"""The rows of segments, and the one index that says which segment concerns which node, and why.

A *segment* is a run of a shard's records that some nodes keep copies of, its replicas. One of them
leads; those that have all that was acknowledged are in sync, its ISR. `places` says, as a function
of the row alone, under which nodes a segment is found:

    held      by every node that keeps a copy
    led       by its leader, with the broker epoch at which that node was chosen
    strayed   by its preferred leader (the first replica), which could lead it and does not
    awaited   by the nodes of its last ISR, while it has no leader
    leaving   by the nodes that have still to delete their copy
    gone      by nobody: every copy is deleted, the row may go

and by nobody, too, if something ails it:

    offline           it has no leader: nothing of it is read or written
    under_min_isr     it is written, and too few are in sync for a record to be acknowledged
    under_replicated  it has a leader, and fewer are in sync than the shard wants copies

`put_segment` keeps the index by the difference, so what a dead node leaves behind, what a broker
has to delete and what the controller has to do are each found without looking at anything else.

Shards and their segments are cluster-wide: they live in `metadata-0`, beside the nodes. A broker's
epoch must fence what it says about a segment from the very entry on in which another broker of its
name registers, and only one log can order the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from state_machines import names
from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.metadata.node import FLEET, NODES, Node
from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.repair import clamp
from state_machines.tables import Table, Tables

# The life of a segment. One whose leader is lost is `unavailable` until a node of its last ISR is
# back, or another is forced; then it is what its offsets say that it was (`settled`).
WRITE: Final = "write"
PRE_SEAL: Final = "pre_seal"  #: its end is known, the next one is written
SEALED: Final = "sealed"  #: its times are known too: it never changes again
PREPARE_DELETE: Final = "prepare_delete"  #: its replicas are to delete their copies
DELETED: Final = "deleted"  #: they all have
UNAVAILABLE: Final = "unavailable"

# Why a segment is found under a node.
HELD: Final = "held"
LED: Final = "led"
STRAYED: Final = "strayed"
AWAITED: Final = "awaited"
LEAVING: Final = "leaving"
GONE: Final = "gone"
WHYS: Final = (HELD, LED, STRAYED, AWAITED, LEAVING, GONE)

# And what ails it.
OFFLINE: Final = "offline"
UNDER_MIN_ISR: Final = "under_min_isr"
UNDER_REPLICATED: Final = "under_replicated"
AILING: Final = (OFFLINE, UNDER_MIN_ISR, UNDER_REPLICATED)
NOBODY: Final = ""  #: under whom is what concerns no node more than another

NOT_KNOWN: Final = -1  #: an end or a time that a segment does not have yet
SEGMENTS_MAX: Final = 1_000  #: of one command: each writes a dozen rows
REPLICAS_MAX: Final = 32
SEQUENCE_MAX: Final = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment. Offsets count records, `end_offset` is that of the first one behind it."""

    tenant: str
    shard: str
    sequence: int
    uid: int  #: the shard's: a later shard of the same name has another
    replicas: tuple[str, ...]  #: node ids; the first is the preferred leader
    isr: tuple[str, ...]
    last_known_isr: tuple[str, ...]  #: the ISR when the last leader was lost; empty with a leader
    leader: str  #: node id; empty while it is unavailable
    leader_epoch: int  #: rises with every change of the leader
    leader_broker_epoch: int  #: the node's epoch when it was chosen
    segment_epoch: int  #: rises with every change of the leader or the ISR
    status: str
    start_offset: int
    end_offset: int
    start_ms: int  #: of its first record, Unix milliseconds
    end_ms: int  #: of its last record
    deleted_by: tuple[str, ...]  #: replicas that have deleted their copy
    min_isr: int = 1  #: the shard's, so that `places` needs no other row
    copies: int = 0  #: that the shard wants; 0: an older release did not say, as many as `replicas`


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """A row of the index. `epoch` is the leader's broker epoch, 0 but for `led`."""

    why: str
    node_id: str
    epoch: int
    tenant: str
    shard: str
    sequence: int


@dataclass(frozen=True, slots=True)
class NodeLoad:
    """How many copies of segments a node keeps and how many segments it leads."""

    node_id: str
    held: int
    led: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentName:
    """A segment of the shard that has this uid."""

    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int
    uid: int


@dataclass(frozen=True, slots=True)
class SegmentPage:
    """Segments; `next` continues after the last one, empty at the end."""

    segments: tuple[Segment, ...]
    next: bytes


SEGMENTS: Final = Table(
    "metadata.segment",
    Segment,
    key=("tenant", "shard", "sequence"),
    slot_fields=(),
    identity_field="uid",
)
INDEX: Final = Table(
    "metadata.segment_place",
    SegmentPlace,
    key=("why", "node_id", "epoch", "tenant", "shard", "sequence"),
)
LOADS: Final = Table("metadata.node_load", NodeLoad, key=("node_id",))


# -- writing ------------------------------------------------------------------------------------


def places(segment: Segment) -> tuple[tuple[str, str, int], ...]:
    """Why, node id and broker epoch of every row of the index that the segment has."""
    left = [each for each in segment.replicas if each not in segment.deleted_by]
    found = [(HELD, each, 0) for each in left]
    match segment.status:
        case "prepare_delete":
            found += [(LEAVING, each, 0) for each in left]
        case "deleted":
            found.append((GONE, NOBODY, 0))
        case "unavailable":
            found += [(AWAITED, each, 0) for each in segment.last_known_isr]
            found.append((OFFLINE, NOBODY, 0))
        case _:
            found.append((LED, segment.leader, segment.leader_broker_epoch))
            preferred = segment.replicas[0]
            if preferred != segment.leader and preferred in segment.isr:
                found.append((STRAYED, preferred, 0))
            in_sync = len(segment.isr)
            if segment.status == WRITE and in_sync < segment.min_isr:
                found.append((UNDER_MIN_ISR, NOBODY, 0))
            if in_sync < (segment.copies or len(segment.replicas)):
                found.append((UNDER_REPLICATED, NOBODY, 0))
    return tuple(found)


def put_segment(db: Tables, before: Segment | None, segment: Segment) -> None:
    """Set the segment that was `before`, and keep the index and the loads."""
    _move(db, segment, places(before) if before is not None else (), places(segment))
    db.put(SEGMENTS, segment)


def remove_segment(db: Tables, segment: Segment) -> None:
    """Forget the segment."""
    _move(db, segment, places(segment), ())
    db.delete(SEGMENTS, segment.tenant, segment.shard, segment.sequence)


@remover(SEGMENTS, leasable=False)
def _remove(db: Tables, at: Stamp, segment: Segment) -> None:
    """With its tenant: brokers that watch the table see it, and those that start ask for `held`."""
    remove_segment(db, segment)


def _move(
    db: Tables,
    segment: Segment,
    before: Sequence[tuple[str, str, int]],
    after: Sequence[tuple[str, str, int]],
) -> None:
    key = (segment.tenant, segment.shard, segment.sequence)
    for place in before:
        if place not in after:
            db.delete(INDEX, *place, *key)
            _load(db, place, -1)
    for place in after:
        if place not in before:
            db.put(INDEX, SegmentPlace(*place, *key))
            _load(db, place, 1)


def _load(db: Tables, place: tuple[str, str, int], more: int) -> None:
    why, node_id, _ = place
    if why not in (HELD, LED):
        return
    db.memo.pop(FLEET, None)
    load = db.get(LOADS, node_id) or NodeLoad(node_id, 0, 0)
    # A count that is too low stops nobody.
    held = clamp(db, LOADS, (node_id,), "held", load.held + more * (why == HELD))
    led = clamp(db, LOADS, (node_id,), "led", load.led + more * (why == LED))
    if held or led:
        db.put(LOADS, NodeLoad(node_id, held, led))
    else:
        db.delete(LOADS, node_id)


def settled(segment: Segment) -> str:
    """The status of a segment that has a leader, as its end and its times say."""
    if segment.end_offset == NOT_KNOWN:
        return WRITE
    return PRE_SEAL if segment.end_ms == NOT_KNOWN else SEALED


def prepare_delete(db: Tables, segment: Segment) -> None:
    """Its replicas are to delete their copies; nobody leads it any more."""
    put_segment(
        db,
        segment,
        replace(
            segment,
            status=PREPARE_DELETE,
            isr=(),
            last_known_isr=(),
            leader="",
            leader_broker_epoch=0,
            segment_epoch=segment.segment_epoch + 1,
        ),
    )


# -- who may speak ------------------------------------------------------------------------------


def broker(db: Tables, node_id: str, broker_epoch: int) -> Node:
    """The node, if the caller's epoch is the one in force. NotFound, or Fenced."""
    node = db.get(NODES, node_id)
    if node is None:
        raise NotFound(f"node_id: {node_id!r} is not registered")
    if broker_epoch != node.epoch:
        raise Fenced(f"broker_epoch: {broker_epoch}, in force is {node.epoch}")
    return node


def online(db: Tables, node_id: str) -> Node | None:
    """The node, if it is registered and heard of."""
    node = db.get(NODES, node_id)
    return node if node is not None and node.online else None


def named(db: Tables, tenant: str, shard: str, sequence: int, uid: int) -> Segment:
    """The segment. NotFound, or Fenced if it belongs to another shard of this name."""
    segment = db.get(SEGMENTS, tenant, shard, sequence)
    if segment is None:
        raise NotFound(f"sequence: {shard!r} has no segment {sequence}")
    if segment.uid != uid:
        raise Fenced(f"uid: {uid}, the shard of this name has {segment.uid}")
    return segment


def led(db: Tables, node: Node, segment: Segment, leader_epoch: int) -> None:
    """Fenced unless the node leads the segment, and was chosen in this very life of it."""
    if segment.leader != node.node_id:
        raise Fenced(f"node_id: {node.node_id!r} does not lead, {segment.leader!r} does")
    if leader_epoch != segment.leader_epoch:
        raise Fenced(f"leader_epoch: {leader_epoch}, in force is {segment.leader_epoch}")
    if node.epoch != segment.leader_broker_epoch:
        chosen = segment.leader_broker_epoch
        raise Fenced(f"broker_epoch: {node.epoch}, the leader was chosen at {chosen}")


def in_use(segment: Segment) -> None:
    """Conflict for a segment that is on its way out."""
    if segment.status in (PREPARE_DELETE, DELETED):
        raise Conflict(f"status: segment {segment.sequence} is {segment.status}")


# -- limits -------------------------------------------------------------------------------------


def check_some(items: Sequence[object], field: str = "items") -> None:
    """Raise Invalid unless there are 1 to `SEGMENTS_MAX`."""
    if not 0 < len(items) <= SEGMENTS_MAX:
        raise Invalid(f"{field}: {len(items)} items, the range is 1 to {SEGMENTS_MAX}")


def check_sequence(sequence: int) -> None:
    """Raise Invalid for a sequence out of range."""
    if not 0 <= sequence <= SEQUENCE_MAX:
        raise Invalid(f"items.sequence: {sequence}, the range is 0 to {SEQUENCE_MAX}")


def check_nodes(nodes: Sequence[str], field: str) -> None:
    """Raise Invalid unless these are up to `REPLICAS_MAX` different node ids."""
    if len(nodes) > REPLICAS_MAX:
        raise Invalid(f"{field}: {len(nodes)} nodes, the limit is {REPLICAS_MAX}")
    for each in nodes:
        names.name(each, field)
    if len(frozenset(nodes)) != len(nodes):
        raise Invalid(f"{field}: a node comes twice")


def check_name(tenant: str, shard: str, sequence: int, uid: int) -> None:
    """Raise Invalid unless these may name a segment."""
    names.name(tenant, "items.tenant")
    names.name(shard, "items.shard")
    check_sequence(sequence)
    names.positive(uid, "items.uid")
