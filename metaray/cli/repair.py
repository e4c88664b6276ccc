"""`fsck` and `repair`: what contradicts what in a cut, and putting it right."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from metaray.cli.app import Address, Data, Json, app, cell, console, explained, print_json
from metaray.cli.door import connect, join_cluster
from metaray.cli.paths import path_option
from metaray.where import DEFAULT_DATA

if TYPE_CHECKING:
    from jobs.report import Report
    from metaray.repairing import Plan, Told

OUT = Path("build") / "fsck"
FOUND = 1  #: exit status of `fsck` when a rule is broken
LEFT = 1  #: and of `repair --apply` when something was refused or held back

Out = Annotated[Path, path_option("--out", help="Directory for the report and the findings.")]
LocalSpark = Annotated[
    bool, typer.Option("--local-spark", help="Run Spark in this process, not on the cluster.")
]
Settings = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An option of fsck.")
]


@app.command()
@explained
def fsck(
    cut: Annotated[
        Path | None, path_option("--cut", help="Look at this cut, not the running cluster.")
    ] = None,
    watermarks: Annotated[
        Path | None,
        path_option("--watermarks", help="Parquet: tenant, topic, partition, high_watermark."),
    ] = None,
    settings: Settings = None,
    out: Out = OUT,
    local_spark: LocalSpark = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Look for rows that contradict each other. The exit status is 1 if there are some."""
    from metaray.cli.work import show

    if cut is None:
        join_cluster(address, data)
    made = _run(cut, watermarks, settings, out, on_ray=cut is None and not local_spark)
    broken = _broken(made)
    if as_json:
        print_json(
            {
                "headline": made.view.headline,
                "cut": dict(made.context.cut),
                "now_ms": made.context.now_ms,
                "findings": made.rows["findings"],
                "rules": broken,
                "plan": str(_plan(made).path),
            }
        )
    else:
        show([made])
        console.print(f"the plan is {cell(str(_plan(made).path))}", highlight=False, soft_wrap=True)
    if broken:
        raise typer.Exit(FOUND)


@app.command()
@explained
def repair(
    plan: Annotated[
        Path | None,
        path_option("--plan", help="Findings of an earlier fsck; without, it is run now."),
    ] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Do it. Otherwise only say what would be done.")
    ] = False,
    settings: Settings = None,
    out: Out = OUT,
    local_spark: LocalSpark = False,
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
) -> None:
    """Put right what fsck found, by commands that hold only if it is still so.

    With --apply the exit status is 1 if something was refused or held back.
    """
    from metaray.repairing import HELD, REFUSED, Plan
    from metaray.repairing import repair as execute

    if plan is None or apply:
        join_cluster(address, data)
    if plan is None:
        wanted = _plan(_run(None, None, settings, out, on_ray=not local_spark))
    else:
        wanted = Plan(plan)
    if not apply:
        _show_plan(wanted, as_json=as_json)
        return

    async def work() -> Told:
        async with connect(address, data) as client:
            return await execute(client, wanted)

    told = asyncio.run(work())
    _show_told(told, as_json=as_json)
    if told.total(REFUSED) or told.total(HELD):
        raise typer.Exit(LEFT)


def _run(
    cut: Path | None,
    watermarks: Path | None,
    settings: list[str] | None,
    out: Path,
    *,
    on_ray: bool,
) -> Report:
    from jobs.fsck import JOB
    from jobs.sources import Sources
    from metaray import reporting
    from metaray.cli.work import pairs

    files = {"watermarks": watermarks} if watermarks is not None else {}
    with console.status("Spark starts") as status:
        (made,) = reporting.run(
            [JOB],
            out,
            Sources(cut=cut, files=files),
            address="auto" if on_ray else None,
            options=pairs("set", settings),
            fallback=True,
            progress=lambda words: status.update(cell(words)),
        )
    return made


def _plan(made: Report) -> Plan:
    from metaray.repairing import Plan

    return Plan(made.results.files["findings"])


def _broken(made: Report) -> list[dict[str, Any]]:
    rows = made.results.table("rules").to_pylist()
    return [each for each in rows if each["findings"]]


def _show_plan(plan: Plan, *, as_json: bool) -> None:
    found: list[dict[str, Any]] = [
        {"rule": rule, "command": command or None, "rows": rows}
        for (rule, command), rows in plan.commands().items()
    ]
    if as_json:
        print_json({"plan": str(plan.path), "applied": False, "repairs": found})
        return
    table = Table("rule", "repaired by", box=box.SIMPLE)
    table.add_column("rows", justify="right")
    for each in found:
        command = cell(each["command"]) if each["command"] else "[dim]no command[/]"
        table.add_row(cell(each["rule"]), command, str(each["rows"]))
    console.print(table if found else "nothing is to be repaired")
    if any(each["command"] for each in found):
        console.print(
            f"nothing was done; `metaray repair --apply --plan {cell(str(plan.path))}` does it",
            highlight=False,
            soft_wrap=True,
        )


def _show_told(told: Told, *, as_json: bool) -> None:
    from metaray.repairing import OUTCOMES

    rules = sorted({rule for rule, _ in told.counts})
    if as_json:
        by_rule = {
            rule: {each: told.counts[rule, each] for each in OUTCOMES if told.counts[rule, each]}
            for rule in rules
        }
        totals = {each: told.total(each) for each in OUTCOMES}
        print_json({"applied": True, **totals, "rules": by_rule, "details": told.details})
        return
    table = Table("rule", box=box.SIMPLE)
    for each in OUTCOMES:
        table.add_column(each, justify="right")
    for rule in rules:
        table.add_row(cell(rule), *[str(told.counts[rule, each] or "") for each in OUTCOMES])
    console.print(table if rules else "nothing was to be repaired")
    for detail in told.details:
        console.print(cell(detail), highlight=False, soft_wrap=True)
