"""A known bug, as the text that would put it back.

    Mutant(
        "votes-for-shorter-logs",
        "law 11",                                   # the law of the design, or the claim, it breaks
        "state_machines.raft.core",                 # where
        "granted = free and theirs >= mine",        # stands there exactly once
        "granted = free",
    )

`plant` changes the module as it is imported, in this process and in those that it starts. A bug
whose text is no longer there is an error and not a bug that nobody found: `planted` says so.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import rewriting

ROOT: Final = Path(__file__).parents[2]
PLANTED: Final = "METARAY_PLANTED_BUG"
"""The variable by which a process tells those that it starts which bug it has."""

SITE: Final = Path(__file__).parent / "site"
"""Where `sitecustomize.py` stands, by which a new process learns of the bug before all else."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One bug. `more`: other places of the same module that have to change with it."""

    name: str
    law: str
    module: str
    old: str
    new: str
    more: tuple[tuple[str, str], ...] = ()

    @property
    def path(self) -> Path:
        """The file of the module."""
        return ROOT / (self.module.replace(".", "/") + ".py")

    @property
    def bug(self) -> str:
        """The name in words."""
        return self.name.replace("-", " ")

    def planted(self, source: str) -> str:
        """The module's text with the bug in it."""
        for old, new in ((self.old, self.new), *self.more):
            count = source.count(old)
            if count != 1:
                raise LookupError(f"{self.name}: its text stands {count} times in {self.module}")
            source = source.replace(old, new)
        return source


def plant(mutant: Mutant) -> None:
    """Put the bug in. Has to come before the first import of a module of ours."""

    def rewrite(module: str, source: str) -> str:
        return mutant.planted(source) if module == mutant.module else source

    rewriting.install(rewrite)
    hand_on(PLANTED, mutant.name)


def hand_on(variable: str, value: str) -> None:
    """Let the processes that this one starts know (`site/sitecustomize.py`)."""
    os.environ[variable] = value
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    here = (str(SITE), str(ROOT))
    os.environ["PYTHONPATH"] = os.pathsep.join((*here, *(p for p in paths if p not in here)))
