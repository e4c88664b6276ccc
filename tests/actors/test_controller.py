"""The controller's loop over fakes: what is due runs, an error stays where it arose."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from actors import controller as controller_module
from actors.caller import Caller
from actors.config import RaftSettings
from actors.controller import Controller, leader_of
from state_machines.errors import Conflict, Fenced, NoQuorum
from state_machines.metadata.node import ExpireNodes, ListNodes, Node, NodePage
from state_machines.mqtt.pulse import NextDue, Pulse
from state_machines.mqtt.share_group import (
    ListShareBrokers,
    ListShareMembers,
    ShareBrokerPage,
    ShareMemberPage,
)
from state_machines.raft.confchange import Change
from tests.actors.virtual_time import VirtualClock, in_virtual_time

SETTINGS = RaftSettings(
    heartbeat_check_ms=1_000,
    timer_check_ms=3_000,
    repair_check_ms=5_000,
    heartbeat_timeout_ms=30_000,
)


@dataclass
class Fakes:
    """The caller, the groups and the seats' methods in one."""

    nodes: list[Node] = field(default_factory=list)
    due: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, Any] = field(default_factory=dict)
    called: list[tuple[str, Any]] = field(default_factory=list)
    acted: list[tuple[str, str, tuple[Any, ...]]] = field(default_factory=list)
    fail: dict[type, BaseException] = field(default_factory=dict)
    closed: bool = False

    async def call(self, first: Any, *rest: Any, group: str = "") -> Any:
        if isinstance(first, str):
            await asyncio.sleep(0)
            return self.method(first, *rest)
        await asyncio.sleep(0)
        self.called.append((group, first))
        if type(first) in self.fail:
            raise self.fail[type(first)]
        match first:
            case ListNodes(after=after):
                at = int(after or b"0")
                following = at + 2 < len(self.nodes)
                return NodePage(
                    tuple(self.nodes[at : at + 2]), b"%d" % (at + 2) if following else b""
                )
            case NextDue():
                return self.due[group][0] if self.due.get(group) else 0
            case Pulse():
                self.due[group].pop(0)
            case ListShareBrokers():
                return ShareBrokerPage((), b"")
            case ListShareMembers():
                return ShareMemberPage((), b"")
        return None

    def method(self, seat: str, method: str, *args: Any) -> Any:
        if method == "status":
            status = self.statuses[seat]
            if isinstance(status, BaseException):
                raise status
            return status
        self.acted.append((seat, method, args))
        if method in self.fail:  # type: ignore[comparison-overlap]
            raise self.fail[cast(Any, method)]
        return None

    def groups(self) -> Sequence[str]:
        return sorted({seat.rpartition("/")[0] for seat in self.statuses} | {*self.due})

    def seats(self, group: str) -> Sequence[str]:
        return sorted(seat for seat in self.statuses if seat.startswith(f"{group}/"))

    async def refresh(self) -> None:
        """They are known."""

    async def close(self) -> None:
        self.closed = True


def made(fakes: Fakes, epoch: int = 4) -> Controller:
    return Controller(
        epoch=epoch,
        caller=cast(Caller, fakes),
        groups=cast(Any, fakes),
        calls=cast(Any, fakes),
        settings=SETTINGS,
        clock=VirtualClock(),
        node="n1",
    )


def now_ms() -> int:
    return VirtualClock().now_ms()


def operations(fakes: Fakes) -> list[type]:
    return [type(each) for _, each in fakes.called]


@in_virtual_time
async def test_duties_run_at_their_intervals() -> None:
    fakes = Fakes()
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(30.5)
    runs = {duty.name: duty.runs for duty in controller.duties}
    assert runs == {
        "liveness": 31,
        "timers": 11,
        "repair": 7,
        "share_brokers": 31,
        "share_members": 7,
    }
    controller.fenced = "enough"
    await asyncio.sleep(2)
    assert fakes.closed


@in_virtual_time
async def test_a_step_runs_only_what_is_due() -> None:
    controller = made(Fakes())
    for _ in range(5):
        await controller.step()
    assert {duty.runs for duty in controller.duties} == {1}


@in_virtual_time
async def test_silent_brokers_are_found_on_every_page_and_expired_under_the_epoch() -> None:
    fakes = Fakes()
    fakes.nodes = [Node(f"n{i}", 1, True, (), 0, now_ms()) for i in range(4)]
    fakes.nodes.append(Node("silent", 1, True, (), 0, now_ms() - 30_001))
    controller = made(fakes, epoch=9)
    await controller.step()
    assert operations(fakes) == [ListNodes, ListNodes, ListNodes, ExpireNodes]
    assert fakes.called[-1][1] == ExpireNodes(controller_epoch=9, timeout_ms=30_000)
    assert controller.duties[0].actions == 1


