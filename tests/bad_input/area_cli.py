"""What is typed: the terminal's arguments, and rows of others in the terminal's tables.

The commands run in this process over groups in memory. Whatever comes, a command ends with status
0, or with 2 and one line (a usage box of typer's); and nobody's name begins a line of its own.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from random import Random
from tempfile import gettempdir
from typing import Any, Final
from unittest import mock

from typer.testing import CliRunner, Result

from metaray.cli import data, entities
from metaray.cli.app import app, console
from metaray.client import connect_sync
from metaray.contract import registry
from state_machines import op
from state_machines.errors import Invalid
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.metadata.kv import DeleteKv, GetKv, PutKv
from state_machines.mqtt.session import OpenSession
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from tests.bad_input import values
from tests.bad_input.battery import Case, Outcome, Wrong
from tests.machine.alone import Group

COLUMNS: Final = 2_000  #: wide enough that no row is broken
NOWHERE: Final = str(Path(gettempdir()) / "bad-input-nowhere")
TEXTS: Final = (
    *(each for each in values.TEXTS if "\0" not in each),  # no argument can hold a NUL
    "\udc80b",  # how Python hands on what is not UTF-8
    *("a" * size for size in (256, 257, 400, 401, 65_536)),
    *("-1", "--", "-", "--help", "--json", "@file", "$HOME", "`id`", "*", "\ud83d\ude00"),
)
NUMBERS: Final = (
    *map(str, values.NUMBERS),
    *(
        str(2**64),
        "9" * 4_000,
        "9" * 5_000,
        "1e9",
        "1.5",
        "nan",
        "0x10",
        "\u0661",
        "",
        " 1",
        "1_000",
        "+1",
    ),
)
OPTIONS: Final = ("--limit", "--expect", "--tenant", "--json", "--data", "", "", "--x")
JSONS: Final = (
    *("{}", "[]", "null", "{", '"a"', "1e400", "-0", "[" * 60_000, '{"a": {"a": {}}}'),
    *('{"tenant": null}', '{"tenant": "a", "tenant": "b"}', '{"\\ud800": 1}', '["\\u0000"]'),
    *("NaN", "9" * 5_000, "[1, 2.5]", "hex:zz", "@/dev/null", "@/dev/full", "text:"),
)
GENERATED: Final = 0.5  #: how many of those that are drawn are made from the registry
OPERATIONS: Final = [each for each in registry.operations() if each.tag not in entities.UNSAID]
SAFE: Final = ("kv", "offsets", "sessions")  #: what may run here with anything


class Client:
    """`connect_sync` over groups in memory, checked as a client checks."""

    def __init__(self) -> None:
        self._groups: dict[str, Group] = {}

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def call(self, operation: Any, *, group: str = "", stale: bool = False) -> Any:
        operation_type: Any = type(operation)
        kind = group.partition("-")[0] if group else op.kind(operation_type)
        if kind not in groups():
            raise Invalid("group: there is no such group")
        assert not stale or op.is_query(operation_type)
        if kind not in self._groups:
            self._groups[kind] = copy.deepcopy(groups()[kind])
        held = self._groups[kind]
        return (held.ask if op.is_query(operation_type) else held.run)(operation)

    def put(self, key: str, value: bytes, **fields: Any) -> Any:
        return self.call(PutKv(key=key, value=value, **fields))

    def get(self, key: str, **fields: Any) -> Any:
        return self.call(GetKv(key=key, **fields))

    def delete(self, key: str, **fields: Any) -> Any:
        return self.call(DeleteKv(key=key, **fields))

    def groups(self) -> tuple[str, ...]:
        return tuple([f"{kind}-0" for kind in groups()])


def over_memory(*_: object, **__: object) -> Client:
    """In place of `connect_sync`: a client of groups that nobody else has."""
    return Client()


@cache
def groups() -> dict[str, Group]:
    """Groups that others have filled with names like these."""
    made = {kind: Group(kind) for kind in ("metadata", "offset", "mqtt")}
    for text in values.TEXTS:
        if text and "\0" not in text:
            made["metadata"].run(PutKv(key=text, value=text.encode()))
            commit = OffsetCommit(group=text, topic=text, partition=0, offset=1)
            made["offset"].run(CommitOffsets.of([commit]))
            made["mqtt"].run(OpenSession(client_id=text, broker=text))
    return made


def run(arguments: list[str], *, real: bool = False) -> Outcome:
    """One command, over fresh groups, or (`real`) as it is where no cluster runs."""
    door = connect_sync if real else over_memory
    with (
        mock.patch.object(data, "connect_sync", door),
        mock.patch.object(entities, "connect_sync", door),
    ):
        result = _invoke(arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    for line in result.stderr.splitlines():
        if not line.isprintable() or "Traceback" in line:
            raise Wrong("forged", f"said {line[:200]!r}")
    if result.exit_code == 0:
        if arguments[:2] != ["kv", "get"]:  # which writes a value as it is
            _check_table(result.stdout)
        return Outcome.TAKEN
    if result.exit_code != 2 or not result.stderr:
        raise Wrong("unnamed", f"status {result.exit_code}: {result.output[:200]!r}")
    if not result.stderr.startswith(("Usage:", "\n")) and result.stderr.count("\n") != 1:
        raise Wrong("forged", f"said {result.stderr[:300]!r}")
    return Outcome.REFUSED


def _invoke(arguments: list[str]) -> Result:
    # The console takes its width from where it was made, if that said one, and then for good.
    with mock.patch.object(console, "_width", COLUMNS):
        return CliRunner().invoke(app, arguments)


def _check_table(said: str) -> None:
    """Every line is whole: what is in a table begins and ends with its border."""
    lines = said.split("\n")[:-1]
    inside = [line for line in lines if line.startswith(("│", "┃")) and said.startswith("┏")]
    for line in lines:
        if not line.isprintable():
            raise Wrong("forged", f"printed {line[:200]!r}")
    for line in inside:
        if line[0] != line[-1] or line.count(line[0]) < 3:
            raise Wrong("forged", f"a row of its own: {line[:200]!r}")


def rows(command: str) -> Outcome:
    """A list shows every row on one line, whatever the names are."""
    with mock.patch.object(data, "connect_sync", over_memory):
        result = _invoke(command.split())
    wanted = sum(bool(text) and "\0" not in text for text in values.TEXTS)
    shown = [line for line in result.stdout.split("\n") if line.startswith("│")]
    _check_table(result.stdout)
    if len(shown) != wanted:
        raise Wrong("forged", f"{len(shown)} rows for {wanted}")
    return Outcome.TAKEN


def _listed() -> list[tuple[list[str], bool]]:
    """Arguments, and whether they meet the real thing."""
    made: list[tuple[list[str], bool]] = []
    for text in TEXTS:
        for words in (["kv", "get"], ["kv", "del"], ["kv", "ls"], ["offsets"], ["sessions"]):
            made.append(([*words, "--", text], False))
            made.append(([*words, "--tenant", text, "--", "a"], False))
        made.append((["kv", "put", "--", text, "v"], False))
        made.append((["kv", "put", "--", "k", text], False))
        made.append((["kv", "get", "k", "--data", text], True))
        made.append((["kv", "get", "k", "--data", NOWHERE, "--address", f"{text} "], True))
        made.append((["up", "--address", f"{text} "], True))
        made.append((["up", "--local", "1", "--config", text or NOWHERE], True))
        made.append((["down", "--data", f"{NOWHERE}{text}"], True))
        made.append(([text], True))
    for number in NUMBERS:
        lists, changes = (
            (["kv", "ls"], ["offsets"], ["sessions"]),
            (["put", "k", "v"], ["del", "k"]),
        )
        made += [([*words, "--limit", number], False) for words in lists]
        made += [(["kv", *words, "--expect", number], False) for words in changes]
        made.append((["kv", "get", "k", "--address", f"127.0.0.1:{number}x"], True))
        if number not in ("1", "2", "+1", " 1", "\u0661"):  # which would start nodes
            made.append((["up", "--local", number, "--data", NOWHERE], True))
        made.append((["up", "--local", "1", "--replicas", f"{number}0", "--data", NOWHERE], True))
    made.append((["kv", "put", "k", "v" * (VALUE_BYTES_MAX + 1)], False))
    return [each for each in made if not _starts(each[0])]


def _starts(arguments: list[str]) -> bool:
    """Whether this is a command that would do what it is asked."""
    return arguments[:1] in (["demo"], ["report"]) or (
        "--replicas" in arguments and arguments[4] in ("10", "20")
    )


def _generated(rng: Random) -> list[str]:
    """A command of the registry, with values for some of its options that mostly do not fit."""
    operation = rng.choice(OPERATIONS)
    leaf = entities.Leaf(operation)
    words = operation.tag.replace("_", "-").split(".")
    for option in rng.sample([*leaf.fields, *leaf.items], k=min(4, len(leaf.fields))):
        if option.field.hint in (bool, bool | None):
            words.append(rng.choice((option.flag, f"--no-{option.flag[2:]}")))
            continue
        texts = NUMBERS if option.field.hint is int and rng.random() < 0.8 else (*TEXTS, *JSONS)
        words += [option.flag, rng.choice(texts)]
    for flag, texts in (("--fields", JSONS), ("--raft-group", TEXTS), ("--data", TEXTS)):
        if rng.random() < 0.1:
            words += [flag, rng.choice(texts)]
    return [*words, *(["--json"] if rng.random() < 0.3 else [])]


class Cli:
    """Commands of the terminal."""

    name = "cli"
    frame_bytes = 4 * VALUE_BYTES_MAX

    def __init__(self) -> None:
        self._listed = _listed()
        self._tables = ("kv ls", "offsets", "sessions")
        self.listed = len(self._tables) + len(self._listed)
        rows(self._tables[0])  # what the first command imports is no input's doing

    def case(self, number: int) -> Case:
        if number < len(self._tables):
            return Case(self._tables[number], partial(rows, self._tables[number]))
        number -= len(self._tables)
        if number < len(self._listed):
            arguments, real = self._listed[number]
        else:
            arguments, real = self._drawn(Random(f"cli {number}")), False
        shown = " ".join(each[:30] for each in arguments)
        made: Callable[[], Outcome] = partial(run, arguments, real=real)
        return Case(repr(shown)[:120], made, size=sum(map(len, arguments)), wide=True)

    @staticmethod
    def _drawn(rng: Random) -> list[str]:
        if rng.random() < GENERATED:
            return _generated(rng)
        words = [rng.choice(SAFE)]
        if words == ["kv"]:
            words.append(rng.choice(("get", "put", "del", "ls", rng.choice(TEXTS))))
        for _ in range(rng.randrange(5)):
            option = rng.choice(
                ("--limit", "--expect", "--tenant", "--json", "--data", "", "", "--x")
            )
            if option:
                words.append(option)
            if option != "--json":
                words.append(rng.choice(NUMBERS if option in ("--limit", "--expect") else TEXTS))
        return words
