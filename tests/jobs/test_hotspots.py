"""Hot spots, storms, forecasts and advice, on histories whose answers are known beforehand.

A plan of Spark takes longer here than its rows, so a test has many answers out of one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.advice import ADVICE, LEADERS, NODES, SESSIONS, SLOTS, TENANTS, Cut, advice
from jobs.hotspots import BESIDE, HOT, JOB, STORMS, hot, hot_windows, known_ms, storms
from jobs.job import Context
from jobs.loads import FORECAST, LOADS, SERIES, forecast, loads, series
from jobs.operation_files import GAPS
from jobs.operations import OPERATIONS, SUBJECT_MAX, subject_name
from jobs.results import Results
from jobs.schemas import spark_type
from jobs.session import Session
from jobs.unknown import CLOCKS, UNKNOWN
from jobs.view import Bars, Lines
from state_machines import op
from state_machines.metadata.advice import NewAdvice, PutAdvice
from tests.jobs.conftest import Rows

MINUTE = 60_000
END = 1_800_000_000_000 - 1_800_000_000_000 % MINUTE
NOW = END + 1_234  #: the window that it lies in is not whole, and not looked at

#: Ids of clients: as long as a subject may be, longer, and one like the name of a longer one.
LONG, LONGER = "\U0001f600" * (SUBJECT_MAX - 1) + "é", "\U0001f600" * (SUBJECT_MAX + 1)
ALIKE = "a" * (SUBJECT_MAX - 17) + "~" + "0" * 16

Row = dict[str, Any]
EMPTY: dict[str, list[Row]] = {name: [] for name in JOB.outputs}
INPUTS = {
    "tenants": TENANTS,
    "sessions": SESSIONS,
    "nodes": NODES,
    "slots": SLOTS,
    "leaders": LEADERS,
}
LACKING = {"clocks": CLOCKS, "gaps": GAPS}


QUICK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Java is not compiled for a few rows."""


@pytest.fixture
def rows(rows: Rows, session: Session) -> Iterator[Rows]:
    """The same, by a Spark that does not make much of few rows."""
    before = {key: session.spark.conf.get(key, None) for key in QUICK}
    for key, value in QUICK.items():
        session.spark.conf.set(key, value)
    yield rows
    for key, old in before.items():
        if old is None:
            session.spark.conf.unset(key)
        else:
            session.spark.conf.set(key, old)


def did(window: int, items: int, **fields: Any) -> Row:
    """A command in a window; -1 is the last whole one."""
    return {
        "group": "offset-0",
        "index": 1,
        "number": 0,
        "term": 1,
        "at_ms": END + window * MINUTE + 7,
        "client": "1f",
        "sequence": 1,
        "op": "offset.commit",
        "tenant": "default",
        "subject": "g",
        "items": items,
        "bytes": 10,
        "outcome": None,
        "body": None,
        **fields,
    }


def tenants(window: int, hot: int, others: int = 100, count: int = 9) -> list[Row]:
    """`acme` commits `hot` offsets, each of the others so many."""
    rest = [did(window, others, tenant=f"t{n}", subject=f"g{n}") for n in range(count)]
    return [did(window, hot, tenant="acme", subject="big"), *rest]


def context(**options: Any) -> Context:
    return JOB.context(NOW, {}, options)


def collect(frame: Any, schema: pa.Schema, *order: str) -> list[Row]:
    assert frame.dtypes == [(each.name, spark_type(each.type)) for each in schema]
    found = [row.asDict(recursive=True) for row in frame.collect()]
    pa.RecordBatch.from_pylist(found, schema=schema).validate(full=True)
    return sorted(found, key=lambda row: tuple(row[name] for name in order))


def run(rows: Rows, operations: Iterable[Row], **options: Any) -> dict[str, list[Row]]:
    """All outputs of the job over a history alone."""
    inputs = {name: rows(schema, []) for name, schema in (INPUTS | LACKING).items()}
    inputs["operations"] = rows(OPERATIONS, list(operations))
    made = JOB.run(inputs, context(**options))
    found = {
        name: collect(made[name], output.schema, *output.order)
        for name, output in JOB.outputs.items()
    }
    inputs["operations"].sparkSession.catalog.clearCache()
    return found


# -- the whole -----------------------------------------------------------------------------------


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


def results(found: dict[str, list[Row]], directory: Path) -> Results:
    for name, output in JOB.outputs.items():
        table = pa.Table.from_pylist(found[name], schema=output.schema)
        pq.write_table(table, directory / f"{name}.parquet")
    return Results({name: directory / f"{name}.parquet" for name in JOB.outputs})


