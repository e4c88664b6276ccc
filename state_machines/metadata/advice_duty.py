"""What the controller does with advice: begins, carries out, settles, and lets it expire.

A limit of a tenant is a row of this group, so it changes in the same entry as the advice does
(`CarryOutAdvice`). A leadership is no row: the controller first writes down what it is about to
replace (`BeginAdvice`), then moves it, and says what came of it when it has seen it
(`SettleAdvice`). A controller that takes over in between reads on from there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.errors import Conflict, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.metadata import tenant as tenants
from state_machines.metadata.advice import (
    ADVICE,
    APPLIED,
    APPLYING,
    APPROVED,
    EXPIRED,
    FAILED,
    ID_BYTES_MAX,
    KEEP_MS,
    LEADER,
    OPEN,
    OVER,
    PROPOSED,
    QUOTA,
    REASON_BYTES_MAX,
    UNDOING,
    UNDONE,
    Advice,
    change,
    check_doable,
    check_unchanged,
    held,
    limits_of,
)
from state_machines.op import Stamp, command
from state_machines.tables import Tables

SETTLED: Final[dict[str, tuple[str, ...]]] = {
    PROPOSED: (FAILED,),
    APPROVED: (FAILED,),
    APPLYING: (APPLIED, FAILED),
    UNDOING: (UNDONE, APPLIED),
}
"""What an advice may be said to have become, by the state it was in."""


def _by(controller_epoch: int) -> str:
    return f"controller-{controller_epoch}"


def _may_begin(db: Tables, at: Stamp, advice_id: str, kind: str, *, automatic: bool) -> Advice:
    """The advice to act upon. Raises NotFound or Conflict."""
    row = held(db, advice_id)
    if row.kind != kind:
        raise Conflict(f"id: {advice_id} is a {row.kind!r}, not a {kind!r}")
    check_doable(row, at.now_ms)
    if row.state != APPROVED and not (automatic and row.state == PROPOSED):
        raise Conflict(f"id: {advice_id} is {row.state}, not {APPROVED}")
    return row


@command("metadata.advice.begin")
class BeginAdvice:
    """The controller is about to move a leadership. `automatic`: nobody has approved it."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    id: str
    automatic: bool = False

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.name(self.id, "id", ID_BYTES_MAX)

    def apply(self, db: Tables, at: Stamp) -> None:
        """NotFound; Conflict for one that is not to be done now, or moves no leadership."""
        pass_fence(db, self.controller_epoch)
        row = _may_begin(db, at, self.id, LEADER, automatic=self.automatic)
        begun = replace(row, before=row.source, after=row.destination)
        change(db, at, begun, APPLYING, _by(self.controller_epoch) if self.automatic else row.by)


@command("metadata.advice.carry_out")
class CarryOutAdvice:
    """The controller sets the limit that an advice is about; or restores it, if it is being undone.

    The reply is the state it has now.
    """

    urgent: ClassVar[bool] = True
    controller_epoch: int
    id: str
    automatic: bool = False

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.name(self.id, "id", ID_BYTES_MAX)

    def apply(self, db: Tables, at: Stamp) -> str:
        """NotFound; Conflict for one that is not to be done now, where the tenant has as low a
        limit already, and where a limit to restore was changed since."""
        pass_fence(db, self.controller_epoch)
        row = held(db, self.id)
        if row.kind == QUOTA and row.state == UNDOING:
            check_unchanged(db, row)
            change(db, at, row, UNDONE, row.by, self._set(db, at, row, int(row.before)))
            return UNDONE
        row = _may_begin(db, at, self.id, QUOTA, automatic=self.automatic)
        before: int = getattr(limits_of(db, row), row.limit)
        if 0 < before <= row.number:
            raise Conflict(f"{row.limit}: it is {before} already, {row.number} is no less")
        note = self._set(db, at, row, row.number)
        done = replace(row, before=str(before), after=str(row.number))
        by = _by(self.controller_epoch) if self.automatic else row.by
        change(db, at, done, APPLIED, by, note)
        return APPLIED

    @staticmethod
    def _set(db: Tables, at: Stamp, row: Advice, limit: int) -> str:
        """Change one limit of the tenant. What was done, in words."""
        quotas = limits_of(db, row)
        before: int = getattr(quotas, row.limit)
        tenants.set_quotas(db, at, row.target, replace(quotas, **{row.limit: limit}))
        return f"{row.limit} of the tenant: {before} -> {limit}"


@command("metadata.advice.settle")
class SettleAdvice:
    """The controller says what became of an advice that it was at."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    id: str
    was: str
    state: str
    note: str = ""

    def validate(self) -> None:
        """States that may follow each other."""
        check_epoch(self.controller_epoch)
        names.name(self.id, "id", ID_BYTES_MAX)
        names.one_of(self.was, "was", tuple(SETTLED))
        names.one_of(self.state, "state", SETTLED[self.was])
        names.name(self.note, "note", REASON_BYTES_MAX, empty=True)

    def apply(self, db: Tables, at: Stamp) -> None:
        """NotFound; Conflict unless it is as it was. Saying it again changes nothing.

        A limit is set and restored by `CarryOutAdvice` alone, so nobody can say that it was.
        """
        pass_fence(db, self.controller_epoch)
        row = held(db, self.id)
        if row.state == self.state:
            return
        if row.state != self.was:
            raise Conflict(f"was: {self.id} is {row.state}, not {self.was}")
        if row.kind == QUOTA and self.state == UNDONE:
            raise Conflict(f"state: a {QUOTA!r} is carried out, not said to be {self.state}")
        change(db, at, row, self.state, row.by, self.note)


@command("metadata.advice.expire")
class ExpireAdvice:
    """Advice that nobody took up in time expires; what is over and old goes. Says how many."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    limit: int

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        if not 0 < self.limit <= BATCH_ITEMS_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {BATCH_ITEMS_MAX}")

    def apply(self, db: Tables, at: Stamp) -> int:
        """By id, `limit` of them at most."""
        pass_fence(db, self.controller_epoch)
        due = [row for _, row, _ in db.scan(ADVICE) if is_due(row, at.now_ms)][: self.limit]
        for row in due:
            if row.state in OPEN:
                change(db, at, row, EXPIRED, row.by, row.note)
            else:
                db.delete(ADVICE, row.id)
        return len(due)


def is_due(row: Advice, now_ms: int) -> bool:
    """Whether `ExpireAdvice` has something to do for it."""
    if row.state in OPEN:
        return row.expires_ms <= now_ms
    return row.state in OVER and row.changed_ms + KEEP_MS <= now_ms
