"""Pages of committed entries: each once and in order, wherever they are asked for, and compaction
waits for whoever asks, but not for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.caller import Caller
from actors.committed import (
    EXPORTERS_MAX,
    MARK_ENTRIES,
    PAGE_BYTES_MAX,
    SAVE_SECONDS,
    Holds,
)
from actors.config import RaftSettings
from actors.seat import Seat
from state_machines.errors import Invalid, Overloaded, Stopped
from state_machines.metadata.kv import PutKv
from state_machines.raft.messages import EntryKind
from state_machines.wire import api_pb2 as api
from storage import records
from tests.actors.wires import QUICK, Group, eventually, in_loop, running

ME = "history"


async def put(caller: Caller, count: int, size: int = 1) -> None:
    for number in range(count):
        await caller.call(PutKv(key=f"k{number}", value=bytes(size)))


async def all_of(seat: Seat, bytes_max: int, upto: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < upto:
        first = found[-1].index + 1 if found else 1
        page = await seat.committed(ME, first, bytes_max, 5_000, 0)
        found += [records.entry_from(each) for each in page["entries"]]
    return found


@in_loop
async def test_every_replica_tells_the_same_entries(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await put(caller, 10)
        leader = await group.leader()
        upto = leader.status()["commit"]
        stories = [
            await all_of(seat, bytes_max, upto)
            for seat in group.wires.living.values()
            for bytes_max in (1, 200, PAGE_BYTES_MAX)
        ]
        for story in stories:
            assert [each.index for each in story[:upto]] == list(range(1, upto + 1))
            assert story[:upto] == stories[0][:upto]
        keys = [
            command.body
            for entry in stories[0]
            if entry.kind is EntryKind.NORMAL
            for proposal in api.Batch.FromString(entry.data).proposals
            for command in proposal.commands
            if command.tag == "metadata.kv.put"
        ]
        assert len(keys) == 10


@in_loop
async def test_a_page_is_waited_for(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await put(caller, 1)
        seat = await group.leader()
        next_index = seat.status()["commit"] + 1
        nothing = await seat.committed(ME, next_index, 1_000, 20, 0)
        assert (nothing["entries"], nothing["leads"]) == ([], True)
        waiting = asyncio.ensure_future(seat.committed(ME, next_index, 1_000, 10_000, 0))
        await put(caller, 1)
        async with asyncio.timeout(5):
            page = await waiting
        assert [records.entry_from(each).index for each in page["entries"]] == [next_index]
        gone = asyncio.ensure_future(seat.committed(ME, next_index + 9, 1_000, 10_000, 0))
        await asyncio.sleep(0.05)
        await group.crash(seat.spec.seat)
        async with asyncio.timeout(5):
            with pytest.raises(Stopped):
                await gone


@in_loop
async def test_compaction_waits_for_an_exporter_and_goes_on_behind_it(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        seat = await group.leader()
        await seat.committed(ME, 1, 1_000, 0, 0)
        await put(caller, 120)
        upto = seat.status()["commit"]
        await eventually(lambda: seat.status()["flushed"] >= upto)
        settings = seat.status()["settings"]
        assert settings["log_keep_entries"] == 20
        assert "timer_check_ms" not in settings, "of the controller, which may go by another"
        await put(caller, 1)
        await eventually(lambda: seat.status()["flushed"] > upto)
        assert seat.status()["first_index"] == 1, "120 entries, where 20 to 40 are kept"
        assert seat.status()["held_for"] == {ME: 0}
        seat.hold_log(ME, 70)
        await put(caller, 1)
        await eventually(lambda: seat.status()["first_index"] > 1)
        assert seat.status()["first_index"] == 71
        page = await seat.committed(ME, 5, 1_000, 0, 70)
        assert (page["entries"], page["first_index"]) == ([], 71), "what is gone is not hidden"


@in_loop
async def test_an_exporter_that_is_too_slow_is_not_waited_for(tmp_path: Path) -> None:
    few = replace(QUICK, hold_bytes=20_000)
    async with running(Group(tmp_path, replicas=1, settings=few)) as (group, caller):
        seat = await group.leader()
        await seat.committed(ME, 1, 1_000, 0, 0)
        for _ in range(8):
            await put(caller, 10, size=1_000)
            await eventually(lambda: seat.status()["flushed"] >= seat.status()["commit"])
        await put(caller, 1)
        await eventually(lambda: seat.status()["first_index"] > 1)
        assert seat.status()["held_for"] == {ME: 0}


STOPPED_CLOCK = cast(Any, SimpleNamespace(monotonic=lambda: 0.0))


def test_what_is_held_is_within_the_bound_and_the_time() -> None:
    core = SimpleNamespace(first_index=1, bytes_between=lambda first, last: 10 * (last - first + 1))
    holds = Holds(cast(Any, core), RaftSettings(hold_bytes=1_000, hold_ms=60_000), STOPPED_CLOCK)
    assert holds.limit(50) is None
    holds.tell(ME, 20)
    assert holds.limit(20) is None
    assert holds.limit(50) == 20
    for flushed in range(60, 121, 10):
        assert holds.limit(flushed) == 20, "100 entries of 10 bytes are held at most"
    assert holds.limit(130) == 60, "and then a quarter of them goes at once"
    holds.tell(ME, 100)
    holds.tell("other", 90)
    assert holds.limit(140) == 90, "the slowest counts"
    assert holds.shown() == {ME: 100, "other": 90}
    holds.tell(ME, 140)
    holds.tell("other", 150)
    assert holds.limit(140) is None


def test_what_was_held_before_a_start_does_not_go_all_at_once() -> None:
    core = SimpleNamespace(
        first_index=21, progress={}, bytes_between=lambda first, last: 10 * (last - first + 1)
    )
    settings = RaftSettings(hold_bytes=100_000)
    holds = Holds(cast(Any, core), settings, STOPPED_CLOCK, {ME: 20})
    assert holds.limit(9_020) == holds.limit(10_020) == 20
    gone_to = holds.limit(11_020)
    assert gone_to is not None
    assert 3_520 <= gone_to < 3_520 + MARK_ENTRIES, "a quarter of what may be held, and what came"


PEER, OTHER = 2, 3


def sending(hold_bytes: int = 1_000) -> tuple[Holds, dict[int, Any]]:
    """A leader whose log begins after 100, with 10 bytes an entry, and has sent PEER and OTHER a
    snapshot; and what it knows of these two, who have nothing yet."""
    known = {peer: SimpleNamespace(match_index=0) for peer in (PEER, OTHER)}
    core = SimpleNamespace(
        first_index=101,
        applied_handed=110,
        bytes_between=lambda first, last: 10 * (last - first + 1),
        progress=known,
    )
    settings = RaftSettings(hold_bytes=hold_bytes)
    holds = Holds(cast(Any, core), settings, STOPPED_CLOCK)
    for peer in known:
        holds.stream(peer)
    return holds, known


def test_what_a_peer_needs_after_its_snapshot_stays_until_it_has_caught_up() -> None:
    holds, known = sending()
    assert holds.limit(150) == 100, "where the log began"
    known[PEER].match_index = 140
    assert holds.limit(150) == 100, "for the other"
    known[OTHER].match_index = 130
    assert holds.limit(150) == 130, "what both have may go"
    known[OTHER].match_index = 150
    assert holds.limit(150) == 140
    known[OTHER].match_index = 0
    assert holds.limit(150) == 140, "for who had caught up nothing is kept any more"
    holds.tell(ME, 120)
    assert holds.limit(150) == 120
    holds.tell(ME, 150)
    known[PEER].match_index = 170
    assert holds.limit(160) == 150
    assert holds.shown() == {ME: 150}, "exporters"


def test_nothing_is_kept_for_a_peer_whose_stream_broke_or_that_left() -> None:
    holds, known = sending()
    holds.broken(PEER)
    assert holds.limit(150) == 100
    del known[OTHER]
    assert holds.limit(150) is None
    holds.broken(OTHER)


def test_nothing_is_kept_for_peers_by_who_leads_no_more() -> None:
    holds, known = sending()
    known.clear()
    assert holds.limit(150) is None


def test_a_peer_that_is_too_slow_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    holds, known = sending(hold_bytes=500)
    known[OTHER].match_index = 130
    for flushed in range(110, 161, 10):
        assert holds.limit(flushed) == 100, "50 entries of 10 bytes beside those that were there"
    known[OTHER].match_index = 145
    assert holds.limit(170) == 140, "and then a quarter of them goes at once"
    assert "replica 2 catches up too slowly" in caplog.text
    assert "replica 3" not in caplog.text
    known[OTHER].match_index = 170
    assert holds.limit(170) is None, "the first is not waited for"


def test_who_is_not_heard_is_forgotten() -> None:
    core = SimpleNamespace(first_index=1, bytes_between=lambda first, last: 1)
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    holds = Holds(cast(Any, core), RaftSettings(hold_ms=60_000), cast(Any, clock))
    holds.tell(ME, 20)
    now = 59.0
    assert holds.limit(50) == 20
    now = 61.0
    assert holds.limit(50) is None
    assert holds.shown() == {}


def test_who_is_registered_is_written_down_and_counts_as_heard_at_a_start() -> None:
    core = SimpleNamespace(first_index=1, bytes_between=lambda first, last: 1)
    now = begun = 500.0
    clock = cast(Any, SimpleNamespace(monotonic=lambda: now))
    settings = RaftSettings(hold_ms=120_000)
    holds = Holds(cast(Any, core), settings, clock)
    assert holds.to_save() is None
    holds.tell(ME, 20)
    assert holds.to_save() == {ME: 20}, "at once, who is new"
    assert holds.to_save() is None
    holds.saved({ME: 20})
    holds.tell(ME, 30)
    assert holds.to_save() is None
    now = begun + SAVE_SECONDS
    assert holds.to_save() == {ME: 30}
    now = begun + 2 * SAVE_SECONDS
    assert holds.to_save() == {ME: 30}, "it could not be written"
    holds.saved({ME: 30})

    now = 1_000.0
    again = Holds(cast(Any, core), settings, clock, {ME: 30})
    assert again.shown() == {ME: 30}
    assert again.to_save() is None
    now = 1_119.0
    assert again.limit(50) == 30
    now = 1_121.0
    assert again.limit(50) is None, "he was not heard since the start"
    assert again.to_save() == {}


@pytest.mark.parametrize(
    ("field", "ask"),
    [
        ("first", lambda seat: seat.committed(ME, 0, 1, 0, 0)),
        ("first", lambda seat: seat.committed(ME, "1", 1, 0, 0)),
        ("first", lambda seat: seat.committed(ME, 1 << 63, 1, 0, 0)),
        ("bytes_max", lambda seat: seat.committed(ME, 1, PAGE_BYTES_MAX + 1, 0, 0)),
        ("timeout_ms", lambda seat: seat.committed(ME, 1, 1, 10_001, 0)),
        ("exported", lambda seat: seat.committed(ME, 1, 1, 0, -1)),
        ("exported", lambda seat: seat.committed(ME, 1, 1, 0, True)),
        ("exporter", lambda seat: seat.committed("", 1, 1, 0, 0)),
        ("exporter", lambda seat: seat.committed("x" * 65, 1, 1, 0, 0)),
        ("exporter", lambda seat: seat.committed(7, 1, 1, 0, 0)),
    ],
)
def test_bad_input_is_refused_by_name(
    field: str, ask: Callable[[Seat], Any], tmp_path: Path
) -> None:
    @in_loop
    async def check() -> None:
        async with running(Group(tmp_path, replicas=1)) as (group, _):
            seat = await group.leader()
            with pytest.raises(Invalid, match=f"^{field}: "):
                await ask(seat)
            assert seat.status()["held_for"] == {}

    check()


def test_only_so_many_exporters_are_registered_and_who_was_heard_least_lately_makes_room() -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now)
    holds = Holds(cast(Any, SimpleNamespace()), RaftSettings(), cast(Any, clock))
    for number in range(EXPORTERS_MAX):
        holds.tell(f"e{number}", 1)
    now = 29.0
    holds.tell("e0", 2)
    with pytest.raises(Overloaded):
        holds.tell("one more", 1)
    now = 30.0
    holds.tell("one more", 1)
    assert {*holds.shown()} == {"one more", *(f"e{n}" for n in range(EXPORTERS_MAX) if n != 1)}
