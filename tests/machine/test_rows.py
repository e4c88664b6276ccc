"""Rows are for ever: what a disk holds was packed by place, so fields only come at the end.

`rows.golden` lists every table with its key and the fields of its rows, in order. A table may be
added, and a field with a default at the end of a row; `pytest --rewrite` then writes them down.
"""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

import state_machines.machine  # noqa: F401 - registers every entity
from state_machines.tables import TABLES, Table

GOLDEN = Path(__file__).with_name("rows.golden")


def fields(row: Any) -> list[str]:
    hints = typing.get_type_hints(row)
    return [
        f"{each.name}: {_spell(hints[each.name])}"
        + ("" if each.default is dataclasses.MISSING else f" = {each.default!r}")
        for each in dataclasses.fields(row)
    ]


def _spell(hint: Any) -> str:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return f"({', '.join(fields(hint))})"
    if typing.get_origin(hint) is tuple:
        return f"tuple[{_spell(typing.get_args(hint)[0])}, ...]"
    return hint.__name__ if isinstance(hint, type) else str(hint)


def listing() -> str:
    lines: list[str] = []
    for name, table in sorted(TABLES.items()):
        if not name.startswith("test."):
            lines.append(f"{name} by {', '.join(table.key)}{_laid_out(table)}")
            lines += [f"    {each}" for each in fields(table.row)]
    return "\n".join(lines) + "\n"


def _laid_out(table: Table[Any]) -> str:
    """Where a row's fields stand, if not in their own order."""
    if table.layout is None:
        return ""
    return f", with {', '.join(table.layout.place)} in front and {table.layout.text} behind"


def parse(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith(" "):
            found[table].append(line.strip())
        else:
            table = line
            found[table] = []
    return found


def broken(was: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """Tables whose stored rows could not be read any more."""
    return [
        table
        for table, before in was.items()
        if (after := now.get(table)) is None
        or after[: len(before)] != before
        or not all(" = " in each for each in after[len(before) :])
    ]


def test_rows_are_for_ever(request: pytest.FixtureRequest) -> None:
    now = listing()
    was = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    assert not broken(parse(was), parse(now))
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(now, encoding="utf-8")
        return
    assert now == was, "something was added: write it down with pytest --rewrite"


WAS = "a.b by key\n    key: str\n    size: int\n"


@pytest.mark.parametrize(
    "now",
    [
        "",
        WAS.replace("by key", "by size"),
        WAS.replace("    size: int\n", ""),
        WAS.replace("size: int", "size: str"),
        "a.b by key\n    size: int\n    key: str\n",
        WAS + "    more: int\n",
        WAS.replace("    size", "    more: int = 0\n    size"),
    ],
)
def test_what_would_make_a_disk_unreadable(now: str) -> None:
    assert broken(parse(WAS), parse(now)) == ["a.b by key"]


def test_what_may_be_added() -> None:
    assert broken(parse(WAS), parse(WAS + "    more: int = 0\na.c by key\n    key: str\n")) == []
