"""Schedules: which report is made how often, and what became of it last.

A row names a job of the pipeline, its options and where its report goes. The controller submits a
run when `next_ms` has come, and it does so in two steps, each of them fenced: `BeginRun` writes the
run into the row, which only one of many can do, and then Ray is asked to run what the row says.
Whoever comes after a controller that stopped in between finds the run in the row, and asks Ray
again under the same id. `EndRun` says what came of it. A name has one run at a time; what was due
while one was under way, or while nobody looked, is not made up for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.errors import Conflict, Invalid, NotFound, QuotaExceeded
from state_machines.fence import check_epoch, pass_fence
from state_machines.metadata.revisions import next_revision, remove_revised, removed_so
from state_machines.op import Stamp, command, query
from state_machines.settings import DAY_MS, HOUR_MS, MINUTE_MS
from state_machines.tables import Table, Tables

SCHEDULES_MAX: Final = 1_000
EVERY_MS_MIN: Final = MINUTE_MS
EVERY_MS_MAX: Final = 366 * DAY_MS
TIMEOUT_MS_MAX: Final = 7 * DAY_MS
JOB_CHARACTERS_MAX: Final = 64
PAIRS_MAX: Final = 64  #: options and input files, each
TEXT_BYTES_MAX: Final = 1_024  #: of a path, an option, a detail
OUTCOMES: Final = ("succeeded", "failed", "stopped")


@dataclass(frozen=True, slots=True)
class Schedule:
    """A report that is made again and again. Times are the group's, Unix milliseconds."""

    name: str
    job: str
    every_ms: int
    out: str
    """The directory of the reports, on the node where Ray runs submitted jobs: its head."""

    options: tuple[str, ...]
    """`name=value`, as `metaray report --set` takes them."""

    inputs: tuple[str, ...]
    """`name=file`, as `metaray report --input` takes them; files of that node too."""

    history: str
    timeout_ms: int
    """A run that takes longer is stopped."""

    enabled: bool
    next_ms: int
    """When it is due."""

    run: str
    """The run that is under way, as Ray knows it; empty: none."""

    begun_ms: int
    """When that began."""

    last_run: str
    last_outcome: str
    """One of `OUTCOMES`; empty before the first run has ended."""

    last_detail: str
    last_begun_ms: int
    last_ended_ms: int
    runs: int
    revision: int
    created_ms: int


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules by name; `next` continues, empty at the end."""

    schedules: tuple[Schedule, ...]
    next: bytes


SCHEDULES: Final = Table("metadata.schedule", Schedule, key=("name",), revision_field="revision")
removed_so(SCHEDULES)


_PATH: Final = f"an absolute path of at most {TEXT_BYTES_MAX} bytes is wanted"


def _pairs(given: tuple[str, ...], field: str) -> None:
    if len(given) > PAIRS_MAX:
        raise Invalid(f"{field}: {len(given)} items, the limit is {PAIRS_MAX}")
    for each in given:
        names.name(each, field, TEXT_BYTES_MAX)
        if not each.partition("=")[0] or "=" not in each:
            raise Invalid(
                f"{field}: {TEXT_BYTES_MAX} bytes of name=value at most, not {each[:80]!r}"
            )


def _held(db: Tables, name: str) -> Schedule:
    found = db.get(SCHEDULES, name)
    if found is None:
        raise NotFound(f"name: there is no schedule {name!r}")
    return found


@command("metadata.schedule.put")
class PutSchedule:
    """Make a report again and again, or change how. A new one is due at once.

    `expected_revision`: the revision the row has, 0 for none, None for whichever.
    """

    name: str
    job: str
    every_ms: int
    out: str
    options: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    history: str = ""
    timeout_ms: int = HOUR_MS
    enabled: bool = True
    expected_revision: int | None = None

    def validate(self) -> None:
        """Names and times within their limits."""
        names.name(self.name, "name")
        if not 0 < len(self.job) <= JOB_CHARACTERS_MAX:
            raise Invalid(
                f"job: {len(self.job)} characters, the range is 1 to {JOB_CHARACTERS_MAX}"
            )
        letters = self.job.replace("_", "").replace("-", "")
        if not (letters.isascii() and letters.isalnum() and self.job[0].isalnum()):
            raise Invalid(
                f"job: {self.job!r}: 1 to {JOB_CHARACTERS_MAX} letters and digits are wanted"
            )
        names.name(self.out, "out", TEXT_BYTES_MAX)
        if not self.out.startswith("/"):
            raise Invalid(f"out: {_PATH}, not {self.out[:80]!r}")
        names.name(self.history, "history", TEXT_BYTES_MAX, empty=True)
        if self.history and not self.history.startswith("/"):
            raise Invalid(f"history: {_PATH}, not {self.history[:80]!r}")
        _pairs(self.options, "options")
        _pairs(self.inputs, "inputs")
        if not EVERY_MS_MIN <= self.every_ms <= EVERY_MS_MAX:
            raise Invalid(
                f"every_ms: {self.every_ms}, the range is {EVERY_MS_MIN} to {EVERY_MS_MAX}"
            )
        if not MINUTE_MS <= self.timeout_ms <= TIMEOUT_MS_MAX:
            raise Invalid(
                f"timeout_ms: {self.timeout_ms}, the range is {MINUTE_MS} to {TIMEOUT_MS_MAX}"
            )
        names.positive(self.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> Schedule:
        """Conflict at another revision; QuotaExceeded with `SCHEDULES_MAX` there."""
        old = db.get(SCHEDULES, self.name)
        revision = old.revision if old is not None else 0
        if self.expected_revision is not None and self.expected_revision != revision:
            raise Conflict(
                f"expected_revision: {self.expected_revision}, {self.name!r} is at {revision}"
            )
        if old is None and sum(1 for _ in db.scan(SCHEDULES)) >= SCHEDULES_MAX:
            raise QuotaExceeded(f"name: there are {SCHEDULES_MAX} schedules, the limit")
        # What is due stays due; another pace counts from the last run that there was.
        begun_ms = max(old.begun_ms, old.last_begun_ms) if old is not None else 0
        next_ms = begun_ms + self.every_ms if begun_ms else at.now_ms
        if old is not None and old.next_ms <= at.now_ms:
            next_ms = old.next_ms
        made = Schedule(
            name=self.name,
            job=self.job,
            every_ms=self.every_ms,
            out=self.out,
            options=self.options,
            inputs=self.inputs,
            history=self.history,
            timeout_ms=self.timeout_ms,
            enabled=self.enabled,
            next_ms=next_ms,
            run=old.run if old is not None else "",
            begun_ms=old.begun_ms if old is not None else 0,
            last_run=old.last_run if old is not None else "",
            last_outcome=old.last_outcome if old is not None else "",
            last_detail=old.last_detail if old is not None else "",
            last_begun_ms=old.last_begun_ms if old is not None else 0,
            last_ended_ms=old.last_ended_ms if old is not None else 0,
            runs=old.runs if old is not None else 0,
            revision=int(next_revision(db, revision)),
            created_ms=old.created_ms if old is not None else at.now_ms,
        )
        db.put(SCHEDULES, made)
        return made


@command("metadata.schedule.delete")
class DeleteSchedule:
    """Make a report no more. A run that is under way goes on to its end."""

    name: str

    def validate(self) -> None:
        """A name within its limits."""
        names.name(self.name, "name")

    def apply(self, db: Tables, at: Stamp) -> Schedule:
        """What it was. NotFound."""
        old = _held(db, self.name)
        remove_revised(db, SCHEDULES, old)
        return old


@command("metadata.schedule.run")
class RunSchedule:
    """Let a schedule be due now. Afterwards it goes on at its pace."""

    name: str

    def validate(self) -> None:
        """A name within its limits."""
        names.name(self.name, "name")

    def apply(self, db: Tables, at: Stamp) -> Schedule:
        """NotFound; Conflict for one that is not enabled, or runs."""
        old = _held(db, self.name)
        if not old.enabled:
            raise Conflict(f"name: {self.name!r} is not enabled")
        if old.run:
            raise Conflict(f"name: {self.name!r} runs: {old.run}")
        made = replace(
            old, next_ms=min(old.next_ms, at.now_ms), revision=int(next_revision(db, old.revision))
        )
        db.put(SCHEDULES, made)
        return made


@command("metadata.schedule.begin")
class BeginRun:
    """The controller takes on a run that is due. Nobody can take on the same one again."""

    urgent: ClassVar[bool] = True

    controller_epoch: int
    name: str
    due_ms: int
    """The `next_ms` that the controller has seen."""

    run: str

    def validate(self) -> None:
        """Names within their limits, an epoch that is one."""
        check_epoch(self.controller_epoch)
        names.name(self.name, "name")
        names.name(self.run, "run")
        names.positive(self.due_ms, "due_ms")

    def apply(self, db: Tables, at: Stamp) -> Schedule:
        """Conflict for one that runs, rests, or is due at another time than the controller saw."""
        pass_fence(db, self.controller_epoch)
        old = _held(db, self.name)
        if old.run:
            raise Conflict(f"name: {self.name!r} runs: {old.run}")
        if not old.enabled or old.next_ms != self.due_ms or self.due_ms > at.now_ms:
            raise Conflict(f"due_ms: {self.due_ms}, {self.name!r} is due at {old.next_ms}")
        missed = (at.now_ms - self.due_ms) // old.every_ms
        made = replace(
            old,
            run=self.run,
            begun_ms=at.now_ms,
            next_ms=self.due_ms + (missed + 1) * old.every_ms,
            runs=old.runs + 1,
            revision=int(next_revision(db, old.revision)),
        )
        db.put(SCHEDULES, made)
        return made


@command("metadata.schedule.end")
class EndRun:
    """The controller says what came of a run."""

    urgent: ClassVar[bool] = True

    controller_epoch: int
    name: str
    run: str
    outcome: str
    detail: str = ""

    def validate(self) -> None:
        """Names within their limits, an epoch that is one."""
        check_epoch(self.controller_epoch)
        names.name(self.name, "name")
        names.name(self.run, "run")
        names.one_of(self.outcome, "outcome", OUTCOMES)
        names.name(self.detail, "detail", TEXT_BYTES_MAX, empty=True)

    def apply(self, db: Tables, at: Stamp) -> Schedule:
        """Conflict unless this is the run that is under way."""
        pass_fence(db, self.controller_epoch)
        old = _held(db, self.name)
        if old.run != self.run:
            raise Conflict(f"run: {self.run!r} is not under way at {self.name!r}")
        made = replace(
            old,
            run="",
            begun_ms=0,
            last_run=self.run,
            last_outcome=self.outcome,
            last_detail=self.detail,
            last_begun_ms=old.begun_ms,
            last_ended_ms=at.now_ms,
            revision=int(next_revision(db, old.revision)),
        )
        db.put(SCHEDULES, made)
        return made


@query("metadata.schedule.get")
class GetSchedule:
    """Read a schedule."""

    single_row: ClassVar[bool] = True
    name: str

    def validate(self) -> None:
        """A name within its limits."""
        names.name(self.name, "name")

    def read(self, db: Tables, at: Stamp) -> Schedule | None:
        """None when there is none."""
        return db.get(SCHEDULES, self.name)


@query("metadata.schedule.list")
class ListSchedules:
    """The schedules, a page at a time."""

    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> SchedulePage:
        """By name."""
        rows, after = db.page(SCHEDULES, after=self.after, limit=self.limit)
        return SchedulePage(tuple([row for row, _ in rows]), after)
