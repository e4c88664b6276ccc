"""The groups of a victim, and what befalls their seats while clients write.

One group of three replicas, of any kind, and the two other kinds with one replica each: what a
lonely replica has acknowledged is nowhere else. A real controller stands beside the metadata
leader. Nobody waits here without a deadline: what does not come in time is a failure of its own.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from actors.caller import Caller
from actors.config import RaftSettings
from actors.controller import Controller
from actors.seat import Seat
from actors.status import leader_of
from state_machines.errors import MetarayError
from state_machines.raft.confchange import Change
from state_machines.raft.messages import Configuration
from storage.errors import StorageError
from tests.actors.wires import Group, Wires, eventually
from tests.crash.verdict_state import digest_of
from tests.crash.victim_journal import Journal
from tests.crash.victim_workload import GROUPS, Clients

CLUSTER: Final = "crash"
PHASE_SECONDS: Final = 90.0  #: until a group has got over what befell it
RETIRE_SECONDS: Final = 1.0  #: in which a replica hears that it was removed
SPEED: Final = (
    20  #: a victim's stamps run so much faster than time, so delays of a second are short
)

SETTINGS: Final = RaftSettings(
    heartbeat_interval_ms=40,
    election_timeout_min_ms=300,
    election_timeout_max_ms=600,
    tick_ms=10,
    flush_interval_ms=50,
    flush_bytes=64 << 10,
    journal_bytes=16 << 10,
    log_keep_entries=10,
    map_bytes=1 << 20,
    heartbeat_timeout_ms=2_000,
    order_check_ms=50,
    heartbeat_check_ms=50,
    timer_check_ms=50,
    repair_check_ms=50,
)


class FastClock:
    """Stamps that run fast, and monotonic time that does not."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 * SPEED

    def monotonic(self) -> float:
        return time.monotonic()

    def uptime(self) -> float:
        """As fast as the stamps: it is time itself that runs fast for them."""
        return time.monotonic() * SPEED


