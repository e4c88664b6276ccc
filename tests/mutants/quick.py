"""Every bug against the one test that finds it fastest, in seconds rather than minutes.

One pytest collects the tests that `killers.json` records and then, instead of running them, forks
once for each bug: the child puts the bug in (`swap.py`) and goes on with the test that finds it.
One more child runs all these tests without a bug, and they must pass. The few bugs that cannot be
put in after the import, or are not found then, get a process that imports them (`trial.py`).
"""

from __future__ import annotations

import gc
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import CodeType
from typing import Any, Final

import pytest

from tests.kernel import end_with_parent
from tests.mutants import swap, trial
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT
from tests.mutants.trial import OPTIONS, TEST_SECONDS, Reporter, Trial

KILLERS: Final = Path(__file__).parent / "killers.json"
SECONDS: Final = TEST_SECONDS + 30.0  #: for one bug, whose test's own limit is to strike first
ALL_SECONDS: Final = 600.0
FOUND: Final = 86  #: exit status of a child whose test failed
HEALTHY: Final = ""  #: stands for no bug


class _Conductor:
    """A pytest plugin that runs the loop over the tests, in the parent; children run their own."""

    def __init__(self, wanted: Mapping[str, str], place: Path) -> None:
        self._wanted = wanted  # bug -> the test that finds it
        self._place = place
        self.parent = os.getpid()
        self.came: dict[str, Trial] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # something could not be collected; let pytest say it
        items = {item.nodeid: item for item in session.items}
        functions = swap.alive()
        gc.freeze()  # a collection in a child must not touch, and so copy, what it has from here
        for name in (HEALTHY, *self._wanted):
            new = swap.changed(MUTANTS[name]) if name else {}
            if new is None or (name and self._wanted[name] not in items):
                continue
            begun = time.monotonic()
            told, said = (self._place / f"{what} {name}" for what in ("told", "said"))
            child = os.fork()
            if child == 0:
                self._begin(session, told, said)
                if name:
                    session.config.pluginmanager.register(_AtOnce())
                    _plant(name, new, functions)
                    session.items = [items[self._wanted[name]]]
                return None
            ended = trial.wait(child, begun + (SECONDS if name else ALL_SECONDS))
            took = time.monotonic() - begun
            if name and ended == FOUND:
                self.came[name] = Trial("failed", self._wanted[name], "", took, 1, frozenset())
            else:
                self.came[name] = trial.judge(told, said, ended, took)
        return True

    def _begin(self, session: pytest.Session, told: Path, said: Path) -> None:
        os.setsid()
        end_with_parent()
        output = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        session.config.pluginmanager.register(Reporter(told.open("w")))


class _AtOnce:
    """A test that fails is all there is to know: nothing is torn down, explained or shown."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> pytest.TestReport | None:
        if call.excinfo is not None and not call.excinfo.errisinstance(pytest.skip.Exception):
            os._exit(FOUND)
        return None


def _plant(name: str, new: dict[str, CodeType], functions: swap.Functions) -> None:
    try:
        swap.swap(MUTANTS[name], new, functions)
    except (LookupError, ValueError):
        os._exit(3)  # it has to be imported


def killers() -> dict[str, dict[str, dict[str, Any]]]:
    """Bug -> kind of tests -> the test of that kind that finds it, and in how many seconds."""
    known: dict[str, dict[str, dict[str, Any]]] = json.loads(KILLERS.read_text())
    return {name: found for name, found in known.items() if name in MUTANTS and found}


def run() -> Iterator[str]:
    """What is wrong: bugs that are not found, and tests that fail without one."""
    os.chdir(ROOT)
    trial.warm()
    known = killers()
    wanted = {
        name: min(known[name].values(), key=lambda each: each["seconds"])["test"]
        for name in MUTANTS
        if name in known
    }
    came = {HEALTHY: Trial("broken", "", "was not run", 0.0, 0, frozenset())} | _swapped(wanted)
    for name, test in wanted.items():
        if name not in came or came[name].verdict != "failed":
            came[name] = trial.attempt(MUTANTS[name], [test], SECONDS)
    for name in MUTANTS:
        if name not in wanted:
            yield f"{name}: no test is recorded that finds it"
        elif came[name].verdict != "failed":
            yield f"{name}: {wanted[name]} {came[name].verdict} {came[name].why}"
    if came[HEALTHY].verdict != "passed":
        yield f"without a bug: {came[HEALTHY]}"


def _swapped(wanted: Mapping[str, str]) -> dict[str, Trial]:
    """What came of the bugs that could be put in without an import. In a process of its own, which
    has everything imported."""
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        there = Path(place)
        child = os.fork()
        if child == 0:
            os.setsid()
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
            conductor = _Conductor(wanted, there)
            limit = ("-o", f"timeout={TEST_SECONDS}")
            tests = sorted(set(wanted.values()))
            code = pytest.main(
                ["-s", "--assert=plain", "--basetemp", f"{there}/tmp", *OPTIONS, *limit, *tests],
                [conductor],
            )
            if os.getpid() == conductor.parent:
                trial.save(conductor.came, there / "came")
            trial.leave(code)
        trial.wait(child, time.monotonic() + ALL_SECONDS)
        return trial.load(there / "came")
