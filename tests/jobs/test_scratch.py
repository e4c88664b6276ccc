"""What a Spark has written to while it ran goes, also when it was killed, and nothing else does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs import scratch

HOLDS = """
import sys
from jobs.scratch import scratch
with scratch() as directory:
    (directory / "cut").mkdir()
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def test_what_a_killed_one_has_left_goes_with_the_next_that_starts(temporary: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        left = Path(holder.stdout.readline().strip())
        older = temporary / f"{scratch.PREFIX}older"  # of a release that locked nothing
        older.mkdir()
        os.utime(left / scratch.LOCK, (0, 0))
        with scratch.scratch() as mine:
            assert left.is_dir(), "somebody is at work there"
        assert not mine.exists()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    os.utime(left / scratch.LOCK)
    with scratch.scratch():
        assert left.is_dir(), "it may be that its process has not locked it yet"
    os.utime(left / scratch.LOCK, (0, 0))
    with scratch.scratch():
        assert not left.exists()
        assert older.is_dir()
