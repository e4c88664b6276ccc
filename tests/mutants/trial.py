"""One trial: tests in a process of their own, with a bug planted or without, and what came of it.

The process is forked from one that has imported everything but our own modules, so a trial costs
little more than its tests. Nothing is drawn and nothing remembered: the same trial ends the same.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import pytest

from tests.kernel import end_with_parent
from tests.mutants import reach
from tests.mutants.mutant import ROOT, Mutant, hand_on, plant
from tests.mutants.reach import Function

OTHERS: Final = (
    *("asyncio", "hypothesis.stateful", "lmdb", "msgpack", "numpy", "pyarrow", "pytest_timeout"),
    *("google.protobuf.descriptor_pool", "google.protobuf.internal.builder", "ray.util.metrics"),
)
"""What our modules and their tests import; forked processes have it."""

TEST_SECONDS: Final = 60  #: for one test; the healthy ones take a few
POLL_SECONDS: Final = 0.005

OPTIONS: Final = (
    *("-p", "pytest_timeout"),
    *("-q", "-x", "--no-header", "--tb=short", "-p", "no:cacheprovider"),
    *(
        "-m",
        "not ray and not spark",
        "-o",
        f"timeout={TEST_SECONDS}",
        "-o",
        "timeout_method=signal",
    ),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),
)


@dataclass(frozen=True, slots=True)
class Trial:
    """`verdict`: passed, failed, late (ended before it had passed or failed), or broken (the tests
    could not even begin)."""

    verdict: str
    node: str  #: the test that failed
    why: str
    seconds: float  #: of that test, or of all
    tests: int  #: that were run
    called: frozenset[Function] = field(repr=False)  #: functions of ours, if that was wanted


def warm() -> None:
    """Import what no bug is planted in. Once, before the first trial."""
    for name in OTHERS:
        importlib.import_module(name)
    _settle_hypothesis()
    gc.freeze()  # a collection in a trial has only the trial's own to look at


def attempt(
    mutant: Mutant | None, tests: Sequence[str], seconds: float, *, watched: bool = False
) -> Trial:
    """Run the tests, with the bug if there is one, up to the first failure. `watched`: see which
    functions they call."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        files = {name: Path(place, name) for name in ("told", "said", "called")}
        for each in files.values():
            each.touch()
        child = os.fork()
        if child == 0:
            _child(mutant, tests, Path(place), files, watched)
        ended = wait(child, begun + seconds)
        took = time.monotonic() - begun
        called = frozenset(reach.read_back(files["called"]))
        return judge(files["told"], files["said"], ended, took, called)


def wait(child: int, deadline: float) -> int | None:
    """How it ended; None if it had to be ended."""
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _end_group(child)
            return os.waitstatus_to_exitcode(status)
        time.sleep(POLL_SECONDS)
    _end_group(child)
    os.waitpid(child, 0)
    return None


def _end_group(leader: int) -> None:
    """The trial and whatever it has started and left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def judge(
    told: Path,
    said: Path,
    ended: int | None,
    took: float,
    called: frozenset[Function] = frozenset(),
) -> Trial:
    """What came of it, from what the reporter told."""
    lines = told.read_text().splitlines()
    news = [json.loads(line) for line in lines if line.endswith("]")]
    tail = said.read_text(errors="replace")[-2_000:]
    started, tests = "", 0
    for what, *more in news:
        match what:
            case "test":
                started, tests = more[0], tests + 1
            case "failed":
                node, seconds, why = more
                return Trial("failed", node, why, seconds, tests, called)
            case "passed":
                return Trial("passed", "", "", took, tests, called)
            case "broken":
                return Trial("broken", "", f"{more[0]}: {tail}", took, tests, called)
            case _:
                raise AssertionError(what)
    if ended is None:
        return Trial("late", started, "it did not end in time", took, tests, called)
    if started:
        return Trial("failed", started, f"its process ended with {ended}", took, tests, called)
    return Trial("broken", "", f"ended with {ended}: {tail}", took, tests, called)


def save(came: Mapping[str, Trial], file: Path) -> None:
    """For the process that waits for this one."""
    plain = {name: asdict(each) | {"called": sorted(each.called)} for name, each in came.items()}
    file.write_text(json.dumps(plain))


def load(file: Path) -> dict[str, Trial]:
    """The reverse; nothing when there is nothing."""
    plain = json.loads(file.read_text()) if file.exists() else {}
    return {name: Trial(**each | {"called": frozenset()}) for name, each in plain.items()}


class Reporter:
    """Tells the parent, line by line, so that nothing is lost however the process ends."""

    def __init__(self, told: IO[str]) -> None:
        self._told = told
        self.failed = False

    def tell(self, *news: Any) -> None:
        """One line."""
        self._told.write(json.dumps(news) + "\n")
        self._told.flush()

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        if not self.failed:
            ended_well = exitstatus == pytest.ExitCode.OK
            self.tell(*(["passed"] if ended_well else ["broken", repr(exitstatus)]))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell("test", nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = True
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message if crash is not None else str(report.longrepr)
            first = next(iter(why.strip().splitlines()), "")
            self.tell("failed", report.nodeid, round(report.duration, 3), first[:200])


def _child(
    mutant: Mutant | None,
    tests: Sequence[str],
    place: Path,
    files: Mapping[str, Path],
    watched: bool,
) -> None:
    """Never returns."""
    os.setsid()
    end_with_parent()
    os.chdir(ROOT)
    with files["told"].open("w") as news, files["said"].open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        reporter = Reporter(news)
        if mutant is not None:
            plant_and_import(mutant, reporter)
        if watched:
            hand_on(reach.REACHED, str(files["called"]))
            reach.write_down(str(files["called"]))
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # a third of the start
        limit = 0 if watched else TEST_SECONDS  # to be watched takes its time
        options = (*OPTIONS, "-o", f"timeout={limit}")
        leave(pytest.main([*options, "--basetemp", str(place / "tmp"), *tests], [reporter]))


def plant_and_import(mutant: Mutant, reporter: Reporter) -> None:
    """A bug that keeps its module from being imported is none: the trial ends there."""
    try:
        plant(mutant)
        importlib.import_module(mutant.module)
    except BaseException as error:  # noqa: BLE001 - the process ends here, and says why
        reporter.tell("broken", repr(error))
        os._exit(3)


def leave(code: int) -> None:
    """End a trial's process. Never returns."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _settle_hypothesis() -> None:
    from hypothesis import HealthCheck, Phase, settings

    settings.register_profile(
        "mutants",
        database=None,
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    settings.load_profile("mutants")
