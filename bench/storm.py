"""The reconnect storm: every session comes back at the same moment, and nobody else may notice.

    metaray bench storm --sessions 100000 --brokers 4

All sessions exist and belong to brokers that are dead. Then every broker that is left, each a
process of its own, opens its part of them at once, a call each. Meanwhile this process writes
metadata, sends a broker's heartbeats, and opens a few sessions of another tenant one after the
other, again and again. Afterwards every row is read: each session must be at the broker, and have
the epoch, that its client was told.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import ray
import uvloop
from rich.table import Table

from actors import calls
from actors.config import ClusterConfig
from bench import other
from bench.run import NODES, machine, versions
from bench.storm_broker import TIMEOUT_MS, Heartbeats, Returned
from bench.workloads import VALUE
from metaray import local
from metaray.client import Client, connect, join_cluster
from metaray.service import start_service
from state_machines.errors import MetarayError
from state_machines.mqtt.session import ListSessions, SessionItem
from state_machines.mqtt.session_columns import OpenSessions

SESSIONS_MAX: Final = 10_000_000
BROKERS_MAX: Final = 64
MANY: Final = "many"  #: a tenant
FEW: Final = "few"  #: the other
FEW_SESSIONS: Final = 100
FEW_CALLERS: Final = 4
CANARIES: Final = 2  #: callers that write metadata
BATCH: Final = 1_000
QUIET_SECONDS: Final = 5.0  #: of canaries before the storm
CALL_SECONDS: Final = 10.0
REPORT_SECONDS: Final = 120.0  #: for a broker to say what each of its sessions came to
STORM_SECONDS: Final = TIMEOUT_MS / 1_000 + 60.0

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Times:
    """How long some calls took, in milliseconds."""

    calls: int
    p50_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, took: Sequence[float]) -> Times:
        """From seconds."""
        if not took:
            return cls(0, 0.0, 0.0, 0.0)
        ordered = sorted(took)
        p50, p99 = [ordered[len(ordered) * percent // 100] * 1_000 for percent in (50, 99)]
        return cls(len(ordered), p50, p99, ordered[-1] * 1_000)


@dataclass(frozen=True, slots=True)
class Storm:
    """What a storm came to."""

    sessions: int
    brokers: int
    expiry_s: int  #: of the sessions; 0: each ends with its connection and begins anew
    seconds: float  #: until all were back
    reconnects: Times
    few: Times  #: of the tenant with few sessions
    overloaded: int  #: calls that were told to come back later
    lost: int  #: sessions that are not where, or not as, their clients were told
    failed: int  #: calls that gave up
    leader_changes: int
    heartbeats: int
    heartbeats_missed: int
    heartbeat_longest_ms: float
    puts_before: Times
    puts_during: Times
    canary_gap_ms: float  #: longest time without an acknowledged write of metadata
    canary_errors: int
    loop_late_ms: dict[str, float]  #: by group: longest time that its leader's loop was held
    why: str = ""

    @property
    def ok(self) -> bool:
        """Whether nobody was harmed."""
        harm = self.lost, self.failed, self.leader_changes, self.heartbeats_missed
        return not any(harm) and not self.canary_errors


@dataclass(slots=True)
class Canary:
    """Writers of metadata, one write after the other each."""

    client: Client
    took: list[float] = field(default_factory=list)
    gap: float = 0.0
    errors: int = 0

    async def sing(self, until: asyncio.Event) -> None:
        """Write until told to stop."""
        last = time.monotonic()

        async def write(number: int) -> None:
            nonlocal last
            for turn in itertools.count():
                if until.is_set():
                    return
                begun = time.monotonic()
                try:
                    await self.client.put(f"canary/{number}/{turn % 100}", VALUE)
                except MetarayError:
                    self.errors += 1
                    continue
                now = time.monotonic()
                self.took.append(now - begun)
                self.gap, last = max(self.gap, now - last), now

        await asyncio.gather(*(write(number) for number in range(CANARIES)))


def run(
    *, sessions: int, brokers: int, expiry_s: int, data: Path, progress: Progress
) -> dict[str, Any]:
    """A storm on a cluster of three nodes that is made for it and ended. What `write` writes."""
    progress("a local cluster starts")
    cluster = local.up(data, NODES)
    try:
        join_cluster(cluster.address, data)
        for name, took, leader in start_service(ClusterConfig()):
            progress(f"{name} {took:.1f} s, led by {leader}")
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            found = runner.run(storm(sessions, brokers, expiry_s, cluster.address, data, progress))
    finally:
        ray.shutdown()
        local.down(data)
    return {
        "machine": machine(),
        "versions": versions(),
        "storm": asdict(found) | {"ok": found.ok},
    }


async def storm(
    sessions: int,
    brokers: int,
    expiry_s: int,
    address: str | None,
    data: Path | None,
    progress: Progress,
) -> Storm:
    """A storm on the cluster there is. It leaves its rows behind."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(address, data=data, timeout_ms=TIMEOUT_MS))
        begun = time.monotonic()
        for tenant, count in ((MANY, sessions), (FEW, FEW_SESSIONS)):
            await _fill(client, tenant, count, expiry_s)
        progress(f"{sessions:,} sessions of dead brokers in {time.monotonic() - begun:.1f} s")
        words = [
            (f"broker-{each}", MANY, *map(str, (expiry_s, each, brokers, sessions)))
            for each in range(brokers)
        ]
        others = await asyncio.gather(
            *(
                stack.enter_async_context(other.started(client, "bench.storm_broker", *each))
                for each in words
            )
        )
        progress(f"{brokers} brokers are ready")
        beats = Heartbeats(client, "broker-few")
        await beats.begin()
        before = await _puts(client, asyncio.sleep(QUIET_SECONDS))
        leaders = await asyncio.to_thread(_leaders, client)
        for each in others:
            each.begin()
        few = Returned(client, FEW, "broker-few", expiry_s)

        async def until_over() -> None:
            over = asyncio.Event()
            slowly = asyncio.create_task(_come_back_slowly(few, over))
            try:
                await asyncio.gather(*(each.said(STORM_SECONDS) for each in others))
            finally:
                over.set()
                await slowly

        during = await _puts(client, until_over())
        await beats.end()
        for each in others:
            each.begin()
        told = await asyncio.gather(*(each.said(REPORT_SECONDS) for each in others))
        for each in others:
            await each.over()
        progress("all are back; every session is looked at")
        after = await asyncio.to_thread(_leaders, client)
        lost = await _lost(client, sessions, told, few, words)
        took = [seconds for each in told for seconds in each["took"]]
        return Storm(
            sessions=sessions,
            brokers=brokers,
            expiry_s=expiry_s,
            seconds=max(each["last"] for each in told) - min(each["begun"] for each in told),
            reconnects=Times.of(took),
            few=Times.of(few.took),
            overloaded=client.overloaded + sum(each["overloaded"] for each in told),
            lost=lost,
            failed=sum(each["errors"] for each in told),
            leader_changes=sum(
                after[group]["term"] != status["term"] or after[group]["seat"] != status["seat"]
                for group, status in leaders.items()
            ),
            heartbeats=beats.sent + sum(each["heartbeats"] for each in told),
            heartbeats_missed=beats.missed + sum(each["heartbeats_missed"] for each in told),
            heartbeat_longest_ms=max(
                beats.longest_ms, *(each["heartbeat_longest_ms"] for each in told)
            ),
            puts_before=Times.of(before.took),
            puts_during=Times.of(during.took),
            canary_gap_ms=during.gap * 1_000,
            canary_errors=before.errors + during.errors,
            loop_late_ms={
                group: status["counters"]["loop_late_seconds"] * 1_000
                for group, status in after.items()
            },
            why=next((each["error"] for each in told if each["error"]), ""),
        )


