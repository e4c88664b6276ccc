"""The story of the demo, in order: parts are steps, claims are checks, one summary ends it."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import ray
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from actors.config import ClusterConfig
from jobs import tables as job_tables
from jobs.catalogue import DEFAULT, JOBS
from jobs.sources import Sources
from metaray import local, reporting
from metaray.client import Client, join_cluster
from metaray.demo.brokers import Broker, free_port
from metaray.demo.faults import kill_leader
from metaray.demo.mqtt import Fleet, MqttReport
from metaray.demo.mqtt_member import Address
from metaray.demo.offsets import Consumers
from metaray.demo.steps import Steps
from metaray.service import start_service
from state_machines.mqtt.session import ListSessions
from state_machines.mqtt.topic import CreateTopics

NODES = 3
COMMITS_MIN = 200_000  #: acknowledged offset commits, at least
CLIENTS = 64
DROPPED = 12
WILL_DELAY_S = 3.0
KEYS = 500  #: key-value pairs written and read back
SEED = 20_26


@dataclass(slots=True)
class Summary:
    """What `--json` writes."""

    ok: bool = False
    seconds: float = 0.0
    written: dict[str, int] = field(default_factory=dict)
    verified: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    unknown: int = 0
    failovers: list[dict[str, Any]] = field(default_factory=list)
    broker_restart_seconds: float = 0.0
    mqtt: dict[str, Any] = field(default_factory=dict)
    report: str = ""
    dashboard: str = ""
    address: str = ""
    steps: dict[str, float] = field(default_factory=dict)
    checks: int = 0
    failures: list[str] = field(default_factory=list)


def run(
    data: Path, out: Path, *, keep: bool, console: Console, json_file: Path | None = None
) -> Summary:
    """Run everything. Whatever was started is ended, whatever happens, unless `keep`. Raises
    DataInUse if a cluster runs over `data`: it may be somebody's, and leaders are killed here."""
    begun = time.monotonic()
    steps = Steps(console)
    summary = Summary()
    with ExitStack() as ending:
        try:
            _story(data, out, keep, steps, summary, ending)
            summary.ok = not steps.failures
        except BaseException as error:  # an interrupt, too, is a run that did not hold
            steps.check(False, f"{type(error).__name__}: {error}".removesuffix(": "))
            raise
        finally:
            summary.seconds = round(time.monotonic() - begun, 1)
            summary.steps, summary.checks = steps.seconds, steps.checks
            summary.failures = steps.failures
            if json_file is not None:
                json_file.parent.mkdir(parents=True, exist_ok=True)
                json_file.write_text(json.dumps(asdict(summary), indent=2) + "\n")
            _show(console, summary)
    return summary


def _story(
    data: Path, out: Path, keep: bool, steps: Steps, summary: Summary, ending: ExitStack
) -> None:
    if (running := local.find(data)) is not None:
        raise local.DataInUse(
            f"a cluster already runs on {data} at {running.address}, and the demo wants one of its "
            f"own; end it with `metaray down --data {data}` or name another directory with --data"
        )
    with steps.step(f"{NODES} Ray nodes") as note:
        cluster = local.up(data, NODES)
        if not keep:
            ending.callback(local.down, data)
        note.text = f"{cluster.address}, dashboard {cluster.dashboard}"
    summary.address, summary.dashboard = cluster.address, cluster.dashboard
    with steps.step("joined as a driver"):
        join_cluster(cluster.address, data)
        ending.callback(ray.shutdown)
    for name, seconds, leader in start_service(ClusterConfig()):
        steps.seconds[name] = round(seconds, 3)
        steps.console.print(
            f"[green]✓[/] {name} [cyan]{seconds:.1f} s[/]  [dim]{leader}[/]", highlight=False
        )
    brokers = [
        Broker(name, free_port(), cluster.address, WILL_DELAY_S, data / "logs" / f"{name}.log")
        for name in ("broker-a", "broker-b")
    ]
    for broker in brokers:
        ending.callback(broker.stop)
        with steps.step(f"MQTT {broker.name}") as note:
            broker.start()
            note.text = f"127.0.0.1:{broker.port}"
    addresses = [Address(name=each.name, port=each.port) for each in brokers]
    fleet = ending.enter_context(Fleet(addresses, clients=CLIENTS, will_delay_s=WILL_DELAY_S))
    with steps.step(f"{CLIENTS} MQTT clients with sessions, subscriptions, retained, wills"):
        fleet.connect()
    consumers = Consumers(Random(SEED))  # noqa: S311 - a run is its seed
    asyncio.run(_traffic(data, cluster.address, brokers, fleet, consumers, steps, summary))
    with steps.step("report by Spark on the same cluster") as note:
        watermarks = out / "watermarks.parquet"
        consumers.write_watermarks(watermarks, consumers.rng)
        reports = reporting.run(
            [JOBS[name] for name in DEFAULT],
            out,
            Sources(files={"watermarks": watermarks}),
            address=cluster.address,
        )
        note.text = f"{reports[0].engine}, {out}"
    summary.report = str(out)
    made = {report.job.name: report for report in reports}
    counted = made["lag"].results.sum("groups", "commits")
    steps.check(
        counted >= consumers.acknowledged,
        f"the report counts {counted} commits, {consumers.acknowledged} were acknowledged",
    )
    sessions = made["sessions"].totals["sessions"] or 0
    steps.check(sessions >= CLIENTS - DROPPED, f"the report counts {sessions} sessions")
    for report in reports:
        for part in job_tables.render(report):
            steps.console.print(part)


