"""Brings the faults of a plan about, and takes them back.

Each fault draws its targets when it strikes, from the cluster as it is then. One that makes no
sense at that moment (a wipe that would lose a majority, a transfer without a leader) is left out;
what did strike is counted, and a run that was to show something must have seen it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from actors.seat_names import is_learner
from state_machines.errors import MetarayError
from state_machines.raft.confchange import Change
from tests.simulation.links import HALF_OPEN_SECONDS
from tests.simulation.loop import Process
from tests.simulation.network import DELAY_SECONDS, FromProcess, Gone
from tests.simulation.plan import Fault
from tests.simulation.workload import Workload
from tests.simulation.world import CLUSTER, World

FLAWED = (MetarayError, Gone, ConnectionResetError, TimeoutError)
CAUGHT_UP = 50  #: entries


class Nemesis:
    """All trouble of one run."""

    def __init__(self, world: World, workload: Workload) -> None:
        self.world = world
        self.workload = workload
        self.network = world.network
        self.active: dict[int, Callable[[], None]] = {}
        self._cuts: dict[int, set[tuple[str, str]]] = {}
        self._operators = 0

    def arm(self) -> None:
        """Strike when the plan says so."""
        for number, fault in enumerate(self.world.plan.faults):
            self.world.at(fault.at, partial(self._strike, number, fault))

    def _strike(self, number: int, fault: Fault) -> None:
        rng = Random(f"{self.world.plan.seed} {fault.seed}")
        heal = getattr(self, "_" + fault.kind.replace(" ", "_").replace("-", "_"))(rng, fault)
        if heal is False:
            return
        self.world.seen[fault.kind] += 1
        self.world.event("fault", fault.kind, number)
        if heal is not None:
            self.active[number] = heal
            self.world.at(fault.seconds, lambda: self._end(number))

    def _end(self, number: int) -> None:
        heal = self.active.pop(number, None)
        if heal is not None:
            self.world.event("heal", self.world.plan.faults[number].kind, number)
            heal()

    def heal(self) -> None:
        """No more trouble."""
        for number in sorted(self.active):
            self._end(number)

    # -- the network ------------------------------------------------------------------------

    def _weather(self, name: str, value: float, calm: float = 0.0) -> Callable[[], None]:
        setattr(self.network.weather, name, value)
        return lambda: setattr(self.network.weather, name, calm)

    def _drop(self, rng: Random, _: Fault) -> Any:
        return self._weather("drop", 0.02 + 0.28 * rng.random())

    def _lost_answers(self, rng: Random, _: Fault) -> Any:
        return self._weather("drop_answers", 0.05 + 0.45 * rng.random())

    def _duplicate(self, rng: Random, _: Fault) -> Any:
        return self._weather("duplicate", 0.05 + 0.45 * rng.random())

    def _delay(self, rng: Random, _: Fault) -> Any:
        return self._weather("delay_seconds", 0.02 * (1_000 ** rng.random()), DELAY_SECONDS)

    def _corrupt_chunks(self, rng: Random, _: Fault) -> Any:
        return self._weather("corrupt_chunks", 0.1 + 0.5 * rng.random())

    def _break_links(self, rng: Random, fault: Fault, seconds: float) -> Any:
        """All at first, then some again and again."""
        links = self.network.links
        if links is None:
            return False
        over = False

        def strike(share: float) -> None:
            if not over:
                links.break_some(share, seconds)
                self.world.at(0.05 + 0.3 * rng.random(), partial(strike, 0.5))

        def heal() -> None:
            nonlocal over
            over = True

        strike(1.0)
        return heal

    def _links_reset(self, rng: Random, fault: Fault) -> Any:
        return self._break_links(rng, fault, 0.0)

    def _links_half_open(self, rng: Random, fault: Fault) -> Any:
        return self._break_links(rng, fault, 2 * HALF_OPEN_SECONDS)

    def _slow_readers(self, rng: Random, _: Fault) -> Any:
        if self.network.links is None:
            return False
        return self._weather("full_links", 0.1 + 0.8 * rng.random())

    def _cut(self, pairs: set[tuple[str, str]]) -> Any:
        key = id(pairs)
        self._cuts[key] = pairs
        self._cut_again()

        def heal() -> None:
            del self._cuts[key]
            self._cut_again()

        return heal

    def _cut_again(self) -> None:
        self.network.weather.cut = set().union(*self._cuts.values())

    @property
    def _hosts(self) -> list[str]:
        clients = sorted({each.host for each in self.world.processes.values()})
        return sorted({*self.world.clocks, *clients})

    def _apart(self, side: set[str], one_way: bool = False) -> Any:
        others = set(self._hosts) - side
        pairs = {(here, there) for here in sorted(side) for there in sorted(others)}
        return self._cut(pairs if one_way else pairs | {(b, a) for a, b in sorted(pairs)})

    def _some(self, rng: Random, at_most: int) -> set[str]:
        hosts = sorted(self.world.clocks)
        return set(rng.sample(hosts, min(len(hosts), rng.randrange(1, at_most + 1))))

    def _partition(self, rng: Random, _: Fault) -> Any:
        return self._apart({host for host in self._hosts if rng.random() < 0.5})

    def _one_way_partition(self, rng: Random, _: Fault) -> Any:
        return self._apart(self._some(rng, 2), one_way=True)

    def _bridge(self, rng: Random, _: Fault) -> Any:
        """Two halves that do not hear each other, and one host that hears both."""
        hosts = sorted(self.world.clocks)
        if len(hosts) < 3:
            return False
        rng.shuffle(hosts)
        half = (len(hosts) - 1) // 2
        left, right = hosts[1 : 1 + half], hosts[1 + half :]
        return self._cut(
            {(a, b) for a in left for b in right} | {(b, a) for a in left for b in right}
        )

    def _clog(self, rng: Random, fault: Fault) -> Any:
        """Hosts are cut off one after another, and come back in another order."""
        hosts = sorted(self.world.clocks)
        heals: list[Callable[[], None]] = []
        for host in rng.sample(hosts, len(hosts)):
            begin = rng.random() * fault.seconds / 2
            end = fault.seconds * (0.5 + rng.random() / 2)

            def clog(host: str = host, seconds: float = end - begin) -> None:
                if not ended:
                    heal = self._apart({host})
                    heals.append(heal)
                    self.world.at(seconds, lambda: heals.remove(heal) or heal())  # type: ignore[func-returns-value]

            self.world.at(begin, clog)
        ended: list[bool] = []
        return lambda: ended.append(True)

    def _leader_host(self) -> str:
        leader = self.world.leader("metadata-0")
        return leader[0].rpartition("/")[2] if leader else ""

    def _isolate_leader(self, rng: Random, _: Fault) -> Any:
        host = self._leader_host()
        return self._apart({host}, one_way=rng.random() < 0.3) if host else False

    def _isolate_minority(self, rng: Random, _: Fault) -> Any:
        return self._apart(self._some(rng, max(1, (len(self.world.clocks) - 1) // 2)))

    def _ghosts(self, rng: Random, fault: Fault) -> Any:
        for _ in range(5):
            self.world.at(rng.random() * fault.seconds, lambda: self.network.haunt(6))

    # -- processes --------------------------------------------------------------------------

    def _pick(self, rng: Random, names: list[str] | None = None) -> str:
        up = names or [name for name in self.world.seats if name in self.world.processes]
        return rng.choice(up) if up else ""

    def _kill(self, *names: str) -> Any:
        for name in names:
            self.world.kill(name)

        def restart() -> None:
            for name in names:
                self.world.start_seat(name)

        return restart

    def _crash(self, rng: Random, _: Fault) -> Any:
        name = self._pick(rng)
        return self._kill(name) if name else False

    def _crash_leader(self, rng: Random, _: Fault) -> Any:
        leader = self.world.leader(rng.choice(self.world.plan.groups))
        return self._kill(leader[0]) if leader else False

    def _crash_in_recovery(self, rng: Random, _: Fault) -> Any:
        name = self._pick(rng)
        if not name:
            return False
        self.world.kill(name)
        self.world.start_seat(name)
        self.world.homes[name].condition.kill_at = rng.randrange(1, 6)
        return self._kill_later(name, rng.random() * 0.05)

    def _kill_later(self, name: str, seconds: float) -> Any:
        self.world.at(seconds, lambda: self.world.kill(name))

        def restart() -> None:
            self.world.homes[name].condition.kill_at = 0
            self.world.start_seat(name)

        return restart

    def _crash_all(self, _: Random, __: Fault) -> Any:
        """The power goes."""
        return self._kill(*[name for name in self.world.seats if name in self.world.processes])

    def _group_down(self, rng: Random, _: Fault) -> Any:
        """One group of two, which is to harm the other in nothing."""
        group = rng.choice([each for each in self.world.plan.pair if each != "metadata-0"])
        return self._kill(*self.world.group_seats[group])

    def _host_down(self, rng: Random, _: Fault) -> Any:
        host = rng.choice(sorted(self.world.clocks))
        for epoch, process in list(self.world.controllers.items()):
            if process.host == host:
                self.world.kill(process.name)
                del self.world.controllers[epoch]
        return self._kill(*[name for name in self.world.seats if name.rpartition("/")[2] == host])

    def _crash_in_a_job(self, rng: Random, _: Fault) -> Any:
        name = self._pick(rng)
        if not name:
            return False
        condition = self.world.homes[name].condition
        condition.kill_at = rng.randrange(1, 12)
        condition.kill_after = rng.random() < 0.5

        def heal() -> None:
            condition.kill_at = 0
            self.world.start_seat(name)

        return heal

    def _freeze(self, *names: str) -> Any:
        frozen = [self.world.processes[name] for name in names if name in self.world.processes]
        if not frozen or any(process.frozen for process in frozen):
            return False
        for process in frozen:
            self.world.loop.freeze(process)

        def thaw() -> None:
            for process in frozen:
                self.world.loop.thaw(process)

        return thaw

    def _pause(self, rng: Random, _: Fault) -> Any:
        return self._freeze(self._pick(rng))

    def _pause_leader(self, rng: Random, _: Fault) -> Any:
        leader = self.world.leader(rng.choice(self.world.plan.groups))
        return self._freeze(leader[0]) if leader else False

    def _stutter(self, rng: Random, fault: Fault) -> Any:
        """Timers come late, again and again."""
        name = self._pick(rng)
        if not name:
            return False
        at = 0.0
        while at < fault.seconds:
            self.world.at(at, partial(self._hiccup, name, rng.random() * 0.6))
            at += 0.1 + rng.random()
        return None

    def _hiccup(self, name: str, seconds: float) -> None:
        thaw = self._freeze(name)
        if thaw:
            self.world.at(seconds, thaw)

    def _client_crash(self, rng: Random, _: Fault) -> Any:
        clients = sorted(name for name in self.world.processes if name.startswith("client"))
        if not clients:
            return False
        self.world.kill(rng.choice(clients))
        return lambda: None if self.workload.load.ended else self.workload.start_client()

    def _newest_controller(self) -> tuple[int, Process] | None:
        alive = [(e, p) for e, p in self.world.controllers.items() if p.alive]
        return max(alive, key=lambda each: each[0]) if alive else None

    def _controller_crash(self, _: Random, __: Fault) -> Any:
        found = self._newest_controller()
        if found is None:
            return False
        epoch, process = found
        self.world.kill(process.name)
        del self.world.controllers[epoch]
        return lambda: self.world.start_controller(epoch, process.host)

    def _controller_pause(self, _: Random, __: Fault) -> Any:
        found = self._newest_controller()
        return self._freeze(found[1].name) if found else False

    # -- disks ------------------------------------------------------------------------------

    def _slow_disk(self, rng: Random, _: Fault) -> Any:
        condition = self.world.homes[self._pick(rng, sorted(self.world.homes))].condition
        condition.slowness = 10 * (20 ** rng.random())

        def heal() -> None:
            condition.slowness = 1.0

        return heal

    def _disk_full(self, rng: Random, _: Fault) -> Any:
        name = self._pick(rng)
        if not name:
            return False
        condition = self.world.homes[name].condition
        condition.full = True
        self.world.monitor.full.add(name)

        def heal() -> None:
            """Room was made, and the operator restarts what had stopped."""
            condition.full = False
            self.world.kill(name)
            self.world.monitor.full.discard(name)
            self.world.start_seat(name)

        return heal

    def _sync_error(self, rng: Random, _: Fault) -> Any:
        name = self._pick(rng)
        if not name:
            return False
        condition = self.world.homes[name].condition
        condition.fail_at = rng.randrange(1, 8)

        def heal() -> None:
            condition.fail_at = 0

        return heal

    def _may_lose(self, name: str) -> bool:
        """Whether the group survives the loss of this seat's disk: its members but one are whole,
        and the one that was lost before, if any, has been replaced."""
        group = name.rpartition("/")[0]
        leader = self.world.leader(group)
        if leader is None:
            return False
        core = leader[1]
        configurations = {each.configuration for each in self.world.cores(group).values()}
        if len(configurations) != 1 or core.configuration.joint:
            return False
        if core.configuration_index > core.commit or len(core.configuration.voters) < 3:
            return False
        damaged = self.world.damaged.get(group, 0)
        if damaged in core.configuration.members:
            return False
        held = {replica for seat in self.world.group_seats[group] for replica in self._rooms(seat)}
        return set(core.configuration.members) <= held

    def _rooms(self, seat: str) -> list[int]:
        return [
            replica
            for replica, room in self.world.homes[seat].rooms.items()
            if room.identity.status != "retired"
        ]

    def _damage(self, name: str) -> None:
        for replica in self._rooms(name):
            self.world.damaged[name.rpartition("/")[0]] = replica
            self.world.monitor.excused.add(replica)

    def _wipe(self, rng: Random, _: Fault) -> Any:
        """The disk is replaced by an empty one: the seat comes back vacant."""
        name = self._pick(rng)
        if not name or not self._may_lose(name):
            return False
        self._damage(name)
        restart = self._kill(name)
        self.world.homes[name].wipe()
        return restart

    def _bit_flip(self, rng: Random, fault: Fault) -> Any:
        """A bit rots under a running replica, which is then restarted; whoever finds it stops, and
        the operator throws the disk away."""
        name = self._pick(rng)
        if not name or not self._may_lose(name):
            return False
        home = self.world.homes[name]
        rooms = [home.rooms[replica] for replica in self._rooms(name)]
        if not rooms:
            return False
        disk: Any = rng.choice(rooms).disk
        part = rng.choice((disk.log, disk.shelf.engine, *disk.journal))
        if not part.flip(rng):
            return False
        self._damage(name)
        self.world.at(rng.random() * fault.seconds, lambda: self._restart(name))

        def throw_away() -> None:
            self.world.kill(name)
            home.wipe()
            self.world.start_seat(name)

        return throw_away

    def _restart(self, name: str) -> None:
        self.world.kill(name)
        self.world.start_seat(name)

    # -- time -------------------------------------------------------------------------------

    def _clock_rate(self, rng: Random, _: Fault) -> Any:
        clock = rng.choice([self.world.clocks[each] for each in sorted(self.world.clocks)])
        clock.run_at(0.5 * (4 ** rng.random()))
        return lambda: clock.run_at(1.0)

    def _clock_jump(self, rng: Random, _: Fault) -> Any:
        clock = rng.choice([self.world.clocks[each] for each in sorted(self.world.clocks)])
        before = clock.jump_ms
        clock.jump_ms += rng.randrange(-3_600_000, 3_600_001)

        def heal() -> None:
            clock.jump_ms = before

        return heal

    # -- operators --------------------------------------------------------------------------

    def _operate(self, work: Callable[[FromProcess], Any]) -> None:
        """Something an operator's tool does, in a process of its own; it may fail at any step."""
        self._operators += 1
        name = f"operator{self._operators}"
        process = self.world.processes[name] = Process(name, name)
        calls = FromProcess(self.network, process, self.world.group_seats)

        async def run() -> None:
            try:
                await work(calls)
            except FLAWED as error:
                self.world.event("operator", name, type(error).__name__)
            finally:
                self.world.processes.pop(name, None)
                self.world.graveyard.append(process)

        self.world.loop.start(process, run())

    def _whole(self, group: str) -> bool:
        leader = self.world.leader(group)
        return leader is not None and (
            self.world.damaged.get(group, 0) not in leader[1].configuration.members
        )

    def _grow(self, rng: Random, _: Fault) -> Any:
        return self._change(rng, replace=False)

    def _replace(self, rng: Random, _: Fault) -> Any:
        return self._change(rng, replace=True)

    def _change(self, rng: Random, *, replace: bool) -> Any:
        """A new replica comes in as a learner and is promoted; perhaps another one goes."""
        group = rng.choice(self.world.plan.groups)
        spare = [
            each
            for each in self.world.group_seats[group]
            if not self._rooms(each) and not is_learner(each)
        ]
        if not spare or not self._whole(group):
            return False
        seat = rng.choice(spare)

        async def work(calls: FromProcess) -> None:
            async with asyncio.timeout(8.0):
                replica = await calls.call(seat, "reserve", CLUSTER)
                await calls.call(seat, "activate")
                await self._at_leader(calls, group, Change(add_learners=(replica,)))
                while True:
                    leader = self.world.leader(group)
                    if leader is not None:
                        progress = leader[1].progress.get(replica)
                        if progress and leader[1].last_index - progress.match_index < CAUGHT_UP:
                            break
                    await asyncio.sleep(0.1)
                voters = leader[1].configuration.voters
                remove = (rng.choice(voters),) if replace and len(voters) > 1 else ()
                await self._at_leader(calls, group, Change(add_voters=(replica,), remove=remove))

        return self._operate(work)

    async def _at_leader(self, calls: FromProcess, group: str, change: Change) -> None:
        leader = self.world.leader(group)
        if leader is None:
            raise TimeoutError("no leader")
        await calls.call(leader[0], "change", change)

    def _shrink(self, rng: Random, _: Fault) -> Any:
        group = rng.choice(self.world.plan.groups)
        leader = self.world.leader(group)
        if leader is None or not self._whole(group) or len(leader[1].configuration.voters) < 2:
            return False
        change = Change(remove=(rng.choice(leader[1].configuration.voters),))
        return self._operate(lambda calls: self._at_leader(calls, group, change))

    def _transfer(self, rng: Random, _: Fault) -> Any:
        """Also to a replica that is down."""
        leader = self.world.leader(rng.choice(self.world.plan.groups))
        if leader is None:
            return False
        target = rng.choice(leader[1].configuration.voters)
        return self._operate(lambda calls: calls.call(leader[0], "transfer", target))

    def _campaign(self, rng: Random, _: Fault) -> Any:
        """Somebody believes that there is no leader."""
        cores = self.world.cores(rng.choice(self.world.plan.groups))
        if not cores:
            return False
        name = rng.choice(sorted(cores))
        process, seat = self.world.processes[name], self.world.seats[name]
        assert seat is not None
        assert seat.replica is not None
        replica = seat.replica

        def campaign() -> None:
            replica.core.campaign()
            replica._wake()

        self.world.loop.post(process, campaign)
        return None

    # -- load -------------------------------------------------------------------------------

    def _pace(self, pause: float) -> Any:
        load = self.workload.load
        load.pause = pause

        def heal() -> None:
            load.pause = 0.5

        return heal

    def _burst(self, _: Random, fault: Fault) -> Any:
        self.world.at(min(fault.seconds, 0.5), lambda: self._pace(0.5))
        return self._pace(0.08)

    def _quiet(self, _: Random, __: Fault) -> Any:
        return self._pace(3.0)
