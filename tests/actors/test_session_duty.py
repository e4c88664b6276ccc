"""The controller closes what silent brokers held: once for each silence, in every group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors.controller import Controller
from actors.duties import sessions
from actors.duties.sessions import Sessions
from state_machines.metadata.node import ExpireNodes, HeartbeatNode, RegisterNode
from state_machines.mqtt import session_life
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.session_duty import CloseHeldSessions, ListHeldSessions
from state_machines.mqtt.will import SetWill
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

CLIENTS = 12  #: of each broker, in each of two groups
GROUPS = ("mqtt-0", "mqtt-1")


class Fleet(World):
    """Two groups of sessions, of the brokers b1 and b2, and of one that never registered."""

    def __init__(self) -> None:
        super().__init__(mqtt=len(GROUPS))
        self.asked: list[ListHeldSessions] = []
        for broker in ("b1", "b2"):
            self.run(RegisterNode(node_id=broker))
        for name in GROUPS:
            for number in range(CLIENTS):
                for broker in ("b1", "b2", "stranger"):
                    self.open(name, f"{number:02}-{broker}", broker)

    def open(self, group: str, client_id: str, broker: str) -> None:
        self.named(group).run(OpenSession(client_id=client_id, broker=broker, expiry_s=60))

    def silence(self, *brokers: str) -> None:
        """These were not heard for a minute, and the others were."""
        self.run(ExpireNodes(controller_epoch=1, timeout_ms=30_000))
        self.at("metadata").now_ms += 60_000
        for broker in {"b1", "b2"} - {*brokers}:
            self.run(HeartbeatNode(node_id=broker, epoch=1))
        assert self.run(ExpireNodes(controller_epoch=1, timeout_ms=30_000)) == brokers

    def connected(self, group: str) -> dict[str, int]:
        """How many of each broker's clients are, in a group."""
        found: dict[str, int] = {}
        for number in range(CLIENTS):
            for broker in ("b1", "b2", "stranger"):
                query = GetSession(client_id=f"{number:02}-{broker}")
                session = self.named(group).ask(query)
                found[broker] = found.get(broker, 0) + session.connected
        return found

    async def call(self, operation: Any, *, group: str = "", **more: Any) -> Any:
        if isinstance(operation, ListHeldSessions):
            self.asked.append(operation)
        return await super().call(operation, group=group, **more)


def actions(controller: Controller) -> int:
    record = controller.records[Sessions.name]
    assert record.last_error == ""
    return record.last_actions


ALL = {"b1": CLIENTS, "b2": CLIENTS, "stranger": CLIENTS}


@in_virtual_time
async def test_what_a_silent_broker_held_is_closed_in_every_group() -> None:
    world = Fleet()
    await world.step(Sessions)
    assert world.asked == [], "nobody is silent"
    world.silence("b1")
    controller = await world.step(Sessions)
    assert actions(controller) == CLIENTS * len(GROUPS)
    for name in GROUPS:
        assert world.connected(name) == ALL | {"b1": 0}


