"""Every command and query of the registry as a command of the terminal.

    metaray mqtt session get --client-id c1
    metaray metadata kv put --key greeting --value @hello.txt
    metaray offset list --tenant t1 --all --json

The path is the tag, the options are the fields, the help texts are the docstrings and `#:`
comments, so an entity has its commands from the moment its file exists. How a word becomes a value
is in `values`. Lists are options that may come again; a list of dataclasses takes JSON, and the
fields of its items are options too, which make one item. `--fields` says the whole operation, or
part of it, as a JSON object: what has no option of its own, and what other programs write.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from metaray.cli import show, values
from metaray.cli.app import Address, Data, Json, errors, explained
from metaray.cli.door import connect_sync, known_group
from metaray.contract import registry
from metaray.contract.registry import EVERY, Field, Operation
from metaray.where import DEFAULT_DATA
from state_machines import op
from state_machines.errors import Invalid

FIELD, ITEM, COMMON = "field_", "item_", "common_"  #: what the parameters' names begin with
UNSAID: Final = frozenset({op.REGISTER_TAG})  #: which a client cannot ask for


# -- the tree -----------------------------------------------------------------------------------


@cache
def branches() -> dict[str, Any]:
    """The tags as a tree of names, operations at its leaves."""
    known = registry.operations()
    return tree_of([(each.tag, each) for each in known if each.tag not in UNSAID])


def tree_of(tagged: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A tree of the names in tags. What is `a.b` beside an `a.b.c` is found as `a b b`."""
    root: dict[str, Any] = {}
    for tag, leaf in tagged:
        *path, last = tag.replace("_", "-").split(".")
        branch = root
        for name in path:
            held = branch.setdefault(name, {})
            if not isinstance(held, dict):
                held = branch[name] = {name: held}
            branch = held
        if last in branch:
            branch = branch[last]
        branch[last] = leaf
    return root


def about(branch: Mapping[str, Any]) -> str:
    """What a branch is about: what the file of its operations says first, or its kind."""
    leaves = set(_leaves(branch))
    entities = [each for each in registry.entities() if leaves.intersection(each.operations)]
    if len(entities) > 1:
        kind = entities[0].kind
        every = "Every group keeps and does this, whatever its kind."
        return every if kind == EVERY else f"What the {kind} groups keep and do."
    module = sys.modules[entities[0].modules[0]]
    return escape(registry.words(module).partition("\n\n")[0])


def _leaves(branch: Mapping[str, Any]) -> Iterator[Operation]:
    for each in branch.values():
        yield from _leaves(each) if isinstance(each, Mapping) else (each,)


# -- a leaf -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Option:
    """A field of the operation, or of its items, and the option that says it."""

    parameter: str
    flag: str
    field: Field
    panel: str = "Fields"

    @property
    def many(self) -> bool:
        """Whether it may come more than once."""
        return typing.get_origin(values.without_none(self.field.hint)) is tuple

    def value(self, said: Any) -> Any:
        """The field's value. Raises Invalid."""
        hint = values.without_none(self.field.hint)
        if self.many:
            return values.items_from_text(typing.get_args(hint)[0], said, self.field.name)
        return said if hint is bool else values.from_text(hint, said, self.field.name)

    def annotation(self) -> Any:
        """What typer is told."""
        hint = values.without_none(self.field.hint)
        flags = [self.flag]
        kind: Any = str | None
        if hint is bool:
            kind = bool | None
            flags = [f"{self.flag}/--no-{self.flag.removeprefix('--')}"]
        elif self.many:
            kind = list[str] | None
        described = typer.Option(
            *flags,
            help=self._help(),
            metavar=None if hint is bool else _metavar(hint),
            show_default=False,
            rich_help_panel=self.panel,
        )
        return Annotated[kind, described]

    def _help(self) -> str:
        said = [self.field.meaning[:1].upper() + self.field.meaning[1:]]
        default = self.field.default
        if self.many:
            said.append("May come again.")
        elif self.field.required and not _may_be_none(self.field):
            said.append("[required]")
        elif not self.field.required and default not in (None, "", b"", False):
            said.append(f"[default: {default}]")
        return escape(" ".join(filter(None, said)))


