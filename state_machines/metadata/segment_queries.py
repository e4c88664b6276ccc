"""What can be asked of segments: one, those of a shard, those that concern a node and why.

Those that the controller asks for are the work there is: it reads them, plans, and sends commands.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import indexes, names
from state_machines.errors import Invalid
from state_machines.limits import INT_MAX
from state_machines.metadata.node import NODES
from state_machines.metadata.segments import (
    AILING,
    AWAITED,
    GONE,
    HELD,
    INDEX,
    LEAVING,
    LED,
    LOADS,
    NOBODY,
    OFFLINE,
    SEGMENTS,
    SEGMENTS_MAX,
    STRAYED,
    WHYS,
    Segment,
    SegmentPage,
    SegmentPlace,
    online,
)
from state_machines.op import Stamp, query
from state_machines.tables import Tables

HEALTH_MAX: Final = 10_000  #: segments of each sort that are counted

Key = tuple[str, str, int]


def _key(place: SegmentPlace) -> Key:
    return place.tenant, place.shard, place.sequence


def _under(
    db: Tables, why: str, node_id: str, limit: int, upto: int | None = None
) -> dict[Key, None]:
    """The keys of up to `limit` segments under a node; `upto` is the latest broker epoch."""
    rows = itertools.islice(db.scan(INDEX, why, node_id, upto=upto), limit)
    return dict.fromkeys([_key(row) for _, row, _ in rows])


def _check_limit(limit: int) -> None:
    if not 0 < limit <= SEGMENTS_MAX:
        raise Invalid(f"limit: {limit}, the range is 1 to {SEGMENTS_MAX}")


@query("metadata.segment.get")
class GetSegment:
    """Read a segment."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    shard: str
    sequence: int

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.shard, "shard")

    def read(self, db: Tables, at: Stamp) -> Segment | None:
        """None when there is none."""
        return db.get(SEGMENTS, self.tenant, self.shard, self.sequence)


@query("metadata.segment.list")
class ListSegments:
    """The segments of a shard, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    shard: str
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.shard, "shard")

    def read(self, db: Tables, at: Stamp) -> SegmentPage:
        """By sequence, also those on their way out."""
        rows, after = db.page(SEGMENTS, self.tenant, self.shard, after=self.after, limit=self.limit)
        return SegmentPage(tuple([row for row, _ in rows]), after)


@query("metadata.segment.of_node")
class ListNodeSegments:
    """The segments that concern a node for a reason (`segments.places`), a page at a time.

    A broker that starts asks for `held`, and keeps no copy of anything else; for `leaving` it asks
    to learn what to delete.
    """

    node_id: str
    why: str = HELD
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """A known reason, names within their limits."""
        if self.why not in WHYS:
            raise Invalid(f"why: {self.why[:80]!r}, one of {', '.join(WHYS)} is wanted")
        names.name(self.node_id, "node_id", empty=self.why == GONE)

    def read(self, db: Tables, at: Stamp) -> SegmentPage:
        """By tenant, shard and sequence."""
        prefix = (self.why, self.node_id)
        rows, after = indexes.page(
            db, INDEX, prefix, SEGMENTS, _key, after=self.after, limit=self.limit
        )
        return SegmentPage(tuple(rows), after)


@query("metadata.segment.removable")
class RemovableSegments:
    """Segments that `FinishSegments` can do something for, up to `limit`: see `plan_gc`."""

    limit: int = 1_000

    def validate(self) -> None:
        """A limit of a page."""
        _check_limit(self.limit)

    def read(self, db: Tables, at: Stamp) -> tuple[Segment, ...]:
        """Those without a copy, and those that wait for nodes that are not registered any more."""
        keys = _under(db, GONE, "", self.limit)
        for _, load, _ in db.scan(LOADS):
            if len(keys) >= self.limit:
                break
            if db.get(NODES, load.node_id) is None:
                keys |= _under(db, LEAVING, load.node_id, self.limit)
        return tuple(indexes.fetch(db, SEGMENTS, list(keys)[: self.limit]))


@query("metadata.segment.leaderless")
class LeaderlessSegments:
    """Segments that want another leader, up to `limit`: see `plan_failover`."""

    limit: int = 1_000

    def validate(self) -> None:
        """A limit of a page."""
        _check_limit(self.limit)

    def read(self, db: Tables, at: Stamp) -> tuple[Segment, ...]:
        """Those led by nodes that are offline, gone or registered anew, and those that a node of
        their last ISR is back for.

        It looks at every node, and at no other segment.
        """
        keys: dict[Key, None] = {}
        for _, load, _ in db.scan(LOADS):
            node = online(db, load.node_id)
            upto = INT_MAX if node is None else node.epoch - 1
            keys |= _under(db, LED, load.node_id, self.limit, upto)
            if node is not None:
                keys |= _under(db, AWAITED, load.node_id, self.limit)
            if len(keys) >= self.limit:
                break
        return tuple(indexes.fetch(db, SEGMENTS, list(keys)[: self.limit]))


@query("metadata.segment.strayed")
class StrayedSegments:
    """Segments that their preferred leader could lead and does not: see `plan_leader_rebalance`."""

    limit: int = 1_000

    def validate(self) -> None:
        """A limit of a page."""
        _check_limit(self.limit)

    def read(self, db: Tables, at: Stamp) -> tuple[Segment, ...]:
        """Those whose preferred leader is online and in sync, node after node."""
        keys: dict[Key, None] = {}
        for _, load, _ in db.scan(LOADS):
            if len(keys) >= self.limit:
                break
            if online(db, load.node_id) is not None:
                keys |= _under(db, STRAYED, load.node_id, self.limit)
        return tuple(indexes.fetch(db, SEGMENTS, list(keys)[: self.limit]))


@dataclass(frozen=True, slots=True)
class SegmentHealth:
    """How many segments ail. A number that is the limit asked for says "or more"."""

    offline: int  #: without a leader
    under_min_isr: int  #: written, and nothing is acknowledged
    under_replicated: int  #: with fewer copies in sync than wanted, those above among them


@query("metadata.segment.health")
class GetSegmentHealth:
    """How many segments have no leader, or too few copies in sync: of each sort up to `limit`.

    It looks at no other segment.
    """

    limit: int = HEALTH_MAX

    def validate(self) -> None:
        """A limit within its range."""
        if not 0 < self.limit <= HEALTH_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {HEALTH_MAX}")

    def read(self, db: Tables, at: Stamp) -> SegmentHealth:
        """As leaders have said: who is offline is in sync until its leader takes it out."""

        def count(why: str) -> int:
            rows = db.store.scan(INDEX.name, (why, NOBODY))
            return sum(1 for _ in itertools.islice(rows, self.limit))

        return SegmentHealth(*map(count, AILING))


@query("metadata.segment.ailing")
class ListAilingSegments:
    """The segments that one thing ails, a page at a time.

    `offline`: no leader; `under_min_isr`: nothing is acknowledged; `under_replicated`: fewer copies
    are in sync than the shard wants.
    """

    why: str = OFFLINE
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """A known ailment."""
        if self.why not in AILING:
            raise Invalid(f"why: {self.why[:80]!r}, one of {', '.join(AILING)} is wanted")

    def read(self, db: Tables, at: Stamp) -> SegmentPage:
        """By tenant, shard and sequence."""
        rows, after = indexes.page(
            db, INDEX, (self.why, NOBODY), SEGMENTS, _key, after=self.after, limit=self.limit
        )
        return SegmentPage(tuple(rows), after)
