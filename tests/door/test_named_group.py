"""A call that names its Raft group goes there, whatever the slot map says; so does a watch, and it
has to name one where several have rows of its table. Without Ray."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from actors.calls import LinkedGroups
from metaray.client import BlockingClient, Client
from state_machines.errors import Invalid
from state_machines.lease import LEASES
from state_machines.metadata.kv import KV, GetKv, PutKv
from state_machines.metadata.shards import SHARDS
from state_machines.mqtt.sessions import TALLIES as SESSION_TALLIES
from state_machines.mqtt.topic import TOPICS
from state_machines.offset.offset import OFFSETS
from state_machines.slots import Own, SlotRange
from state_machines.tables import Table
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import Script

OTHER = "metadata-1"


def scripted() -> Script:
    return Script(names={group: (f"{group}/0",) for group in ("metadata-0", OTHER)})


def test_a_call_may_name_its_group() -> None:
    script = scripted()

    async def run() -> None:
        client = Client()
        client._caller = Caller(script, rng=Random(1))
        await client.call(GetKv(key="a"), group=OTHER)
        await client.call(GetKv(key="a"))
        await client.call(PutKv(key="a", value=b""), group=OTHER)
        ranges = (SlotRange(0, 1, OTHER),)
        own = Own(controller_epoch=1, group_kind="metadata", version=1, ranges=ranges)
        await client.call(own, group=OTHER)
        await client._caller.close()

    asyncio.run(run())
    asked = [(call.tags[0], call.group) for call in script.calls if not call.registers]
    assert asked == [
        ("metadata.kv.get", OTHER),
        ("metadata.kv.get", "metadata-0"),
        ("metadata.kv.put", OTHER),
        ("group.own", OTHER),
    ]


def test_a_blocking_call_may_too() -> None:
    script = scripted()
    client = BlockingClient()
    client._thread.start()

    async def open_() -> None:
        client._client._caller = Caller(script, rng=Random(1))

    client._wait(open_())
    assert client.call(GetKv(key="a"), group=OTHER) is None
    client.close()
    assert [call.group for call in script.calls] == [OTHER]


class Told(Caller):
    """It says to whoever watches which groups he asks, and that they have nothing."""

    def __init__(self) -> None:
        super().__init__(scripted(), rng=Random(1))
        self.polled: asyncio.Queue[str] = asyncio.Queue()

    async def poll(self, group: str, *_: Any, **__: Any) -> api.Reply:
        await self.polled.put(group)
        return api.Reply(revision=1)


class Known(LinkedGroups):
    """These groups, and no actors."""

    def __init__(self, *groups: str) -> None:
        super().__init__()
        self._seats = {group: (f"{group}/0",) for group in groups}


GROUPS = ("metadata-0", OTHER, "mqtt-0", "mqtt-1", "offset-0")


@pytest.mark.parametrize(
    ("table", "named", "asked"),
    [
        (KV, OTHER, OTHER),
        (SHARDS, "", "metadata-0"),
        (OFFSETS, "", "offset-0"),
        (SESSION_TALLIES, "mqtt-1", "mqtt-1"),
        (LEASES, "mqtt-1", "mqtt-1"),
    ],
)
def test_a_watch_is_of_the_group_that_has_all_rows_or_is_named(
    table: Table[Any], named: str, asked: str
) -> None:
    async def run() -> None:
        client = Client()
        client._caller = caller = Told()
        client._groups = Known(*GROUPS)
        async with aclosing(client.watch(table, group=named, progress=True)) as told:
            await anext(told)
        assert caller.polled.get_nowait() == asked
        await client.aclose()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("table", "groups"),
    [
        (KV, "metadata-0, metadata-1"),
        (TOPICS, "mqtt-0, mqtt-1"),
        (SESSION_TALLIES, "mqtt-0, mqtt-1"),
        (LEASES, "metadata-0, metadata-1, mqtt-0, mqtt-1, offset-0"),
    ],
)
def test_a_watch_does_not_leave_out_groups_in_silence(table: Table[Any], groups: str) -> None:
    client = Client()
    client._groups = Known(*GROUPS)
    said = f"group: name one or take watch_all, {table.name} is in each of {groups}"
    with pytest.raises(Invalid, match=f"^{said}$"):
        client.watch(table)