class Leaf:
    """A command of the terminal for one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.list_field = next((each for each in operation.fields if _item(each.hint)), None)
        taken = {"--help"}
        self.common = dict(_common(operation, taken))
        self.fields = [
            Option(f"{FIELD}{each.name}", _flag(each.name, "field", taken), each)
            for each in operation.fields
        ]
        item = _item(self.list_field.hint) if self.list_field is not None else None
        among = self.list_field.name if self.list_field is not None else ""
        self.items = [
            Option(f"{ITEM}{each.name}", _flag(each.name, "item", taken), each, f"One of {among}")
            for each in (registry.fields_of(item) if item is not None else ())
        ]

    def command(self, name: str) -> Any:
        """What typer makes of it."""

        @explained
        def run(**given: Any) -> None:
            self.run(given)

        parameters = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for name, (annotation, default) in self._parameters().items()
        ]
        made: Any = run
        made.__signature__ = inspect.Signature(parameters)
        made.__annotations__ = {each.name: each.annotation for each in parameters}
        made.__name__ = name
        alone = typer.Typer(add_completion=False)
        alone.command(name, help=self._help())(made)
        return typer.main.get_command(alone)

    def _parameters(self) -> dict[str, tuple[Any, Any]]:
        found = {each.parameter: (each.annotation(), None) for each in self.fields + self.items}
        return {**found, **self.common}

    def _help(self) -> str:
        operation = self.operation
        said = [operation.says, operation.effect]
        if operation.traits:
            said.append(f"({', '.join(operation.traits)})")
        return "\n\n".join(escape(each) for each in said if each)

    def run(self, given: dict[str, Any]) -> None:
        """Ask the group, and show what it says."""
        asked = self.made(given)
        common = {name.removeprefix(COMMON): each for name, each in given.items()}
        options: dict[str, Any] = {"stale": True} if common.get("stale") else {}
        with connect_sync(common["address"], data=common["data"]) as client:
            if common["raft_group"]:
                options["group"] = known_group(common["raft_group"], client.groups())
            reply = client.call(asked, **options)
            if common.get("all"):
                reply = show.whole(asked, reply, lambda each: client.call(each, **options), errors)
        show.reply(self.operation, asked, reply, as_json=common["json"])

    def made(self, given: Mapping[str, Any]) -> Any:
        """The operation that the options say. Raises Invalid for what they do not say right."""
        found: dict[str, Any] = {}
        if whole := given.get(f"{COMMON}fields"):
            said = values.parsed(whole, "fields")
            found = values.fields_from_json(self.operation.cls, said, "fields")
        for each in self.fields:
            if (said := given.get(each.parameter)) is not None:
                found[each.field.name] = each.value(said)
        one = {
            each.field.name: each.value(said)
            for each in self.items
            if (said := given.get(each.parameter)) is not None
        }
        if one and self.list_field is not None:
            name = self.list_field.name
            made = _built(_item(self.list_field.hint), one, self.items)
            found[name] = (*(found.get(name) or ()), made)
        return _built(self.operation.cls, found, self.fields)


def leaf(name: str, operation: Operation) -> Any:
    """The command of an operation."""
    return Leaf(operation).command(name)


def _built(cls: Any, found: dict[str, Any], options: list[Option]) -> Any:
    for each in options:
        field = each.field
        if field.name not in found and field.required:
            if not (each.many or _may_be_none(field)):
                raise Invalid(f"{field.name}: missing, say it with {each.flag}")
            found[field.name] = None if _may_be_none(field) else ()
    return cls(**found)


def _may_be_none(field: Field) -> bool:
    return values.without_none(field.hint) is not field.hint


def _item(hint: Any) -> Any:
    """The class of the items of a list of dataclasses; None of anything else."""
    hint = values.without_none(hint)
    if typing.get_origin(hint) is not tuple:
        return None
    (item, *_) = typing.get_args(hint)
    return item if dataclasses.is_dataclass(item) else None


def _flag(name: str, word: str, taken: set[str]) -> str:
    """The option of a field; with a word before it where the name is taken."""
    flag = f"--{name.replace('_', '-')}"
    if flag in taken or f"--no-{flag.removeprefix('--')}" in taken:
        flag = f"--{word}-{flag.removeprefix('--')}"
    taken |= {flag, f"--no-{flag.removeprefix('--')}"}
    return flag


def _metavar(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        hint = typing.get_args(hint)[0]
    return {str: "TEXT", int: "INTEGER", bytes: "TEXT|@FILE", bool: "true|false"}.get(hint, "JSON")


def _common(operation: Operation, taken: set[str]) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The options that have nothing to do with fields, with their defaults."""
    text = str | None
    found: dict[str, tuple[Any, Any]] = {
        "fields": (
            Annotated[
                text, typer.Option("--fields", metavar="JSON|@FILE", help="Fields as an object.")
            ],
            None,
        ),
        "raft_group": (
            Annotated[
                text,
                typer.Option(
                    "--raft-group", metavar="GROUP", help="Ask this group, whatever the slot map."
                ),
            ],
            None,
        ),
        "json": (Json, False),
        "address": (Address, None),
        "data": (Data, DEFAULT_DATA),
    }
    if operation.is_query:
        stale = typer.Option("--stale", help="Let any replica answer, from what it has applied.")
        found["stale"] = (Annotated[bool, stale], False)
    if operation.cls is not None and registry.is_paged(operation.cls):
        everything = typer.Option("--all", help="Every page, one after the other.")
        found["all"] = (Annotated[bool, everything], False)
    for name, (annotation, default) in found.items():
        taken.add(f"--{name.replace('_', '-')}")
        yield f"{COMMON}{name}", (annotation, default)
