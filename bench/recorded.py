"""metaray's own figures as they were measured last, row by row, to set the next run beside.

A run of some rows leaves the records of the others as they are, so `recorded.json` may hold rows of
several runs; each says when it was measured and for how long.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from bench.compare import OWN, ratio
from state_machines.errors import Invalid

FILE: Final = "recorded.json"

APART_ROUNDS: Final = 4
"""Of each run. Where nothing differs, all rounds of one lie above all of the other's once in 70
times, 4! 4! / 8!, and below them as often."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row as it was measured once."""

    at: str  #: ISO 8601
    seconds: float  #: a round
    rounds: list[float]  #: figures, in the row's unit


Records = dict[str, Record]
"""By the name of the row."""


def read(folder: Path) -> Records:
    """What earlier runs have left in this folder; nothing if there was none.

    Raises:
        Invalid: there is a file, and no run has written it.
    """
    path = folder / FILE
    try:
        records = json.loads(path.read_bytes())
        return {name: _record(**fields) for name, fields in records.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Invalid(f"{path}: not what a run has recorded ({error}); remove it") from None


def _record(at: str, seconds: float, rounds: list[float]) -> Record:
    record = Record(str(at), float(seconds), [float(each) for each in rounds])
    if not record.rounds:
        raise ValueError("rounds: none")
    return record


def beside(result: dict[str, Any], before: Records) -> dict[str, Any]:
    """The result, and in each of its rows what was recorded of it before, where something was.

    `times` above 1 is better than before, whichever direction is better; `apart` says that every
    round is above every one of before, or below.
    """
    return result | {"rows": [_row(row, before.get(row["workload"])) for row in result["rows"]]}


def _row(row: dict[str, Any], then: Record | None) -> dict[str, Any]:
    if then is None:
        return row
    own, middle = _figures(row), median(then.rounds)
    enough = min(len(own), len(then.rounds)) >= APART_ROUNDS
    told = asdict(then) | {
        "median": middle,
        "times": ratio(row["better"], row[OWN]["median"], [middle]),
        "apart": enough and (min(own) > max(then.rounds) or max(own) < min(then.rounds)),
    }
    return row | {"before": told}


def write(result: dict[str, Any], folder: Path, before: Records) -> None:
    """What this run has measured takes the place of what was recorded before."""
    records = before | {
        row["workload"]: Record(result["at"], result["seconds"], _figures(row))
        for row in result["rows"]
    }
    told = {name: asdict(each) for name, each in records.items()}
    fresh = folder / f"{FILE}.new"
    fresh.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    fresh.replace(folder / FILE)  # who is killed here leaves the old one or the new one


def _figures(row: dict[str, Any]) -> list[float]:
    return [each["figure"] for each in row[OWN]["rounds"]]
