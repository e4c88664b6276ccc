"""What a client hears of changes, and what it reads of what its node keeps.

    async for change in client.watch(TOPICS, tenant="acme", from_revision=17): ...   # of one group
    async for each in client.watch_all("mqtt", positions=kept): ...     # changes and progress
    topics = client.cached(TOPICS, tenant="acme")

`Watches` is this half of `Client`; the other half calls operations.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypeVar, overload

from actors.caller import Caller
from actors.feed import BUFFER_CHANGES, Feed
from actors.wanted import Part, Wanted, groups_of, of_kind
from metaray.cached import Cache, Cached, Door
from metaray.watching import Change, Groups, Joining, Progress, stream
from state_machines.errors import Invalid, NotFound
from state_machines.tables import Table

Row = TypeVar("Row")


class Watches(ABC):
    """A client that is open has a caller and knows the groups."""

    _groups: Groups
    _door: Door | None = None

    @abstractmethod
    def _open(self) -> Caller:
        """The caller, or RuntimeError when there is none."""

    @abstractmethod
    async def _find_cache(self) -> Cache:
        """The cache of this node, or whatever its carrier raises."""

    async def _close_door(self) -> None:
        door, self._door = self._door, None
        if door is not None:
            await door.close()

    async def revision(self, group: str) -> int:
        """The group's latest revision: where a watch may begin, before the rows are read."""
        return (await self._open().watch(group, (), None)).revision

    @overload
    def watch(
        self,
        table: Table[Row],
        *,
        from_revision: int | None = None,
        group: str = "",
        tenant: str = "",
        prefix: str = "",
        progress: Literal[False] = False,
        stale: bool = False,
        buffer: int = BUFFER_CHANGES,
    ) -> AsyncGenerator[Change[Row], None]: ...
    @overload
    def watch(
        self,
        table: Table[Row],
        *,
        from_revision: int | None = None,
        group: str = "",
        tenant: str = "",
        prefix: str = "",
        progress: Literal[True],
        stale: bool = False,
        buffer: int = BUFFER_CHANGES,
    ) -> AsyncGenerator[Change[Row] | Progress, None]: ...
    def watch(
        self,
        table: Table[Row],
        *,
        from_revision: int | None = None,
        group: str = "",
        tenant: str = "",
        prefix: str = "",
        progress: bool = False,
        stale: bool = False,
        buffer: int = BUFFER_CHANGES,
    ) -> AsyncGenerator[Any, None]:
        """Every change of a table after a revision, in order, for ever (None: from now on); of one
        tenant, and of keys whose part behind the tenant begins with `prefix`, if they are named.

        Raises Compacted when the changes after the revision are no longer kept, or when the group
        has not come to it, as to one of an earlier cluster or, perhaps, to a row's own: read the
        rows again and watch on from `revision()`, asked before the read. Raises Overflow when
        nothing was taken for long, with the revision to go on from. Raises NoQuorum when the group
        does not answer for the client's `timeout_ms`, or 30 s if that is longer. A change comes at
        least once: whoever resumes, resumes from the last `Progress`, or from before the revision
        of the last change.
        `stale` lets followers answer too, `buffer` is how many changes may be polled ahead.

        A watch is of one group: Invalid where several have rows of the table and none is named.
        """
        group = group or self._only_group(table)
        wanted = Wanted.of_table(table.name, tenant, prefix)
        return self._changes(wanted, {group: from_revision}, progress, stale, buffer)

    def _only_group(self, table: Table[Any]) -> str:
        groups = groups_of(table, self._groups.groups())
        if len(groups) != 1:
            said = ", ".join(groups)
            raise Invalid(f"group: name one or take watch_all, {table.name} is in each of {said}")
        return groups[0]

    def watch_all(
        self,
        kind: str,
        *,
        tables: Sequence[Table[Any]] = (),
        only: Sequence[Part] = (),
        positions: Mapping[str, int] | None = None,
        progress: bool = True,
        stale: bool = False,
        buffer: int = BUFFER_CHANGES,
    ) -> AsyncGenerator[Change[Any] | Progress, None]:
        """Every change in all groups of a kind, of these tables (of none: of every one), in these
        parts of them (of none: everywhere); groups that join are joined.

        Each group has its own order and its own revision: `positions` says after which to begin
        ({}: at the beginning, None: now), and `Progress` how far each has come.
        """
        named = tuple([each.name for each in tables])
        wanted = Wanted(named, every=not named, only=tuple(only))
        groups = of_kind(self._groups.groups(), kind)
        if not groups:
            raise NotFound(f"kind: there is no group of kind {kind[:80]!r}")
        begin: dict[str, int | None] = (
            dict.fromkeys(groups)
            if positions is None
            else {**dict.fromkeys(groups, 0), **positions}
        )
        return self._changes(wanted, begin, progress, stale, buffer, kind)

    async def _changes(
        self,
        wanted: Wanted,
        begin: Mapping[str, int | None],
        progress: bool,
        stale: bool,
        buffer: int,
        kind: str = "",
    ) -> AsyncGenerator[Any, None]:
        positions = {
            group: await self.revision(group) if revision is None else revision
            for group, revision in begin.items()
        }
        poll = partial(self._open().poll, stale=stale)
        feed = Feed(poll, wanted, positions, changes_max=buffer)
        joining = Joining(self._groups, kind) if kind else None
        async with aclosing(stream(feed, progress=progress, joining=joining)) as told:
            async for each in told:
                yield each

    def cached(self, table: Table[Row], *, tenant: str = "", prefix: str = "") -> Cached[Row]:
        """The rows of a table, or of a tenant's part of it, as this node keeps them (`cached.py`):
        read without a call to a group, at a revision that is told. Invalid for a table of which
        each of several groups has rows of its own."""
        return Cached(self._cache, table, tenant, prefix)

    def _cache(self) -> Door:
        caller = self._open()
        if self._door is None:
            self._door = Door(caller, self._groups, self._find_cache)
        return self._door
