"""python -m tests.hosts: a cluster over several hosts, which are cut off and booted."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tests.hosts.cases import CASES
from tests.hosts.world import Hosts, lacking
from tests.proof.record import Record

console = Console()


def main(
    only: Annotated[str, typer.Option(help="Cases whose name has this in it.")] = "",
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what was shown before.")] = False,
) -> None:
    """Five hosts of Linux namespaces, started as cluster.yaml says, and writers on one of them."""
    if missing := lacking():
        console.print(f"hosts need {missing}", style="red")
        sys.exit(2)
    record = Record("hosts")
    if fresh:
        record.figures.clear()
    wanted = [each for each in CASES if only in each and each not in record.figures]
    if wanted:
        with (
            tempfile.TemporaryDirectory(prefix="metaray-hosts-") as data,
            Hosts(Path(data)) as hosts,
        ):
            console.print("starting")
            hosts.start()
            for name in wanted:
                case, seconds = CASES[name]
                console.print(name, highlight=False)
                record.figures[name] = case(hosts, seconds)
                record.save()
    table = Table("what is done", "writes", "others", "longest, s", "lost", "no alarm after, s")
    for name, found in record.figures.items():
        others = {each: count for each, count in found["told"].items() if each != "ok"}
        table.add_row(
            name,
            f"{found['told']['ok']:,}",
            ", ".join(f"{count} {each}" for each, count in others.items()) or "none",
            f"{found['longest_s']:.2f}",
            str(found["lost"]),
            f"{found['whole_again_s']:.1f}",
        )
    console.print(table)
    if any(found["lost"] for found in record.figures.values()):
        sys.exit(1)
    if set(record.figures) == set(CASES):
        record.finish()


if __name__ == "__main__":
    typer.run(main)
