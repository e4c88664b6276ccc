"""The long run: every class of fault some times over, in scenarios of a few faults each.

What comes next follows from the seed and from what was seen so far, so a run that was stopped goes
on where it was. Faults of one kind of cluster go together: a cluster takes half a minute to start.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random
from typing import Any, Final

from tests.nemesis import dumps, faults, harder, spark
from tests.nemesis.faults import Fault
from tests.nemesis.load import Load
from tests.nemesis.run import Run, Say, scenario
from tests.nemesis.world import GROUPS, World, world
from tests.proof.record import Record

PER_SCENARIO: Final = 4  #: faults over one load
FREEZES: Final = (0.1, 2.0, 8.0, 0.5, 10.0, 1.4, 4.0)  #: seconds, by turns

Make = Callable[[World, Random, Load, int], Fault]
"""The fault of a class; the number is how often the class was seen before."""


def _group(rng: Random) -> str:
    return rng.choice(GROUPS)


PLAIN: Final[dict[str, Make]] = {
    "leader": lambda w, rng, _, n: faults.KillLeader(w, rng, _group(rng)),
    "follower": lambda w, rng, _, n: faults.KillFollower(w, rng, _group(rng)),
    "node": lambda w, rng, _, n: faults.KillNode(w, rng, _group(rng)),
    "frozen-node": lambda w, rng, _, n: faults.FreezeNode(w, rng, _group(rng)),
    "gcs": lambda w, rng, _, n: faults.KillGcs(w, rng, hold=10.0 if n % 3 else 90.0),
    "head": lambda w, rng, _, n: faults.KillHead(w, rng),
    "freeze": lambda w, rng, _, n: faults.FreezeLeader(
        w, rng, _group(rng), seconds=FREEZES[n % len(FREEZES)], hold=0.0
    ),
    "disk": lambda w, rng, _, n: faults.WipeReplica(w, rng, _group(rng)),
    "transfer": lambda w, rng, _, n: faults.TransferLeader(w, rng, _group(rng)),
    "controller": lambda w, rng, _, n: faults.KillController(w, rng, "metadata-0"),
    "frozen-controller": lambda w, rng, _, n: faults.FreezeController(w, rng, "metadata-0"),
    "frozen-seat": lambda w, rng, _, n: faults.FreezeSeat(w, rng, _group(rng)),
    "leader-without-gcs": lambda w, rng, _, n: harder.KillLeaderWithoutGcs(w, rng, _group(rng)),
    "placement": lambda w, rng, _, n: harder.RemovePlacement(w, rng, _group(rng)),
    "driver": lambda w, rng, _, n: harder.DriverExit(w, rng),
    "client": lambda w, rng, load, n: harder.KillClient(w, rng, load=load),
    "spark": lambda w, rng, _, n: spark.SparkBeside(w, rng),
    "spark-executor": lambda w, rng, _, n: spark.KillExecutor(w, rng),
    "spark-master": lambda w, rng, _, n: spark.KillAppMaster(w, rng),
    "spark-memory": lambda w, rng, _, n: spark.StarveSpark(w, rng),
    "spark-node": lambda w, rng, _, n: spark.LoseSparkNode(w, rng, _group(rng)),
    "export": lambda w, rng, _, n: spark.KillExportReplica(w, rng),
}
"""On a cluster like any other."""

WIRED: Final[dict[str, Make]] = {
    "calls": lambda w, rng, _, n: harder.FailingCalls(w, rng),
    "overtaking": lambda w, rng, _, n: harder.OvertakingCalls(w, rng),
}
"""On a cluster whose actor calls fail and overtake each other."""

CLASSES: Final = {**PLAIN, **WIRED}


def go_on(
    record: Record,
    *,
    names: Sequence[str],
    times: int,
    minutes: float,
    seed: int,
    data: Path,
    say: Say,
) -> None:
    """Carry out what is missing until every class was seen `times` times and the time is up."""
    figures = record.figures
    for name, start in (
        *(("operations", 0), ("unknown", 0), ("keys", 0), ("told", 0)),
        *(("rows_compared", 0), ("entries_compared", 0)),
        *(("lost", 0), ("doubled", 0), ("illegal", 0), ("slowest_s", 0.0), ("episodes", [])),
    ):
        figures.setdefault(name, start)
    while missing := _missing(record, names, times, minutes):
        kind = PLAIN if missing[0] in PLAIN else WIRED
        environment = {} if kind is PLAIN else harder.WIRES
        with world(data / "cluster", **environment) as running:
            say(f"a cluster runs at {running.cluster.address}")
            while missing and missing[0] in kind:
                chosen = [each for each in missing if each in kind][:PER_SCENARIO]
                _one(running, record, chosen, seed, data, say)
                missing = _missing(record, names, times, minutes)
        record.advance(entries_compared=dumps.same_logs(data / "cluster"))
    record.finish()


def _missing(record: Record, names: Sequence[str], times: int, minutes: float) -> list[str]:
    """The classes that are to come, in order: those that were seen least often first."""
    record.save()
    seen = Counter(each["class"] for each in record.figures["episodes"])
    short = [name for name in names if seen[name] < times]
    if not short and record.seconds >= minutes * 60:
        return []
    order = [name for kind in (PLAIN, WIRED) for name in kind if name in (short or names)]
    return sorted(order, key=lambda name: (name in WIRED, seen[name]))


def _one(
    running: World, record: Record, names: Sequence[str], seed: int, data: Path, say: Say
) -> None:
    """One scenario, and what it came to in the record."""
    figures = record.figures
    rng = Random(f"{seed} {record.done}")
    order = rng.sample(list(names), len(names))
    seen = Counter(each["class"] for each in figures["episodes"])
    say(f"scenario {record.done}: {', '.join(order)}")
    run: Run = scenario(
        running,
        lambda load: [CLASSES[name](running, rng, load, seen[name]) for name in order],
        data / "histories",
        tenant=f"run-{record.done}",
        seed=rng.randrange(1 << 30),
        say=say,
    )
    verdict = run.verdict
    for name, episode in zip(order, run.episodes, strict=True):
        figures["episodes"].append({"class": name, "scenario": record.done, **asdict(episode)})
    figures["slowest_s"] = max(figures["slowest_s"], run.slowest_s)
    record.advance(
        1,
        operations=verdict.operations,
        unknown=verdict.unknown,
        keys=verdict.keys,
        told=verdict.told,
        lost=len(verdict.lost),
        doubled=len(verdict.doubled),
        illegal=len(verdict.illegal),
        rows_compared=sum(rows for _, rows in run.compared.values()),
    )
    say(f"  {verdict.operations} operations, {verdict.unknown} unknown, {verdict.keys} keys")
    if not verdict.fine:
        kept = data / f"failed-{record.done - 1}.json"
        kept.write_text(json.dumps(asdict(verdict), indent=2))
        raise AssertionError(f"the history is wrong, see {kept} and {data / 'histories'}")


def by_class(episodes: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each class: how often it was seen, its windows, recoveries and elections."""
    found: dict[str, dict[str, Any]] = {}
    for name in CLASSES:
        mine = [each for each in episodes if each["class"] == name]
        if mine:
            found[name] = {
                "fault": mine[0]["fault"],
                "seen": len(mine),
                "window_ms": spread([each["window_ms"] for each in mine]),
                "recovery_s": spread([each["whole"] - each["healing"] for each in mine]),
                "elections": sum(each["elections"] for each in mine),
                "p99_ms": spread([each["p99_ms"] for each in mine]),
                "calm_p99_ms": spread([each["calm_p99_ms"] for each in mine]),
            }
    return found


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50 and the largest."""
    ordered = sorted(values)
    return {"p50": round(ordered[len(ordered) // 2], 2), "max": round(ordered[-1], 2)}
