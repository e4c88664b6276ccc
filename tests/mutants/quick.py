"""Every bug against the one test that finds it fastest, in seconds rather than minutes.

One pytest gets ready and then, instead of collecting, forks once for each bug: the child plants it
and goes on where its parent stopped, with the one test that is recorded in `killers.json`. One more
child runs all these tests without a bug, and they must pass.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Final

import pytest

from tests.mutants import trial
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import ROOT, Mutant
from tests.mutants.trial import OPTIONS, Reporter, Trial
from tests.rewriting import OURS

KILLERS: Final = Path(__file__).parent / "killers.json"
SECONDS: Final = 60.0  #: for one bug; it takes a fraction of one


class _Conductor:
    """A pytest plugin that takes the place of collection in the parent, and not in the children."""

    def __init__(self, trials: Iterable[tuple[Mutant | None, list[str]]], place: Path) -> None:
        self._place = place
        self._trials = trials
        self.parent = os.getpid()
        self.came: dict[str, Trial] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> bool | None:
        # What the conftest has imported of ours would be there without the bug.
        for name in [each for each in sys.modules if each.partition(".")[0] in OURS]:
            del sys.modules[name]
        for number, (mutant, tests) in enumerate(self._trials):
            begun = time.monotonic()
            told, said = (self._place / f"{what}-{number}" for what in ("told", "said"))
            child = os.fork()
            if child == 0:
                self._begin(session, mutant, tests, told.open("w"), said)
                return None
            ended = trial.wait(child, begun + SECONDS)
            took = time.monotonic() - begun
            name = mutant.name if mutant is not None else ""
            self.came[name] = trial.judge(told, said, ended, took)
        return True

    def _begin(
        self,
        session: pytest.Session,
        mutant: Mutant | None,
        tests: list[str],
        told: IO[str],
        said: Path,
    ) -> None:
        os.setsid()
        output = os.open(said, os.O_WRONLY | os.O_CREAT)
        os.dup2(output, 1)
        os.dup2(output, 2)
        reporter = Reporter(told)
        session.config.pluginmanager.register(reporter)
        if mutant is not None:
            trial.plant_and_import(mutant, reporter)
        session.config.args = tests


def run() -> Iterator[str]:
    """What is wrong: bugs that are not found, and tests that fail without one."""
    os.chdir(ROOT)
    trial.warm()
    killed = json.loads(KILLERS.read_text())
    tests = sorted({each["test"] for each in killed.values()})
    planted = [
        (mutant, [killed[name]["test"]]) for name, mutant in MUTANTS.items() if name in killed
    ]
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        conductor = _Conductor([(None, tests), *planted], Path(place))
        code = pytest.main(["-s", "--basetemp", f"{place}/tmp", *OPTIONS], [conductor])
        if os.getpid() != conductor.parent:
            trial.leave(code)
    for name in MUTANTS:
        if name not in killed:
            yield f"{name}: no test is recorded that finds it"
    if conductor.came[""].verdict != "passed":
        yield f"without a bug: {conductor.came['']}"
    for name, came in conductor.came.items():
        if name and came.verdict != "failed":
            yield f"{name}: {killed[name]['test']} {came.verdict} {came.why}"
