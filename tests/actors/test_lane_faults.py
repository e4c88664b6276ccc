"""What goes wrong within a lane reaches who waits for it, and the lane goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors import command_lane, queue_lane
from actors.crowd import Crowd
from actors.shared_call import error_of
from state_machines.errors import Invalid, NotLeader, Overflow, Overloaded, Unknown, WrongShard
from state_machines.metadata.kv import PutKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import Call, Script, calling, put
from tests.actors.virtual_time import in_virtual_time, settled


def fails(*_: object, **__: object) -> None:
    raise ZeroDivisionError("of the program itself")


@pytest.mark.parametrize("where", [(queue_lane, "commands_of"), (command_lane, "resolve")])
@in_virtual_time
async def test_a_fault_of_the_program_itself_is_told_and_takes_no_place(
    where: tuple[Any, str],
) -> None:
    script = Script()
    async with calling(script) as caller:
        await caller.call(put("first"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*where, fails)
            for _ in range(queue_lane.IN_FLIGHT_MAX):
                with pytest.raises(ZeroDivisionError):
                    await asyncio.wait_for(caller.call(put("a")), 5)
        assert await asyncio.wait_for(caller.call(put("b")), 5)


@pytest.mark.parametrize(
    "where",
    [(Crowd, "put_back"), (command_lane.CommandLane, "_try_first")],
    ids=["put back", "try first"],
)
@in_virtual_time
async def test_nor_does_one_while_a_call_is_begun(where: tuple[Any, str]) -> None:
    """Also who is more than the call carries is told, and not left behind."""
    script = Script()
    async with calling(script) as caller:
        await caller.call(put("first"))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(*where, fails)
            for _ in range(queue_lane.IN_FLIGHT_MAX):
                many = [caller.call(put(f"{n}", bytes(1_000_000))) for n in range(6)]
                async with asyncio.timeout(5):
                    told = await asyncio.gather(*many, return_exceptions=True)
                assert ZeroDivisionError in {type(each) for each in told}
        assert await asyncio.wait_for(caller.call(put("b")), 5)


@pytest.mark.parametrize("tenant", [["t"], {}, None, 7], ids=["list", "dict", "none", "int"])
@in_virtual_time
async def test_a_tenant_that_is_no_name_is_told_so_and_the_others_go_once(tenant: Any) -> None:
    """It is checked when its call is made, and what is more than a call carries is sorted by
    tenant before: by such a one it cannot be."""
    script = Script()
    bad = PutKv(tenant=tenant, key="bad", value=b"")
    async with calling(script) as caller:
        await caller.call(put("first"))
        some = [put(f"{number}", bytes(30_000)) for number in range(300)]
        some[149] = bad
        calls = [asyncio.create_task(caller.call(each)) for each in some]
        async with asyncio.timeout(5):
            told = await asyncio.gather(*calls, return_exceptions=True)
        assert str(told.pop(149)).startswith("tenant: str is wanted")
        assert all(isinstance(each, int) for each in told)
    keys = [each.key for each in script.applied["metadata-0"]]
    assert sorted(keys) == sorted({*keys}), "each once"
    assert len(keys) == 300


@in_virtual_time
async def test_where_there_is_a_crowd_it_is_told_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lane, "CALL_MAX", 10)
    tenants: list[Any] = [["t"], {}]
    async with calling(Script()) as caller:
        many = [asyncio.create_task(caller.call(put(f"k{n}"))) for n in range(30)]
        for tenant in tenants:
            with pytest.raises(Invalid, match=r"^tenant: str is wanted"):
                await caller.call(PutKv(tenant=tenant, key="bad", value=b""))
        await asyncio.gather(*many)


@in_virtual_time
async def test_calls_from_which_nothing_is_left_to_send_take_no_place() -> None:
    script = Script()
    async with calling(script) as caller:
        for _ in range(queue_lane.IN_FLIGHT_MAX + 1):
            with pytest.raises(Invalid, match=r"^key: "):
                await asyncio.wait_for(caller.call(put("a" * 5_000)), 5)
        assert await asyncio.wait_for(caller.call(put("b")), 5)


class Abrupt(Script):
    """Raises at once, and not when it is waited for, at the first command."""

    raised = 0

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        if self.proposals and not self.raised:
            self.raised += 1
            raise ConnectionResetError("gone")
        return Script.propose(self, seat, request)


@in_virtual_time
async def test_a_carrier_that_raises_at_once_is_asked_again() -> None:
    script = Abrupt()
    async with calling(script) as caller:
        await caller.call(put("one"))
        assert await asyncio.wait_for(caller.call(put("two")), 1) == 2
        assert script.raised == 1


class Holding(Script):
    """Answers to some sequences of some clients wait until they are let go."""

    gates: dict[tuple[int, int], asyncio.Event]

    async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
        if gate := self.gates.get((call.client, call.sequence)):
            await gate.wait()
        return await Script._answer(self, call, honest)


@in_virtual_time
async def test_an_answer_to_a_client_that_was_forgotten_acknowledges_nothing_of_the_next() -> None:
    """Law 9: what is acknowledged is forgotten, and to send it again would be refused."""
    script = Holding()
    script.gates = {(1, 2): asyncio.Event(), (2, 2): asyncio.Event()}
    forgotten = api.Reply(code=api.SESSION_EXPIRED, detail="who?")
    async with calling(script) as caller:
        await caller.call(put("first"))
        late = asyncio.create_task(caller.call(put("late")))
        await settled()
        script.faults.append(
            lambda call: forgotten if (call.client, call.sequence) == (1, 3) else None
        )
        await caller.call(put("as the next client"))
        open_still = asyncio.create_task(caller.call(put("open still")))
        await settled()
        script.gates[1, 2].set()
        await late
        await caller.call(put("last"))
        assert (script.proposals[-1].client, script.proposals[-1].acked) == (2, 1)
        script.gates[2, 2].set()
        await open_still


@in_virtual_time
async def test_a_result_that_cannot_be_read_leaves_open_what_was_done() -> None:
    def unreadable(call: Call) -> api.Reply | None:
        reply = api.Reply(revision=1)
        reply.results.add(body=b"\xc1")
        return None if call.registers else reply

    async with calling(Script(faults=[unreadable])) as caller:
        with pytest.raises(Unknown, match="cannot be read"):
            await caller.call(put())


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (api.Reply(code=api.OVERLOADED, detail="d", retry_after_ms=70), Overloaded("d", 70)),
        (api.Reply(code=api.WRONG_SHARD, detail="d", slot_version=7), WrongShard("d", 7)),
        (api.Reply(code=api.OVERFLOW, detail="d", revision=9), Overflow("d", 9)),
        (api.Reply(code=api.NOT_LEADER, detail="d", leader="g/1"), NotLeader("d", "g/1")),
    ],
)
def test_an_error_keeps_what_its_reply_says(reply: api.Reply, error: Exception) -> None:
    found = error_of(reply)
    assert (type(found), found.args, vars(found)) == (type(error), error.args, vars(error))
