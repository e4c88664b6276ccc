"""The command tree, grown where somebody looks: nothing is made or imported for other branches.

Below the commands that are written by hand stand those of the registry: a tag is a path, so
`mqtt.session.list` is `metaray mqtt session list`. A branch is a dictionary until it is asked for,
a leaf is made when it is run or shown (`entities`). What another distribution or floor adds by the
entry point `metaray.commands` is imported when it is run; until then the first line of its module
speaks for it.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, Final

import typer
from typer.core import TyperGroup

LATER: Final[dict[str, EntryPoint]] = {}
"""Commands of others that are not imported yet, by name."""

Branches = Mapping[str, Any]
"""Names to branches, and (the leaves) to operations."""


class Branch(TyperGroup):
    """A part of the tree that is known by names alone."""

    def __init__(self, *, branches: Branches | None = None, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.branches = branches or {}

    def list_commands(self, ctx: Any) -> list[str]:
        """Every name below."""
        return [*super().list_commands(ctx), *sorted(self.branches)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name, made when it is asked for the first time."""
        if cmd_name not in self.commands and cmd_name in self.branches:
            self.commands[cmd_name] = _grown(cmd_name, self.branches[cmd_name])
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run. A name that is not there is compared with all that are."""
        if args and args[0] not in self.list_commands(ctx):
            for name in self.branches:
                self.get_command(ctx, name)
        return super().resolve_command(ctx, args)


class Tree(Branch):
    """The whole: commands by hand, the registry's, and those of entry points."""

    def __init__(self, **attributes: Any) -> None:
        from metaray.cli.entities import branches

        super().__init__(**attributes)
        self.branches = {
            name: each for name, each in branches().items() if name not in self.commands
        }

    def list_commands(self, ctx: Any) -> list[str]:
        """Those by hand first."""
        known = super().list_commands(ctx)
        return [*known, *(name for name in LATER if name not in known)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """For what is not imported yet, somebody who only says its name and what it does."""
        if cmd_name in LATER and cmd_name not in self.commands:
            return TyperGroup(name=cmd_name, help=_first_line(LATER[cmd_name].module))
        return super().get_command(ctx, cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run: now what stands above the door is imported, if it is that."""
        if args and args[0] in LATER and args[0] not in self.commands:
            from metaray.cli.app import app

            LATER[args[0]].load()
            self.commands[args[0]] = typer.main.get_group(app).commands[args[0]]
        return super().resolve_command(ctx, args)


def _grown(name: str, branch: Any) -> Any:
    from metaray.cli import entities

    if not isinstance(branch, Mapping):
        return entities.leaf(name, branch)
    about = entities.about(branch)
    return Branch(name=name, help=about, no_args_is_help=True, branches=branch)


def _first_line(module: str) -> str:
    """What the file of a module says first, without running it."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    said = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8"))) or ""
    return said.partition("\n")[0]
