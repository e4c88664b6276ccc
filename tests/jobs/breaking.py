"""A cluster where every rule of fsck is broken, each where nothing else is.

It has lived a made-up life before. A rule that only an option makes claim anything is broken by the
test of that option (`BY_OPTION`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from state_machines.lease import (
    ATTACHED,
    ATTACHMENTS,
    DUES,
    LEASES,
    AttachedRow,
    Attachment,
    ExpireLeases,
    GrantLeases,
    LeaseRequest,
)
from state_machines.lease_rows import AttachRows, LeasedRow
from state_machines.metadata import segments, shards
from state_machines.metadata.leadership import IsrChange, UpdateIsr
from state_machines.metadata.node import EPOCHS, RegisterNode, UnregisterNode
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.slot_map import AssignSlots
from state_machines.metadata.topic import (
    CreateTopicConfigs,
    DeleteTopicConfigs,
    NewTopic,
    TopicName,
)
from state_machines.mqtt import connectors, share_rows
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_duty import AssignConnectors, ConnectorAssignment
from state_machines.mqtt.due import DUE, Due
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import RETAINED, Retained, SetRetained
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.session_life import expire
from state_machines.mqtt.sessions import SESSIONS, TALLIES
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.mqtt.subscription import (
    SUBSCRIPTIONS,
    PutSubscriptions,
    Subscription,
    TopicFilter,
)
from state_machines.mqtt.topic import CreateTopics
from state_machines.mqtt.will import FREE, OF_TENANT, OUTBOX, WILLS, ClaimOutbox, SetWill, Will
from state_machines.offset import activity, history, rows
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.op import Stamp
from state_machines.quota import QUOTAS, USAGES, GroupQuota
from state_machines.slots import SLOTS, Own, SlotRange, slot_of
from state_machines.tables import Tables
from tests.jobs.integrity import KINDS, World, lived

T = "broken"  #: the tenant of what is broken
EPOCH = 10**6  #: of the controller
DAY_S = 86_400
NO_LEASE = 2**40  #: the id of a lease that nobody was granted

BY_OPTION = {"shard_without_topic"}
"""The rules that claim nothing unless an option says so."""

Expected = set[tuple[str, str, tuple[Any, ...]]]


def old_world() -> World:
    """A cluster that has lived, and whose controller has done what was due."""
    world = World({kind: lived(kind, 1, 300) for kind in KINDS})
    mqtt = world["mqtt"]
    members = list(rows_of(world, "mqtt", share_rows.MEMBERS))
    for each in members:
        if mqtt.store.get(SESSIONS.name, (each.tenant, each.client_id)) is None:
            mqtt.run(OpenSession(tenant=each.tenant, client_id=each.client_id, broker="b1"))
    world.later(DAY_S)
    while mqtt.run(Pulse(controller_epoch=EPOCH)).next_due_ms and due_now(world):
        pass
    mqtt.run(ClaimOutbox(broker="b1", limit=1_000))
    for kind in KINDS:
        world[kind].run(ExpireLeases(controller_epoch=EPOCH, limit=10_000, grace_ms=0))
        world[kind].run(ExpireLeases(controller_epoch=EPOCH, limit=10_000, grace_ms=0))
    return world


def due_now(world: World) -> bool:
    return any(row.due_ms <= world.now_ms for row in rows_of(world, "mqtt", DUE))


def rows_of(world: World, kind: str, table: Any) -> Iterator[Any]:
    for _, value in list(world[kind].store.scan(table.name, ())):
        yield table.decode(value)[0]


def session(world: World, client_id: str, *, broker: str = "b9", expiry_s: int = 10**6) -> int:
    opened = world["mqtt"].run(
        OpenSession(tenant=T, client_id=client_id, broker=broker, expiry_s=expiry_s)
    )
    return int(opened.epoch)


def connector(world: World, name: str, broker: str) -> None:
    mqtt = world["mqtt"]
    item = ConnectorItem(name=name, type="file", topic_filter="t")
    mqtt.run(CreateConnectors(tenant=T, items=(item,)))
    row = next(x for x in rows_of(world, "mqtt", connectors.CONNECTORS) if x.name == name)
    given = ConnectorAssignment(tenant=T, name=name, epoch=row.epoch, broker=broker)
    mqtt.run(AssignConnectors(controller_epoch=EPOCH, items=(given,)))


def share(world: World, name: str, client_id: str, broker: str) -> None:
    join = ShareJoin(name=name, client_id=client_id, filter="f")
    world["mqtt"].run(JoinShareGroups(tenant=T, broker=broker, items=(join,)))


def leased(world: World, lease_id: int, topic: str) -> LeasedRow:
    """A retained message on a lease."""
    row = LeasedRow.of(RETAINED, T, topic)
    world["mqtt"].run(SetRetained(tenant=T, topic=topic, payload=b"x"))
    world["mqtt"].run(AttachRows(lease_id=lease_id, rows=(row,)))
    return row


def shown(row: LeasedRow) -> tuple[str, str]:
    """A row as a finding's key has it."""
    return row.table, base64.b64encode(row.key).decode()


