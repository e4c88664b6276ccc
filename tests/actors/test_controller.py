"""The controller's loop over fakes: what is due runs, an error stays where it arose."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from actors.caller import Caller
from actors.config import RaftSettings
from actors.controller import Controller, Record
from actors.duties import DUTIES, Duty, Orders, timers
from actors.duties.duty import DEADLINE_SECONDS
from actors.duties.liveness import Liveness
from actors.duties.repair import Repair
from actors.duties.timers import Timers
from actors.seat_names import is_learner, learners_among
from actors.status import leader_of
from state_machines import settings
from state_machines.errors import Conflict, Fenced, NoQuorum
from state_machines.metadata.config import CLUSTER, Config, ConfigPage, ListConfigs
from state_machines.metadata.duty import ListPauses, Pause
from state_machines.metadata.node import ExpireNodes, ListNodes, Node, NodePage
from state_machines.moment import GetTime
from state_machines.mqtt.pulse import NextDue, Pulse, PulseReply
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
    hang: set[type] = field(default_factory=set)
    pauses: list[Pause] = field(default_factory=list)
    configs: list[Config] = field(default_factory=list)
    answer_seconds: float = 0.0
    closed: bool = False

    async def call(self, first: Any, *rest: Any, group: str = "") -> Any:
        if isinstance(first, str):
            await asyncio.sleep(self.answer_seconds)
            return self.method(first, *rest)
        await asyncio.sleep(0)
        if type(first) in self.hang:
            await asyncio.get_running_loop().create_future()
        if type(first) in self.fail:
            self.called.append((group, first))
            raise self.fail[type(first)]
        if isinstance(first, ListPauses):
            return tuple(self.pauses)
        if isinstance(first, ListConfigs):
            return ConfigPage(tuple(self.configs), b"")
        if isinstance(first, GetTime):
            return now_ms()
        self.called.append((group, first))
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
                next_ms = self.due[group][0] if self.due[group] else 0
                return PulseReply(wills=1, sessions=0, retained=0, next_due_ms=next_ms)
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
        named = sorted(seat for seat in self.statuses if seat.startswith(f"{group}/"))
        return [seat for seat in named if not is_learner(seat)]

    def learners(self, group: str) -> Sequence[str]:
        return learners_among(seat for seat in self.statuses if seat.startswith(f"{group}/"))

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
        duties=(Liveness, Timers, Repair),
    )


def record(controller: Controller, duty: str) -> Record:
    return controller.records[duty]


def runs(controller: Controller) -> dict[str, int]:
    return {name: each.runs for name, each in controller.records.items()}


def shown(controller: Controller, duty: str) -> Any:
    return controller.status()["duties"][duty]


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
    assert runs(controller) == {"orders": 31, "liveness": 31, "timers": 11, "repair": 7}
    controller.fenced = "enough"
    await asyncio.sleep(2)
    assert fakes.closed


@in_virtual_time
async def test_a_step_runs_only_what_is_due() -> None:
    controller = made(Fakes())
    for _ in range(5):
        await controller.step()
    assert runs(controller) == {"orders": 1, "liveness": 1, "timers": 1, "repair": 1}


@in_virtual_time
async def test_silent_brokers_are_found_on_every_page_and_expired_under_the_epoch() -> None:
    fakes = Fakes()
    fakes.nodes = [Node(f"n{i}", 1, True, (), 0, now_ms()) for i in range(4)]
    fakes.nodes.append(Node("silent", 1, True, (), 0, now_ms() - 30_001))
    controller = made(fakes, epoch=9)
    await controller.step()
    looked = [ListNodes, ListNodes, ListNodes]
    assert operations(fakes) == [ExpireNodes, *looked], "the group counts from now on"
    assert record(controller, "liveness").actions == 0
    await asyncio.sleep(30.1)
    fakes.nodes[:4] = [replace(each, heartbeat_ms=now_ms()) for each in fakes.nodes[:4]]
    await controller.step()
    assert operations(fakes)[4:] == [*looked, ExpireNodes]
    assert fakes.called[-1][1] == ExpireNodes(controller_epoch=9, timeout_ms=30_000)
    assert record(controller, "liveness").actions == 1
    assert record(controller, "liveness").last_actions == 1


@pytest.mark.parametrize(
    "error",
    [
        NoQuorum("nobody"),
        TimeoutError(),
        ConnectionResetError("gone"),
        RuntimeError("surprise"),
        asyncio.CancelledError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_stays_in_its_duty_and_is_shown(error: BaseException) -> None:
    @in_virtual_time
    async def run() -> None:
        fakes = Fakes(due={"mqtt-0": [1]}, fail={ListNodes: error})
        controller = made(fakes)
        await controller.step()
        assert Pulse in operations(fakes)
        assert type(error).__name__ in shown(controller, "liveness")["last_error"]
        assert shown(controller, "timers")["last_error"] == ""
        assert set(runs(controller).values()) == {1}
        fakes.fail.clear()
        await asyncio.sleep(1.5)
        await controller.step()
        assert shown(controller, "liveness")["last_error"] == ""

    run()


@in_virtual_time
async def test_fenced_stops_it_for_good() -> None:
    fakes = Fakes(due={"mqtt-0": [1, 1, 1]})
    fakes.statuses = {"g-0/0": leading(), "g-0/1": status(2), "g-0/2": VACANT}
    fakes.fail[Pulse] = Fenced("controller_epoch: 4, in force is 5")
    fakes.answer_seconds = 1.0
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(60)
    assert "in force is 5" in controller.status()["fenced"]
    assert operations(fakes).count(Pulse) == 1
    assert operations(fakes).count(ListNodes) == 1
    assert fakes.acted == [], "not even by the repair that was under way"
    assert fakes.closed


@in_virtual_time
async def test_what_is_under_way_does_not_outlive_the_fence() -> None:
    fakes = Fakes(due={"mqtt-0": [1]}, hang={ListNodes})
    fakes.fail[Pulse] = Fenced("controller_epoch: 4, in force is 5")
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(DEADLINE_SECONDS / 2)
    assert controller.fenced
    assert fakes.closed, "liveness would hang on until its deadline"


@in_virtual_time
async def test_the_fence_of_a_row_is_an_error_like_others() -> None:
    """A segment's epoch, say, has moved on meanwhile: that says nothing of the controller."""
    fakes = Fakes(due={"mqtt-0": [1]}, fail={Pulse: Fenced("leader_epoch: 4, in force is 5")})
    controller = made(fakes)
    await controller.step()
    assert controller.fenced == ""
    assert shown(controller, "timers")["last_error"].startswith("Fenced: leader_epoch")


