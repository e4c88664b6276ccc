"""The client's engine: operations in, typed replies out, exactly once, few calls.

Every process that talks to groups (a driver, a broker, the controller) has one `Caller`, with lanes
for each group (`command_lane.py`, `query_lane.py`, `watch_lane.py`), and one for what is `urgent`,
whose calls so carry nothing else and wait for nothing else. Whatever is `Unavailable` is retried,
at the seat the refusal names or at the next one, until the caller's deadline. When that passes, an
operation that was never sent failed (`NoQuorum`); one that was sent may have happened (`Unknown`).

The caller decides which group owns an operation by the slot map, which it fetches from `metadata-0`
when a group answers `WrongShard`; until then the trivial map holds: one group a kind. Group 0 that
is away does not say that there are others: once it has been silent for a second any replica of
`metadata-0` is asked for the map, and what was not sent goes where it says. A group that is not
asked says nothing: for what goes to every group of a kind the map is asked for before, at most once
in `MAP_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from actors.attempts import NO_TIME_SECONDS, RETRY_SECONDS_MIN, Groups, Lane, pause
from actors.command_lane import CommandLane
from actors.query_lane import QueryLane
from actors.queue_lane import QueueLane
from actors.seat_names import kind_of
from actors.shared_call import Reached, error_of
from actors.stale_lanes import AwaitingLane, ReachedLane, StaleLane
from actors.wanted import Wanted
from actors.watch_lane import WatchLane
from state_machines import names, op, runs, slots
from state_machines.errors import Invalid, NoQuorum, Unavailable, Unknown, WrongShard
from state_machines.limits import BATCH_ITEMS_MAX, INT_MAX
from state_machines.metadata.slot_map import GetSlots
from state_machines.wire import api_pb2 as api

WATCH_MS_MIN = 30_000  #: a watch goes on so long without an answer, also where calls have less time
TIMEOUT_MS_MAX = 2**31 - 1  #: of a call: more than three weeks
SHARD_MOVES_MAX = 3  #: how often groups of a slot map may refuse one operation
MAP_SECONDS = 1.0  #: so old the map may be for what goes to every group of a kind
FETCH_SECONDS_MIN = 1.0  #: for a map, however little time a client gives its calls


@dataclass(frozen=True, slots=True)
class _Way:
    """How operations of one class are carried out."""

    swept: bool  #: their lane checks them, many at once
    group: str  #: the one that all of them belong to; empty: there are several
    lane: QueueLane | None  #: of that one
    stale: QueueLane | None  #: of that one, too: for stale ones that want no revision
    now: Callable[[], float]  #: the clock of the loop; kept, as in `attempts.py`


class Caller:
    """Calls commands and queries on whichever group owns them. One event loop, many tasks."""

    def __init__(self, groups: Groups, *, timeout_ms: int = 30_000, rng: Random) -> None:
        _check("timeout_ms", timeout_ms, TIMEOUT_MS_MAX, least=1)
        self._groups = groups
        self._timeout_ms = timeout_ms
        self._rng = rng
        self._queues: dict[tuple[str, type[QueueLane], bool], QueueLane] = {}
        self._reached: dict[str, Reached] = {}
        self._ways: dict[type, _Way] = {}
        self._watches: dict[str, WatchLane] = {}
        self._map = slots.SlotMap()
        self._map_until: float | None = None  # it names every group until then; None: not known
        self._fetching: asyncio.Task[None] | None = None
        self._closed = False

    async def call(
        self,
        operation: Any,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> Any:
        """Carry out one command or query and return its typed reply.

        Raises `Rejected` (its subclass says why), `NoQuorum` when no leader was found in time, and
        `Unknown` when the deadline passed after a command was sent, or when some of the groups that
        it went to have done their part and others have not. `group` overrides the map: what that
        group refuses is refused.
        """
        way = self._ways.get(type(operation)) or self._way(type(operation))
        if not way.swept:
            op.validate(operation)
        if timeout_ms or type(timeout_ms) is not int:
            _check("timeout_ms", timeout_ms, TIMEOUT_MS_MAX)
        if min_revision or type(min_revision) is not int:
            _check("min_revision", min_revision, INT_MAX)
        if type(stale) is not bool:
            raise Invalid(f"stale: bool is wanted, not {type(stale).__name__}")
        if group != "":
            _check_group(group)
            _check_home(operation, group)
        deadline = way.now() + (timeout_ms or self._timeout_ms) / 1000
        lane = way.stale if stale else way.lane
        if group or (stale and min_revision and way.group):
            lane = self._lane(group or way.group, type(operation), stale, min_revision)
        moves = SHARD_MOVES_MAX
        if lane is not None:
            try:
                return await lane.submit(operation, deadline, bool(group), min_revision)
            except WrongShard as error:
                if group:
                    raise
                await self._fetch_map(error.version, deadline)
            except asyncio.CancelledError:
                lane.gave_up()
                raise
            moves -= 1
        elif way.swept:
            op.validate(operation)  # its slot follows from what it says
        return await self._routed(operation, moves, (deadline, stale, min_revision))

    async def _routed(self, operation: Any, moves: int, terms: tuple[float, bool, int]) -> Any:
        """The reply of an operation, or of all its parts joined."""
        if slots.goes_everywhere(operation):
            await self._know_map(terms[0])
        parts = self._map.route(operation)
        if len(parts) == 1 and parts[0][1] is operation:
            return await self._part(*parts[0], moves, terms)
        if terms[2] and len(parts) > 1 and op.is_query(type(operation)):
            raise Invalid("min_revision: each group has its own; name the group")
        replies = await asyncio.gather(
            *(self._part(each, part, moves, terms) for each, part in parts),
            return_exceptions=True,
        )
        failed = {
            name: each
            for (name, _), each in zip(parts, replies, strict=True)
            if isinstance(each, BaseException)
        }
        if failed:
            if not op.is_query(type(operation)):
                _say_what_is_done([name for name, _ in parts], failed)
            raise next(iter(failed.values()))
        return op.join(operation, [part for _, part in parts], replies)

    async def _part(self, owner: str, part: Any, moves: int, terms: tuple[float, bool, int]) -> Any:
        """The reply of one group. A part that moved is routed anew, the others are done once."""
        deadline, stale, min_revision = terms
        lane = self._lane(owner, type(part), stale, min_revision)
        try:
            return await lane.submit(part, deadline, min_revision=min_revision)
        except asyncio.CancelledError:
            lane.gave_up()
            raise
        except WrongShard as error:
            if moves <= 1:
                raise WrongShard(
                    f"{op.tag(part)}: nothing is done, {SHARD_MOVES_MAX} times the group that the "
                    f"slot map names has refused it; {owner}: {error.detail}",
                    error.version,
                ) from None
            await self._fetch_map(error.version, deadline)
        return await self._routed(part, moves - 1, terms)

    async def owner(self, kind: str, key: tuple[str, ...] | None) -> str:
        """The group of a kind that owns a slot key (None: its first), empty where no slot map names
        it, also not after any replica of metadata was asked."""
        if key is not None and kind not in self._map.ranges:
            with contextlib.suppress(Unavailable):
                await self._know_map(asyncio.get_running_loop().time() + MAP_SECONDS)
            if kind not in self._map.ranges:
                return ""
        return self._map.group_of(kind, key)

    async def watch(
        self, group: str, tables: Sequence[str], from_revision: int | None
    ) -> api.Reply:
        """One long poll (None: only ask for the group's revision). Raises Compacted, and NoQuorum
        when nobody answers for the client's time, or 30 s if that is longer; a question has no
        longer than the client's."""
        return await self.poll(group, Wanted(tuple(tables)), from_revision)

    async def poll(
        self,
        group: str,
        wanted: Wanted,
        from_revision: int | None,
        *,
        stale: bool = False,
        limit: int = 0,
        progress_at: int = 0,
    ) -> api.Reply:
        """`watch` of anything. `stale`: by any replica, so perhaps later; `limit`: changes in the
        reply, softly; `progress_at`: answer once this revision is applied, even with nothing."""
        _check_group(group)
        for table in wanted.tables:
            if type(table) is not str:
                raise Invalid(f"tables: str is wanted, not {type(table).__name__}")
            names.name(table, "tables")
        for each in wanted.only:
            each.check()
        _check("from_revision", from_revision or 0, INT_MAX)
        _check("limit", limit, BATCH_ITEMS_MAX)
        _check("progress_at", progress_at, INT_MAX)
        if self._closed:
            raise NoQuorum(f"{group}: the client is closed")
        lane = self._watches.get(group)
        if lane is None:
            lane = self._watches[group] = WatchLane(group, self._groups, self._rng)
        request = api.WatchRequest(
            group=group,
            from_revision=from_revision or 0,
            now=from_revision is None,
            stale=stale,
            limit=limit,
            progress_at=progress_at,
        )
        timeout_ms = self._timeout_ms
        if from_revision is not None:
            timeout_ms = max(timeout_ms, WATCH_MS_MIN)
        return await lane.poll(wanted.fill(request), timeout_ms)

    async def close(self) -> None:
        """Cancel what is under way; waiting callers get `Unknown` or `NoQuorum`, later ones too."""
        self._closed = True
        self._ways.clear()
        if self._fetching is not None:
            self._fetching.cancel()
        lanes: list[Lane] = [*self._queues.values(), *self._watches.values()]
        for lane in lanes:
            await lane.close()

    @property
    def overloaded(self) -> int:
        """How many calls were told `Overloaded` so far, here or by a leader."""
        return sum(lane.overloaded for lane in self._queues.values())

    def _way(self, kind: Any) -> _Way:
        """How operations of this class are carried out, until the slot map is another."""
        if not op.is_operation(kind):
            raise TypeError(f"{kind.__name__} is neither a command nor a query")
        everywhere = getattr(kind, "every_group", False)
        owner = "" if everywhere else self._map.only_group(kind)
        lane = self._lane(owner, kind) if owner else None
        stale = self._lane(owner, kind, stale=True) if owner else None
        way = _Way(runs.swept(kind), owner, lane, stale, asyncio.get_running_loop().time)
        self._ways[kind] = way
        return way

    def _lane(self, group: str, kind: Any, stale: bool = False, min_revision: int = 0) -> QueueLane:
        if self._closed:
            raise NoQuorum(f"{group}: the client is closed")
        make: type[QueueLane]
        if not op.is_query(kind):
            make = CommandLane
        elif not stale:
            make = QueryLane  # of now: what was answered before it came is in it
        elif not min_revision:
            make = StaleLane
        else:
            reached = self._reached.get(group)
            known = reached is not None and min_revision <= reached.revision
            make = ReachedLane if known else AwaitingLane
        urgent = op.urgent(kind)
        return self._queues.get((group, make, urgent)) or self._made(group, make, urgent)

    def _made(self, group: str, make: type[QueueLane], urgent: bool) -> QueueLane:
        """A lane that nobody has needed yet."""
        reached = self._reached.setdefault(group, Reached())
        terms = (group, self._groups, self._rng, self._look_beyond, reached)
        if make is AwaitingLane:
            onward = self._queues.get((group, ReachedLane, urgent))
            onward = onward or self._made(group, ReachedLane, urgent)
            lane: QueueLane = AwaitingLane(*terms, onward)
        else:
            lane = make(*terms)
        self._queues[group, make, urgent] = lane
        return lane

    def _look_beyond(self, group: str) -> None:
        """A group that does not answer may not be the only one of its kind, whatever is known."""
        if not self._closed and kind_of(group) not in self._map.ranges:
            self._begin_to_ask(stale=True)

    async def _know_map(self, deadline: float) -> None:
        """See that the map names every group. One that was true a while ago does where nobody tells
        of a newer one soon."""
        now = asyncio.get_running_loop().time()
        if self._map_until is None:
            await self._ask_map(deadline, stale=True)
        elif now >= self._map_until:
            self._map_until = now + MAP_SECONDS  # one asks, others go by what is known
            soon = min(MAP_SECONDS, (deadline - now) / 4)
            with contextlib.suppress(NoQuorum):
                await self._ask_map(now + soon, stale=True)

    async def _fetch_map(self, version: int, deadline: float) -> None:
        """That of a group that knows this version; 0 stands for one that has told none.

        Any replica of metadata may tell of it: a client that comes new to a cluster whose metadata
        has no leader finds the other groups all the same. When a kind begins its groups know of the
        map before metadata does: then it is waited for.
        """
        if not version:
            await self._ask_map(deadline, stale=False)
        now, stale, wait = asyncio.get_running_loop().time, True, RETRY_SECONDS_MIN
        while self._map.version < version:
            if deadline - now() <= NO_TIME_SECONDS:
                raise WrongShard(
                    f"nothing is done: its group goes by slot map {version}, and until the "
                    f"deadline {slots.SLOT_MAP_GROUP} told of none after {self._map.version}",
                    version,
                )
            await self._ask_map(deadline, stale=stale)
            if self._map.version < version:
                stale, wait = False, await pause(wait, deadline, self._rng)

    async def _ask_map(self, deadline: float, *, stale: bool) -> None:
        """All who want it wait for one answer, each until its own deadline. Raises NoQuorum."""
        now = asyncio.get_running_loop().time
        while True:
            fetching = self._begin_to_ask(stale=stale)
            await asyncio.wait((fetching,), timeout=max(0.0, deadline - now()))
            if not fetching.done() or fetching.cancelled():
                raise NoQuorum(f"{slots.SLOT_MAP_GROUP}: no slot map before the deadline")
            try:
                return fetching.result()
            except NoQuorum:  # its time was the client's, who waits for it may have more
                if self._closed or deadline - now() <= NO_TIME_SECONDS:
                    raise

    def _begin_to_ask(self, *, stale: bool) -> asyncio.Task[None]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._take_map(stale=stale))
            self._fetching.add_done_callback(_heard)
        return self._fetching

    async def _take_map(self, *, stale: bool) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + max(self._timeout_ms / 1_000, FETCH_SECONDS_MIN)
        lane = self._lane(slots.SLOT_MAP_GROUP, GetSlots, stale)
        rows = await lane.submit(GetSlots(), deadline)
        version = max((row.version for row in rows), default=0)
        self._map_until = now() + MAP_SECONDS
        if version <= self._map.version:  # a stale answer may be of an older one
            return
        self._map = slots.SlotMap(version, {row.kind: row.ranges for row in rows})
        self._ways.clear()
        for lane in self._queues.values():
            lane.turn_away(self._map)


