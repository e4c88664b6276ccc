"""How rows of `metadata` groups come back from a backup: see `state_machines.restoring`.

Schemas and shards have files of their own (`restore_schemas`, `restore_shards`). Revisions are the
live group's. A topic that is there keeps its id; one that is not gets the backup's back, because
that is what brokers know it by. A tenant comes back active: a deletion that was under way when the
backup was taken is for its operator to begin again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from state_machines import names, quota, restoring
from state_machines.errors import Conflict, Invalid, QuotaExceeded
from state_machines.metadata import kv, node, node_event, slot_map, timestamp, topic
from state_machines.metadata.advice import ADVICE
from state_machines.metadata.config import (
    CLUSTER,
    CONFIGS,
    TENANT,
    Config,
    ConfigValue,
    SetConfigs,
    check_scope,
)
from state_machines.metadata.duty import PAUSES, PAUSES_MAX, Pause, PauseDuty
from state_machines.metadata.kv import KV, Kv, PutKv, put_pair
from state_machines.metadata.node import EPOCHS, NodeEpoch
from state_machines.metadata.revisions import REVISION_FLOOR, next_revision
from state_machines.metadata.schedule import SCHEDULES, SCHEDULES_MAX, PutSchedule, Schedule
from state_machines.metadata.subscription_group import (
    SUBSCRIPTION_GROUPS,
    CreateSubscriptionGroups,
    NewSubscriptionGroup,
    SubscriptionGroup,
)
from state_machines.metadata.tenant import (
    ACTIVE,
    DELETING,
    TENANTS,
    CreateTenants,
    NewTenant,
    Tenant,
)
from state_machines.metadata.timestamp import TIMESTAMPS, LastTimestamp
from state_machines.metadata.topic import (
    QUEUES_MAX,
    TOPIC_CONFIGS,
    CreateTopicConfigs,
    NewTopic,
    TopicConfig,
)
from state_machines.op import Stamp, command
from state_machines.restoring import Remove, Restore, left_out, restorer
from state_machines.settings import SETTINGS
from state_machines.tables import Tables

TENANT_RANK: Final = -1  #: before what belongs to it

left_out("who lives is for the brokers to say", node.NODES)
left_out("news of nodes, and they are old", node_event.EVENTS, node_event.COUNTER)
left_out("made from the pairs", kv.FLOORS)
left_out("of what is gone here", REVISION_FLOOR)
left_out("it spoke of a load that is gone", ADVICE)
left_out("where rows live is this cluster's own", slot_map.SLOT_MAPS)


@command("metadata.rows.restore")
class RestoreMetadata(Restore):
    """Put rows of a backup into `metadata` groups."""

    of_kind: ClassVar[str] = "metadata"
    table: str
    rows: tuple[bytes, ...]
    replace: bool = True


@command("metadata.rows.remove")
class RemoveMetadata(Remove):
    """Take rows from `metadata` groups that a backup does not have."""

    of_kind: ClassVar[str] = "metadata"
    table: str
    keys: tuple[bytes, ...]


# -- settings -------------------------------------------------------------------------------------


def _check_config(row: Config) -> None:
    known = SETTINGS.get(row.key)
    if known is None or (row.scope != CLUSTER and not known.per_tenant):
        check_scope(row.scope)  # of an earlier version: whoever reads settings passes it over
        names.name(row.key, "key")
        return
    item = ConfigValue(scope=row.scope, key=row.key, number=row.number, text=row.text)
    SetConfigs(items=(item,)).validate()


def _config_tenant(row: Config) -> str:
    return row.scope[len(TENANT) :] if row.scope.startswith(TENANT) else ""


def _config_into(row: Config, tenant: str) -> Config:
    return row if row.scope == CLUSTER else replace(row, scope=f"{TENANT}{tenant}")


@restorer(
    CONFIGS,
    check=_check_config,
    plain=lambda row: replace(row, revision=0),
    tenant=_config_tenant,
    into=_config_into,
)
def _config(db: Tables, at: Stamp, before: Config | None, row: Config) -> None:
    revision = next_revision(db, before.revision if before is not None else 0)
    db.put(CONFIGS, replace(row, revision=int(revision)))


def _check_pause(row: Pause) -> None:
    PauseDuty(duty=row.duty, by=row.by, reason=row.reason).validate()


@restorer(PAUSES, check=_check_pause, ends_ms=lambda row: row.until_ms)
def _pause(db: Tables, at: Stamp, before: Pause | None, row: Pause) -> None:
    if before is None and sum(1 for _ in db.scan(PAUSES)) >= PAUSES_MAX:
        raise QuotaExceeded(f"duty: {PAUSES_MAX} are paused, the limit")
    db.put(PAUSES, row)


def _check_schedule(row: Schedule) -> None:
    PutSchedule(
        name=row.name,
        job=row.job,
        every_ms=row.every_ms,
        out=row.out,
        options=row.options,
        inputs=row.inputs,
        history=row.history,
        timeout_ms=row.timeout_ms,
    ).validate()


def _plain_schedule(row: Schedule) -> Schedule:
    """What is wanted; not what came of it."""
    return replace(
        row,
        next_ms=0,
        run="",
        begun_ms=0,
        last_run="",
        last_outcome="",
        last_detail="",
        last_begun_ms=0,
        last_ended_ms=0,
        runs=0,
        revision=0,
    )


@restorer(SCHEDULES, check=_check_schedule, plain=_plain_schedule)
def _schedule(db: Tables, at: Stamp, before: Schedule | None, row: Schedule) -> None:
    if before is None and sum(1 for _ in db.scan(SCHEDULES)) >= SCHEDULES_MAX:
        raise QuotaExceeded(f"name: there are {SCHEDULES_MAX} schedules, the limit")
    now = replace(
        before or _plain_schedule(row),  # a run that is under way goes on
        job=row.job,
        every_ms=row.every_ms,
        out=row.out,
        options=row.options,
        inputs=row.inputs,
        history=row.history,
        timeout_ms=row.timeout_ms,
        enabled=row.enabled,
        created_ms=row.created_ms,
    )
    revision = next_revision(db, now.revision)
    db.put(SCHEDULES, replace(now, next_ms=now.next_ms or at.now_ms, revision=int(revision)))


# -- pairs ----------------------------------------------------------------------------------------


def _check_pair(row: Kv) -> None:
    PutKv(tenant=row.tenant, key=row.key, value=row.value).validate()


@restorer(KV, check=_check_pair, plain=lambda row: replace(row, revision=0))
def _pair(db: Tables, at: Stamp, before: Kv | None, row: Kv) -> None:
    put_pair(db, at, row.tenant, row.key, row.value, None)


# -- nodes ----------------------------------------------------------------------------------------


def _check_epoch(row: NodeEpoch) -> None:
    names.name(row.node_id, "node_id")
    restoring.count(row.epoch, "epoch")


@restorer(EPOCHS, check=_check_epoch, floors=("epoch",), stays=True)
def _epoch(db: Tables, at: Stamp, before: NodeEpoch | None, row: NodeEpoch) -> None:
    db.put(EPOCHS, row)  # higher than the one that is there, or `equal` had left it


# -- timestamps -----------------------------------------------------------------------------------


def _check_timestamp(row: LastTimestamp) -> None:
    names.one_of(row.name, "name", (timestamp.NAME,))
    restoring.count(row.last, "last")


@restorer(TIMESTAMPS, check=_check_timestamp, floors=("last",), stays=True)
def _timestamp(db: Tables, at: Stamp, before: LastTimestamp | None, row: LastTimestamp) -> None:
    db.put(TIMESTAMPS, row)  # higher than the one that is there, or `equal` had left it


# -- consumer groups ------------------------------------------------------------------------------


def _check_group(row: SubscriptionGroup) -> None:
    item = NewSubscriptionGroup(
        group=row.group,
        protocol=row.protocol,
        retry_queues=row.retry_queues,
        max_retries=row.max_retries,
        attributes=row.attributes,
    )
    CreateSubscriptionGroups(tenant=row.tenant, items=(item,)).validate()


@restorer(
    SUBSCRIPTION_GROUPS,
    check=_check_group,
    plain=lambda row: replace(row, revision=0),
    consumers="group",
)
def _group(db: Tables, at: Stamp, before: SubscriptionGroup | None, row: SubscriptionGroup) -> None:
    revision = next_revision(db, before.revision if before is not None else 0)
    db.put(SUBSCRIPTION_GROUPS, replace(row, revision=int(revision)))


# -- tenants --------------------------------------------------------------------------------------


def _check_tenant(row: Tenant) -> None:
    item = NewTenant(name=row.name, description=row.description, quotas=row.quotas)
    CreateTenants(items=(item,)).validate()
    restoring.check_word(row.state, "state", (ACTIVE, DELETING))


def _plain_tenant(row: Tenant) -> Tenant:
    return replace(row, state=ACTIVE, revision=0, step="", purged=0)


@restorer(
    TENANTS,
    check=_check_tenant,
    rank=TENANT_RANK,
    plain=_plain_tenant,
    tenant=lambda row: row.name,
    into=lambda row, tenant: replace(row, name=tenant),
)
def _tenant(db: Tables, at: Stamp, before: Tenant | None, row: Tenant) -> None:
    if before is not None and before.state == DELETING:
        raise Conflict(f"name: tenant {row.name!r} is being deleted")
    revision = next_revision(db, before.revision if before is not None else 0)
    db.put(TENANTS, replace(_plain_tenant(row), revision=int(revision)))


# -- topics ---------------------------------------------------------------------------------------


def _check_topic(row: TopicConfig) -> None:
    item = NewTopic(
        name=row.name,
        protocol=row.protocol,
        read_queues=row.read_queues,
        write_queues=row.write_queues,
        replication=row.replication,
        permissions=row.permissions,
        attributes=row.attributes,
    )
    CreateTopicConfigs(tenant=row.tenant, items=(item,)).validate()
    most = max(row.read_queues, row.write_queues)
    restoring.count(row.queues_high, "queues_high", most, QUEUES_MAX)
    names.positive(row.topic_id, "topic_id")
    restoring.check_word(row.state, "state", (topic.ACTIVE, topic.DELETING))
    if row.attributes != tuple(sorted(row.attributes, key=lambda each: each.name)):
        raise Invalid("attributes: they are in the order of their names")


@restorer(
    TOPIC_CONFIGS,
    check=_check_topic,
    plain=lambda row: replace(row, topic_id=0, revision=0),
    floors=("queues_high",),
    into=lambda row, tenant: replace(row, tenant=tenant, topic_id=0),  # another topic
    topic="name",
)
def _topic(db: Tables, at: Stamp, before: TopicConfig | None, row: TopicConfig) -> None:
    if before is None:
        quota.add(db, row.tenant, quota.TOPICS, 1)
        before = replace(row, topic_id=row.topic_id or db.unique(), revision=0)
    db.put(
        TOPIC_CONFIGS,
        replace(
            row,
            topic_id=before.topic_id,
            queues_high=max(before.queues_high, row.queues_high),
            revision=int(next_revision(db, before.revision)),
        ),
    )