def break_sessions(world: World) -> Expected:
    mqtt = world["mqtt"]
    late = session(world, "expired", expiry_s=5)
    mqtt.run(CloseSession(tenant=T, client_id="expired", epoch=late))
    session(world, "ended")  # by a command, so it counts no more
    (row,) = [x for x in rows_of(world, "mqtt", SESSIONS) if x.client_id == "ended"]
    expire(Tables(mqtt.store, mqtt.index), Stamp(mqtt.index, mqtt.now_ms), row)
    timed = session(world, "untimed")
    mqtt.run(CloseSession(tenant=T, client_id="untimed", epoch=timed))
    (row,) = [x for x in rows_of(world, "mqtt", SESSIONS) if x.client_id == "untimed"]
    world.delete("mqtt", DUE, row.expires_ms, "session", T, "untimed")
    world.put("mqtt", DUE, Due(2**50, "retained", T, "never/was"))
    mqtt.run(SetRetained(tenant=T, topic="r", payload=b"x", expiry_s=5))
    world.put("mqtt", SUBSCRIPTIONS, Subscription(T, "ghost", "f", 0, False, False, 0, 1))
    world.put("mqtt", WILLS, Will(T, "ghost", "t", b"", 0, False, 0, 0))
    filters = (TopicFilter(filter="a"),)
    count = session(world, "counted")
    mqtt.run(PutSubscriptions(tenant=T, client_id="counted", epoch=count, filters=filters))
    world.change("mqtt", SESSIONS, T, "counted", subscriptions=5)
    said = session(world, "said")
    mqtt.run(SetWill(tenant=T, client_id="said", epoch=said, topic="t", payload=b"w", expiry_s=5))
    mqtt.run(CloseSession(tenant=T, client_id="said", epoch=said))
    session(world, "stranded", broker="lost")
    late = session(world, "unsaid")
    will = SetWill(tenant=T, client_id="unsaid", epoch=late, topic="t", payload=b"w", delay_s=5)
    mqtt.run(will)
    mqtt.run(CloseSession(tenant=T, client_id="unsaid", epoch=late))
    outbox = max(x.outbox_id for x in rows_of(world, "mqtt", OUTBOX))
    (free_ms,) = {x.free_ms for x in rows_of(world, "mqtt", OUTBOX) if x.outbox_id == outbox}
    world.delete("mqtt", FREE, "", free_ms, outbox)
    world.delete("mqtt", OF_TENANT, T, outbox)
    world.change("mqtt", TALLIES, T, sessions=99)
    return {
        ("session_expired", "mqtt.session", (T, "expired")),
        ("session_expired", "mqtt.session", (T, "ended")),
        ("timer", "mqtt.due", (row.expires_ms, "session", T, "untimed")),
        ("timer", "mqtt.due", (2**50, "retained", T, "never/was")),
        ("retained_expired", "mqtt.retained", (T, "r")),
        ("subscription_without_session", "mqtt.subscription", (T, "ghost", "f")),
        ("will_without_session", "mqtt.will", (T, "ghost")),
        ("session_subscriptions", "mqtt.session", (T, "counted")),
        ("will_overdue", "mqtt.will", (T, "unsaid")),
        ("outbox_expired", "mqtt.outbox", (outbox,)),
        ("outbox_of_tenant", "mqtt.outbox_of_tenant", (T, outbox)),
        ("outbox_free", "mqtt.outbox_free", ("", free_ms, outbox)),
        ("session_on_lost_broker", "mqtt.session", (T, "stranded")),
        ("session_tally", "mqtt.session_tally", (T,)),
    }


