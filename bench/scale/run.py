"""The measurement, size by size; what is known is on disk at once, so it can be gone on with."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.run import machine, versions
from bench.scale.process import Process
from bench.scale.seat import Kind
from state_machines.errors import Invalid

ROOT: Final = Path(__file__).parents[2]
FLOORS: Final = ("state_machines", "storage", "actors", "bench/scale")
VALUES: Final = "scale.json"

SIZE_MIN, SIZE_MAX = 1_000, 20_000_000
ROUNDS_MAX, CHANGES_MAX = 100, 10_000_000
FEW_TOPICS: Final = 1_000
ROW_BYTES: Final = 600  #: of disk, a row at most: half-full pages, and those that are free
SPARE_BYTES: Final = 3 << 30  #: the log, and what a full flush leaves free
LOAD_STEP: Final = 50_000

WANTED: Final = {
    "private_bytes": 600_000_000,
    "change_ratio": 1.5,
    "topic_ratio": 1.2,
    "restart_s": 5.0,
}
"""What is to be reached, at every size."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    """What is asked for. Raises Invalid."""

    sizes: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    topics: int = 1_000_000  #: 0: none
    rounds: int = 5
    changes: int = 200_000  #: of sessions, a round
    topic_changes: int = 4_000

    def __post_init__(self) -> None:
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)):
            raise Invalid("sizes: at least one, each larger than the one before")
        for size in self.sizes:
            _within("sizes", size, SIZE_MIN, SIZE_MAX)
        if self.topics:
            _within("topics", self.topics, FEW_TOPICS + 1, SIZE_MAX)
        _within("rounds", self.rounds, 1, ROUNDS_MAX)
        _within("changes", self.changes, 1, CHANGES_MAX)
        _within("topic_changes", self.topic_changes, 1, CHANGES_MAX)

    @property
    def disk_bytes(self) -> int:
        """What it may need of the disk."""
        return ROW_BYTES * (self.sizes[0] + self.sizes[-1] + self.topics) + SPARE_BYTES


def _within(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise Invalid(f"{name}: from {low} to {high}, not {value}")


def parsed_sizes(text: str) -> tuple[int, ...]:
    """Sizes with commas between. Raises Invalid."""
    parts = [each.strip() for each in text.split(",")]
    if not all(each.isascii() and each.isdigit() for each in parts):
        raise Invalid(f"sizes: whole numbers with commas between, not {text[:80]!r}")
    return tuple(int(each) for each in parts)


class Scale:
    """One run. `result` is what `scale.json` has."""

    def __init__(self, options: Options, *, data: Path, out: Path, progress: Progress) -> None:
        self._options = options
        self._data = data
        self._values = out / VALUES
        self._say = progress
        asked = {key: each for key, each in asdict(options).items() if key != "sizes"}
        self.result: dict[str, Any] = {
            "sources": _digest(),
            "asked": asked,
            "wanted": WANTED,
            "machine": machine(),
            "versions": versions(),
            "sessions": {},
            "topics": {},
        }

    def resume(self) -> None:
        """Take over what the same sources have measured with the same options."""
        if not self._values.exists():
            return
        found = json.loads(self._values.read_bytes())
        if all(found.get(key) == self.result[key] for key in ("sources", "asked")):
            self.result = found

    def run(self) -> dict[str, Any]:
        """Measure what is not known yet. The directories are left to the caller."""
        self._data.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._data).free
        if free < self._options.disk_bytes:
            need = f"{self._options.disk_bytes >> 20} MiB are needed there, {free >> 20} are free"
            raise Invalid(f"data: {self._data}: {need}")
        sizes = [size for size in self._options.sizes if str(size) not in self.result["sessions"]]
        if sizes:
            with self._filled("sessions", self._options.sizes[0], "smallest") as smallest:
                for size in sizes:
                    self.result["sessions"][str(size)] = self._sessions(size, smallest)
                    self._save()
        many = self._options.topics
        if many and not self.result["topics"]:
            with (
                self._filled("topics", FEW_TOPICS, "few-topics") as few,
                self._filled("topics", many, "many-topics") as full,
            ):
                self.result["topics"] = self._compared("topics", FEW_TOPICS, few, many, full)
            self._save()
        return self.result

    # -- one size ---------------------------------------------------------------------------

    def _sessions(self, size: int, smallest: Process) -> dict[str, Any]:
        with self._filled("sessions", size, "growing") as process:
            found: dict[str, Any] = {
                "rows": size,
                "memory": {"loaded": process.memory().figures()},
                "load_us": process.load_us,
            }
            first = self._options.sizes[0]
            found["change"] = self._compared("sessions", first, smallest, size, process)
            found["memory"]["changed"] = process.memory().figures()
            found["disk_bytes"] = process.disk_bytes()
            self._say(f"{size:,} sessions: its process is killed and started again")
            process.kill()
        with Process(self._data / "growing") as again:
            _expect(again.opened["sessions"], size)
            found["restart"] = {
                key: again.opened[key] for key in ("import_s", "open_s", "serving_s", "total_s")
            }
            found["restart"]["looked_s"] = again.ask("settle")["seconds"]
            found["memory"]["restarted"] = again.memory().figures()
        return found

    def _filled(self, kind: Kind, rows: int, name: str) -> Process:
        """A replica with so many rows, in a directory that may have some of them."""
        process = Process(self._data / name)
        marker = process.root / "rows"
        have = int(marker.read_text()) if marker.exists() else 0
        took = 0.0
        try:
            for at in range(have, rows, LOAD_STEP):
                end = min(at + LOAD_STEP, rows)
                took += process.ask("load", kind=kind, first=at, end=end)["seconds"]
                marker.write_text(str(end))  # so that a run that is stopped goes on here
                self._say(f"{name}: {end:,} of {rows:,} {kind}")
            process.ask("settle")
        except BaseException:
            process.kill()
            raise
        process.load_us = took * 1e6 / max(rows - have, 1)
        return process

    def _compared(
        self, kind: Kind, few: int, small: Process, many: int, large: Process
    ) -> dict[str, Any]:
        """What a change takes with few rows and with many, in turns."""
        rounds: dict[str, list[dict[str, float]]] = {"few": [], "many": []}
        count = self._options.changes if kind == "sessions" else self._options.topic_changes
        for number in range(self._options.rounds):
            for name, process, rows in (("few", small, few), ("many", large, many)):
                took = process.ask("change", kind=kind, rows=rows, count=count, seed=number)
                process.ask("settle")
                rounds[name].append(took)
            ratio = rounds["many"][-1]["us"] / rounds["few"][-1]["us"]
            self._say(
                f"{many:,} {kind}, round {number + 1}/{self._options.rounds}: "
                f"{rounds['many'][-1]['us']:.1f} us a change, x {ratio:.2f} of {few:,}"
            )
        medians = {
            name: {unit: median(each[unit] for each in found) for unit in ("us", "cpu_us")}
            for name, found in rounds.items()
        }
        return {
            "few_rows": few,
            "many_rows": many,
            "rounds": rounds,
            "median": medians,
            "ratio": median(
                m["us"] / f["us"] for m, f in zip(rounds["many"], rounds["few"], strict=True)
            ),
            "cpu_ratio": medians["many"]["cpu_us"] / medians["few"]["cpu_us"],
        }

    def _save(self) -> None:
        self._values.parent.mkdir(parents=True, exist_ok=True)
        self._values.write_text(json.dumps(self.result, indent=2) + "\n")


def missed(result: dict[str, Any]) -> list[str]:
    """What was wanted and not reached, in words."""
    found = []
    for rows, each in result["sessions"].items():
        at = f"{int(rows):,} sessions"
        private = max(memory["private_bytes"] for memory in each["memory"].values())
        for name, value, wanted in (
            ("private memory", private, WANTED["private_bytes"]),
            ("a change, times that of the fewest", each["change"]["ratio"], WANTED["change_ratio"]),
            ("seconds until it serves", each["restart"]["total_s"], WANTED["restart_s"]),
        ):
            if value > wanted:
                found.append(f"{at}: {name}: {value:,.2f}, wanted is {wanted:,.2f} at most")
    ratio = result["topics"].get("ratio", 0.0)
    if ratio > WANTED["topic_ratio"]:
        found.append(f"one of many topics: x {ratio:.2f}, wanted is {WANTED['topic_ratio']}")
    return found


def _expect(found: int, rows: int) -> None:
    assert found == rows, f"{found} sessions came back of {rows}"


def _digest() -> str:
    """The state of the sources: what other sources have measured is no answer."""
    digest = hashlib.sha256()
    for path in sorted(each for floor in FLOORS for each in (ROOT / floor).rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
