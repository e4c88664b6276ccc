"""The controller's duties, as far as operators have paused them.

A pause is a row, so it holds whichever controller is in force. It ends by the group's time, or when
it is taken back. Which duties there are only the controller knows: here a duty is a name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

import state_machines.intervals  # noqa: F401 - declares how often each duty is done
from state_machines import names
from state_machines.errors import Invalid, QuotaExceeded
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

PAUSE_MS_MAX: Final = 366 * 86_400_000  #: a year: what is to stay off for ever has no end instead
PAUSES_MAX: Final = 100  #: at a time
REASON_BYTES_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class Pause:
    """A duty that does not run. Times are the group's, Unix milliseconds."""

    duty: str
    since_ms: int
    until_ms: int
    """0: until it is resumed."""

    by: str
    reason: str


PAUSES: Final = Table("metadata.duty_pause", Pause, key=("duty",))


def _is_over(pause: Pause, now_ms: int) -> bool:
    return 0 < pause.until_ms <= now_ms


@command("metadata.controller.pause")
class PauseDuty:
    """Let a duty of the controller rest, for `for_ms` or (0) until it is resumed.

    A later pause replaces an earlier one. A run that is under way goes on to its end.
    """

    urgent: ClassVar[bool] = True
    duty: str
    for_ms: int = 0
    by: str = ""
    reason: str = ""

    def validate(self) -> None:
        """Names and times within their limits."""
        names.name(self.duty, "duty")
        names.name(self.by, "by", empty=True)
        names.name(self.reason, "reason", REASON_BYTES_MAX, empty=True)
        if not 0 <= self.for_ms <= PAUSE_MS_MAX:
            raise Invalid(f"for_ms: {self.for_ms}, the range is 0 to {PAUSE_MS_MAX}")

    def apply(self, db: Tables, at: Stamp) -> Pause:
        """QuotaExceeded when as many duties as may be are paused; those that are over do not count,
        and go."""
        others = [row for _, row, _ in db.scan(PAUSES) if row.duty != self.duty]
        over = [row for row in others if _is_over(row, at.now_ms)]
        if len(others) - len(over) >= PAUSES_MAX:
            raise QuotaExceeded(f"duty: {PAUSES_MAX} are paused, the limit")
        for row in over:
            db.delete(PAUSES, row.duty)
        until_ms = at.now_ms + self.for_ms if self.for_ms else 0
        pause = Pause(self.duty, at.now_ms, until_ms, self.by, self.reason)
        db.put(PAUSES, pause)
        return pause


@command("metadata.controller.resume")
class ResumeDuty:
    """Let a duty run again. The reply says whether it was paused."""

    urgent: ClassVar[bool] = True
    duty: str

    def validate(self) -> None:
        """A name within its limits."""
        names.name(self.duty, "duty")

    def apply(self, db: Tables, at: Stamp) -> bool:
        """One that is not paused stays as it is."""
        pause = db.get(PAUSES, self.duty)
        db.delete(PAUSES, self.duty)
        return pause is not None and not _is_over(pause, at.now_ms)


@query("metadata.controller.pauses")
class ListPauses:
    """The pauses in force; there are `PAUSES_MAX` at most."""

    def read(self, db: Tables, at: Stamp) -> tuple[Pause, ...]:
        """By duty."""
        return tuple([row for _, row, _ in db.scan(PAUSES) if not _is_over(row, at.now_ms)])
