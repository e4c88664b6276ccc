"""`transfer`, `drain`, `restart`: what is done to seats on purpose."""

from __future__ import annotations

from typing import Annotated

import typer

from metaray.cli.app import Address, Data, app, cell, console, explained
from metaray.cli.door import drain as drain_node
from metaray.cli.door import join_cluster, restart_actor, transfer_to
from metaray.where import DEFAULT_DATA


@app.command()
@explained
def transfer(
    seat: Annotated[str, typer.Argument(help="Such as offset-0/1; `metaray status` lists them.")],
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Have a voter lead its group. Nothing is lost: clients find it by themselves."""
    join_cluster(address, data)
    handed = transfer_to(seat)
    if handed is None:
        console.print(f"{seat} leads already", highlight=False)
    else:
        console.print(f"[green]✓[/] {handed.now} leads, after {handed.before}", highlight=False)


@app.command()
@explained
def drain(
    node: Annotated[str, typer.Argument(help="A Ray node's name or id, as in `metaray status`.")],
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """Before a Ray node is stopped: have others lead what its replicas lead."""
    join_cluster(address, data)
    handed = drain_node(node)
    for each in handed:
        console.print(f"[green]✓[/] {each.now} leads, after {each.before}", highlight=False)
    if not handed:
        console.print(f"no replica on {node} leads", highlight=False, markup=False)


@app.command()
@explained
def restart(
    name: Annotated[
        str, typer.Argument(help="A seat such as offset-0/1, or a controller such as controller-3.")
    ],
    address: Address = None,
    data: Data = DEFAULT_DATA,
) -> None:
    """End the process of a seat or a controller, also one that hangs: Ray starts it again."""
    join_cluster(address, data)
    with console.status(f"{cell(name)} is started again …"):
        done = restart_actor(name)
    was = "one that did not answer" if done.before is None else f"{done.before}"
    console.print(f"[green]✓[/] {name} is process {done.now}, after {was}", highlight=False)
