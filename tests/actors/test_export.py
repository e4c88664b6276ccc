"""Cuts: all rows of one moment, in pages, for a while, and not too many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import columns, export
from actors.export import CUTS_MAX, PAGE_ROWS_MAX
from actors.seat import Seat
from state_machines.errors import Invalid, NotFound, Overloaded, Stopped
from state_machines.offset.group import DeleteGroup
from state_machines.offset.offset import CommitOffsets
from state_machines.tables import TABLES
from tests.actors.wires import Group, in_loop, running

TABLE = "offset.offset"


async def rows_of(
    seat: Seat, cut: str, rows: int = 100, table: str = TABLE
) -> list[dict[str, Any]]:
    """All rows of a cut, page by page."""
    found: list[dict[str, Any]] = []
    after = b""
    for _ in range(1_000):
        page, after = await seat.export_page(cut, table, after, rows)
        batch = columns.from_ipc(page)
        assert batch.num_rows <= rows
        found.extend(batch.to_pylist())
        if not after:
            return found
    raise AssertionError("pages without end")


async def read_for_ever(seat: Seat, cut: str) -> None:
    while True:
        await seat.export_page(cut, TABLE, b"", 10)


async def commit(caller: Any, partition: int, offset: int) -> None:
    await caller.call(
        CommitOffsets(groups=("g",), topics=("t",), partitions=(partition,), offsets=(offset,))
    )


async def filled(caller: Any, count: int) -> None:
    for number in range(count):
        await commit(caller, number, 1)


@in_loop
async def test_a_cut_is_one_moment(tmp_path: Path) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        await filled(caller, 50)
        seat = await group.leader()
        cut = await seat.export_open((TABLE,))
        assert cut["group"] == "offset-0"
        assert seat.replica is not None
        assert cut["index"] == seat.replica.applied.index
        first, after = await seat.export_page(cut["cut"], TABLE, b"", 10)
        await filled(caller, 51)
        await caller.call(DeleteGroup(group="g"))
        await commit(caller, 0, 99)
        rows = columns.from_ipc(first).to_pylist()
        while after:
            page, after = await seat.export_page(cut["cut"], TABLE, after, 10)
            rows += columns.from_ipc(page).to_pylist()
        assert [row["partition"] for row in rows] == list(range(50))
        assert {row["commits"] for row in rows} == {1}
        later = await seat.export_open((TABLE,))
        assert later["index"] > cut["index"]
        assert [row["offset"] for row in await rows_of(seat, later["cut"])] == [99]


@pytest.mark.parametrize("rows", [1, 7, 20, 21, 40, 1_000])
def test_pages_of_any_size_hold_each_row_once(rows: int, tmp_path: Path) -> None:
    @in_loop
    async def run() -> None:
        async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
            await filled(caller, 20)
            seat = await group.leader()
            cut = await seat.export_open((TABLE,))
            found = await rows_of(seat, cut["cut"], rows)
            assert [row["partition"] for row in found] == list(range(20))

    run()


@in_loop
async def test_an_empty_table_is_an_empty_page(tmp_path: Path) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        await filled(caller, 1)
        seat = await group.leader()
        await caller.call(DeleteGroup(group="g"))
        cut = await seat.export_open((TABLE, "offset.group"))
        assert await rows_of(seat, cut["cut"], table="offset.group") == []


@in_loop
async def test_bad_requests_are_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        await filled(caller, 1)
        seat = await group.leader()
        with pytest.raises(NotFound, match=r"no\.such"):
            await seat.export_open((TABLE, "no.such"))
        with monkeypatch.context() as patch:
            patch.setitem(TABLES, "no.columns", SimpleNamespace(row=dict))
            with pytest.raises(Invalid, match=r"'no\.columns' cannot be exported"):
                await seat.export_open(("no.columns",))
        cut = (await seat.export_open((TABLE,)))["cut"]
        with pytest.raises(NotFound, match="not open"):
            await seat.export_page("another", TABLE, b"", 10)
        with pytest.raises(Invalid, match="table"):
            await seat.export_page(cut, "offset.group", b"", 10)
        for rows in (0, -1, PAGE_ROWS_MAX + 1):
            with pytest.raises(Invalid, match="rows"):
                await seat.export_page(cut, TABLE, b"", rows)
        assert len(await rows_of(seat, cut)) == 1


@in_loop
async def test_only_so_many_cuts_are_open_at_once(tmp_path: Path) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        await filled(caller, 1)
        seat = await group.leader()
        answers = await asyncio.gather(
            *(seat.export_open((TABLE,)) for _ in range(3 * CUTS_MAX)), return_exceptions=True
        )
        cuts = [each["cut"] for each in answers if isinstance(each, dict)]
        assert len(cuts) == CUTS_MAX
        assert all(isinstance(each, dict | Overloaded) for each in answers)
        seat.export_close(cuts[0])
        seat.export_close(cuts[0])
        await seat.export_open((TABLE,))
        with pytest.raises(NotFound):
            await seat.export_page(cuts[0], TABLE, b"", 10)


@in_loop
async def test_a_cut_that_lives_too_long_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "CUT_SECONDS", 0.02)
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        await filled(caller, 1)
        seat = await group.leader()
        for _ in range(2 * CUTS_MAX):
            cut = (await seat.export_open((TABLE,)))["cut"]
            with pytest.raises(NotFound, match="lived too long"):
                await read_for_ever(seat, cut)


@in_loop
async def test_a_view_that_was_lost_is_said_so_and_makes_room(tmp_path: Path) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        await filled(caller, 1)
        seat = await group.leader()
        assert seat.replica is not None
        engine = seat.replica.stores.state.engine
        cut = (await seat.export_open((TABLE,)))["cut"]
        views = seat._exports
        assert views is not None
        lost = views._cuts[cut].view
        assert lost is not None
        lost.close()  # as the engine does when it has to remap
        with pytest.raises(NotFound, match="take a new one"):
            await seat.export_page(cut, TABLE, b"", 10)
        assert engine.stats() is not None
        for _ in range(CUTS_MAX):
            await seat.export_open((TABLE,))


@in_loop
async def test_a_stopped_replica_and_a_vacant_seat_export_nothing(tmp_path: Path) -> None:
    group = Group(tmp_path, name="offset-0", replicas=1)
    vacant = await group.sit("offset-0/0")
    with pytest.raises(Stopped, match="vacant"):
        await vacant.export_open((TABLE,))
    vacant.export_close("whatever")
    await group.close()
