"""What watchers are told, and the streams that tell it (`actors/feed.py`).

A change comes at least once, revisions of a group in order. `Progress` says that all of a group up
to a revision was told: whoever writes it down resumes there and is told nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import msgpack

from actors.feed import Feed
from actors.wanted import of_kind
from state_machines.errors import MetarayError
from state_machines.tables import TABLES
from state_machines.wire import api_pb2 as api

GROUPS_SECONDS: Final = 30.0  #: how often a watch of a kind looks for groups that are new

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Change(Generic[Row]):
    """Something that changed: the row as it is since `revision`, None if it was deleted."""

    revision: int
    key: tuple[str | int | bytes, ...]
    row: Row | None
    table: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything of this group up to this revision was told."""

    revision: int
    group: str = ""


class Groups(Protocol):
    """Where the groups of a cluster are known."""

    def groups(self) -> Sequence[str]:
        """By name."""
        ...

    async def refresh(self) -> None:
        """Look again. Raises Stopped when nobody answers."""
        ...


def change_of(group: str, told: api.Change) -> Change[Any]:
    """A change as it came over the wire."""
    row = TABLES[told.table].decode(told.row)[0] if told.row else None
    return Change(told.revision, tuple(msgpack.unpackb(told.key)), row, told.table, group)


async def stream(
    feed: Feed, *, progress: bool = False, joining: Joining | None = None
) -> AsyncGenerator[Change[Any] | Progress, None]:
    """Every change of a feed, and (`progress`) how far each group was told. It ends the feed."""
    try:
        while True:
            news = await feed.next()
            for told in news.changes:
                feed.taken()
                yield change_of(news.group, told)
            feed.delivered(news)
            if progress:
                yield Progress(news.revision, news.group)
            if joining is not None:
                await joining.look(feed)
    finally:
        await feed.close()


class Joining:
    """Groups of a kind that were not there when a watch began: all of their past is news."""

    def __init__(self, groups: Groups, kind: str) -> None:
        self._groups = groups
        self._kind = kind
        self._next = asyncio.get_running_loop().time() + GROUPS_SECONDS

    async def look(self, feed: Feed) -> None:
        """Add them to a feed, now and then."""
        now = asyncio.get_running_loop().time()
        if now < self._next:
            return
        self._next = now + GROUPS_SECONDS
        with suppress(MetarayError):  # the watch goes on with those that it has
            await self._groups.refresh()
        for group in of_kind(self._groups.groups(), self._kind):
            if group not in feed.positions:
                feed.add(group, 0)