def break_connectors(world: World) -> Expected:
    for name, broker in (("k1", "lost"), ("k2", "b7"), ("k3", "b7")):
        connector(world, name, broker)
    world.delete("mqtt", connectors.PLACES, "running", "b7", T, "k2")
    (beat,) = [x for x in rows_of(world, "mqtt", connectors.BEATS) if x.name == "k3"]
    world.delete("mqtt", connectors.BEATS, T, "k3")
    world.change("mqtt", connectors.LOADS, "b7", running=7)
    return {
        ("connector_on_lost_broker", "mqtt.connector", (T, "k1")),
        ("connector_place", "mqtt.connector_place", ("running", "b7", T, "k2")),
        ("connector_beat", "mqtt.connector_beat", (T, "k3")),
        ("connector_check", "mqtt.connector_check", (beat.since_ms, T, "k3")),
        ("connector_load", "mqtt.connector_load", ("b7",)),
    }


def break_shares(world: World) -> Expected:
    session(world, "m")
    for name in ("s1", "s2", "s3", "s4"):
        share(world, name, "m", "b9")
    share(world, "s5", "nobody", "b9")
    share(world, "s6", "m", "lost")
    world.delete("mqtt", share_rows.OF_CLIENT, T, "m", "s1", "f")
    world.delete("mqtt", share_rows.OF_BROKER, "b9", T, "s1", "m", "f")
    world.delete("mqtt", share_rows.LEADS, "b9", T, "s2")
    world.change("mqtt", share_rows.GROUPS, T, "s3", members=4)
    world.change("mqtt", share_rows.BROKERS, T, "b9", members=40)
    world.delete("mqtt", share_rows.GROUPS, T, "s4")
    return {
        ("share_of_client", "mqtt.share_of_client", (T, "m", "s1", "f")),
        ("share_of_broker", "mqtt.share_of_broker", ("b9", T, "s1", "m", "f")),
        ("share_lead", "mqtt.share_lead", ("b9", T, "s2")),
        ("share_group_members", "mqtt.share_group", (T, "s3")),
        ("share_broker", "mqtt.share_broker", (T, "b9")),
        ("share_member_without_session", "mqtt.share_member", (T, "s5", "nobody", "f")),
        ("share_leader_lost", "mqtt.share_group", (T, "s6")),
        # A group that is gone is still found under its leader, and counted as led.
        ("share_group_without_members", "mqtt.share_group", (T, "s4")),
        ("share_lead", "mqtt.share_lead", ("b9", T, "s4")),
        ("share_broker", "mqtt.share_broker", ("", "b9")),
    }


