"""The terminal's commands that are made from the registry: every value in, every reply out."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.text import Text
from typer.testing import CliRunner, Result

from metaray.cli import entities, leading, show, values
from metaray.cli.app import app, cell, console
from metaray.contract import registry
from state_machines import op
from state_machines.batch import Batch, Outcome
from state_machines.errors import Invalid, NotFound
from state_machines.limits import REQUEST_BYTES_MAX
from state_machines.metadata.kv import PutKv
from state_machines.metadata.node import Address, Node
from state_machines.mqtt.session import OpenSession, SaveSessions, SessionItem
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.tables import TABLES
from tests.door.in_memory import InMemory, instead
from tests.machine import operations

ROOT = Path(__file__).parents[2]
ALL = {each.tag: each for each in registry.operations() if each.tag not in entities.UNSAID}

each_operation = pytest.mark.parametrize("tag", sorted(ALL))
few = settings(
    max_examples=3,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.fixture
def memory() -> Iterator[InMemory]:
    with instead(InMemory()) as client:
        yield client


def test_what_becomes_of_a_user_is_told_without_the_verifier(memory: InMemory) -> None:
    verifier = "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA"
    done = run("mqtt", "user", "create", "--username", "ann", "--verifier", verifier)
    assert done.exit_code == 0, done.output
    assert "ann" in done.stdout
    assert "scrypt" not in done.stdout
    assert verifier in run("mqtt", "user", "get", "--username", "ann").stdout


def run(*arguments: str, text: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "100"}, input=text)


def shown(*arguments: str) -> str:
    """What a command that succeeds prints."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> str:
    """The one line of a command that is refused."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


# -- every operation ----------------------------------------------------------------------------


@cache
def leaf(tag: str) -> entities.Leaf:
    return entities.Leaf(ALL[tag])


@cache
def command(tag: str) -> Any:
    return leaf(tag).command("it")


def word(value: Any) -> str:
    """One value, as a person would say it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        said = values.to_json(value)
        return f"text:{said}" if said.startswith("@") else str(said)
    return str(value) if isinstance(value, int | str) else json.dumps(values.to_json(value))


def arguments(tag: str, operation: Any) -> list[str]:
    """The options that say an operation; what has none goes into `--fields`."""
    said, rest = [], {}
    for option in leaf(tag).fields:
        name = option.field.name
        value = getattr(operation, name)
        default = None if values.without_none(option.field.hint) is not option.field.hint else ...
        if not option.field.required:
            default = option.field.default
        if value == default or (value == () and default is ...):
            continue
        if value is None or value == ():
            rest[name] = values.to_json(value, name)
        elif isinstance(value, bool):
            said.append(option.flag if value else f"--no-{option.flag[2:]}")
        elif isinstance(value, tuple):
            said += [f"{option.flag}={word(each)}" for each in value]
        elif name in values.TOKENS and isinstance(value, bytes):
            said.append(f"{option.flag}={value.hex()}")
        else:
            said.append(f"{option.flag}={word(value)}")
    return [*said, "--fields", json.dumps(rest)] if rest else said


