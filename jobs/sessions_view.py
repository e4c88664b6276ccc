"""What a person sees of `jobs.sessions`: how many there are, where, and which come and go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jobs import unknown_view
from jobs.job import Context
from jobs.results import Results, Row
from jobs.view import LISTING_ROWS, PLOT_NAMES, Column, Lines, Listing, Number, Stacks, View

PARTS: Final = ("active", "disconnected", "expired")
SHARE_ALARMING: Final = 2.0
"""Of the even share: a broker with more than twice as much is worth a look."""

_STATES: Final = tuple(Column(name, name, "count") for name in (*PARTS, "total"))
_BROKER_COLUMNS: Final = (Column("broker", "broker"), *_STATES, Column("share", "share", "share"))
_CLIENT_COLUMNS: Final = (
    Column("tenant", "tenant"),
    Column("client_id", "client"),
    Column("opens", "opens", "count"),
    Column("opens_most", "most at once", "count"),
    Column("takeovers", "takeovers", "count"),
    Column("closes", "closes", "count"),
    Column("last_ms", "last open", "moment"),
)
MINUTES_MAX: Final = 1_440  #: of a plot


def view(results: Results, context: Context) -> View:
    """States, brokers, what comes next, and who flaps."""
    every = results.top("statistics", "total", 1, where={"dimension": "all"})[0]
    (skew,) = results.table("skew").to_pylist()
    flaps, of_tenant = {"flaps": True}, {"dimension": "tenant"}
    flapping = results.top(
        "clients", "opens_most", LISTING_ROWS, "tenant", "client_id", where=flaps
    )
    flapping_all = results.rows("clients", flaps)
    taken = results.top("clients", "takeovers", LISTING_ROWS, "tenant", "client_id")
    brokers = results.top("brokers", "total", LISTING_ROWS, "broker")
    tenants = results.top("statistics", "total", LISTING_ROWS, "value", where=of_tenant)
    churn = results.top("churn", "minute_ms", MINUTES_MAX)[::-1]
    tells = any(row["takeovers"] is not None for row in churn)  # which a cut does not
    even = 1 / skew["brokers"] if skew["brokers"] else None
    share = skew["share_largest"]
    uneven = bool(share and even and skew["brokers"] > 1 and share > SHARE_ALARMING * even)
    return View(
        headline=unknown_view.headline(_headline(every, skew), results),
        numbers=(
            Number("sessions", every["total"]),
            *(Number(name, every[name], alarming=False) for name in PARTS),
            Number("brokers", skew["brokers"]),
            Number("share of the largest broker", share, "share", alarming=uneven),
            Number("coefficient of variation over brokers", skew["coefficient"], "share"),
            Number("takeovers", results.sum("churn", "takeovers") if tells else None),
            Number("clients that flap", flapping_all, alarming=bool(flapping)),
            unknown_view.number(results),
        ),
        listings=(
            *unknown_view.listing(results),
            Listing(
                title="Brokers by sessions",
                columns=_BROKER_COLUMNS,
                rows=brokers,
                of=results.rows("brokers"),
            ),
            Listing(
                title="Tenants by sessions",
                columns=(Column("value", "tenant"), *_STATES),
                rows=tenants,
                of=results.rows("statistics", of_tenant),
            ),
            Listing(
                title="Clients that flap",
                columns=_CLIENT_COLUMNS,
                rows=flapping,
                of=flapping_all,
            ),
            Listing(
                title="Clients by takeovers",
                columns=_CLIENT_COLUMNS,
                rows=taken,
                of=results.rows("clients"),
            ),
        ),
        plots=(
            _stacks(
                "Sessions by broker",
                [(row["broker"] or "(no broker)", row) for row in brokers[:PLOT_NAMES]],
            ),
            _stacks("What clients asked for", _buckets(results, "expiry")),
            _stacks("What is left of it", _buckets(results, "expiring")),
            Lines(
                title="Opened and closed",
                label="sessions a minute",
                at_ms=[row["minute_ms"] for row in churn],
                series={
                    name: [row[name] for row in churn]
                    for name in ("opened", "closed", "takeovers")
                    if any(row[name] is not None for row in churn)
                },
            ),
        ),
    )


def _headline(every: Mapping[str, Any], skew: Mapping[str, Any]) -> str:
    if not every["total"]:
        return "there are no sessions"
    return (
        f"{every['total']:,} sessions, {every['active']:,} of them active "
        f"on {skew['brokers']:,} brokers"
    )


def _buckets(results: Results, dimension: str) -> list[tuple[str, Row]]:
    rows = results.top("statistics", "position", 10, where={"dimension": dimension})
    return [(row["value"], row) for row in reversed(rows)]


def _stacks(title: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Stacks:
    return Stacks(
        title=title,
        label="sessions",
        names=[name for name, _ in rows],
        parts=PARTS,
        values=[[float(row[part]) for part in PARTS] for _, row in rows],
    )