@in_virtual_time
async def test_one_that_hangs_keeps_no_other_from_running_and_is_ended_in_time() -> None:
    fakes = Fakes(hang={ListNodes})
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(20.5)
    assert runs(controller) == {"orders": 21, "liveness": 0, "timers": 7, "repair": 5}
    assert shown(controller, "liveness")["running_seconds"] == pytest.approx(20.5)
    await asyncio.sleep(10)
    assert runs(controller)["liveness"] == 1
    assert shown(controller, "liveness")["last_error"] == "TimeoutError: it was ended after 30 s"
    assert shown(controller, "liveness")["last_seconds"] == pytest.approx(30)
    fakes.hang.clear()
    await asyncio.sleep(31)
    assert runs(controller)["liveness"] > 2
    assert shown(controller, "liveness")["last_error"] == ""
    controller.fenced = "enough"
    await asyncio.sleep(2)


@in_virtual_time
async def test_what_is_under_way_is_not_begun_again() -> None:
    fakes = Fakes(hang={ListNodes})
    controller = made(fakes)
    controller.start()
    for _ in range(60):
        await asyncio.sleep(0.5)
        under_way = [each for each in asyncio.all_tasks() if "_work" in repr(each)]
        assert len(under_way) == 1
    controller.fenced = "enough"
    await asyncio.sleep(2)
    assert not [each for each in asyncio.all_tasks() if "_work" in repr(each)]


