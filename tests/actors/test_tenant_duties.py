"""Groups learn of tenants' limits, and a deleted tenant goes with all it has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.duties.duty import PAGE
from actors.duties.quotas import Quotas
from actors.duties.tenants import Tenants
from state_machines.errors import NotFound, QuotaExceeded
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.slot_map import AssignSlots
from state_machines.metadata.tenant import (
    CreateTenants,
    DeleteTenants,
    GetTenant,
    NewTenant,
    TenantChange,
    TenantName,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.topic import CreateTopics
from state_machines.offset.group import GetGroup
from state_machines.quota import DropQuotas, GetQuota, ListQuotas, QuotaVersion
from state_machines.slots import SLOTS, SlotRange
from tests.actors.duty_world import World, commit
from tests.actors.virtual_time import in_virtual_time


def quotas(world: World, kind: str) -> dict[str, Any]:
    return {each.tenant: each for each in world.at(kind).ask(ListQuotas()).quotas}


@in_virtual_time
async def test_every_group_learns_of_quotas_of_changes_and_of_their_end() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t", quotas=TenantQuotas(topics=1)),)))
    await world.step(Quotas)
    assert {quotas(world, kind)["t"].topics for kind in ("metadata", "offset", "mqtt")} == {1}
    assert world.at("mqtt").ask(GetQuota(tenant="t")) == quotas(world, "mqtt")["t"]
    assert world.at("mqtt").ask(GetQuota(tenant="u")) is None
    world.run(CreateTopics(tenant="t", names=("a",)))
    with pytest.raises(QuotaExceeded):
        world.run(CreateTopics(tenant="t", names=("b",)))
    assert (await world.step(Quotas)).records["quotas"].actions == 0, "all know it"
    world.run(UpdateTenants(items=(TenantChange(name="t", quotas=TenantQuotas(topics=2)),)))
    world.away = {"mqtt-0"}
    controller = world.controller(Quotas)
    await controller.step()
    assert "NoQuorum" in controller.records["quotas"].last_error
    assert quotas(world, "offset")["t"].topics == 2, "one that is away holds up no other"
    world.away = set()
    await world.step(Quotas)
    world.run(CreateTopics(tenant="t", names=("b",)))
    world.run(UpdateTenants(items=(TenantChange(name="t", quotas=TenantQuotas()),)))
    await world.step(Quotas)
    assert quotas(world, "mqtt") == {}


@in_virtual_time
async def test_groups_that_know_all_are_asked_again_only_now_and_then() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t", quotas=TenantQuotas(topics=1)),)))
    controller = world.controller(Quotas)
    await controller.step()
    assert controller.records["quotas"].actions == 3
    for kind in ("metadata", "offset", "mqtt"):  # as if somebody else had meddled
        world.at(kind).run(
            DropQuotas(
                controller_epoch=4, items=(QuotaVersion("t", quotas(world, kind)["t"].version),)
            )
        )
    await asyncio.sleep(10)
    await controller.step()
    assert quotas(world, "mqtt") == {}
    await asyncio.sleep(60)
    await controller.step()
    assert quotas(world, "mqtt")["t"].topics == 1
    world.run(UpdateTenants(items=(TenantChange(name="t", quotas=TenantQuotas(topics=2)),)))
    await asyncio.sleep(6)
    await controller.step()
    assert quotas(world, "mqtt")["t"].topics == 2, "a change is told at once"


@in_virtual_time
async def test_a_deleted_tenant_goes_with_all_it_has_and_its_name_is_free() -> None:
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    for number in range(30):
        world.run(PutKv(tenant="t", key=f"k{number}", value=b"v"))
        world.run(OpenSession(tenant="t", client_id=f"c{number}", broker="b1", expiry_s=600))
        commit(world, f"g{number}", "t")
    world.run(PutKv(key="k", value=b"another's"))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    world.away = {"offset-0"}
    controller = world.controller(Tenants)
    await controller.step()
    assert "NoQuorum" in controller.records["tenants"].last_error
    assert world.ask(GetTenant(name="t")) is not None, "its rows in that group have to go, too"
    (told,) = controller.status()["duties"]["tenants"]["under_way"]
    assert told.startswith("tenant 't' is being deleted: ")
    with pytest.raises(NotFound):
        world.run(OpenSession(tenant="t", client_id="late", broker="b1", expiry_s=1))
    world.away = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.planners.tenants.PURGE_LIMIT", 7)
        await world.step(Tenants, Quotas)
    await asyncio.sleep(10)
    await world.step(Tenants, Quotas)
    assert world.ask(GetTenant(name="t")) is None
    await controller.step()
    assert controller.status()["duties"]["tenants"]["under_way"] == []
    assert world.ask(GetKv(tenant="t", key="k1")) is None
    assert world.ask(GetSession(tenant="t", client_id="c1")) is None
    assert world.ask(GetGroup(tenant="t", group="g1")) is None
    assert world.ask(GetKv(key="k")) is not None
    assert quotas(world, "mqtt") == quotas(world, "metadata") == {}
    assert world.run(CreateTenants(items=(NewTenant(name="t"),)))[0].ok
    world.run(OpenSession(tenant="t", client_id="again", broker="b1", expiry_s=1))


@in_virtual_time
async def test_who_takes_a_name_that_is_free_again_is_refused_nowhere() -> None:
    """Nobody has to wait for the quotas, which are told in their own time."""
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    await world.step(Tenants)
    assert world.ask(GetTenant(name="t")) is None
    world.run(PutKv(tenant="t", key="k", value=b"v"))
    world.run(OpenSession(tenant="t", client_id="c", broker="b1", expiry_s=1))
    commit(world, "g", "t")


@in_virtual_time
async def test_of_more_tenants_than_a_step_can_hold_one_is_deleted_and_no_limit_is_lost() -> None:
    world = World()
    last = NewTenant(name="zeta", quotas=TenantQuotas(topics=1))
    many = [NewTenant(name=f"a{number:03}") for number in range(PAGE)]
    world.run(CreateTenants(items=(*many, last)))
    await world.step(Quotas)
    told = quotas(world, "mqtt")
    assert told["zeta"].topics == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.duties.duty.ROWS_MAX", PAGE - 1)
        controller = world.controller(Quotas)
        await controller.step()
        says = "rows: ListTenants has more than 999, the limit of one step"
        assert says in controller.records["quotas"].last_error
        assert quotas(world, "mqtt") == told
        world.run(DeleteTenants(items=(TenantName(name="zeta"),)))
        await world.step(Tenants)
        assert world.ask(GetTenant(name="zeta")) is None


@in_virtual_time
async def test_a_deletion_and_quotas_wait_for_groups_that_are_not_there_yet() -> None:
    """At a start `metadata-0` has its controller before the other groups have any seats."""
    world = World()
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    world.run(OpenSession(tenant="t", client_id="c", broker="b1", expiry_s=600))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    world.absent = {"offset-0", "mqtt-0"}
    controller = world.controller(Tenants, Quotas)
    await controller.step()
    for duty in ("tenants", "quotas"):
        assert "Stopped: mqtt-0, offset-0: not there yet" in controller.records[duty].last_error
    assert quotas(world, "metadata") == {}, "nothing is begun"
    world.absent = set()
    await world.step(Tenants, Quotas)
    assert world.ask(GetTenant(name="t")) is None
    assert world.ask(GetSession(tenant="t", client_id="c")) is None


@in_virtual_time
async def test_a_group_that_owns_slots_is_waited_for_though_the_configuration_has_lost_it() -> None:
    world = World()
    halves = (SlotRange(0, 7, "mqtt-0"), SlotRange(8, SLOTS - 1, "mqtt-1"))
    world.run(AssignSlots(kind="mqtt", expected_version=0, ranges=halves))
    world.run(CreateTenants(items=(NewTenant(name="t"),)))
    world.run(DeleteTenants(items=(TenantName(name="t"),)))
    controller = world.controller(Tenants)
    await controller.step()
    assert "Stopped: mqtt-1: not there yet" in controller.records["tenants"].last_error
    assert world.ask(GetTenant(name="t")) is not None