def break_offsets(world: World) -> Expected:
    offset = world["offset"]
    for name, topic in (("g1", "t"), ("g2", "t"), ("g3", "dead")):
        commit = OffsetCommit(group=name, topic=topic, partition=0, offset=7)
        offset.run(CommitOffsets.of([commit], tenant=T))
    (group,) = [
        x for x in rows_of(world, "offset", rows.GROUPS) if (x.tenant, x.group) == (T, "g2")
    ]
    bucket = group.last_commit_ms // rows.BUCKET_MS
    world.delete("offset", activity.ACTIVITY, bucket, T, "g2")
    world.change("offset", rows.GROUPS, T, "g1", partitions=3)
    orphan = rows.StoredOffset(T, "nobody", "t", 0, 1, "", 1, 1, 1)
    world.put("offset", rows.OFFSETS, orphan)
    world.put("offset", history.HISTORY, history.Kept(T, "g1", "t", 0, 5, 1, "", -1, 1, 2))
    fences = next(rows_of(world, "offset", rows.FENCES), rows.Fences(*rows.FENCES_KEY, 0))
    world.put("offset", rows.FENCES, rows.Fences(fences.name, fences.groups + 2))
    new = NewTopic(name="dead", protocol="kafka")
    world["metadata"].run(CreateTopicConfigs(tenant=T, items=(new,)))
    world["metadata"].run(DeleteTopicConfigs(tenant=T, items=(TopicName(name="dead"),)))
    return {
        ("group_activity", "offset.activity", (bucket, T, "g2")),
        ("group_partitions", "offset.group", (T, "g1")),
        ("offset_without_group", "offset.offset", (T, "nobody", "t", 0)),
        ("history_without_offset", "offset.history", (T, "g1", "t", 0, 5)),
        ("fenced_groups", "offset.fences", rows.FENCES_KEY),
        ("offset_of_deleted_topic", "offset.offset", (T, "g3", "dead", 0)),
        ("offset_above_watermark", "offset.offset", (T, "g1", "t", 0)),
        ("offset_above_watermark", "offset.offset", (T, "g2", "t", 0)),
    }


MARKS = [{"tenant": T, "topic": "t", "partition": 0, "high_watermark": 6}]
"""Of the partition where g1 and g2 are at 7."""


def break_engine(world: World) -> Expected:
    metadata = world["metadata"]
    for node in ("x1", "x2", "x3"):
        metadata.run(RegisterNode(node_id=node))
    for name in ("h1", "h2"):
        metadata.run(CreateShards(tenant=T, items=(ShardItem(name=name, nodes=("x1",)),)))
    metadata.run(CreateShards(tenant=T, items=(ShardItem(name="h3", nodes=("x2",)),)))
    both = shards.ShardConfig(replicas=2, min_isr=2)
    item = ShardItem(name="h4", config=both, nodes=("x1", "x3"))
    metadata.run(CreateShards(tenant=T, items=(item,)))
    shard = next(each for each in rows_of(world, "metadata", shards.SHARDS) if each.name == "h4")
    at = {"tenant": T, "shard": "h4", "sequence": 0, "uid": shard.uid}
    alone = IsrChange(**at, leader_epoch=0, segment_epoch=0, isr=("x1",))
    metadata.run(UpdateIsr(node_id="x1", broker_epoch=1, items=(alone,)))
    world.delete("metadata", shards.SHARDS, T, "h1")
    world.delete("metadata", segments.INDEX, "held", "x1", 0, T, "h2", 0)
    world.delete("metadata", segments.INDEX, "under_min_isr", "", 0, T, "h4", 0)
    world.put("metadata", segments.INDEX, segments.SegmentPlace("offline", "", 0, T, "h4", 0))
    world.change("metadata", segments.LOADS, "x2", led=9)
    world.put("metadata", shards.MARKS, shards.ShardMark(T, "h2"))
    world.delete("metadata", EPOCHS, "x2")
    return {
        ("segment_without_shard", "metadata.segment", (T, "h1", 0)),
        ("segment_place", "metadata.segment_place", ("held", "x1", 0, T, "h2", 0)),
        ("segment_place", "metadata.segment_place", ("under_min_isr", "", 0, T, "h4", 0)),
        ("segment_place", "metadata.segment_place", ("offline", "", 0, T, "h4", 0)),
        ("node_load", "metadata.node_load", ("x2",)),
        ("shard_mark", "metadata.shard_mark", (T, "h2")),
        ("segment_replica_unknown", "metadata.segment", (T, "h3", 0)),
    }


