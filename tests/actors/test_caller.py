"""The client's engine over scripted groups: what it sends, and what callers are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from actors import query_lane, queue_lane
from actors.caller import Caller
from state_machines import op, runs
from state_machines.errors import (
    Conflict,
    Invalid,
    MetarayError,
    NoQuorum,
    Overloaded,
    QuotaExceeded,
    Unknown,
)
from state_machines.limits import REQUEST_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.kv_batch import KvItem, PutAllKv
from state_machines.offset.offset import CommitOffsets
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import HANG, NOT_LEADER, Call, Script, calling, now, once, put
from tests.actors.test_caller_slots import commits, two_groups
from tests.actors.virtual_time import in_virtual_time, settled

# -- coalescing ---------------------------------------------------------------------------------


@in_virtual_time
async def test_all_that_waits_goes_together() -> None:
    script = Script()
    async with calling(script) as caller:
        few = await asyncio.gather(*(caller.call(put(f"k{n}")) for n in range(200)))
        assert sorted(few) == list(range(1, 201))
        assert len(script.proposals) == 1
        assert len(script.calls) == 2  # and the registration
        many = await asyncio.gather(*(caller.call(put(f"k{n}")) for n in range(1_000)))
    assert sorted(many) == list(range(201, 1_201))
    sizes = [len(call.tags) for call in script.proposals]
    assert sizes == [200, 500, 500], "half of many: one call is made while the other is answered"


@in_virtual_time
async def test_reads_go_in_halves_from_fewer_on() -> None:
    script = Script()
    async with calling(script) as caller:
        for count in (query_lane.HALVED_FROM - 1, query_lane.HALVED_FROM):
            asked = [caller.call(GetKv(key=f"k{n}"), stale=True) for n in range(count)]
            await asyncio.gather(*asked)
    assert [len(call.tags) for call in script.calls] == [31, 16, 16]


@in_virtual_time
async def test_what_comes_while_calls_are_under_way_goes_in_the_next() -> None:
    script = Script()
    script.faults.append(lambda call: HANG if call.tags[0] == "metadata.kv.put" else None)
    async with calling(script, timeout_ms=100_000) as caller:
        tasks = []
        for number in range(50):
            tasks.append(asyncio.create_task(caller.call(put(f"k{number}"))))
            await settled()
        assert len(script.proposals) == queue_lane.IN_FLIGHT_MAX
        script.faults.clear()
        assert len(await asyncio.gather(*tasks)) == 50
    assert len({call.sequence for call in script.proposals}) == queue_lane.IN_FLIGHT_MAX + 1
    assert len(script.applied["metadata-0"]) == 50


@in_virtual_time
async def test_a_proposal_keeps_the_limit_of_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lane, "CALL_MAX", 10)
    script = Script()
    async with calling(script) as caller:
        await asyncio.gather(*(caller.call(put(f"k{n}")) for n in range(35)))
    assert sorted(len(call.tags) for call in script.proposals) == [5, 10, 10, 10]


@in_virtual_time
async def test_a_proposal_keeps_the_limit_of_bytes() -> None:
    script = Script()
    async with calling(script) as caller:
        value = b"x" * VALUE_BYTES_MAX
        await asyncio.gather(*(caller.call(put(f"k{n}", value)) for n in range(10)))
    assert sum(len(call.tags) for call in script.proposals) == 10
    assert all(len(call.body) <= REQUEST_BYTES_MAX * 3 // 4 for call in script.proposals)


@in_virtual_time
async def test_what_is_cut_at_the_limit_of_bytes_goes_on_in_its_order() -> None:
    script = Script()
    async with calling(script) as caller:
        sizes = [VALUE_BYTES_MAX // each for each in (1, 3, 1, 9, 2, 1, 1, 7, 1, 1)]
        puts = [put(f"k{n}", b"x" * size) for n, size in enumerate(sizes)]
        given = await asyncio.gather(*map(caller.call, puts))
    assert given == sorted(given)
    assert len(script.proposals) > 2


@in_virtual_time
async def test_one_that_no_request_has_room_for_is_told_and_the_others_go() -> None:
    script = Script()
    async with calling(script) as caller:
        huge = put("k", bytes(REQUEST_BYTES_MAX))
        alone = await asyncio.gather(caller.call(huge), return_exceptions=True)
        puts = [put("a"), huge, put("b"), put("c", "no bytes")]  # type: ignore[arg-type]
        among = await asyncio.gather(*map(caller.call, puts), return_exceptions=True)
    said = [str(each) for each in (*alone, among[1], among[3])]
    limit = f"value: {REQUEST_BYTES_MAX} bytes, the limit is {VALUE_BYTES_MAX}"
    assert said == [limit, limit, "value: bytes is wanted, not str"]
    assert [among[0], among[2]] == [1, 2]


@in_virtual_time
async def test_valid_items_that_are_too_much_for_a_request_are_told_with_the_limit() -> None:
    script = Script()
    async with calling(script) as caller:
        items = tuple([KvItem(key=f"k{n}", value=bytes(VALUE_BYTES_MAX)) for n in range(4)])
        many = PutAllKv(items=items)
        asked = [put("a"), put("b"), many, put("c")]
        alone = await asyncio.gather(caller.call(many), return_exceptions=True)
        among = await asyncio.gather(*map(caller.call, asked), return_exceptions=True)
    for told in (*alone, among.pop(2)):
        assert isinstance(told, Invalid)
        assert str(told).startswith("metadata.kv.put_all: 4194")
        assert str(told).endswith(f"bytes, the limit is {REQUEST_BYTES_MAX}")
    assert among == [1, 2, 3]


@in_virtual_time
async def test_queries_that_want_different_states_do_not_share_a_call() -> None:
    script = Script()
    async with calling(script) as caller:
        await asyncio.gather(
            caller.call(GetKv(key="a")),
            caller.call(GetKv(key="b")),
            caller.call(GetKv(key="c"), stale=True),
            caller.call(GetKv(key="d"), stale=True, min_revision=9),
        )
    assert [(len(c.tags), c.stale, c.min_revision) for c in script.calls] == [
        (2, False, 0),
        (1, True, 0),
        (1, True, 9),
    ]
    assert all(c.columns for c in script.calls), "lists of rows are read as columns"


@in_virtual_time
async def test_too_many_waiting_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_lane, "WAITING_MAX", 3)
    monkeypatch.setattr(queue_lane, "CALL_MAX", 2)
    script = Script(faults=[lambda call: HANG])
    caller = Caller(script, rng=Random(3))
    tasks = [asyncio.create_task(caller.call(put(f"k{n}"))) for n in range(4)]
    await settled()
    assert isinstance(tasks[3].exception(), Overloaded)
    await caller.close()
    await asyncio.gather(*tasks, return_exceptions=True)


# -- the rest -----------------------------------------------------------------------------------


@in_virtual_time
async def test_a_result_belongs_to_its_caller() -> None:
    mixed = api.Reply()
    run = mixed.results.add(body=b"\x91\x07")
    run.refusals.add(place=0, code=api.CONFLICT, detail="revision")
    script = Script(faults=[once(mixed)])
    async with calling(script) as caller:
        results = await asyncio.gather(
            caller.call(put("a")), caller.call(put("b")), return_exceptions=True
        )
    assert isinstance(results[0], Conflict)
    assert results[1] == 7


@in_virtual_time
async def test_refusals_that_do_not_fit_their_run_leave_the_outcome_unknown() -> None:
    odd = api.Reply()
    odd.results.add(body=b"\x91\x07").refusals.add(place=99, code=api.CONFLICT, detail="nobody")
    async with calling(Script(faults=[once(odd)])) as caller:
        results = await asyncio.gather(
            caller.call(put("a")), caller.call(put("b")), return_exceptions=True
        )
    assert results[0] == 7
    assert isinstance(results[1], Unknown)


@in_virtual_time
async def test_queries_that_were_too_much_together_are_asked_again() -> None:
    def first_only(call: Call) -> Any:
        if len(call.tags) == 1:
            return None
        reply = api.Reply()
        run = reply.results.add(body=runs.pack_replies(GetKv, [None]))
        for place in range(1, len(call.tags)):
            run.refusals.add(place=place, code=api.QUOTA_EXCEEDED, detail=op.REPLY_FULL)
        return reply

    script = Script(faults=[first_only])
    async with calling(script) as caller:
        results = await asyncio.gather(*(caller.call(GetKv(key=f"k{n}")) for n in range(5)))
        assert results == [None] * 5
        script.faults = [once(_quota())]
        with pytest.raises(QuotaExceeded):
            await caller.call(GetKv(key="alone"))


@in_virtual_time
async def test_commands_for_which_the_reply_had_no_room_are_proposed_again() -> None:
    """What others read that share the proposal is no reason to refuse one: nothing of it is done.
    Whatever else exceeds a quota is told, for it would be refused again."""
    details = (op.REPLY_FULL, "then[1]: reply: 9000000 bytes with those before; ask for less")

    def first_only(call: Call) -> Any:
        if len(call.tags) <= 1:
            return None
        reply = api.Reply()
        run = reply.results.add(body=runs.pack_replies(PutKv, [7]))
        for place in range(1, len(call.tags)):
            detail = details[place == 1]
            run.refusals.add(place=place, code=api.QUOTA_EXCEEDED, detail=detail)
        return reply

    script = Script(faults=[first_only])
    async with calling(script) as caller:
        some = (caller.call(put(f"k{n}")) for n in range(4))
        told = await asyncio.gather(*some, return_exceptions=True)
        assert [type(each) for each in told] == [int, QuotaExceeded, int, QuotaExceeded]
        sequences = [call.sequence for call in script.proposals]
        assert sequences == [1, 2], "again, as another proposal"


@in_virtual_time
async def test_a_command_that_is_alone_behind_too_much_of_others_is_proposed_again() -> None:
    full = api.Reply()
    full.results.add(code=api.QUOTA_EXCEEDED, detail=op.ENTRY_FULL)
    script = Script(faults=[once(full)])
    async with calling(script) as caller:
        assert await caller.call(put("a")) == 1, "nothing was done before"
        assert [call.sequence for call in script.proposals] == [1, 2]


@in_virtual_time
async def test_who_is_proposed_again_has_nothing_more_to_do_with_whom_it_shared_a_call() -> None:
    """It waits for no other half of the call, and is not told what becomes of that."""

    def fault(call: Call) -> Any:
        if call.registers:
            return api.Reply(code=api.CONFLICT, detail="no more") if script.proposals else None
        if call.sequence == 1:
            return api.Reply(code=api.INVALID, detail="one of them is none to this leader")
        if call.sequence == 3:
            return api.Reply(code=api.SESSION_EXPIRED)
        if call.sequence == 4:
            return HANG if now() < begun + 1 else None
        reply = api.Reply()
        run = reply.results.add(body=runs.pack_replies(PutKv, [7]))
        run.refusals.add(place=1, code=api.QUOTA_EXCEEDED, detail=op.REPLY_FULL)
        return reply

    script, begun = Script(faults=[fault]), now()
    async with calling(script) as caller:
        some = (caller.call(put(f"k{n}")) for n in range(4))
        told = await asyncio.gather(*some, return_exceptions=True)
        assert [type(each) for each in told] == [int, int, Conflict, Conflict]


def _quota() -> api.Reply:
    reply = api.Reply()
    reply.results.add(code=api.QUOTA_EXCEEDED, detail="too large")
    return reply


def truncated() -> bytes:
    return api.Reply(detail="x" * 40).SerializeToString()[:-3]


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff\xff\xff", truncated(), api.Reply(code=99).SerializeToString()],  # type: ignore[arg-type]
    ids=["not protobuf", "cut short", "unknown code"],
)
def test_rubbish_for_a_reply_hangs_nobody(rubbish: bytes) -> None:
    @in_virtual_time
    async def always() -> None:
        script = Script(faults=[lambda call: None if call.registers else rubbish])
        async with calling(script, timeout_ms=1_000) as caller:
            with pytest.raises(Unknown):
                await caller.call(put())
            with pytest.raises(NoQuorum):
                await caller.call(GetKv(key="k"))

    @in_virtual_time
    async def passing() -> None:
        script = Script(faults=[once(rubbish)])
        async with calling(script) as caller:
            assert await caller.call(put()) == 1

    always()
    passing()


@in_virtual_time
async def test_a_reply_with_too_few_results_or_other_types_hangs_nobody() -> None:
    for reply in (api.Reply(), api.Reply(results=[api.Result(body=b"\xa1x")])):
        script = Script(faults=[once(reply)])
        async with calling(script, timeout_ms=1_000) as caller:
            with pytest.raises((MetarayError, AssertionError)):
                await caller.call(put())
            assert await caller.call(put()) == 1


@in_virtual_time
async def test_what_is_too_large_or_malformed_is_refused_before_sending() -> None:
    script = Script()
    async with calling(script) as caller:
        for bad in (
            put(value=b"x" * (VALUE_BYTES_MAX + 1)),
            put(key=""),
            PutKv(key="k", value="text"),  # type: ignore[arg-type]
        ):
            with pytest.raises(Invalid):
                await caller.call(bad)
    assert script.calls == []


@in_virtual_time
@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (put(key=""), "key"),
        (put(key="\ud800"), "key"),
        (put(value=b"x" * (VALUE_BYTES_MAX + 1)), "value"),
        (PutKv(key="k", value="text"), "value"),  # type: ignore[arg-type]
        (PutKv(key="k", value=b"", expected_revision=-1), "expected_revision"),
        (PutKv(key="k", value=b"", expected_revision=2**63), "expected_revision"),
        (PutKv(key="k", value=b"", tenant="t" * 65), "tenant"),
    ],
)
async def test_one_that_is_not_valid_is_told_so_and_the_others_go(bad: PutKv, field: str) -> None:
    script = Script()
    async with calling(script) as caller:
        some = [put("a"), bad, put("b"), bad, put("c")]
        told = await asyncio.gather(*map(caller.call, some), return_exceptions=True)
    assert [type(each) for each in told] == [int, Invalid, int, Invalid, int]
    assert all(str(each).startswith(field) for each in told if isinstance(each, Invalid))
    assert [each.key for each in script.applied["metadata-0"]] == ["a", "b", "c"]
    assert len(script.proposals) == 1, "together, as if the others had not been there"


@pytest.mark.parametrize("count", [2, 9, 600])
@in_virtual_time
async def test_a_command_that_the_leader_does_not_know_fails_alone(count: int) -> None:
    """It refuses the whole call: it may be of another version than this client."""

    def refuse(call: Call) -> Any:
        refusal = api.Reply(code=api.INVALID, detail="tag: there is none")
        return refusal if b"unheard" in call.body else None

    script = Script(faults=[refuse])
    keys = [f"k{number}" for number in range(count - 1)]
    keys.insert(count // 3, "unheard")
    async with calling(script) as caller:
        calls = [caller.call(put(each)) for each in keys]
        found = await asyncio.gather(*calls, return_exceptions=True)
    told = [each for each in found if isinstance(each, BaseException)]
    assert [repr(each) for each in told] == ["Invalid('tag: there is none')"]
    assert found.index(told[0]) == count // 3
    assert {each for each in found if isinstance(each, int)} == {*range(1, count)}


@pytest.mark.parametrize(
    "answer", [api.Reply(code=api.QUOTA_EXCEEDED, detail="no more"), NOT_LEADER]
)
@in_virtual_time
async def test_who_shares_a_call_is_told_by_an_error_of_its_own(answer: api.Reply) -> None:
    """So that what one caller adds to it, or where a thread raises it, is not told to others."""
    script = Script(faults=[lambda call: None if call.registers else answer])
    async with calling(script, timeout_ms=100) as caller:
        calls = (caller.call(put(f"k{number}")) for number in range(3))
        told = await asyncio.gather(*calls, return_exceptions=True)
    assert len({id(each) for each in told}) == 3
    assert {(type(each), str(each)) for each in told} == {(type(told[0]), str(told[0]))}


@pytest.mark.parametrize("closed", [False, True])
@in_virtual_time
async def test_the_half_of_a_refused_call_that_was_not_sent_again_has_changed_nothing(
    closed: bool,
) -> None:
    """Which half may have done so is told that; the other was only in what was refused."""

    def fault(call: Call) -> Any:
        if call.sequence == 1:
            return api.Reply(code=api.INVALID, detail="one of them is none to this leader")
        return None if call.registers else HANG

    script = Script(faults=[fault])
    async with calling(script, timeout_ms=8_000) as caller:
        calls = [asyncio.create_task(caller.call(put(f"k{number}"))) for number in range(4)]
        await asyncio.sleep(1)
        if closed:
            await caller.close()
        told = await asyncio.gather(*calls, return_exceptions=True)
    assert {call.sequence for call in script.proposals} == {1, 2}
    assert [type(each) for each in told] == [Unknown, Unknown, NoQuorum, NoQuorum]


@in_virtual_time
async def test_a_refused_call_takes_one_place_also_in_halves() -> None:
    """Others' commands find the places that there are, however often it is halved."""
    under_way = most = 0

    def refuse(call: Call) -> Any:
        refusal = api.Reply(code=api.INVALID, detail="tag: there is none")
        return refusal if b"unheard" in call.body else None

    class Counted(Script):
        async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
            nonlocal under_way, most
            under_way += (places := call.method == "propose")
            most = max(most, under_way)
            try:
                await asyncio.sleep(1)
                return await super()._answer(call, honest)
            finally:
                under_way -= places

    async with calling(Counted(faults=[refuse])) as caller:
        await caller.call(put())
        keys = ["unheard", *(f"k{number}" for number in range(31))]
        refused = [asyncio.create_task(caller.call(put(each))) for each in keys]
        await asyncio.sleep(5.5)  # alone by now, and four parts wait
        others = []
        for number in range(40):
            others.append(asyncio.create_task(caller.call(put(f"other{number}"))))
            await asyncio.sleep(0.1)
        assert all(each.done() for each in others[:20])
        await asyncio.gather(*refused, *others, return_exceptions=True)
    assert most == queue_lane.IN_FLIGHT_MAX


