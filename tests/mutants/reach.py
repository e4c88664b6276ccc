"""Which functions of ours some tests call: a bug that they never come by, they need not be asked.

Every call is looked at once a function (`sys.setprofile`), in the process of the tests and in
those that it starts, and written down at once, because some of these are killed.
"""

from __future__ import annotations

import ast
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

from tests.mutants.mutant import ROOT, Mutant
from tests.rewriting import OURS

REACHED: Final = "METARAY_REACHED"
"""The variable that names the file in which the functions are written down."""

Function = tuple[str, int]
"""A module's path, and the line where a function of it begins; 0 for the module itself."""


def write_down(file: str) -> None:
    """From now on, in this process."""
    handle = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    root, seen = f"{ROOT}/", set[CodeType]()

    def look(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or code in seen:
            return
        seen.add(code)
        if code.co_filename.startswith(root):
            where = code.co_filename.removeprefix(root)
            if where.partition("/")[0] in OURS:
                line = 0 if code.co_name == "<module>" else code.co_firstlineno
                try:
                    os.write(handle, f"{where} {line}\n".encode())
                except OSError:  # a test may let no file grow: then when it is called again
                    seen.discard(code)

    threading.setprofile(look)
    sys.setprofile(look)


def read_back(file: Path) -> set[Function]:
    """What was written."""
    found = (line.rpartition(" ") for line in file.read_text().splitlines())
    return {(where, int(line)) for where, _, line in found}


def comes_by(mutant: Mutant, called: Iterable[Function]) -> bool:
    """Whether these calls run something that the bug changes."""
    where = str(mutant.path.relative_to(ROOT))
    return not {(where, line) for line in _functions(mutant)}.isdisjoint(called)


def _functions(mutant: Mutant) -> set[int]:
    """The beginnings of the innermost functions that the bug changes, 0 for the module."""
    source = mutant.path.read_text()
    functions = [
        (min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or 0)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    begins = set()
    for old in (mutant.old, *(each for each, _ in mutant.more)):
        first = source[: source.index(old)].count("\n") + 1
        for line in range(first, first + old.rstrip("\n").count("\n") + 1):
            around = [begin for begin, end in functions if begin <= line <= end]
            begins.add(max(around, default=0))
    return begins