async def _fill(client: Client, tenant: str, count: int, expiry_s: int) -> None:
    """Sessions that belong to brokers that are gone."""
    for first in range(0, count, BATCH):
        items = [
            SessionItem(client_id=f"s-{each}", broker=f"dead-{each % 3}", expiry_s=expiry_s)
            for each in range(first, min(first + BATCH, count))
        ]
        await client.call(OpenSessions.of(items, tenant=tenant))


async def _puts(client: Client, while_this: Any) -> Canary:
    """Canaries as long as something else takes."""
    canary, over = Canary(client), asyncio.Event()
    singing = asyncio.create_task(canary.sing(over))
    try:
        await while_this
    finally:
        over.set()
        await singing
    return canary


async def _come_back_slowly(few: Returned, over: asyncio.Event) -> None:
    """The sessions of the small tenant, one after the other for each of a few callers, all of them
    and then again, as long as the storm takes."""

    async def some(first: int) -> None:
        for each in itertools.cycle(range(first, FEW_SESSIONS, FEW_CALLERS)):
            if over.is_set() and f"s-{each}" in few.epochs:
                return
            await few.open(f"s-{each}", time.monotonic())

    await asyncio.gather(*(some(first) for first in range(FEW_CALLERS)))


def _leaders(client: Client) -> dict[str, dict[str, Any]]:
    """The status of each group's leader."""
    found = {}
    for group in client.groups():
        status = calls.leader_among(client.seats(group), CALL_SECONDS)
        if status is None:
            raise other.OtherFailed(f"{group} has no leader")
        found[group] = status
    return found


