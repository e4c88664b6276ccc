"""Timestamps, while leaders are forced to change and clocks are set back (`metadata.timestamp`).

Callers take ranges, one after the other. Again and again every host's clock is set back by up to
an hour, each by its own amount, or forward, and at that moment the leader is crashed, paused, cut
off, or made to hand over. Whatever happens:

- a range is above everything that anybody had been told before it was asked for;
- no timestamp is in two ranges.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Final

from actors.caller import Caller
from actors.config import RaftSettings
from state_machines.errors import NoQuorum, Unknown
from state_machines.limits import CLIENTS_MAX
from state_machines.metadata.timestamp import COUNT_MAX, LOGICAL_BITS, TakeTimestamps
from tests.simulation.nemesis import Nemesis
from tests.simulation.plan import Fault, Plan
from tests.simulation.wills import quiet
from tests.simulation.workload import Workload
from tests.simulation.world import World

GROUP: Final = "metadata-0"
CHANGES: Final = ("crash leader", "pause leader", "isolate leader", "transfer", "campaign")
EVERY_SECONDS: Final = 4.0  #: virtual, between two changes: time for the next leader
FAULT_SECONDS: Final = 2.5  #: that a leader is away; longer than elections take
END_SECONDS: Final = 60.0  #: until everybody who waits has an answer
CALLERS: Final = 3
TASKS: Final = 2  #: of each
HOUR_MS: Final = 3_600_000
COUNTS: Final = (1, 1, 1, 10, 1_000, COUNT_MAX)


@dataclass(slots=True)
class Story:
    """What came of a run."""

    ranges: list[range] = field(default_factory=list)  #: as they were told
    highest: int = -1  #: that anybody was told
    leaders: set[int] = field(default_factory=set)  #: terms in which one was told
    behind: int = 0  #: ranges of a time that the leader's clock had not come to
    ended: bool = False


def play(seed: int) -> Story:
    """One run. Raises AssertionError for a promise that was broken."""
    rng = Random(f"timestamps {seed}")
    faults = [
        Fault(kind, EVERY_SECONDS * number, FAULT_SECONDS, rng.randrange(2**32))
        for number, kind in enumerate(rng.sample(CHANGES, len(CHANGES)), 1)
    ]
    plan = Plan(
        seed=seed,
        replicas=3,
        spares=0,
        groups=(GROUP,),
        clients=0,
        links=seed % 2 == 0,
        remembered=CLIENTS_MAX,
        settings=RaftSettings(
            election_timeout_min_ms=800, election_timeout_max_ms=1_600, write_timeout_ms=8_000
        ),
        faults=tuple(faults),
    )
    story = Story()
    with quiet():
        world = World(plan)
        try:
            _play(world, story, rng)
        finally:
            world.end()
    judge(story)
    return story


def _play(world: World, story: Story, rng: Random) -> None:
    world.found()
    nemesis = Nemesis(world, Workload(world))
    for number, fault in enumerate(world.plan.faults):
        # Before the fault that strikes at the same moment; the first step goes back.
        forth = number and rng.random() < 0.3
        world.at(fault.at, lambda forth=forth: _step(world, rng, 1 if forth else -1))
    nemesis.arm()
    tasks = []
    for number in range(CALLERS):
        process, caller = world.client(f"caller{number}")
        for place in range(TASKS):
            luck = world.rng(f"caller{number} {place}")
            tasks.append(world.loop.start(process, _take(world, story, caller, luck)))
    last = world.plan.faults[-1].at + EVERY_SECONDS
    world.loop.run(lambda: False, world.loop.now + last)
    nemesis.heal()
    story.ended = True
    deadline = world.loop.now + END_SECONDS
    assert world.loop.run(lambda: all(task.done() for task in tasks), deadline), "callers wait"
    for task in tasks:
        task.result()
    missed = [kind for kind in CHANGES if not world.seen[kind]]
    assert not missed, f"never struck: {missed}"


def _step(world: World, rng: Random, way: int) -> None:
    for host in sorted(world.clocks):
        world.clocks[host].jump_ms += way * rng.randrange(1, HOUR_MS)


async def _take(world: World, story: Story, caller: Caller, luck: Random) -> None:
    """One range after the other; a last one when all is well again."""
    last = False
    while not last:
        last = story.ended
        await asyncio.sleep(0.2 * luck.random() ** 2)
        count, floor = luck.choice(COUNTS), story.highest
        try:
            first = await caller.call(TakeTimestamps(count=count))
        except (NoQuorum, Unknown):
            last = False
            continue
        assert first > floor, f"{first} was told after {floor}"
        story.ranges.append(range(first, first + count))
        story.highest = max(story.highest, first + count - 1)
        if (leader := world.leader(GROUP)) is not None:
            seat, core = leader
            story.leaders.add(core.term)
            clock = world.clocks[seat.rpartition("/")[2]]
            story.behind += first >> LOGICAL_BITS > clock.now_ms()


def judge(story: Story) -> None:
    """Raise AssertionError for a timestamp that was given twice."""
    for before, after in pairwise(sorted(story.ranges, key=lambda each: each.start)):
        assert before.stop <= after.start, f"given twice: {before} and {after}"
