"""What a long proof has shown so far: figures on disk, so that it can be stopped and gone on with.

    record = Record("simulation", seeds=20_000)
    while record.done < 20_000:
        ...                                   # a bounded piece of work
        record.advance(100, violations=0)     # adds to the figures, and saves them

A record belongs to one state of the sources: once they change, what was shown before says nothing
of them, and the proof begins again.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "build" / "proof"
SOURCES = ("state_machines", "storage", "actors", "jobs", "metaray")


def sources_digest(*more: str) -> str:
    """The state of the production code, and of the test folders named in `more`."""
    digest = hashlib.sha256()
    for folder in (*SOURCES, *more):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


class Record:
    """`build/proof/<part>.json`. `figures` holds what the part has counted and measured."""

    def __init__(self, part: str, *, tests: str = "", **wanted: Any) -> None:
        """`wanted`: how long the proof is to be. `tests`: the folder it lives in, tests/<part>."""
        self.path = RECORDS / f"{part}.json"
        self.figures: dict[str, Any] = {}
        self.done = 0  #: units of work, whatever the part counts in
        self.seconds = 0.0
        self.finished = False
        self._since = time.monotonic()
        self._is = {
            "part": part,
            "wanted": wanted,
            "sources": sources_digest(tests or f"tests/{part}"),
            "commit": _commit(),
            "python": platform.python_version(),
        }
        if self.path.exists():
            found = json.loads(self.path.read_bytes())
            if all(found[key] == self._is[key] for key in ("wanted", "sources", "python")):
                self.figures, self.done = found["figures"], found["done"]
                self.seconds, self.finished = found["seconds"], found["finished"]

    def advance(self, done: int = 0, **counts: int) -> None:
        """So much more was done; each count is added to the figure of its name."""
        self.done += done
        for name, count in counts.items():
            self.figures[name] = self.figures.get(name, 0) + count
        self.save()

    def finish(self) -> None:
        """All of it was done."""
        self.finished = True
        self.save()

    def save(self) -> None:
        """Write it, atomically."""
        now = time.monotonic()
        self.seconds, self._since = self.seconds + now - self._since, now
        self.path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            **self._is,
            "finished": self.finished,
            "at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
            "seconds": round(self.seconds, 1),
            "done": self.done,
            "figures": self.figures,
        }
        fresh = self.path.with_suffix(f".{os.getpid()}.tmp")
        fresh.write_text(json.dumps(content, indent=2) + "\n")
        fresh.replace(self.path)


def _commit() -> str:
    """The commit that is checked out, with a + when something was changed since."""
    told = subprocess.run(
        ["git", "describe", "--always", "--dirty=+"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    return told.stdout.strip() or "unknown"
