"""What a person sees of `jobs.hotspots`: what is hot, how the load goes on, what could be done."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.parquet as pq

from jobs import unknown_view
from jobs.job import Context
from jobs.results import BATCH_ROWS, Results
from jobs.view import LISTING_ROWS, PLOT_NAMES, Bars, Column, Lines, Listing, Number, Plot, View

SERIES_MAX: Final = 6  #: Raft groups or brokers in one plot

_HOT: Final = (
    Column("of", "what"),
    Column("within", "within"),
    Column("tenant", "tenant"),
    Column("name", "name"),
    Column("operations", "operations", "count"),
    Column("per_s", "a second", "rate"),
    Column("share", "share", "share"),
    Column("times", "times the median", "count"),
    Column("windows", "windows", "count"),
    Column("last_ms", "last in", "moment"),
)
_STORMS: Final = (
    Column("what", "what"),
    Column("within", "within"),
    Column("tenant", "tenant"),
    Column("name", "name"),
    Column("commands", "commands", "count"),
    Column("commands_per_s", "a second", "rate"),
    Column("windows", "windows", "count"),
    Column("last_ms", "last in", "moment"),
)
_FORECAST: Final = (
    Column("of", "what"),
    Column("name", "name"),
    Column("last_per_s", "last window", "rate"),
    Column("guess_per_s", "was expected", "rate"),
    Column("error", "off by", "share"),
    Column("per_s", "next window", "rate"),
    Column("method", "by"),
)
_ADVICE: Final = (
    Column("id", "id"),
    Column("kind", "kind"),
    Column("target", "target"),
    Column("reason", "reason", prose=True),
    Column("predicted", "would bring", prose=True),
)


def view(results: Results, context: Context) -> View:
    """The hottest, the loads with their forecasts, and all advice."""
    ties = ("of", "within", "tenant", "name")
    hot = results.top("hot", "per_s", LISTING_ROWS, *ties)
    tenants = results.top("hot", "per_s", PLOT_NAMES, *ties, where={"of": "tenant"})
    storms = results.top("storms", "commands_per_s", LISTING_ROWS, "what", *ties[1:])
    advice = results.table("advice").slice(0, LISTING_ROWS).to_pylist()
    next_ = results.top("forecast", "per_s", LISTING_ROWS, "of", "name", where={"ahead": 1})
    found, stormed, advised = (results.rows(each) for each in ("hot", "storms", "advice"))
    off = [each["error"] for each in next_ if each["error"] is not None]
    return View(
        headline=unknown_view.headline(_headline(found, stormed, hot), results),
        numbers=(
            Number("operations", _operations(results)),
            Number("windows end", next_[0]["start_ms"] if next_ else None, "moment"),
            Number("hot spots", found, alarming=found > 0),
            Number("storms", stormed, alarming=stormed > 0),
            Number("advice", advised),
            unknown_view.number(results),
            Number("last guess off by at most", max(off, default=None), "share"),
        ),
        listings=(
            *unknown_view.listing(results),
            Listing(title="Advice", columns=_ADVICE, rows=advice, of=advised),
            Listing(title="Hot spots", columns=_HOT, rows=hot, of=found),
            Listing(title="Storms", columns=_STORMS, rows=storms, of=stormed),
            Listing(
                title="The next window",
                columns=_FORECAST,
                rows=next_,
                of=results.rows("forecast") // context.options["ahead"],
                nothing="nothing was committed",
            ),
        ),
        plots=(
            *_lines(results, context, "group", "Load of the Raft groups"),
            *_lines(results, context, "broker", "Load of the brokers' clients"),
            Bars(
                title="Hot tenants in their worst window",
                label="operations a second",
                names=[f"{each['name']} in {each['within']}" for each in tenants],
                values=[each["per_s"] for each in tenants],
                unit="rate",
                bad=True,
            ),
        ),
    )


def _headline(found: int, stormed: int, hot: Sequence[Mapping[str, Any]]) -> str:
    if not found and not stormed:
        return "Nothing is hot: the load is even."
    said = f"{found:,} hot spots and {stormed:,} storms"
    if not hot:
        return f"{said}."
    first = hot[0]
    return (
        f"{said}; the hottest is {first['of']} {first['name'][:60]} "
        f"with {first['share'] * 100:.0f} % of {first['within']}."
    )


def _operations(results: Results) -> int:
    """Of the Raft groups: a broker's are among them."""
    total = 0
    with pq.ParquetFile(results.files["windows"]) as file:
        for batch in file.iter_batches(BATCH_ROWS, columns=["of", "operations"]):
            of_groups = batch.filter(pc.equal(batch.column("of"), "group"))
            total += sum(each for each in of_groups.column("operations").to_pylist() if each)
    return total


def _lines(results: Results, context: Context, of: str, title: str) -> list[Plot]:
    """The busiest, from the first window to the last that is forecast; none where there is none."""
    busy = results.top("forecast", "per_s", SERIES_MAX, "name", where={"of": of, "ahead": 1})
    known: dict[str, dict[int, float | None]] = {}
    for name in (each["name"] for each in busy):
        where = {"of": of, "name": name}
        rows = [
            *results.top("windows", "start_ms", context.options["windows"], where=where),
            *results.top("forecast", "start_ms", context.options["ahead"], where=where),
        ]
        known[name] = {each["start_ms"]: each["per_s"] for each in rows}
    at_ms = sorted({moment for each in known.values() for moment in each})
    if not at_ms:
        return []
    return [
        Lines(
            title=title,
            label="operations a second",
            at_ms=at_ms,
            series={name: [each.get(moment) for moment in at_ms] for name, each in known.items()},
            forecast_ms=busy[0]["start_ms"],
        )
    ]
