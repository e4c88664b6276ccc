"""Many reads of single rows: answered in pieces, in tenants' turns, within limits."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from actors import answers
from actors.admission import Limits
from actors.storage_thread import On
from state_machines import op, runs
from state_machines.errors import Invalid, Stopped
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.machine import Machine
from state_machines.metadata.kv import GetKv
from state_machines.wire import api_pb2 as api
from tests.actors.test_answers import GET, Answering, Held, replies_to


def rows_of(tenant: str, rows: int = 10) -> tuple[api.Command, ...]:
    """A call of this tenant for so many rows."""
    gets = [GetKv(tenant=tenant, key=f"k{number % 10}") for number in range(rows)]
    run = runs.of(gets)
    return (api.Command(tag=op.tag(gets[0]), count=rows, body=runs.body_of(run)),)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Pieces of 20 rows; whose calls were answered, in order."""
    monkeypatch.setattr(answers, "ROWS_MAX", 20)
    asked: list[str] = []
    query = Machine.query

    def note(machine: Machine, queries: Any, *rest: Any, **more: Any) -> api.Reply:
        try:
            (first, *_) = runs.operations_of(op.QUERIES, queries[0])
            asked.append(first.tenant)
        except Invalid:
            asked.append("?")
        return query(machine, queries, *rest, **more)

    monkeypatch.setattr(Machine, "query", note)
    return asked


def test_many_single_rows_are_answered_in_pieces_between_saves(small: list[str]) -> None:
    """All in one job, saves and applies waited for hundreds of thousands of rows."""

    async def run() -> None:
        answering = Answering()
        held = Held(answering, On.STORAGE)
        due = answering.hand(*[rows_of("a")] * 30)
        seen: list[int] = []
        saved = held.storage.run(lambda: seen.append(len(small)))
        await held.let_go()
        await saved
        assert [each.code for each in await replies_to(due)] == [api.OK] * 30
        assert seen == [2], "the save waits for 20 rows"
        assert len(answering.answers) == 0
        held.storage.close()

    asyncio.run(run())


def test_tenants_take_turns_with_single_rows_by_their_number(small: list[str]) -> None:
    async def run() -> None:
        answering = Answering()
        held = Held(answering, On.STORAGE)
        due = answering.hand(*[rows_of("many", 20)] * 8)
        due += answering.hand(*[rows_of("few", 5)] * 8)
        due += answering.hand((GET,))
        await held.let_go()
        await replies_to(due)
        # One piece was handed over when the others came; of what waits then as many rows of each.
        assert "".join(each[0] for each in small) == "mfdfffmffffmmmmmm"
        held.storage.close()

    asyncio.run(run())


def test_single_rows_beyond_the_limits_are_refused_and_no_tenant_has_all_the_room(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        limits = Limits(calls=100, operations_soft=100, operations=150)
        monkeypatch.setattr(answers, "READS", limits)
        answering = Answering()
        held = Held(answering, On.STORAGE)
        many = [each for _ in range(30) for each in answering.hand(rows_of("many"))]
        (one,) = answering.hand(rows_of("one"))
        refused = [each for each in many if each.reply.done()]
        assert not one.reply.done()
        assert len(refused) == 30 - 2 - 10, "two at the storage thread, ten wait"
        told = await replies_to(refused)
        assert {each.code for each in told} == {api.OVERLOADED}
        assert len({each.retry_after_ms for each in told}) > 5, "they do not come back together"
        others = [answering.hand(rows_of(f"t{number}"))[0] for number in range(6)]
        assert [each.reply.done() for each in others] == [False] * 4 + [True] * 2
        assert answering.answers.refused == len(refused) + 2
        await held.let_go()
        kept = [each for each in [*many, one, *others] if not each.reply.done()]
        assert {each.code for each in await replies_to(kept)} == {api.OK}
        assert (await answering.ask(rows_of("many")))[0].code == api.OK, "there is room again"
        held.storage.close()

    asyncio.run(run())


def test_of_single_rows_that_wait_who_gave_up_costs_nothing(small: list[str]) -> None:
    async def run() -> None:
        answering = Answering()
        held = Held(answering, On.STORAGE)
        due = answering.hand(*[rows_of("a", 20)] * 8)
        for read in due[2:7]:
            read.reply.cancel()
        await held.let_go()
        await replies_to([*due[:2], due[7]])
        assert len(small) == 3
        assert answering.answers.admission.rest.operations == 0
        held.storage.close()

    asyncio.run(run())


def test_what_cannot_be_read_waits_like_others_and_is_refused_in_its_turn(small: list[str]) -> None:
    async def run() -> None:
        answering = Answering()
        held = Held(answering, On.STORAGE)
        due = answering.hand(*[rows_of("a", 20)] * 3)
        bad = api.Command(tag=GET.tag, count=30, body=b"?")
        many = rows_of("a", 6_000) * 2
        due += answering.hand((bad,), many)
        assert len(answering.answers) == 4
        await held.let_go()
        replies = await replies_to(due)
        assert [each.code for each in replies] == [api.OK] * 4 + [api.INVALID]
        assert replies[3].results[0].code == api.INVALID
        assert answering.answers.admission.rest.calls == 0
        held.storage.close()

    asyncio.run(run())


def test_who_asks_for_too_much_is_told_so_however_full_it_is(
    small: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not to come again, for that would be no better."""

    async def run() -> None:
        monkeypatch.setattr(
            answers, "READS", Limits(calls=100, operations_soft=150, operations=150)
        )
        answering = Answering()
        held = Held(answering, On.STORAGE)
        due = answering.hand(*[rows_of("a", 20)] * 6)
        due += answering.hand((api.Command(tag=GET.tag, count=BATCH_ITEMS_MAX + 1, body=b"?"),))
        assert not any(each.reply.done() for each in due)
        await held.let_go()
        assert [each.code for each in await replies_to(due)] == [api.OK] * 6 + [api.INVALID]
        held.storage.close()

    asyncio.run(run())


def test_single_rows_that_wait_are_told_when_the_replica_stops(small: list[str]) -> None:
    async def run() -> None:
        answering = Answering()
        held = Held(answering, On.STORAGE)
        due = answering.hand(*[rows_of("a", 20)] * 5)
        answering.answers.fail(Stopped("over"))
        assert [each.code for each in await replies_to(due[1:])] == [api.STOPPED] * 4
        assert len(answering.answers) == 0
        await held.let_go()
        assert [each.code for each in await replies_to(due[:1])] == [api.OK]
        held.storage.close()

    asyncio.run(run())
