"""What a node keeps of a kind with several groups: tables whose rows can be told apart; and one row
is read as its owner has it, whoever else is away."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgpack
import pytest

from actors.caller import error_of
from actors.node_cache import NodeCache
from actors.wanted import Wanted
from state_machines.errors import Invalid, NoQuorum
from state_machines.mqtt.session import OpenSession
from state_machines.mqtt.sessions import SESSIONS
from state_machines.slots import slot_of
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import now
from tests.actors.virtual_time import in_virtual_time, settled
from tests.machine.alone import Group

GROUPS = ("mqtt-0", "mqtt-1")
A, B, NOBODY = "a", "b", "c"  #: clients; A and NOBODY belong to one group, B to the other


def owner_of(client_id: str) -> str:
    return GROUPS[slot_of(("default", client_id)) % 2]


class Two:
    """`cache_stream.Source` over two groups with a session each, one of which may be away."""

    def __init__(self, *, known: bool = True) -> None:
        self.groups = {each: Group("mqtt") for each in GROUPS}
        self.known = known  # the slot map is
        self.away = ""
        for client_id in (A, B):
            self.groups[owner_of(client_id)].run(OpenSession(client_id=client_id, broker="b"))

    async def owner(self, kind: str, key: tuple[str, ...] | None) -> str:
        assert (kind, key is None) == ("mqtt", False)
        return owner_of(*(key or ())[1:]) if self.known else ""

    async def call(self, operation: Any, *, group: str = "", **_: Any) -> Any:
        await self._reach(group)
        return self.groups[group].ask(operation)

    async def poll(
        self, group: str, wanted: Wanted, from_revision: int | None, **_: Any
    ) -> api.Reply:
        await self._reach(group)
        if from_revision is not None:
            await asyncio.sleep(4)
        return api.Reply(revision=self.groups[group].index)

    async def _reach(self, group: str) -> None:
        await asyncio.sleep(0)
        if group == self.away:
            await asyncio.sleep(30)
            raise NoQuorum(f"{group}: no answer")


@asynccontextmanager
async def keeping(source: Two) -> AsyncIterator[NodeCache]:
    cache = NodeCache(source, lambda kind: [each for each in GROUPS if each.startswith(kind)])
    try:
        yield cache
    finally:
        await cache.close()


async def read(cache: NodeCache, table: str = SESSIONS.name, **fields: Any) -> api.Reply:
    """The reply, or the refusal."""
    request = api.CacheRequest(table=table, timeout_ms=5_000, **fields)
    reply = api.Reply.FromString(await cache.read(request.SerializeToString()))
    if reply.code != api.OK:
        raise error_of(reply)
    return reply


def key(client_id: str) -> bytes:
    return bytes(msgpack.packb(("default", client_id)))


@in_virtual_time
async def test_a_row_is_read_though_another_group_is_away() -> None:
    source = Two()
    source.away = owner_of(B)
    async with keeping(source) as cache:
        begun = now()
        for _ in range(2):
            assert len((await read(cache, key=key(A))).changes) == 1
            assert (await read(cache, key=key(NOBODY))).changes == []
        seen = [api.Position(group=source.away, revision=9)]
        assert len((await read(cache, key=key(A), seen=seen)).changes) == 1
        assert now() == begun
        with pytest.raises(NoQuorum):
            await read(cache, key=key(B))
        with pytest.raises(NoQuorum):
            await read(cache)


@in_virtual_time
async def test_where_nobody_knows_the_owner_all_groups_are_waited_for() -> None:
    source = Two(known=False)
    async with keeping(source) as cache:
        assert len((await read(cache, key=key(A))).changes) == 1
    source.away = owner_of(B)
    async with keeping(source) as cache:
        with pytest.raises(NoQuorum):
            await read(cache, key=key(A))


@pytest.mark.parametrize(
    "table", ["mqtt.session_tally", "mqtt.connector_load", "mqtt.share_broker", "mqtt.outbox"]
)
@in_virtual_time
async def test_tables_of_which_each_group_has_its_own_are_not_mixed_up(table: str) -> None:
    async with keeping(Two()) as cache:
        with pytest.raises(Invalid, match=f"table: each of mqtt-0, mqtt-1 has its own {table}"):
            await read(cache, table)
        assert cache.status()["slices"] == 0


@in_virtual_time
async def test_who_waits_for_both_groups_when_the_cache_is_closed_is_told() -> None:
    source = Two()
    source.away = owner_of(B)
    async with keeping(source) as cache:
        reading = asyncio.create_task(read(cache))
        await settled()
        await cache.close()
        with pytest.raises(NoQuorum, match="the cache is closed"):
            await reading
