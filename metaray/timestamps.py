"""Timestamps for users: each is given once, and is above all that anybody was told before.

    at = await client.timestamp()
    many = await client.timestamps(1_000)       # in one call: 1 000 that follow each other
    milliseconds, counter = parts(at)

A call costs what a write to `metadata-0` costs, and callers that wait at once share one. A range
that somebody keeps is not newer than when it was taken: take one for each thing that is to be
ordered after what others do meanwhile (`state_machines/metadata/timestamp.py`).

The two classes are a part of `Client` and of `BlockingClient`.
"""

from __future__ import annotations

from typing import Any, Protocol

from metaray.transactions import Calls
from state_machines.metadata.timestamp import LOGICAL_BITS, TakeTimestamps


class BlockingCalls(Protocol):
    """What is used of a blocking client."""

    def call(self, operation: Any, /) -> Any:
        """Carry out an operation in the group that owns it."""
        ...


class Timestamps:
    """Of a client whose calls are awaited."""

    async def timestamp(self: Calls) -> int:
        """The next timestamp: milliseconds above 18 bits of counter (`parts`)."""
        first: int = await self.call(TakeTimestamps())
        return first

    async def timestamps(self: Calls, count: int) -> range:
        """The next `count`, 1 to 262 144, in one call.

        Raises Invalid for another count, and QuotaExceeded when so many were taken that these
        would be a minute ahead of the group's time: nothing is given then, ask again later.
        """
        first: int = await self.call(TakeTimestamps(count=count))
        return range(first, first + count)


class BlockingTimestamps:
    """The same of one whose calls block."""

    def timestamp(self: BlockingCalls) -> int:
        """The next timestamp: milliseconds above 18 bits of counter (`parts`)."""
        first: int = self.call(TakeTimestamps())
        return first

    def timestamps(self: BlockingCalls, count: int) -> range:
        """The next `count`, 1 to 262 144, in one call. Raises Invalid and QuotaExceeded."""
        first: int = self.call(TakeTimestamps(count=count))
        return range(first, first + count)


def parts(timestamp: int) -> tuple[int, int]:
    """Unix milliseconds and counter of a timestamp. The first are the group's time when it was
    given, or up to a minute ahead of it."""
    return timestamp >> LOGICAL_BITS, timestamp & ((1 << LOGICAL_BITS) - 1)
