"""Whom a client asks beside the leader, and what it does when nobody vouches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from actors.partner import LEFT_SECONDS, VOUCH_SECONDS, Partner
from state_machines.errors import NoQuorum
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, Call, Script
from tests.actors.virtual_time import in_virtual_time, settled

LEADER = "metadata-0/0"
VOUCH = api.Reply(term=4, replica=2)

Said = Callable[[Call], Any]


def group_of_three(partner: Said, *, partners: tuple[int, ...] = (2, 3)) -> Script:
    """The leader of term 4 answers without a round; `partner` says what it is asked beside it."""

    def answer(call: Call) -> Any:
        if call.vouch:
            return partner(call)
        if not call.vouched:
            return None
        honest = api.Reply.FromString(script._read(call.queries))
        honest.term = 4
        honest.partners.extend(partners)
        return honest

    script = Script(faults=[answer])
    return script


async def reads(script: Script, count: int = 1, *, apart: float = 0.0) -> list[Any]:
    """The answers to one read after another."""
    caller = Caller(script, rng=Random(3), timeout_ms=10_000)
    caller._lane("metadata-0", GetKv)._leader = LEADER
    found = []
    try:
        for _ in range(count):
            found.append(await caller.call(GetKv(key="a")))
            await asyncio.sleep(apart)
    finally:
        await caller.close()
    return found


def kinds(script: Script) -> list[str]:
    return ["vouch" if c.vouch else "vouched" if c.vouched else "round" for c in script.calls]


@in_virtual_time
async def test_a_read_takes_one_way_if_a_partner_vouches() -> None:
    script = group_of_three(lambda call: VOUCH)
    await reads(script, 3)
    assert sorted(kinds(script)) == ["vouch"] * 3 + ["vouched"] * 3
    asked = {call.seat for call in script.calls if call.vouch}
    assert len(asked) == 1, "always the same"
    assert LEADER not in asked


@in_virtual_time
@pytest.mark.parametrize("term", [0, 3])
async def test_a_partner_that_has_not_heard_of_the_term_vouches_too(term: int) -> None:
    script = group_of_three(lambda call: api.Reply(term=term, replica=3))
    await reads(script)
    assert "round" not in kinds(script)


@in_virtual_time
@pytest.mark.parametrize(
    "said",
    [
        api.Reply(term=5, replica=2),
        api.Reply(term=4, replica=9),
        api.Reply(code=api.STOPPED, detail="it is away"),
        ConnectionResetError("gone"),
        b"\xff\xff",
        HANG,
    ],
    ids=["later term", "no voter", "stopped", "gone", "rubbish", "silent"],
)
async def test_without_a_vouch_the_leader_makes_its_round(said: Any) -> None:
    script = group_of_three(lambda call: said)
    began = asyncio.get_running_loop().time()
    (found,) = await reads(script)
    assert found is None, "as the honest group answers"
    assert kinds(script)[-1] == "round"
    assert kinds(script).count("vouch") == 1
    assert asyncio.get_running_loop().time() - began <= VOUCH_SECONDS * 1.5


@in_virtual_time
@pytest.mark.parametrize(("late", "rounds"), [(0.5, 0), (1.5, 1)])
async def test_a_vouch_may_come_a_moment_after_the_answer(
    late: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = Script.query

    async def query(script: Script, seat: str, request: bytes) -> bytes:
        if api.QueryRequest.FromString(request).vouch:
            await asyncio.sleep(late * VOUCH_SECONDS)
        return await honest(script, seat, request)

    monkeypatch.setattr(Script, "query", query)
    script = group_of_three(lambda call: VOUCH)
    began = asyncio.get_running_loop().time()
    assert await reads(script) == [None]
    took = asyncio.get_running_loop().time() - began
    assert took == pytest.approx(min(late, 1.0) * VOUCH_SECONDS, rel=0.1)
    assert kinds(script).count("round") == rounds


@in_virtual_time
async def test_nobody_vouches_for_a_client_that_is_closed() -> None:
    script = group_of_three(lambda call: HANG)
    script.faults.insert(0, lambda call: None if call.vouch else HANG)
    caller = Caller(script, rng=Random(3))
    caller._lane("metadata-0", GetKv)._leader = LEADER
    read = asyncio.ensure_future(caller.call(GetKv(key="a")))
    await settled()
    assert "vouch" in kinds(script)
    await caller.close()
    with pytest.raises(NoQuorum):
        await read
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@in_virtual_time
async def test_who_did_not_vouch_is_left_alone_and_then_it_is_anothers_turn() -> None:
    script = group_of_three(lambda call: HANG)
    await reads(script, 3, apart=LEFT_SECONDS / 4)
    assert kinds(script).count("vouch") == 1
    assert kinds(script).count("round") == 3
    await reads(script, 3, apart=LEFT_SECONDS * 1.1)
    seats = [call.seat for call in script.calls if call.vouch][1:]
    assert len(seats) == 3
    assert seats[0] != seats[1]
    assert seats[0] == seats[2]


@in_virtual_time
async def test_calls_that_miss_it_together_turn_to_the_other_once() -> None:
    partner, seats = Partner("metadata-0", 0), (LEADER, "metadata-0/1", "metadata-0/2")
    loop = asyncio.get_running_loop()
    before = partner.choose(seats, LEADER, loop.time())
    silent = [loop.create_future() for _ in range(2)]
    reply = api.Reply(term=4, partners=(2, 3))
    assert await asyncio.gather(*[partner.vouches(reply, each) for each in silent]) == [False] * 2
    assert partner.choose(seats, LEADER, loop.time()) == ""
    after = partner.choose(seats, LEADER, loop.time() + LEFT_SECONDS)
    assert {before, after} == {"metadata-0/1", "metadata-0/2"}


@in_virtual_time
async def test_a_group_that_needs_rounds_is_not_asked_each_time() -> None:
    script = group_of_three(lambda call: VOUCH, partners=())
    await reads(script, 5, apart=LEFT_SECONDS / 10)
    assert sorted(kinds(script)) == ["round"] * 4 + ["vouch", "vouched"]


def test_nobody_is_asked_beside_a_leader_that_is_alone_or_not_known() -> None:
    partner = Partner("metadata-0", 0)
    assert partner.choose((LEADER,), LEADER, 0.0) == ""
    assert partner.choose(("a", "b"), LEADER, 0.0) == ""
    assert partner.choose(("a", LEADER), LEADER, 0.0) == "a"


@in_virtual_time
async def test_a_read_that_gives_up_leaves_nothing_under_way() -> None:
    script = Script(faults=[lambda call: HANG])
    caller = Caller(script, rng=Random(3), timeout_ms=100)
    caller._lane("metadata-0", GetKv)._leader = LEADER
    with pytest.raises(NoQuorum):
        await caller.call(GetKv(key="a"))
    await settled()
    assert sorted(kinds(script)) == ["vouch", "vouched"]
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await caller.close()


@in_virtual_time
async def test_a_stale_read_asks_one_seat() -> None:
    script = group_of_three(lambda call: VOUCH)
    caller = Caller(script, rng=Random(3), timeout_ms=10_000)
    await caller.call(GetKv(key="a"), stale=True)
    await caller.close()
    assert kinds(script) == ["round"], "nothing of the kind: it is only not asked to be vouched for"
