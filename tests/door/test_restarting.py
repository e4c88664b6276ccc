"""Processes of seats and of the controller that an operator ends, also those that hang."""

from __future__ import annotations

import asyncio
import os
import re
from typing import Any

import psutil
import pytest
import ray

from actors import calls, ray_env
from actors.calls import start_again_if_up
from metaray.restarting import restart
from state_machines.errors import NotFound
from tests.door.seats import (
    CALL_SECONDS,
    ask,
    follower,
    leader,
    wait_for,
    wait_until_whole,
)
from tests.door.test_cli import refused, run

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]


def test_a_seat_that_hangs_is_another_process_afterwards() -> None:
    wait_until_whole("offset-0")
    seat = follower("offset-0")
    hangs = psutil.Process(ask(seat, "process"))
    hangs.suspend()
    result = run("restart", seat)
    assert result.exit_code == 0, result.output
    said = re.fullmatch(
        rf"✓ {seat} is process (\d+), after one that did not answer\n", result.stdout
    )
    assert said is not None, result.stdout
    assert int(said[1]) == ask(seat, "process") != hangs.pid
    assert not hangs.is_running()
    wait_until_whole("offset-0")


def test_the_controller_is_another_process_afterwards() -> None:
    wait_until_whole("metadata-0")
    name = f"controller-{leader('metadata-0')['term']}"
    done = restart(name)
    assert done.name == name
    assert done.before is not None
    assert done.before != done.now == ask(name, "process")


def test_what_is_no_seat_is_refused_by_name() -> None:
    with pytest.raises(NotFound, match=r"name: there is no 'offset-0/9'; there are .*offset-0/1"):
        restart("offset-0/9")
    assert "NotFound: name: there is no 'history-exporter'" in refused(
        "restart", "history-exporter"
    )


class Gate:
    """Opens when it is told to."""

    def __init__(self) -> None:
        self._opened = asyncio.Event()

    def open(self) -> None:
        self._opened.set()

    async def passed(self) -> None:
        await self._opened.wait()


class Begins:
    """An actor that has begun once a gate is open."""

    async def __init__(self, gate: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        await gate.passed.remote()

    def process(self) -> int:
        return os.getpid()


def test_an_actor_that_begins_is_left_to_it_and_one_that_has_begun_is_started_again() -> None:
    name = "begins"
    gate = ray.remote(Gate).options(num_cpus=0).remote()
    begins = ray.remote(Begins).options(
        name=name, namespace=ray_env.NAMESPACE, num_cpus=0, max_restarts=1
    )
    actor = begins.remote(gate)
    assert not start_again_if_up(name)
    ray.get(gate.open.remote(), timeout=30)
    before = ray.get(actor.process.remote(), timeout=30)
    assert start_again_if_up(name)

    def another() -> bool:
        said = calls.each_call([name], "process", seconds=CALL_SECONDS)[name]
        return isinstance(said, int) and said != before

    wait_for(another, "it is another process")
    ray.kill(actor)
    wait_for(lambda: not start_again_if_up(name), "it is gone")