class Fleet:
    """All groups of one directory, and their controller."""

    def __init__(self, root: Path, wide: str, wires: Wires, journal: Journal, rng: Random) -> None:
        self.wires = wires
        self.rng = rng
        self.groups = {
            name: Group(
                root,
                name,
                3 if name == wide else 1,
                SETTINGS,
                wires,
                Random(rng.randrange(2**32)),
                FastClock(),
            )
            for name in GROUPS
        }
        self.wide = self.groups[wide]
        self.controllers: list[Controller] = []
        self._journal = journal
        self._tending: asyncio.Task[None] | None = None
        self._away: set[str] = set()  # seats whose absence is part of the script
        self._member_at: dict[int, float] = {}  # when a replica was last seen to be a member

    async def start(self) -> None:
        """Sit every seat, found what was not founded, stand for election, and look after it."""
        for group in self.groups.values():
            seats = [await group.sit(name) for name in group.seat_names]
            with suppress(StorageError, MetarayError):  # whoever tends the seats goes on from here
                await _found(seats)
                seats[self.rng.randrange(len(seats))].campaign()
        self._tending = asyncio.create_task(self._tend())

    @property
    def failed(self) -> BaseException | None:
        """What ended the task that tends the seats."""
        done = self._tending is not None and self._tending.done()
        return self._tending.exception() if done and self._tending is not None else None

    async def _tend(self) -> None:
        """What Ray and an operator do: start again what has ended, replace what was removed."""
        while True:
            for group in self.groups.values():
                await self._tend_group(group)
            self._keep_controller()
            await asyncio.sleep(0.02)

    async def _tend_group(self, group: Group) -> None:
        for name in group.seat_names:
            seat = self.wires.living.get(name)
            if seat is None or name in self._away:
                continue
            without = seat.status_word == "active" and not seat.replica
            if seat.status_word == "stopped" or (without and not seat._changing.locked()):
                self._journal("again", name, seat.hello()["fault"])
                await group.crash(name)
                await group.sit(name)
        if self._away & set(group.seat_names):
            return
        seats = [self.wires.living[name] for name in group.seat_names]
        with suppress(StorageError, MetarayError):  # the next look tries again
            if all(not each.replica for each in seats):
                await _found(seats)
            leader = leader_of(seat.status() for seat in seats)
            if leader is not None:
                await self._complete(seats, leader)

    async def _complete(self, seats: list[Seat], leader: dict[str, Any]) -> None:
        """A replica that was removed on purpose leaves its seat vacant: only an operator can want
        a new one there. Those that were lost are the controller's."""
        holds = {seat.hello()["replica"] for seat in seats}
        members = {*leader["voters"], *leader["learners"]}
        if leader["outgoing"] or not members <= holds:
            return
        for seat in seats:
            said = seat.hello()
            if said["status"] == "vacant":
                await seat.reserve(CLUSTER)
            elif said["status"] == "active" and self._is_outside(said["replica"], members):
                change = Change(add_learners=(said["replica"],))
                self.wires.living[leader["seat"]].change(change)
                return

    def _is_outside(self, replica: int, members: set[int]) -> bool:
        """Whether it is no member, and has had the time to hear of it and retire."""
        now = time.monotonic()
        for each in members:
            self._member_at[each] = now
        return now - self._member_at.get(replica, 0.0) > RETIRE_SECONDS and replica not in members

    def _keep_controller(self) -> None:
        """One for each term of the metadata leader; the older ones find out that they are."""
        seats = [self.wires.living.get(name) for name in self.groups["metadata-0"].seat_names]
        leader = leader_of(seat.status() for seat in seats if seat is not None)
        if leader is None or any(each.epoch >= leader["term"] for each in self.controllers):
            return
        made = Controller(
            epoch=leader["term"],
            caller=Caller(self.wires, rng=Random(self.rng.randrange(2**32))),
            groups=self.wires,
            calls=self.wires.from_seat(leader["seat"]),
            settings=SETTINGS,
            clock=FastClock(),
            node="here",
        )
        self.controllers.append(made)
        made.start()

    # -- what befalls the wide group --------------------------------------------------------

    async def away(self) -> None:
        """A follower is away until the log has let go of what it needs: it gets a snapshot."""
        leader, follower = await self._roles()
        async with self._absent(follower):
            assert leader.replica is not None
            core = leader.replica.core
            last = core.last_index
            await _in_time(lambda: core.first_index > last or not _leads(leader))
        await self.whole()

    async def wipe(self) -> None:
        """A follower loses its disk: the controller puts somebody else in its place."""
        await self.whole()
        _, follower = await self._roles()
        replica = follower.hello()["replica"]
        async with self._absent(follower):
            home = self.wide.root / follower.spec.seat.replace("/", "-")
            gone = home.rename(
                self.wide.root / f"gone-{replica:x}"
            )  # at once: all of it or nothing
            self._journal("wiped", replica)
            shutil.rmtree(gone)
        await self.whole()

    async def remove(self) -> None:
        """A follower is removed on purpose; its seat gets a new replica later."""
        await self.whole()
        leader, follower = await self._roles()
        change = Change(remove=(follower.hello()["replica"],))
        await _in_time(lambda: _changed(leader, change) or not _leads(leader))
        await self.whole()

    async def cut(self) -> None:
        """The leader is cut off with entries that nobody else has; another log wins."""
        leader, _ = await self._roles()
        name = leader.spec.seat
        others = [each for each in self.wide.seat_names if each != name]
        cuts = {(name, each) for each in others} | {(each, name) for each in others}
        self.wires.cut |= cuts
        try:
            await _in_time(lambda: not _leads(leader))
        finally:
            self.wires.cut -= cuts
        await self.whole()

    async def crash(self) -> None:
        """The leader's process ends, and comes back at once."""
        leader, _ = await self._roles()
        async with self._absent(leader):
            pass
        await self.whole()

    async def transfer(self) -> None:
        """The leadership is handed over."""
        leader, follower = await self._roles()
        await _in_time(lambda: _transferred(leader, follower))
        await self.whole()

    @asynccontextmanager
    async def _absent(self, seat: Seat) -> AsyncIterator[None]:
        """The seat's process ends; afterwards it is there again."""
        name = seat.spec.seat
        self._away.add(name)
        await self.wide.crash(name)
        yield
        await self.wide.sit(name)
        self._away.discard(name)

    async def _roles(self) -> tuple[Seat, Seat]:
        """The leader of the wide group, and one of its followers that has caught up."""
        await self.whole()
        leader = next(seat for seat in self._seats(self.wide) if _leads(seat))
        return leader, self.rng.choice([s for s in self._seats(self.wide) if s is not leader])

    def _seats(self, group: Group) -> list[Seat]:
        return [self.wires.living[name] for name in group.seat_names if name in self.wires.living]

    async def whole(self, groups: tuple[str, ...] = ()) -> None:
        """Wait until every seat has a voter of the group, and none lags far behind."""
        for name in groups or (self.wide.name,):
            await _in_time(partial(self._is_whole, self.groups[name]))

    def _is_whole(self, group: Group) -> bool:
        seats = [seat for seat in self._seats(group) if seat.replica is not None]
        statuses = [seat.status() for seat in seats]
        leader = leader_of(statuses)
        if leader is None or len(seats) < group.replicas or leader["outgoing"]:
            return False
        ids = sorted(each["replica"] for each in statuses)
        near = min(each["applied"] for each in statuses) >= leader["first_index"]
        return near and ids == sorted(leader["voters"]) and not leader["learners"]

    async def settle(self) -> None:
        """No more timers, no more clients: wait until all replicas stand at the same point."""
        await self.whole(GROUPS)
        for controller in self.controllers:
            controller.fenced = controller.fenced or "the victim comes to rest"
            assert controller._task is not None
            await _in_time(controller._task.done)
        await self.whole(GROUPS)
        for name, group in self.groups.items():
            seats = self._seats(group)
            await _in_time(partial(_level, seats))
            await _in_time(partial(_streamed, seats))
            views = await asyncio.gather(*(_view(seat) for seat in seats))
            for seat, (applied, digest, rows) in zip(seats, views, strict=True):
                self._journal("state", name, seat.spec.seat, applied, digest, rows)


