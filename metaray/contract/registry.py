"""The registry as data: entities with their operations and tables, and the types in them.

An entity is the middle of a tag (`mqtt.session.open` belongs to `session`); an operation whose tag
has two parts belongs to the entity that its file is named after (`mqtt.pulse`, in `pulse.py`). A
table belongs to the entity of its name, else to the one whose file declares it.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import sys
import textwrap
import typing
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import state_machines.machine  # noqa: F401 - registers every entity
from metaray.contract import source
from metaray.contract.refusals import Refusal, refusals
from state_machines import op, packing
from state_machines.batch import Outcome
from state_machines.tables import TABLES, Table

PACKAGE: Final = "state_machines"
EVERY: Final = "group"  #: in place of a kind: what belongs to the groups of every kind


@dataclass(frozen=True, slots=True)
class Field:
    """A field of an operation, a row or a type; `default` is `MISSING` if it has none."""

    name: str
    hint: Any
    default: Any
    meaning: str

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is dataclasses.MISSING


@dataclass(frozen=True, slots=True)
class Operation:
    """A command or query, with what its class says of itself."""

    tag: str
    cls: Any

    @property
    def is_query(self) -> bool:
        """Whether it only looks."""
        return op.is_query(self.cls)

    @property
    def kind(self) -> str:
        """The kind of its groups, empty for every kind."""
        return op.kind(self.cls)

    @property
    def fields(self) -> tuple[Field, ...]:
        """Its fields, in order."""
        return fields_of(self.cls)

    @property
    def reply(self) -> Any:
        """The annotation of its reply."""
        return op.reply_type(self.cls)

    @property
    def method(self) -> Any:
        """What a replica runs."""
        return self.cls.read if self.is_query else self.cls.apply

    @property
    def says(self) -> str:
        """What it is for."""
        return words(self.cls)

    @property
    def effect(self) -> str:
        """What its method says of the outcome."""
        return words(self.method)

    @property
    def checks(self) -> str:
        """What is looked at before it is proposed."""
        return words(self.cls.validate) if hasattr(self.cls, "validate") else ""

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """How it may be refused once it is in the log, or read."""
        return refusals(self.cls, self.method)

    @property
    def traits(self) -> tuple[str, ...]:
        """How it travels."""
        epoch = [each for each in self.fields if each.name == "controller_epoch"]
        many = getattr(self.cls, "many", "")
        found = {
            "controller only": any(each.required for each in epoch),
            "controller or by hand": any(not each.required for each in epoch),
            "urgent": op.urgent(self.cls),
            f"batch of `{many}`": bool(many),
            "outcome for each": typing.get_args(self.reply)[:1] == (Outcome,),
            "paged": is_paged(self.cls),
        }
        return tuple(name for name, holds in found.items() if holds)

    @property
    def place(self) -> str:
        """What its group is chosen by, as code; or which groups it goes to."""
        for name in ("slot_key", "slot_key_of", "slot_keys"):
            method = getattr(self.cls, name, None)
            if method is None:
                continue
            shown = _returned(method)
            if shown in ("", "None"):  # cluster-wide after all
                break
            return f"by `{textwrap.shorten(shown, 160, placeholder=' …')}`"
        if getattr(self.cls, "every_group", False):
            return "every group of the kind"
        return f"`{self.kind}-0`" if self.kind else "the group that is named"


@dataclass(slots=True)
class Entity:
    """What the page of one entity shows."""

    kind: str
    name: str
    operations: list[Operation] = field(default_factory=list)
    tables: list[Table[Any]] = field(default_factory=list)

    @property
    def modules(self) -> list[str]:
        """Where it is declared, the file with most of it first."""
        found = [each.cls.__module__ for each in self.operations]
        found += [owner(each) for each in self.tables]
        return sorted(dict.fromkeys(found), key=lambda name: (-found.count(name), name))

    @property
    def types(self) -> list[type]:
        """The dataclasses that its files declare for operations or rows, but for the rows."""
        return [each for each in parts() if home(each) is self]


@cache
def operations() -> tuple[Operation, ...]:
    """Every command and query of the pure floor, by tag."""
    both = {**op.COMMANDS, **op.QUERIES}
    return tuple(Operation(tag, cls) for tag, cls in sorted(both.items()) if _ours(cls))


def tables() -> tuple[Table[Any], ...]:
    """Every table of the pure floor, by name."""
    return tuple(table for _, table in sorted(TABLES.items()) if _ours(table.row))


def _ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == PACKAGE


@cache
def entities() -> tuple[Entity, ...]:
    """Every entity by kind and name; those of every group come last."""
    found: dict[tuple[str, str], Entity] = {}
    homes: dict[str, Entity] = {}

    def entity(kind: str, name: str) -> Entity:
        return found.setdefault((kind, name), Entity(kind, name))

    for each in operations():
        kind, *middle, _ = each.tag.split(".")
        kind = kind if each.kind else EVERY
        name = ".".join(middle) or each.cls.__module__.rpartition(".")[2]
        entity(kind, name).operations.append(each)
        homes.setdefault(each.cls.__module__, entity(kind, name))
    for table in tables():
        kind, _, name = table.name.partition(".")
        home = homes.get(owner(table))
        if (kind, name) not in found and home is not None and home.kind == kind:
            home.tables.append(table)
        else:
            entity(kind, _longest(name, kind, found) or name).tables.append(table)
    return tuple(
        sorted(found.values(), key=lambda each: (each.kind == EVERY, each.kind, each.name))
    )


def _longest(name: str, kind: str, found: Iterable[tuple[str, str]]) -> str:
    """The known entity whose name the table's begins with."""
    known = [each for of, each in found if of == kind and f"{name}_".startswith(f"{each}_")]
    return max(known, key=len, default="")


