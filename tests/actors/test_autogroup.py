"""A process that begins an autogroup, which is a session, from wherever Ray may have put it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kernel import run_apart

NICE = Path("/proc/self/autogroup")  # "/autogroup-7 nice 0"
PROGRAM = """
import logging, os, sys
from pathlib import Path
from actors import autogroup
{before}
autogroup.begin({nice})
autogroup.begin({nice})
print(os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid(), {more})
"""


def _said(
    before: str, *, new_session: bool = False, nice: str = "", more: str = ""
) -> tuple[str, str]:
    return run_apart(PROGRAM.format(before=before, nice=nice, more=more), new_session=new_session)


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


needs_autogroups = pytest.mark.skipif(not NICE.exists(), reason="this kernel has no autogroups")


@needs_autogroups
def test_a_nice_value_is_the_sessions_and_no_other_ones() -> None:
    """Any process may make itself nicer; which is also what shows that it is the new session's."""
    mine = NICE.read_text()
    said, warned = _said("", nice="7", more='Path("/proc/self/autogroup").read_text().split()[1:]')
    assert (said, warned) == ("True True ['nice', '7']", "")
    assert NICE.read_text() == mine


@needs_autogroups
def test_a_nice_value_that_is_refused_is_told_and_nothing_else_is_lost() -> None:
    """-21 is beyond what there is, whoever asks."""
    before = "logging.basicConfig(level=logging.INFO)"
    said, told = _said(before, nice="-21", more='Path("/proc/self/autogroup").read_text()[-2]')
    assert said == "True True 0"
    assert "not that of nice -21" in told


@pytest.mark.parametrize(("refusals", "given"), [(3, "7"), (1_000, "0")])
def test_who_is_not_heard_asks_again_but_not_for_ever(refusals: int, given: str) -> None:
    """Linux hears users other than root ten times a second, all of them together."""
    before = f"""
logging.basicConfig(level=logging.INFO)
class Deaf:
    left, nice = {refusals}, "0"
    def write_text(self, nice):
        if self.left:
            self.left -= 1
            raise BlockingIOError("later")
        self.nice = nice
autogroup.NICE_FILE = Deaf()
autogroup.AGAIN_SECONDS = 0
"""
    said, told = _said(before, nice="7", more="autogroup.NICE_FILE.nice")
    assert said == f"True True {given}"
    assert ("the usual share" in told) == (given == "0")


def test_without_a_session_of_its_own_no_nice_value_is_touched() -> None:
    before = """
os.setsid = lambda: (_ for _ in ()).throw(PermissionError("no"))
autogroup.NICE_FILE = Path("/nowhere")
logging.basicConfig(level=logging.INFO)
"""
    said, told = _said(before, nice="7")
    assert said.startswith("False")
    assert "no autogroup of its own" in told
    assert "nice" not in told
