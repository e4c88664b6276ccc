"""What the rows of isolation say, from writers whose speed is known."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from bench import isolation, other, workloads
from bench.workloads import Sample
from state_machines.errors import NoQuorum
from tests.actors.wires import in_loop

IDLE = Sample(ops_per_s=400.0, p50_ms=1.0, p99_ms=2.0, calls=2_000, errors=0)
BUSY = Sample(ops_per_s=200.0, p50_ms=2.0, p99_ms=5.0, calls=1_000, errors=3)
NOBODY = Sample.of(5.0, [], 1, 4)


async def measured(monkeypatch: pytest.MonkeyPatch, *samples: Sample) -> dict[str, float]:
    """A round with these writes before the load and beside it."""

    @asynccontextmanager
    async def started(client: Any, module: str) -> AsyncIterator[Any]:
        assert module == "bench.saturate"
        yield Mock(said=AsyncMock(return_value={"ops_per_s": 9}), over=AsyncMock())

    monkeypatch.setattr(workloads, "put", AsyncMock(side_effect=samples))
    monkeypatch.setattr(other, "started", started)
    client: Any = Mock()
    return await isolation.beside("saturate", "commits_per_s")(client, 5.0)


@in_loop
async def test_isolation_is_how_much_longer_a_write_takes_beside_the_load(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await measured(monkeypatch, IDLE, BUSY) == {
        "figure": 2.5,
        "p50_ms": 2.0,
        "p99_ms": 5.0,
        "idle_p50_ms": 1.0,
        "idle_p99_ms": 2.0,
        "commits_per_s": 9.0,
        "errors": 3.0,
    }


@in_loop
async def test_writes_that_are_never_answered_beside_the_load_took_all_of_the_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await measured(monkeypatch, IDLE, NOBODY)
    assert (found["figure"], found["p99_ms"], found["errors"]) == (2_500.0, 5_000.0, 4.0)


@in_loop
async def test_there_is_nothing_to_hold_a_load_against_where_no_write_was_answered_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(NoQuorum, match="no write of metadata was answered within 5 s"):
        await measured(monkeypatch, NOBODY, BUSY)
