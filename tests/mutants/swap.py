"""A bug planted after the import: the code of functions that exist is replaced by the bug's.

What a module is imported with costs more than most tests, and nearly every bug changes nothing but
the inside of functions. Then the same text, compiled, differs from what was imported only in the
code of those, and putting that code in place gives what an import would have given, but for what
the functions did while the modules were imported. So a swap may only say that a bug is found: one
that is not found this way is asked again after an import (`quick.py`).
"""

from __future__ import annotations

import gc
import inspect
import os
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

from tests.mutants.mutant import PLANTED, ROOT, Mutant, hand_on

Functions = dict[tuple[str, str], list[FunctionType]]
"""What lives in this process, by file and qualified name."""

SHAPE: Final = ("co_code", "co_names", "co_flags", "co_varnames", "co_freevars")


def changed(mutant: Mutant) -> dict[str, CodeType] | None:
    """The new code of the functions that differ, by qualified name; None if more than that does."""
    source, was = _imported(mutant.path)
    now = compile(mutant.planted(source), mutant.path, "exec", dont_inherit=True)
    bodies = list(zip(_bodies(was), _bodies(now), strict=False))
    if len(bodies) != len(list(_bodies(now))) or not all(_same(*each) for each in bodies):
        return None
    before, after = list(_functions(was)), list(_functions(now))
    names = [each.co_qualname for each in after]
    found = {
        new.co_qualname: new
        for old, new in zip(before, after, strict=True)
        if old.co_qualname != new.co_qualname or not _alike(old, new)
    }
    return found if all(names.count(name) == 1 for name in found) else None


@cache
def _imported(path: Path) -> tuple[str, CodeType]:
    source = path.read_text()
    return source, compile(source, path, "exec", dont_inherit=True)


def alive() -> Functions:
    """The functions of our modules in this process."""
    found: Functions = defaultdict(list)
    for each in gc.get_objects():
        if type(each) is FunctionType and each.__code__.co_filename.startswith(str(ROOT)):
            code = each.__code__
            found[code.co_filename, code.co_qualname].append(each)
    return found


def swap(mutant: Mutant, new: dict[str, CodeType], functions: Functions) -> None:
    """Put the bug in. Processes that this one starts import it."""
    for name, code in new.items():
        living = functions.get((os.fspath(mutant.path), name), [])
        if not living:
            raise LookupError(f"{mutant.name}: nobody has imported {name} of {mutant.module}")
        for each in living:
            each.__code__ = code
    hand_on(PLANTED, mutant.name)


def _bodies(code: CodeType) -> Iterator[CodeType]:
    """The module and its classes: what runs at the import."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType) and not each.co_flags & inspect.CO_OPTIMIZED:
            yield from _bodies(each)


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions that the import makes, methods with them; not those that functions make."""
    for body in _bodies(code):
        for each in body.co_consts:
            if isinstance(each, CodeType) and each.co_flags & inspect.CO_OPTIMIZED:
                yield each


def _same(old: CodeType, new: CodeType) -> bool:
    """Apart from the code within it."""
    if any(getattr(old, part) != getattr(new, part) for part in SHAPE):
        return False
    consts = [
        [None if isinstance(const, CodeType) else (type(const), const) for const in each.co_consts]
        for each in (old, new)
    ]
    return consts[0] == consts[1]


def _alike(old: CodeType, new: CodeType) -> bool:
    """With the code within it, wherever the lines are."""
    if not _same(old, new):
        return False
    within = [[c for c in each.co_consts if isinstance(c, CodeType)] for each in (old, new)]
    return all(_alike(*each) for each in zip(*within, strict=True))
