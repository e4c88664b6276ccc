"""What the client does with consumer offsets beyond one call: large groups, and the time machine.

A group without replicas answers it, so neither Ray nor a cluster is needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from metaray.client import Client
from state_machines import op
from state_machines.errors import Compacted, Conflict, Fenced, Invalid
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.offset.offset import OffsetCommit
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


class Near(Client):
    """A client of one group in this process."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group("offset")
        self.calls = 0

    def call(self, operation: Any, /, **given: Any) -> Coroutine[Any, Any, Any]:
        self.calls += 1

        async def answered() -> Any:
            query = op.is_query(type(operation))
            return self.group.ask(operation) if query else self.group.run(operation)

        return answered()


def commits(count: int, offset: int, **more: Any) -> list[OffsetCommit]:
    return [
        OffsetCommit(group="g", topic="t", partition=number, offset=offset, **more)
        for number in range(count)
    ]


def test_a_group_of_any_size_is_deleted() -> None:
    async def run() -> None:
        client = Near()
        assert await client.delete_group("g") == 0
        for count, calls in ((1, 2), (1_000, 2), (2_500, 4)):  # the last one finds nothing
            await client.commit_offsets(commits(count, 1))
            client.calls = 0
            assert await client.delete_group("g") == count
            assert client.calls == calls
            assert await client.fetch_offsets("g") == ()

    asyncio.run(run())


@pytest.mark.parametrize("count", [0, BATCH_ITEMS_MAX + 1])
def test_what_is_no_batch_is_refused_by_the_name_that_the_caller_gave_it(count: int) -> None:
    async def run() -> None:
        client = Near()
        with pytest.raises(Invalid, match=rf"^commits: {count} items, the range is 1 to 10000$"):
            await client.commit_offsets(commits(count, 1))
        assert client.calls == 0

    asyncio.run(run())


def test_the_offset_of_one_partition() -> None:
    async def run() -> None:
        client = Near()
        await client.commit_offsets(commits(3, 7))
        assert await client.fetch_offset("g", "t", 2) in await client.fetch_offsets("g")
        assert await client.fetch_offset("g", "t", 3) is None
        assert await client.fetch_offset("g", "t", 2, tenant="other", stale=True) is None

    asyncio.run(run())


def test_a_moment_is_read_to_its_end_and_gone_back_to() -> None:
    async def run() -> None:
        client = Near()
        for offset in (1, 2, 3):
            await client.commit_offsets(commits(1_500, offset))
            client.group.later(20)
        found = await client.offsets_at("g", NOW_MS + 25_000)
        assert [(each.partition, each.offset, each.exact) for each in found] == [
            (number, 2, True) for number in range(1_500)
        ]
        reply = await client.rewind("g", NOW_MS + 25_000, expected_generation=-1)
        assert (reply.rewound, reply.inexact, reply.removed) == (1_500, 0, 0)
        assert {each.offset for each in await client.fetch_offsets("g")} == {2}
        late = await client.commit_offsets(commits(2, 9))
        assert late.committed == 0
        with pytest.raises(Fenced):
            late.or_raise()
        mine = await client.commit_offsets(commits(2, 9, generation=reply.generation))
        assert mine.or_raise().committed == 2

    asyncio.run(run())


def test_what_a_rewind_has_to_remove_goes_in_as_many_commands_as_it_takes() -> None:
    async def run() -> None:
        client = Near()
        await client.commit_offsets(commits(1, 1))
        client.group.later(20)
        await client.commit_offsets(commits(4_500, 2))
        client.group.later(20)
        with pytest.raises(Conflict, match=r"^at_ms: 4499 partitions"):
            await client.rewind("g", NOW_MS)
        client.calls = 0
        reply = await client.rewind("g", NOW_MS, expected_generation=-1, remove=True)
        assert client.calls == 3
        assert (reply.rewound, reply.removed, reply.left) == (1, 4_499, 0)
        [left] = await client.fetch_offsets("g")
        assert left.offset == 1
        mine = await client.commit_offsets(commits(1, 9, generation=reply.generation))
        assert mine.or_raise().committed == 1

    asyncio.run(run())


def test_a_moment_that_is_not_kept_is_said() -> None:
    async def run() -> None:
        client = Near()
        for offset in range(80):
            await client.commit_offsets(commits(1, offset))
            client.group.later(20)
        with pytest.raises(Compacted):
            await client.offsets_at("g", NOW_MS + 1)
        with pytest.raises(Compacted):
            await client.rewind("g", NOW_MS + 1)

    asyncio.run(run())
