"""What a broker does beside its clients, and what becomes of it when a step fails."""

from __future__ import annotations

import asyncio
import logging

import pytest

from metaray.integrations.amqtt.loops import CHUNK, Loops, answered
from state_machines.errors import Fenced, Unavailable
from state_machines.mqtt.session import GetSession
from state_machines.slots import SLOTS, slot_of
from tests.integrations.harness import House


def test_a_broker_that_lost_its_name_takes_no_wills_out_of_the_outbox(house: House) -> None:
    house.start("b1")
    before, plugin = house.brokers["b1"], house.plugin("b1")
    second = house.start("b1", outbox_s=3_600)  # the new one looks at none for now
    house.until(plugin.fenced.is_set)
    house.client("ann", second, will=("wills/ann", b"gone"), persistent=False).drop()
    house.until(lambda: house.call(GetSession(client_id="ann")) is None)
    store = house.plugin("b1")._store
    assert store is not None
    house.run(_a_while(plugin.settings.outbox_s))
    assert [house.run(store.has_wills(each)) for each in store.groups] == [True]
    house.run(before.shutdown())


async def _a_while(turn_s: float) -> None:
    """Longer than a loop that went on would pause."""
    await asyncio.sleep(10 * turn_s)


def test_a_step_that_is_fenced_ends_all_loops() -> None:
    told: list[Fenced] = []

    async def run() -> None:
        begun, never = asyncio.Event(), asyncio.Event()

        async def fenced(error: Fenced) -> None:
            told.append(error)

        async def other() -> None:
            begun.set()
            await never.wait()

        async def heartbeat() -> None:
            await begun.wait()
            raise Fenced("another has the name")

        loops = Loops(fenced)
        loops.every(0.001, other)
        loops.every(0.001, heartbeat)
        _, going_on = await asyncio.wait(loops._tasks, timeout=5)
        assert not going_on

    asyncio.run(run())
    assert len(told) == 1


def test_a_step_that_fails_unforeseen_is_told_and_taken_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turns = 0

    async def run() -> None:
        over = asyncio.Event()

        async def fenced(_: Fenced) -> None:
            raise AssertionError

        async def heartbeat() -> None:
            nonlocal turns
            turns += 1
            if turns == 1:
                raise RuntimeError("a mistake of ours")
            over.set()

        loops = Loops(fenced)
        loops.every(0.001, heartbeat)
        await asyncio.wait_for(over.wait(), 5)
        await loops.stop()

    with caplog.at_level(logging.ERROR):
        asyncio.run(run())
    assert "heartbeat" in caplog.text
    assert "RuntimeError" in caplog.text


def test_results_come_though_the_call_fails_for_others() -> None:
    async def call(number: int) -> int:
        if number % 2:
            raise Unavailable(f"{number}")
        return -number

    got: list[tuple[int, int]] = []

    async def run() -> None:
        async for pair in answered(call, range(CHUNK + 3)):
            got.append(pair)  # noqa: PERF401

    with pytest.raises(Unavailable, match="1"):
        asyncio.run(run())
    assert got == [(each, -each) for each in range(0, CHUNK + 3, 2)]


def test_a_takeover_is_noticed_while_another_group_is_away(house: House) -> None:
    house.patience_s = 0.3
    house.split()
    first, second = house.start("b1"), house.start("b2")
    assert [slot_of(("default", each)) < SLOTS // 2 for each in ("bob", "ann")] == [True, False]
    bob, ann = house.client("bob", first), house.client("ann", first)
    house.service.away = {"mqtt-0"}
    house.client("ann", second)
    ann.until_lost()
    assert not bob.lost
