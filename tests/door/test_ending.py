"""Commands that somebody ends: no stack on the terminal, and a status that says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from metaray.cli import door, ending

COMMAND = """
import atexit, os, signal
from metaray import cli, plain
from metaray.cli import app, door, ending

plain.again = lambda _: None
me = os.getpid()

def command():
    try:
        {during}
    finally:
        print("undone", flush=True)

app.app = command
atexit.register(lambda: {after})
cli.main()
"""


def run(during: str = "pass", after: str = "None") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND.format(during=during, after=after)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def handlers() -> Iterator[None]:
    """Those of this process, put back."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_command_that_is_ended_undoes_what_it_has_begun() -> None:
    done = run("os.kill(me, signal.SIGTERM)")
    assert (done.returncode, done.stdout, done.stderr) == (143, "undone\n", "")


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_what_comes_after_the_last_word_ends_the_process_at_once(number: str) -> None:
    """Ray takes half a second to let go, and would be interrupted in the middle of it."""
    done = run(after=f"os.kill(me, signal.{number})")
    assert (done.returncode, done.stderr) == (-getattr(signal, number), "")


JOINING = """
import os, signal, sys, threading, types
import metaray
from metaray.cli import door, ending

def join(*_):
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: print("Ray's own", flush=True))
    print("joins")
    os.kill(os.getpid(), signal.{number})
    threading.Event().wait(20)

metaray.client = sys.modules["metaray.client"] = types.SimpleNamespace(join_cluster=join)
ending.by_raising()
door.join_cluster(None, None)
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_ray_does_not_answer_for_us_while_we_join(number: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", JOINING.format(number=number)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    status = 128 + getattr(signal, number)
    assert (done.returncode, done.stdout, done.stderr) == (status, "joins\n", "")


@pytest.mark.usefixtures("handlers")
def test_ray_does_not_answer_for_us_once_we_have_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    def join(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray takes it for itself

    monkeypatch.setattr("metaray.client.join_cluster", join)
    monkeypatch.setattr("metaray.client.connect_sync", lambda *_, **__: None)
    for joining in (door.join_cluster, lambda *each: door.connect_sync(each[0], data=each[1])):
        joining(None, Path())
        with pytest.raises(SystemExit) as ended:
            os.kill(os.getpid(), signal.SIGTERM)
        assert ended.value.code == 143


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_is_ignored_stays_so() -> None:
    """`nohup`, or a shell that began us in the background."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ending.by_raising()
    ending.at_once()
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_the_letters_is_no_reason_to_fail(encoding: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "metaray.cli", "down", "--data", str(tmp_path / "ключ")],
        env={**os.environ, "PYTHONIOENCODING": encoding},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"\u043a\u043b\u044e\u0447" in done.stdout
