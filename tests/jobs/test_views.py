"""What a person sees of each job's results, made of rows that were written down here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import chargeback, diff, lag, sessions
from jobs.job import Job
from jobs.results import Results
from jobs.view import View

LARGEST = 2**63 - 1
Rows = dict[str, list[dict[str, Any]]]


Cuts = tuple[dict[str, int], dict[str, int]]


def shown(job: Job, place: Path, rows: Rows, *, cuts: Cuts = ({}, {}), **options: Any) -> View:
    """The job's view of these rows; columns that are not given are 0, "" or null. `cuts` are the
    earlier one and that of the job."""
    files = {}
    for name, output in job.outputs.items():
        table = [
            {field.name: row.get(field.name, nothing(field)) for field in output.schema}
            for row in rows.get(name, [])
        ]
        files[name] = place / f"{name}.parquet"
        pq.write_table(pa.Table.from_pylist(table, schema=output.schema), files[name])
    before, cut = cuts
    view = job.view(Results(files), job.context(0, cut, options, before))
    for listing in view.listings:
        assert listing.of >= len(listing.rows)
        for row in listing.rows:
            assert {column.name for column in listing.columns} <= set(row)
    columns = [column for listing in view.listings for column in listing.columns]
    units = [(each.name, each.unit) for each in view.numbers]
    units += [(each.name, each.unit) for each in columns]
    for name, unit in units:
        assert unit != "rate" or name.endswith(("_per_s", " a second")), name
    return view


def nothing(field: pa.Field) -> Any:
    if field.nullable:
        return None
    return {"string": "", "bool": False, "double": 0.0}.get(str(field.type), 0)


def numbers(view: View) -> dict[str, float | None]:
    return {number.name: number.value for number in view.numbers}


def alarms(view: View) -> set[str]:
    return {number.name for number in view.numbers if number.alarming}


def states(**groups: int) -> list[dict[str, Any]]:
    return [
        {"state": state, "groups": groups.get(state, 0), "partitions": groups.get(state, 0)}
        for state in lag.STATES
    ]


def test_lag(tmp_path: Path) -> None:
    view = shown(
        lag.JOB,
        tmp_path,
        {
            "groups": [
                {"tenant": "default", "group": "a", "state": "stuck", "lag": 5, "lag_ms": 70},
                {"tenant": "t", "group": "b", "state": "abandoned", "lag": 2_000, "lag_ms": 60},
                {"tenant": "t", "group": "c", "state": "unmeasured", "commits": 7},
            ],
            "partitions": [{"lag": 5}, {"lag": 1_500}, {"lag": 500}, {"state": "unmeasured"}],
            "summary": states(stuck=1, abandoned=1, unmeasured=1),
        },
    )
    assert view.headline == "3 groups are 2,005 records behind; 1 stuck and 1 abandoned"
    assert numbers(view)["longest behind"] == 70
    assert (numbers(view)["lag"], numbers(view)["commits"]) == (2_005, 7)
    assert alarms(view) == {"stuck groups", "abandoned groups"}
    lags, longest, *_ = view.plots
    assert (lags.names, lags.values) == (["t/b", "a"], [2_000.0, 5.0])  # type: ignore[union-attr]
    assert longest.names == ["a", "t/b"]  # type: ignore[union-attr]
    assert [listing.title for listing in view.listings][1:3] == ["Stuck groups", "Abandoned groups"]


def test_a_lag_that_64_bits_do_not_hold_is_part_of_the_whole(tmp_path: Path) -> None:
    most = 2**63 - 1
    groups: list[dict[str, Any]] = [
        {"group": "a", "state": "behind", "lag": None, "lag_max": most},
        {"group": "b", "state": "behind", "lag": 7, "lag_max": 7},
    ]
    partitions: list[dict[str, Any]] = [{"lag": most}, {"lag": most}, {"lag": 7}]
    rows = {"groups": groups, "partitions": partitions, "summary": states(behind=2)}
    view = shown(lag.JOB, tmp_path, rows)
    assert view.headline == f"2 groups are {2 * most + 7:,} records behind"
    assert numbers(view)["lag"] == 2 * most + 7


def test_a_lag_that_64_bits_do_not_hold_is_the_largest(tmp_path: Path) -> None:
    most = 2**63 - 1
    groups: list[dict[str, Any]] = [
        {"group": "a", "state": "stuck", "lag": most, "lag_max": most},
        {"group": "b", "state": "stuck", "lag": None, "lag_max": most},
        {"group": "c", "state": "stuck", "lag": None, "lag_max": most},
        {"group": "d", "state": "unmeasured", "lag": None, "lag_max": None},
        *({"group": f"e{n}", "state": "behind", "lag": n, "lag_max": n} for n in range(1, 31)),
    ]
    lags: dict[str, list[Any]] = {"a": [most], "b": [most, 1], "c": [most, 2], "d": [None]}
    partitions = [{"group": group, "lag": each} for group, some in lags.items() for each in some]
    told = states(stuck=3, unmeasured=1, behind=30)
    rows = {"groups": groups, "partitions": partitions, "summary": told}
    view = shown(lag.JOB, tmp_path, rows)
    largest, stuck, _ = view.listings
    assert [row["group"] for row in largest.rows][:4] == ["c", "b", "a", "e30"]
    assert [row["lag"] for row in stuck.rows] == [most + 2, most + 1, most]
    assert view.plots[0].names[:3] == ["/c", "/b", "/a"]  # type: ignore[union-attr]


def test_lag_that_is_not_known(tmp_path: Path) -> None:
    groups = [{"tenant": "t", "group": "c", "state": "unmeasured"}]
    rows = {"groups": groups, "summary": states(unmeasured=1)}
    view = shown(lag.JOB, tmp_path, rows)
    assert view.headline == "1 groups of unknown lag (no watermarks)"
    assert numbers(view)["lag"] is None
    empty = shown(lag.JOB, tmp_path, {"summary": states()})
    assert empty.headline == "no consumer group has committed an offset"
    assert not alarms(empty)


def everyone(**counts: int) -> dict[str, Any]:
    return {"dimension": "all", "value": "all", **counts}


def test_sessions(tmp_path: Path) -> None:
    brokers = [
        {"broker": name, "active": active, "total": active}
        for name, active in (("b1", 8), ("", 1), ("b3", 0))
    ]
    view = shown(
        sessions.JOB,
        tmp_path,
        {
            "statistics": [everyone(active=9, total=12, disconnected=2, expired=1)],
            "brokers": brokers,
            "skew": [{"brokers": 3, "active": 9, "largest": "b1", "share_largest": 8 / 9}],
            "churn": [
                {"minute_ms": 60_000, "told_by": "history", "opened": 3, "takeovers": 2},
                {"minute_ms": 0, "told_by": "history", "opened": 1, "takeovers": 1},
            ],
            "clients": [
                {"client_id": "x", "opens_most": 12, "flaps": True},
                {"client_id": "y", "takeovers": 3},
            ],
        },
    )
    assert view.headline == "12 sessions, 9 of them active on 3 brokers"
    assert alarms(view) == {"share of the largest broker", "clients that flap"}
    assert numbers(view)["takeovers"] == 3
    flapping = next(each for each in view.listings if each.title == "Clients that flap")
    assert [row["client_id"] for row in flapping.rows] == ["x"]
    assert view.plots[0].names == ["b1", "(no broker)", "b3"]  # type: ignore[union-attr]
    assert view.plots[-1].at_ms == [0, 60_000]  # type: ignore[union-attr]


def test_what_is_shown_of_sessions_is_some_of_all(tmp_path: Path) -> None:
    tenants = [{"dimension": "tenant", "value": f"t{n:02}", "total": n} for n in range(23)]
    clients = [{"client_id": f"c{n}", "opens_most": n, "flaps": n >= 5} for n in range(30)]
    rows: Rows = {"statistics": [everyone(total=9), *tenants], "skew": [{}], "clients": clients}
    view = shown(sessions.JOB, tmp_path, rows)
    assert numbers(view)["clients that flap"] == 25
    listed = {each.title: (len(each.rows), each.of) for each in view.listings}
    assert listed["Clients that flap"] == (20, 25)
    assert listed["Tenants by sessions"] == (20, 23)


def test_takeovers_are_those_of_the_whole_window(tmp_path: Path) -> None:
    """A plot has the last minutes alone."""
    known: Rows = {"statistics": [everyone()], "skew": [{}]}
    minutes = [{"minute_ms": 60_000 * n, "takeovers": 1} for n in range(2_000)]
    view = shown(sessions.JOB, tmp_path, {**known, "churn": minutes})
    assert numbers(view)["takeovers"] == 2_000
    view = shown(sessions.JOB, tmp_path, {**known, "churn": [{"told_by": "cut"}]})
    assert numbers(view)["takeovers"] is None


def test_no_sessions(tmp_path: Path) -> None:
    view = shown(sessions.JOB, tmp_path, {"statistics": [everyone()], "skew": [{}]})
    assert view.headline == "there are no sessions"
    assert set(numbers(view).values()) <= {0, None}


@pytest.mark.parametrize("price", [0, 5])
def test_chargeback(tmp_path: Path, price: int) -> None:
    total = {"tenants": 2, "operations": 1_500, "stored_rows": 3, "cost_micros": 9}
    view = shown(
        chargeback.JOB,
        tmp_path,
        {
            "tenants": [
                {"tenant": "", "operations": 1_000, "cost_micros": 2},
                {"tenant": "b", "operations": 500, "cost_micros": 7},
            ],
            "total": [total],
        },
        micros_per_gib_stored=price,
    )
    priced = ", for 9 micro-units" if price else ""
    assert view.headline == f"2 tenants, 1,500 operations, 3 rows{priced}"
    assert ("cost, micro-units" in numbers(view)) == bool(price)
    first = ["b", "(no tenant)"] if price else ["(no tenant)", "b"]
    assert [row["tenant"] for row in view.listings[0].rows] == first
    assert len(view.plots) == (4 if price else 3)


def test_a_chargeback_of_sums_that_do_not_fit(tmp_path: Path) -> None:
    rows: Rows = {"tenants": [{"tenant": "a"}], "total": [{"tenants": 1}]}
    view = shown(chargeback.JOB, tmp_path, rows, micros_per_gib_stored=1)
    assert numbers(view)["operations"] is None
    empty = shown(chargeback.JOB, tmp_path, {"total": [{}]})
    assert empty.headline == "no tenant used anything"


@pytest.mark.parametrize(
    ("job", "rows", "said"),
    [
        (sessions.JOB, {"statistics": [everyone()], "skew": [{}]}, "there are no sessions"),
        (chargeback.JOB, {"total": [{}]}, "no tenant used anything"),
    ],
)
def test_what_the_history_lacks_is_in_the_headline(
    job: Job, rows: Rows, said: str, tmp_path: Path
) -> None:
    lacking = [{"group": f"mqtt-{n}", "to_ms": n, "reason": "compacted"} for n in (1, 0, 0)]
    view = shown(job, tmp_path, {**rows, "unknown": lacking})
    assert view.headline == f"{said}. The history lacks entries of mqtt-0, mqtt-1."
    assert alarms(view) == {"times not known"}
    listing = view.listings[0]
    assert (listing.title, [row["group"] for row in listing.rows]) == (
        *("What is not known", ["mqtt-1", "mqtt-0", "mqtt-0"]),
    )


def test_a_diff_names_the_raft_groups_that_one_of_the_cuts_lacks(tmp_path: Path) -> None:
    rows: Rows = {
        "tables": [
            {"table": "mqtt.session", "removed": 5},
            {"table": "offset.offset", "only": "before"},  # not compared, nor are its groups
        ]
    }
    before = {"mqtt-0": 1, "mqtt-1": 7, "offset-0": 1}
    view = shown(diff.JOB, tmp_path, rows, cuts=(before, {"mqtt-0": 2, "mqtt-2": 1}))
    assert view.headline == (
        "0 added, 0 changed, 5 removed in 1 tables; 1 tables are in one cut alone; "
        "in one cut alone are the Raft groups mqtt-1, mqtt-2"
    )
    assert alarms(view) == {"Raft groups in one cut alone"}
    same = shown(diff.JOB, tmp_path, rows, cuts=(before, before))
    assert alarms(same) == set()


def test_diff(tmp_path: Path) -> None:
    long = "é" * 500
    view = shown(
        diff.JOB,
        tmp_path,
        {
            "tables": [
                {"table": "quiet", "rows_before": 4, "rows_after": 4, "rewritten": 1},
                {"table": "busy", "rows_before": 1_000, "added": 1_200, "removed": 1, "changed": 2},
            ],
            "tenants": [
                {"tenant": "", "table": "busy", "added": 1},
                {"tenant": "a", "table": "busy", "changed": 1},
                {"tenant": "a", "table": "quiet", "changed": 1, "rewritten": 1},
            ],
            "rows": [
                {"what": "added", "key": "k1", "after": long, "after_revision": 5},
                {"what": "added", "key": "k2", "after": "{}", "after_revision": LARGEST},
                {"what": "removed", "key": "k3", "before": "{}", "before_revision": 1},
            ],
        },
    )
    assert view.headline == "1,200 added, 2 changed, 1 removed in 1 tables"
    tables, tenants, added, _, removed = view.listings
    assert [row["table"] for row in tables.rows] == ["busy", "quiet"]
    assert [(row["tenant"], row["changed"], row["rewritten"]) for row in tenants.rows] == [
        ("a", 2, 1),
        ("(no tenant)", 0, 0),
    ]
    assert [row["key"] for row in added.rows] == ["k2", "k1"]
    assert len(added.rows[1]["after"]) == 160
    assert (added.of, removed.of, len(removed.rows)) == (1_200, 1, 1)
    assert view.plots[0].names == ["busy"]  # type: ignore[union-attr]
    empty = shown(diff.JOB, tmp_path, {})
    assert (empty.headline, len(empty.listings)) == ("nothing changed", 2)
