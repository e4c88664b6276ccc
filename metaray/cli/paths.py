"""Paths on the command line: what a variable says that was not set is none.

    metaray export --out "$OUT"     # Invalid value for '--out': it is empty

`Path("")` is the directory where the command runs, which would be written to or read instead.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from state_machines.errors import Invalid


def path_of(said: Path | str) -> Path:
    """A path that is said, or the default as it is. Raises BadParameter for an empty one."""
    if not said:
        raise typer.BadParameter("it is empty; `.` is the directory where you are")
    return Path(said)


def check_directory(path: Path, field: str) -> None:
    """Make the directory that a long run writes to at its end. Raises Invalid where it cannot."""
    _check(path, field, lambda: path.mkdir(parents=True, exist_ok=True))


def check_file(path: Path, field: str) -> None:
    """The same of a file, and of the directory that it is in."""
    check_directory(path.parent, field)
    _check(path, field, lambda: path.open("a").close())


def _check(path: Path, field: str, attempt: Callable[[], None]) -> None:
    try:
        attempt()
    except OSError as error:
        raise Invalid(f"{field}: {path} cannot be written: {error.strerror}") from error


def path_option(flag: str, *, help: str) -> Any:
    """What typer is told of an option that says a path."""
    return typer.Option(flag, parser=path_of, metavar="<path>", help=help)


def path_argument(*, help: str) -> Any:
    """The same of an argument."""
    return typer.Argument(parser=path_of, help=help)
