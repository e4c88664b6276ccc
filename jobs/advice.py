"""What could be done about hot spots, each with its reason, its numbers and what it should bring.

    quota    a tenant that is hot gets a limit: so much that it would not be hot any more. What the
             Raft group has to do then is its load without what is above the limit.
    leader   the leadership of a Raft group moves to the node where the highest load of any node
             becomes least. A group moves as a whole: nothing is guessed.
    slots    slots move from the fullest Raft group of a kind to the emptiest, so that both have the
             same, if load is even over slots.
    broker   a broker gives away the sessions that it has above the mean
    storm    a consumer group should commit less often
    client   a client should be asked why it comes and goes

The first two the controller can carry out (`state_machines.metadata.advice`), the others are for
people. The load that they start from is the forecast of the next window. An advice has the id that
follows from what it is about and its window, so the same history gives the same advice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import reduce
from string import Formatter
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from actors import columns
from jobs import advice_sql
from jobs.job import Context
from jobs.loads import end_of
from jobs.schemas import require, sql
from state_machines.limits import NAME_BYTES_MAX
from state_machines.metadata.slot_map import KindSlots
from state_machines.metadata.tenant import TenantQuotas
from state_machines.quota import LIMIT_MAX

_OPTIONS: Final = (
    *("hot_times", "storm_commits_per_s", "storm_opens_per_s", "uneven", "uneven_sessions"),
)
EACH_MAX: Final = 20  #: rows of one kind, the weightiest
NAME_SHOWN: Final = 60  #: characters of a name in a reason


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


def _part(row: type, *names: str) -> pa.Schema:
    whole = columns.schema_of(row)
    return pa.schema([whole.field(name) for name in names])


TENANTS = pa.schema(
    [
        _not_null("name", pa.string()),
        _not_null(
            "quotas",
            pa.struct(list(_part(TenantQuotas, *(each.name for each in fields(TenantQuotas))))),
        ),
    ]
)
SLOTS = _part(KindSlots, "kind", "ranges")
SESSIONS = pa.schema(
    [
        _not_null("tenant", pa.string()),
        _not_null("client_id", pa.string()),
        _not_null("broker", pa.string()),
        _not_null("connected", pa.bool_()),
    ]
)
NODES = pa.schema([_not_null("node_id", pa.string()), _not_null("online", pa.bool_())])
LEADERS = pa.schema(
    [
        _not_null("group", pa.string()),
        _not_null("seat", pa.string()),
        _not_null("node", pa.string()),  # the Ray node that it is on
        _not_null("leads", pa.bool_()),
    ]
)
"""The seats of the Raft groups, those with a voter."""

ADVICE = pa.schema(
    [
        _not_null("id", pa.string()),
        _not_null("kind", pa.string()),  # as `state_machines.metadata.advice` has them
        _not_null("target", pa.string()),
        _not_null("limit", pa.string()),
        _not_null("number", pa.int64()),
        _not_null("source", pa.string()),
        _not_null("destination", pa.string()),
        _not_null("reason", pa.string()),
        _not_null("evidence", pa.string()),  # JSON
        _not_null("predicted", pa.string()),  # JSON
        _not_null("start_ms", pa.int64()),  # of the window it was found in
        _not_null("expires_ms", pa.int64()),
    ]
)
"""One row for each advice: the fields of `metadata.advice.put`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What there is besides the history; each may be empty."""

    tenants: DataFrame
    sessions: DataFrame
    nodes: DataFrame
    slots: DataFrame
    leaders: DataFrame


def advice(
    hot_windows: DataFrame, storms: DataFrame, forecast: DataFrame, cut: Cut, context: Context
) -> DataFrame:
    """ADVICE of what was hot or stormed in the last `fresh_windows`, and of what is to come."""
    options, window_ms = context.options, context.options["window_ms"]
    end_ms = end_of(context.now_ms, window_ms)
    given: dict[str, Any] = {
        "hot": hot_windows,
        "storms": storms,
        "forecast": forecast,
        **{each.name: getattr(cut, each.name) for each in fields(cut)},
        "window_ms": window_ms,
        "fresh_ms": end_ms - options["fresh_windows"] * window_ms,
        "last_ms": end_ms - window_ms,
        "seconds": float(window_ms / 1000),
        "shown": NAME_SHOWN,
        "bytes": NAME_BYTES_MAX,
        "most": LIMIT_MAX,
        **{name: options[name] for name in _OPTIONS},
    }
    found = [sql(forecast, text, **_used(text, given)) for text in advice_sql.EACH]
    result = sql(
        forecast,
        advice_sql.ALL,
        found=reduce(DataFrame.unionByName, found),
        bytes=NAME_BYTES_MAX,
        each_max=EACH_MAX,
        expires_ms=context.now_ms + options["advice_ms"],
    )
    return require(result, ADVICE, "advice")


def _used(text: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What a text speaks of: Spark makes a view of every frame that it is given."""
    names = {name for _, name, _, _ in Formatter().parse(text) if name}
    return {name: given[name] for name in names}