def break_common(world: World) -> Expected:
    mqtt = world["mqtt"]
    mqtt.run(CreateTopics(tenant=T, names=("a",)))
    world.change("mqtt", USAGES, T, "topics", count=4)
    one, two = (
        mqtt.run(GrantLeases(items=(LeaseRequest(owner="b", ttl_ms=ttl_ms),)))[0]
        for ttl_ms in (5_000, 10**7)
    )
    world.delete("mqtt", DUES, two.deadline_ms, two.lease_id)
    leased(world, two.lease_id, "seen")
    hidden = leased(world, two.lease_id, "hidden")
    ghost = LeasedRow.of(RETAINED, T, "ghost")
    world.change("mqtt", LEASES, two.lease_id, rows=7)
    world.delete("mqtt", ATTACHED, two.lease_id, hidden.table, hidden.key)
    world.put("mqtt", ATTACHMENTS, Attachment(ghost.table, ghost.key, NO_LEASE, 1, 0))
    world.put("mqtt", ATTACHED, AttachedRow(NO_LEASE, ghost.table, ghost.key))
    world.put("mqtt", QUOTAS, GroupQuota("gone", 1, closed=True, clean=True))
    world.put("mqtt", RETAINED, Retained("gone", "t", b"", 0, 1, 0))
    return {
        ("topic_usage", "group.usage", (T, "topics")),
        ("lease_overdue", "group.lease", (one.lease_id,)),
        ("lease_due", "group.lease_due", (two.deadline_ms, two.lease_id)),
        ("lease_rows", "group.lease", (two.lease_id,)),
        ("lease_row", "group.lease_row", (two.lease_id, *shown(hidden))),
        ("attachment_without_lease", "group.lease_attachment", shown(ghost)),
        ("tenant_leftover", "mqtt.retained", ("gone",)),
    }


def ranges(group: str, but: dict[int, str]) -> tuple[SlotRange, ...]:
    """All slots, those of a group and those of others; of nobody where the name is empty."""
    found, first = [], 0
    for slot in sorted(but):
        found += [SlotRange(first, slot - 1, group), SlotRange(slot, slot, but[slot])]
        first = slot + 1
    found.append(SlotRange(first, SLOTS - 1, group))
    return tuple([each for each in found if each.group and each.first <= each.last])


def break_slots(world: World) -> Expected:
    """One slot has moved and left a row behind; three are moving, and one of three parties is late
    each time: who had the slot, who gets it, the map. A group without a map is told it has none."""
    here, there = world["mqtt"], world.add("mqtt-1")
    left, kept, awaited, unsaid = "left", "kept", "awaited", "unsaid"
    slot = {topic: slot_of((T, topic)) for topic in (left, kept, awaited, unsaid)}
    for topic in slot:
        here.run(SetRetained(tenant=T, topic=topic, payload=b"x"))
    for topic in (kept, unsaid):
        there.run(SetRetained(tenant=T, topic=topic, payload=b"x"))
    by_map = ranges("mqtt-0", dict.fromkeys((slot[left], slot[kept], slot[awaited]), "mqtt-1"))
    world["metadata"].run(AssignSlots(kind="mqtt", expected_version=0, ranges=by_map))
    mine = ranges("mqtt-0", dict.fromkeys((slot[left], slot[awaited], slot[unsaid]), ""))
    theirs = ranges("", dict.fromkeys((slot[left], slot[kept], slot[unsaid]), "mqtt-1"))
    for group, owned in ((here, mine), (there, theirs)):
        group.run(Own(controller_epoch=EPOCH, group_kind="mqtt", version=1, ranges=owned))
    none = world.add("offset-1")
    commit = OffsetCommit(group="astray", topic="u", partition=0, offset=1)
    none.run(CommitOffsets.of([commit], tenant=T))
    none.run(Own(controller_epoch=EPOCH, group_kind="offset", version=1, ranges=()))
    return {
        ("slot_of_another_group", "mqtt.retained", (T, left)),
        ("slot_of_another_group", "offset.group", (T, "astray")),
        ("slot_of_another_group", "offset.offset", (T, "astray", "u", 0)),
    }


BREAKS = (
    *(break_sessions, break_connectors, break_shares, break_offsets, break_engine, break_common),
    break_slots,
)


def broken_world() -> tuple[World, Expected]:
    """A cluster where every rule is broken that needs no option, and by which rows."""
    world = old_world()
    node = world["metadata"].run(RegisterNode(node_id="lost"))
    expected: Expected = set()
    for each in BREAKS:
        expected |= each(world)
    world["metadata"].run(UnregisterNode(node_id="lost", epoch=node.epoch))
    world.later(100)
    return world, expected
