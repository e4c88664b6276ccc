"""Callers at a replica that knows of no leader: held until there is one, but not for long."""

from __future__ import annotations

import asyncio

import pytest

from actors import leadership
from actors.leadership import HELD_SECONDS
from state_machines.raft import AppendReply, Heartbeat, VoteReply
from state_machines.wire import api_pb2 as api
from tests.actors.alone import Alone, code
from tests.actors.virtual_time import in_virtual_time, settled


def leader_in(answer: asyncio.Task[bytes]) -> str:
    assert code(answer) == api.NOT_LEADER
    return api.Reply.FromString(answer.result()).leader


@in_virtual_time
async def test_they_are_told_where_it_is_as_soon_as_there_is_one() -> None:
    replica = Alone((1, 2, 3))
    write, read = replica.proposes(), replica.asks()
    await asyncio.sleep(HELD_SECONDS / 2)
    assert not write.done()
    assert not read.done()
    await replica.hear(Heartbeat(2, 1, 1, 0, 0))
    assert [leader_in(write), leader_in(read)] == ["g-0/2"] * 2
    late = replica.proposes()
    await settled()
    assert leader_in(late) == "g-0/2", "with a leader nobody is held"


@in_virtual_time
async def test_they_may_have_come_to_the_next_leader() -> None:
    replica = Alone((1, 2, 3))
    write = replica.proposes()
    replica.replica.campaign()
    await settled()
    assert not write.done()
    await replica.hear(VoteReply(2, 1, 1, granted=True))
    assert replica.replica.leads
    assert leader_in(write) == "g-0/1", "they ask here again"
    again = replica.proposes()
    await settled()
    await replica.hear(AppendReply(2, 1, 1, replica.replica.core.last_index))
    assert code(again) == api.OK


@in_virtual_time
@pytest.mark.parametrize(
    ("timeout_ms", "held"), [(0, HELD_SECONDS), (30_000, HELD_SECONDS), (40, 0.02)]
)
async def test_without_one_they_are_told_so_in_time_to_ask_elsewhere(
    timeout_ms: int, held: float
) -> None:
    replica = Alone((1, 2, 3))
    write = replica.proposes(timeout_ms=timeout_ms)
    await asyncio.sleep(held * 0.95)
    assert not write.done()
    await asyncio.sleep(held * 0.1)
    assert leader_in(write) == ""
    await replica.hear(Heartbeat(2, 1, 1, 0, 0))  # nobody is told twice


@in_virtual_time
async def test_only_so_many_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "HELD_MAX", 3)
    replica = Alone((1, 2, 3))
    writes = [replica.proposes() for _ in range(5)]
    await settled()
    assert [each.done() for each in writes] == [False] * 3 + [True] * 2
    writes[0].cancel()  # who gives up leaves room
    await settled()
    another = replica.proposes()
    await settled()
    assert not another.done()
    await replica.hear(Heartbeat(2, 1, 1, 0, 0))
    assert {leader_in(each) for each in [*writes[1:3], another]} == {"g-0/2"}


@in_virtual_time
async def test_who_stopped_holds_nobody() -> None:
    replica = Alone((1, 2, 3))
    replica.replica.abandon()
    write = replica.proposes()
    await settled()
    assert code(write) == api.STOPPED
