"""A call that names its Raft group goes there, whatever the slot map says. Without Ray."""

from __future__ import annotations

import asyncio
from random import Random

from actors.caller import Caller
from metaray.client import BlockingClient, Client
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.slots import Own, SlotRange
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
