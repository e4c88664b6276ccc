"""The whole of the job, its view, and what is hot.

A plan of Spark takes longer here than its rows, so a test has many answers out of one.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from jobs.hotspots import HOT, JOB, hot, hot_windows, storms
from jobs.loads import LOADS, loads
from jobs.operations import OPERATIONS
from jobs.view import Bars, Lines
from tests.jobs.conftest import Rows
from tests.jobs.hotspots.made import (
    EMPTY,
    END,
    MINUTE,
    NOW,
    collect,
    context,
    did,
    load,
    results,
    run,
    tenants,
)


@pytest.mark.spark
@pytest.mark.long
def test_a_hot_tenant_is_found_with_its_share_and_a_limit_is_advised(
    rows: Rows, tmp_path: Path
) -> None:
    history = [
        *tenants(-3, hot=9_100),
        *tenants(-2, hot=100),
        *tenants(-1, hot=8_100),
        *tenants(0, hot=99_999),  # not whole
        *tenants(-99, hot=99_999),  # too long ago
    ]
    found = run(rows, history)
    (tenant,) = [each for each in found["hot"] if each["of"] == "tenant"]
    assert tenant == {
        "of": "tenant",
        "within": "offset-0",
        "tenant": "acme",
        "name": "acme",
        "windows": 2,
        "last_ms": END - MINUTE,
        "start_ms": END - 3 * MINUTE,
        "commands": 1,
        "operations": 9_100,
        "bytes": 10,
        "per_s": pytest.approx(9_100 / 60),
        "share": 0.91,
        "times": 91.0,
        "median": 100,
        "others": 9,
        "total": 10_000,
    }
    names = {(each["of"], each["name"]) for each in found["hot"]}
    assert names == {("tenant", "acme"), ("consumer", "big")}
    (cap,) = found["advice"]
    assert (cap["kind"], cap["target"], cap["limit"]) == ("quota", "acme", "offset_commits_per_s")
    assert cap["number"] == 9, "five times the median of 100 a minute, rounded up"
    assert (cap["start_ms"], cap["expires_ms"]) == (END - MINUTE, END + 7 + 3_600_000)
    assert cap["reason"] == (
        "tenant acme made 8100 of 9000 offset commits of offset-0 in 60 s (90.0 %), "
        "81.0 times the median of 10 tenants"
    )
    evidence, predicted = json.loads(cap["evidence"]), json.loads(cap["predicted"])
    assert (evidence["operations"], evidence["total"], evidence["share"]) == (8_100, 9_000, 0.9)
    after = 900 / 60 + 9
    assert predicted == {
        "group": "offset-0",
        "per_s": after,
        "share": round(9 / after, 3),
        "tenant_per_s": 9,
    }
    about = f"quota|acme|offset_commits_per_s|{END - MINUTE}"
    assert cap["id"] == hashlib.sha256(about.encode()).hexdigest()[:16], "the same for ever"
    view = JOB.view(results(found, tmp_path), context())
    assert view.headline.startswith("2 hot spots and 0 storms; the hottest is consumer big")
    numbers = {each.name: each.value for each in view.numbers}
    assert numbers["operations"] == 10_000 + 1_000 + 9_000
    assert (numbers["hot spots"], numbers["advice"]) == (2, 1)
    lines, bars = view.plots
    assert isinstance(lines, Lines)
    assert isinstance(bars, Bars)
    assert len(lines.at_ms) == 3 + context().options["ahead"]
    assert lines.forecast_ms == END
    assert bars.names == ["acme in offset-0"]


@pytest.mark.spark
def test_nothing_is_hot_in_a_cold_history(rows: Rows) -> None:
    even = [each for window in (-3, -2, -1) for each in tenants(window, hot=1_500, others=1_500)]
    small = [{**each, "group": "metadata-0"} for each in tenants(-1, hot=999, others=1)]
    alone = [did(-1, 40_000, group="mqtt-0", op="mqtt.retained.set", subject="t")]
    of_windows = loads(rows(OPERATIONS, [*even, *small, *alone]), NOW, MINUTE, 60).persist()
    assert of_windows.count() > 50
    found = hot_windows(of_windows, MINUTE, operations=1_000, share=20, times=5)
    assert found.collect() == []
    options = context().options
    stormy = storms(
        of_windows,
        MINUTE,
        commits_per_s=options["storm_commits_per_s"],
        flaps=options["flaps"],
        opens_per_s=options["storm_opens_per_s"],
    )
    assert stormy.collect() == []
    of_windows.unpersist()


def test_the_view_of_nothing(tmp_path: Path) -> None:
    view = JOB.view(results(EMPTY, tmp_path), context())
    assert view.headline == "Nothing is hot: the load is even."
    assert len(view.plots) == 1


def test_the_view_names_the_groups_of_which_entries_are_missing(tmp_path: Path) -> None:
    lacking = [
        {"group": f"offset-{n}", "from_ms": None, "to_ms": END, "entries": 7, "reason": "compacted"}
        for n in (*range(9), 0)
    ]
    view = JOB.view(results({**EMPTY, "unknown": lacking}, tmp_path), context())
    named = ", ".join(f"offset-{n}" for n in range(8))
    assert view.headline.endswith(f" The history lacks entries of {named} and 1 more.")
    (number,) = [each for each in view.numbers if each.name == "times not known"]
    assert (number.value, number.alarming) == (10, True)


@pytest.mark.spark
def test_the_median_is_the_same_in_whatever_parts_spark_has_the_loads(rows: Rows) -> None:
    some = [load("client", f"c{n}", 1 + n * n % 999_983) for n in range(9_000)]
    middle = sorted(each["operations"] for each in some)[4_500]
    known = rows(LOADS, [*some, load("client", "hot", 20 * middle)])
    for parts in (1, 3):
        found = hot_windows(known.repartition(parts), MINUTE, operations=1, share=0, times=10)
        assert [(each["name"], each["median"]) for each in found.collect()] == [("hot", middle)]


@pytest.mark.spark
def test_hot_is_what_is_large_and_has_a_large_share_of_many_times_the_median(rows: Rows) -> None:
    even = [load("consumer", f"g{n}", 1_000) for n in range(10)]
    some = [load("topic", f"x{n}", 1_000) for n in range(45)]
    groups = [load("group", f"offset-{n}", 100, within="offset") for n in range(1, 4)]
    known = [
        *[*even, load("consumer", "big", 5_000), load("consumer", "lost", None)],
        *[*some, load("topic", "ten times, a tenth", 10_000)],
        *[*groups, load("group", "offset-0", 5_000, within="offset")],
        load("group", "mqtt-0", 90_000, within="mqtt"),  # the only one of its kind
        *[load("client", f"c{n}", 1) for n in range(3)],
        load("client", "small", 999),
    ]
    found = hot_windows(rows(LOADS, known), MINUTE, operations=1_000, share=20, times=5)
    assert {
        (each["of"], each["name"], each["share"], each["times"])
        for each in collect(hot(found), HOT, "of", "name")
    } == {("consumer", "big", 5_000 / 15_000, 5.0), ("group", "offset-0", 5_000 / 5_300, 50.0)}
