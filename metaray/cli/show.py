"""Replies on the terminal: a table of a page's rows, the fields of one, JSON for other programs.

A batch with an outcome for each item is a table of outcomes, and the command ends with status 2 if
one was refused, as it does when the whole was. Rows that are too wide for the terminal are shown
one below the other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from metaray.cli.app import UNBOUNDED, cell, console, errors, print_json
from metaray.cli.values import CELL_MAX, VERIFIER, text_of, to_json
from metaray.contract import registry
from metaray.contract.registry import Operation
from state_machines.batch import Outcome
from state_machines.errors import NotFound


def rows_of(page: Any) -> str:
    """The name of a page's rows: what it has first (`op.join_pages`)."""
    return dataclasses.fields(page)[0].name


def whole(
    asked: Any, page: Any, ask: Callable[[Any], Any], notes: Console, upto: int | None = None
) -> Any:
    """All pages as one, asked for one after the other; if so many rows are enough (`upto`), the
    pages that have them."""
    rows = rows_of(page)
    parts = [*getattr(page, rows)]
    with notes.status("") as status:
        while page.next and (upto is None or len(parts) < upto):
            status.update(f"{len(parts):,} {rows} …")
            limit = asked.limit if upto is None else upto - len(parts)
            page = ask(dataclasses.replace(asked, after=page.next, limit=limit))
            parts += getattr(page, rows)
    return dataclasses.replace(page, **{rows: tuple(parts)})


def reply(operation: Operation, asked: Any, value: Any, *, as_json: bool) -> None:
    """Show what a group answered. NotFound for a query that found nothing; exits 2 on a refusal."""
    if value is None and operation.is_query:
        raise NotFound(f"{operation.tag}: there is none")
    if as_json:
        print_json(to_json(value))
    elif value is not None:
        _show(operation, asked, value)
    outcomes = list(_outcomes(value))
    if refused := sum(not each.ok for each in outcomes):
        errors.print(f"[red]refused[/]: {refused} of {len(outcomes)}", highlight=False)
        raise typer.Exit(2)


def _outcomes(value: Any) -> Iterable[Outcome]:
    if isinstance(value, Outcome):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from _outcomes(each)
    elif dataclasses.is_dataclass(value):
        for each in dataclasses.fields(value):
            yield from _outcomes(getattr(value, each.name))


def _show(operation: Operation, asked: Any, value: Any) -> None:
    if registry.is_paged(operation.cls):
        _rows(getattr(value, rows_of(value)))
        if value.next:
            console.print(f"[dim]and more: --all, or --after {value.next.hex()}[/]", soft_wrap=True)
    elif isinstance(value, tuple):
        many = getattr(operation.cls, "many", "")
        items = getattr(asked, many) if many else ()
        _rows(value, items if len(items) == len(value) else ())
    elif dataclasses.is_dataclass(value):
        _record(value)
    else:
        console.print(cell(text_of(value)), highlight=False, soft_wrap=True)


def _rows(rows: Sequence[Any], items: Sequence[Any] = ()) -> None:
    """A table, records if it would be wider than the terminal, or lines of what has no fields."""
    if not rows:
        console.print("[dim]none[/]")
        return
    if not any(dataclasses.is_dataclass(each) for each in rows):
        for each in rows:
            console.print(cell(text_of(each)), highlight=False, soft_wrap=True)
        return
    names = [each.name for each in dataclasses.fields(rows[0])]
    cells = [[cell(text_of(getattr(row, name), name)) for name in names] for row in rows]
    if items:
        names = ["item", *names]
        cells = [[cell(_label(item)), *row] for item, row in zip(items, cells, strict=True)]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        number = isinstance(getattr(rows[0], name, ""), int)
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    for line in cells:
        table.add_row(*line)
    unbounded = console.options.update(width=UNBOUNDED)
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
        return
    for place, row in enumerate(rows):
        if items:
            console.print(f"[bold]{cell(_label(items[place]))}[/]", soft_wrap=True)
        _record(row)
        console.print()


def _record(row: Any) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    for each in dataclasses.fields(row):
        table.add_row(each.name, cell(text_of(getattr(row, each.name), each.name)))
    console.print(table)


def _label(item: Any) -> str:
    """An item in a few words: what it has in texts and numbers."""
    if not dataclasses.is_dataclass(item):
        return text_of(item)
    said = [getattr(item, each.name) for each in dataclasses.fields(item) if each.name != VERIFIER]
    return " ".join(text_of(each) for each in said if isinstance(each, str | int))[:CELL_MAX]
