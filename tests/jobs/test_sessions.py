"""Session statistics, against numbers worked out by hand and against a plain second version."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from jobs.churn import COMMANDS, commands
from jobs.errors import SchemaMismatch
from jobs.operation_files import GAPS
from jobs.schemas import spark_type
from jobs.sessions import (
    EXPIRING,
    EXPIRY,
    EXPIRY_S_NEVER,
    JOB,
    SESSIONS,
    STATES,
    brokers,
    classify,
    skew,
    statistics,
)
from jobs.unknown import CLOCKS
from tests.jobs.conftest import Rows

pytestmark = pytest.mark.spark

NOW = 1_800_000_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


def mqtt(
    client: str, *, broker: str = "b1", connected: bool = False, expiry_s: int, expires_ms: int
) -> dict[str, Any]:
    return {
        "tenant": "default",
        "client_id": client,
        "broker": broker,
        "connected": connected,
        "expiry_s": expiry_s,
        "expires_ms": expires_ms,
    }


EXAMPLES = [
    # a row, its state, what it asked for, what is left of that
    (mqtt("c01", connected=True, expiry_s=0, expires_ms=0), "active", 0, 6),
    (mqtt("c02", connected=True, expiry_s=3_600, expires_ms=0), "active", 1, 6),
    # a time that was set before the client came back says nothing while it is there
    (mqtt("c03", connected=True, expiry_s=60, expires_ms=NOW - 1), "active", 1, 6),
    (mqtt("c04", expiry_s=EXPIRY_S_NEVER, expires_ms=0), "disconnected", 4, 5),
    (mqtt("c05", expiry_s=EXPIRY_S_NEVER - 1, expires_ms=NOW + DAY + 1), "disconnected", 3, 4),
    (mqtt("c06", expiry_s=86_401, expires_ms=NOW + DAY), "disconnected", 3, 3),
    (mqtt("c07", expiry_s=86_400, expires_ms=NOW + HOUR + 1), "disconnected", 2, 3),
    (mqtt("c08", expiry_s=3_601, expires_ms=NOW + HOUR), "disconnected", 2, 2),
    (mqtt("c09", expiry_s=3_600, expires_ms=NOW + MINUTE + 1), "disconnected", 1, 2),
    (mqtt("c10", expiry_s=1, expires_ms=NOW + MINUTE), "disconnected", 1, 1),
    (mqtt("c11", broker="b2", expiry_s=1, expires_ms=NOW + 1), "disconnected", 1, 1),
    (mqtt("c12", broker="b2", expiry_s=1, expires_ms=NOW), "expired", 1, 0),
    (mqtt("c13", broker="", expiry_s=0, expires_ms=NOW - DAY), "expired", 0, 0),
]


def test_every_boundary(rows: Rows) -> None:
    frame = classify(rows(SESSIONS, [row for row, *_ in EXAMPLES]), NOW)
    found = {
        row["client_id"]: (row["state"], row["expiry"], row["expiring"]) for row in frame.collect()
    }
    assert found == {
        row["client_id"]: (state, EXPIRY[expiry], EXPIRING[expiring])
        for row, state, expiry, expiring in EXAMPLES
    }


def test_exact_numbers(rows: Rows) -> None:
    frame = statistics(rows(SESSIONS, [row for row, *_ in EXAMPLES]), NOW)
    found = sorted(tuple(row) for row in frame.collect())
    #             dimension, value, position, active, disconnected, expired, total
    assert found == [
        ("all", "all", 0, 3, 8, 2, 13),
        ("broker", "", 0, 0, 0, 1, 1),
        ("broker", "b1", 0, 3, 7, 0, 10),
        ("broker", "b2", 0, 0, 1, 1, 2),
        ("expiring", "after 1 day", 4, 0, 1, 0, 1),
        ("expiring", "connected", 6, 3, 0, 0, 3),
        ("expiring", "expired", 0, 0, 0, 2, 2),
        ("expiring", "never", 5, 0, 1, 0, 1),
        ("expiring", "within 1 day", 3, 0, 2, 0, 2),
        ("expiring", "within 1 hour", 2, 0, 2, 0, 2),
        ("expiring", "within 1 minute", 1, 0, 2, 0, 2),
        ("expiry", "at disconnect", 0, 1, 0, 1, 2),
        ("expiry", "never", 4, 0, 1, 0, 1),
        ("expiry", "over 1 day", 3, 0, 2, 0, 2),
        ("expiry", "up to 1 day", 2, 0, 2, 0, 2),
        ("expiry", "up to 1 hour", 1, 2, 3, 1, 6),
        ("tenant", "default", 0, 3, 8, 2, 13),
    ]


def test_no_sessions_are_zeros_and_not_nothing(rows: Rows) -> None:
    found = statistics(rows(SESSIONS, []), NOW).collect()
    assert Counter(row["dimension"] for row in found) == {"all": 1, "expiry": 5, "expiring": 7}
    assert {row["total"] for row in found} == {0}


def test_a_plain_second_version_agrees(rows: Rows) -> None:
    luck = random.Random(21)
    sessions = [
        mqtt(
            f"client-{n}",
            broker=f"b{luck.randrange(7)}",
            connected=luck.random() < 0.5,
            expiry_s=luck.choice([0, 1, 3_600, 3_601, 86_400, 86_401, EXPIRY_S_NEVER]),
            expires_ms=luck.choice([0, NOW, NOW + luck.randrange(-DAY, 2 * DAY)]),
        )
        for n in range(3_000)
    ]
    counted: Counter[tuple[str, str, str]] = Counter()
    for row in sessions:
        state, expiry, expiring = plain(row)
        for dimension, value in (
            ("all", "all"),
            ("tenant", row["tenant"]),
            ("broker", row["broker"]),
            ("expiry", expiry),
            ("expiring", expiring),
        ):
            counted[dimension, value, state] += 1
    for row in statistics(rows(SESSIONS, sessions), NOW).collect():
        for state in STATES:
            assert row[state] == counted.pop((row["dimension"], row["value"], state), 0)
        assert row["total"] == sum(row[state] for state in STATES)
    assert not counted


def plain(row: dict[str, Any]) -> tuple[str, str, str]:
    left, asked = row["expires_ms"] - NOW, row["expiry_s"]
    over = row["expires_ms"] != 0 and left <= 0
    state = "active" if row["connected"] else "expired" if over else "disconnected"
    if asked == EXPIRY_S_NEVER:
        expiry = "never"
    else:
        expiry = EXPIRY[sum(asked > bound for bound in (0, 3_600, 86_400))]
    if row["connected"]:
        expiring = "connected"
    elif row["expires_ms"] == 0:
        expiring = "never"
    else:
        expiring = EXPIRING[sum(left > bound for bound in (0, MINUTE, HOUR, DAY))]
    return state, expiry, expiring


def test_brokers_and_how_even_they_are(rows: Rows) -> None:
    sessions = [
        mqtt(f"c{n}", broker=broker, connected=connected, expiry_s=0, expires_ms=0)
        for n, (broker, connected) in enumerate(
            [("b1", True)] * 6
            + [("b2", True)] * 2
            + [("b3", True)]
            + [("b3", False), ("b4", False)]
        )
    ]
    found = brokers(statistics(rows(SESSIONS, sessions), NOW))
    assert sorted(tuple(row) for row in found.collect()) == [
        #  active, disconnected, expired, total, share
        ("b1", 6, 0, 0, 6, 6 / 9),
        ("b2", 2, 0, 0, 2, 2 / 9),
        ("b3", 1, 1, 0, 2, 1 / 9),
        ("b4", 0, 1, 0, 1, 0.0),
    ]
    (row,) = skew(found).collect()
    mean = 9 / 3
    deviation = (sum((active - mean) ** 2 for active in (6, 2, 1)) / 3) ** 0.5
    assert (row["brokers"], row["active"], row["largest"]) == (3, 9, "b1"), "b4 may be gone"
    assert row["share_largest"] == 6 / 9
    assert row["coefficient"] == pytest.approx(deviation / mean)
    (row,) = skew(found.where("broker = 'b4'")).collect()
    assert tuple(row) == (0, 0, None, None, None)
    (row,) = skew(found.where("false")).collect()
    assert tuple(row) == (0, 0, None, None, None)


# -- over time ------------------------------------------------------------------------------------


def command(
    index: int,
    at_ms: int,
    op: str,
    subject: str,
    items: int = 1,
    outcome: str | None = "",
    sequence: int | None = None,
) -> dict[str, Any]:
    return {
        "group": "mqtt-0",
        "index": index,
        "number": 0,
        "at_ms": at_ms,
        "client": "broker",
        "sequence": index if sequence is None else sequence,
        "op": f"mqtt.session.{op}",
        "tenant": "default",
        "subject": subject,
        "items": items,
        "outcome": outcome,
    }


START = NOW - NOW % MINUTE - 10 * MINUTE
HISTORY = [
    command(1, START, "open", "a"),
    command(2, START + 1, "close", "a"),
    command(3, START + 2, "open", "a", outcome=None),  # not known: it counts
    command(4, START + 3, "close", "a", outcome="FENCED"),  # the old broker comes late
    command(5, START + MINUTE - 1, "open", "a"),  # taken over
    command(6, START + MINUTE, "open_all", "c"),
    {**command(6, START + MINUTE, "open_all", "d", 2), "number": 1},  # twice in one batch
    command(7, START + MINUTE, "close_all", "c"),
    command(8, START + MINUTE, "open", "c", sequence=100),
    command(9, START + MINUTE, "open", "c", sequence=100),  # no answer came: proposed again
    command(10, START + MINUTE, "save", "", 100),  # the history did not tell of whom
    command(11, START + MINUTE, "delete", "b"),
    command(12, START + MINUTE, "open", "b", outcome="QUOTA_EXCEEDED"),
    *(command(20 + n, START + 2 * MINUTE + n * 100, "open", "flaps") for n in range(0, 10, 2)),
    *(command(20 + n, START + 2 * MINUTE + n * 100, "close", "flaps") for n in range(1, 10, 2)),
    # as many opens, a millisecond too slow
    *(command(40 + n, START + 2 * MINUTE + n * 251, "open", "slow") for n in range(5)),
    command(50, NOW + 1, "open", "a"),  # not yet
    command(51, NOW - HOUR, "open", "a"),  # out of the window
    {**command(52, START, "open", "a"), "op": "mqtt.will.set"},
]
OPTIONS = {"flap_opens": 5, "flap_within_ms": 1_001, "window_ms": HOUR}


def test_churn_takeovers_and_clients_that_flap(rows: Rows) -> None:
    inputs = {"sessions": rows(SESSIONS, []), "operations": rows(COMMANDS, HISTORY)}
    found = JOB.run(inputs, JOB.context(NOW, {}, OPTIONS))
    assert [tuple(row) for row in found["churn"].orderBy("minute_ms").collect()] == [
        # told by, opened, closed, deleted, takeovers, refused
        (START, "history", 3, 1, 0, 1, 1),
        (START + MINUTE, "history", 104, 1, 1, 0, 1),
        (START + 2 * MINUTE, "history", 10, 5, 0, 4, 0),
    ]
    clients = {row["client_id"]: tuple(row)[2:] for row in found["clients"].collect()}
    later = START + 2 * MINUTE
    assert clients == {
        # opens, most, closes, takeovers, flaps, first, last
        "a": (3, 2, 1, 1, False, START, START + MINUTE - 1),
        "flaps": (5, 5, 5, 0, True, later, later + 800),
        "slow": (5, 4, 0, 4, False, later, later + 1_004),
    }


def test_what_was_proposed_twice_counts_once(rows: Rows) -> None:
    """As a whole, also when a proposal has several commands about one client."""
    both = [command(1, START, "open", "a"), {**command(1, START, "close", "a"), "number": 1}]
    again = [{**each, "index": 2} for each in both]
    late = {**command(1, START, "open", "b"), "number": 2}
    history = [
        *(*both, late, *again),
        command(3, START, "close", "b"),
        {**late, "index": 4},
        command(5, START, "open", "b"),
    ]
    found = commands(rows(COMMANDS, history), rows(GAPS, []), NOW, HOUR)
    told = sorted((row["subject"], row["index"], row["what"]) for row in found.collect())
    assert told == [
        *(("a", 1, "close"), ("a", 1, "open")),
        *(("b", 1, "open"), ("b", 3, "close"), ("b", 5, "open")),
    ]
    assert found.where("takeover").count() == 0


def test_what_the_history_lacks_is_told_and_no_takeover_is_made_of_it(rows: Rows) -> None:
    history = [
        command(1, START, "open", "a"),
        command(7, START + MINUTE, "open", "a"),  # it may have been closed in the gap
        command(8, START + MINUTE, "open", "a"),
        command(9, START + MINUTE, "open", "b"),
        command(10, START + MINUTE, "close_held", "b"),  # its broker has died
        command(11, START + MINUTE, "open", "b"),
    ]
    at = {"mqtt-0": (11, START + MINUTE), "mqtt-1": (7, NOW - 1), "offset-0": (7, NOW)}
    at |= {"mqtt-2": (7, NOW - HOUR)}  # out of the window
    clocks = [
        {"raft_group": group, "index": index, "now_ms": now_ms}
        for group, (index, now_ms) in at.items()
    ]
    gap = {"group": "mqtt-0", "first": 2, "last": 6, "found_ms": NOW, "reason": "compacted"}
    inputs = {
        "sessions": rows(SESSIONS, []),
        "operations": rows(COMMANDS, history),
        "clocks": rows(CLOCKS, clocks),
        "gaps": rows(GAPS, [gap, {**gap, "group": "offset-0"}]),
    }
    found = JOB.run(inputs, JOB.context(NOW, {}, OPTIONS))
    assert sorted(tuple(row) for row in found["unknown"].collect()) == [
        ("mqtt-0", START, START + MINUTE, 5, "compacted"),
        ("mqtt-1", None, NOW - 1, 7, "not exported yet"),
    ]
    assert [tuple(row) for row in found["churn"].orderBy("minute_ms").collect()] == [
        (START, "history", 1, 0, 0, 0, 0),
        (START + MINUTE, "history", 4, 1, 0, 1, 0),
    ]
    # Without a history nothing is missing in it.
    del inputs["operations"], inputs["gaps"]
    assert JOB.run(inputs, JOB.context(NOW, {}, OPTIONS))["unknown"].collect() == []


def test_without_a_history_the_cut_tells_what_it_can(rows: Rows) -> None:
    def session(client: str, connected_ms: int | None, disconnected_ms: int | None) -> Any:
        connected = (connected_ms or 0) > (disconnected_ms or 0)
        row = mqtt(client, connected=connected, expiry_s=60, expires_ms=0)
        return row | {"connected_ms": connected_ms, "disconnected_ms": disconnected_ms}

    sessions = [
        session("a", START, 0),
        session("b", START + MINUTE - 1, START - 5),
        session("c", START, START + MINUTE),
        session("d", NOW - HOUR, 0),  # out of the window
        session("e", None, None),  # a dataset without these columns
    ]
    found = JOB.run({"sessions": rows(SESSIONS, sessions)}, JOB.context(NOW, {}, OPTIONS))
    for name, output in JOB.outputs.items():
        wanted = [(field.name, spark_type(field.type)) for field in output.schema]
        assert found[name].dtypes == wanted, name
    assert [tuple(row) for row in found["churn"].orderBy("minute_ms").collect()] == [
        (START, "cut", 2, 0, None, None, None),
        (START + MINUTE, "cut", 0, 1, None, None, None),
    ]
    assert found["clients"].collect() == []


def test_a_wrong_column_is_named(rows: Rows) -> None:
    frame = rows(SESSIONS, [])
    with pytest.raises(SchemaMismatch, match="sessions: column broker is missing"):
        statistics(frame.drop("broker"), NOW)
    inputs = {"sessions": frame, "operations": rows(COMMANDS, []).drop("items")}
    with pytest.raises(SchemaMismatch, match="operations: column items is missing"):
        JOB.run(inputs, JOB.context(NOW, {}, {}))
    with pytest.raises(SchemaMismatch, match="sessions: column connected is bigint"):
        classify(frame.withColumn("connected", frame["expiry_s"]), NOW)
