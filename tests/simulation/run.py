"""One run: trouble, then a quorum gets well, then everybody; and what is left of a failure.

Safety first: whatever happens, nothing that was promised breaks. Then liveness: a quorum alone,
healed, has a leader within twenty election timeouts and takes ten writes; then all are healed, and
agree byte for byte. At the end nobody may be left waiting.
"""

from __future__ import annotations

import gc
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any

from actors import answers
from actors.caller import Caller
from actors.seat_names import kind_of
from state_machines import clients
from state_machines.errors import MetarayError, Unknown
from state_machines.limits import CLIENTS_MAX
from state_machines.metadata.kv import PutKv
from state_machines.metadata.slot_map import SLOT_MAPS
from state_machines.mqtt.session import OpenSession
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.slots import SLOTS, slot_of
from state_machines.tables import TABLES
from tests.simulation.invariants import Violation
from tests.simulation.nemesis import Nemesis
from tests.simulation.plan import SAFETY_SECONDS, Fault, Plan, draw
from tests.simulation.workload import Workload, slots_given
from tests.simulation.world import World

TIMEOUTS = 20  #: election timeouts until a healed quorum has a leader
WRITES = 10  #: that it then has to take
WRITES_SECONDS = 60.0
ALONE_SECONDS = 10.0  #: until one of two groups serves a new client while the other is dead
AGREE_SECONDS = 240.0  #: virtual; repair of a lost disk takes a few of the controller's rounds


@dataclass(slots=True)
class Result:
    """What a run came to."""

    plan: Plan
    failure: str = ""
    digest: str = ""
    events: int = 0  #: callbacks that ran: timers, messages, disk jobs, tasks that went on
    happenings: int = 0  #: ticks, calls, answers, disk jobs, operations, faults
    seconds: float = 0.0  #: of processor time
    asked: int = 0
    acknowledged: int = 0
    elections: int = 0
    checks: int = 0
    leader_timeouts: float = 0.0  #: how many election timeouts the healed quorum took
    seen: Counter[str] = field(default_factory=Counter)
    trace: list[str] = field(default_factory=list)


def run(plan: Plan) -> Result:
    """Run a plan. A violation is in the result, not raised."""
    result = Result(plan)
    level = logging.root.manager.disable
    if level < logging.CRITICAL:
        logging.disable(logging.CRITICAL)
    collecting = gc.isenabled()
    gc.disable()  # a coroutine that is collected in the middle of a run would act
    constants, limits = vars(clients), vars(answers)
    remembered, constants["CLIENTS_MAX"] = constants["CLIENTS_MAX"], plan.remembered
    single_rows, limits["ROWS_MAX"] = limits["ROWS_MAX"], plan.single_rows
    world = World(plan)
    workload = Workload(world)
    began = time.process_time()
    try:
        _phases(world, workload, result)
    except (Violation, AssertionError, MetarayError) as error:
        result.failure = f"{type(error).__name__}: {error}" if str(error) else repr(error)
        result.trace = [
            f"{at:11.6f} {kind:<10} {who:<14} {what}" for at, kind, who, what in world.trace
        ]
    finally:
        result.seconds = time.process_time() - began
        result.events, result.digest = world.loop.steps, world.digest
        result.happenings = world.happenings
        result.asked, result.acknowledged = workload.asked, workload.acknowledged
        result.elections, result.checks = world.monitor.elections, world.monitor.checks
        result.seen = world.seen + world.network.seen
        for home in world.homes.values():
            result.seen += home.condition.seen
        world.end()
        constants["CLIENTS_MAX"] = remembered
        limits["ROWS_MAX"] = single_rows
        if collecting:
            gc.enable()
        if level < logging.CRITICAL:
            logging.disable(level)
    return result


def _phases(world: World, workload: Workload, result: Result) -> None:
    world.found()
    nemesis = Nemesis(world, workload)
    if world.plan.settled:
        _do(world, "settled", slots_given, 20.0)
    begin = world.loop.now
    workload.start()
    nemesis.arm()
    world.loop.run(lambda: False, begin + SAFETY_SECONDS)
    _liveness(world, workload, nemesis, result)
    if world.plan.pair:
        _one_of_two(world)
    _agreement(world, workload)
    workload.judge()
    _census(world)


def _liveness(world: World, workload: Workload, nemesis: Nemesis, result: Result) -> None:
    """Only a quorum of each group is healed: it must serve."""
    rng = world.rng("liveness")
    core = _quorums(world, rng)
    nemesis.heal()
    world.network.weather.cut.clear()
    for name in list(world.seats):
        world.homes[name].condition.kill_at = world.homes[name].condition.fail_at = 0
        if name in core:
            _start(world, name)
        else:
            world.kill(name)
    world.event("healed", "quorum", sorted(core))
    while failure := _failure(world, result):
        # A change that was on its way to a frozen leader may have come into force since.
        more = _quorums(world, rng) - core
        assert more, failure
        core |= more
        for name in sorted(more):
            _start(world, name)
        world.event("healed", "more", sorted(more))