@cache
def owner(table: Table[Any]) -> str:
    """The module that declares a table: the one that holds it and its row."""
    row = table.row.__module__
    holding = [
        name
        for name, module in sorted(sys.modules.items())
        if name.startswith(f"{PACKAGE}.") and any(each is table for each in vars(module).values())
    ]
    return row if row in holding or not holding else holding[0]


@cache
def fields_of(cls: Any) -> tuple[Field, ...]:
    """The fields of a dataclass, in order."""
    hints, meanings = typing.get_type_hints(cls), source.meanings(cls)
    return tuple(
        Field(each.name, hints[each.name], each.default, meanings.get(each.name, ""))
        for each in dataclasses.fields(cls)
    )


@cache
def parts() -> tuple[type, ...]:
    """The classes in operations and rows that are neither, by name."""
    rows = {table.row for table in tables()}
    hints: list[Any] = [*rows]
    for each in operations():
        hints += [*(part.hint for part in each.fields), each.reply]
    found = set(dataclasses_in(hints)) - rows
    return tuple(sorted(found, key=lambda cls: (cls.__name__, cls.__module__)))


@cache
def home(cls: type) -> Entity | None:
    """The entity whose files declare a part; None of what several share."""
    return next((each for each in entities() if cls.__module__ in each.modules), None)


def dataclasses_in(hints: Iterable[Any]) -> list[type]:
    """The dataclasses that annotations name, and those in their fields, in the order met."""
    found: dict[type, None] = {}

    def look(hint: Any) -> None:
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            if hint not in found:
                found[hint] = None
                row: Any = hint
                for each in fields_of(row):
                    look(each.hint)
            return
        for each in typing.get_args(hint):
            look(each)

    for hint in hints:
        look(hint)
    return list(found)


def spell(hint: Any) -> str:
    """An annotation in words: `str`, `int or none`, `list of Address`."""
    if hint in (None, type(None)):
        return "none"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return f"list of {spell(arguments[0])}"
    some = [spell(each) for each in arguments if each is not type(None)]
    return " or ".join([*some, *(["none"] if len(some) < len(arguments) else [])])


def is_paged(cls: Any) -> bool:
    """Whether it is a query for a page: it says after what, and its reply says what is next."""
    if not op.is_query(cls) or not {"after", "limit"} <= {each.name for each in fields_of(cls)}:
        return False
    if not dataclasses.is_dataclass(op.reply_type(cls)):
        return False
    return "next" in packing.field_names(op.reply_type(cls))


def words(documented: Any) -> str:
    """A docstring as plain paragraphs, a line each; empty if there is none of its own."""
    text = inspect.cleandoc(documented.__doc__ or "")
    generated = isinstance(documented, type) and text.startswith(f"{documented.__name__}(")
    return "" if generated else text


def _returned(method: Any) -> str:
    """What a slot key method returns last, as code about the operation's fields."""
    function = inspect.unwrap(getattr(method, "__func__", method))
    node = source.functions(function.__module__).get(function.__qualname__)
    if node is None:
        return ""
    returns = [each for each in ast.walk(node) if isinstance(each, ast.Return) and each.value]
    if not returns:
        return ""
    return ast.unparse(typing.cast(ast.expr, returns[-1].value)).replace("self.", "")


def everything() -> Iterator[type]:
    """Every class of the contract: operations, then rows, then the types in both."""
    yield from (each.cls for each in operations())
    yield from dict.fromkeys(table.row for table in tables())
    yield from parts()