def pause(duty: str) -> Pause:
    return Pause(duty, since_ms=1, until_ms=0, by="admin", reason="a disk is being replaced")


@in_virtual_time
async def test_a_paused_duty_rests_until_it_is_resumed_and_the_others_go_on() -> None:
    fakes = Fakes(pauses=[pause("liveness")])
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(10.5)
    assert runs(controller) == {"orders": 11, "liveness": 0, "timers": 4, "repair": 3}
    assert shown(controller, "liveness")["paused"] == {
        "until_ms": 0,
        "by": "admin",
        "reason": "a disk is being replaced",
    }
    assert shown(controller, "timers")["paused"] is None
    fakes.pauses = [pause("timers")]
    await asyncio.sleep(10)
    assert runs(controller) == {"orders": 21, "liveness": 10, "timers": 4, "repair": 5}
    controller.fenced = "enough"
    await asyncio.sleep(2)


@in_virtual_time
async def test_nothing_begins_before_the_pauses_are_known() -> None:
    """A new controller must not do what the one before had been told to leave."""
    fakes = Fakes(pauses=[pause("repair")], fail={ListPauses: NoQuorum("nobody")})
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(3.5)
    assert runs(controller) == {"orders": 4, "liveness": 0, "timers": 0, "repair": 0}
    assert "NoQuorum" in shown(controller, "orders")["last_error"]
    fakes.fail.clear()
    await asyncio.sleep(3)
    fakes.fail[ListPauses] = NoQuorum("nobody")
    await asyncio.sleep(20)
    assert runs(controller)["repair"] == 0, "what cannot be read is as it was"
    assert runs(controller)["liveness"] == 23
    controller.fenced = "enough"
    await asyncio.sleep(2)


@in_virtual_time
async def test_what_reads_the_pauses_cannot_be_paused() -> None:
    fakes = Fakes(pauses=[pause("orders")])
    controller = made(fakes)
    await controller.step()
    fakes.pauses = []
    await asyncio.sleep(1.1)
    await controller.step()
    assert runs(controller)["orders"] == 2
    assert shown(controller, "orders")["paused"] is None


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
    monkeypatch.setattr(timers, "ROUNDS_MAX", 5)
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
            "commit": 10,
            "configuration_index": 1,
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
async def test_a_seat_that_cannot_be_repaired_keeps_no_other_group_from_it() -> None:
    seats = ["a-0/0", "a-0/1", "a-0/2"]
    fakes = Fakes(
        statuses={
            "a-0/0": leading(seat="a-0/0", group_seats=seats),
            "a-0/1": status(2, group_seats=seats),
            "a-0/2": VACANT,
            "g-0/0": leading(),
            "g-0/1": status(2),
            "g-0/2": {**VACANT, "status": "founding", "replica": 9},
        },
        fail={cast(Any, "reserve"): OSError("Read-only file system")},
    )
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == [("a-0/2", "reserve", ("c",)), ("g-0/2", "activate", ())]
    assert shown(controller, "repair")["last_error"] == "OSError: Read-only file system"


@in_virtual_time
async def test_repair_fills_a_learners_seat_and_tells_the_others_of_it() -> None:
    learner = "g-0/learner-0"
    seats = ["g-0/0", "g-0/1", "g-0/2", learner]
    fakes = Fakes(
        statuses={
            "g-0/0": leading(),
            "g-0/1": status(2, group_seats=seats),
            "g-0/2": status(3, group_seats=seats),
            learner: {**VACANT, "group_seats": seats},
        }
    )
    controller = made(fakes)
    await controller.step()
    fakes.statuses["g-0/0"] = leading(group_seats=seats)
    fakes.statuses[learner] = status(9, group_seats=seats, last_index=0)
    await asyncio.sleep(5.1)
    await controller.step()
    fakes.statuses[learner] = status(9, group_seats=seats, last_index=7)
    await asyncio.sleep(5.1)
    await controller.step()
    assert fakes.acted == [
        ("g-0/0", "introduce", ((learner,),)),
        (learner, "reserve", ("c",)),
        ("g-0/0", "change", (Change(add_learners=(9,)),)),
        (learner, "retire", (9, (3, 10))),
    ]


