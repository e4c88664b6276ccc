"""The command tree, and what its commands share: the console, the address, the one error door."""

from __future__ import annotations

import functools
import getpass
import json
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, ParamSpec, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from metaray.cli.paths import path_of
from metaray.cli.tree import Tree
from metaray.cli.values import to_json
from metaray.where import DEFAULT_DATA
from state_machines.errors import MetarayError

P = ParamSpec("P")
R = TypeVar("R")

UNBOUNDED: Final = 1_000_000  #: columns: what a table would like to have

console = Console(emoji=False)  # `orders:new:eu` is a name, and no picture is in it
errors = Console(stderr=True, emoji=False)

app = typer.Typer(
    cls=Tree,
    name="metaray",
    help="The metadata service of a message queue, on Ray.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Address = Annotated[
    str | None, typer.Option("--address", help="Ray address to join; the local cluster if absent.")
]


def _named(said: Path | str) -> Path:
    """The directory of `--data`. The usual one is another path where somebody names it than where
    nobody names one: an address in the environment is not meant then."""
    path = path_of(said)
    return path.absolute() if isinstance(said, str) and path == DEFAULT_DATA else path


Data = Annotated[
    Path,
    typer.Option(
        "--data", parser=_named, metavar="<path>", help="Where a local cluster keeps everything."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Tenant = Annotated[str, typer.Option("--tenant", help="The tenant to look at.")]


def explained(command: Callable[P, R]) -> Callable[P, R]:
    """Turn metaray's own errors, Ray's and those of the disk into one line and exit status 2."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except MetarayError as error:
            _say(type(error).__name__, error.detail)
        except _errors_of("ray.exceptions", "RayError") as error:
            from metaray.join import in_one_line

            _say("Ray", in_one_line(error))
        except BrokenPipeError:
            raise  # who reads has had enough: the command line ends quietly
        except _disk_errors() as error:
            _say(type(error).__name__, str(error))
        raise typer.Exit(2)

    return run


def _disk_errors() -> tuple[type[Exception], ...]:
    return (OSError, *_errors_of("sqlite3", "Error"))


def _errors_of(module: str, name: str) -> tuple[type[Exception], ...]:
    """A module's own errors. Who has not imported it has met none."""
    found: Any = sys.modules.get(module)
    return (getattr(found, name),) if found is not None else ()


def _say(name: str, detail: str) -> None:
    line = Text.assemble((name, "red"), ": ", printable(" ".join(detail.split())))
    errors.print(line, soft_wrap=True)


def printable(text: str) -> str:
    """Text from outside in one line: nothing in it moves a cursor or looks like a line of ours."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def cell(text: str) -> str:
    """The same in a table, where brackets would be colours, whatever stands before or behind.

    Rich's own `escape` loses backslashes before a bracket that is none of a tag, and at the end.
    """
    return _BRACKET.sub(_literally, printable(text))


_BRACKET: Final = re.compile(r"(\\*)(\[|\Z)")


def _literally(found: re.Match[str]) -> str:
    backslashes, bracket = found.groups()
    said = f"{backslashes}{backslashes}[none][/none]" if backslashes else ""
    return f"{said}\\[" if bracket else said


def print_whole(table: Table) -> None:
    """A table whose lines a narrow terminal breaks, and a pipe has whole, and none is cut: three
    seats that begin alike would be one. What may be long is in the last column: no line is filled
    up to the longest."""
    unbounded = console.options.update(width=UNBOUNDED)
    wanted = console.measure(table, options=unbounded).maximum
    if wanted <= console.width:
        console.print(table)
        return
    table.width = wanted
    with console.capture() as drawn:
        console.print(table, crop=False)
    for each in drawn.get().splitlines():
        line = Text.from_ansi(each)
        line.rstrip()
        console.print(line, soft_wrap=True)


def print_json(value: Any) -> None:
    """Plain values on standard output, bytes as `values.to_json` says them."""
    json.dump(value, sys.stdout, indent=2, default=_plain)
    sys.stdout.write("\n")


def _plain(value: Any) -> Any:
    return to_json(value) if isinstance(value, bytes) else str(value)


def who() -> str:
    """Who asks: for whoever finds what was asked."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        user = "somebody"
    return f"{user}@{socket.gethostname()}"


# The commands register themselves.
from metaray.cli import (  # noqa: E402
    advice,
    backup,
    cluster,
    controller,
    data,
    export,
    history,
    leading,
    past,
    repair,
    schedule,
    watch,
    work,
)

__all__ = [
    "advice",
    "app",
    "backup",
    "cluster",
    "controller",
    "data",
    "export",
    "history",
    "leading",
    "past",
    "repair",
    "schedule",
    "watch",
    "work",
]
