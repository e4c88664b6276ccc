"""Whom a stale read is asked: a few the same seat, for a while; many at once all of them."""

from __future__ import annotations

import asyncio
from random import Random

from actors.caller import Caller
from actors.spread import STAY_SECONDS, TOGETHER, Spread
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import Call, Script
from tests.actors.virtual_time import in_virtual_time

SEATS = ("g/0", "g/1", "g/2")


def test_one_call_at_a_time_stays_with_a_seat_for_a_while() -> None:
    spread = Spread(Random(1))
    chosen = []
    for step in range(100):
        chosen.append(spread.choose(SEATS, step * STAY_SECONDS / 10))
        spread.begin(chosen[-1])
        spread.end(chosen[-1])
    assert all(len(set(chosen[at : at + 10])) == 1 for at in range(0, 100, 10))
    assert set(chosen) == set(SEATS), "nobody stays for ever"


def test_two_calls_at_a_time_share_a_seat_and_the_third_goes_elsewhere() -> None:
    spread = Spread(Random(1))
    chosen = []
    for _ in range(TOGETHER + 1):
        chosen.append(spread.choose(SEATS, 0.0))
        spread.begin(chosen[-1])
    assert len(set(chosen[:TOGETHER])) == 1
    assert chosen[TOGETHER] != chosen[0]
    spread.end(chosen[0])
    assert spread.choose(SEATS, 0.0) == chosen[TOGETHER], "it was asked last"


def test_many_calls_at_a_time_are_spread_over_all() -> None:
    spread = Spread(Random(1))
    under_way = []
    for _ in range(30):
        under_way.append(spread.choose(SEATS, 0.0))
        spread.begin(under_way[-1])
    assert {seat: under_way.count(seat) for seat in SEATS} == dict.fromkeys(SEATS, 10)
    for seat in under_way:
        if seat != "g/1":
            spread.end(seat)
    for seat in ("g/0", "g/2"):
        spread.begin(seat)
    assert spread.choose(SEATS, 0.0) != "g/1", "it has the most to do"


def test_a_seat_that_gave_no_answer_is_left_for_a_while() -> None:
    spread = Spread(Random(1))
    first = spread.choose(SEATS, 0.0)
    spread.leave(first)
    assert all(spread.choose(SEATS, now / 100) != first for now in range(90))
    assert spread.choose((first,), 0.5) == first, "there is no other"
    seats = set()
    for step in range(100):  # also while calls are under way all the time
        seats.add(seat := spread.choose(SEATS, 0.9 + step / 100))
        spread.begin(seat)
    assert first in seats


def test_a_seat_that_is_gone_is_not_chosen() -> None:
    spread = Spread(Random(1))
    first = spread.choose(SEATS, 0.0)
    left = tuple(each for each in SEATS if each != first)
    assert spread.choose(left, 0.0) in left


@in_virtual_time
async def test_stale_reads_one_after_the_other_stay_with_a_replica() -> None:
    script = Script()
    caller = Caller(script, rng=Random(1))
    for _ in range(3 * TOGETHER):
        await caller.call(GetKv(key="k"), stale=True)
    assert len({call.seat for call in script.calls}) == 1
    await caller.close()


@in_virtual_time
async def test_stale_reads_leave_a_replica_that_is_away_and_come_back_when_it_is_there() -> None:
    away = True

    def answer(call: Call) -> api.Reply | Exception | None:
        return ConnectionResetError("gone") if away and call.seat.endswith("1") else None

    script = Script(faults=[answer])
    caller = Caller(script, rng=Random(3), timeout_ms=10_000)
    read = GetKv(key="a")
    try:
        for _ in range(60):
            await caller.call(read, stale=True)
            await asyncio.sleep(STAY_SECONDS / 10)
        asked = [call.seat[-1] for call in script.calls]
        assert set(asked) == {"0", "1", "2"}
        assert asked.count("1") <= 6, "once in the time that it is left alone"
        away = False
        del script.calls[:]
        for _ in range(60):
            await caller.call(read, stale=True)
            await asyncio.sleep(STAY_SECONDS / 10)
        assert {call.seat[-1] for call in script.calls} == {"0", "1", "2"}
    finally:
        await caller.close()