class Answers:
    """A client that remembers the operation and gives one answer."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked: Any = None

    def __enter__(self) -> Answers:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, operation: Any, **_: object) -> Any:
        self.asked = operation
        return self.answer


@each_operation
@given(data=st.data())
@few
def test_options_say_every_operation_and_json_every_reply(
    tag: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = data.draw(operations.instances(ALL[tag].cls))
    hint = ALL[tag].reply
    reply = None if hint in (None, types.NoneType) else data.draw(operations.values(hint))
    if ALL[tag].is_query and reply is None:
        return
    with instead(Answers(reply)) as client:
        words = arguments(tag, operation)
        command(tag).main([*words, "--json"], standalone_mode=False)
    assert client.asked == operation, words
    said = json.loads(capsys.readouterr().out)
    if hint not in (None, types.NoneType):
        assert values.from_json(hint, said, "reply") == reply


@each_operation
@given(data=st.data())
@few
def test_json_says_every_operation_and_every_reply_can_be_shown(
    tag: str, data: st.DataObject, capsys: pytest.CaptureFixture[str]
) -> None:
    operation = data.draw(operations.instances(ALL[tag].cls))
    hint = ALL[tag].reply
    reply = None if hint in (None, types.NoneType) else data.draw(operations.values(hint))
    if ALL[tag].is_query and reply is None:
        return
    whole = json.dumps(values.to_json(operation))
    with instead(Answers(reply)) as client:
        command(tag).main(["--fields", whole], standalone_mode=False)
    assert client.asked == operation
    lines = capsys.readouterr().out.split("\n")
    assert all(line.isprintable() for line in lines)


@each_operation
def test_every_operation_has_a_command_with_help(
    tag: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    command(tag).main(["--help"], standalone_mode=False)
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    for option in leaf(tag).fields:
        assert f"{option.flag} " in said
    assert re.sub(r"\s+", " ", ALL[tag].says)[:60] in said


def test_every_operation_is_found_by_its_path() -> None:
    def leaves(branch: dict[str, Any]) -> list[registry.Operation]:
        below = [leaves(each) if isinstance(each, dict) else [each] for each in branch.values()]
        return [each for some in below for each in some]

    assert sorted(each.tag for each in leaves(entities.branches())) == sorted(ALL)
    assert "--client-id" in shown("mqtt", "session", "open-all", "--help")


def test_what_a_client_cannot_ask_has_none() -> None:
    assert run("client", "register").exit_code == 2
    assert op.REGISTER_TAG not in ALL


# -- against groups -----------------------------------------------------------------------------


@pytest.mark.usefixtures("memory")
class TestAgainstGroups:
    """What people do with it."""

    def test_bytes_are_text_hex_or_a_file(self, tmp_path: Path) -> None:
        file = tmp_path / "value"
        file.write_bytes(b"\x00from a file")
        for said, kept in (
            ("plain", "plain"),
            ("hex:00ff", "hex:00ff"),
            ("text:@x", "@x"),
            ("text:hex:1", "text:hex:1"),
            (f"@{file}", f"hex:{file.read_bytes().hex()}"),
            ("", ""),
        ):
            shown("metadata", "kv", "put", "--key", "a", "--value", said)
            entry = json.loads(shown("metadata", "kv", "get", "--key", "a", "--json"))
            assert entry["value"] == kept

    def test_standard_input_is_a_file(self, memory: InMemory) -> None:
        piped = ("metadata", "kv", "put", "--key", "a", "--value", "@-")
        assert run(*piped, text=b"\xffpiped").exit_code == 0
        asked, _ = memory.asked[-1]
        assert asked == PutKv(key="a", value=b"\xffpiped")

    def test_pages_are_followed(self, memory: InMemory) -> None:
        for number in range(7):
            shown("metadata", "kv", "put", "--key", f"k{number}", "--value", "v")
        page = ("metadata", "kv", "range", "--limit", "3")
        first = json.loads(shown(*page, "--json"))
        assert [each["key"] for each in first["entries"]] == ["k0", "k1", "k2"]
        second = json.loads(shown(*page, "--after", first["next"], "--json"))
        assert [each["key"] for each in second["entries"]] == ["k3", "k4", "k5"]
        text = shown(*page)
        assert f"--after {first['next']}" in text
        assert "k3" not in text
        before = len(memory.asked)
        everything = json.loads(shown(*page, "--all", "--json"))
        assert [each["key"] for each in everything["entries"]] == [f"k{n}" for n in range(7)]
        assert everything["next"] == ""
        assert len(memory.asked) - before == 3
        assert "and more" not in shown(*page, "--all")

    def test_short_lists_follow_pages_up_to_their_limit_and_say_if_there_is_more(
        self, memory: InMemory
    ) -> None:
        for number in range(7):  # two fill a page of 1 MiB
            memory.call(PutKv(key=f"k{number}", value=b"x" * 600_000))
            memory.call(OpenSession(client_id=f"c{number}", broker="b"))
            memory.call(CommitOffsets.of([OffsetCommit("g", f"t{number}", 0, 5)]))
        for words in (("kv", "ls"), ("offsets",), ("sessions",)):
            result = run(*words, "--limit", "6", "--json")
            assert result.exit_code == 0, result.output
            assert len(json.loads(result.stdout)) == 6
            assert result.stderr == "and more; --limit is 6\n"
            assert shown(*words, "--limit", "6").endswith("\nand more; --limit is 6\n")
            result = run(*words, "--limit", "7", "--json")
            assert (len(json.loads(result.stdout)), result.stderr) == (7, "")
            assert "and more" not in shown(*words, "--limit", "7")

    def test_bytes_of_a_short_list_are_said_as_everywhere(self, memory: InMemory) -> None:
        for key, value in (("a", b"\xff\x00"), ("b", b"ff00")):
            memory.call(PutKv(key=key, value=value))
        listed = json.loads(shown("kv", "ls", "--json"))
        assert [each["value"] for each in listed] == ["hex:ff00", "ff00"]
        assert listed == json.loads(shown("metadata", "kv", "range", "--json"))["entries"]
        assert listed == [json.loads(shown("kv", "get", key, "--json")) for key in ("a", "b")]
        assert shown("kv", "get", "b") == "ff00\n", "without --json the bytes themselves"

    def test_a_list_of_objects_is_json_a_file_or_the_options_of_one(
        self, memory: InMemory, tmp_path: Path
    ) -> None:
        file = tmp_path / "items.json"
        file.write_text('[{"client_id": "c3", "broker": "b"}]', encoding="utf-8")
        shown(
            *("mqtt", "session", "save"),
            *("--sessions", '{"client_id": "c1", "broker": "b", "expiry_s": 9}'),
            *("--sessions", '[{"client_id": "c2", "broker": "b"}]'),
            *("--sessions", f"@{file}"),
            *("--client-id", "c4", "--broker", "b", "--clean-start"),
        )
        asked, _ = memory.asked[-1]
        assert asked == SaveSessions(
            sessions=(
                SessionItem(client_id="c1", broker="b", expiry_s=9),
                SessionItem(client_id="c2", broker="b"),
                SessionItem(client_id="c3", broker="b"),
                SessionItem(client_id="c4", broker="b", clean_start=True),
            )
        )
        text = shown("mqtt", "session", "list")
        assert all(f"c{number}" in text for number in range(1, 5))

    def test_options_go_over_fields_of_an_object(self, memory: InMemory, tmp_path: Path) -> None:
        file = tmp_path / "commit.json"
        file.write_text(
            '{"groups": ["g"], "topics": ["t"], "partitions": [0], "offsets": [5]}',
            encoding="utf-8",
        )
        shown("offset", "commit", "--fields", f"@{file}", "--offsets", "7")
        asked, _ = memory.asked[-1]
        assert asked == CommitOffsets(groups=("g",), topics=("t",), partitions=(0,), offsets=(7,))
        (row,) = json.loads(shown("offset", "fetch", "--group", "g", "--json"))
        assert (row["offset"], row["commits"]) == (7, 1)

    def test_a_record_a_table_and_a_time(self) -> None:
        node = shown(
            *("metadata", "node", "register", "--node-id", "n1"),
            *("--protocol", "mqtt", "--item-address", "10.0.0.1:1883"),
        )
        assert "n1" in node
        assert "2023-11-14" in node, "Unix milliseconds are shown as a time"
        assert "10.0.0.1:1883" in node
        listed = shown("metadata", "node", "list")
        assert "n1" in listed
        shown("mqtt", "topic", "create", "--names", "a", "--names", "b")
        assert shown("mqtt", "topic", "create", "--names", "a", "--names", "c") == "no\nyes\n"
        table = shown("mqtt", "topic", "list")
        assert "partitions" in table
        assert shown("mqtt", "topic", "delete", "--names", "a") == "1\n"
        assert shown("mqtt", "due") == "0\n"

    def test_nothing_found_is_said(self) -> None:
        assert refused("metadata", "kv", "get", "--key", "a") == (
            "NotFound: metadata.kv.get: there is none\n"
        )
        assert "NotFound" in refused("metadata", "kv", "get", "--key", "a", "--json")
        assert shown("metadata", "kv", "range") == "none\n"
        assert json.loads(shown("metadata", "kv", "range", "--json")) == {"entries": [], "next": ""}

    def test_any_replica_or_a_named_group_can_be_asked(self, memory: InMemory) -> None:
        shown("metadata", "kv", "range", "--stale", "--raft-group", "metadata-0")
        assert memory.asked[-1][1] == {"stale": True, "group": "metadata-0"}
        shown("metadata", "kv", "range")
        assert memory.asked[-1][1] == {}
        own = ("group", "own", "--controller-epoch", "1", "--group-kind", "mqtt", "--version", "1")
        ranges = ("--first", "0", "--last", "16383", "--group", "mqtt-0")
        assert "Invalid: group: name one" in refused(*own, *ranges)
        assert shown(*own, *ranges, "--raft-group", "mqtt-0") == ""

    def test_a_group_that_is_not_there_is_said_at_once_and_not_asked(
        self, memory: InMemory
    ) -> None:
        assert refused("metadata", "kv", "range", "--raft-group", "metadata-7") == (
            "NotFound: raft_group: there is no group 'metadata-7'; "
            f"there are {', '.join(memory.groups())}\n"
        )
        assert memory.asked == []

    def test_bad_input_is_one_line_and_nothing_is_asked(
        self, memory: InMemory, tmp_path: Path
    ) -> None:
        huge = tmp_path / "huge"
        huge.write_bytes(b"x" * (REQUEST_BYTES_MAX + 1))
        latin = tmp_path / "latin"
        latin.write_bytes(b'{"key": "\xff"}')
        put = ("metadata", "kv", "put", "--key", "a")
        save = ("mqtt", "session", "save")
        for arguments_, said in (
            (put, "Invalid: value: missing, say it with --value"),
            ((*put, "--value", f"@{tmp_path}/none"), "value: "),
            ((*put, "--value", f"@{tmp_path}"), "cannot be read: "),
            ((*put, "--value", "@a\0b"), "cannot be read: "),
            ((*put, "--value", f"@{huge}"), f"larger than {REQUEST_BYTES_MAX} bytes"),
            ((*put, "--value", "hex:0"), "value: '0' is not hex"),
            ((*put, "--value", "v\udcff"), "value: not UTF-8"),
            ((*put, "--value", "v", "--expected-revision", "x"), "expected_revision: 'x' is not a"),
            ((*put, "--value", "v", "--expected-revision", "1.5"), "is not a whole number"),
            ((*put, "--value", "v", "--expected-revision", "9" * 5000), "is not a whole number"),
            ((*put, "--value", "v", "--expected-revision", "\u0661"), "is not a whole number"),
            ((*put, "--fields", "{"), "Invalid: fields: not JSON"),
            ((*put, "--fields", "[" * 100_000), "Invalid: fields: not JSON"),
            ((*put, "--fields", "[]"), "fields: an object is wanted, not list"),
            ((*put, "--fields", "{}{}"), "fields: not JSON"),
            ((*put, "--fields", '{"key": 1}'), "key: str is wanted, not int"),
            ((*put, "--fields", '{"nokey": 1}'), "fields: 'nokey' is not one of tenant, key"),
            ((*put, "--fields", '{"value": 1}'), "value: a string is wanted, not int"),
            ((*put, "--fields", '{"key": "a", "key": "b"}'), "a name comes twice"),
            ((*put, "--fields", '{"expected_revision": 1.0}'), "1.0 is not a whole number"),
            ((*put, "--fields", '{"expected_revision": NaN}'), "expected_revision: int is wanted"),
            ((*put, "--fields", '{"expected_revision": true}'), "int is wanted, not bool"),
            ((*put, "--fields", f"@{latin}"), "fields: the file is not UTF-8"),
            ((*save, "--sessions", '{"client_id": "a"}'), "sessions: broker is missing"),
            ((*save, "--sessions", '{"client_id": "a", "x": 1}'), "sessions: 'x' is not one of"),
            ((*save, "--sessions", "5"), "sessions: an object is wanted, not int"),
            ((*save, "--client-id", "a"), "broker: missing, say it with --broker"),
            (("metadata", "kv", "range", "--after", "zz"), "after: 'zz' is not hex"),
            (("mqtt", "session", "open-all", "--clean-starts", "maybe"), "true or false is wanted"),
        ):
            line = refused(*arguments_)
            assert line.startswith("Invalid: "), line
            assert said in line
        assert memory.asked == []
        checked: tuple[tuple[tuple[str, ...], str], ...] = (
            ((*put, "--value", "v", "--tenant", "t" * 1000), "Invalid: tenant: 1000 bytes"),
            ((*put, "--value", "v", "--expected-revision", str(2**63)), "beyond 64 bits"),
            (save, "Invalid: sessions: 0 items"),
            (("metadata", "kv", "range", "--limit", "0"), "Invalid: limit: 0"),
            ((*put, "--value", "v", "--expected-revision", "3"), "Conflict: expected_revision: 3"),
        )
        for words, said in checked:
            assert said in refused(*words)
        assert json.loads(shown("metadata", "kv", "range", "--json"))["entries"] == []

    def test_a_json_string_never_reads_a_file(self, memory: InMemory) -> None:
        shown("metadata", "kv", "put", "--fields", '{"key": "a", "value": "@/etc/hostname"}')
        asked, _ = memory.asked[-1]
        assert asked.value == b"@/etc/hostname"

    def test_what_others_wrote_moves_no_cursor_and_is_no_markup(self) -> None:
        shown("metadata", "kv", "put", "--key", "[red]a\nb\x1b[2J", "--value", "v")
        text = shown("metadata", "kv", "range")
        assert "[red]a\\nb\\x1b[2J" in text
        assert "\x1b" not in text

    def test_what_is_between_colons_is_no_picture(self) -> None:
        shown("metadata", "kv", "put", "--key", "orders:new:eu", "--value", "a:key:b")
        text = shown("metadata", "kv", "range")
        assert "orders:new:eu" in text
        assert "a:key:b" in text


@pytest.mark.parametrize("around", ["{}", "[bold]{}[/]", "{}[red] x[/]"])
def test_a_name_is_shown_as_it_is_whatever_its_brackets_and_backslashes(around: str) -> None:
    for letters in itertools.product("\\[]/a", repeat=4):
        name = "".join(letters)
        found = Text.from_markup(around.format(cell(name))).plain
        assert found == Text.from_markup(around.format("name")).plain.replace("name", name)


def test_a_name_that_looks_like_markup_is_not_there_to_be_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def restarted(name: str) -> None:
        raise NotFound(f"name: {name!r} is none")

    monkeypatch.setattr(leading, "join_cluster", lambda *_: None)
    monkeypatch.setattr(leading, "restart_actor", restarted)
    assert refused("restart", "[/x]") == "NotFound: name: '[/x]' is none\n"


def test_a_wide_row_is_shown_as_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node("n" * 60, 1, True, (Address("mqtt", "a"),), 1, 2)
    get = ALL["metadata.node.list"]
    page = get.reply((node,), b"")
    for width, records in ((60, True), (400, False)):
        monkeypatch.setattr(console, "_width", width)
        with console.capture() as taken:
            show.reply(get, get.cls(), page, as_json=False)
        assert "".join(taken.get().split()).count("n" * 50) == 1
        assert (len(taken.get().splitlines()) > 5) is records


# -- milliseconds -------------------------------------------------------------------------------

MOMENTS = {
    *(
        "as_of_ms",
        "at_ms",
        "back_ms",
        "begun_ms",
        "bound_ms",
        "changed_ms",
        "claimed_until_ms",
        "commit_ms",
    ),
    *("connected_ms", "created_ms", "deadline_ms", "disconnected_ms", "due_ms", "end_ms"),
    *(
        "expires_ms",
        "fired_ms",
        "first_commit_ms",
        "free_ms",
        "granted_ms",
        "heartbeat_ms",
        "joined_ms",
    ),
    *("keep_ms", "last_begun_ms", "last_commit_ms", "last_ended_ms", "next_due_ms", "next_ms"),
    *(
        "now_ms",
        "oldest_ms",
        "registered_ms",
        "session_created_ms",
        "since_ms",
        "start_ms",
        "stored_ms",
    ),
    *("subscribed_ms", "until_ms", "updated_ms", "upto_ms"),
}


def test_every_field_of_milliseconds_is_known_to_say_when_or_how_long() -> None:
    said = (ROOT / "proto" / "entities.proto").read_text(encoding="utf-8")
    kept = {field.name for each in TABLES.values() for field in dataclasses.fields(each.row)}
    found = {*re.findall(r" (\w+_ms) = ", said), *(name for name in kept if name.endswith("_ms"))}
    assert found - MOMENTS == values.DURATIONS
    assert found >= MOMENTS


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("age_ms", 3_650 * 86_400_000, "3,650 d"),
        ("step_ms", 10_000, "10 s"),
        ("retention_ms", -1, "-1"),
        ("wait_ms", 0, "0"),
        ("until_ms", 1_700_000_000_000, "2023-11-14 22:13:20"),
        ("until_ms", 0, "0"),
        ("until_ms", 2**62, f"{2**62} ms"),
        ("offset", 1_700_000_000_000, "1700000000000"),
    ],
)
def test_a_duration_is_shown_as_a_span_and_a_moment_as_a_date(
    name: str, value: int, text: str
) -> None:
    assert values.text_of(value, name) == text


# -- outcomes -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Thing:
    name: str
    size: int = 0


@pytest.fixture
def batch() -> Iterator[registry.Operation]:
    """A command with an outcome for each of its items, for the time of a test."""

    @op.command("metadata.test_thing.put")
    class PutThings(Batch):
        """Put things."""

        many: ClassVar[str] = "items"
        items: tuple[Thing, ...]

        def apply(self, db: Any, at: Any) -> tuple[Outcome, ...]:
            """Never run."""
            raise AssertionError

    operation = registry.Operation("metadata.test_thing.put", PutThings)
    yield operation
    op.TAGS.pop(op.COMMANDS.pop(operation.tag))


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("refusal", [False, True])
def test_outcomes_are_a_table_and_a_refusal_is_a_status(
    batch: registry.Operation, capsys: pytest.CaptureFixture[str], as_json: bool, refusal: bool
) -> None:
    second = Outcome("FENCED", "epoch: 1, in force is 2", 0) if refusal else Outcome("OK", "", 8)
    answer = (Outcome("OK", "", 7), second)
    made = entities.Leaf(batch).command("put")
    words = ["--items", '{"name": "first"}', "--name", "second", "--size", "3"]
    with instead(Answers(answer)) as client:
        status = made.main([*words, *(["--json"] if as_json else [])], standalone_mode=False)
    assert client.asked.items == (Thing("first"), Thing("second", 3))
    assert (status or 0) == (2 if refusal else 0)
    said, noted = capsys.readouterr()
    assert noted == ("refused: 1 of 2\n" if refusal else "")
    if as_json:
        assert [each["code"] for each in json.loads(said)] == ["OK", second.code]
    else:
        first, other = (line for line in said.splitlines() if "OK" in line or "FENCED" in line)
        assert "first" in first
        assert "second 3" in other
        assert ("in force is 2" in other) is refusal


def test_a_long_refusal_stands_below_its_item(
    batch: registry.Operation, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = (Outcome("OK", "", 7), Outcome("FENCED", "epoch: " + "9" * 150, 0))
    asked = batch.cls(items=(Thing("first"), Thing("[second]")))
    with pytest.raises(typer.Exit):
        show.reply(batch, asked, answer, as_json=False)
    said = capsys.readouterr().out
    assert said.index("first 0") < said.index("OK") < said.index("[second] 0")
    assert "9" * 150 in re.sub(r"\s", "", said)


# -- the tree -----------------------------------------------------------------------------------


def test_a_tag_beside_longer_ones_is_found_twice_named() -> None:
    made = entities.tree_of([("a.b", 1), ("a.b.c", 2), ("a.d_e", 3), ("x.y.z", 4), ("x.y", 5)])
    assert made == {"a": {"b": {"b": 1, "c": 2}, "d-e": 3}, "x": {"y": {"z": 4, "y": 5}}}


def test_what_every_group_has_is_told_apart_from_what_a_kind_has() -> None:
    known = entities.branches()
    assert entities.about(known["offset"]) == "What the offset groups keep and do."
    assert entities.about(known["group"]).startswith("Every group keeps and does this")


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    assert "Did you mean 'session'" in run("mqtt", "sesion").stderr
    assert "Did you mean 'mqtt'" in run("mqt").stderr


def test_options_of_ours_give_fields_a_name_of_their_own() -> None:
    flags = {each.field.name: each.flag for each in leaf("metadata.node.register").items}
    assert flags == {"protocol": "--protocol", "address": "--item-address"}
    fields = {each.field.name: each.flag for each in leaf("offset.fetch").fields}
    assert fields == {"tenant": "--tenant", "group": "--group"}


def alone(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "words", [("--help",), ("mqtt", "session", "get", "--help"), ("metadata", "kv", "get")]
)
def test_nothing_of_ray_is_imported_before_a_cluster_is_asked(words: tuple[str, ...]) -> None:
    program = f"""