def _say_what_is_done(groups: Sequence[str], failed: Mapping[str, BaseException]) -> None:
    """Raise Unknown for a command of which groups have done a part, or may have, and not all: any
    other error would say that nothing was changed."""
    done = ", ".join(each for each in groups if each not in failed)
    if done or any(isinstance(each, Unknown) for each in failed.values()):
        said = "; ".join(f"{group}: {each!r}" for group, each in failed.items())
        cause = next(iter(failed.values()))
        raise Unknown(f"done in {done or 'no group for sure'}; {said}") from cause


def _check_home(operation: Any, group: str) -> None:
    """What a group refuses for its kind fails the calls that others share with it."""
    home = op.home(operation)
    if home and home != kind_of(group):
        raise Invalid(f"group: {op.tag(operation)} is for groups of the kind {home}, not {group}")


def _heard(task: asyncio.Task[None]) -> None:
    """Whoever waited for it may have given up."""
    if not task.cancelled():
        task.exception()


def _check(name: str, value: int, limit: int, *, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= limit:
        raise Invalid(f"{name}: a whole number from {least} to {limit} is wanted")


def _check_group(group: str) -> None:
    if type(group) is not str or not group.isprintable():
        raise Invalid("group: it has to be a name that can be printed")
    names.name(group, "group")


__all__ = ["Caller", "Groups", "error_of"]
