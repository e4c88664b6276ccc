"""The load in windows, and of which of them nothing is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.advice import SESSIONS
from jobs.hotspots import JOB, known_ms
from jobs.loads import LOADS, SERIES, loads, series
from jobs.operation_files import GAPS
from jobs.operations import OPERATIONS, SUBJECT_MAX, subject_name
from jobs.unknown import CLOCKS, UNKNOWN
from tests.jobs.conftest import Rows
from tests.jobs.hotspots.made import (
    EMPTY,
    END,
    INPUTS,
    LACKING,
    MINUTE,
    NOW,
    Row,
    collect,
    context,
    did,
    results,
)

#: Ids of clients: as long as a subject may be, longer, and one like the name of a longer one.
LONG, LONGER = "\U0001f600" * (SUBJECT_MAX - 1) + "é", "\U0001f600" * (SUBJECT_MAX + 1)
ALIKE = "a" * (SUBJECT_MAX - 17) + "~" + "0" * 16


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
@pytest.mark.long
def test_what_is_not_exported_yet_is_no_load_of_nothing(rows: Rows) -> None:
    inputs = {name: rows(schema, []) for name, schema in (INPUTS | LACKING).items()}
    inputs["operations"] = rows(OPERATIONS, [did(window, 60) for window in (-4, -3, -2)])
    made = JOB.run(inputs, context())["forecast"].where("`of` = 'group' and ahead = 1")
    (next_,) = made.collect()
    inputs["operations"].sparkSession.catalog.clearCache()
    assert (next_["last_per_s"], next_["start_ms"]) == (1.0, END - MINUTE), "-1 is not known"


@pytest.mark.spark
@pytest.mark.long
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
