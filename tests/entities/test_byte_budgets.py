"""What goes may be large: a command takes so many bytes away, whatever its own size."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines import op, row_key, transaction
from state_machines.batch import OK, Outcome
from state_machines.budgets import BYTES_TAKEN_MAX
from state_machines.errors import QuotaExceeded
from state_machines.lease import RevokeLeases
from state_machines.lease_rows import AttachRows
from state_machines.limits import MQTT_STRING_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import DeleteKv, PutKv
from state_machines.metadata.kv_batch import DeleteAllKv, KvKey
from state_machines.metadata.schema import (
    DeleteSchemas,
    DeleteSchemaVersions,
    PutSchemas,
    SchemaNumber,
    SchemaPut,
)
from state_machines.metadata.schemas import SCHEMA_BYTES_MAX
from state_machines.metadata.tenant_purge import PurgeMetadata
from state_machines.mqtt.acl import AclItem, AclKey, DeleteAcls, PutAcls
from state_machines.mqtt.auto_subscribe import (
    AutoSubscribeItem,
    DeleteAutoSubscribe,
    PutAutoSubscribe,
)
from state_machines.mqtt.connector import (
    ConnectorItem,
    CreateConnectors,
    DeleteConnectors,
    StopConnectors,
)
from state_machines.mqtt.connector_duty import (
    AssignConnectors,
    ConnectorAssignment,
    ExpireConnectors,
    ReleaseConnectors,
)
from state_machines.mqtt.connector_queries import GetConnector
from state_machines.mqtt.restore import RemoveMqtt
from state_machines.mqtt.retained import (
    DeleteAllRetained,
    RetainedItem,
    SetAllRetained,
    SetRetained,
)
from state_machines.mqtt.rewrite import DeleteRewrites, PutRewrites, RewriteItem
from state_machines.quota import GroupQuota, SetQuotas
from state_machines.transaction import Transaction
from tests.entities.group import Group
from tests.entities.leases import TTL_S, Leased, row
from tests.machine.derived import check

LARGE = bytes(VALUE_BYTES_MAX)
KEYS = tuple("abcdef")
FIRST, REST = KEYS[:4], KEYS[4:]  #: what one command takes, and what it leaves
assert len(FIRST) * len(LARGE) == BYTES_TAKEN_MAX


def codes(outcomes: tuple[Outcome, ...]) -> list[str]:
    return [each.code for each in outcomes]


def test_pairs_that_are_too_large_for_a_command_are_asked_for_again() -> None:
    group = Group("metadata")
    for key in KEYS:
        group.run(PutKv(key=key, value=LARGE))
    done = group.run(DeleteAllKv(items=tuple([KvKey(key=key) for key in KEYS])))
    assert codes(done) == [OK] * 4 + ["QUOTA_EXCEEDED"] * 2
    assert done[4].detail == "items: too much for one command goes before it, ask again"
    assert group.rows("metadata.kv") == 2
    assert codes(group.run(DeleteAllKv(items=tuple([KvKey(key=key) for key in REST])))) == [OK] * 2


def test_pairs_that_are_too_large_for_a_transaction_are_asked_for_again() -> None:
    """Its steps count together: what they take away is kept until all are done."""
    group = Group("metadata")
    for key in KEYS:
        group.run(PutKv(key=key, value=LARGE))
    steps = [DeleteAllKv(items=tuple([KvKey(key=key) for key in some])) for some in ("abc", "def")]
    made = Transaction.of(then=steps)
    first, then = made.answers(group.run(made)).replies
    assert codes((*first, *then)) == [OK] * 4 + ["QUOTA_EXCEEDED"] * 2
    assert group.rows("metadata.kv") == 2


@pytest.mark.parametrize(("limit", "most"), [("TAKEN_BYTES_MAX", 2_900), ("CHANGED_ROWS_MAX", 2)])
def test_a_transaction_whose_steps_change_too_much_is_refused_whole(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    group = Group("metadata")
    for key in KEYS:
        group.run(PutKv(key=key, value=bytes(1_000)))
    monkeypatch.setattr(
        transaction, limit, {"TAKEN_BYTES_MAX": 2_900, "CHANGED_ROWS_MAX": 2}[limit]
    )
    steps = [DeleteKv(key=key) for key in KEYS]
    with group.refuses(QuotaExceeded, r"^then\[3\]: too much for one transaction goes before it"):
        group.run(Transaction.of(then=steps))
    group.run(Transaction.of(then=steps[:3]))
    group.run(Transaction.of(then=steps[3:]))
    assert group.rows("metadata.kv") == 0


def test_messages_that_are_too_large_for_a_command_are_asked_for_again() -> None:
    group = Group("mqtt")
    for topic in KEYS:
        group.run(SetRetained(topic=topic, payload=LARGE, expiry_s=60))
    assert codes(group.run(DeleteAllRetained(topics=KEYS))) == [OK] * 4 + ["QUOTA_EXCEEDED"] * 2
    assert group.rows("mqtt.retained") == 2
    assert codes(group.run(DeleteAllRetained(topics=REST))) == [OK] * 2
    check("mqtt", group.store)


def test_messages_that_replace_too_much_are_asked_for_again() -> None:
    group = Group("mqtt")
    for topic in KEYS:
        group.run(SetRetained(topic=topic, payload=LARGE, expiry_s=60))
    items = tuple([RetainedItem(topic=topic, payload=b"small") for topic in KEYS])
    assert codes(group.run(SetAllRetained(items=items))) == [OK] * 4 + ["QUOTA_EXCEEDED"] * 2
    assert codes(group.run(SetAllRetained(items=items))) == [OK] * 6, "the small ones cost little"
    check("mqtt", group.store)


def test_a_purge_stops_at_its_bytes() -> None:
    group = Group("metadata")
    for key in KEYS:
        group.run(PutKv(tenant="acme", key=key, value=LARGE))
    group.run(SetQuotas(controller_epoch=1, items=(GroupQuota("acme", 1, closed=True),)))
    command = PurgeMetadata(controller_epoch=1, tenant="acme")
    assert group.run(command).left
    assert group.rows("metadata.kv") == 2
    assert not group.run(command).left
    assert group.rows("metadata.kv") == 0


def test_leases_end_so_many_bytes_a_command() -> None:
    group = Leased()
    one, other = group.grant(), group.grant()
    for lease, keys in ((one, KEYS), (other, tuple("uvwxyz"))):
        for key in keys:
            group.run(PutKv(key=key, value=LARGE))
            group.run(AttachRows(lease_id=lease, rows=(row(key),)))
    group.later(TTL_S)
    done = group.expire()
    assert (done.leases, done.rows, done.next_due_ms) == (0, 4, group.now_ms)
    group.check()
    done = group.expire()
    assert (done.leases, done.rows, done.next_due_ms) == (1, 4, group.now_ms)
    done = group.expire()
    assert (done.leases, done.rows, done.next_due_ms) == (1, 4, 0)
    group.check()


def test_leases_that_are_revoked_with_too_much_are_over_and_end_later() -> None:
    group = Leased()
    lease = group.grant()
    for key in KEYS:
        group.run(PutKv(key=key, value=LARGE))
        group.run(AttachRows(lease_id=lease, rows=(row(key),)))
    (outcome,) = group.run(RevokeLeases(items=(lease,)))
    assert (outcome.code, outcome.detail) == (OK, "2 rows are left")
    assert group.expire().rows == 2
    group.check()


FILTER = "f" * MQTT_STRING_BYTES_MAX
MANY = tuple(f"n{number}" for number in range(100))
"""So many rows of a filter each are more than one command takes."""


def rules(group: Group) -> Any:
    items = [
        AclItem(resource_type="user", resource="u", name=each, filter=FILTER, permission="allow")
        for each in MANY
    ]
    _in_parts(group, lambda some: PutAcls(items=some), items)
    keys = tuple(AclKey(resource_type="user", resource="u", name=each) for each in MANY)
    return DeleteAcls(items=keys)


def connectors(group: Group) -> None:
    items = [ConnectorItem(name=each, type="kafka", topic_filter=FILTER) for each in MANY]
    _in_parts(group, lambda some: CreateConnectors(items=some), items)


def stopped(group: Group) -> Any:
    connectors(group)
    return StopConnectors(names=MANY)


def deleted(group: Group) -> Any:
    connectors(group)
    return DeleteConnectors(names=MANY)


def assigned(group: Group) -> Any:
    connectors(group)
    found = [group.ask(GetConnector(name=each)) for each in MANY]
    return AssignConnectors(
        controller_epoch=1,
        items=tuple(ConnectorAssignment(name=x.name, epoch=x.epoch, broker="b") for x in found),
    )


def subscribed(group: Group) -> Any:
    items = [AutoSubscribeItem(name=each, filter=FILTER) for each in MANY]
    _in_parts(group, lambda some: PutAutoSubscribe(items=some), items)
    return DeleteAutoSubscribe(names=MANY)


def rewritten(group: Group) -> Any:
    items = [RewriteItem(name=each, source=FILTER, dest=FILTER) for each in MANY]
    _in_parts(group, lambda some: PutRewrites(items=some), items)
    return DeleteRewrites(names=MANY)


def versions(group: Group) -> Any:
    for number in range(len(MANY) + 1):
        text = f"{number:0{SCHEMA_BYTES_MAX}}"
        put = SchemaPut(name="s", type="json", text=text, expected_version=number)
        assert group.run(PutSchemas(items=(put,)))[0].ok
    items = tuple(SchemaNumber(name="s", version=each + 1) for each in range(len(MANY)))
    return DeleteSchemaVersions(items=items)


def schemas(group: Group) -> Any:
    for name in MANY:
        put = SchemaPut(name=name, type="json", text="x" * SCHEMA_BYTES_MAX, expected_version=0)
        assert group.run(PutSchemas(items=(put,)))[0].ok
    return DeleteSchemas(names=MANY)


def restored(group: Group) -> Any:
    rules(group)
    keys = [row_key.pack(("default", "user", "u", each)) for each in MANY]
    return RemoveMqtt(table="mqtt.acl", keys=tuple(keys))


@pytest.mark.parametrize("way", ["silent", "gone"])
def test_connectors_are_taken_back_so_many_bytes_a_command(way: str) -> None:
    group = Group("mqtt")
    left = assigned(group)
    while left.items:
        said = codes(group.run(left))
        left = left.select([place for place, code in enumerate(said) if code != OK])
    group.later(60)
    if way == "silent":
        command: Any = ExpireConnectors(controller_epoch=1)
    else:
        command = ReleaseConnectors(controller_epoch=1, broker="b")
    taken = [group.run(command) for _ in range(3)]
    assert taken == [64, len(MANY) - 64, 0]
    check("mqtt", group.store)


def _in_parts(group: Group, make: Any, items: list[Any]) -> None:
    for start in range(0, len(items), 20):
        assert all(each.ok for each in group.run(make(tuple(items[start : start + 20]))))


def asked_for_again(kind: str, wanted: Any, count: int, limit: int) -> None:
    """All items of the command that is wanted are done, about `limit` bytes of rows at a time."""
    group = Group(kind)
    command = wanted(group)
    left, rounds = [*range(count)], 0
    while left:
        part = command.select(left)
        op.validate(part)
        said = codes(group.run(part))
        done = said.count(OK)
        assert said == [OK] * done + ["QUOTA_EXCEEDED"] * (len(said) - done)
        assert 0 < done * MQTT_STRING_BYTES_MAX < limit + 2 * MQTT_STRING_BYTES_MAX
        left, rounds = left[done:], rounds + 1
    assert rounds > 1
    check(kind, group.store)


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        *(("mqtt", each) for each in (rules, stopped, deleted, assigned, subscribed, rewritten)),
        *(("mqtt", restored), ("metadata", versions), ("metadata", schemas)),
    ],
)
def test_rows_that_are_named_are_asked_for_again(kind: str, wanted: Any) -> None:
    asked_for_again(kind, wanted, len(MANY), BYTES_TAKEN_MAX)
