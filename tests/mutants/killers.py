"""Who may find a bug: the kinds of tests, the fast ones first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tests.mutants.mutant import ROOT

PROPERTIES: Final = ("confchange", "log", "quorum")
"""The tests of `tests/raft` that look for a counterexample."""


@dataclass(frozen=True, slots=True)
class Killer:
    """Tests by their paths, and the most they may take with a bug planted."""

    name: str
    tests: tuple[str, ...]
    seconds: float


def killers() -> list[Killer]:
    """Those whose tests are there."""
    files = sorted((ROOT / "tests/raft").rglob("test_*.py"))
    raft = {path.stem: str(path.relative_to(ROOT)) for path in files}
    scripts, random = raft.pop("test_scripts"), raft.pop("test_random")
    properties = [raft.pop(f"test_{name}") for name in PROPERTIES if f"test_{name}" in raft]
    found = [
        Killer("scripts", (scripts,), 120),
        Killer("paper", tuple(raft.values()), 120),
        Killer("random", (random,), 180),
        Killer("machine", ("tests/machine", "tests/entities", "tests/wire"), 240),
        Killer("storage", ("tests/storage",), 240),
        Killer("actors", ("tests/actors",), 400),
        Killer("integrations", ("tests/integrations",), 400),
        Killer("backups", ("tests/backups",), 120),
        Killer("door", ("tests/door",), 300),
        Killer("jobs", ("tests/jobs",), 240),
        Killer("properties", (*properties, "tests/properties"), 400),
        Killer("input", ("tests/bad_input",), 300),
        Killer("crash", ("tests/crash",), 600),
        Killer("simulation", ("tests/mutants/simulated.py",), 600),
    ]
    there = [Killer(each.name, _there(each.tests), each.seconds) for each in found]
    return [each for each in there if each.tests]


def _there(tests: tuple[str, ...]) -> tuple[str, ...]:
    """Those with something in them that pytest collects."""
    paths = [(each, ROOT / each) for each in tests]
    return tuple(each for each, path in paths if path.is_file() or any(path.rglob("test_*.py")))
