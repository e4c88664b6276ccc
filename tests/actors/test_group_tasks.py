"""A duty's work in each group is a task of its own: the controller over a duty that probes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar

import pytest

from actors.controller import Controller
from actors.duties import Context, Duty
from state_machines.errors import Fenced, NoQuorum
from state_machines.fence import FIELD
from tests.actors.duty_world import World
from tests.actors.virtual_time import in_virtual_time

GROUPS = ("mqtt-0", "mqtt-1")
FENCED = Fenced(f"{FIELD}: 4, in force is 5")


class Probe(Duty):
    """Do in each of two groups what the test says."""

    name: ClassVar[str] = "probe"
    interval: ClassVar[str] = "timer_check_ms"
    deadline_seconds: ClassVar[float] = 20.0

    acts: ClassVar[dict[str, Callable[[], Coroutine[Any, Any, int]]]] = {}
    begun: ClassVar[list[tuple[str, float]]] = []

    async def step(self, context: Context) -> int:
        return await context.in_each(self, GROUPS, self._of)

    async def _of(self, group: str) -> int:
        self.begun.append((group, seconds()))
        return await self.acts[group]()


def seconds() -> float:
    return round(asyncio.get_running_loop().time() - 1_000, 3)


async def quick() -> int:
    return 1


def slow(wait_s: float, error: Exception | None = None) -> Callable[[], Coroutine[Any, Any, int]]:
    async def act() -> int:
        await asyncio.sleep(wait_s)
        if error is not None:
            raise error
        return 10

    return act


@pytest.fixture(autouse=True)
def nothing_begun() -> None:
    Probe.begun.clear()


def started(first: Callable[[], Coroutine[Any, Any, int]]) -> Controller:
    """In the first group this is done, in the second one what takes no time."""
    Probe.acts.update({"mqtt-0": first, "mqtt-1": quick})
    controller = World(mqtt=2).controller(Probe)
    controller.start()
    return controller


def begun(group: str) -> list[float]:
    return [at for name, at in Probe.begun if name == group]


async def ended(controller: Controller) -> None:
    controller.fenced = "enough"
    await asyncio.sleep(2)


@in_virtual_time
async def test_a_group_that_takes_long_is_left_out_until_it_has_ended() -> None:
    controller = started(slow(5.5))
    await asyncio.sleep(9.9)
    assert begun("mqtt-0") == [0, 6], "never twice at a time"
    assert begun("mqtt-1") == [0, 2, 3, 4, 5, 6, 8, 9]
    assert controller.records["probe"].actions == len(begun("mqtt-1")) + 10
    await ended(controller)


@in_virtual_time
async def test_how_a_group_failed_is_shown_until_its_work_has_ended_well() -> None:
    controller = started(slow(4.5, NoQuorum("mqtt-0: nobody")))
    record = controller.records["probe"]
    await asyncio.sleep(5.1)  # the next run tells, a second later
    for _ in range(20):
        await asyncio.sleep(1)
        assert record.last_error == "NoQuorum: mqtt-0: nobody"
    Probe.acts["mqtt-0"] = quick
    await asyncio.sleep(7)
    assert record.last_error == ""
    await ended(controller)


@in_virtual_time
async def test_what_is_fenced_in_a_group_ends_the_controller_before_its_next_run() -> None:
    controller = started(slow(2.5, FENCED))
    Probe.acts["mqtt-1"] = slow(15)
    await asyncio.sleep(2.4)
    assert controller.fenced == ""
    await asyncio.sleep(0.2)
    assert controller.fenced == FENCED.detail
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing goes on without it"


@in_virtual_time
async def test_the_work_in_a_group_has_the_deadline_of_its_duty() -> None:
    controller = started(slow(1_000))
    await asyncio.sleep(21.9)
    error = controller.records["probe"].last_error
    assert error == "TimeoutError: mqtt-0: it was ended after 20 s"
    assert begun("mqtt-0") == [0, 20]
    await ended(controller)