async def _found(seats: list[Seat]) -> None:
    """Found the group unless it has been; finish a founding that was interrupted. What
    `bootstrap.found_group` does over Ray."""
    said = [seat.hello() for seat in seats]
    active = [each for each in said if each["status"] == "active"]
    if active:
        founders = active[0]["founding"].voters if active[0]["founding"] else ()
        for seat, each in zip(seats, said, strict=True):
            if each["status"] == "founding" and each["replica"] in founders:
                await seat.activate()
        return
    ids = [await seat.reserve(CLUSTER) for seat in seats]
    for seat in seats:
        await seat.found(Configuration(voters=tuple(sorted(ids))))
    for seat in seats:
        await seat.activate()


def _changed(leader: Seat, change: Change) -> bool:
    with suppress(MetarayError, StorageError):  # another change may be under way
        leader.change(change)
        return True
    return False


def _transferred(leader: Seat, target: Seat) -> bool:
    """Whether the leader has handed over; asked anew, because it gives up on a slow target."""
    with suppress(MetarayError):
        if _leads(leader):
            leader.transfer(target.hello()["replica"])
    return not _leads(leader)


def _leads(seat: Seat) -> bool:
    return seat.replica is not None and seat.replica.leads


def _level(seats: list[Seat]) -> bool:
    statuses = [seat.status() for seat in seats]
    points = {(each["applied"], each["last_index"], each["commit"]) for each in statuses}
    return len(points) == 1 and len(set(*points)) == 1


def _streamed(seats: list[Seat]) -> bool:
    """Whether no snapshot is under way: a stream that nobody needs any more goes on to its end."""
    replicas = [seat.replica for seat in seats if seat.replica is not None]
    return not any(each.snapshots._tasks or each.storage.queued for each in replicas)


async def _view(seat: Seat) -> tuple[int, str, int]:
    """Applied index, digest of all rows as they are on the disk, and how many there are."""
    assert seat.replica is not None
    with await seat.replica.cut() as view:
        return view.applied.index, *digest_of({t: dict(view.rows(t)) for t in view.tables()})


async def _in_time(look: Callable[[], Any]) -> Any:
    return await eventually(look, PHASE_SECONDS)


async def _bulk(fleet: Fleet, clients: Clients) -> None:
    await clients.bulk()


async def _silence(fleet: Fleet, clients: Clients) -> None:
    await clients.silence()


def _of(phase: Callable[[Fleet], Awaitable[None]]) -> Callable[[Fleet, Clients], Awaitable[None]]:
    return lambda fleet, _: phase(fleet)


PHASES: Final[dict[str, Callable[[Fleet, Clients], Awaitable[None]]]] = {
    "bulk": _bulk,
    "silence": _silence,
} | {
    each.__name__: _of(each)
    for each in (Fleet.away, Fleet.wipe, Fleet.remove, Fleet.cut, Fleet.crash, Fleet.transfer)
}
