"""A process that begins an autogroup, which is a session, from wherever Ray may have put it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import os, sys
from actors import autogroup
{before}
autogroup.begin()
autogroup.begin()
print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid())
"""


def _said(before: str, *, new_session: bool = False) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=new_session,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize("before", ["", "os.setpgrp()"], ids=["a member", "leads its group"])
def test_a_process_begins_a_session_and_leads_its_group(before: str) -> None:
    assert _said(before) == ("True True", "")


def test_who_has_a_session_keeps_it() -> None:
    assert _said("", new_session=True) == ("True True", "")


def test_who_may_not_is_warned_and_goes_on() -> None:
    """It leads its group, and who is now its parent is in another session."""
    before = """
import subprocess
other = [sys.executable, "-c", "input()"]
parent = subprocess.Popen(other, stdin=subprocess.PIPE, start_new_session=True)
os.setpgrp()
os.getppid = lambda: parent.pid
"""
    said, warned = _said(before)
    assert said == "False True"
    assert "no autogroup of its own" in warned
