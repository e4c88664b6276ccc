"""Plans for scheduled reports: which are due, and what Ray is asked to run for one.

    ListSchedules -> plan_runs -> BeginRun, and then `command_of` what the row says by then

The id of a run is made of the schedule's name and the moment it was due, so whoever submits it
again, a controller after another or a retry, submits the same run, and Ray takes an id once.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from state_machines.metadata.schedule import Schedule

RUNNING_MAX: Final = 2  #: runs under way at once: each has a Java virtual machine on Ray's head
SLUG_CHARACTERS: Final = 40
DIGEST_CHARACTERS: Final = 12


@dataclass(frozen=True, slots=True)
class Due:
    """A run to begin."""

    name: str
    due_ms: int
    run: str


def run_id(name: str, due_ms: int) -> str:
    """The run's name at Ray: letters that a file name may have, the same for the same run."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:SLUG_CHARACTERS]
    digest = hashlib.sha256(name.encode()).hexdigest()[:DIGEST_CHARACTERS]
    return f"metaray-{slug or 'schedule'}-{digest}-{due_ms}"


def plan_runs(schedules: Sequence[Schedule], now_ms: int) -> list[Due]:
    """What is to begin: due, enabled, not under way; longest due first, as far as there is room."""
    room = RUNNING_MAX - sum(bool(each.run) for each in schedules)
    due = [each for each in schedules if each.enabled and not each.run and each.next_ms <= now_ms]
    due.sort(key=lambda each: (each.next_ms, each.name))
    return [
        Due(each.name, each.next_ms, run_id(each.name, each.next_ms))
        for each in due[: max(room, 0)]
    ]


def command_of(schedule: Schedule, python: str) -> str:
    """The line that Ray's shell runs: each word quoted, no value taken for an option."""
    words = [python, "-m", "metaray.cli", "report", schedule.job, "--address=auto"]
    words.append(f"--out={schedule.out}")
    words += [f"--set={each}" for each in schedule.options]
    words += [f"--input={each}" for each in schedule.inputs]
    words += [f"--history={schedule.history}"] * bool(schedule.history)
    return shlex.join(words)
