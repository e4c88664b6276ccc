"""A group of real seats in one process: real storage, machine, core and transport; calls by hand.

Only the carrier is ours: `Wires` passes the calls that Ray would carry, and can cut them. A seat
that is killed keeps no promise it did not save: its stores are dropped without a flush, as by
kill -9, and the seat is made again over the same directory.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from actors.caller import Caller
from actors.clock import Clock, SystemClock
from actors.config import RaftSettings
from actors.seat import Seat
from actors.seat_names import group_of, is_learner, learner_seats, learners_among, voter_seats
from actors.seat_spec import SeatSpec
from state_machines.raft.messages import Configuration
from storage.home import DiskHome

DEADLINE_SECONDS = 30.0
POLL_SECONDS = 0.005
TROUBLED = frozenset({"deliver", "chunk", "propose"})

QUICK = RaftSettings(
    heartbeat_interval_ms=50,
    election_timeout_min_ms=300,
    election_timeout_max_ms=600,
    tick_ms=10,
    flush_interval_ms=100,
    log_keep_entries=20,
    map_bytes=8 << 20,
)


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class Gone(Exception):
    """What a carrier raises when the process at the other end has ended."""


class Wires:
    """Carries the calls between seats, and from clients (the ports of transport and caller)."""

    links = False  #: whether seats have links to each other

    def __init__(self) -> None:
        self.living: dict[str, Seat] = {}
        self.named: set[str] = set()  #: seats that have been made, living or not
        self.frozen: set[str] = set()
        self.cut: set[tuple[str, str]] = set()  #: (from, to) seats that do not hear each other
        self.trouble: Random | None = None  #: makes calls late, so overtaken, doubled, or lost
        self.posted = 0
        self.doubled = 0
        self.lost = 0
        self._strays: set[asyncio.Task[Any]] = set()
        self._under_way: dict[str, set[asyncio.Task[Any]]] = {}

    def from_seat(self, seat: str) -> FromSeat:
        """The carrier as one seat sees it."""
        return FromSeat(self, seat)

    def post(self, source: str, seat: str, envelope: bytes) -> bool:
        """One envelope over a link, in order; lost if nobody listens."""

        def arrive() -> None:
            if seat in self.living and seat not in self.frozen:
                self.posted += 1
                self.living[seat].take(envelope)

        asyncio.get_running_loop().call_soon(arrive)
        return True

    async def call(self, source: str, seat: str, method: str, *args: Any) -> Any:
        """One call, as Ray would carry it."""
        await asyncio.sleep(0)
        if seat in self.frozen or (source, seat) in self.cut:
            await asyncio.Event().wait()  # for ever: the caller has a deadline of its own
        if self.trouble is not None and method in TROUBLED:
            return await self._troubled(self.trouble, seat, method, args)
        return await self._carry(seat, method, args)

    async def _troubled(self, rng: Random, seat: str, method: str, args: tuple[Any, ...]) -> Any:
        """A call over a bad network; the same seed has the same troubles in store."""
        fate = rng.random()
        if fate < 0.3:
            self.doubled += 1
            stray = asyncio.create_task(self._stray(rng.random() / 10, seat, method, args))
            self._strays.add(stray)
            stray.add_done_callback(self._strays.discard)
        if fate > 0.5:
            await asyncio.sleep(rng.random() / 50)
        if fate > 0.9:
            self.lost += 1
            raise ConnectionResetError("the call was lost")
        answer = await self._carry(seat, method, args)
        if fate > 0.8:
            self.lost += 1
            raise ConnectionResetError("the answer was lost")
        return answer

    async def _stray(self, late: float, seat: str, method: str, args: tuple[Any, ...]) -> None:
        await asyncio.sleep(late)
        with suppress(Gone, asyncio.CancelledError):
            await self._carry(seat, method, args)

    async def _carry(self, seat: str, method: str, args: tuple[Any, ...]) -> Any:
        if seat not in self.living:
            raise Gone(seat)
        answer = getattr(self.living[seat], method)(*args)
        if not isinstance(answer, Awaitable):
            return answer
        task = asyncio.ensure_future(answer)
        self._under_way.setdefault(seat, set()).add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if seat not in self.living:
                raise Gone(seat) from None
            raise
        finally:
            self._under_way[seat].discard(task)

    def kill(self, seat: str) -> Seat:
        """Take a seat off the wires; whoever waits for it learns that it is gone."""
        gone = self.living.pop(seat)
        for task in tuple(self._under_way.get(seat, ())):
            task.cancel()
        return gone

    # caller.Groups

    def seats(self, group: str) -> list[str]:
        """The seats of this group's voters."""
        named = [seat for seat in sorted(self.living) if group_of(seat) == group]
        return [seat for seat in named if not is_learner(seat)]

    def learners(self, group: str) -> list[str]:
        """The seats of its learners, also of dead ones: an actor keeps its name."""
        return [seat for seat in learners_among(self.named) if group_of(seat) == group]

    def groups(self) -> list[str]:
        """All groups."""
        return sorted({seat.rpartition("/")[0] for seat in self.living})

    async def refresh(self) -> None:
        """Nothing to look up."""

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """A client's proposal."""
        return self.call("client", seat, "propose", request)

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """A client's query."""
        return self.call("client", seat, "query", request)

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """A client's watch."""
        return self.call("client", seat, "watch", request)