@in_virtual_time
async def test_a_seat_that_is_not_listed_has_not_answered() -> None:
    fakes = Fakes(statuses={"g-0/0": leading(voters=[1, 2, 3]), "g-0/1": status(2)})
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == []
    assert record(controller, "repair").last_error == ""


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
    assert record(controller, "repair").last_error == ""


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
    said = controller.status()
    assert (said["name"], said["epoch"], said["node"], said["fenced"]) == (
        "controller-4",
        4,
        "n1",
        "",
    )
    assert controller.node() == "n1"
    assert set(said["duties"]) == {"orders", "liveness", "timers", "repair"}
    assert json.loads(json.dumps(said)) == said
    assert said["now_ms"] == now_ms()
    timers_shown = said["duties"]["timers"]
    assert timers_shown["does"].startswith("Let due timers fire")
    assert (timers_shown["setting"], timers_shown["every_ms"]) == ("timer_check_ms", 3_000)


@in_virtual_time
async def test_an_interval_that_is_set_while_it_runs_holds_from_then_on() -> None:
    fakes = Fakes()
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(9.5)
    assert runs(controller)["timers"] == 4
    fakes.configs = [Config(CLUSTER, "timer_check_ms", 500, None, 1, 1)]
    await asyncio.sleep(10)
    assert runs(controller)["timers"] in range(18, 24)
    assert shown(controller, "timers")["every_ms"] == 500
    fakes.configs = []
    await asyncio.sleep(4)
    assert shown(controller, "timers")["every_ms"] == 3_000
    controller.fenced = "enough"
    await asyncio.sleep(2)


@in_virtual_time
async def test_a_value_that_is_none_of_the_settings_is_passed_over() -> None:
    """It may have been set by a version with other limits."""
    fakes = Fakes()
    fakes.configs = [
        Config(CLUSTER, "timer_check_ms", 1, None, 1, 1),
        Config(CLUSTER, "heartbeat_check_ms", None, "soon", 1, 1),
        Config(CLUSTER, "a later version's", 5, None, 1, 1),
    ]
    controller = made(fakes)
    await controller.step()
    assert shown(controller, "timers")["every_ms"] == 3_000
    assert shown(controller, "liveness")["every_ms"] == 1_000
    assert controller.context.value("rebalance") == "on"


@in_virtual_time
async def test_one_duty_wakes_another_even_while_that_is_under_way() -> None:
    fakes = Fakes(hang={ListNodes})
    controller = made(fakes)
    controller.start()
    await asyncio.sleep(1.0)
    controller.context.wake("repair")
    controller.context.wake("liveness")
    controller.context.wake("nobody")
    await asyncio.sleep(0.1)
    assert runs(controller)["repair"] == 2, "five seconds early"
    fakes.hang.clear()
    await asyncio.sleep(29.0)
    before = runs(controller)["liveness"]
    await asyncio.sleep(0.5)
    assert (before, runs(controller)["liveness"]) == (2, 2), "ended, and done again at once"
    controller.fenced = "enough"
    await asyncio.sleep(2)


def test_every_duty_says_what_it_does_and_has_an_interval_that_is_a_setting() -> None:
    duties: list[type[Duty]] = [Orders, *DUTIES]
    assert len({each.name for each in duties}) == len(duties)
    for each in duties:
        assert not settings.SETTINGS[each.interval].choices
        assert settings.SETTINGS[each.interval].unit == "ms"
        assert each.__doc__
        assert each.deadline_seconds > 0
