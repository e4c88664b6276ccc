"""What a person sees of `jobs.chargeback`: who used most, of what, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jobs import unknown_view
from jobs.job import Context
from jobs.results import Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Bars, Column, Listing, Number, Unit, View

_USED: Final = (
    Column("operations", "operations", "count"),
    Column("written_bytes", "written", "bytes"),
    Column("stored_rows", "rows", "count"),
    Column("stored_bytes", "stored", "bytes"),
    Column("refused", "refused", "count"),
)
_COST: Final = Column("cost_micros", "cost, micro-units", "count")


def view(results: Results, context: Context) -> View:
    """The largest tenants, commands and tables, and the whole in numbers."""
    (total,) = results.table("total").to_pylist()
    priced = any(value for name, value in context.options.items() if name.startswith("micros_"))
    cost = (_COST,) if priced else ()
    largest = {
        column: results.top("tenants", column, LISTING_ROWS, "tenant")
        for column in ("operations", "written_bytes", "stored_bytes", "cost_micros")
    }
    return View(
        headline=unknown_view.headline(_headline(total, priced=priced), results),
        numbers=(
            Number("tenants", total["tenants"]),
            Number("operations", total["operations"]),
            Number("bytes written", total["written_bytes"], "bytes"),
            Number("rows stored", total["stored_rows"]),
            Number("bytes stored", total["stored_bytes"], "bytes"),
            *((Number("cost, micro-units", total["cost_micros"]),) if priced else ()),
            unknown_view.number(results),
        ),
        listings=(
            *unknown_view.listing(results),
            Listing(
                title="Tenants by cost" if priced else "Tenants by operations",
                columns=(Column("tenant", "tenant"), *cost, *_USED),
                rows=_named(largest["cost_micros" if priced else "operations"]),
                of=total["tenants"],
                nothing="no tenant used anything",
            ),
            Listing(
                title="Commands by operations",
                columns=(
                    *(Column("tenant", "tenant"), Column("op", "command")),
                    *(Column("commands", "commands", "count"), *_USED[:2], _USED[-1]),
                ),
                rows=_named(results.top("operations", "operations", LISTING_ROWS, "tenant", "op")),
                of=results.rows("operations"),
                nothing="no operation history",
            ),
            Listing(
                title="Tables by bytes",
                columns=(Column("tenant", "tenant"), Column("table", "table"), *_USED[2:4]),
                rows=_named(
                    results.top("storage", "stored_bytes", LISTING_ROWS, "tenant", "table")
                ),
                of=results.rows("storage"),
            ),
        ),
        plots=tuple(
            _bars(title, label, largest[column], column, unit)
            for title, label, column, unit in (
                *((("Cost by tenant", "micro-units", "cost_micros", "count"),) if priced else ()),
                ("Operations by tenant", "operations", "operations", "count"),
                ("Bytes written by tenant", "bytes", "written_bytes", "bytes"),
                ("Bytes stored by tenant", "bytes", "stored_bytes", "bytes"),
            )
        ),
    )


def _headline(total: Mapping[str, Any], *, priced: bool) -> str:
    if not total["tenants"]:
        return "no tenant used anything"
    said = f"{total['tenants']:,} tenants"
    if total["operations"] is not None:
        said += f", {total['operations']:,} operations"
    if total["stored_rows"] is not None:
        said += f", {total['stored_rows']:,} rows"
    if priced and total["cost_micros"] is not None:
        said += f", for {total['cost_micros']:,} micro-units"
    return said


def _named(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "tenant": row["tenant"] or "(no tenant)"} for row in rows]


def _bars(
    title: str, label: str, rows: Sequence[Mapping[str, Any]], column: str, unit: Unit
) -> Bars:
    some = [row for row in rows if row[column]][:PLOT_NAMES]
    return Bars(
        title=title,
        label=label,
        names=[row["tenant"] or "(no tenant)" for row in some],
        values=[float(row[column]) for row in some],
        unit=unit,
    )