async def _traffic(
    data: Path,
    address: str,
    brokers: Sequence[Broker],
    fleet: Fleet,
    consumers: Consumers,
    steps: Steps,
    summary: Summary,
) -> None:
    """Commits and MQTT traffic go on while leaders die and a broker comes back."""
    async with Client(address=address, data=data) as client:
        keys = await _write_keys(client, steps)
        stop = asyncio.Event()
        committing = asyncio.create_task(consumers.run(client, COMMITS_MIN, stop))
        await consumers.reached(COMMITS_MIN // 10, committing)
        dropped = await asyncio.to_thread(fleet.drop, DROPPED)
        steps.say(
            f"{len(dropped)} clients dropped without a goodbye; wills due in {WILL_DELAY_S} s"
        )
        for group, write in (
            ("metadata-0", lambda: client.put("demo/after-failover", b"1")),
            ("mqtt-0", lambda: client.call(_touch())),
        ):
            with steps.step(f"kill -9 of the leader of {group}, in mid-traffic") as note:
                failover = await kill_leader(client.seats, group, write)
                note.text = (
                    f"{failover.killed} (pid {failover.pid}); first write after "
                    f"{failover.first_write_ms:.0f} ms at {failover.leader}"
                )
                summary.failovers.append(asdict(failover))
        await _restart_broker(brokers[0], fleet, steps, summary)
        with steps.step("wills of the dropped clients"):
            await asyncio.to_thread(fleet.await_wills)
        stop.set()
        with steps.step(f"at least {COMMITS_MIN:,} offset commits") as note:
            await committing
            note.text = f"{consumers.acknowledged:,} in {consumers.calls:,} batches"
        await _verify(client, keys, consumers, steps, summary)
        _judge_mqtt(fleet.report(), steps, summary)


async def _write_keys(client: Client, steps: Steps) -> dict[str, bytes]:
    keys = {f"demo/{number:05}": os.urandom(64) for number in range(KEYS)}
    with steps.step(f"{KEYS} keys"):
        await asyncio.gather(*(client.put(key, value) for key, value in keys.items()))
    return keys


def _touch() -> CreateTopics:
    """A small write to the mqtt group."""
    return CreateTopics(names=(f"demo/probe/{time.monotonic_ns()}",))


async def _restart_broker(broker: Broker, fleet: Fleet, steps: Steps, summary: Summary) -> None:
    with steps.step(f"{broker.name} killed and started again") as note:
        await asyncio.to_thread(fleet.before_restart, broker.name)
        await asyncio.to_thread(broker.kill)
        seconds = await asyncio.to_thread(broker.start)
        summary.broker_restart_seconds = round(seconds, 3)
        await asyncio.to_thread(fleet.after_restart, broker.name)
        note.text = f"listening again after {seconds:.1f} s"


async def _verify(
    client: Client, keys: dict[str, bytes], consumers: Consumers, steps: Steps, summary: Summary
) -> None:
    with steps.step("everything acknowledged is read back") as note:
        verified, wrong = await consumers.verify(client)
        found = await asyncio.gather(*(client.get(key) for key in keys))
        lost = [
            key
            for (key, value), entry in zip(keys.items(), found, strict=True)
            if entry is None or entry.value != value
        ]
        page = await client.call(ListSessions(limit=10_000))
        note.text = f"{verified:,} commits, {len(keys) - len(lost)} keys"
    doubtful = sum(consumers.commits.get(key, 0) for key in consumers.doubtful)
    summary.written = {"commits": consumers.acknowledged, "keys": len(keys)}
    summary.verified = {
        "commits": verified,
        "keys": len(keys) - len(lost),
        "sessions": len(page.sessions),
    }
    summary.unknown = consumers.unknown
    summary.lost = len(wrong) + len(lost)
    steps.check(not wrong, f"{len(wrong)} offsets differ: {wrong[:3]}")
    steps.check(not lost, f"{len(lost)} keys are lost: {lost[:3]}")
    steps.check(
        verified + doubtful >= consumers.acknowledged >= COMMITS_MIN,
        f"{verified} of {consumers.acknowledged} commits verified",
    )


def _judge_mqtt(report: MqttReport, steps: Steps, summary: Summary) -> None:
    for check in report.checks:
        if steps.check(check.ok, f"{check.name}: {check.detail}"):
            steps.say(f"[green]✓[/] {check.name}  [dim]{escape(check.detail)}[/]")
    shown = asdict(report)
    summary.mqtt = shown


def _show(console: Console, summary: Summary) -> None:
    table = Table(title="summary", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    table.add_row("written", _counts(summary.written))
    table.add_row("verified", _counts(summary.verified))
    table.add_row("lost", f"[{'red' if summary.lost else 'green'}]{summary.lost}[/]")
    if summary.unknown:
        table.add_row("unknown outcome", f"{summary.unknown:,}")
    for each in summary.failovers:
        table.add_row(
            f"failover {each['group']}", f"first write after {each['first_write_ms']:.0f} ms"
        )
    table.add_row("report", escape(summary.report) or "none")
    table.add_row("Ray dashboard", summary.dashboard or "none")
    word = "[green]every check held[/]" if summary.ok else f"[red]{len(summary.failures)} failed[/]"
    table.add_row("checks", f"{summary.checks}: {word}")
    table.add_row("time", f"{summary.seconds:.0f} s")
    console.print(table)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items()) or "nothing"
