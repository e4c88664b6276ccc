"""What could be done about it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs.advice import ADVICE, Cut, advice
from jobs.hotspots import BESIDE, STORMS
from jobs.loads import FORECAST
from state_machines import op
from state_machines.metadata.advice import NewAdvice, PutAdvice
from tests.jobs.conftest import Rows
from tests.jobs.hotspots.made import END, INPUTS, MINUTE, Row, collect, context, load

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
