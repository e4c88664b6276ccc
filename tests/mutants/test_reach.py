"""What is written down of the functions that tests call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.mutants.mutant import ROOT
from tests.mutants.reach import read_back

WATCHED = """
import resource, signal, sys
from tests.mutants.reach import write_down
from storage.journal import _count, _whole

write_down(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
_count(1), _whole(1)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
_whole(1)
"""


def test_a_process_whose_files_may_not_grow_goes_on_and_is_written_down_later(
    tmp_path: Path,
) -> None:
    """Else each bug was judged by a test of a full disk that failed because it was watched."""
    called = tmp_path / "called"
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED, str(called)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    source = (ROOT / "storage/journal.py").read_text().splitlines()
    assert [source[line - 1] for where, line in read_back(called)] == [
        "def _whole(size: int) -> int:"
    ]
