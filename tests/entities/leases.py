"""What tests of leases share: a group with leases, and what has to hold of its rows at any time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from state_machines import op
from state_machines.errors import Invalid
from state_machines.lease import (
    ATTACHED,
    ATTACHMENTS,
    DUES,
    LEASES,
    ExpireLeases,
    GetLease,
    GrantLeases,
    LeaseRequest,
    LeasesExpired,
    LeaseView,
)
from state_machines.lease_rows import AttachRows, LeasedRow
from state_machines.metadata.kv import KV, GetKv, PutKv
from state_machines.tables import Tables
from state_machines.transaction import Transaction
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group

TTL_S = 10
GRACE_S = 4


def row(key: str) -> LeasedRow:
    return LeasedRow.of(KV, "default", key)


def beyond(group: Group, made: Any, field: str) -> None:
    """`Group.beyond` for a field within an item: client, leader and replica each name it."""
    says = f"^{re.escape(field)}: "
    with pytest.raises(Invalid, match=says):
        op.validate(made)
    with pytest.raises(Invalid, match=says):
        group.machine.admit(group.proposal(made))
    with group.refuses(Invalid, says):
        (reply,) = group.entry(group.proposal(made))
        assert reply.results[0].code == api.INVALID
        raise Invalid(reply.results[0].detail)


class Leased(Group):
    """A group, its controller and owners of leases."""

    def __init__(self) -> None:
        super().__init__("metadata")
        self.epoch = 1
        self.expire()  # a controller has been here: nothing is graced any more
        self.later(GRACE_S)

    def grant(self, ttl_s: int = TTL_S) -> int:
        (granted,) = self.run(GrantLeases(items=(LeaseRequest(owner="b", ttl_ms=ttl_s * 1_000),)))
        assert granted.deadline_ms == self.now_ms + ttl_s * 1_000
        return int(granted.lease_id)

    def put(self, lease: int, *keys: str) -> None:
        """Write keys that live as long as the lease."""
        for key in keys:
            attach = AttachRows(lease_id=lease, rows=(row(key),))
            self.run(Transaction.of(then=[PutKv(key=key, value=b"leased"), attach]))

    def expire(self, limit: int = 1_000, back_ms: int = 0) -> LeasesExpired:
        """What the controller does when a lease is due."""
        expire = ExpireLeases(
            controller_epoch=self.epoch, limit=limit, grace_ms=GRACE_S * 1_000, back_ms=back_ms
        )
        done: LeasesExpired = self.run(expire)
        return done

    def there(self, *keys: str) -> list[bool]:
        return [self.ask(GetKv(key=key)) is not None for key in keys]

    def lease(self, lease: int) -> LeaseView:
        found = self.ask(GetLease(lease_id=lease))
        assert isinstance(found, LeaseView), "it is there"
        return found

    def gone(self, lease: int) -> bool:
        return self.ask(GetLease(lease_id=lease)) is None

    def check(self) -> None:
        """Every lease is looked at in time, and counts the rows that say they are its."""
        db = Tables(self.store, 0)
        leases = {lease.lease_id: lease for _, lease, _ in db.scan(LEASES)}
        dues = {(due.lease_id, due.due_ms) for _, due, _ in db.scan(DUES)}
        assert dues == {(lease.lease_id, lease.due_ms) for lease in leases.values()}
        assert all(lease.due_ms <= lease.deadline_ms for lease in leases.values())
        held = [each for _, each, _ in db.scan(ATTACHED)]
        for lease in leases.values():
            assert lease.rows == sum(each.lease_id == lease.lease_id for each in held)
        assert {(each.lease_id, each.table, each.key) for each in held} == {
            (each.lease_id, each.table, each.key) for _, each, _ in db.scan(ATTACHMENTS)
        }
