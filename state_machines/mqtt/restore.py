"""How rows of `mqtt` groups come back from a backup: see `state_machines.restoring`.

Sessions and what hangs on them have a file of their own (`restore_sessions`). Rules are counted and
messages that end get their timers, as the commands that put them do it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from state_machines import names, quota, restoring
from state_machines.errors import Invalid
from state_machines.mqtt import acl, auto_subscribe, blacklist, due, rewrite, tallies, will
from state_machines.mqtt.acl import ACLS, AclItem, AclRule, PutAcls
from state_machines.mqtt.auto_subscribe import (
    AUTO_SUBSCRIBE,
    AutoSubscribeItem,
    AutoSubscribeRule,
    PutAutoSubscribe,
)
from state_machines.mqtt.blacklist import BLACKLIST, BarItem, Barred, PutBlacklist
from state_machines.mqtt.connector import ConnectorItem, CreateConnectors
from state_machines.mqtt.connector_duty import REASON_BYTES_MAX
from state_machines.mqtt.connectors import (
    BEATS,
    CHECKS,
    CONNECTORS,
    FAILED,
    IDLE,
    LOADS,
    PLACES,
    RUNNING,
    STATUSES,
    Connector,
    put_connector,
)
from state_machines.mqtt.retained import RETAINED, Retained, SetRetained
from state_machines.mqtt.rewrite import REWRITES, PutRewrites, RewriteItem, RewriteRule
from state_machines.mqtt.topic import TOPICS, CreateTopics, Topic
from state_machines.mqtt.user import USERS, CreateUsers, NewUser, User
from state_machines.mqtt.will import COUNTER, OutboxCounter
from state_machines.op import Stamp, command
from state_machines.restoring import Remove, Restore, left_out, restorer
from state_machines.tables import Tables

left_out("made from what is due", due.DUE)
left_out("made from the rules", tallies.RULE_TALLIES)
left_out("made from the connectors", PLACES, LOADS)
left_out("which broker runs a connector is for the controller to say", BEATS, CHECKS)
left_out(
    "wills on their way to brokers: they would be said twice",
    *(will.OUTBOX, will.OF_TENANT, will.FREE),
)


@command("mqtt.rows.restore")
class RestoreMqtt(Restore):
    """Put rows of a backup into `mqtt` groups."""

    of_kind: ClassVar[str] = "mqtt"
    table: str
    rows: tuple[bytes, ...]
    replace: bool = True


@command("mqtt.rows.remove")
class RemoveMqtt(Remove):
    """Take rows from `mqtt` groups that a backup does not have."""

    of_kind: ClassVar[str] = "mqtt"
    table: str
    keys: tuple[bytes, ...]


# -- users and topics -----------------------------------------------------------------------------


def _check_user(row: User) -> None:
    item = NewUser(username=row.username, verifier=row.verifier)
    CreateUsers(tenant=row.tenant, items=(item,)).validate()


@restorer(USERS, check=_check_user)
def _user(db: Tables, at: Stamp, before: User | None, row: User) -> None:
    db.put(USERS, row)


def _check_topic(row: Topic) -> None:
    CreateTopics(tenant=row.tenant, names=(row.name,), partitions=row.partitions).validate()


@restorer(TOPICS, check=_check_topic, floors=("partitions",), topic="name")
def _topic(db: Tables, at: Stamp, before: Topic | None, row: Topic) -> None:
    if before is None:
        quota.add(db, row.tenant, quota.TOPICS, 1)
    most = max(row.partitions, before.partitions if before is not None else 0)
    db.put(TOPICS, replace(row, partitions=most))


# -- rules ----------------------------------------------------------------------------------------


def _check_acl(row: AclRule) -> None:
    item = AclItem(
        resource_type=row.resource_type,
        resource=row.resource,
        name=row.name,
        filter=row.filter,
        permission=row.permission,
        ip=row.ip,
        action=row.action,
        description=row.description,
    )
    PutAcls(tenant=row.tenant, items=(item,)).validate()


@restorer(ACLS, check=_check_acl)
def _acl(db: Tables, at: Stamp, before: AclRule | None, row: AclRule) -> None:
    if before is None:
        kind = f"{acl.TALLY}.{row.resource_type}"
        tallies.add(db, row.tenant, kind, row.resource, acl.RULES_MAX)
    db.put(ACLS, row)


def _check_auto_subscribe(row: AutoSubscribeRule) -> None:
    item = AutoSubscribeItem(
        name=row.name, filter=row.filter, qos=row.qos, retain_handling=row.retain_handling
    )
    PutAutoSubscribe(tenant=row.tenant, items=(item,)).validate()


@restorer(AUTO_SUBSCRIBE, check=_check_auto_subscribe)
def _auto_subscribe(
    db: Tables, at: Stamp, before: AutoSubscribeRule | None, row: AutoSubscribeRule
) -> None:
    if before is None:
        tallies.add(db, row.tenant, auto_subscribe.TALLY, "", auto_subscribe.RULES_MAX)
    db.put(AUTO_SUBSCRIBE, row)


def _check_rewrite(row: RewriteRule) -> None:
    item = RewriteItem(
        name=row.name,
        source=row.source,
        dest=row.dest,
        action=row.action,
        priority=row.priority,
    )
    PutRewrites(tenant=row.tenant, items=(item,)).validate()


@restorer(REWRITES, check=_check_rewrite)
def _rewrite(db: Tables, at: Stamp, before: RewriteRule | None, row: RewriteRule) -> None:
    if before is None:
        tallies.add(db, row.tenant, rewrite.TALLY, "", rewrite.RULES_MAX)
    db.put(REWRITES, row)


def _check_barred(row: Barred) -> None:
    item = BarItem(
        type=row.type,
        resource=row.resource,
        name=row.name,
        end_ms=row.end_ms,
        description=row.description,
    )
    PutBlacklist(tenant=row.tenant, items=(item,)).validate()
    if row.type == blacklist.IP and row.resource != blacklist.plain_address(row.resource):
        raise Invalid(f"resource: {row.resource!r} is not the one spelling of an address")


@restorer(BLACKLIST, check=_check_barred, ends_ms=lambda row: row.end_ms)
def _barred(db: Tables, at: Stamp, before: Barred | None, row: Barred) -> None:
    name = blacklist.timer_name(row)
    if before is not None:
        due.disarm(db, before.end_ms, due.BLACKLIST, row.tenant, name)
    elif row.type in blacklist.PATTERNS:
        tallies.add(db, row.tenant, blacklist.TALLY, row.type, blacklist.PATTERNS_MAX)
    db.put(BLACKLIST, row)
    if row.end_ms:
        due.arm(db, row.end_ms, due.BLACKLIST, row.tenant, name)


# -- messages -------------------------------------------------------------------------------------


def _check_retained(row: Retained) -> None:
    SetRetained(
        tenant=row.tenant,
        topic=row.topic,
        payload=row.payload,
        qos=row.qos,
        properties=row.properties,
    ).validate()
    names.positive(row.expires_ms, "expires_ms")
    if not row.payload:
        raise Invalid("payload: empty")


@restorer(RETAINED, check=_check_retained, ends_ms=lambda row: row.expires_ms, topic="topic")
def _retained(db: Tables, at: Stamp, before: Retained | None, row: Retained) -> None:
    if before is not None:
        due.disarm(db, before.expires_ms, due.RETAINED, row.tenant, row.topic)
    db.put(RETAINED, row)
    if row.expires_ms:
        due.arm(db, row.expires_ms, due.RETAINED, row.tenant, row.topic)


def _check_counter(row: OutboxCounter) -> None:
    restoring.check_word(row.name, "name", (will.OUTBOX_NAME,))
    restoring.count(row.last, "last")


@restorer(COUNTER, check=_check_counter, floors=("last",), local=True, stays=True)
def _counter(db: Tables, at: Stamp, before: OutboxCounter | None, row: OutboxCounter) -> None:
    db.put(COUNTER, row)  # higher than the one that is there, or `equal` had left it


# -- connectors -----------------------------------------------------------------------------------


def _check_connector(row: Connector) -> None:
    item = ConnectorItem(
        name=row.name,
        type=row.type,
        config=row.config,
        topic_filter=row.topic_filter,
        failure=row.failure,
    )
    CreateConnectors(tenant=row.tenant, items=(item,)).validate()
    restoring.check_word(row.status, "status", STATUSES)
    names.name(row.reason, "reason", REASON_BYTES_MAX, empty=True)


def _wanted(row: Connector) -> Connector:
    """One that ran waits for a broker."""
    status = IDLE if row.status == RUNNING else row.status
    return replace(row, status=status, broker="", reason=row.reason if status == FAILED else "")


@restorer(
    CONNECTORS,
    check=_check_connector,
    plain=lambda row: replace(_wanted(row), epoch=0, updated_ms=0),
)
def _connector(db: Tables, at: Stamp, before: Connector | None, row: Connector) -> None:
    epoch = db.unique() if before is None else before.epoch + 1
    put_connector(db, before, replace(_wanted(row), epoch=epoch))
