"""The rows of the table: what is measured, in what unit, and what is to be reached."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Literal

from bench import failover, isolation, workloads
from metaray.client import Client

EVERYONE: Final = "failover-all"

Measure = Callable[[Client, float], Awaitable[dict[str, float]]]
"""One round of so many seconds: figures by name; the row's own figure is called `figure`."""


@dataclass(frozen=True, slots=True)
class Load:
    """The same for a peer, as the programs of `bench/peers/load` are told it."""

    kind: Literal["put", "commit", "read", "local-read", "failover"]
    callers: int
    batch: int = 0  #: commit: operations in one transaction

    def word(self, seconds: float, pid: int = 0) -> str:
        """For so many seconds; failover: at most so many, and the process of the leader."""
        last = self.batch or pid
        return f"{self.kind}:{self.callers}:{seconds}" + (f":{last}" if last else "")


@dataclass(frozen=True, slots=True)
class Row:
    """One row. `must` and `aim` are ratios against the better of the peers; above 1 is ahead.

    Of an `absolute` row they are bounds of its own figure, in its unit.
    """

    name: str
    says: str
    unit: str
    better: Literal["higher", "lower"]
    group: str  #: whose replicas do the work, for the phases
    must: float
    aim: float
    measure: Measure
    load: Load | None = None  #: None: no peer has the like
    absolute: bool = False


def _rate(run: Callable[[Client, float], Awaitable[workloads.Sample]]) -> Measure:
    async def measure(client: Client, seconds: float) -> dict[str, float]:
        sample = await run(client, seconds)
        return {
            "figure": sample.ops_per_s,
            "p50_ms": sample.p50_ms,
            "p99_ms": sample.p99_ms,
            "errors": float(sample.errors),
        }

    return measure


def failover_figures(first_ms: float, all_ms: float, *, everyone: bool) -> dict[str, float]:
    """Of one killed leader, for the row of the first write or for that of every writer."""
    figure = all_ms if everyone else first_ms
    return {"figure": figure, "first_ms": first_ms, "all_ms": all_ms}


def _failover(name: str, says: str, must: float, aim: float) -> Row:
    async def measure(client: Client, _: float) -> dict[str, float]:
        found = await failover.kill_leader(client)
        return failover_figures(found.first_ms, found.all_ms, everyone=name == EVERYONE)

    load = Load("failover", failover.WRITERS)
    return Row(name, says, "ms", "lower", failover.GROUP, must, aim, measure, load)


def _put(callers: int, must: float, aim: float) -> Row:
    return Row(
        f"put-{callers}",
        f"write, {callers} outstanding",
        "ops/s",
        "higher",
        "metadata-0",
        must,
        aim,
        _rate(lambda client, seconds: workloads.put(client, callers, seconds)),
        Load("put", callers),
    )


def _commit(batch: int) -> Row:
    return Row(
        f"commit-{batch}",
        f"offset commits, batches of {batch}, 8 in flight",
        "ops/s",
        "higher",
        "offset-0",
        1.5,
        2.5,
        _rate(lambda client, seconds: workloads.commit(client, batch, 8, seconds)),
        Load("commit", 8, batch),
    )


def _read(callers: int, must: float, aim: float, *, stale: bool) -> Row:
    return Row(
        f"{'local-' if stale else ''}read-{callers}",
        f"{'local' if stale else 'linearizable'} read, {callers} outstanding",
        "ops/s",
        "higher",
        "metadata-0",
        must,
        aim,
        _rate(lambda client, seconds: workloads.read(client, callers, seconds, stale=stale)),
        Load("local-read" if stale else "read", callers),
    )


ROWS: Final = (
    _put(1, 1.1, 1.6),
    _put(100, 5.0, 10.0),
    _put(1_000, 6.0, 12.0),
    _commit(128),
    _commit(1_000),
    _read(1, 1.3, 2.0, stale=False),
    _read(100, 4.0, 8.0, stale=False),
    _read(1, 1.0, 2.0, stale=True),
    _read(100, 2.0, 5.0, stale=True),
    Row(
        "sessions-1000",
        "sessions opened in batches of 1 000, 8 in flight",
        "ops/s",
        "higher",
        "mqtt-0",
        100_000.0,
        200_000.0,
        _rate(lambda client, seconds: workloads.open_sessions(client, 1_000, 8, seconds)),
        absolute=True,
    ),
    Row(
        "isolation",
        "p99 of metadata writes while offset-0 is saturated, against idle",
        "times",
        "lower",
        "metadata-0",
        3.0,
        2.0,
        isolation.beside("saturate", "commits_per_s"),
        absolute=True,
    ),
    Row(
        "job",
        "p99 of metadata writes while Spark jobs run on the cluster, against idle",
        "times",
        "lower",
        "metadata-0",
        2.0,
        1.5,
        isolation.beside("job", "reports"),
        absolute=True,
    ),
    _failover("failover", "kill -9 of the leader, first write", 2.0, 4.0),
    _failover(EVERYONE, "kill -9 of the leader, all writers", 2.5, 4.3),
)
"""In the order of the table. What no peer has the like of has absolute bounds."""