@dataclass(frozen=True, slots=True)
class FromSeat:
    """transport.Calls, and the controller's calls, from one seat."""

    wires: Wires
    seat: str

    def linked(self, seat: str) -> bool:
        """Whether there is a link."""
        return self.wires.links and (self.seat, seat) not in self.wires.cut

    def post(self, seat: str, envelope: bytes) -> bool:
        """Raft messages, by a link."""
        return self.linked(seat) and self.wires.post(self.seat, seat, envelope)

    def deliver(self, seat: str, envelope: bytes) -> Awaitable[bytes]:
        """Raft messages."""
        return self.wires.call(self.seat, seat, "deliver", envelope)

    def chunk(self, seat: str, chunk: bytes) -> Awaitable[bool]:
        """A snapshot chunk."""
        return self.wires.call(self.seat, seat, "chunk", chunk)

    def attend(self, seat: str, replica: int) -> Awaitable[bool]:
        """The leader's life."""
        return self.wires.call(self.seat, seat, "attend", replica)

    def expect(self, seat: str) -> None:
        """A link is there or not."""

    def hello(self, seat: str, replica: int, at: str) -> Awaitable[dict[str, Any]]:
        """Who sits there."""
        return self.wires.call(self.seat, seat, "hello", replica, at)

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """Anything else."""
        return self.wires.call(self.seat, seat, method, *args)

    async def start_again(self, seat: str) -> bool:
        """Only Ray starts processes."""
        return False

    def died(self, error: BaseException) -> bool:
        """Only a process that ended."""
        return isinstance(error, Gone)


@dataclass(slots=True)
class Group:
    """One group of seats over directories below `root`."""

    root: Path
    name: str = "metadata-0"
    replicas: int = 3
    settings: RaftSettings = QUICK
    wires: Wires = field(default_factory=Wires)
    rng: Random = field(default_factory=lambda: Random(7))
    clock: Clock = field(default_factory=SystemClock)
    learners: int = 0

    @property
    def seat_names(self) -> tuple[str, ...]:
        """The seats of this group's voters."""
        return voter_seats(self.name, self.replicas)

    @property
    def learner_names(self) -> tuple[str, ...]:
        """The seats of its learners, which nobody makes by himself."""
        return learner_seats(self.name, self.learners)

    async def sit(self, seat: str) -> Seat:
        """Make a seat over whatever its directory holds, as Ray restarting its actor would."""
        root = self.root / seat.replace("/", "-")
        root.mkdir(parents=True, exist_ok=True)
        made = Seat(
            SeatSpec(self.name, seat, self.seat_names + self.learner_names, self.settings),
            home=DiskHome(root),
            calls=self.wires.from_seat(seat),
            clock=self.clock,
            rng=Random(self.rng.randrange(0, 2**32)),
            leadership=lambda term, leads: None,
        )
        await made.start()
        self.wires.living[seat] = made
        self.wires.named.add(seat)
        return made

    async def found(self, cluster: str = "test") -> None:
        """Make all seats and found the group."""
        seats = [await self.sit(name) for name in self.seat_names]
        ids = [await seat.reserve(cluster) for seat in seats]
        for seat in seats:
            await seat.found(Configuration(voters=tuple(sorted(ids))))
        for seat in seats:
            await seat.activate()
        seats[0].campaign()

    async def crash(self, seat: str) -> None:
        """End a seat without a flush, as kill -9 does, and free its directory."""
        gone = self.wires.kill(seat)
        await gone.abandon()

    async def leader(self) -> Seat:
        """The seat that leads, once one does and has applied an entry of its term."""

        def leads() -> Seat | None:
            for name, seat in self.wires.living.items():
                if name not in self.wires.frozen and seat.replica is not None:
                    status = seat.replica.status()
                    if status["role"] == "leader" and status["applied"] >= status["commit"] > 0:
                        return seat
            return None

        found: Seat = await eventually(leads)
        return found

    def followers(self) -> list[Seat]:
        """Every other voter."""
        return [
            seat
            for seat in self.wires.living.values()
            if seat.replica is not None and not (seat.replica.leads or seat.spec.learner)
        ]

    async def close(self) -> None:
        """End every seat."""
        for seat in list(self.wires.living.values()):
            await seat.close()
        self.wires.living.clear()
        for stray in tuple(self.wires._strays):
            stray.cancel()


async def eventually(look: Callable[[], Any], seconds: float = DEADLINE_SECONDS) -> Any:
    """What `look` returns once it is true; fails at the deadline."""
    async with asyncio.timeout(seconds):
        while not (seen := look()):  # noqa: ASYNC110 - it looks at state that sets no event
            await asyncio.sleep(POLL_SECONDS)
    return seen


@asynccontextmanager
async def running(group: Group) -> AsyncIterator[tuple[Group, Caller]]:
    """A founded group with a client, ended in any case."""
    caller = Caller(group.wires, timeout_ms=20_000, rng=Random(11))
    try:
        await group.found()
        yield group, caller
    finally:
        await caller.close()
        await group.close()
