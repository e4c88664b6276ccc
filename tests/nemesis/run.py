"""One run: load, faults one after the other, healing, and the judgement of all of it.

A scenario is a list of faults over one load. Each fault is an episode: injected, seen, held under
load, healed, waited for until every group is whole, and let run on for a moment. When all are done
the load ends, everything is read, the history is checked and the replicas are compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.seat_names import kind_of
from state_machines.slots import SLOTS, slot_of
from tests.history.operation import Operation, is_refusal
from tests.nemesis import checks, dumps
from tests.nemesis.clients import CALL_MS
from tests.nemesis.faults import Fault
from tests.nemesis.load import Load
from tests.nemesis.world import GROUPS, World

LATE_SECONDS = 5.0  #: that a call may end after its deadline, on a busy machine
CALM_SECONDS = 1.5  #: of load before the first fault and after each
WRITES = {
    ("register", "put"): "metadata",
    ("append", "append"): "metadata",
    ("counter", "add"): "offset",
    ("offset", "commit"): "offset",
    ("session", "open"): "mqtt",
    ("session", "close"): "mqtt",
}
"""Writes by model and kind, and the kind of group they go to."""


@dataclass(slots=True)
class Episode:
    """What one fault did."""

    fault: str
    evidence: str
    groups: tuple[str, ...]
    begun: float
    healing: float  #: when healing began: at once, where nobody has to do anything
    whole: float  #: when all groups were whole again
    elections: int  #: terms gone by, over all groups
    window_ms: float = (
        0.0  #: the longest time without an ack of a write that waits, of a group it hit
    )
    p99_ms: float = 0.0  #: of the writes acknowledged between its beginning and the healing
    calm_p99_ms: float = 0.0  #: of those before the first fault

    @property
    def recovery_s(self) -> float:
        """From the beginning of the healing until every replica is back and has caught up."""
        return self.whole - self.healing


@dataclass(slots=True)
class Run:
    """What one scenario came to."""

    episodes: list[Episode] = field(default_factory=list)
    verdict: checks.Verdict = field(default_factory=checks.Verdict)
    compared: dict[str, tuple[int, int]] = field(default_factory=dict)  #: group: index, rows
    slowest_s: float = 0.0  #: the longest call
    seconds: float = 0.0


Say = Callable[[str], None]


def scenario(
    world: World,
    make_faults: Callable[[Load], Sequence[Fault]],
    folder: Path,
    *,
    tenant: str,
    seed: int,
    say: Say = lambda _: None,
    processes: int = 2,
    calm: float = CALM_SECONDS,
) -> Run:
    """Carry it out and judge it. Raises where a fault was not seen or a group did not come back."""
    begun = time.monotonic()
    load = Load(world, folder, tenant=tenant, seed=seed, processes=processes)
    run = Run()
    try:
        time.sleep(calm)
        for fault in make_faults(load):
            run.episodes.append(_episode(world, fault, say))
            time.sleep(calm)
            load.check()
        load.stop()
    finally:
        load.abandon()
    world.wait_until_whole()
    history = load.history()
    run.verdict = checks.check(history, load.watches())
    run.slowest_s = load.slowest()
    assert run.slowest_s < CALL_MS / 1000 + LATE_SECONDS, f"a call took {run.slowest_s:.1f} s"
    for episode in run.episodes:
        episode.window_ms = round(window(history, episode, tenant) * 1000, 1)
        episode.p99_ms = p99_ms(history, episode.begun, episode.healing)
        episode.calm_p99_ms = p99_ms(history, 0.0, run.episodes[0].begun)
    run.compared = {group: dumps.same_everywhere(world, group) for group in GROUPS}
    run.seconds = time.monotonic() - begun
    return run


def _episode(world: World, fault: Fault, say: Say) -> Episode:
    say(f"{fault.name} ({fault.group})")
    terms = world.terms()
    begun = time.monotonic()
    fault.inject()
    evidence = fault.seen()
    assert evidence, f"{fault.name} was not seen"
    time.sleep(fault.hold)
    healing = begun if fault.heals_itself else time.monotonic()
    fault.heal()
    world.wait_until_whole()
    whole = time.monotonic()
    fault.healed()
    after = world.terms()
    say(f"  {evidence}; whole again after {whole - healing:.1f} s")
    return Episode(
        fault=fault.name,
        evidence=evidence,
        groups=fault.hurts(),
        begun=begun,
        healing=healing,
        whole=whole,
        elections=sum(after[group] - terms[group] for group in GROUPS),
    )


def group_of(write: Operation, tenant: str) -> str:
    """The group that a write goes to: even parts of the slots are on each of its kind."""
    kind = WRITES[write.key.partition(".")[0], write.kind]
    groups = [each for each in GROUPS if kind_of(each) == kind]
    return groups[slot_of((tenant, write.key)) * len(groups) // SLOTS]


def window(history: Sequence[Operation], episode: Episode, tenant: str) -> float:
    """The longest time, in seconds, in which a group it hit acknowledged no write though one waited
    for that: of a few keys, for some seconds none may belong to a group."""
    longest = 0.0
    for group in episode.groups:
        waits = [
            (math.inf if each.returned is None else each.returned / 1e9, each.invoked / 1e9)
            for each in history
            if not is_refusal(each.output)
            and (each.key.partition(".")[0], each.kind) in WRITES
            and group_of(each, tenant) == group
        ]
        asked = math.inf  # since when one waits of those that are not acknowledged before `after`
        after = math.inf
        for before, invoked in sorted(waits, reverse=True):
            since = max(before, asked)
            if episode.begun <= after < math.inf and since <= episode.whole:
                longest = max(longest, after - since)
            asked = min(asked, invoked)
            after = before
    return longest


def p99_ms(history: Sequence[Operation], begun: float, ended: float) -> float:
    """The 99th percentile of what writes took that were asked for in that time; 0 without any."""
    took = sorted(
        (each.returned - each.invoked) / 1e6
        for each in history
        if each.returned is not None
        and begun <= each.invoked / 1e9 <= ended
        and (each.key.partition(".")[0], each.kind) in WRITES
    )
    return round(took[len(took) * 99 // 100], 1) if took else 0.0
