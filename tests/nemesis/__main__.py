"""python -m tests.nemesis: the long run, and what it starts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, no_args_is_help=True)


@app.callback()
def main() -> None:
    """Real Ray clusters under load, with everything done to them that can be."""


@app.command(hidden=True)
def client(
    name: str,
    tenant: Annotated[str, typer.Option()],
    seed: Annotated[int, typer.Option()],
    folder: Annotated[Path, typer.Option()],
) -> None:
    """One client process of a run."""
    from tests.nemesis import clients

    asyncio.run(clients.work(name, tenant, seed, folder))


if __name__ == "__main__":
    app()
