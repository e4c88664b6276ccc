"""What a reconnect storm says of heartbeats, from a service whose answers are known."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from bench import storm_broker
from bench.storm_broker import Heartbeats
from state_machines.metadata.node import RegisterNode
from tests.actors.virtual_time import in_virtual_time


class Answers:
    """A client whose heartbeats take so long, one after the other."""

    def __init__(self, *seconds: float) -> None:
        self._seconds = iter(seconds)

    async def call(self, operation: Any) -> Any:
        if isinstance(operation, RegisterNode):
            return SimpleNamespace(epoch=1)
        await asyncio.sleep(next(self._seconds))
        return None


@pytest.mark.parametrize(
    ("took", "until", "missed", "longest_ms"),
    [
        ((0.25, 0.5, 0.25), 2.5, 0, 500),
        ((0.25, 1.5, 0.25), 3.5, 1, 1_500),
        ((0.25, 60.0), 3.5, 1, 2_500),
        ((0.25, 60.0), 1.5, 0, 500),
    ],
    ids=["in-time", "late", "late-and-never-answered", "under-way"],
)
def test_a_heartbeat_counts_though_the_storm_is_over_before_its_answer(
    took: tuple[float, ...],
    until: float,
    missed: int,
    longest_ms: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def now() -> float:
        return asyncio.get_running_loop().time()

    monkeypatch.setattr(storm_broker, "time", SimpleNamespace(monotonic=now))

    @in_virtual_time
    async def run() -> None:
        client: Any = Answers(*took)
        beats = Heartbeats(client, "b1")
        await beats.begin()
        await asyncio.sleep(until)
        await beats.end()
        assert beats.missed == missed
        assert beats.longest_ms == pytest.approx(longest_ms)
        assert beats.sent == len(took)

    run()
