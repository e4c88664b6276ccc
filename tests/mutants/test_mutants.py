"""Every planted bug still fits its module, and every law has bugs that break it."""

from __future__ import annotations

import ast
import contextlib
import os
import subprocess
import sys

import psutil
import pytest

from tests.mutants.catalogue import AREAS, MUTANTS
from tests.mutants.mutant import ROOT, Mutant

LAWS = 20
QUICK_SECONDS = 600
BUGS_MIN = 48

each_bug = pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS.keys())


@each_bug
def test_its_text_stands_where_it_says_once(mutant: Mutant) -> None:
    source = mutant.path.read_text()
    planted = mutant.planted(source)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(source)), "nothing is changed"


def test_every_law_is_broken_by_a_bug() -> None:
    broken = {mutant.law for mutant in MUTANTS.values()}
    assert {f"law {number}" for number in range(1, LAWS + 1)} <= broken


def test_no_two_bugs_are_the_same() -> None:
    assert sum(map(len, AREAS.values())) == len(MUTANTS) >= BUGS_MIN, "a name for each"
    planted = {(each.module, each.planted(each.path.read_text())) for each in MUTANTS.values()}
    assert len(planted) == len(MUTANTS)


@pytest.mark.long
@pytest.mark.timeout(QUICK_SECONDS + 60)
def test_every_bug_is_killed_by_the_test_that_is_recorded_for_it() -> None:
    """And all these tests pass without a bug. In a process that has imported nothing of ours."""
    told = subprocess.run(
        [sys.executable, "-m", "tests.mutants", "quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=QUICK_SECONDS,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-4_000:] + told.stderr[-4_000:]
    assert told.stdout.splitlines()[-1] == f"{len(MUTANTS)} bugs, 0 complaints"


FORKED = """
import os, signal
from tests.kernel import end_with_parent
ready, told = os.pipe()
child = os.fork()
if child == 0:
    os.setsid()
    end_with_parent()
    os.write(told, b"1")
    signal.pause()
os.read(ready, 1)
print(child, flush=True)
os._exit(1)
"""


def test_a_trial_ends_with_the_run_that_began_it() -> None:
    """Also one that would go on for ever, of a run that was killed."""
    parent = subprocess.run(
        [sys.executable, "-c", FORKED],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        timeout=60,
    )
    with contextlib.suppress(psutil.NoSuchProcess):  # it has ended already
        psutil.Process(int(parent.stdout)).wait(30)
