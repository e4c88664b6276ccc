"""Shards: what a storage engine keeps a topic's records in, as a row of segments.

A shard begins with one segment, its *active* one is written, and only the oldest go. It is deleted
in steps, so that no command is ever long: `DeleteShards` marks the row (`prepare_delete`), from
then on nothing is written; the controller's `SweepShards` tells the replicas of its segments to
delete their copies, so many at a time (`deleting`, once all are told); and the row goes with its
last segment (`FinishSegments`), or at once if it has none. Until then the name is taken. A shard
that is made again under the name has another `uid`, and what is said of the former one is fenced.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import AlreadyExists, Conflict, Invalid, NotFound
from state_machines.fence import check_epoch, pass_fence
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.metadata.segments import (
    PREPARE_DELETE,
    REPLICAS_MAX,
    SEGMENTS,
    check_nodes,
    check_some,
    prepare_delete,
    put_segment,
)
from state_machines.metadata.shard_placement import Fleet
from state_machines.metadata.shards import (
    DELETING,
    FOR_EVER,
    MARKS,
    RUN,
    SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
    SHARDS,
    Shard,
    ShardConfig,
    ShardMark,
    ShardPage,
    new_segment,
)
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

SWEEP_MAX: Final = 10_000
DEFAULT_CONFIG: Final = ShardConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardItem:
    """A shard to be. Without `nodes` the least loaded ones are chosen."""

    name: str
    topic: str = ""
    config: ShardConfig = DEFAULT_CONFIG
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepReply:
    """How many segments were told to go, and whether there are more."""

    segments: int
    more: bool


def _check_config(config: ShardConfig) -> None:
    if not 0 < config.replicas <= REPLICAS_MAX:
        raise Invalid(f"items.config.replicas: {config.replicas}, the range is 1 to {REPLICAS_MAX}")
    if not 0 < config.min_isr <= config.replicas:
        raise Invalid(
            f"items.config.min_isr: {config.min_isr}, the range is 1 to {config.replicas}"
        )
    if not SEGMENT_BYTES_MIN <= config.segment_bytes <= SEGMENT_BYTES_MAX:
        raise Invalid(
            f"items.config.segment_bytes: {config.segment_bytes}, "
            f"the range is {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}"
        )
    if config.retention_ms < 1 and config.retention_ms != FOR_EVER:
        raise Invalid(
            f"items.config.retention_ms: {config.retention_ms}, it is positive or {FOR_EVER}"
        )


@command("metadata.shard.create")
class CreateShards(Batch):
    """Create shards with their first segments. Each is AlreadyExists if its name is taken."""

    heavy: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    items: tuple[ShardItem, ...]

    def validate(self) -> None:
        """Names and configurations within their limits."""
        names.tenant(self.tenant)
        check_some(self.items)
        for item in self.items:
            names.name(item.name, "items.name")
            names.name(item.topic, "items.topic", MQTT_STRING_BYTES_MAX, empty=True)
            _check_config(item.config)
            check_nodes(item.nodes, "items.nodes")
            if item.nodes and len(item.nodes) != item.config.replicas:
                wanted = item.config.replicas
                raise Invalid(f"items.nodes: {len(item.nodes)}, the shard has {wanted} replicas")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """QuotaExceeded for one that more nodes are wanted for than are online."""
        fleet = Fleet.online(db) if not all(each.nodes for each in self.items) else Fleet(())

        def create(item: ShardItem) -> None:
            if db.get(SHARDS, self.tenant, item.name) is not None:
                raise AlreadyExists(f"items.name: {item.name!r} is there already")
            wanted = item.config.replicas
            replicas = item.nodes or fleet.choose(wanted, wanted)
            shard = Shard(
                tenant=self.tenant,
                name=item.name,
                uid=db.unique(),
                topic=item.topic,
                config=item.config,
                status=RUN,
                first_sequence=0,
                active_sequence=0,
                created_ms=at.now_ms,
            )
            segment = new_segment(db, shard, 0, replicas, 0)
            db.put(SHARDS, shard)
            put_segment(db, None, segment)
            fleet.add(replicas, segment.leader)

        outcomes = each(db, self.items, create)
        fleet.keep(db)
        return outcomes


@command("metadata.shard.delete")
class DeleteShards(Batch):
    """Have shards deleted. Nothing is written to them from now on; the controller does the rest."""

    heavy: ClassVar[bool] = True
    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for name in self.names:
            names.name(name, "names")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there; Conflict for one that is being deleted.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def mark(name: str) -> None:
            shard = db.get(SHARDS, self.tenant, name)
            if shard is None:
                raise NotFound(f"names: {name!r} is not there")
            if shard.status != RUN:
                raise Conflict(f"status: {name!r} is {shard.status}")
            db.put(SHARDS, replace(shard, status=PREPARE_DELETE))
            db.put(MARKS, ShardMark(self.tenant, name))

        return each(db, self.names, mark, changed="names")


@command("metadata.shard.sweep")
class SweepShards:
    """The controller has the segments of marked shards deleted: at most `limit` of them."""

    controller_epoch: int
    limit: int = 1_000

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        if not 0 < self.limit <= SWEEP_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {SWEEP_MAX}")

    def weight(self) -> int:
        """Segments."""
        return self.limit

    def apply(self, db: Tables, at: Stamp) -> SweepReply:
        """Shard after shard, each from its oldest segment on."""
        pass_fence(db, self.controller_epoch)
        left = self.limit
        # Read at once, not one after another: each look passes all that was just removed.
        for mark in [row for _, row, _ in itertools.islice(db.scan(MARKS), self.limit)]:
            if not left:
                break
            shard = db.get(SHARDS, mark.tenant, mark.name)
            assert shard is not None, f"{mark} has no shard"
            left -= _sweep(db, shard, left)
        return SweepReply(self.limit - left, db.has_any(MARKS))


def _sweep(db: Tables, shard: Shard, limit: int) -> int:
    """How many segments were told; with the last one the shard needs no more sweeping."""
    last = min(shard.active_sequence, shard.first_sequence + limit - 1)
    told = 0
    for sequence in range(shard.first_sequence, last + 1):
        segment = db.get(SEGMENTS, shard.tenant, shard.name, sequence)
        if segment is not None:  # those of a tenant that is deleted go before their shards
            prepare_delete(db, segment)
            told += 1
    done = last == shard.active_sequence
    status = DELETING if done else shard.status
    db.put(SHARDS, replace(shard, status=status, first_sequence=last + 1))
    if done:
        db.delete(MARKS, shard.tenant, shard.name)
        if not told and not db.has_any(SEGMENTS, shard.tenant, shard.name):
            # It came back from a backup before its segments, and no segment would end it.
            db.delete(SHARDS, shard.tenant, shard.name)
    return last + 1 - shard.first_sequence


@query("metadata.shard.get")
class GetShard:
    """Read a shard."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def read(self, db: Tables, at: Stamp) -> Shard | None:
        """None when there is none."""
        return db.get(SHARDS, self.tenant, self.name)


@query("metadata.shard.list")
class ListShards:
    """Shards of a tenant whose name begins with `starts`, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> ShardPage:
        """By name."""
        rows, after = db.page(
            SHARDS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return ShardPage(tuple([row for row, _ in rows]), after)


@query("metadata.shard.marked")
class MarkedShards:
    """Whether there is something to sweep."""

    def read(self, db: Tables, at: Stamp) -> bool:
        """Whether a shard waits for the sweep."""
        return db.has_any(MARKS)
