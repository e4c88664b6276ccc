"""Where committed entries are read from: a learner if there is one, a follower, the leader last.

The replica that is asked keeps its log back for us (`actors.committed`), and so must the others,
or whoever is asked after it has failed could have compacted what we have not got yet: they are told
how far the history is durable, every few seconds, beside the pages: one that hangs delays nothing.
They answer how far the group has agreed, so who answers and gets no further is noticed. He is left,
as is one whose log begins too late (it may have installed a snapshot), for one that has the entry;
only when nobody has it, it is gone.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from actors.status import has_quorum, leader_of
from state_machines.errors import MetarayError, NoQuorum

EXPORTER: Final = "history"  #: begins the names under which replicas keep their logs back
PAGE_BYTES: Final = 1 << 20
WAIT_MS: Final = 5_000  #: a page is waited for so long
OVERDUE_MS: Final = 1_000  #: and so long, when the group has agreed on its first entry already
CALL_SECONDS: Final = 20.0  #: our own deadline for a page, the wait included
STATUS_SECONDS: Final = 5.0  #: and for any other answer
TELL_SECONDS: Final = 5.0  #: how often the other replicas are told how far the history is
MISS_SECONDS: Final = 60.0  #: an entry that only silent replicas may have is waited for so long
PREFER_SECONDS: Final = 30.0  #: how often a leader, or who gets no further, is looked past
PAGER_BEHIND_MAX: Final = 1_000  #: entries; who lacks more is asked for pages after the leader

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
        """The seats of a group's voters."""
        ...

    def learners(self, group: str) -> Sequence[str]:
        """The seats of its learners."""
        ...

    async def refresh(self) -> None:
        """Look again."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """Entries of one group, encoded; from where on there are any, if not from the one asked; and
    how far the group has agreed, as far as any replica has told us."""

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
        self._doubt_at: dict[str, float] = {}
        self._tell_at: dict[str, float] = {}
        self._missed_at: dict[str, float] = {}  # since when an entry is looked for in vain
        self._perhaps: dict[str, tuple[str, ...]] = {}  # who may still have it, when we last chose
        self._commit: dict[str, int] = {}
        self._telling: dict[str, asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Let the replicas be told what they are being told. That has a deadline of its own."""
        if self._telling:
            await asyncio.wait(tuple(self._telling.values()))

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
        """How far the group has agreed, as far as its replicas know. Raises NoQuorum when neither
        its leader nor a majority says so: others may know of nothing."""
        said = (await self._statuses(group)).values()
        if leader_of(said) is None and not has_quorum(said):
            raise NoQuorum(f"{group}: neither a leader nor a majority of its replicas answers")
        return max(int(each.get("commit", 0)) for each in said)

    async def page(self, group: str, first: int, exported: int, wait_ms: int = WAIT_MS) -> Page:
        """The entries from `first` on, perhaps none yet. Raises NoQuorum when nobody answers, and
        while those that do not may be the ones that still have the entry."""
        seat = await self._chosen(group, first)
        self._tell(group, seat, exported)
        page = await self._ask(group, seat, first, exported, wait_ms)
        if page.first_index > first:
            seat = await self._choose(group, first)
            page = await self._ask(group, seat, first, exported, wait_ms)
        if page.first_index > first:
            self._be_sure_it_is_gone(group, first)
        self._missed_at.pop(group, None)
        return page

    async def hold(self, group: str, exported: int) -> None:
        """Have all replicas keep what follows `exported`: for who cannot take another page now."""
        self._tell(group, "", exported)
        if (telling := self._telling.get(group)) is not None:
            await asyncio.wait((telling,))

    def _be_sure_it_is_gone(self, group: str, first: int) -> None:
        perhaps = self._perhaps.get(group, ())
        since = self._missed_at.setdefault(group, _now())
        if perhaps and _now() - since < MISS_SECONDS:
            raise NoQuorum(f"entry {first} is gone, unless {', '.join(perhaps)} still has it")

    async def _ask(self, group: str, seat: str, first: int, exported: int, wait_ms: int) -> Page:
        overdue = self._commit.get(group, 0) >= first
        if overdue:
            wait_ms = min(wait_ms, OVERDUE_MS)
        asked = self._calls.call(
            seat, "committed", self._exporter, first, PAGE_BYTES, wait_ms, exported
        )
        try:
            said = await _within(CALL_SECONDS, asked)
        except Exception as error:  # whatever it was, another replica is asked next time
            self._seat.pop(group, None)
            raise NoQuorum(f"{seat} has no page for us: {_words(error)}") from error
        entries = said["entries"]
        if said["leads"] and _now() >= self._prefer_at.get(group, 0.0):
            self._seat.pop(group, None)
        if overdue and not entries and _now() >= self._doubt_at.get(group, 0.0):
            self._doubt_at[group] = _now() + PREFER_SECONDS
            self._seat.pop(group, None)
        commit = self._agreed(group, said["commit"])
        return Page(seat, said["first_index"], commit, entries)

    def _agreed(self, group: str, commit: int) -> int:
        """How far the group has agreed, after one more replica has told how far that is."""
        highest = self._commit[group] = max(commit, self._commit.get(group, 0))
        return highest

    def _seats(self, group: str) -> list[str]:
        return [*self._named.seats(group), *self._named.learners(group)]

    async def _chosen(self, group: str, first: int) -> str:
        return self._seat.get(group) or await self._choose(group, first)

    async def _choose(self, group: str, first: int) -> str:
        """The replica to ask: one that has the entry, rather a learner, rather not the leader; and
        of those that wait for the entry none that is far behind the others."""
        known = {
            seat: each
            for seat, each in (await self._statuses(group)).items()
            if each.get("first_index") and each["role"] != "stopped"
        }
        if not known:
            await self._named.refresh()
            raise NoQuorum(f"{group}: no replica answers")
        reached = max(int(each["applied"]) for each in known.values())
        commit = self._agreed(group, max(int(each["commit"]) for each in known.values()))

        def lacks(seat: str) -> bool:
            return int(known[seat]["applied"]) < first <= reached

        def may_have(seat: str) -> bool:
            """Silent, or it has got the entry and has not come to apply it."""
            each = known.get(seat)
            return each is None or (
                lacks(seat) and int(each["first_index"]) <= first <= int(each["last_index"])
            )

        def rank(seat: str) -> tuple[bool, int, bool, bool, bool, int, str]:
            each = known[seat]
            oldest = max(int(each["first_index"]), first)  # beyond `first` the smallest is best
            far = commit - int(each["applied"]) > PAGER_BEHIND_MAX
            leads, learns = each["role"] == "leader", each["replica"] in each["learners"]
            return lacks(seat), oldest, far, leads, not learns, -int(each["applied"]), seat

        self._perhaps[group] = tuple([seat for seat in self._seats(group) if may_have(seat)])
        seat = self._seat[group] = min(known, key=rank)
        self._prefer_at[group] = _now() + PREFER_SECONDS
        return seat

    async def _statuses(self, group: str) -> dict[str, dict[str, Any]]:
        seats = self._seats(group)
        asked = [_within(STATUS_SECONDS, self._calls.call(seat, "status")) for seat in seats]
        said = await asyncio.gather(*asked, return_exceptions=True)
        return {
            seat: each for seat, each in zip(seats, said, strict=True) if isinstance(each, dict)
        }

    def _tell(self, group: str, asked: str, exported: int) -> None:
        """Have the other replicas told, unless they are or it is too soon."""
        if group in self._telling or _now() < self._tell_at.get(group, 0.0):
            return
        self._tell_at[group] = _now() + TELL_SECONDS
        others = [seat for seat in self._seats(group) if seat != asked]
        task = asyncio.get_running_loop().create_task(self._tell_all(group, others, exported))
        self._telling[group] = task
        task.add_done_callback(lambda _: self._telling.pop(group))

    async def _tell_all(self, group: str, seats: Sequence[str], exported: int) -> None:
        told = [
            _within(STATUS_SECONDS, self._calls.call(seat, "hold_log", self._exporter, exported))
            for seat in seats
        ]
        for seat, each in zip(
            seats, await asyncio.gather(*told, return_exceptions=True), strict=True
        ):
            if isinstance(each, BaseException):
                log.info("%s was not told of the history: %s", seat, _words(each))
            elif each is not None:  # an earlier release says nothing
                self._agreed(group, each)


def _now() -> float:
    """Seconds of the loop's clock."""
    return asyncio.get_running_loop().time()


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    """The answer, or TimeoutError. Not `wait_for`: before Python 3.12 that loses a cancellation
    which comes together with the answer, and then the line would never end."""
    async with asyncio.timeout(seconds):
        return await answer


def _words(error: BaseException) -> str:
    if isinstance(error, MetarayError):
        return error.detail
    return (str(error).splitlines() or [""])[-1][:300] or type(error).__name__
