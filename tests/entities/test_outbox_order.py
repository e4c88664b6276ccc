"""Fired wills are claimed in the order in which they fired, on every replica the same (law 7).

Those of one tenant never wait behind those of another.
"""

from __future__ import annotations

import pytest

from state_machines.mqtt import will
from state_machines.mqtt.session import SaveSessions, SessionItem
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.tenant_purge import PurgeMqtt
from state_machines.mqtt.will import (
    CLAIM_SCAN_MAX,
    AckOutbox,
    ClaimOutbox,
    OutboxState,
    PendingOutbox,
)
from state_machines.mqtt.will_batch import SetWills, WillItem
from state_machines.quota import GroupQuota, SetQuotas
from tests.entities.test_session_life import Fleet, claim, fired
from tests.machine import derived
from tests.machine.alone import NOW_MS

WILLS = 40  #: a set of so many would have to be very lucky


def test_many_wills_are_claimed_in_the_order_in_which_they_fired() -> None:
    fleet = Fleet()
    fired(fleet, WILLS)
    assert claim(fleet, "b1") == [f"c{number}" for number in range(WILLS)]


def die(fleet: Fleet, tenant: str, count: int) -> None:
    """Wills of so many clients of a tenant fire."""
    ids = [f"c{number}" for number in range(count)]
    items = tuple(SessionItem(client_id=each, broker=tenant, expiry_s=60) for each in ids)
    opened = fleet.run(SaveSessions(tenant=tenant, sessions=items))
    held = [(each.client_id, each.epoch) for each in opened]
    last = tuple(WillItem(client_id=who, epoch=at, topic="w", payload=b"x") for who, at in held)
    fleet.run(SetWills(tenant=tenant, items=last))
    lost = tuple(LostSession(client_id=who, epoch=at) for who, at in held)
    fleet.run(CloseSessions(tenant=tenant, items=lost))


def claimed(fleet: Fleet, tenant: str, limit: int = 100) -> list[int]:
    found = fleet.run(ClaimOutbox(broker=tenant, tenant=tenant, limit=limit))
    return [each.outbox_id for each in found]


def test_wills_of_a_tenant_that_no_broker_claims_stop_nobody_elses() -> None:
    fleet = Fleet()
    die(fleet, "gone", CLAIM_SCAN_MAX)
    assert fleet.ask(PendingOutbox(tenant="alive")) == OutboxState(0, 0)
    fleet.now_ms += 1
    die(fleet, "alive", 3)
    assert fleet.ask(PendingOutbox(tenant="alive")) == OutboxState(3, fleet.now_ms)
    assert fleet.ask(PendingOutbox()).waiting == CLAIM_SCAN_MAX + 3
    assert claimed(fleet, "alive") == [CLAIM_SCAN_MAX + each for each in (1, 2, 3)]


@pytest.mark.parametrize("older", [2, 5])
def test_wills_that_fired_before_they_were_found_by_tenant_are_claimed_first(older: int) -> None:
    fleet = Fleet()
    die(fleet, "other", 1)
    die(fleet, "mine", older)
    for tenant, number in [("other", 1), *(("mine", 2 + each) for each in range(older))]:
        fleet.store.delete(will.OF_TENANT.name, (tenant, number))
    die(fleet, "mine", 2)
    assert fleet.ask(PendingOutbox(tenant="mine")) == OutboxState(older + 2, NOW_MS)
    assert claimed(fleet, "mine") == [2 + each for each in range(older + 2)]


def test_the_outbox_of_a_tenant_goes_with_the_tenant() -> None:
    fleet = Fleet()
    die(fleet, "gone", 2)
    die(fleet, "alive", 1)
    closed = GroupQuota(tenant="gone", version=1, closed=True)
    fleet.run(SetQuotas(controller_epoch=1, items=(closed,)))
    assert not fleet.run(PurgeMqtt(controller_epoch=1, tenant="gone")).left
    assert fleet.ask(PendingOutbox()).waiting == len(fleet.store.dump()[will.OF_TENANT.name]) == 1
    assert claimed(fleet, "alive") == [3]


@pytest.mark.parametrize("tenant", ["", "t"])
def test_wills_that_others_have_claimed_stop_nobody(tenant: str) -> None:
    fleet = Fleet()
    die(fleet, "t", CLAIM_SCAN_MAX)
    die(fleet, "t", 3)
    for broker in ("b1", "b2"):
        ask = ClaimOutbox(broker=broker, tenant=tenant, grace_ms=0, limit=1_000)
        assert len(fleet.run(ask)) == 1_000
    ask = ClaimOutbox(broker="b3", tenant=tenant, grace_ms=0)
    assert [each.outbox_id - CLAIM_SCAN_MAX for each in fleet.run(ask)] == [1, 2, 3]
    fleet.now_ms += ask.lease_ms - 1
    assert fleet.run(ask) == (), "each has been claimed"
    fleet.now_ms += 1
    assert [each.outbox_id for each in fleet.run(ask)] == [*range(1, 101)], "claims have run out"
    derived.check("mqtt", fleet.store)


def test_a_will_that_was_claimed_is_not_read_by_others_until_its_claim_has_run_out() -> None:
    fleet = Fleet()
    die(fleet, "t", 3)
    assert claimed(fleet, "t", limit=2) == [1, 2]
    fleet.store.put(will.OUTBOX.name, (2,), b"who decodes this fails")
    assert claimed(fleet, "t") == [3]


@pytest.mark.parametrize("older", [2, 5])
def test_wills_that_fired_before_they_were_found_by_time_are_claimed_all_the_same(
    older: int,
) -> None:
    fleet = Fleet()
    die(fleet, "t", older)
    for place in derived.all_of(fleet.store, will.FREE):
        fleet.store.delete(will.FREE.name, will.FREE.key_of(place))
    die(fleet, "t", 2)
    assert claimed(fleet, "t", limit=older - 1) == [*range(1, older)]
    assert claimed(fleet, "t") == [older, older + 1, older + 2]
    assert claimed(fleet, "t") == []
    fleet.run(AckOutbox(broker="t", ids=(1, older + 2)))
    fleet.now_ms += ClaimOutbox(broker="t").lease_ms
    assert claimed(fleet, "t") == [*range(2, older + 2)]
    fleet.run(AckOutbox(broker="t", ids=tuple(range(older + 3))))
    derived.check("mqtt", fleet.store)
    assert fleet.ask(PendingOutbox()) == OutboxState(0, 0)
