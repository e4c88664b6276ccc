"""Measure this machine, on a cluster that is made for it: `metaray bench`."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench import compare, recorded, report
from bench import storm as storms
from bench.peers import PEERS, need
from bench.profile import Profiles
from bench.rows import ROWS
from metaray.cli.app import app, cell, console, explained
from metaray.cli.paths import check_directory, path_option
from state_machines import names
from state_machines.errors import Invalid

OUT = Path("build")
ROUNDS_MAX, SECONDS_MAX = 1_000, 3_600.0


bench_app = typer.Typer(invoke_without_command=True)
app.add_typer(bench_app, name="bench")


@bench_app.callback()
@explained
def bench(
    context: typer.Context,
    rows: Annotated[str, typer.Option(help="Some rows, with commas; all without it.")] = "",
    rounds: Annotated[int, typer.Option(help="How often each row is measured.")] = 5,
    seconds: Annotated[float, typer.Option(help="How long a round of a row is.")] = 5.0,
    peers: Annotated[
        str, typer.Option(help="Measure beside these, in turns: etcd, zookeeper, or both.")
    ] = "",
    phases: Annotated[
        bool, typer.Option("--phases", help="Where the time of writes went.")
    ] = False,
    profile: Annotated[
        bool,
        typer.Option(
            "--profile", help="Run each row once more and sample it; stacks in OUT/profile."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    out: Annotated[Path, path_option("--out", help="Directory for bench.json, bench.png.")] = OUT,
) -> None:
    """Measure this machine: a cluster of three replicas is made for it and ended.

    With --peers etcd,zookeeper each round is one turn of each system, on a cluster of its own, and
    what is known is written after every round. A peer that is not installed is refused before
    anything starts, with the line that installs it. Without peers the figures of a row stand beside
    those that were recorded last in OUT, and are recorded for the next run.
    """
    if context.invoked_subcommand is not None:
        return
    chosen = _among("rows", rows, [row.name for row in ROWS]) or [row.name for row in ROWS]
    if not 1 <= rounds <= ROUNDS_MAX:
        raise Invalid(f"rounds: from 1 to {ROUNDS_MAX}, not {rounds}")
    if not 0.1 <= seconds <= SECONDS_MAX:
        raise Invalid(f"seconds: from 0.1 to {SECONDS_MAX:.0f}, not {seconds}")
    beside = [PEERS[name] for name in _among("peers", peers, list(PEERS))]
    need(beside)
    check_directory(out, "out")
    before = {} if beside else recorded.read(out)
    profiles = Profiles(out) if profile else None
    if profiles is not None:
        profiles.check()
    with tempfile.TemporaryDirectory(prefix="metaray-bench-") as data:
        for result in compare.results(
            [row for row in ROWS if row.name in chosen],
            rounds=rounds,
            seconds=seconds,
            peers=beside,
            data=Path(data),
            progress=lambda text: None if as_json else console.print(text, highlight=False),
            profiles=profiles,
        ):
            result = recorded.beside(result, before)
            values, picture = report.write(result, out)
    if not beside:
        recorded.write(result, out, before)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
        return
    # Where there is no terminal, a page is as wide as the tables need it.
    page = console if console.is_terminal else Console(width=report.PAGE_COLUMNS)
    page.print(report.table(result, phases=phases))
    if profiles is not None:
        page.print(profiles.table())
    console.print(cell(f"{values}, {picture}"), highlight=False)


@bench_app.command()
@explained
def storm(
    sessions: Annotated[int, typer.Option(help="Sessions that come back at once.")] = 100_000,
    brokers: Annotated[int, typer.Option(help="Brokers they come back to, a process each.")] = 4,
    expiry: Annotated[
        int,
        typer.Option(help="Seconds that sessions outlive connections; 0: they begin anew."),
    ] = 3_600,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
    out: Annotated[Path, path_option("--out", help="Directory for storm.json.")] = OUT,
) -> None:
    """A reconnect storm on a cluster made for it: every session comes back at the same moment.

    Ends with status 1 when a session was lost, a call failed, a leader changed or a heartbeat was
    missed.
    """
    if not 1 <= sessions <= storms.SESSIONS_MAX:
        raise Invalid(f"sessions: from 1 to {storms.SESSIONS_MAX}, not {sessions}")
    if not 1 <= brokers <= min(storms.BROKERS_MAX, sessions):
        raise Invalid(f"brokers: from 1 to {min(storms.BROKERS_MAX, sessions)}, not {brokers}")
    if not 0 <= expiry <= names.SECONDS_MAX:
        raise Invalid(f"expiry: from 0 to {names.SECONDS_MAX}, not {expiry}")
    check_directory(out, "out")
    with tempfile.TemporaryDirectory(prefix="metaray-storm-") as data, compare.ending_when_told():
        result = storms.run(
            sessions=sessions,
            brokers=brokers,
            expiry_s=expiry,
            data=Path(data),
            progress=lambda text: None if as_json else console.print(text, highlight=False),
        )
    values = storms.write(result, out)
    if as_json:
        typer.echo(json.dumps(result, indent=2))
    else:
        console.print(storms.table(result))
        console.print(cell(str(values)), highlight=False)
    if not result["storm"]["ok"]:
        raise typer.Exit(1)


def _among(name: str, given: str, known: list[str]) -> list[str]:
    """The words of an option, each once, in their known order."""
    words = [each for each in given.split(",") if each]
    unknown = sorted(set(words) - set(known))
    if unknown:
        raise Invalid(f"{name}: {', '.join(unknown)}; there are {', '.join(known)}")
    return [each for each in known if each in words]
