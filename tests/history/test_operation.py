"""Histories on disk: nothing is lost when the process is, and every ending is told apart."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from state_machines.errors import (
    Conflict,
    NoQuorum,
    Overloaded,
    SessionExpired,
    Stopped,
    Unknown,
    WrongShard,
)
from tests.history.operation import Recorder, is_refusal, read, refusal, write

ROOT = Path(__file__).parents[2]


def test_what_is_written_is_read(tmp_path: Path) -> None:
    clock = itertools.count(10)
    with Recorder(tmp_path / "a.jsonl", clock=lambda: next(clock)) as recorder:
        first = recorder.invoke("w1", "put", "k", ("a", None))
        second = recorder.invoke("w2", "get", "k")
        recorder.ok(second, None)
        recorder.ok(first, 7, group="metadata-0", index=7)
        put, get = recorder.operations()
    assert (put.process, put.kind, put.input, put.output) == ("w1", "put", ("a", None), 7)
    assert (put.invoked, put.returned, put.group, put.index) == (10, 13, "metadata-0", 7)
    assert (get.invoked, get.returned, get.index) == (11, 12, 0)
    write(tmp_path / "b.jsonl", [put, get])
    assert read(tmp_path / "b.jsonl") == [put, get]


@pytest.mark.parametrize(
    ("error", "comes_to"),
    [
        (Conflict("no"), "answered"),
        (NoQuorum("none"), "nothing"),
        (Overloaded("later"), "nothing"),
        (WrongShard("moved", 3), "nothing"),
        (Unknown("late"), "unknown"),
        (Stopped("gone"), "unknown"),
        (SessionExpired("forgotten"), "unknown"),
    ],
)
def test_errors_are_answers_or_nothing_or_in_doubt(error: Exception, comes_to: str) -> None:
    recorder = Recorder()
    recorder.raised(recorder.invoke("w", "put", "k", ("a", 3)), error)  # type: ignore[arg-type]
    found = recorder.operations()
    if comes_to == "nothing":
        assert found == []
    elif comes_to == "unknown":
        assert [each.unknown for each in found] == [True]
    else:
        assert [each.output for each in found] == [refusal("CONFLICT")]
        assert is_refusal(found[0].output)


def test_what_was_asked_and_never_ended_is_unknown() -> None:
    recorder = Recorder()
    recorder.unknown(recorder.invoke("w", "put", "k", ("a", None)))
    recorder.invoke("w", "put", "k", ("b", None))
    assert [each.unknown for each in recorder.operations()] == [True, True]


def test_an_operation_ends_once() -> None:
    recorder = Recorder()
    ticket = recorder.invoke("w", "get", "k")
    recorder.ok(ticket, None)
    recorder.fail(ticket)
    with pytest.raises(AssertionError, match="ends what has ended"):
        recorder.operations()


def test_a_killed_process_leaves_all_it_knew(tmp_path: Path) -> None:
    path = tmp_path / "killed.jsonl"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from tests.history.operation import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]))\n"
        "for n in range(100):\n"
        "    recorder.ok(recorder.invoke('w', 'put', 'k', (str(n), None)), n)\n"
        "recorder.invoke('w', 'put', 'k', ('last', None))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, timeout=60, check=False)
    assert ended.returncode == -signal.SIGKILL
    found = read(path)
    assert [each.output for each in found[:100]] == list(range(100))
    assert [each.unknown for each in found] == [False] * 100 + [True]


def test_a_line_cut_short_is_no_line_and_a_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "torn.jsonl"
    with Recorder(path) as recorder:
        recorder.ok(recorder.invoke("w", "get", "k"), None)
    whole = path.read_bytes()
    os.truncate(path, len(whole) - 5)
    assert [each.unknown for each in read(path)] == [True]
    path.write_bytes(whole[:10] + b"\n" + whole)
    with pytest.raises(ValueError, match=r"torn\.jsonl:1: "):
        read(path)
