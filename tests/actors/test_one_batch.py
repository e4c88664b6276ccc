"""A batch of commands is one thing from its first sending on; until then its callers may leave."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from actors import doubt
from actors.shared_call import Waiting, commands_of
from state_machines import op
from state_machines.errors import NoQuorum, Unknown
from state_machines.limits import BATCH_ITEMS_MAX, CALL_ITEMS_MAX
from state_machines.mqtt.session import OpenSession, SessionItem
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.offset.group import DeleteGroup
from state_machines.transaction import Transaction
from tests.actors.scripted import HANG, LOSE, Script, calling, once, put
from tests.actors.virtual_time import in_virtual_time


@in_virtual_time
async def test_who_gives_up_between_attempts_takes_nothing_out_of_the_batch() -> None:
    """The same sequence with other commands would be refused, and nobody would know why."""
    script = Script(faults=[once(HANG), once(LOSE, method="propose")])
    async with calling(script) as caller:
        short = asyncio.create_task(caller.call(put("short"), timeout_ms=1_000))
        long = asyncio.create_task(caller.call(put("long"), timeout_ms=60_000))
        with pytest.raises(Unknown):
            await short
        assert await long == 2
    assert len(script.proposals) == 3
    assert len({(call.sequence, call.acked, call.body) for call in script.proposals}) == 1
    assert len(script.applied["metadata-0"]) == 2


@in_virtual_time
async def test_who_was_told_that_nothing_was_sent_is_not_sent_later() -> None:
    """His command waited for the registration together with that of one with more patience."""
    script = Script(faults=[once(HANG, registers=True)])
    async with calling(script) as caller:
        short: asyncio.Task[Any] = asyncio.create_task(caller.call(put("short"), timeout_ms=1_000))
        long = asyncio.create_task(caller.call(put("long"), timeout_ms=60_000))
        with pytest.raises(NoQuorum):
            await short
        await long
    assert [each.key for each in script.applied["metadata-0"]] == ["long"]
    assert doubt.DOUBT_SECONDS >= 1, "the registration outlasted him"


@in_virtual_time
@pytest.mark.parametrize("items", [1_000, BATCH_ITEMS_MAX])
async def test_a_call_carries_no_more_items_than_a_leader_takes(items: int) -> None:
    """Batches of short names are few bytes and much work."""
    some = [SessionItem(client_id=f"{number}", broker="b") for number in range(items)]
    batch = OpenSessions.of(some)
    alone = Transaction.of(then=[batch])
    loop = asyncio.get_running_loop()
    left = [
        Waiting(each, op.encode(each), loop.create_future(), 9.0) for each in [batch, alone] * 30
    ]
    calls = []
    while left:
        taken = list(left)
        commands, left = commands_of(taken)
        assert len(commands) == len(taken)
        calls.append(len(commands) * items)
    assert sum(calls) == 60 * items
    assert CALL_ITEMS_MAX / 2 <= min(calls[:-1]) <= max(calls) <= CALL_ITEMS_MAX


@in_virtual_time
async def test_what_goes_in_a_run_counts_among_the_items_of_its_call() -> None:
    batch = OpenSessions.of([SessionItem(client_id=f"{n}", broker="b") for n in range(1_000)])
    single = OpenSession(client_id="c", broker="b")
    loop = asyncio.get_running_loop()
    bodies = [(batch, op.encode(batch))] * 19 + [(single, b"")] * 1_900
    left = [Waiting(each, body, loop.create_future(), 9.0) for each, body in bodies]
    commands, rest = commands_of(left)
    assert 0 < len(rest) < 1_900
    assert sum([command.count or 1_000 for command in commands]) <= CALL_ITEMS_MAX


@in_virtual_time
async def test_a_call_carries_no_more_rows_than_a_leader_takes() -> None:
    """Deletions of consumer groups are few bytes and much work."""
    loop = asyncio.get_running_loop()
    left = [
        Waiting(DeleteGroup(group=f"{n}", limit=1_000), b"", loop.create_future(), 9.0)
        for n in range(50)
    ]
    calls = []
    while left:
        batch = left
        _, left = commands_of(batch)
        calls.append(sum([op.weight(each.operation) for each in batch]))
    assert len(calls) > 1
    assert sum(calls) == 50_000
    assert CALL_ITEMS_MAX / 2 <= min(calls[:-1]) <= max(calls) <= CALL_ITEMS_MAX


@in_virtual_time
async def test_a_transaction_takes_no_more_of_a_call_than_it_is_charged() -> None:
    """Its heavier branch, and all of it at most."""
    loop, step = asyncio.get_running_loop(), DeleteGroup(group="g", limit=4_000)
    made = [Transaction.of(then=[step], otherwise=[step] * n) for n in (1, 2, 128, 2)]
    left = [Waiting(each, op.encode(each), loop.create_future(), 9.0) for each in made]
    calls = []
    while left:
        batch = left
        _, left = commands_of(batch)
        calls.append(len(batch))
    assert calls == [2, 1, 1]


@in_virtual_time
async def test_a_weight_that_is_no_number_is_told_by_who_checks_it() -> None:
    loop, nonsense = asyncio.get_running_loop(), cast("Any", "many")
    batch = [
        Waiting(DeleteGroup(group="g", limit=limit), b"", loop.create_future(), 9.0)
        for limit in (nonsense, 1, True)
    ]
    _, rest = commands_of(batch)
    assert (len(batch), rest) == (3, [])
