"""`up`, `down`, `status`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from actors.config import ClusterConfig
from actors.seat_names import is_learner
from metaray import local
from metaray.cli import controller
from metaray.cli.app import (
    Address,
    Data,
    Json,
    app,
    cell,
    console,
    explained,
    print_json,
    print_whole,
    printable,
)
from metaray.cli.door import join_cluster, overview, start_service
from metaray.cli.paths import path_option
from metaray.seat_roles import AWAY, is_well
from metaray.where import DEFAULT_DATA
from state_machines.errors import Invalid

EXPORTER: Final = "history-exporter"  #: of what `start_service` starts: what leads nothing,
SLOTS: Final = "slots"  #: and what is nobody
ALARMING: Final = 1  #: exit status of `status --check` while something needs an operator


@app.command()
@explained
def up(
    local_nodes: Annotated[
        int, typer.Option("--local", help="Start this many Ray nodes on this machine first.")
    ] = 0,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", help="Start on the Ray cluster that runs there; not beside --local."
        ),
    ] = None,
    data: Data = DEFAULT_DATA,
    config: Annotated[
        Path | None, path_option("--config", help="cluster.yaml to read `metadata:` from.")
    ] = None,
    replicas: Annotated[
        int | None,
        typer.Option(
            help="Replicas a group, 3 of a new one; not beside --config. Groups that have another "
            "number of voters get so many."
        ),
    ] = None,
    learners: Annotated[
        int | None,
        typer.Option(
            help="Replicas a group that never vote, for analytics, by default none; not beside "
            "--config. Those that run and are not wanted any more are taken away."
        ),
    ] = None,
    allow_colocated: Annotated[
        bool | None,
        typer.Option(
            help="Let replicas of a group share a node, learners with voters, or not, whatever "
            "--config says."
        ),
    ] = None,
) -> None:
    """Start the service: on a Ray cluster that runs (--address), or on one made here (--local)."""
    if bool(local_nodes) == bool(address):
        raise Invalid("give either --local N or --address HOST:PORT")
    given: dict[str, Any] = {"replicas": replicas, "learners": learners}
    given = {name: count for name, count in given.items() if count is not None}
    if config is not None and given:
        raise Invalid(f"{next(iter(given))}: not beside --config, whose file says it")
    if allow_colocated is not None:
        given["allow_colocated"] = allow_colocated
    given["replicas_chosen"] = replicas is not None or config is not None
    wanted = replace(ClusterConfig() if config is None else ClusterConfig.load(config), **given)
    for warning in wanted.warnings():
        console.print(f"[yellow]warning[/]: {warning}", highlight=False)
    if local_nodes:
        _check_room(data, local_nodes, wanted)
        with console.status("starting Ray nodes …") as status:
            cluster = local.up(
                data,
                local_nodes,
                analytics=local.analytics_nodes(local_nodes, wanted.replicas, wanted.learners),
                progress=status.update,
            )
        console.print(f"[green]✓[/] {len(cluster.nodes)} Ray nodes at {cluster.address}")
        console.print(f"  dashboard {cluster.dashboard}", highlight=False)
        address = cluster.address  # this one, whatever METARAY_ADDRESS says
    # Two starts at once take each other's replicas for left over, and `down` ends them half made.
    with local.at_work(data.expanduser().resolve()) if local_nodes else nullcontext():
        join_cluster(address, data)
        for name, seconds, where in start_service(wanted):
            said = f"leader {where}"
            if name == EXPORTER:
                said = f"exports to {cell(where)}"
            elif name == SLOTS or is_learner(name):
                said = cell(where)
            console.print(f"[green]✓[/] {name} [cyan]{seconds:.1f} s[/]  {said}", highlight=False)


def _check_room(data: Path, nodes: int, wanted: ClusterConfig) -> None:
    """Raise NotEnoughNodes if a cluster of so many would be started for nothing. One that runs has
    places, perhaps, that were given under another config."""
    needed = wanted.replicas + wanted.learners
    if not 0 < nodes < needed or wanted.allow_colocated or local.find(data) is not None:
        return
    from actors.placement import NotEnoughNodes  # it brings Ray

    learners = f" and {wanted.learners} learners" * bool(wanted.learners)
    lower = " or `learners`" * bool(wanted.learners)
    raise NotEnoughNodes(
        f"local: {nodes} nodes for {wanted.replicas} replicas{learners} of each group, each on a "
        f"node of its own; nothing was started. Say `--local {needed}`, lower `replicas`{lower}, "
        "or let them share nodes with `--allow-colocated`"
    )


@app.command()
@explained
def down(data: Data = DEFAULT_DATA) -> None:
    """End a local cluster: every process it started, and nothing else. Its data stays.

    One that Ray's launcher started is ended by `ray down`, then `ray stop` on each worker.
    """
    with console.status("ending the cluster …"):
        ended = local.down(data)  # asked even if the head is dead: the other nodes may live
    if not ended:
        console.print(
            f"nothing runs on {cell(str(data))}; a cluster that Ray's launcher started is ended by "
            "`ray down cluster.yaml`, then `ray stop` on each worker",
            highlight=False,
            soft_wrap=True,
        )
        return
    console.print(f"[green]✓[/] ended; the data stays in {cell(str(data))}")


@app.command()
@explained
def status(
    address: Address = None,
    data: Data = DEFAULT_DATA,
    as_json: Json = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check", help="End with status 1 while there are alarms, or no groups at all."
        ),
    ] = False,
) -> None:
    """Groups, leaders, terms, indexes, lag, nodes and the controller."""
    join_cluster(address, data)
    seen = overview()
    if as_json:
        print_json(seen)
    else:
        _print(seen)
    if check and (seen["alarms"] or not seen["groups"]):
        raise typer.Exit(ALARMING)


def _print(seen: dict[str, Any]) -> None:
    nodes = sorted(seen["nodes"], key=lambda node: (not node["alive"], node["name"]))
    numbers = {node["node"]: str(number) for number, node in enumerate(nodes)}
    if not seen["groups"]:
        console.print("no groups here: start them with `metaray up --address ...`")
    else:
        print_whole(_groups(seen, numbers))
    for group in seen["groups"].values():
        for each in group["replicas"]:
            if is_learner(each["seat"]):
                console.print(_lag_of(each), highlight=False)
    for each in seen["controllers"]:
        if "duties" in each:
            controller.print_controller(each, numbers.get(each["node"], ""))
    for node in nodes:
        word = "alive" if node["alive"] else "[red]dead[/]"
        console.print(
            f"node {numbers[node['node']]} {cell(node['name'])} at {node['address']} {word}",
            highlight=False,
        )
    for alarm in seen["alarms"]:
        console.print(Text.assemble(("alarm", "bold red"), ": ", printable(alarm)), soft_wrap=True)


def _lag_of(learner: dict[str, Any]) -> str:
    """How far a learner is behind its leader, in words."""
    if learner["lag"] is None or learner["role"] in AWAY:
        return f"learner {learner['seat']} [red]{learner['role']}[/], no vote is missing"
    late = "" if learner["lag_ms"] is None else f", {learner['lag_ms']:,} ms"
    return (
        f"learner {learner['seat']} is {max(0, learner['lag']):,} entries{late} behind its leader"
    )


def _style(replica: dict[str, Any]) -> str | None:
    if not is_well(replica):
        return "red"
    return "bold green" if replica["role"] == "leader" else None


def _groups(seen: dict[str, Any], numbers: dict[str, str]) -> Table:
    """One line a replica, within 80 columns: an index may have ten digits."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("seat", "node", "role"):
        table.add_column(column, no_wrap=True)
    for column in ("term", "commit", "applied", "lag", "queue"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("by", no_wrap=True)  # what carries its messages to the others
    for group in seen["groups"].values():
        for each in group["replicas"]:
            table.add_row(
                each["seat"],
                numbers.get(each["node"], "?"),
                each["role"],
                *(str(each[key]) for key in ("term", "commit", "applied")),
                "" if each["lag"] is None else str(each["lag"]),
                str(each["queue"]),
                "+".join(sorted({*each.get("carriers", {}).values()})),
                style=_style(each),
            )
        table.add_section()
    return table
