"""A large state is looked at while its replica takes part, and what is wrong stops it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.inspection import Inspection
from actors.storage_thread import StorageThread
from state_machines.metadata.kv import GetKv, PutKv
from storage.disk import DiskEngine
from storage.shelf import DiskShelf
from storage.state import State
from storage.walk import STEP_ROWS, Walk
from tests.actors.wires import QUICK, Group, eventually, in_loop, running
from tests.storage.faults import point

SETTINGS = replace(QUICK, flush_interval_ms=60_000)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every state is so large that nobody waits for it."""
    monkeypatch.setattr("storage.home.VERIFY_ROWS", 0)


async def filled(group: Group, caller: Any, rows: int = 30) -> None:
    for number in range(rows):
        await caller.call(PutKv(key=f"k{number:02}", value=b"right"))
    await group.wires.living["metadata-0/0"].close()  # flushed
    group.wires.kill("metadata-0/0")


@in_loop
async def test_a_sound_state_is_served_at_once_and_verified_soon(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1, settings=SETTINGS)) as (group, caller):
        await filled(group, caller)
        seat = await group.sit("metadata-0/0")
        assert seat.replica is not None
        assert not seat.replica.status()["verified"]
        assert (await caller.call(GetKv(key="k07"))).value == b"right"
        await eventually(lambda: seat.replica is not None and seat.replica.status()["verified"])
        assert seat.status_word == "active"


@in_loop
async def test_a_row_that_is_hidden_stops_its_replica_soon(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1, settings=SETTINGS)) as (group, caller):
        await filled(group, caller)
        hide(tmp_path)
        seat = await group.sit("metadata-0/0")
        await eventually(lambda: seat.status_word == "stopped")
        assert "metadata.kv" in seat.hello()["fault"]


def hide(root: Path) -> None:
    """Flip a bit of a key."""
    (path,) = root.rglob("state/1")
    engine = DiskEngine(path)
    key, value = next(row for row in engine.scan("metadata.kv") if b"k07" in row[0])
    engine.write([("metadata.kv", key, None), ("metadata.kv", key.replace(b"k07", b"k17x"), value)])
    engine.close()


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    state = State(DiskShelf(tmp_path / "s", tmp_path / "i", map_bytes=1 << 20))
    for n in range(3 * STEP_ROWS):
        state.put("t", (n,), b"1")
    state.put("u", ("k",), b"1")
    state.set_applied(point(1))
    state.flush()
    yield state
    state.close()


def inspected(state: State, meanwhile: Callable[[str, int], None]) -> list[BaseException]:
    """Look at everything, ticking; `meanwhile` is told before each step. What failed."""

    async def run() -> list[BaseException]:
        storage = StorageThread("s")
        failures: list[BaseException] = []
        inspection = Inspection(state=state, storage=storage, failed=failures.append)

        def ticked() -> bool:
            if not state.verified:
                inspection.start()
            return state.verified or bool(failures)

        await eventually(ticked)
        storage.close()
        return failures

    step = Walk.step

    def told(walk: Walk) -> bool:
        meanwhile(walk._table, walk.rows)
        return step(walk)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Walk, "step", told)
        return asyncio.run(run())


def test_a_view_that_is_taken_away_is_taken_again_for_that_table(state: State) -> None:
    looked: list[tuple[str, int]] = []

    def grow(table: str, rows: int) -> None:
        looked.append((table, rows))
        if looked.count(("t", STEP_ROWS)) == 1 and rows == STEP_ROWS:
            engine = state.engine
            assert isinstance(engine, DiskEngine)
            engine._grow(2 * engine.stats().map_bytes)

    assert inspected(state, grow) == []
    assert looked.count(("@state", 0)) == 1
    assert looked.count(("t", 0)) == 2
    assert looked.count(("u", 0)) == 1
    assert state.engine.stats().views == 0


def test_rows_that_change_meanwhile_are_none_of_its_business(state: State) -> None:
    def write(table: str, rows: int) -> None:
        if rows == STEP_ROWS:
            for n in range(100):
                state.delete("t", (n,))
                state.put("t", (10_000 + n,), b"2")
            state.set_applied(point(2))
            state.flush()

    assert inspected(state, write) == []
    assert state.verified


def test_what_is_wrong_is_told(state: State) -> None:
    rows = list(state.engine.scan("t"))
    state.engine.write([("t", rows[700][0], rows[701][1])])
    (error,) = inspected(state, lambda table, rows: None)
    assert "of table 't'" in str(error)
    assert not state.verified
    assert state.engine.stats().views == 0


def test_it_is_given_up_with_its_replica(state: State) -> None:
    async def run() -> None:
        storage = StorageThread("s")
        inspection = Inspection(state=state, storage=storage, failed=lambda error: None)
        inspection.close()
        inspection.start()
        await asyncio.sleep(0)
        inspection.close()
        task = inspection._task
        assert task is not None
        await asyncio.wait([task])
        assert task.cancelled()
        storage.close()

    asyncio.run(run())
    assert state.engine.stats().views == 0
    assert not state.verified
