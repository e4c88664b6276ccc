"""How an operation may be refused: found in the code that a replica runs, not in a list by hand.

The walk begins at `apply` or `read` and follows every function of the pure floor that they name:
`self._delete`, `held`, `will.fire`, `db.page`. What it meets is `raise Fenced(f"epoch: ...")` with
a subclass of `Rejected`; the words are the text of the error with the constants in it filled in and
`…` for what is known only then. The checks of `names` are left out, `validate` speaks for them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FunctionType, ModuleType
from typing import Any, Final

from metaray.contract import source
from state_machines.errors import Rejected
from state_machines.tables import Tables

UNKNOWN: Final = "…"
PASSED_OVER: Final = frozenset({"state_machines.names", "state_machines.packing"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that may be raised, and its words."""

    error: type[Rejected]
    words: str


@cache
def refusals(cls: type, method: Any) -> tuple[Refusal, ...]:
    """What `method` of `cls` may raise, by error in the order met."""
    found: dict[Refusal, None] = {}
    waiting, seen = [method], {method}
    while waiting:
        function = waiting.pop(0)
        node = source.functions(function.__module__).get(function.__qualname__)
        if node is None:
            continue
        globals_ = vars(sys.modules[function.__module__])
        found |= dict.fromkeys(_raised(node, globals_))
        for each in _named(node, globals_, cls):
            if each not in seen:
                seen.add(each)
                waiting.append(each)
    order = {error: place for place, error in enumerate(dict.fromkeys(r.error for r in found))}
    return tuple(sorted(found, key=lambda refusal: order[refusal.error]))


def _raised(node: ast.AST, globals_: dict[str, Any]) -> Iterator[Refusal]:
    for each in ast.walk(node):
        if isinstance(each, ast.Raise) and isinstance(each.exc, ast.Call):
            error = _resolve(each.exc.func, globals_)
            if isinstance(error, type) and issubclass(error, Rejected):
                words = _words(each.exc.args[0], globals_) if each.exc.args else ""
                yield Refusal(error, words)


def _words(node: ast.expr, globals_: dict[str, Any]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_words(each, globals_) for each in node.values)
    if isinstance(node, ast.FormattedValue):
        value = _resolve(node.value, globals_)
        return str(value) if isinstance(value, int | str) else UNKNOWN
    return UNKNOWN


def _named(node: ast.AST, globals_: dict[str, Any], cls: type) -> Iterator[FunctionType]:
    """The functions of ours that a function names, whether it calls them or hands them on."""
    for each in ast.walk(node):
        value: Any = None
        if isinstance(each, ast.Name):
            value = globals_.get(each.id)
        elif isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name):
            match each.value.id:
                case "self" | "cls":
                    value = inspect.getattr_static(cls, each.attr, None)
                case "db":
                    value = inspect.getattr_static(Tables, each.attr, None)
                case name:
                    value = _resolve(each, globals_) if name in globals_ else None
        value = getattr(value, "__func__", value)
        if isinstance(value, FunctionType):
            value = inspect.unwrap(value)
        if (
            isinstance(value, FunctionType)
            and (
                value.__module__.startswith("state_machines.") or value.__module__ == cls.__module__
            )
            and value.__module__ not in PASSED_OVER
        ):
            yield value


def _resolve(node: ast.expr, globals_: dict[str, Any]) -> Any:
    """What a name, or an attribute of a module, stands for; None if that is not known."""
    if isinstance(node, ast.Name):
        return globals_.get(node.id)
    if isinstance(node, ast.Attribute):
        held = _resolve(node.value, globals_)
        return getattr(held, node.attr, None) if isinstance(held, ModuleType | type) else None
    return None
