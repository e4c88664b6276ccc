"""A controller that Ray restarts while its control service is slow."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
import ray

from actors import calls, remote
from actors.config import ClusterConfig
from actors.seat_spec import SeatSpec
from state_machines.errors import Stopped


def test_a_controller_starts_though_ray_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its constructor must not raise: Ray would never restart it, and nobody would notice."""

    async def no_answer(_groups: calls.LinkedGroups) -> None:
        raise Stopped("Ray's control service does not answer")

    monkeypatch.setattr(calls.LinkedGroups, "refresh", no_answer)
    node = SimpleNamespace(get_node_id=lambda: "n1")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: node)
    spec = SeatSpec("metadata-0", "metadata-0/0", ("metadata-0/0",), ClusterConfig().raft)

    async def start() -> dict[str, object]:
        controller = remote.ControllerActor.__new__(remote.ControllerActor)
        await controller.__init__(7, spec)  # type: ignore[misc]
        status = controller.status()
        assert controller._task is not None
        controller._task.cancel()
        await asyncio.gather(controller._task, return_exceptions=True)
        return status

    status = asyncio.run(start())
    assert status["epoch"] == 7
    assert status["node"] == "n1"