def _quorums(world: World, rng: Random) -> set[str]:
    return {name for group in world.plan.groups for name in world.quorum(group, rng)}


def _start(world: World, name: str) -> None:
    if name not in world.processes or _stopped(world, name):
        world.kill(name)
        world.start_seat(name)


def _failure(world: World, result: Result) -> str:
    """What keeps the healed from serving, nothing if they do."""
    healed = world.loop.now
    timeout = world.plan.settings.election_timeout_max_ms / 1_000

    def all_led() -> bool:
        return all(_serves(world, group) for group in world.plan.groups)

    if not world.loop.run(all_led, healed + TIMEOUTS * timeout):
        return f"liveness: no leader within {TIMEOUTS} election timeouts: {describe(world)}"
    result.leader_timeouts = (world.loop.now - healed) / timeout
    process, caller = world.client("liveness")
    task = world.loop.start(process, _write(caller, world.plan))
    if not world.loop.run(task.done, world.loop.now + WRITES_SECONDS):
        return f"liveness: {WRITES} writes were not taken: {describe(world)}"
    error = task.exception()
    return f"liveness: a write was not taken: {error!r}: {describe(world)}" if error else ""


def _stopped(world: World, name: str) -> bool:
    seat = world.seats[name]
    return seat is not None and seat.status_word == "stopped"


def _serves(world: World, group: str) -> bool:
    """Whether a leader has committed an entry of its own term."""
    leader = world.leader(group)
    if leader is None:
        return False
    core = leader[1]
    return core._log.term(core.commit) == core.term


async def _write(caller: Caller, plan: Plan) -> None:
    if plan.pair:
        await slots_given(caller)
    for number in range(WRITES):
        await _taken(caller, plan, PutKv(key=f"healed{number}", value=b""))
        if "offset-0" in plan.groups:
            commit = OffsetCommit(group=f"healed{number}", topic="t", partition=0, offset=1)
            await _taken(caller, plan, CommitOffsets.of([commit]))
        if "mqtt-0" in plan.groups:
            await _taken(caller, plan, OpenSession(client_id=f"healed{number}", broker="b"))


async def _taken(caller: Caller, plan: Plan, operation: Any) -> None:
    """A group that remembers fewer clients than there are may forget this one between two attempts,
    and can then not tell what became of the first: it is asked again."""
    while True:
        try:
            await caller.call(operation, timeout_ms=50_000)
            return
        except Unknown as error:
            forgotten = plan.remembered < CLIENTS_MAX and "was forgotten" in error.detail
            if not forgotten:
                raise


