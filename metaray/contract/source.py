"""What only the source text knows: `#:` comments, and the nodes of functions.

A field or constant is explained by a `#:` comment behind it or in the lines above it, or by a
string below it. Where there is no source (a frozen installation) nothing is explained.
"""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any, Final

MARK: Final = "#:"


@dataclass(frozen=True, slots=True)
class Source:
    """A module's text: its tree, and the `#:` comments by line."""

    tree: ast.Module
    behind: dict[int, str]  #: those with code in front of them
    alone: dict[int, str]  #: those that have a line for themselves


@cache
def of_module(name: str) -> Source:
    """The source of an imported module."""
    try:
        text = inspect.getsource(sys.modules[name])
    except (OSError, TypeError):
        return Source(ast.Module([], []), {}, {})
    behind: dict[int, str] = {}
    alone: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.string.startswith(MARK):
            line, place = token.start
            kept = behind if token.line[:place].strip() else alone
            kept[line] = token.string.removeprefix(MARK).strip()
    return Source(ast.parse(text), behind, alone)


@cache
def functions(module: str) -> dict[str, ast.FunctionDef]:
    """The functions and methods of a module by their qualified names."""
    found: dict[str, ast.FunctionDef] = {}
    for node in of_module(module).tree.body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}": each
                for each in node.body
                if isinstance(each, ast.FunctionDef)
            }
    return found


@cache
def meanings(cls: type) -> dict[str, str]:
    """What the comments say of a class's own fields."""
    source = of_module(cls.__module__)
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            return _explained(source, node.body)
    return {}


@dataclass(frozen=True, slots=True)
class Constant:
    """A named number of a module, and what its comment says."""

    name: str
    value: int
    meaning: str


@cache
def constants(module: str) -> tuple[Constant, ...]:
    """The limits of a module, in their order: the whole numbers it calls `..._MAX` or `..._MIN`.

    Those that it imports from `state_machines.limits` or from a neighbour are its limits too.
    """
    source, held = of_module(module), vars(sys.modules[module])
    said = _explained(source, source.tree.body)
    names: dict[str, str] = {}
    for node in source.tree.body:
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {each.asname or each.name: node.module for each in node.names}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names[node.target.id] = ""
    found = []
    for name, origin in names.items():
        value = held.get(name)
        if name.strip("_").endswith(("_MAX", "_MIN")) and type(value) is int:
            meaning = _meaning_there(origin, name) if origin else said.get(name, "")
            found.append(Constant(name, value, meaning))
    return tuple(found)


def _meaning_there(module: str, name: str) -> str:
    if not isinstance(sys.modules.get(module), ModuleType):
        return ""
    source = of_module(module)
    return _explained(source, source.tree.body).get(name, "")


def _explained(source: Source, body: list[ast.stmt]) -> dict[str, str]:
    found: dict[str, str] = {}
    for place, node in enumerate(body):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        words = source.behind.get(node.end_lineno or node.lineno, "")
        if not words:
            above: list[str] = []
            line = node.lineno - 1
            while line in source.alone:
                above.insert(0, source.alone[line])
                line -= 1
            words = " ".join(above)
        after: Any = body[place + 1] if place + 1 < len(body) else None
        if not words and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            words = " ".join(str(after.value.value).split())
        if words:
            found[node.target.id] = words
    return found