@in_virtual_time
async def test_an_operation_larger_than_a_request_is_refused_before_sending() -> None:
    script = two_groups()
    long = "x" * 250
    many = CommitOffsets(
        groups=tuple(f"{long}{n:04}"[-250:] for n in range(9_000)),
        topics=(long,) * 9_000,
        partitions=(0,) * 9_000,
        offsets=(0,) * 9_000,
    )
    async with calling(script) as caller:
        with pytest.raises(Invalid, match="limit"):
            await caller.call(many)
    assert script.calls == []


@in_virtual_time
async def test_something_else_is_no_operation() -> None:
    async with calling(Script()) as caller:
        for wrong in (object(), "metadata.kv.put", PutKv, None):
            with pytest.raises(TypeError):
                await caller.call(wrong)


@in_virtual_time
async def test_close_ends_everything() -> None:
    script = Script(faults=[lambda call: HANG if call.tags[0].startswith("metadata.kv.") else None])
    caller = Caller(script, rng=Random(3))
    tasks: list[asyncio.Task[Any]] = []
    for number in range(10):
        tasks.append(asyncio.create_task(caller.call(put(f"k{number}"))))
        tasks.append(asyncio.create_task(caller.call(GetKv(key="k"))))
        await settled()
    assert (await caller.watch("metadata-0", ["metadata.kv"], None)).revision == 9
    script.faults.append(lambda call: HANG)
    tasks.append(asyncio.create_task(caller.watch("metadata-0", ["metadata.kv"], 9)))
    await settled()
    await caller.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in results} <= {Unknown, NoQuorum}
    assert isinstance(results[0], Unknown)  # it was sent
    calls = len(script.calls)
    script.faults.clear()
    for operation, group in ((put(), ""), (GetKv(key="k"), ""), (commits(), "offset-0")):
        with pytest.raises((Unknown, NoQuorum)):
            await caller.call(operation, group=group, timeout_ms=1_000)
    with pytest.raises(NoQuorum):
        await caller.watch("metadata-0", ["metadata.kv"], 9)
    assert len(script.calls) == calls
    await caller.close()
