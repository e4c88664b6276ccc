"""Cuts that are put aside: the replica lets go at once, another process reads on."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors import columns, export, exporter
from actors.clock import SystemClock
from actors.export import CUTS_MAX
from actors.exporter import Exporter
from actors.seat import Seat
from state_machines.errors import Invalid, NotFound, Overloaded, Stopped
from state_machines.offset.offset import CommitOffsets
from storage import copies
from storage.copies import Copies
from storage.disk_view import DATA
from tests.actors.wires import Group, eventually, in_loop, running

TABLE = "offset.offset"
ROWS = 500


@pytest.fixture
def reader() -> Iterator[Exporter]:
    made = Exporter(SystemClock())
    yield made
    for cut in tuple(made._open):
        made.close(cut)


async def commit(caller: Any, offset: int) -> None:
    """All rows in one command."""
    await caller.call(
        CommitOffsets(
            groups=("g",) * ROWS,
            topics=("t",) * ROWS,
            partitions=tuple(range(ROWS)),
            offsets=(offset,) * ROWS,
        )
    )


def rows_of(reader: Exporter, cut: str, rows: int = 100) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    page, after = reader.page(cut, TABLE, b"", rows)
    found += columns.from_ipc(page).to_pylist()
    while after:
        page, after = reader.page(cut, TABLE, after, rows)
        found += columns.from_ipc(page).to_pylist()
    return found


async def put_aside(seat: Seat) -> tuple[dict[str, Any], str]:
    said = await seat.export_open((TABLE,))
    return said, await seat.export_aside(said["cut"])


def left_in(root: Path, what: str = "*") -> list[Path]:
    return list(root.rglob(f"copies/{what}"))


def views(seat: Seat) -> int:
    assert seat.replica is not None
    return seat.replica.stores.state.engine.stats().views


@in_loop
async def test_a_copy_is_the_same_moment_and_pins_nothing(tmp_path: Path) -> None:
    reader = Exporter(SystemClock())
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        said, path = await put_aside(seat)
        assert said["rows"] == {TABLE: ROWS}
        assert said["bytes"] == (Path(path) / DATA).stat().st_size
        assert said["cluster"] == "test"
        await commit(caller, 2)
        await eventually(lambda: views(seat) == 0)
        with pytest.raises(Invalid, match="index: the copy is at"):
            reader.open(said["cut"], path, said["index"] + 1, (TABLE,))
        said, path = await put_aside(seat)
        await commit(caller, 3)
        assert reader.open(said["cut"], path, said["index"], (TABLE,)) == said["rows"]
        with pytest.raises(Invalid, match="open here already"):
            reader.open(said["cut"], path, said["index"], (TABLE,))
        seat.export_close(said["cut"])
        await eventually(lambda: not Path(path).exists())
        rows = rows_of(reader, said["cut"])
        assert [row["partition"] for row in rows] == list(range(ROWS))
        assert {row["offset"] for row in rows} == {2}
        assert {row["revision"] for row in rows} == {said["index"]}
        for table, count, what in ((TABLE, 0, "rows"), ("offset.group", 5, "not in this cut")):
            with pytest.raises(Invalid, match=what):
                reader.page(said["cut"], table, b"", count)
        reader.close(said["cut"])
        reader.close(said["cut"])
        with pytest.raises(NotFound, match="not open here"):
            reader.page(said["cut"], TABLE, b"", 5)
        with pytest.raises(NotFound, match="is gone"):
            reader.open(said["cut"], path, said["index"], (TABLE,))


@in_loop
async def test_what_cannot_be_put_aside_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        with pytest.raises(NotFound, match="not open here"):
            await seat.export_aside("nothing")
        said, _ = await put_aside(seat)
        with pytest.raises(Invalid, match="put aside"):
            await seat.export_aside(said["cut"])
        with pytest.raises(Invalid, match="read from the copy"):
            await seat.export_page(said["cut"], TABLE, b"", 5)
        seat.export_close(said["cut"])

        def full(*_: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        for name, value in (("copy_file_range", full), ("RESERVE_SHARE", 1)):
            with monkeypatch.context() as some:
                some.setattr(os if name == "copy_file_range" else copies, name, value)
                some.setattr(copies, "RESERVE_BYTES", 1 << 60 if name != "copy_file_range" else 0)
                said = await seat.export_open((TABLE,))
                with pytest.raises(Overloaded, match="no copy could be made"):
                    await seat.export_aside(said["cut"])
            with pytest.raises(NotFound):
                await seat.export_page(said["cut"], TABLE, b"", 5)
            assert left_in(tmp_path) == []
        assert len([await seat.export_open((TABLE,)) for _ in range(CUTS_MAX)]) == CUTS_MAX
        with pytest.raises(Overloaded):
            await seat.export_open((TABLE,))


@in_loop
async def test_a_cut_that_is_closed_while_it_is_copied_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "COPY_BYTES_PER_SECOND", 100_000)  # it would take long
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        said = await seat.export_open((TABLE,))
        copying = asyncio.ensure_future(seat.export_aside(said["cut"]))
        await eventually(lambda: left_in(tmp_path, f"*/{DATA}"))
        with pytest.raises(Invalid, match="already"):
            await seat.export_aside(said["cut"])
        seat.export_close(said["cut"])
        with pytest.raises(NotFound):
            await copying
        assert left_in(tmp_path) == []
        assert views(seat) == 0


@in_loop
async def test_copies_live_for_as_long_as_they_are_read_and_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Exporter(SystemClock())
    monkeypatch.setattr(export, "LOOK_SECONDS", 0.02)
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        monkeypatch.setattr(export, "LOOK_SECONDS", 0.2)
        _, path = await put_aside(seat)  # nobody comes
        await eventually(lambda: not Path(path).exists())
        said, path = await put_aside(seat)
        reader.open(said["cut"], path, said["index"], (TABLE,))
        looks, held = 0, Copies.held

        def counted(copies: Copies, name: str) -> bool:
            nonlocal looks
            looks += 1
            return held(copies, name)

        monkeypatch.setattr(Copies, "held", counted)
        await eventually(lambda: looks >= 3)
        assert left_in(tmp_path) == [Path(path)]
        assert len(rows_of(reader, said["cut"])) == ROWS
        reader.close(said["cut"])  # as the end of its process does
        await eventually(lambda: not Path(path).exists())
        monkeypatch.setattr(export, "COPY_SECONDS", 0.1)
        monkeypatch.setattr(exporter, "COPY_SECONDS", 0.1)
        said, path = await put_aside(seat)
        reader.open(said["cut"], path, said["index"], (TABLE,))
        await eventually(lambda: not Path(path).exists())  # its life is over
        with pytest.raises(NotFound, match="lived too long"):
            rows_of(reader, said["cut"])
        for _ in range(CUTS_MAX):
            await seat.export_open((TABLE,))


@in_loop
async def test_a_start_removes_what_a_killed_replica_has_left(tmp_path: Path) -> None:
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        _, path = await put_aside(seat)
        left = Path(path).with_name("left")  # by a process that had no time for anything
        left.mkdir()
        (left / DATA).touch()
        await group.crash(seat.spec.seat)
        seat = await group.sit(seat.spec.seat)
        await eventually(lambda: not left.exists())
        await group.leader()
        said, path = await put_aside(seat)
        assert (Path(path) / DATA).stat().st_size == said["bytes"]


@in_loop
async def test_a_damaged_copy_stops_nobody_but_its_reader(tmp_path: Path) -> None:
    reader = Exporter(SystemClock())
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        said, path = await put_aside(seat)
        data = Path(path) / DATA
        whole = data.read_bytes()
        data.write_bytes(whole.replace(b"\xa1t", b"\xa1u"))  # the topic, in every row
        assert data.read_bytes() != whole
        reader.open(said["cut"], path, said["index"], (TABLE,))
        with pytest.raises(Stopped, match="cannot be read"):
            rows_of(reader, said["cut"])
        with pytest.raises(NotFound):
            rows_of(reader, said["cut"])
        assert seat.hello()["status"] == "active"
        said, path = await put_aside(seat)
        (Path(path) / DATA).write_bytes(b"nothing of the kind" * 1_000)
        with pytest.raises(Stopped, match="cannot be read"):
            reader.open(said["cut"], path, said["index"], (TABLE,))


@in_loop
async def test_a_page_ends_with_its_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "PAGE_BYTES", 300)
    async with running(Group(tmp_path, name="offset-0", replicas=1)) as (group, caller):
        seat = await group.leader()
        await commit(caller, 1)
        said = await seat.export_open((TABLE,))
        page, after = await seat.export_page(said["cut"], TABLE, b"", 1_000)
        assert 1 < columns.from_ipc(page).num_rows < 50
        rows = columns.from_ipc(page).num_rows
        while after:
            page, after = await seat.export_page(said["cut"], TABLE, after, 1_000)
            rows += columns.from_ipc(page).num_rows
        assert rows == ROWS


def test_an_exporter_has_so_many_open(reader: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporter, "OPEN_MAX", 0)
    with pytest.raises(Overloaded, match="copies are open at this exporter"):
        reader.open("cut", "/nowhere", 1, (TABLE,))
    assert reader.process() == os.getpid()


def test_a_copy_is_not_made_faster_than_is_good(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(export, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(export, "COPY_BYTES_PER_SECOND", 1_000)
    pace = export.paced(SimpleNamespace(monotonic=lambda: now[0], now_ms=lambda: 0))
    pace(500)
    now[0] += 10
    pace(5_000)
    pace(20_000)
    assert slept == [pytest.approx(0.5), pytest.approx(9.5)]
