"""A simulated cluster: hosts with disks, on them seats and controllers, beside them clients.

Everything that decides anything is the product's own: seats, replicas, transports, snapshots,
controllers, callers. What is simulated is what they stand on: time, network, disks, processes.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from random import Random
from typing import Any

from actors.caller import Caller
from actors.controller import Controller
from actors.replica import Replica
from actors.seat import Seat
from actors.seat_names import learner_seats, learners_among, voter_seats
from actors.seat_spec import SeatSpec
from state_machines.errors import Conflict
from state_machines.raft.confchange import Change
from state_machines.raft.core import Raft
from state_machines.raft.messages import Configuration
from state_machines.raft.quorum import has_quorum
from state_machines.wire import api_pb2 as api
from tests.simulation.disk import MemoryHome, SimulatedStorage
from tests.simulation.invariants import Monitor
from tests.simulation.links import SimulatedLinks
from tests.simulation.loop import Process, SimulatedLoop
from tests.simulation.network import NOBODY, FromProcess, Network
from tests.simulation.plan import Plan

CLUSTER = "simulated"
WALL_MS = 1_700_000_000_000
TRACE_SHOWN = 400  #: events of the end of a run that a failure shows
DIGEST_EVERY = 512


class Clock:
    """One host's clock (`actors.clock.Clock`): it may run fast or slow, and jump."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self._rate = 1.0
        self._since = loop.now
        self._seconds = loop.now
        self.jump_ms = 0

    def now_ms(self) -> int:
        return WALL_MS + int(self.monotonic() * 1_000) + self.jump_ms

    def monotonic(self) -> float:
        return self._seconds + (self._loop.now - self._since) * self._rate

    uptime = monotonic

    def run_at(self, rate: float) -> None:
        self._seconds, self._since, self._rate = self.monotonic(), self._loop.now, rate


class JudgedCalls(FromProcess):
    """The network as a client's process sees it. What is acknowledged must have been applied, and
    what a read is told must not be older than what anybody was told before it asked."""

    def __init__(
        self, network: Network, process: Process, seats: dict[str, list[str]], monitor: Monitor
    ) -> None:
        super().__init__(network, process, seats)
        self._monitor = monitor
        self._beside: dict[str, Judged] = {}  # the last read of each group

    async def propose(self, seat: str, request: bytes) -> bytes:
        data = await super().propose(seat, request)
        reply = api.Reply.FromString(data)
        if reply.code == api.OK:
            asked = api.ProposeRequest.FromString(request)
            who = (asked.proposal.client, asked.proposal.sequence)
            facts = self._monitor.facts[asked.group]
            if who[0] and facts.effects.get(who) != reply.revision:
                self._monitor.fail(
                    f"{seat} acknowledges {who} at {reply.revision}, where it is not"
                )
            facts.acknowledged = max(facts.acknowledged, reply.revision)
        elif reply.code == api.SESSION_EXPIRED:
            self.network.seen["client forgotten"] += 1
        return data

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        asked = api.QueryRequest.FromString(request)
        if asked.vouch:  # whoever asks for it has just asked the leader
            return self._vouched(seat, request, self._beside[asked.group])
        facts = self._monitor.facts[asked.group]
        floor = asked.min_revision if asked.stale else facts.acknowledged
        read = self._beside[asked.group] = Judged(self._monitor, seat, floor)
        return self._answered(seat, request, read)

    async def _answered(self, seat: str, request: bytes, read: Judged) -> bytes:
        data = await super().query(seat, request)
        read.reply = api.Reply.FromString(data)
        read.judge()
        return data

    async def _vouched(self, seat: str, request: bytes, read: Judged) -> bytes:
        data = await super().query(seat, request)
        read.vouch = api.Reply.FromString(data)
        read.judge()
        return data


@dataclass(slots=True)
class Judged:
    """A read at one seat, and what a voter that was asked beside it said. Its answer holds if it
    has no partners, or one of them has not left its term."""

    monitor: Monitor
    seat: str
    floor: int
    reply: api.Reply | None = None
    vouch: api.Reply | None = None

    def judge(self) -> None:
        reply, vouch = self.reply, self.vouch or api.Reply()
        if reply is None or reply.code != api.OK or reply.revision >= self.floor:
            return
        if not reply.partners or (vouch.replica in reply.partners and vouch.term <= reply.term):
            self.monitor.fail(
                f"stale read: {self.seat} answers from {reply.revision}, not {self.floor}"
            )


