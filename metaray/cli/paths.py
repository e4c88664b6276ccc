"""Paths on the command line: what a variable says that was not set is none.

    metaray export --out "$OUT"     # Invalid value for '--out': it is empty

`Path("")` is the directory where the command runs, which would be written to or read instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def path_of(said: Path | str) -> Path:
    """A path that is said, or the default as it is. Raises BadParameter for an empty one."""
    if not said:
        raise typer.BadParameter("it is empty; `.` is the directory where you are")
    return Path(said)


def path_option(flag: str, *, help: str) -> Any:
    """What typer is told of an option that says a path."""
    return typer.Option(flag, parser=path_of, metavar="<path>", help=help)


def path_argument(*, help: str) -> Any:
    """The same of an argument."""
    return typer.Argument(parser=path_of, help=help)
