"""Rounds over systems, and what they come to: medians, and metaray against the better peer.

The cores of a machine are shared, so systems take turns: in its turn a system is started with
nothing on its disks, measured on every row, and ended before the next one starts. Each round begins
with another system, so what drifts on the machine meets all alike. A fresh start a row would take
longer than the row; one start for the whole run would leave idle systems beside the one measured,
and idle ones send heartbeats, collect garbage and sync.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, Final

from bench import run
from bench.failover import SETTLE_SECONDS
from bench.peers import Servers, driver
from bench.profile import Profiles
from bench.rows import EVERYONE, Load, Row, failover_figures
from bench.run import RUN_IN, RUN_IN_SECONDS, Figures, Progress

OWN: Final = "metaray"

Turn = Callable[[Path], Figures]
"""One system's turn in a round, with an empty directory for all it keeps."""


def results(
    rows: Sequence[Row],
    *,
    rounds: int,
    seconds: float,
    peers: Sequence[type[Servers]],
    data: Path,
    progress: Progress,
    profiles: Profiles | None = None,
) -> Iterator[dict[str, Any]]:
    """What is known after each round; without peers after all rounds, on one cluster."""
    described: dict[str, Any] = {
        "at": datetime.now().astimezone().isoformat(timespec="seconds"),
        "machine": run.machine(),
        "versions": run.versions(),
        "seconds": seconds,
    }
    for peer in peers:
        described["versions"] |= peer.versions()

    def own(folder: Path, rounds: int = 1) -> Figures:
        return run.measure(
            rows,
            rounds=rounds,
            seconds=seconds,
            data=folder,
            token=data / "token",
            progress=lambda text: progress(f"{OWN} {text}"),
            profiles=profiles,
        )

    if not peers:
        with ending_when_told():
            found = {OWN: own(data / OWN, rounds)}
        yield described | {"rows": [summed(row, found) for row in rows]}
        return
    turns: dict[str, Turn] = {OWN: own}
    for peer in peers:
        progress(f"{peer.name}: building what loads it, unless it was built before")
        turns[peer.name] = _peer(peer, peer.build(), rows, seconds, progress)
    found = {name: {row.name: [] for row in rows} for name in turns}
    with ending_when_told():
        for number in range(rounds):
            for name in order(list(turns), number):
                progress(f"round {number + 1}/{rounds}: {name}")
                folder = data / f"{name}-{number + 1}"
                folder.mkdir()
                for row, figures in turns[name](folder).items():
                    found[name][row] += figures
            yield described | {"rows": [summed(row, found) for row in rows]}


def order(names: Sequence[str], number: int) -> list[str]:
    """Who takes turns in this round, from 0: each round begins with another one."""
    first = number % len(names)
    return [*names[first:], *names[:first]]


def _peer(
    peer: type[Servers],
    load: Sequence[str],
    rows: Sequence[Row],
    seconds: float,
    progress: Progress,
) -> Turn:
    shared = [(row, row.load) for row in rows if row.load is not None]
    rates = [(row, each) for row, each in shared if each.kind != "failover"]
    kills = [(row, each) for row, each in shared if each.kind == "failover"]

    def turn(folder: Path) -> Figures:
        found: Figures = {}

        def note(row: Row, figures: dict[str, float]) -> None:
            found[row.name] = [figures]
            progress(f"{peer.name} {row.name}: {figures['figure']:,.1f} {row.unit}")

        with peer(folder) as servers:
            words = [each.word(RUN_IN_SECONDS) for each in RUN_IN]
            words += [each.word(seconds) for _, each in rates]
            with driver.running(load, servers, words) as line:
                for _ in RUN_IN:
                    line(RUN_IN_SECONDS)
                for row, _ in rates:
                    told = line(seconds)
                    note(row, {"figure": told.pop("ops_per_s"), **told})
            for row, each in kills:
                note(row, kill_leader(servers, load, each, everyone=row.name == EVERYONE))
        return found

    return turn


def kill_leader(
    servers: Servers, load: Sequence[str], each: Load, *, everyone: bool
) -> dict[str, float]:
    """The program that writes kills the leader as well, and so needs no second clock."""
    servers.start_missing()
    process = servers.leader().process
    assert process is not None, "who leads was started"
    word = each.word(SETTLE_SECONDS, process.pid)
    with driver.running(load, servers, [word]) as line:
        told = line(SETTLE_SECONDS)
    return failover_figures(told["first_ms"], told["all_ms"], everyone=everyone)


def summed(row: Row, systems: Mapping[str, Figures]) -> dict[str, Any]:
    """A row of `bench.json`: every round of every system that has it, medians, the ratio."""
    line: dict[str, Any] = {
        "workload": row.name,
        "says": row.says,
        "unit": row.unit,
        "better": row.better,
        "must": row.must,
        "aim": row.aim,
        "absolute": row.absolute,
        "ratio": None,
    }
    for name, figures in systems.items():
        if rounds := figures[row.name]:
            line[name] = _medians(rounds)
    peers = [line[name]["median"] for name in systems if name != OWN and name in line]
    if peers:
        line["ratio"] = ratio(row.better, line[OWN]["median"], peers)
    return line


def _medians(rounds: list[dict[str, float]]) -> dict[str, Any]:
    names = sorted({name for each in rounds for name in each})
    medians = {name: median(each[name] for each in rounds if name in each) for name in names}
    return {"rounds": rounds, "median": medians["figure"], "medians": medians}


def ratio(better: str, own: float, peers: Sequence[float]) -> float | None:
    """metaray against the better peer: above 1 is ahead, whichever direction is better.

    None where one of the two did nothing at all in its time.
    """
    if better == "higher":
        return own / max(peers) if max(peers) > 0 else None
    return min(peers) / own if own > 0 else None


@contextmanager
def ending_when_told() -> Iterator[None]:
    """SIGTERM ends as Ctrl-C does: by the way out, past everything that was started."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