class World:
    """One run's cluster."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.loop = SimulatedLoop()
        self.monitor = Monitor()
        self.network = Network(self.loop, self.rng("network"))
        if plan.links:
            self.network.links = SimulatedLinks(self.network)
        self.seen: Counter[str] = Counter()
        self.happenings = 0
        self.trace: deque[tuple[Any, ...]] = deque(maxlen=TRACE_SHOWN)
        self._undigested: list[tuple[Any, ...]] = []
        self._digest = blake2b(digest_size=16)
        size = plan.replicas + plan.spares
        self.seats: dict[str, Seat | None] = {}
        self.processes: dict[str, Process] = {}
        self.graveyard: list[Process] = []
        self.group_seats = {
            group: [*voter_seats(group, size), *learner_seats(group, plan.learners)]
            for group in plan.groups
        }
        self.homes: dict[str, MemoryHome] = {}
        hosts = [name.rpartition("/")[2] for name in self.group_seats[plan.groups[0]]]
        self.clocks = {host: Clock(self.loop) for host in hosts}
        self.controllers: dict[int, Process] = {}
        self.damaged: dict[str, int] = {}  #: group -> a replica whose disk was lost or corrupted
        self._seat_of: dict[Process, Seat] = {}
        self._looks: dict[Process, tuple[Replica, Callable[[], bool]]] = {}
        self._born = 0
        self._chance = self.rng("chance")
        for seats in self.group_seats.values():
            for name in seats:
                home = self.homes[name] = MemoryHome(self.rng(f"home {name}"))
                home.opened = partial(self.monitor.opened, name)
                self.seats[name] = None
        self.network.happened = self.event
        self.loop.after = self._after

    def rng(self, purpose: str) -> Random:
        """Luck of its own for each purpose, so that one draw more here changes nothing there."""
        return Random(f"{self.plan.seed} {purpose}")

    # -- events -----------------------------------------------------------------------------

    def event(self, kind: str, who: str, what: Any) -> None:
        """Something happened: it counts, and it belongs to the trace."""
        self.happenings += 1
        self._note(kind, who, what)

    def _note(self, kind: str, who: str, what: Any) -> None:
        record = (self.loop.now, kind, who, what)
        self.trace.append(record)
        self._undigested.append(record)
        if len(self._undigested) >= DIGEST_EVERY:
            self._digest_more()

    def _digest_more(self) -> None:
        self._digest.update(repr(self._undigested).encode())
        self._undigested.clear()

    @property
    def digest(self) -> str:
        """Of everything that happened."""
        self._digest_more()
        return self._digest.hexdigest()

    def _after(self, process: Process) -> None:
        watched = self._looks.get(process)
        if watched is None:
            self._meet(process)
            return
        replica, look = watched
        now = self._seat_of[process].replica
        if now is not None and now is not replica:
            self._meet(process)  # its seat had to join anew
        elif look():
            self._note("state", process.name, self.monitor.members[replica.core.id].shape)

    def _meet(self, process: Process) -> None:
        """A step of a process that has no replica, or has one, or another one, only now."""
        seat = self._seat_of.get(process)
        if seat is not None and seat.replica is not None:
            self._count_ticks(seat.replica, process.name)
            self._looks[process] = seat.replica, self.monitor.adopt(seat.replica)
        elif seat is not None and seat.status_word == "stopped":
            damaged = not self.monitor.excused.isdisjoint(self.homes[process.name].rooms)
            whole = not damaged and process.name not in self.monitor.full
            self.monitor.expect(not whole, f"{process.name} refuses its own disk: {seat._fault}")
        if self.monitor.failures:
            self.monitor.raise_failures()

    def _count_ticks(self, replica: Any, name: str) -> None:
        tick = replica.ticker._ticked

        def ticked(count: int) -> None:
            self.event("tick", name, count)
            tick(count)

        replica.ticker._ticked = ticked

    # -- processes --------------------------------------------------------------------------

    def start_seat(self, name: str) -> None:
        """Ray starts, or restarts, the actor of a seat."""
        if name in self.processes:
            return
        group, _, host = name.rpartition("/")
        process = self.processes[name] = Process(name, host)
        home = self.homes[name]
        home.let_go()
        self._born += 1
        seat = Seat(
            SeatSpec(group, name, tuple(self.group_seats[group]), self.plan.settings),
            home=home,
            calls=FromProcess(self.network, process, self.group_seats),
            clock=self.clocks[host],
            rng=self.rng(f"seat {name} {self._born}"),
            leadership=partial(self._on_leadership, group, host),
            storage_thread=lambda _: SimulatedStorage(
                self.loop,
                home.condition,
                lambda: self.event("disk", name, len(home.rooms)),
                lambda why: self._die(process, why),
            ),
        )
        self.seats[name] = seat
        self._seat_of[process] = seat
        self.network.serve(name, process, seat)
        self.loop.start(process, seat.start())

    def _die(self, process: Process, why: str) -> None:
        self.event("died", process.name, why)
        self.kill(process.name)
        seat, seconds = process.name, 0.2 + self._chance.random()
        self.at(seconds, lambda: self.start_seat(seat))

    def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name, None)
        if process is None:
            return
        self.loop.kill(process)
        self.network.ended(process)
        self.graveyard.append(process)
        if name in self.seats:
            self.seats[name] = None

    def at(self, seconds: float, callback: Any) -> None:
        """Do something a while later, in nobody's process."""
        self.loop.call_at(self.loop.now + seconds, callback, context=NOBODY)

    def client(self, name: str) -> tuple[Process, Caller]:
        """A process with a caller of its own."""
        self._born += 1
        process = self.processes[name] = Process(name, name)
        calls = JudgedCalls(self.network, process, self.group_seats, self.monitor)
        rng = self.rng(f"caller {name} {self._born}")
        return process, Caller(calls, timeout_ms=6_000, rng=rng)

    # -- controllers ------------------------------------------------------------------------

    def _on_leadership(self, group: str, host: str, term: int, leads: bool) -> None:
        self.event("leadership", f"{group}/{host}", (term, leads))
        if group != "metadata-0" or not leads:
            return
        for epoch, process in list(self.controllers.items()):
            # Sometimes the old one is not ended in time, and goes on until it is fenced.
            if process.alive and epoch != term and self._chance.random() < 0.6:
                self.kill(process.name)
                del self.controllers[epoch]
        self.start_controller(term, host)

    def start_controller(self, epoch: int, host: str) -> None:
        """The controller of a metadata leader's term, on that leader's host."""
        self._born += 1
        name = f"controller-{epoch}"
        if name in self.processes:
            return
        process = self.processes[name] = self.controllers[epoch] = Process(name, host)
        calls = JudgedCalls(self.network, process, self.group_seats, self.monitor)
        controller = Controller(
            epoch=epoch,
            caller=Caller(calls, timeout_ms=5_000, rng=self.rng(f"{name} {self._born}")),
            groups=calls,
            calls=calls,
            settings=self.plan.settings,
            clock=self.clocks[host],
            node=host,
        )
        self.network.serve(name, process, controller)
        self.loop.post(process, controller.start)

    # -- founding ---------------------------------------------------------------------------

    def found(self) -> None:
        """Make all seats and found all groups, in good weather."""
        for name in self.seats:
            self.start_seat(name)
        founder = self.processes["founder"] = Process("founder", "founder")
        calls = FromProcess(self.network, founder, self.group_seats)
        task = self.loop.start(founder, self._found(calls))
        if not self.loop.run(task.done, self.loop.now + 20.0):
            raise AssertionError("the groups could not be founded in good weather")
        task.result()
        del self.processes["founder"]
        self.graveyard.append(founder)

    async def _found(self, calls: FromProcess) -> None:
        for seats in self.group_seats.values():
            founders = seats[: self.plan.replicas]
            ids = [await calls.call(seat, "reserve", CLUSTER) for seat in founders]
            configuration = Configuration(voters=tuple(sorted(ids)))
            for seat in founders:
                await calls.call(seat, "found", configuration)
            await asyncio.gather(*(calls.call(seat, "activate") for seat in founders))
            await calls.call(founders[0], "campaign")
        if self.plan.learners:
            await asyncio.gather(*(self._join(calls, group) for group in self.group_seats))

    async def _join(self, calls: FromProcess, group: str) -> None:
        """Have the learners join before anything goes wrong; later it is the controller's duty."""
        learners = learners_among(self.group_seats[group])
        ids = [await calls.call(seat, "reserve", CLUSTER) for seat in learners]
        await asyncio.gather(*(calls.call(seat, "activate") for seat in learners))
        while True:
            await asyncio.sleep(0.1)
            leader = self.leader(group)
            if leader is not None and leader[1].configuration.learners:
                return
            if leader is not None:
                with suppress(Conflict):  # not before it has committed in its own term
                    change = Change(add_learners=tuple(sorted(ids)))
                    await calls.call(leader[0], "change", change)

    # -- looking ----------------------------------------------------------------------------

    def cores(self, group: str) -> dict[str, Raft]:
        """The cores of a group's living replicas, by seat."""
        found = {}
        for name in self.group_seats[group]:
            seat = self.seats[name]
            if seat is not None and seat.replica is not None and not seat.replica.stopped_because:
                found[name] = seat.replica.core
        return found

    def leader(self, group: str) -> tuple[str, Raft] | None:
        """The seat and core that lead in the highest term."""
        leads = [
            (core.term, name, core)
            for name, core in self.cores(group).items()
            if core.leader == core.id
        ]
        return max(leads, key=lambda each: each[0])[1:] if leads else None

    def quorum(self, group: str, rng: Random) -> list[str]:
        """Seats that are enough for the group to serve, whatever configuration is in force."""
        member_seats = {
            replica: name
            for name in self.group_seats[group]
            for replica, room in self.homes[name].rooms.items()
            if room.identity.status != "retired"
        }
        wanted: set[Configuration] = set()
        for replica in member_seats:
            if replica in self.monitor.members:
                wanted |= self.monitor.members[replica].configurations
        damaged = self.damaged.get(group, 0)
        order = [each for each in sorted(member_seats) if each != damaged]
        rng.shuffle(order)
        chosen: list[int] = []
        for replica in order:
            if all(has_quorum(each, chosen) for each in wanted if each.voters):
                break
            chosen.append(replica)
        return sorted({member_seats[each] for each in chosen})

    def end(self) -> None:
        """Let go of everything."""
        self.loop.end([*self.processes.values(), *self.graveyard])
