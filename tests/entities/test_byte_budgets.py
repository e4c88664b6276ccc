"""What goes may be large: a command takes so many bytes away, whatever its own size."""

from __future__ import annotations

from state_machines.batch import OK, Outcome
from state_machines.budgets import BYTES_TAKEN_MAX
from state_machines.lease import RevokeLeases
from state_machines.lease_rows import AttachRows
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.metadata.kv import PutKv
from state_machines.metadata.kv_batch import DeleteAllKv, KvKey
from state_machines.metadata.tenant_purge import PurgeMetadata
from state_machines.mqtt.retained import (
    DeleteAllRetained,
    RetainedItem,
    SetAllRetained,
    SetRetained,
)
from state_machines.quota import GroupQuota, SetQuotas
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
