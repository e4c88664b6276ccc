"""`audit`, `diff` and `history status` over a history on disk: filters, gaps, bodies, refusals."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from jobs import operation_files, operations
from jobs.operations import SUBJECT_MAX, subject_name, subject_of
from metaray.cli.app import app
from metaray.cli.spans import moment
from metaray.history.audit import Wanted
from metaray.history.changes import changes
from metaray.history.rows import Rows
from state_machines import op, runs
from state_machines.errors import Invalid
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.mqtt.session import DeleteSessions, OpenSession
from state_machines.mqtt.sessions import SESSIONS
from state_machines.mqtt.topic import CreateTopics
from state_machines.mqtt.user import CreateUsers, NewUser
from state_machines.offset.offset import CommitOffsets
from state_machines.raft.messages import Configuration, Entry, EntryKind
from state_machines.transaction import Compare, Transaction
from state_machines.wire import api_pb2 as api
from storage import records
from tests.machine import plausible
from tests.machine.alone import wire
from tests.machine.operations import KINDS

T0 = 1_700_000_000_000


def entry(index: int, *operations: Any, client: int = 7, at_ms: int = 0) -> bytes:
    commands = [each if isinstance(each, api.Command) else wire(each) for each in operations]
    batch = api.Batch(
        now_ms=at_ms or T0 + 1_000 * index,
        proposals=[api.Proposal(client=client, sequence=index, commands=commands)],
    )
    return records.entry_to(Entry(term=2, index=index, data=batch.SerializeToString()))


def run_of(operations: Sequence[Any]) -> api.Command:
    return api.Command(
        tag=op.tag(operations[0]), body=runs.body_of(runs.of(operations)), count=len(operations)
    )


def rows_of(*entries: bytes, group: str = "metadata-0") -> list[dict[str, Any]]:
    rows = Rows(group)
    for each in entries:
        rows.add(each)
    found: list[dict[str, Any]] = rows.take().to_pylist()
    return found


PUTS = [PutKv(tenant=t, key=k, value=b"v") for t, k in (("a", "x"), ("b", "x"), ("a", "x"))]


@pytest.fixture
def told(tmp_path: Path) -> Path:
    """Two groups, with a gap."""
    metadata, offsets = Rows("metadata-0"), Rows("offset-0")
    metadata.add(entry(1, PutKv(key="k", value=b"one")))
    metadata.add(entry(2, run_of(PUTS), client=0xBEEF))
    metadata.add(entry(6, PutKv(key="k", value=b"two"), PutKv(key="l", value=b"\xff")))
    offsets.add(
        entry(
            1,
            CommitOffsets(groups=("g", "h"), topics=("t", "t"), partitions=(0, 1), offsets=(5, 6)),
        )
    )
    directory = tmp_path / "history"
    batch = metadata.take()
    operation_files.add_rows(directory, "metadata-0", 1, 3, [batch.slice(0, 3)])
    operation_files.add_gap(directory, operation_files.Gap("metadata-0", 4, 5, T0, "too slow"))
    operation_files.add_rows(directory, "metadata-0", 6, 6, [batch.slice(3)])
    operation_files.add_rows(directory, "offset-0", 1, 1, [offsets.take()])
    return directory


def said(*words: str) -> Any:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def subjects(directory: Path, *words: str) -> list[str]:
    found = said("audit", "--dir", str(directory), *words)
    return [f"{row['index']}.{row['number']} {row['subject']}" for row in found["operations"]]


def test_audit_tells_who_did_what_when(told: Path) -> None:
    found = said("audit", "--dir", str(told), "--group", "metadata-0")
    assert found["of"] == 5
    assert found["gaps"] == [
        {"group": "metadata-0", "first": 4, "last": 5, "found_ms": T0, "reason": "too slow"}
    ]
    assert found["operations"][1] == {
        "group": "metadata-0",
        "index": 2,
        "number": 0,
        "term": 2,
        "at_ms": T0 + 2_000,
        "client": "beef",
        "sequence": 2,
        "op": "metadata.kv.put",
        "tenant": "a",
        "subject": "x",
        "items": 2,
        "outcome": None,
        "bytes": found["operations"][1]["bytes"],
    }


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["--tenant", "b"], ["2.1 x"]),
        (["--client", "beef"], ["2.0 x", "2.1 x"]),
        (["--op", "offset.commit"], ["1.0 g", "1.1 h"]),
        (["--op", "offset.*"], ["1.0 g", "1.1 h"]),
        (["--subject", "k"], ["1.0 k", "6.0 k"]),
        (["--subject", "l*"], ["6.1 l"]),
        (["--group", "metadata-0", "--since", str(T0 + 3_000)], ["6.0 k", "6.1 l"]),
        (["--group", "metadata-0", "--until", "2023-11-14T22:13:22"], ["1.0 k"]),
        (["--group", "metadata-0", "--limit", "2"], ["6.0 k", "6.1 l"]),
        (["--op", "nothing"], []),
    ],
)
def test_audit_filters(words: list[str], wanted: list[str], told: Path) -> None:
    assert subjects(told, *words) == wanted


def test_audit_tells_what_a_command_said(told: Path) -> None:
    found = said("audit", "--dir", str(told), "--group", "metadata-0", "--body")["operations"]
    assert [each["value"] for each in found[3]["said"]] == ["two"]
    assert [each["value"] for each in found[4]["said"]] == ["hex:ff"]
    assert [(each["tenant"], each["key"]) for each in found[1]["said"]] == [
        (each.tenant, each.key) for each in PUTS
    ]
    assert found[2]["said"] is None, "the run's body is in its first row"
    plain = CliRunner().invoke(app, ["audit", "--dir", str(told), "--body"])
    assert plain.exit_code == 0
    assert "gap metadata-0 4-5: too slow" in plain.stdout


@pytest.mark.parametrize("form", [(), ("--body",)])
def test_nothing_of_an_audit_is_cut_in_a_narrow_terminal_or_a_pipe(
    told: Path, form: tuple[str, ...]
) -> None:
    wide, narrow = (
        CliRunner().invoke(app, ["audit", "--dir", str(told), *form], env={"COLUMNS": columns})
        for columns in ("200", "60")
    )
    assert (narrow.exit_code, "…" in narrow.stdout) == (0, False)
    assert narrow.stdout.split() == wide.stdout.split()
    lines = narrow.stdout.splitlines()
    (line,) = [each for each in lines if each.endswith(" l")]
    for word in ("2023-11-14 22:13:26", "metadata.kv.put", "default", "metadata-0"):
        assert word in line
    if form:
        assert '"value": "hex:ff"' in narrow.stdout


def test_a_diff_is_not_cut_either(told: Path) -> None:
    words = ["diff", "--dir", str(told), "--group", "metadata-0", "--from", "0", "--to", "6"]
    done = CliRunner().invoke(app, words, env={"COLUMNS": "60"})
    assert (done.exit_code, "…" in done.stdout) == (0, False)
    assert [each for each in done.stdout.splitlines() if each.endswith(" l")]


def test_audit_tells_no_verifier(tmp_path: Path) -> None:
    rows = Rows("mqtt-0")
    verifier = "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA"
    rows.add(entry(1, CreateUsers(items=(NewUser(username="ann", verifier=verifier),))))
    rows.add(entry(2, CreateTopics(names=("a",))))
    operation_files.add_rows(tmp_path, "mqtt-0", 1, 2, [rows.take()])
    for form in ((), ("--json",)):
        done = CliRunner().invoke(app, ["audit", "--dir", str(tmp_path), "--body", *form])
        assert done.exit_code == 0, done.output
        assert "scrypt" not in done.output
        assert verifier.encode().hex() not in done.output
        assert "ann" in done.output
    operations = json.loads(done.stdout)["operations"]
    assert [each["body"] is None for each in operations] == [True, False]


def test_diff_tells_what_was_touched(told: Path) -> None:
    where = ["--dir", str(told), "--group", "metadata-0"]
    found = said("diff", *where, "--from", "0", "--to", "6")
    assert (found["of"], found["touched"], len(found["gaps"])) == (4, 5, 1)
    first = found["subjects"][0]
    assert first == {
        "tenant": "default",
        "entity": "metadata.kv",
        "subject": "k",
        "commands": 2,
        "items": 2,
        "first": 1,
        "first_ms": T0 + 1_000,
        "first_op": "metadata.kv.put",
        "last": 6,
        "last_ms": T0 + 6_000,
        "last_op": "metadata.kv.put",
        "first_client": "7",
        "last_client": "7",
    }
    found = said("diff", *where, "--from", "1", "--to", "3", "--tenant", "a")
    assert [(each["subject"], each["items"]) for each in found["subjects"]] == [("x", 2)]
    assert found["gaps"] == []
    # What nobody has explained lies between files, of which the range may touch one or none.
    operation_files.path_of(told, "metadata-0", 4, 5, gap=True).unlink()
    for after, upto, gaps in ((3, 6, 1), (1, 4, 1), (3, 4, 1), (1, 3, 0), (5, 6, 0)):
        found = said("diff", *where, "--from", str(after), "--to", str(upto))
        assert len(found["gaps"]) == gaps, (after, upto)
    plain = CliRunner().invoke(app, ["diff", *where, "--from", "1", "--to", "3"])
    assert "2 subjects, touched 2 times" in plain.stdout, "by one command"


def test_diff_takes_time_in_proportion_to_the_subjects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"group": "offset-0", "index": n, "subject": f"g{n}"} for n in range(1, 513)]
    for first in range(0, 512, 8):
        operations.write(tmp_path, rows[first : first + 8])
    joined: list[int] = []
    concat = pa.concat_tables

    def counted(tables: list[pa.Table]) -> pa.Table:
        joined.append(sum(each.num_rows for each in tables))
        return concat(tables)

    monkeypatch.setattr(pa, "concat_tables", counted)
    found = changes(tmp_path, "offset-0", 0, 512, limit=1)
    assert (found.of, found.touched) == (512, 512)
    assert sum(joined) < 4 * 512


def test_status_of_a_directory_needs_no_cluster(told: Path, tmp_path: Path) -> None:
    where = ["--dir", str(told), "--data", str(tmp_path / "nothing")]
    found = said("history", "status", *where)
    assert [
        (each["group"], each["exported"], each["files"], len(each["gaps"]))
        for each in found["groups"]
    ] == [("metadata-0", 6, 3, 1), ("offset-0", 1, 1, 0)]
    plain = CliRunner().invoke(app, ["history", "status", *where])
    assert "gap metadata-0 4-5: too slow" in plain.stdout
    bracketed = told.rename(tmp_path / "history[v2]")
    plain = CliRunner().invoke(app, ["history", "status", "--dir", str(bracketed), *where[2:]])
    assert plain.stdout.startswith(f"history in {bracketed}")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["audit", "--limit", "0"], "limit: 0"),
        (["audit", "--limit", "100001"], "limit: 100001"),
        (["audit", "--group", "mqtt-0"], "group: 'mqtt-0' is not in this history"),
        (["audit", "--since", "yesterday"], "since: 10m"),
        (["audit", "--since", "999999999999d"], "since: 10m"),
        (["audit", "--since", "2000", "--until", "1000"], "until: 1000 is before"),
        (["audit", "--until", "999999999999d"], "until: 10m"),
        (["audit", "--tenant", "\udcff"], "tenant: not UTF-8"),
        (["audit", "--op", "\udcff*"], "op: not UTF-8"),
        (["diff", "--group", "metadata-0", "--from", "3", "--to", "3"], "to: 3"),
        (["diff", "--group", "metadata-0", "--from", "-1", "--to", "3"], "to: 3"),
        (["diff", "--group", "metadata-0", "--from", "1", "--to", "7"], "to: 7 is not exported"),
        (["diff", "--group", "x", "--from", "1", "--to", "7"], "group: 'x' is not in"),
        (["diff", "--group", "offset-0", "--from", "0", "--to", "1", "--limit", "0"], "limit: 0"),
    ],
)
def test_what_cannot_be_is_refused_by_name(words: list[str], says: str, told: Path) -> None:
    result = CliRunner().invoke(app, [*words, "--dir", str(told)])
    assert (result.exit_code, says in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (Wanted(since_ms=-(2**63) - 1), "since: -9223372036854775809, the range is"),
        (Wanted(until_ms=2**63), "until: 9223372036854775808, the range is"),
        (Wanted(after=2**63), "from: 9223372036854775808, the range is"),
        (Wanted(upto=2**63), "to: 9223372036854775808, the range is"),
    ],
)
def test_what_is_beyond_64_bits_is_refused_by_name(wanted: Wanted, says: str) -> None:
    with pytest.raises(Invalid, match=says):
        wanted.expression()


def test_a_directory_that_is_no_history_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["audit", "--dir", str(tmp_path / "none")])
    assert result.exit_code == 2
    assert "BadHistory" in result.stderr


def test_a_file_that_lacks_columns_is_told_without_them(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    path = operation_files.path_of(tmp_path, "g", 1, 5)
    pq.write_table(pa.table({"at_ms": [T0], "op": ["x"]}), path)
    result = CliRunner().invoke(app, ["audit", "--dir", str(tmp_path)])
    assert (result.exit_code, result.exception) == (0, None)
    assert "1 of 1" in result.output


def test_times_are_told_in_several_ways() -> None:
    assert moment("10m", "since", T0) == T0 - 600_000
    assert moment("2023-11-14T22:13:20", "since", 0) == T0
    assert moment("2023-11-15T00:13:20+02:00", "since", 0) == T0
    assert moment(str(T0), "since", 0) == T0
    with pytest.raises(Invalid, match=r"^until: "):
        moment("9999999999999999999", "until", 0)


# -- what a command is about -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [
        (
            CreateTopics(tenant="a", names=("x", "y", "x")),
            [("mqtt.topic.create", "a", "x", 2), ("mqtt.topic.create", "a", "y", 1)],
        ),
        (
            Transaction.of(
                compare=[],
                then=[PutKv(tenant="a", key="x", value=b"")],
                otherwise=[PutKv(tenant="a", key="y", value=b""), GetKv(tenant="a", key="y")],
            ),
            [
                ("group.transact", "a", "x", 1),
                ("metadata.kv.put", "a", "x", 1),
                ("metadata.kv.put", "a", "y", 1),
            ],
        ),
        (  # which branch was carried out is not known: what both say of one subject is told once
            Transaction.of(
                compare=[Compare.absent(SESSIONS, "default", "z")],
                then=[OpenSession(client_id=c, broker="n") for c in "bc"],
                otherwise=[
                    OpenSession(client_id="b", broker="n"),
                    DeleteSessions(client_ids=("a",)),
                ],
            ),
            [
                ("group.transact", "default", "z", 1),
                ("mqtt.session.delete", "default", "a", 1),
                ("mqtt.session.open", "default", "b", 1),
                ("mqtt.session.open", "default", "c", 1),
            ],
        ),
        (
            Transaction.of(compare=[Compare.absent(SESSIONS, "default", "z")]),
            [("group.transact", "default", "z", 1)],
        ),
    ],
)
def test_a_command_is_about_what_it_is_placed_by(
    operation: Any, wanted: list[tuple[str, str, str, int]]
) -> None:
    found = rows_of(entry(1, operation))
    told = sorted((row["op"], row["tenant"], row["subject"], row["items"]) for row in found)
    assert told == wanted
    assert found[0]["op"] == op.tag(operation), "which has the body"
    body = op.encode(operation)
    assert sum(row["bytes"] for row in found) == len(body)
    assert [row["body"] for row in found] == [body, *[None] * (len(found) - 1)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_commands_of_a_fleet_become_rows_that_add_up(kind: str) -> None:
    names, unknown = set(), set()
    for index, batch in enumerate(plausible.history(kind, Random(5), 600), 1):
        encoded = records.entry_to(Entry(term=1, index=index, data=batch.SerializeToString()))
        found = rows_of(encoded)
        assert found == rows_of(encoded), "whenever it is exported"
        assert [row["number"] for row in found] == list(range(len(found)))
        said = [each for proposal in batch.proposals for each in proposal.commands]
        assert sum(row["bytes"] for row in found) == sum(len(each.body) for each in said)
        assert [row["body"] for row in found if row["body"] is not None] == [x.body for x in said]
        assert all(row["items"] > 0 for row in found)
        names |= {row["op"] for row in found}
        unknown |= {row["op"] for row in found if not row["subject"]}
    assert len(names) > 10
    assert len(unknown) < len(names), "what commands are about is known"


def test_entries_without_commands_and_strange_ones_do_not_end_the_history() -> None:
    members = Configuration(voters=(1, 2, 3))
    change = Entry(term=1, index=4, kind=EntryKind.CONFIGURATION, configuration=members)
    assert rows_of(records.entry_to(change)) == []
    assert rows_of(records.entry_to(Entry(term=1, index=1))) == []
    newer = api.Command(tag="offset.not_yet", body=b"\x81\xa1x\x01", count=3)
    broken = api.Command(tag="metadata.kv.put", body=b"\xc1")
    one, two = rows_of(entry(5, newer, broken))
    assert (one["op"], one["subject"], one["items"], one["body"]) == (
        "offset.not_yet",
        "",
        3,
        newer.body,
    )
    assert (two["number"], two["subject"], two["items"]) == (1, "", 1)
    (long,) = rows_of(entry(6, PutKv(key="k" * 300, value=b"")))
    assert len(long["subject"]) <= SUBJECT_MAX


def test_subjects_that_begin_alike_are_told_apart_however_long_they_are() -> None:
    """An MQTT client id may have 65 535 bytes."""
    begin = "c" * SUBJECT_MAX
    exact, one, other = begin, begin + "1", begin + "\U0001f600" * 10_000
    (named,) = rows_of(entry(1, OpenSession(client_id=one, broker="b")))
    longest = "é" * SUBJECT_MAX
    ids = [exact, one, other, named["subject"], longest, "~" * SUBJECT_MAX]
    opened = [OpenSession(client_id=each, broker="b") for each in ids]
    found = [rows_of(entry(1, each))[0]["subject"] for each in opened]
    assert len(set(found)) == len(ids)
    assert max(map(len, found)) == SUBJECT_MAX
    assert (found[0], found[4]) == (exact, longest), "what is no longer is as it was said"
    digest = hashlib.sha256(one.encode()).hexdigest()[:16]
    assert found[1] == "c" * (SUBJECT_MAX - 17) + "~" + digest
    of_a_run = rows_of(entry(1, run_of(opened)), group="mqtt-0")
    assert {row["subject"] for row in of_a_run} == set(found)
    assert sum(row["items"] for row in of_a_run) == len(ids)


def test_subjects_of_several_parts_are_told_apart_whatever_the_parts_say() -> None:
    texts = ["a", "b", "a/b", "b/c", "a%2Fb", "/", "%", ""]
    for count in (2, 3):
        keys = list(itertools.product(texts, repeat=count))
        assert len({subject_of(each) for each in keys}) == len(keys)
    assert subject_of(("user", "a/b%")) == "user/a/b%", "the last part is as it was said"
    assert subject_of(("a/b",)) == "a/b"


def test_a_long_subject_is_looked_for_as_it_was_said_and_by_its_name(tmp_path: Path) -> None:
    whole = "c" * 1_000
    mqtt = Rows("mqtt-0")
    for index, each in enumerate((whole, "c" * 999), 1):
        mqtt.add(entry(index, OpenSession(client_id=each, broker="b")))
    operation_files.add_rows(tmp_path, "mqtt-0", 1, 2, [mqtt.take()])
    for wanted in (whole, subject_name(whole)):
        assert subjects(tmp_path, "--subject", wanted) == [f"1.0 {subject_name(whole)}"]
