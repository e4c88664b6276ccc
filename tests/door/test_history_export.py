"""The operation history of groups in this process: each command once, whoever is killed and when,
and what could not be had is told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from actors.caller import Caller
from actors.config import RaftSettings
from jobs import operation_files, operations
from jobs.errors import BadHistory
from metaray.history import source as sources
from metaray.history.exporter import Exporter
from metaray.history.source import Source, exporter_name
from metaray.history.store import Store, extent
from state_machines.errors import Conflict, NoQuorum
from state_machines.metadata.kv import PutKv
from state_machines.offset.offset import CommitOffsets
from storage.exporters import EXPORTERS
from tests.actors.wires import QUICK, FromSeat, Group, eventually, in_loop, running

SETTINGS = replace(QUICK, rotate_ms=100, rotate_bytes=64 << 10)


def exporter(group: Group, directory: Path, settings: RaftSettings = SETTINGS) -> Exporter:
    source = Source(FromSeat(group.wires, "exporter"), group.wires, directory)
    return Exporter(source, Store.open(directory, "test"), settings)


def rows(directory: Path) -> list[dict[str, Any]]:
    return [row for page in operations.pages_of(directory) for row in page.to_pylist()]


def puts(directory: Path) -> list[str]:
    return [row["subject"] for row in rows(directory) if row["op"] == "metadata.kv.put"]


def check_once(directory: Path) -> None:
    keys = [(row["group"], row["index"], row["number"]) for row in rows(directory)]
    assert keys == sorted(set(keys))


async def put(caller: Caller, begin: int, end: int) -> list[str]:
    for number in range(begin, end):
        await caller.call(PutKv(key=f"k{number:04}", value=b"v"))
    return [f"k{number:04}" for number in range(begin, end)]


@in_loop
async def test_what_was_committed_is_told_once_with_who_and_when(tmp_path: Path) -> None:
    async with running(Group(tmp_path / "raft", name="offset-0")) as (group, caller):
        commit = CommitOffsets(
            groups=("g", "h", "g"), topics=("t", "t", "u"), partitions=(0, 0, 0), offsets=(1, 2, 3)
        )
        reply = await caller.call(commit)
        async with exporter(group, tmp_path / "out") as one:
            await one.catch_up()
            assert {each["seat"] for each in one.status()} != {(await group.leader()).spec.seat}
        found = rows(tmp_path / "out")
        register, first, second = found
        assert (register["op"], register["outcome"]) == ("client.register", "")
        assert int(register["client"], 16) == register["index"] << 16
        assert first == {
            "group": "offset-0",
            "index": first["index"],
            "number": 0,
            "term": 1,
            "at_ms": reply.commit_ms,
            "client": register["client"],
            "sequence": 1,
            "op": "offset.commit",
            "tenant": "default",
            "subject": "g",
            "items": 2,
            "bytes": first["bytes"],
            "outcome": None,
            "body": first["body"],
        }
        assert (second["subject"], second["items"], second["number"]) == ("h", 1, 1)
        assert (second["index"], second["body"]) == (first["index"], None)
        assert first["bytes"] + second["bytes"] == len(first["body"])


@in_loop
async def test_the_export_goes_on_where_it_was_whoever_leads(tmp_path: Path) -> None:
    async with running(Group(tmp_path / "raft")) as (group, caller):
        wanted: list[str] = []
        for turn in range(4):
            wanted += await put(caller, turn * 10, turn * 10 + 10)
            async with exporter(group, tmp_path / "out") as one:
                await one.catch_up()
            assert puts(tmp_path / "out") == wanted
            leader = (await group.leader()).spec.seat
            await group.crash(leader)
            await group.leader()
            await group.sit(leader)
        check_once(tmp_path / "out")
        assert extent(tmp_path / "out", "metadata-0").gaps == ()


@in_loop
async def test_it_follows_while_writers_write_and_ends_cleanly(tmp_path: Path) -> None:
    async with running(Group(tmp_path / "raft")) as (group, caller):
        wanted: list[str] = []
        for turn in range(3):  # each is cancelled wherever it is just then
            one = exporter(group, tmp_path / "out")
            task = asyncio.create_task(one.run())
            wanted += await put(caller, turn * 60, turn * 60 + 60)
            if turn == 1:
                await group.crash(one.status()[0]["seat"])
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await one.close()
            check_once(tmp_path / "out")
        async with exporter(group, tmp_path / "out") as last:
            await last.catch_up()
        assert puts(tmp_path / "out") == wanted
        told = extent(tmp_path / "out", "metadata-0")
        assert (told.gaps, told.files > 3) == ((), True)


@in_loop
async def test_every_replica_keeps_what_is_only_gathered(tmp_path: Path) -> None:
    slow = replace(SETTINGS, rotate_ms=60_000)
    async with running(Group(tmp_path / "raft")) as (group, caller):
        one = exporter(group, tmp_path / "out", slow)
        task = asyncio.create_task(one.run())
        for turn in range(3):
            await put(caller, turn, turn + 1)
            least = (await group.leader()).status()["commit"]
            await eventually(partial(gathered, one, least))
        held = [each.status()["held_for"] for each in group.wires.living.values()]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await one.close()
        assert held == [{exporter_name(tmp_path / "out"): 0}] * 3
        assert puts(tmp_path / "out") == ["k0000", "k0001", "k0002"]


@in_loop
async def test_replicas_that_start_again_keep_what_an_exporter_that_is_away_lacks(
    tmp_path: Path,
) -> None:
    name = exporter_name(tmp_path / "out")
    async with running(Group(tmp_path / "raft")) as (group, caller):
        wanted = await put(caller, 0, 5)
        async with exporter(group, tmp_path / "out") as one:
            await one.catch_up()
        exported = extent(tmp_path / "out", "metadata-0").exported
        for each in group.wires.living.values():
            each.hold_log(name, exported)
        wanted += await put(caller, 5, 100)
        await eventually(lambda: len([*(tmp_path / "raft").rglob(EXPORTERS)]) == 3)
        for seat in group.seat_names:
            await group.crash(seat)
            await group.leader()
            await group.sit(seat)
            await group.leader()
            assert name in group.wires.living[seat].status()["held_for"]
        for number in (100, 101, 102):  # compaction comes with flushes
            wanted += await put(caller, number, number + 1)
            await eventually(partial(flushed, group, (await group.leader()).status()["commit"]))
        async with exporter(group, tmp_path / "out") as one:
            await one.catch_up()
        assert extent(tmp_path / "out", "metadata-0").gaps == ()
        assert puts(tmp_path / "out") == wanted


@in_loop
async def test_who_exports_elsewhere_lets_nothing_go_that_another_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TELL_SECONDS", 0.0)
    slow, quick = tmp_path / "slow", tmp_path / "quick"
    async with running(Group(tmp_path / "raft")) as (group, caller):
        async with exporter(group, slow) as one, exporter(group, quick) as other:
            await put(caller, 0, 5)
            await one.catch_up()
            for first in (5, 100):  # what is asked with says how far it was before
                await put(caller, first, first + 95)
                await other.catch_up()
            for number in (195, 196):
                await put(caller, number, number + 1)
                await eventually(partial(flushed, group, number + 1))
            await one.catch_up()
        assert extent(slow, "metadata-0").gaps == ()
        assert len(puts(slow)) == 197


def flushed(group: Group, least: int) -> bool:
    return all(each.status()["flushed"] >= least for each in group.wires.living.values())


def gathered(one: Exporter, least: int) -> bool:
    return any(each["gathered"] >= least for each in one.status())


@in_loop
async def test_what_is_gone_is_a_gap_and_the_export_goes_on(tmp_path: Path) -> None:
    few = replace(SETTINGS, hold_bytes=0)
    async with running(Group(tmp_path / "raft", settings=few)) as (group, caller):
        wanted = await put(caller, 0, 5)
        async with exporter(group, tmp_path / "out") as one:
            await one.catch_up()
        before = extent(tmp_path / "out", "metadata-0").exported
        await put(caller, 5, 150)
        await eventually(
            lambda: all(x.status()["first_index"] > before + 1 for x in group.wires.living.values())
        )
        async with exporter(group, tmp_path / "out") as one:
            await one.catch_up()
        told = extent(tmp_path / "out", "metadata-0")
        assert told.gaps[0].first == before + 1
        assert "too slow" in told.gaps[0].reason
        wanted += await put(caller, 150, 151)
        async with exporter(group, tmp_path / "out") as one:
            await one.catch_up()
        found = puts(tmp_path / "out")
        assert found[:5] == wanted[:5]
        assert found[-1] == wanted[-1]
        indexes = [row["index"] for row in rows(tmp_path / "out")]
        lost = {
            index
            for gap in extent(tmp_path / "out", "metadata-0").gaps
            for index in range(gap.first, gap.last + 1)
        }
        assert lost.isdisjoint(indexes)
        assert len(found) == 151 - len(lost), "all but what the gaps say"


@in_loop
async def test_a_gap_is_not_told_while_somebody_silent_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = replace(SETTINGS, hold_bytes=0)
    async with running(Group(tmp_path / "raft", settings=few)) as (group, caller):
        await put(caller, 0, 5)
        away = group.followers()[0].spec.seat
        await eventually(lambda: group.wires.living[away].status()["applied"] >= 6)
        await group.crash(away)  # its log begins at 1 for ever
        await put(caller, 5, 150)
        await eventually(
            lambda: all(x.status()["first_index"] > 1 for x in group.wires.living.values())
        )
        group.wires.living[away] = silent = _Silent()  # type: ignore[assignment]
        async with exporter(group, tmp_path / "out") as one:
            with pytest.raises(NoQuorum, match=f"unless {away} still has it"):
                await one.catch_up()
            monkeypatch.setattr(sources, "MISS_SECONDS", 0.0)
            await one.catch_up()
        assert silent.asked
        told = extent(tmp_path / "out", "metadata-0")
        first = told.gaps[0]
        assert (first.first, first.reason) == (1, "committed before the export began")
        del group.wires.living[away]


class _Silent:
    """A seat that is there and says nothing."""

    replica = None

    def __init__(self) -> None:
        self.asked = 0

    def status(self) -> dict[str, Any]:
        self.asked += 1
        raise ConnectionResetError


class _OneAway(Source):
    """There is another group before the one that answers: it has entries, which nobody gives."""

    async def groups(self) -> Sequence[str]:
        return ("metadata-9", *await super().groups())

    async def commits(self, group: str) -> int:
        return 1 if group == "metadata-9" else await super().commits(group)


@in_loop
async def test_a_group_that_is_away_keeps_no_other_from_being_exported(tmp_path: Path) -> None:
    async with running(Group(tmp_path / "raft")) as (group, caller):
        wanted = await put(caller, 0, 10)
        source = _OneAway(FromSeat(group.wires, "exporter"), group.wires, tmp_path / "out")
        async with Exporter(source, Store.open(tmp_path / "out", "test"), SETTINGS) as one:
            with pytest.raises(NoQuorum, match="metadata-9"):
                await one.catch_up()
            assert puts(tmp_path / "out") == wanted


@in_loop
async def test_a_disk_that_is_full_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(Group(tmp_path / "raft")) as (group, caller):
        wanted = await put(caller, 0, 10)
        async with exporter(group, tmp_path / "out") as one:
            with monkeypatch.context() as full:
                full.setattr(operation_files, "sync_file", _full)
                with pytest.raises(OSError, match="No space"):
                    await one.catch_up()
                assert puts(tmp_path / "out") == []
            await one.catch_up()
        assert puts(tmp_path / "out") == wanted
        check_once(tmp_path / "out")


@in_loop
async def test_who_has_a_full_disk_is_still_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "TELL_SECONDS", 0.0)
    name = exporter_name(tmp_path / "out")
    async with running(Group(tmp_path / "raft")) as (group, caller):
        await put(caller, 0, 5)
        async with exporter(group, tmp_path / "out") as one:
            with monkeypatch.context() as full:
                full.setattr(operation_files, "sync_file", _full)
                with pytest.raises(OSError, match="No space"):
                    await one.catch_up()
                again = group.followers()[0].spec.seat
                await group.crash(again)
                for each in (tmp_path / "raft" / again.replace("/", "-")).rglob(EXPORTERS):
                    each.unlink()
                await group.sit(again)  # it knows no exporter any more
                assert group.wires.living[again].status()["held_for"] == {}
                await put(caller, 5, 6)
                with pytest.raises(OSError, match="No space"):
                    await one.catch_up()
                assert group.wires.living[again].status()["held_for"] == {name: 0}


def _full(path: Path) -> None:
    raise OSError(28, "No space left on device")


@contextmanager
def opened(directory: Path, cluster: str = "test") -> Iterator[Store]:
    store = Store.open(directory, cluster)
    yield store
    store.close()


def test_a_directory_has_one_exporter_and_one_cluster(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(Conflict, match="another exporter"):
        Store.open(tmp_path, "test")
    with pytest.raises(BadHistory, match="of cluster 'test', not of 'other'"):
        Store.open(tmp_path, "other")
    (tmp_path / operation_files.IDENTITY).write_text("{")
    with pytest.raises(BadHistory, match=operation_files.IDENTITY):
        Store.open(tmp_path, "test")
    (tmp_path / "file").touch()
    with pytest.raises(BadHistory):
        Store.open(tmp_path / "file", "test")