def _one_of_two(world: World) -> None:
    """A group dies, and a client that comes new is served by the other one of its kind."""
    pair = world.plan.pair
    dead = world.rng("one of two").choice([each for each in pair if each != "metadata-0"])
    place = 1 - pair.index(dead)
    for seat in world.group_seats[dead]:
        world.kill(seat)
    world.event("died", dead, "")
    names = (f"alone{number}" for number in itertools.count())
    name = next(each for each in names if slot_of(("default", each)) * 2 // SLOTS == place)
    command: Any = PutKv(key=name, value=b"")
    match kind_of(dead):
        case "offset":
            commit = OffsetCommit(group=name, topic="t", partition=0, offset=1)
            command = CommitOffsets.of([commit])
        case "mqtt":
            command = OpenSession(client_id=name, broker="b")
    timeout_ms = int(ALONE_SECONDS * 1_000)
    work = partial(Caller.call, operation=command, timeout_ms=timeout_ms)
    _do(world, "alone", work, ALONE_SECONDS + 1.0)


def _do(
    world: World, name: str, work: Callable[[Caller], Coroutine[Any, Any, Any]], seconds: float
) -> None:
    """Have a new client do this, in so many seconds. Raises what it raises, or AssertionError."""
    process, caller = world.client(name)
    task = world.loop.start(process, work(caller))
    done = world.loop.run(task.done, world.loop.now + seconds)
    assert done, f"{name}: not within {seconds:.0f} s: {describe(world)}"
    task.result()
    world.kill(name)


def _agreement(world: World, workload: Workload) -> None:
    """Everybody is healed: all replicas come to the same state, byte for byte."""
    for name in list(world.seats):
        _start(world, name)
    workload.load.ended = True
    deadline = world.loop.now + AGREE_SECONDS

    def agreed() -> bool:
        return workload.idle and all(_agrees(world, group) for group in world.plan.groups)

    assert world.loop.run(agreed, deadline), f"no agreement: {describe(world)}"
    states = {}
    for group in world.plan.groups:
        leader = world.leader(group)
        assert leader is not None, f"{group} lost its leader"
        members = leader[1].configuration.members
        dumps = {
            name: _dump(world, name)
            for name, core in world.cores(group).items()
            if core.id in members
        }
        if len(set(map(repr, dumps.values()))) > 1:
            raise AssertionError(f"states differ: {_difference(dumps)}")
        for core in world.cores(group).values():
            core.check()
        states[group] = dumps[leader[0]]
    _in_place(states)


def _in_place(states: dict[str, dict[str, dict[bytes, bytes]]]) -> None:
    """Every row is in the group that its slot belongs to, by the map; without one in group 0."""
    maps = [
        SLOT_MAPS.decode(row)[0] for row in states["metadata-0"].get(SLOT_MAPS.name, {}).values()
    ]
    for group, tables in states.items():
        for name, rows in tables.items():
            table = TABLES.get(name)
            if table is None or not table.kind:
                continue
            ranges = next((each.ranges for each in maps if each.kind == table.kind), ())
            for row, _ in map(table.decode, rows.values()):
                key = table.slot_key(table.key_of(row))
                if key is None:
                    continue
                slot = slot_of(key)
                owner = next((each.group for each in ranges if each.first <= slot <= each.last), "")
                assert group == (owner or f"{table.kind}-0"), f"{name} {key} is in {group}"


def _agrees(world: World, group: str) -> bool:
    leader = world.leader(group)
    if leader is None:
        return False
    core = leader[1]
    configuration = core.configuration
    if configuration.joint or core.commit < core.last_index:
        return False
    if world.damaged.get(group, 0) in configuration.members:
        return False  # not replaced yet
    if len(configuration.learners) < world.plan.learners:
        return False  # not joined yet, or not again
    applied = {}
    for name, each in world.cores(group).items():
        seat = world.seats[name]
        assert seat is not None
        assert seat.replica is not None
        applied[each.id] = seat.replica.applied.index
    return all(applied.get(member) == core.last_index for member in configuration.members)


def _dump(world: World, name: str) -> dict[str, dict[bytes, bytes]]:
    seat = world.seats[name]
    assert seat is not None
    assert seat.replica is not None
    with seat.replica.stores.state.view() as view:
        rows = {table: dict(view.rows(table)) for table in view.tables()}
    return {table: each for table, each in rows.items() if each}


def _difference(dumps: dict[str, dict[str, dict[bytes, bytes]]]) -> str:
    """The first row that is not the same everywhere."""
    for table in sorted({table for dump in dumps.values() for table in dump}):
        keys = sorted({key for dump in dumps.values() for key in dump.get(table, {})})
        for key in keys:
            found = {name: dump.get(table, {}).get(key) for name, dump in dumps.items()}
            if len(set(found.values())) > 1:
                return f"{table} {key!r}: {found}"
    return "in the order of their tables"


def _census(world: World) -> None:
    """Nobody is left waiting once nobody asks any more, and nothing went wrong unheard."""
    for process in world.controllers.values():
        world.kill(process.name)
    deadline = world.loop.now + world.plan.settings.write_timeout_ms / 1_000 + 1.0
    assert world.loop.run(lambda: not _waiting(world), deadline), f"left: {_waiting(world)}"
    assert not world.loop.faults, f"exceptions nobody caught: {world.loop.faults[:3]}"


def _waiting(world: World) -> dict[str, tuple[int, int, int]]:
    """Seats with proposals, entries or reads whose callers wait."""
    found = {}
    for name, seat in world.seats.items():
        if seat is not None and seat.replica is not None:
            replica = seat.replica
            writes, reads = replica.writes, len(replica.reads) + len(replica.answers)
            found[name] = (len(writes), len(writes._slots), reads)
    return {name: waiting for name, waiting in found.items() if any(waiting)}


def describe(world: World) -> str:
    """Every replica in a line."""
    lines = []
    for group in world.plan.groups:
        for name in world.group_seats[group]:
            seat = world.seats[name]
            if seat is None:
                lines.append(f"{name}: down")
            elif seat.replica is None:
                lines.append(f"{name}: {seat.status_word} {seat._fault}")
            else:
                core = seat.replica.core
                lines.append(
                    f"{name}: {core.id:x} {seat.replica.role} term {core.term} log "
                    f"{core.first_index}..{core.last_index} commit {core.commit} applied "
                    f"{seat.replica.applied.index} {core.configuration} "
                    f"{seat.replica.stopped_because}"
                )
    return "\n  ".join(["", *lines, f"damaged {world.damaged}"])


def minimise(plan: Plan, budget: int = 60) -> Result:
    """The failure of a plan with as few faults as can be found in so many runs (ddmin)."""
    best = run(plan)
    assert best.failure, "only a failure can be minimised"
    faults: list[Fault] = list(plan.faults)
    size = max(1, len(faults) // 2)
    while faults and budget > 0:
        for begin in range(0, len(faults), size):
            fewer = faults[:begin] + faults[begin + size :]
            result = run(replace(plan, faults=tuple(fewer)))
            budget -= 1
            if result.failure:
                best, faults = result, fewer
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return best


def struck(plan: Plan, keep: Sequence[int] | None) -> Plan:
    """The plan with only these of its faults (by their place in it)."""
    if keep is None:
        return plan
    return replace(plan, faults=tuple(plan.faults[each] for each in keep))


__all__ = ["Result", "describe", "draw", "minimise", "run", "struck"]