@in_virtual_time
async def test_what_is_too_much_for_a_command_goes_with_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wills may be large: else sessions stayed open until the sweep after, ten minutes later."""
    monkeypatch.setattr(session_life, "BYTES_CHANGED_MAX", 2_500)
    world = Fleet()
    for number in range(CLIENTS):
        found = world.named("mqtt-0").ask(GetSession(client_id=f"{number:02}-b1"))
        will = SetWill(
            client_id=found.client_id, epoch=found.epoch, topic="t", payload=bytes(1_000)
        )
        world.named("mqtt-0").run(will)
    world.silence("b1")
    controller = await world.step(Sessions)
    assert actions(controller) == CLIENTS * len(GROUPS)
    for name in GROUPS:
        assert world.connected(name) == ALL | {"b1": 0}


@in_virtual_time
async def test_a_silence_is_swept_once_and_the_next_one_again() -> None:
    world = Fleet()
    world.silence("b1")
    duty, context = Sessions(), world.controller(Sessions).context
    assert await duty.step(context) == CLIENTS * len(GROUPS)
    asked = len(world.asked)
    assert await duty.step(context) == 0
    assert len(world.asked) == asked
    world.run(HeartbeatNode(node_id="b1", epoch=1))
    world.open("mqtt-1", "00-b1", "b1")
    world.silence("b1")
    assert await duty.step(context) == 1
    assert world.connected("mqtt-1") == ALL | {"b1": 0}


@in_virtual_time
async def test_what_a_broker_opens_while_it_is_silent_is_closed_too() -> None:
    """It does not reach metadata, but these groups; and then it is gone."""
    world = Fleet()
    world.silence("b1")
    duty, context = Sessions(), world.controller(Sessions).context
    await duty.step(context)
    world.open("mqtt-1", "00-b1", "b1")
    assert await duty.step(context) == 0
    await asyncio.sleep(sessions.AGAIN_SECONDS)
    assert await duty.step(context) == 1
    assert world.connected("mqtt-1") == ALL | {"b1": 0}


@in_virtual_time
async def test_a_sweep_goes_on_at_once_where_the_run_before_has_left_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "PAGE", 5)
    monkeypatch.setattr(sessions, "ROWS_A_COMMAND", 2)
    monkeypatch.setattr(sessions, "STEP_SECONDS", 0.0)
    world = Fleet()
    world.silence("b1")
    controller = await world.step(Sessions)
    duty = controller.records[Sessions.name].duty
    assert controller.records[Sessions.name].runs == 8, "pages of five of 36 sessions"
    assert not duty.under_way()
    assert [world.connected(name)["b1"] for name in GROUPS] == [0, 0]
    sizes = {len(each.items) for each in world.commands if isinstance(each, CloseHeldSessions)}
    assert sizes == {1, 2}


@in_virtual_time
async def test_more_brokers_than_a_sweep_is_for_have_the_next_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sessions, "BROKERS_MAX", 1)
    world = Fleet()
    world.silence("b1", "b2")
    await world.step(Sessions)
    for name in GROUPS:
        assert world.connected(name) == ALL | {"b1": 0, "b2": 0}
    assert {each.brokers for each in world.asked} == {("b1",), ("b2",)}


@in_virtual_time
async def test_who_is_heard_again_keeps_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "PAGE", 6)
    monkeypatch.setattr(sessions, "STEP_SECONDS", 0.0)
    world = Fleet()
    world.silence("b1", "b2")
    duty, context = Sessions(), world.controller(Sessions).context
    await duty.step(context)
    (said,) = duty.under_way()
    assert said.startswith("sessions of 'b1', 'b2': ")
    world.run(HeartbeatNode(node_id="b1", epoch=1))
    left = [world.connected(name)["b1"] for name in GROUPS]
    while duty.under_way():
        await duty.step(context)
    assert all(left)
    assert [world.connected(name)["b1"] for name in GROUPS] == left
    assert [world.connected(name)["b2"] for name in GROUPS] == [0, 0]


@in_virtual_time
async def test_what_a_broker_opens_that_is_back_within_a_run_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was started again: its clients are there, and no will of theirs may be said."""
    monkeypatch.setattr(sessions, "PAGE", 6)
    world = Fleet()
    world.silence("b1", "b2")
    ask, back = world.call, GROUPS[0]

    async def call(operation: Any, *, group: str = "", **more: Any) -> Any:
        reply = await ask(operation, group=group, **more)
        second = isinstance(operation, ListHeldSessions) and group == back and operation.after
        if second and world.named(back).ask(late) is None:
            world.run(RegisterNode(node_id="b1"))
            world.open(back, late.client_id, "b1")
        return reply

    late = GetSession(client_id="99-b1")
    monkeypatch.setattr(world, "call", call)
    controller = await world.step(Sessions)
    assert world.named(back).ask(late).connected
    assert not controller.records[Sessions.name].duty.under_way()
    assert [world.connected(name)["b2"] for name in GROUPS] == [0, 0]


@in_virtual_time
async def test_a_broker_that_is_heard_while_a_page_is_read_keeps_what_is_on_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Fleet()
    world.silence("b1", "b2")
    ask = world.call

    async def call(operation: Any, *, group: str = "", **more: Any) -> Any:
        reply = await ask(operation, group=group, **more)
        if isinstance(operation, ListHeldSessions):
            world.run(HeartbeatNode(node_id="b1", epoch=1))
        return reply

    monkeypatch.setattr(world, "call", call)
    await world.step(Sessions)
    for name in GROUPS:
        assert world.connected(name) == ALL | {"b2": 0}


@in_virtual_time
async def test_a_group_that_is_away_holds_up_its_own_sessions_alone() -> None:
    world = Fleet()
    world.silence("b1")
    world.away.add("mqtt-0")
    controller = world.controller(Sessions)
    await controller.step()
    record = controller.records[Sessions.name]
    assert "NoQuorum: mqtt-0" in record.last_error
    assert [world.connected(name)["b1"] for name in GROUPS] == [CLIENTS, 0]
    world.away.clear()
    controller.context.wake(Sessions.name)
    await controller.step()
    assert [world.connected(name)["b1"] for name in GROUPS] == [0, 0]