import sys
from metaray.cli import main
sys.argv = ["metaray", *{words!r}]
try:
    main()
finally:
    heavy = {{"ray", "pyarrow", "matplotlib", "grpc", "pyspark"}} & set(sys.modules)
    sys.stderr.write(f"imported {{sorted(heavy)}}")
"""
    assert alone(program).stderr.endswith("imported []")


def test_shells_complete_the_path_and_the_options() -> None:
    program = "import sys; from metaray.cli import main; sys.argv = ['metaray']; main()"

    def completed(*words: str) -> str:
        line = " ".join(("metaray", *words))
        return alone(
            program,
            _METARAY_COMPLETE="complete_bash",
            COMP_WORDS=line,
            COMP_CWORD=str(len(words)),
        ).stdout

    assert "mqtt" in completed("mq")
    assert "bench" in completed("be")
    assert completed("mqtt", "session", "op").split() == ["open", "open-all", "open-with-will"]
    assert "--client-id" in completed("mqtt", "session", "get", "--cl")


def test_an_entry_point_is_shown_unimported_and_run() -> None:
    found = alone("import sys; from metaray.cli import main; sys.argv = ['m', '--help']; main()")
    assert "Measure this machine" in found.stdout
    program = "import sys; from metaray.cli import main; sys.argv = ['m', 'bench', '-x']; main()"
    found = alone(program)
    assert found.returncode == 2
    assert "No such option" in found.stderr


def test_standard_input_that_is_closed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(Invalid, match="value: '-' cannot be read: standard input is closed"):
        values.from_text(bytes, "@-", "value")
