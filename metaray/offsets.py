"""Consumer offsets for users: commit, fetch, look back, go back.

    await client.commit_offsets([OffsetCommit(group="g", topic="t", partition=0, offset=7)])
    (await client.fetch_offset("g", "t", 0)).offset             # 7
    await asyncio.gather(*(client.fetch_offset("g", "t", each) for each in range(64)))  # one call

The two classes are a part of `Client` and of `BlockingClient`.
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from state_machines import names
from state_machines.offset.get import GetOffset
from state_machines.offset.group import DeleteGroup
from state_machines.offset.history import OffsetAt, OffsetsAt
from state_machines.offset.offset import (
    CommitOffsets,
    CommitReply,
    FetchOffsets,
    Offset,
    OffsetCommit,
)
from state_machines.offset.reset import RewindGroup, RewindReply

R = TypeVar("R")


class Calls(Protocol):
    """What is used of a client whose calls are awaited."""

    def call(self, operation: Any, /, *, stale: bool = False) -> Coroutine[Any, Any, Any]:
        """Carry out an operation in the group that owns it."""
        ...


class Offsets:
    """Of a client whose calls are awaited."""

    async def commit_offsets(
        self: Calls, commits: Sequence[OffsetCommit], *, tenant: str = "default"
    ) -> CommitReply:
        """Commit a batch of 1 to 10 000 consumer offsets, of any groups. Refused ones are in the
        reply; none to commit is Invalid, for no group would say when. Who commits the same
        partitions again and again had better name them once (`Partitions`)."""
        batch = CommitOffsets.of(commits, tenant=tenant)
        names.items(batch.groups, "commits")
        reply: CommitReply = await self.call(batch)
        return reply

    async def fetch_offset(
        self: Calls,
        group: str,
        topic: str,
        partition: int,
        *,
        tenant: str = "default",
        stale: bool = False,
    ) -> Offset | None:
        """The offset of one partition, None when there is none."""
        asked = GetOffset(tenant=tenant, group=group, topic=topic, partition=partition)
        found: Offset | None = await self.call(asked, stale=stale)
        return found

    async def fetch_offsets(
        self: Calls, group: str, *, tenant: str = "default"
    ) -> tuple[Offset, ...]:
        """All offsets of a consumer group, as of one moment. Invalid for one with more than 10 000
        partitions, or 4 MiB of names and metadata: `ListOffsets` reads that page by page."""
        found: tuple[Offset, ...] = await self.call(FetchOffsets(tenant=tenant, group=group))
        return found

    async def delete_group(self: Calls, group: str, *, tenant: str = "default") -> int:
        """Forget a consumer group. Returns how many offsets it had."""
        gone = 0
        while some := await self.call(DeleteGroup(tenant=tenant, group=group)):
            gone += some
        return gone

    async def offsets_at(
        self: Calls, group: str, at_ms: int, *, tenant: str = "default"
    ) -> tuple[OffsetAt, ...]:
        """Where a consumer group stood at a moment (Unix ms). Compacted if it is too long ago."""
        found: list[OffsetAt] = []
        after = b""
        while True:
            asked = OffsetsAt(tenant=tenant, group=group, at_ms=at_ms, after=after)
            page = await self.call(asked)
            found += page.offsets
            after = page.next
            if not after:
                return tuple(found)

    async def rewind(
        self: Calls,
        group: str,
        at_ms: int,
        *,
        expected_generation: int | None = None,
        remove: bool = False,
        tenant: str = "default",
    ) -> RewindReply:
        """Put a consumer group where it stood at a moment, and fence who commits for it now.

        Conflict if partitions were committed for the first time since then, unless `remove` says
        that they go: with their history, which no later rewind brings back. Many of them go in
        several commands, before anything else is moved.
        """
        removed, expected = 0, expected_generation
        while True:
            rewind = RewindGroup(
                tenant=tenant,
                group=group,
                at_ms=at_ms,
                expected_generation=expected,
                remove=remove,
            )
            reply: RewindReply = await self.call(rewind)
            removed, expected = removed + reply.removed, reply.generation
            if not reply.left:
                return replace(reply, removed=removed)


class Waits(Protocol):
    """What is used of a blocking client."""

    _client: Any  #: the one whose calls are awaited

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        """The result of that."""
        ...


class BlockingOffsets:
    """The same of one whose calls block."""

    def commit_offsets(
        self: Waits, commits: Sequence[OffsetCommit], *, tenant: str = "default"
    ) -> CommitReply:
        """Commit a batch of 1 to 10 000 consumer offsets, of any groups. Refused ones are in the
        reply."""
        reply: CommitReply = self._wait(self._client.commit_offsets(commits, tenant=tenant))
        return reply

    def fetch_offset(
        self: Waits,
        group: str,
        topic: str,
        partition: int,
        *,
        tenant: str = "default",
        stale: bool = False,
    ) -> Offset | None:
        """The offset of one partition, None when there is none."""
        asked = self._client.fetch_offset(group, topic, partition, tenant=tenant, stale=stale)
        found: Offset | None = self._wait(asked)
        return found

    def fetch_offsets(self: Waits, group: str, *, tenant: str = "default") -> tuple[Offset, ...]:
        """All offsets of a consumer group, as of one moment. Invalid for one with more than 10 000
        partitions, or 4 MiB of names and metadata: `ListOffsets` reads that page by page."""
        found: tuple[Offset, ...] = self._wait(self._client.fetch_offsets(group, tenant=tenant))
        return found

    def delete_group(self: Waits, group: str, *, tenant: str = "default") -> int:
        """Forget a consumer group. Returns how many offsets it had."""
        gone: int = self._wait(self._client.delete_group(group, tenant=tenant))
        return gone

    def offsets_at(
        self: Waits, group: str, at_ms: int, *, tenant: str = "default"
    ) -> tuple[OffsetAt, ...]:
        """Where a consumer group stood at a moment (Unix ms). Compacted if it is too long ago."""
        found: tuple[OffsetAt, ...] = self._wait(
            self._client.offsets_at(group, at_ms, tenant=tenant)
        )
        return found

    def rewind(
        self: Waits,
        group: str,
        at_ms: int,
        *,
        expected_generation: int | None = None,
        remove: bool = False,
        tenant: str = "default",
    ) -> RewindReply:
        """Put a consumer group where it stood at a moment, and fence who commits for it now.

        Conflict if partitions were committed for the first time since then, unless `remove` says
        that they go: with their history, which no later rewind brings back.
        """
        reply: RewindReply = self._wait(
            self._client.rewind(
                group,
                at_ms,
                expected_generation=expected_generation,
                remove=remove,
                tenant=tenant,
            )
        )
        return reply
