"""Where committed entries are read from: a learner if there is one, a follower, the leader last.

The replica that is asked keeps its log back for us (`actors.committed`), and so must the others,
or whoever is asked after it has failed could have compacted what we have not got yet: they are told
how far the history is durable, every few seconds. A replica whose log begins too late (it may have
installed a snapshot) is left for one that still has the entry; only when nobody has it, it is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
import time
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from state_machines.errors import MetarayError, NoQuorum

EXPORTER: Final = "history"  #: begins the names under which replicas keep their logs back
PAGE_BYTES: Final = 1 << 20
WAIT_MS: Final = 5_000  #: a page is waited for so long
CALL_SECONDS: Final = 20.0  #: our own deadline for a page, the wait included
STATUS_SECONDS: Final = 5.0  #: and for any other answer
TELL_SECONDS: Final = 5.0  #: how often the other replicas are told how far the history is
MISS_SECONDS: Final = 60.0  #: an entry that only silent replicas may have is waited for so long
PREFER_SECONDS: Final = 30.0  #: how often a leader that had to be asked is looked past

log = logging.getLogger(__name__)


class Calls(Protocol):
    """Who carries the calls (`actors.calls.LinkedCalls`)."""

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """Call a method of a seat."""
        ...


class Named(Protocol):
    """Who knows the groups (`actors.calls.LinkedGroups`)."""

    def groups(self) -> Sequence[str]:
        """All groups, by name."""
        ...

    def seats(self, group: str) -> Sequence[str]:
        """The seats of a group."""
        ...

    async def refresh(self) -> None:
        """Look again."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of one group, encoded; and from where on there are any, if not from the one asked."""

    seat: str
    first_index: int
    commit: int
    entries: Sequence[bytes]


def exporter_name(directory: Path) -> str:
    """The name of who exports to a directory: two that export elsewhere are two to the replicas, or
    the one that is ahead would let go of what the other has not got yet."""
    place = b"\0".join((socket.gethostname().encode(), os.fsencode(directory.resolve())))
    return f"{EXPORTER}-{hashlib.blake2b(place, digest_size=8).hexdigest()}"


class Source:
    """The groups of one cluster, for the history in `directory`. Used on one event loop."""

    def __init__(self, calls: Calls, named: Named, directory: Path) -> None:
        self._calls = calls
        self._named = named
        self._exporter = exporter_name(directory)
        self._seat: dict[str, str] = {}
        self._prefer_at: dict[str, float] = {}
        self._tell_at: dict[str, float] = {}
        self._missed_at: dict[str, float] = {}  # since when an entry is looked for in vain
        self._silent: dict[str, tuple[str, ...]] = {}  # who did not answer when we last chose

    async def groups(self) -> Sequence[str]:
        """The groups that there are now."""
        await self._named.refresh()
        return tuple(self._named.groups())

    async def cluster(self) -> str:
        """The cluster's id. Raises NoQuorum when no replica says one."""
        await self._named.refresh()
        for group in self._named.groups():
            for status in (await self._statuses(group)).values():
                if status.get("cluster"):
                    return str(status["cluster"])
        raise NoQuorum("no replica answers: there is nothing to export")

    async def commits(self, group: str) -> int:
        """How far the group has agreed, as far as its replicas know; 0 if none answers."""
        said = await self._statuses(group)
        return max([int(each.get("commit", 0)) for each in said.values()], default=0)

    async def page(self, group: str, first: int, exported: int, wait_ms: int = WAIT_MS) -> Page:
        """The entries from `first` on, perhaps none yet. Raises NoQuorum when nobody answers, and
        while those that do not may be the ones that still have the entry."""
        seat = await self._chosen(group, first)
        page = await self._ask(group, seat, first, exported, wait_ms)
        if page.first_index > first:
            seat = await self._choose(group, first)
            page = await self._ask(group, seat, first, exported, wait_ms)
        if page.first_index > first:
            self._be_sure_it_is_gone(group, first)
        self._missed_at.pop(group, None)
        await self._tell_others(group, seat, exported)
        return page

    async def hold(self, group: str, exported: int) -> None:
        """Have all replicas keep what follows `exported`: for who cannot take another page now."""
        await self._tell_others(group, "", exported)

    def _be_sure_it_is_gone(self, group: str, first: int) -> None:
        silent = self._silent.get(group, ())
        since = self._missed_at.setdefault(group, time.monotonic())
        if silent and time.monotonic() - since < MISS_SECONDS:
            raise NoQuorum(f"entry {first} is gone, unless {', '.join(silent)} still has it")

    async def _ask(self, group: str, seat: str, first: int, exported: int, wait_ms: int) -> Page:
        asked = self._calls.call(
            seat, "committed", self._exporter, first, PAGE_BYTES, wait_ms, exported
        )
        try:
            said = await _within(CALL_SECONDS, asked)
        except Exception as error:  # whatever it was, another replica is asked next time
            self._seat.pop(group, None)
            raise NoQuorum(f"{seat} has no page for us: {_words(error)}") from error
        if said["leads"] and time.monotonic() >= self._prefer_at.get(group, 0.0):
            self._seat.pop(group, None)
        return Page(seat, said["first_index"], said["commit"], said["entries"])

    async def _chosen(self, group: str, first: int) -> str:
        return self._seat.get(group) or await self._choose(group, first)

    async def _choose(self, group: str, first: int) -> str:
        """The replica to ask: one that has the entry, rather a learner, rather not the leader."""
        known = {
            seat: each
            for seat, each in (await self._statuses(group)).items()
            if each.get("first_index") and each["role"] != "stopped"
        }
        self._silent[group] = tuple([x for x in self._named.seats(group) if x not in known])
        if not known:
            await self._named.refresh()
            raise NoQuorum(f"{group}: no replica answers")

        def rank(seat: str) -> tuple[int, bool, bool, int, str]:
            each = known[seat]
            oldest = max(int(each["first_index"]), first)  # beyond `first` the smallest is best
            learns = each["replica"] in each["learners"]
            return oldest, each["role"] == "leader", not learns, -int(each["applied"]), seat

        seat = self._seat[group] = min(known, key=rank)
        self._prefer_at[group] = time.monotonic() + PREFER_SECONDS
        return seat

    async def _statuses(self, group: str) -> dict[str, dict[str, Any]]:
        seats = self._named.seats(group)
        asked = [_within(STATUS_SECONDS, self._calls.call(seat, "status")) for seat in seats]
        said = await asyncio.gather(*asked, return_exceptions=True)
        return {
            seat: each for seat, each in zip(seats, said, strict=True) if isinstance(each, dict)
        }

    async def _tell_others(self, group: str, asked: str, exported: int) -> None:
        now = time.monotonic()
        if now < self._tell_at.get(group, 0.0):
            return
        self._tell_at[group] = now + TELL_SECONDS
        others = [seat for seat in self._named.seats(group) if seat != asked]
        told = [
            _within(STATUS_SECONDS, self._calls.call(seat, "hold_log", self._exporter, exported))
            for seat in others
        ]
        for seat, each in zip(
            others, await asyncio.gather(*told, return_exceptions=True), strict=True
        ):
            if isinstance(each, BaseException):
                log.info("%s was not told of the history: %s", seat, _words(each))


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    """The answer, or TimeoutError. Not `wait_for`: before Python 3.12 that loses a cancellation
    which comes together with the answer, and then the line would never end."""
    async with asyncio.timeout(seconds):
        return await answer


def _words(error: BaseException) -> str:
    if isinstance(error, MetarayError):
        return error.detail
    return (str(error).splitlines() or [""])[-1][:300] or type(error).__name__