# -- windows and forecasts -----------------------------------------------------------------------


@pytest.mark.spark
def test_the_load_is_told_by_what_it_is_about_and_by_window(rows: Rows) -> None:
    mqtt = {"group": "mqtt-0", "client": "2a"}
    history = [
        did(-6, 60),
        did(-5, 60),
        did(-1, 120, op="mqtt.session.save", subject="c1", **mqtt),
        did(-1, 60, op="mqtt.subscription.put", subject="c2", **mqtt),
        did(-1, 30, op="mqtt.will.set", subject="c3", **mqtt),
        did(-1, 240, op="mqtt.will.set", subject=subject_name(LONG), **mqtt),
        did(-1, 360, op="mqtt.will.set", subject=subject_name(LONGER), **mqtt),
        did(-1, 480, op="mqtt.will.set", subject=subject_name(ALIKE), **mqtt),
        did(-1, 600, op="mqtt.retained.set", subject="c1", **mqtt),  # a topic of that name
        did(-1, 7, op="mqtt.pulse", subject="", tenant="", **mqtt),
        did(-1, 2**62, group="offset-1", subject="x"),
        did(-1, 2**62, group="offset-1", subject="x"),
    ]
    of_windows = loads(rows(OPERATIONS, history), NOW, MINUTE, 6).persist()
    found = collect(of_windows, LOADS, "of", "within", "name", "start_ms")
    told = {
        (each["of"], each["within"], each["name"]): each["operations"]
        for each in found
        if each["start_ms"] == END - MINUTE
    }
    assert told == {
        ("group", "mqtt", "mqtt-0"): 817 + 1_080,
        ("group", "offset", "offset-1"): None,  # more than 64 bits hold
        ("tenant", "mqtt-0", "default"): 810 + 1_080,
        ("tenant", "offset-1", "default"): None,
        ("writer", "mqtt-0", "2a"): 817 + 1_080,
        ("writer", "offset-1", "1f"): None,
        ("client", "mqtt-0", "c1"): 120,
        # Sessions that are saved are opened, and the tenant's limit counts them.
        ("opens", "mqtt-0", "c1"): 120,
        ("session_opens_per_s", "mqtt-0", "default"): 120,
        ("client", "mqtt-0", "c2"): 60,
        ("client", "mqtt-0", "c3"): 30,
        ("client", "mqtt-0", subject_name(LONG)): 240,
        ("client", "mqtt-0", subject_name(LONGER)): 360,
        ("client", "mqtt-0", subject_name(ALIKE)): 480,
        ("topic", "mqtt-0", "c1"): 600,
        ("consumer", "offset-1", "x"): None,
        ("commits", "offset-1", "x"): None,
        ("offset_commits_per_s", "offset-1", "default"): None,
    }
    at = {"c1": "b1", "c2": "b1", "c3": "b2", "c9": "b3"}
    at |= {LONG: "b4", LONGER: "b5", ALIKE: "b6"}
    sessions = [
        {"tenant": "default", "client_id": client, "broker": broker, "connected": True}
        for client, broker in at.items()
    ]
    made = series(of_windows, rows(SESSIONS, sessions), rows(UNKNOWN, []), NOW, MINUTE)
    every = collect(made, SERIES, "of", "name", "start_ms")
    of_window = {
        (each["name"], (each["start_ms"] - END) // MINUTE): each["per_s"] for each in every
    }
    assert [of_window["offset-0", n] for n in range(-6, 0)] == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    assert [of_window["b1", n] for n in (-6, -1)] == [0.0, 3.0]
    assert of_window["b2", -1] == 0.5
    assert [of_window[name, -1] for name in ("b4", "b5", "b6")] == [4.0, 6.0, 8.0]
    assert of_window["offset-1", -1] is None
    assert len(every) == 6 * 8, "each of three groups and five brokers in each window"
    of_windows.unpersist()


@pytest.mark.spark
def test_what_is_not_exported_yet_is_no_load_of_nothing(rows: Rows) -> None:
    inputs = {name: rows(schema, []) for name, schema in (INPUTS | LACKING).items()}
    inputs["operations"] = rows(OPERATIONS, [did(window, 60) for window in (-4, -3, -2)])
    made = JOB.run(inputs, context())["forecast"].where("`of` = 'group' and ahead = 1")
    (next_,) = made.collect()
    inputs["operations"].sparkSession.catalog.clearCache()
    assert (next_["last_per_s"], next_["start_ms"]) == (1.0, END - MINUTE), "-1 is not known"


@pytest.mark.spark
def test_a_group_that_lags_or_has_a_gap_did_not_do_nothing(rows: Rows, tmp_path: Path) -> None:
    history = [
        *(did(window, 60, index=50 + window) for window in range(-6, 0)),
        *(did(window, 60, group="offset-1", index=50 + window) for window in (-6, -5)),
        did(-6, 60, group="offset-2", index=1),
        did(-3, 60, group="offset-2", index=9),
        did(-6, 60, group="idle-0", index=1),
    ]
    at = {"offset-0": (49, -1), "offset-1": (80, -1), "offset-2": (9, -3), "idle-0": (1, -6)}
    at |= {"offset-3": (7, -3), "old-0": (7, -99)}
    clocks = [
        {"raft_group": group, "index": index, "now_ms": END + window * MINUTE + 7}
        for group, (index, window) in at.items()
    ]
    gap = {"group": "offset-2", "first": 2, "last": 8, "found_ms": END, "reason": "compacted"}
    inputs = {name: rows(schema, []) for name, schema in (INPUTS | LACKING).items()}
    inputs["operations"] = rows(OPERATIONS, history)
    inputs |= {"clocks": rows(CLOCKS, clocks), "gaps": rows(GAPS, [gap])}
    made = JOB.run(inputs, context(windows=6))
    found = {
        name: collect(made[name], JOB.outputs[name].schema, *JOB.outputs[name].order)
        for name in ("unknown", "windows", "forecast")
    }
    inputs["operations"].sparkSession.catalog.clearCache()
    assert [tuple(each.values()) for each in found["unknown"]] == [
        ("offset-1", END - 5 * MINUTE + 7, END - MINUTE + 7, 35, "not exported yet"),
        ("offset-2", END - 6 * MINUTE + 7, END - 3 * MINUTE + 7, 7, "compacted"),
        ("offset-3", None, END - 3 * MINUTE + 7, 7, "not exported yet"),
    ]
    per_s = {
        name: [each["per_s"] for each in found["windows"] if each["name"] == name] for name in at
    }
    assert per_s == {
        "offset-0": [1.0] * 5,  # the last that is whole may not be exported to its end
        "offset-1": [1.0, *[None] * 4],
        "offset-2": [*[None] * 4, 0.0],
        "offset-3": [*[None] * 4, 0.0],
        "idle-0": [1.0, *[0.0] * 4],
        "old-0": [],
    }
    next_ = {each["name"]: each["per_s"] for each in found["forecast"] if each["ahead"] == 1}
    assert next_["offset-1"] == 1.0, "what it did when it was last heard of"
    view = JOB.view(results({**EMPTY, **found}, tmp_path), context(windows=6))
    assert view.headline == (
        "Nothing is hot: the load is even. "
        "The history lacks entries of offset-1, offset-2, offset-3."
    )
    (listing,) = [each for each in view.listings if each.title == "What is not known"]
    assert [each["group"] for each in listing.rows] == ["offset-1", "offset-2", "offset-3"]
    (number,) = [each for each in view.numbers if each.name == "times not known"]
    assert (number.value, number.alarming) == (3, True)


@pytest.mark.spark
def test_a_broker_has_no_load_where_a_group_of_its_clients_is_not_whole(rows: Rows) -> None:
    def asked(window: int, group: str, client: str) -> Row:
        return did(window, 60, op="mqtt.will.set", group=group, tenant="t", subject=client)

    history = [
        *(asked(window, "mqtt-0", "c0") for window in (-5, -4, -3, -2, -1)),
        *(asked(window, "mqtt-1", "c1") for window in (-5, -4)),
        *(asked(window, "mqtt-2", "c2") for window in (-5, -2)),
        did(-1, 60),
    ]
    late = {"from_ms": END - 4 * MINUTE + 7, "entries": 1, "reason": "not exported yet"}
    lacking = [
        {"group": "mqtt-1", **late, "to_ms": END - 3 * MINUTE + 7},
        {"group": "offset-0", **late, "to_ms": END},
    ]
    sessions = [
        {"tenant": "t", "client_id": f"c{n}", "broker": broker, "connected": True}
        for n, broker in enumerate(("b1", "b1", "b2"))
    ]
    of_windows = loads(rows(OPERATIONS, history), NOW, MINUTE, 5).persist()

    def of_brokers(*cut: str) -> dict[str, list[float | None]]:
        given = (rows(SESSIONS, sessions), rows(UNKNOWN, lacking))
        made = series(of_windows, *given, NOW, MINUTE, cut).where("`of` = 'broker'")
        every = collect(made, SERIES, "name", "start_ms")
        return {
            name: [each["per_s"] for each in every if each["name"] == name] for name in ("b1", "b2")
        }

    whole = {"b1": [2.0, None, None, 1.0, 1.0], "b2": [1.0, None, None, 1.0, 0.0]}
    assert of_brokers() == whole
    assert of_brokers("mqtt-0", "mqtt-1", "mqtt-2", "offset-0") == whole
    # Whose clients those of mqtt-2 are is not in the cut.
    assert of_brokers("mqtt-0", "mqtt-1") == {
        "b1": [None, None, None, None, 1.0],
        "b2": [None, None, None, None, 0.0],
    }
    of_windows.unpersist()


@pytest.mark.parametrize(
    ("now_ms", "last_ms", "known"),
    [
        (NOW, None, NOW),
        (NOW, NOW - 5, NOW - 5),
        (NOW, NOW + 5, NOW),
        (END + 29_999, END - 7, END - 7),
        (END + 30_000, END - 7, END),
        (END + 30_000, END, END),
        (END + 90 * MINUTE, END - MINUTE, END),
    ],
)
def test_the_last_window_is_whole_when_it_is_over_and_the_exporter_had_time_for_it(
    now_ms: int, last_ms: int | None, known: int
) -> None:
    assert known_ms(now_ms, last_ms, MINUTE, 30_000) == known


@pytest.mark.spark
def test_a_forecast_of_a_line_is_exact_and_each_says_how_far_off_it_was(rows: Rows) -> None:
    loads_of: dict[str, list[float | None]] = {
        "line": [10.0 * (n + 21) for n in range(-20, 0)],  # ends with 200
        "broken": [*(10.0 * (n + 21) for n in range(-20, -1)), 100.0],
        "down": [*[0.0] * 17, 60.0, 30.0, 0.0],
        "one": [7.0],
        "unknown": [1.0] * 19 + [None],
    }
    known = [
        {
            "of": "group",
            "name": name,
            "start_ms": END - (len(of) - place) * MINUTE,
            "commands": 1,
            "operations": None,
            "bytes": None,
            "per_s": per_s,
        }
        for name, of in loads_of.items()
        for place, per_s in enumerate(of)
    ]
    made = forecast(rows(SERIES, known), NOW, MINUTE, trend_windows=12, ahead=3)
    found = collect(made, FORECAST, "name", "ahead")
    of_name = {name: [each for each in found if each["name"] == name] for name in loads_of}
    for place, each in enumerate(of_name["line"]):
        assert each["per_s"] == pytest.approx(210 + 10 * place)
        assert (each["ahead"], each["start_ms"]) == (place + 1, END + place * MINUTE)
        assert (each["method"], each["last_per_s"]) == ("trend", 200.0)
        assert each["guess_per_s"] == pytest.approx(200)
        assert each["error"] == pytest.approx(0, abs=1e-9)
    # A line up to 190 would say 200, the mean of the twelve before says 135: the lesser mistake.
    broken = of_name["broken"][0]
    assert (broken["method"], broken["last_per_s"]) == ("mean", 100.0)
    assert broken["guess_per_s"] == pytest.approx(135.0)
    assert broken["error"] == pytest.approx(35 / 135)
    assert broken["per_s"] == pytest.approx((sum(range(90, 200, 10)) + 100) / 12)
    assert min(each["per_s"] for each in of_name["down"]) >= 0.0
    one = of_name["one"][0]
    assert (one["method"], one["per_s"], one["last_per_s"]) == ("mean", 7.0, 7.0)
    assert (one["guess_per_s"], one["error"]) == (None, None)
    unknown = of_name["unknown"][0]
    assert (unknown["per_s"], unknown["last_per_s"], unknown["error"]) == (1.0, None, None)


# -- what is hot, and what storms ----------------------------------------------------------------


def load(of: str, name: str, operations: int | None, window: int = -1, **fields: Any) -> Row:
    return {
        "start_ms": END + window * MINUTE,
        "within": "offset-0",
        "of": of,
        "tenant": "t",
        "name": name,
        "commands": 1,
        "operations": operations,
        "bytes": None,
        **fields,
    }


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


@pytest.mark.spark
def test_storms(rows: Rows) -> None:
    known = [
        load("commits", "busy", 900, commands=300),
        load("commits", "calm", 90_000, commands=299),
        load("opens", "flappy", 24, -2, commands=24),
        load("opens", "flappy", 12, -1, commands=12),
        load("opens", "steady", 9, commands=9),
        load("session_opens_per_s", "w", 1_200, commands=2),
        load("session_opens_per_s", "v", 1_199, commands=2),
    ]
    made = storms(rows(LOADS, known), MINUTE, commits_per_s=5, flaps=10, opens_per_s=20)
    found = collect(made, STORMS, "what")
    assert [(each["what"], each["name"], each["windows"], each["commands"]) for each in found] == [
        ("commit storm", "busy", 1, 300),
        ("flapping client", "flappy", 2, 24),
        ("session churn", "w", 1, 2),
    ]
    assert (found[0]["commands_per_s"], found[2]["per_s"]) == (5.0, 20.0)
    assert (found[1]["start_ms"], found[1]["last_ms"]) == (END - 2 * MINUTE, END - MINUTE)


# -- advice --------------------------------------------------------------------------------------

ODD = 'a%s$d{}\\"\n'


def next_window(per_s: dict[str, float | None]) -> list[Row]:
    return [
        {
            "of": "broker" if name.startswith("b") else "group",
            "name": name,
            "start_ms": END,
            "ahead": 1,
            "per_s": each,
            "method": "mean",
            "guess_per_s": None,
            "last_per_s": None,
            "error": None,
        }
        for name, each in per_s.items()
    ]


def storm(what: str, name: str, **fields: Any) -> Row:
    return {
        "what": what,
        "within": "mqtt-0",
        "tenant": "t",
        "name": name,
        "windows": 1,
        "last_ms": END - MINUTE,
        "start_ms": END - 9 * MINUTE,
        "commands": 1_200,
        "operations": 1_200,
        "commands_per_s": 20.0,
        "per_s": 20.0,
        **fields,
    }


def quota(name: str, commits: int) -> Row:
    limits = {"topics": 0, "sessions": 0, "session_opens_per_s": 0, "offset_commits_per_s": commits}
    return {"name": name, "quotas": limits}


def seats(*leading: str) -> list[Row]:
    return [
        {
            "group": group,
            "seat": f"{group}/{n}",
            "node": f"n{n}",
            "leads": f"{group}/{n}" in leading,
        }
        for group in ("offset-0", "offset-1", "mqtt-0")
        for n in (1, 2, 3)
    ]


def advised(rows: Rows, hot_rows: list[Row], storm_rows: list[Row], **given: Any) -> list[Row]:
    cut = Cut(**{name: rows(schema, given.pop(name, [])) for name, schema in INPUTS.items()})
    next_ = given.pop("next_", {"offset-0": 50.0, "offset-1": 30.0, "mqtt-0": 5.0})
    made = advice(
        rows(BESIDE, hot_rows),
        rows(STORMS, storm_rows),
        rows(FORECAST, next_window(next_)),
        cut,
        context(**given),
    )
    found = collect(made, ADVICE, "kind", "target", "limit")
    if found:  # whatever is advised can be put
        op.validate(PutAdvice(items=tuple([NewAdvice(**each) for each in found])))
    return found


@pytest.mark.spark
def test_every_kind_of_advice(rows: Rows) -> None:
    def hot_tenant(name: str, window: int = -1, limit: str = "offset_commits_per_s") -> Row:
        beside = {"share": 0.9, "times": 90.0, "per_s": 150.0, "median": 100, "others": 9}
        row = load(limit, name, 9_000, window, tenant=name)
        return {**row, **beside, "total": 10_000}

    sessions = [
        {"tenant": "t", "client_id": f"c{n}", "broker": "b1", "connected": n < 40}
        for n in range(50)
    ]
    some = {"b2": 2, "b9": 1}  # b9 is dead, and its client has not come back yet
    sessions += [
        {"tenant": "t", "client_id": f"{broker}-{n}", "broker": broker, "connected": True}
        for broker, many in some.items()
        for n in range(many)
    ]
    found = advised(
        rows,
        [
            *(hot_tenant(name) for name in ("free", "low", "high", ODD)),
            hot_tenant("old", -20),
            hot_tenant("free", -3),
        ],
        [
            storm("commit storm", "busy"),
            storm("commit storm", "old", last_ms=END - 9 * MINUTE),
            storm("flapping client", "é" * 500, tenant=ODD),
            storm("session churn", "w", tenant="w"),
        ],
        tenants=[quota("low", 18), quota("high", 19)],
        sessions=sessions,
        nodes=[{"node_id": each, "online": each != "b9"} for each in ("b1", "b2", "b9")],
        slots=[
            {
                "kind": "offset",
                "ranges": [
                    {"first": 0, "last": 9_999, "group": "offset-0"},
                    {"first": 10_000, "last": 16_383, "group": "offset-1"},
                ],
            }
        ],
        leaders=seats("offset-0/1", "offset-1/1", "mqtt-0/1"),
        next_={"offset-0": 100.0, "offset-1": 20.0, "mqtt-0": 5.0, "b1": 80.0},
        uneven_sessions=10,
        storm_opens_per_s=20,
    )
    of_kind: dict[str, list[Row]] = {}
    for each in found:
        of_kind.setdefault(each["kind"], []).append(each)
    quotas = of_kind.pop("quota")
    assert [(each["target"], each["limit"], each["number"]) for each in quotas] == [
        (ODD, "offset_commits_per_s", 18),  # nine in each of two groups
        ("free", "offset_commits_per_s", 18),
        ("high", "offset_commits_per_s", 18),
        ("w", "session_opens_per_s", 20),
    ]
    assert quotas[0]["reason"].startswith(f"tenant {ODD} made 9000 of 10000 offset commits")
    assert {each["start_ms"] for each in quotas} == {END - MINUTE}
    assert quotas[3]["reason"] == (
        "clients of tenant w opened 1200 sessions in 60 s in mqtt-0, 20.0 a second"
    )
    (move,) = of_kind.pop("leader")
    assert (move["target"], move["source"], move["destination"]) == (
        *("offset-0", "offset-0/1", "offset-0/2"),
    )
    assert json.loads(move["evidence"])["highest"] == 125.0
    assert json.loads(move["predicted"]) == {"highest": 100.0, "mean": 41.667}
    (slots,) = of_kind.pop("slots")
    assert (slots["source"], slots["destination"], slots["number"]) == (
        *("offset-0", "offset-1", 4_000),
    )
    assert json.loads(slots["predicted"]) == {"source_per_s": 60.0, "destination_per_s": 60.0}
    (broker,) = of_kind.pop("broker")
    assert (broker["target"], broker["destination"], broker["number"]) == ("b1", "b2", 19)
    assert json.loads(broker["predicted"]) == {"sessions": 21, "per_s": 42.0}
    assert [each["target"] for each in of_kind.pop("storm")] == ["t/busy"]
    (client,) = of_kind.pop("client")
    assert len(client["target"].encode()) <= 256
    assert ODD in client["reason"]
    assert not of_kind


@pytest.mark.spark
def test_a_forecast_that_is_not_known_is_no_evidence_of_nothing(rows: Rows) -> None:
    beside = {"share": 0.9, "times": 90.0, "per_s": 150.0, "median": 100, "others": 9}
    hot_tenant = {**load("offset_commits_per_s", "w", 9_000, tenant="w"), **beside, "total": 10_000}
    sessions = [
        {"tenant": "t", "client_id": f"c{n}", "broker": broker, "connected": True}
        for n, broker in enumerate(["b1"] * 50 + ["b2"] + ["b3"] * 40)
    ]
    found = advised(
        rows,
        [hot_tenant],
        [],
        sessions=sessions,
        uneven_sessions=1,
        uneven=110,
        next_={"offset-0": None, "b1": None},
    )
    told = {each["target"]: json.loads(each["evidence"]) for each in found}
    assert "forecast_per_s" not in told["w"]
    assert "per_s" not in told["b1"]
    assert told["b3"]["per_s"] == 0.0, "nobody asked anything of it"


@pytest.mark.spark
def test_nothing_is_advised_where_nothing_would_be_better(rows: Rows) -> None:
    spread = seats("offset-0/1", "offset-1/2", "mqtt-0/3")
    sessions = [
        {"tenant": "t", "client_id": f"c{n}", "broker": "b1", "connected": True} for n in range(50)
    ]
    nodes = [{"node_id": each, "online": True} for each in ("b1", "b2")]
    assert advised(rows, [], [], leaders=spread, sessions=sessions, nodes=nodes) == []