async def _lost(
    client: Client,
    sessions: int,
    told: Sequence[dict[str, Any]],
    few: Returned,
    words: Sequence[tuple[str, ...]],
) -> int:
    """Sessions that are not at the broker, or not of the epoch, that was told; or never told."""
    wanted = {
        (MANY, client_id): (word[0], epoch)
        for word, each in zip(words, told, strict=True)
        for client_id, epoch in each["epochs"].items()
    }
    wanted |= {(FEW, client_id): (few.broker, epoch) for client_id, epoch in few.epochs.items()}
    there: dict[tuple[str, str], tuple[str, int]] = {}
    for tenant in (MANY, FEW):
        after = b""
        while True:
            page = await client.call(ListSessions(tenant=tenant, after=after, limit=BATCH))
            there |= {
                (tenant, each.client_id): (each.broker, each.epoch)
                for each in page.sessions
                if each.connected
            }
            after = page.next
            if not after:
                break
    untold = sessions + FEW_SESSIONS - len(wanted)
    return untold + sum(there.get(key) != value for key, value in wanted.items())


def write(result: dict[str, Any], folder: Path) -> Path:
    """`storm.json` in this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "storm.json"
    path.write_text(json.dumps(result, indent=2) + "\n")
    return path


def table(result: dict[str, Any]) -> Table:
    """All of it, a line each."""
    found = result["storm"]
    shown = Table("reconnect storm", f"{found['sessions']:,} sessions, {found['brokers']} brokers")

    def times(name: str, each: dict[str, float]) -> None:
        shown.add_row(
            f"{name} p50 / p99 / max",
            f"{each['p50_ms']:,.1f} / {each['p99_ms']:,.1f} / {each['max_ms']:,.1f} ms",
        )

    def zero(name: str, value: int) -> None:
        shown.add_row(name, f"[{'red' if value else 'green'}]{value:,}[/]")

    rate = found["sessions"] / found["seconds"] if found["seconds"] else 0.0
    shown.add_row("all are back after", f"{found['seconds']:,.2f} s ({rate:,.0f} sessions/s)")
    times("reconnect", found["reconnects"])
    times("reconnect, tenant of few", found["few"])
    shown.add_row("calls told Overloaded", f"{found['overloaded']:,}")
    zero("sessions lost", found["lost"])
    zero("calls that failed", found["failed"])
    zero("leader changes", found["leader_changes"])
    zero(f"heartbeats missed of {found['heartbeats']:,}", found["heartbeats_missed"])
    shown.add_row("longest heartbeat", f"{found['heartbeat_longest_ms']:,.1f} ms")
    times("metadata put before", found["puts_before"])
    times("metadata put during", found["puts_during"])
    shown.add_row("longest time without a put", f"{found['canary_gap_ms']:,.1f} ms")
    zero("puts that failed", found["canary_errors"])
    for group, late in sorted(found["loop_late_ms"].items()):
        shown.add_row(f"longest hold of {group}'s loop", f"{late:,.1f} ms")
    return shown