@pytest.mark.parametrize(
    "error",
    [NoQuorum("nobody"), TimeoutError(), ConnectionResetError("gone"), RuntimeError("surprise")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_stays_in_its_duty_and_is_shown(error: Exception) -> None:
    @in_virtual_time
    async def run() -> None:
        fakes = Fakes(due={"mqtt-0": [1]}, fail={ListNodes: error})
        controller = made(fakes)
        await controller.step()
        assert Pulse in operations(fakes)
        shown = controller.status()["duties"]
        assert type(error).__name__ in shown["liveness"]["last_error"]
        assert shown["timers"]["last_error"] == ""
        assert {duty.runs for duty in controller.duties} == {1}
        fakes.fail.clear()
        await asyncio.sleep(1.5)
        await controller.step()
        assert controller.status()["duties"]["liveness"]["last_error"] == ""

    run()


@in_virtual_time
async def test_fenced_stops_it_for_good() -> None:
    fakes = Fakes(due={"mqtt-0": [1, 1, 1]})
    fakes.fail[Pulse] = Fenced("epoch 4 is older than 5")
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(60)
    assert "older than 5" in controller.status()["fenced"]
    assert operations(fakes).count(Pulse) == 1
    assert operations(fakes).count(ListNodes) == 1
    assert controller.duties[2].runs == 0  # not even in the step that was under way
    assert fakes.closed


@in_virtual_time
async def test_only_due_timers_of_mqtt_groups_pulse() -> None:
    fakes = Fakes(
        due={"mqtt-0": [1, 2], "mqtt-1": [now_ms() + 60_000], "mqtt-2": [], "offset-0": [1]}
    )
    controller = made(fakes)
    await controller.step()
    assert [group for group, each in fakes.called if isinstance(each, Pulse)] == ["mqtt-0"] * 2
    assert all(each.controller_epoch == 4 for _, each in fakes.called if isinstance(each, Pulse))
    assert all(group != "offset-0" for group, _ in fakes.called)


@in_virtual_time
async def test_one_step_pulses_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller_module, "PULSES_MAX", 5)
    fakes = Fakes(due={"mqtt-0": [1] * 12})
    controller = made(fakes)
    await controller.step()
    assert len(fakes.due["mqtt-0"]) == 7
    await asyncio.sleep(3.1)
    await controller.step()
    await asyncio.sleep(3.1)
    await controller.step()
    assert fakes.due["mqtt-0"] == []


def status(replica: int, role: str = "follower", **more: Any) -> dict[str, Any]:
    return {
        "status": "active",
        "replica": replica,
        "role": role,
        "term": 3,
        "cluster": "c",
        "seat": f"g-0/{replica - 1}",
        "group_seats": ["g-0/0", "g-0/1", "g-0/2"],
        **more,
    }


def leading(**more: Any) -> dict[str, Any]:
    return status(
        1,
        "leader",
        **{
            "voters": [1, 2, 3],
            "outgoing": [],
            "learners": [],
            "progress": {},
            "last_index": 10,
            **more,
        },
    )


VACANT = {"status": "vacant", "replica": 0, "role": "vacant", "term": 0}


@in_virtual_time
async def test_repair_acts_at_the_right_seat() -> None:
    fakes = Fakes(statuses={"g-0/0": leading(), "g-0/1": status(2), "g-0/2": VACANT})
    controller = made(fakes)
    await controller.step()
    fakes.statuses["g-0/2"] = {**VACANT, "status": "founding", "replica": 9}
    await asyncio.sleep(5.1)
    await controller.step()
    fakes.statuses["g-0/2"] = status(9)
    await asyncio.sleep(5.1)
    await controller.step()
    assert fakes.acted == [
        ("g-0/2", "reserve", ("c",)),
        ("g-0/2", "activate", ()),
        ("g-0/0", "change", (Change(add_learners=(9,)),)),
    ]


@in_virtual_time
async def test_a_seat_that_is_not_listed_has_not_answered() -> None:
    fakes = Fakes(statuses={"g-0/0": leading(voters=[1, 2, 3]), "g-0/1": status(2)})
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == []
    assert controller.duties[2].last_error == ""


@in_virtual_time
async def test_silent_seats_and_groups_without_a_leader_wait() -> None:
    fakes = Fakes(
        statuses={
            "g-0/0": leading(),
            "g-0/1": RuntimeError("its process has ended"),
            "g-0/2": VACANT,
            "h-0/0": {**VACANT},
            "h-0/1": RuntimeError("gone"),
        }
    )
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == []
    assert controller.duties[2].last_error == ""


@in_virtual_time
async def test_a_change_that_has_to_wait_is_tried_again() -> None:
    statuses = {"g-0/0": leading(), "g-0/1": status(2), "g-0/2": status(9)}
    for error in (Conflict("another change"), RuntimeError("its process has ended")):
        fakes = Fakes(statuses=dict(statuses), fail={cast(Any, "change"): error})
        controller = made(fakes)
        await controller.step()
        assert type(error).__name__ in controller.status()["duties"]["repair"]["last_error"]
        fakes.fail.clear()
        await asyncio.sleep(5.1)
        await controller.step()
        assert [each[1] for each in fakes.acted] == ["change", "change"]


def test_the_leader_is_the_one_of_the_highest_term() -> None:
    old, new = {"role": "leader", "term": 3}, {"role": "leader", "term": 5}
    assert leader_of([None, {"role": "follower", "term": 9}]) is None
    assert leader_of([old, None, new]) is new


@in_virtual_time
async def test_its_status_is_plain() -> None:
    controller = made(Fakes())
    await controller.step()
    shown = controller.status()
    assert (shown["name"], shown["epoch"], shown["node"], shown["fenced"]) == (
        "controller-4",
        4,
        "n1",
        "",
    )
    assert controller.node() == "n1"
    assert set(shown["duties"]) == {
        *("liveness", "timers", "repair"),
        *("share_brokers", "share_members"),
    }
