"""The controller's loop over fakes: what is due runs, an error stays where it arose."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest

from actors.duties import DUTIES, Duty, Orders, timers
from actors.duties.duty import DEADLINE_SECONDS
from state_machines import settings
from state_machines.errors import Fenced, NoQuorum
from state_machines.metadata.config import CLUSTER, Config
from state_machines.metadata.duty import ListPauses, Pause
from state_machines.metadata.node import ExpireNodes, ListNodes, Node
from state_machines.mqtt.pulse import Pulse
from tests.actors.fake_groups import (
    VACANT,
    Fakes,
    leading,
    made,
    now_ms,
    operations,
    record,
    runs,
    shown,
    status,
)
from tests.actors.virtual_time import in_virtual_time


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
    fakes.once.add(Pulse)  # whoever went on would try again at once, for ever
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
    begun = set()
    for _ in range(59):
        await asyncio.sleep(0.5)
        begun.add(controller.records["liveness"].task)
    assert len(begun) == 1
    assert begun != {None}
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
