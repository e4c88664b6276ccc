"""What a person sees of `jobs.diff`: which tables and tenants changed, and the first rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from jobs.job import Context
from jobs.results import Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Column, Listing, Number, Stacks, View, named

PARTS: Final = ("added", "changed", "removed")
TEXT_MAX: Final = 160
"""Letters of a row's values that a listing shows; the whole is in `rows.parquet`."""

_COUNTS: Final = tuple(Column(name, name, "count") for name in (*PARTS, "rewritten"))


def view(results: Results, context: Context) -> View:
    """Tables by changes, tenants by changes, and rows of each kind of change."""
    tables = results.table("tables").to_pylist()
    tables.sort(key=lambda row: (-_changes(row), row["table"]))
    apart = [row for row in tables if row["only"]]
    tables = [row for row in tables if not row["only"]]
    changed = [row for row in tables if _changes(row)]
    totals = {name: sum(row[name] for row in tables) for name in (*PARTS, "rewritten")}
    tenants = _tenants(results)
    groups = _groups_apart(context, tables)
    return View(
        headline=_headline(totals, changed, len(apart), groups),
        numbers=(
            *(Number(f"rows {name}", totals[name]) for name in (*PARTS, "rewritten")),
            Number("rows before", sum(row["rows_before"] for row in tables)),
            Number("rows after", sum(row["rows_after"] for row in tables)),
            Number("Raft groups in one cut alone", len(groups), alarming=bool(groups)),
        ),
        listings=(
            Listing(
                title="Tables by changes",
                columns=(
                    Column("table", "table"),
                    Column("rows_before", "before", "count"),
                    Column("rows_after", "after", "count"),
                    *_COUNTS,
                ),
                rows=tables[:LISTING_ROWS],
                of=len(tables),
                nothing="both cuts are empty",
            ),
            *_apart(apart),
            Listing(
                title="Tenants by changes",
                columns=(Column("tenant", "tenant"), *_COUNTS),
                rows=tenants[:LISTING_ROWS],
                of=len(tenants),
                nothing="nothing changed",
            ),
            *(
                Listing(
                    title=f"Rows {what}, the latest first",
                    columns=(
                        *(Column("table", "table"), Column("key", "key")),
                        *((Column("before", "before"),) if what != "added" else ()),
                        *((Column("after", "after"),) if what != "removed" else ()),
                        Column(
                            f"{'before' if what == 'removed' else 'after'}_revision", "revision"
                        ),
                    ),
                    rows=_rows(results, what),
                    of=totals[what],
                )
                for what in PARTS
                if totals[what]
            ),
        ),
        plots=(
            Stacks(
                title="Changes by table",
                label="rows",
                names=[row["table"] for row in changed[:PLOT_NAMES]],
                parts=PARTS,
                values=[[float(row[part]) for part in PARTS] for row in changed[:PLOT_NAMES]],
            ),
            Stacks(
                title="Changes by tenant",
                label="rows",
                names=[row["tenant"] for row in tenants[:PLOT_NAMES]],
                parts=PARTS,
                values=[[float(row[part]) for part in PARTS] for row in tenants[:PLOT_NAMES]],
            ),
        ),
    )


def _groups_apart(context: Context, tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """The Raft groups that one of the cuts lacks, of a kind whose tables are compared: where it has
    rows, they count as added or removed."""
    if not context.before or not context.cut:
        return []
    kinds = {row["table"].partition(".")[0] for row in tables}
    apart = sorted(context.before.keys() ^ context.cut.keys())
    return [each for each in apart if each.rpartition("-")[0] in kinds]


def _headline(
    totals: Mapping[str, int], changed: Sequence[Any], apart: int, groups: Sequence[str]
) -> str:
    rest = f"; {apart} tables are in one cut alone" if apart else ""
    if groups:
        rest += f"; in one cut alone are the Raft groups {named(groups)}"
    if not changed:
        return f"nothing changed{rest}"
    said = ", ".join(f"{totals[part]:,} {part}" for part in PARTS)
    return f"{said} in {len(changed)} tables{rest}"


def _apart(rows: Sequence[Mapping[str, Any]]) -> list[Listing]:
    columns = (
        *(Column("table", "table"), Column("only", "only in the cut")),
        *(Column("rows_before", "before", "count"), Column("rows_after", "after", "count")),
    )
    found = Listing(title="Not compared", columns=columns, rows=rows[:LISTING_ROWS], of=len(rows))
    return [found] if rows else []


def _changes(row: Mapping[str, Any]) -> int:
    return int(sum(row[part] for part in PARTS))


def _tenants(results: Results) -> list[dict[str, Any]]:
    names = (*PARTS, "rewritten")
    found = results.table("tenants").group_by("tenant").aggregate([(name, "sum") for name in names])
    for name in names:
        found = found.rename_columns(
            [name if each == f"{name}_sum" else each for each in found.column_names]
        )
    largest = pc.add(pc.add(found["added"], found["changed"]), found["removed"])
    order = pc.sort_indices(
        found.append_column("changes", largest),
        sort_keys=[("changes", "descending"), ("tenant", "ascending")],
    )
    rows: list[dict[str, Any]] = found.take(order).to_pylist()
    return [{**row, "tenant": row["tenant"] or "(no tenant)"} for row in rows]


def _rows(results: Results, what: str) -> list[dict[str, Any]]:
    by = "before_revision" if what == "removed" else "after_revision"
    rows = results.top("rows", by, LISTING_ROWS, "table", "key", where={"what": what})
    for row in rows:
        for name in ("key", "before", "after"):
            row[name] = _short(row[name])
    return rows


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
