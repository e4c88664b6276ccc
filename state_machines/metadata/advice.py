"""Advice: what an analysis says should be done, why, until when, and what became of it.

    proposed -> approved -> applying -> applied -> undoing -> undone
        |           |           |          ^          |
        |           |           +-> failed +----------+   (it could not be undone)
        +-----------+-> dismissed, expired, failed

An analysis of the operation history puts rows here (`jobs/hotspots.py`), each with its reason, the
numbers behind it and a moment after which it is not to be acted upon any more. People approve and
dismiss them, and take back what was done; the controller acts (`advice_duty.py`), if the setting
`advice_mode` lets it. What an act replaced is in the row, so that it can be undone: unless somebody
has changed the same thing since.

The id of an advice follows from what it is about and when, so it may be put any number of times.
What nobody has approved goes when newer advice about the same thing comes. `limit` and `number` are
a quota's, `source` and `destination` say from where to where something should move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import json_text, names, quota
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.errors import Conflict, Invalid, NotFound, QuotaExceeded
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.metadata import tenant as tenants
from state_machines.op import Stamp, command, query
from state_machines.settings import DAY_MS, setting
from state_machines.tables import Table, Tables

ADVICE_MAX: Final = 500  #: rows there are at most
ID_BYTES_MAX: Final = 64
REASON_BYTES_MAX: Final = 1_024
EVIDENCE_BYTES_MAX: Final = 4_096
LIFE_MS_MAX: Final = 30 * DAY_MS  #: from when it is put until it expires
KEEP_MS: Final = 7 * DAY_MS  #: what became of it can be read, and undone, for so long

LEADER: Final = "leader"  #: the leadership of a Raft group goes to another of its seats
QUOTA: Final = "quota"  #: a tenant gets a limit of so many a second
SLOTS: Final = "slots"  #: slots go to another group of the kind
BROKER: Final = "broker"  #: a broker's clients go to others
STORM: Final = "storm"  #: a consumer group commits too often
CLIENT: Final = "client"  #: a client comes and goes too often
KINDS: Final = (LEADER, QUOTA, SLOTS, BROKER, STORM, CLIENT)
ACTS: Final = (LEADER, QUOTA)  #: which the controller can do; the others are for people

PROPOSED: Final = "proposed"
APPROVED: Final = "approved"
APPLYING: Final = "applying"
APPLIED: Final = "applied"
UNDOING: Final = "undoing"
UNDONE: Final = "undone"
DISMISSED: Final = "dismissed"
FAILED: Final = "failed"
EXPIRED: Final = "expired"
STATES: Final = (
    *(PROPOSED, APPROVED, APPLYING, APPLIED, UNDOING),
    *(UNDONE, DISMISSED, FAILED, EXPIRED),
)
OPEN: Final = (PROPOSED, APPROVED)  #: it may still be done
OVER: Final = (APPLIED, UNDONE, DISMISSED, FAILED, EXPIRED)  #: nobody is at it
REPLACED: Final = (PROPOSED, FAILED, EXPIRED)  #: it goes when there is newer advice about the same

SHOW: Final = "show"
OFF: Final = "off"
APPROVE: Final = "approve"
AUTO: Final = "auto"
MODES: Final = (SHOW, OFF, APPROVE, AUTO)
setting(
    "advice_mode",
    choices=MODES,
    description="What the controller does with advice: shows it, passes it over (off), carries "
    "out what was approved (approve), or approves by itself, too (auto).",
)


@dataclass(frozen=True, slots=True)
class Advice:
    """One advice. Times are Unix milliseconds, all but `start_ms` by the group's clock."""

    id: str
    kind: str
    target: str
    limit: str
    number: int
    source: str
    destination: str
    reason: str
    evidence: str  #: a JSON object: the numbers that the reason speaks of
    predicted: str  #: a JSON object: what should be so once it is done
    start_ms: int  #: where the window begins that it was found in
    created_ms: int
    expires_ms: int
    state: str
    by: str  #: who brought it into this state
    changed_ms: int
    note: str = ""
    before: str = ""  #: what an act replaced: a limit, or the seat that led
    after: str = ""  #: and by what


@dataclass(frozen=True, slots=True)
class AdvicePage:
    """Advice by id; `next` continues, empty at the end."""

    advice: tuple[Advice, ...]
    next: bytes


ADVICE: Final = Table("metadata.advice", Advice, key=("id",))


def about_of(row: Advice) -> tuple[str, str, str]:
    """What an advice is about: there is one open advice about it at a time."""
    return row.kind, row.target, row.limit


def held(db: Tables, advice_id: str) -> Advice:
    """The row. Raises NotFound."""
    found = db.get(ADVICE, advice_id)
    if found is None:
        raise NotFound(f"id: there is no advice {advice_id!r}")
    return found


def check_doable(row: Advice, now_ms: int) -> None:
    """Raise Conflict for what the controller cannot do, or is too old to be done."""
    if row.kind not in ACTS:
        raise Conflict(f"id: {row.kind!r} is done by hand; the controller does {', '.join(ACTS)}")
    if row.expires_ms <= now_ms:
        raise Conflict(f"id: it expired at {row.expires_ms}")


def change(db: Tables, at: Stamp, row: Advice, state: str, by: str, note: str = "") -> None:
    """The advice is in another state now."""
    db.put(ADVICE, replace(row, state=state, by=by, changed_ms=at.now_ms, note=note))


def limits_of(db: Tables, row: Advice) -> tenants.TenantQuotas:
    """What the tenant of a quota's advice may have now. Raises Conflict while it is deleted."""
    found = tenants.find(db, row.target)
    if found is None:
        return tenants.TenantQuotas()
    if found.state != tenants.ACTIVE:
        raise Conflict(f"target: tenant {row.target!r} is {found.state}")
    return found.quotas


def check_unchanged(db: Tables, row: Advice) -> None:
    """Raise Conflict unless the limit is still the one that was set for this advice."""
    now: int = getattr(limits_of(db, row), row.limit)
    if str(now) != row.after:
        raise Conflict(f"{row.limit}: it is {now} now, {row.after} was set: changed since")


# -- put by who analyses -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class NewAdvice:
    """An advice to put."""

    id: str
    kind: str
    target: str
    limit: str = ""
    number: int = 0
    source: str = ""
    destination: str = ""
    reason: str
    evidence: str = "{}"
    predicted: str = "{}"
    start_ms: int = 0
    expires_ms: int

    def check(self) -> None:
        """Raise Invalid for a field beyond its limits, or one that the kind does not have."""
        names.name(self.id, "id", ID_BYTES_MAX)
        names.one_of(self.kind, "kind", KINDS)
        names.name(self.target, "target")
        names.name(self.reason, "reason", REASON_BYTES_MAX)
        json_text.check_object(self.evidence, "evidence", EVIDENCE_BYTES_MAX)
        json_text.check_object(self.predicted, "predicted", EVIDENCE_BYTES_MAX)
        names.positive(self.start_ms, "start_ms")
        names.positive(self.expires_ms, "expires_ms")
        quota.check_limit(self.number, "number")
        moves = self.kind == LEADER
        names.name(self.source, "source", empty=not moves)
        names.name(self.destination, "destination", empty=not moves)
        if self.kind == QUOTA:
            names.one_of(self.limit, "limit", quota.RATES_OF)
            if self.number == 0:
                raise Invalid("number: 0, the least is 1")
        else:
            names.name(self.limit, "limit", empty=True)


@command("metadata.advice.put")
class PutAdvice(Batch):
    """Put advice. One that is there already stays as it is, whatever has become of it."""

    items: tuple[NewAdvice, ...]

    def validate(self) -> None:
        """Names, numbers and JSON within their limits."""
        names.items(self.items, "items")
        for item in self.items:
            item.check()

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Invalid for one that has expired; Conflict when a newer one about the same is there;
        QuotaExceeded when there are `ADVICE_MAX`."""
        there: dict[tuple[str, str, str], list[Advice]] = {}
        for _, row, _ in db.scan(ADVICE):
            there.setdefault(about_of(row), []).append(row)
        return each(db, self.items, lambda item: self._put(db, at, item, there))

    @staticmethod
    def _put(
        db: Tables, at: Stamp, item: NewAdvice, there: dict[tuple[str, str, str], list[Advice]]
    ) -> Revision | None:
        """`there` is every row by what it is about, and stays so: nothing is refused once anything
        is written."""
        old = db.versioned(ADVICE, item.id)
        if old is not None:
            return Revision(old[1])
        if not at.now_ms < item.expires_ms <= at.now_ms + LIFE_MS_MAX:
            raise Invalid(
                f"expires_ms: {item.expires_ms}, the range is {at.now_ms + 1} to "
                f"{at.now_ms + LIFE_MS_MAX}"
            )
        about = (item.kind, item.target, item.limit)
        same = there.get(about, [])
        replaced = [row for row in same if row.state in REPLACED]
        for row in replaced:
            if row.state == PROPOSED and row.start_ms > item.start_ms:
                raise Conflict(f"start_ms: {item.start_ms}, {row.id} of {row.start_ms} is newer")
        count = sum(map(len, there.values()))
        if count - len(replaced) >= ADVICE_MAX:
            raise QuotaExceeded(f"id: there are {count} rows of advice, the limit")
        for row in replaced:
            db.delete(ADVICE, row.id)
        row = Advice(
            id=item.id,
            kind=item.kind,
            target=item.target,
            limit=item.limit,
            number=item.number,
            source=item.source,
            destination=item.destination,
            reason=item.reason,
            evidence=item.evidence,
            predicted=item.predicted,
            start_ms=item.start_ms,
            created_ms=at.now_ms,
            expires_ms=item.expires_ms,
            state=PROPOSED,
            by="",
            changed_ms=at.now_ms,
        )
        there[about] = [*(each for each in same if each not in replaced), row]
        db.put(ADVICE, row)
        return None


# -- decided by people ---------------------------------------------------------------------------


def _check_decision(ids: tuple[str, ...], by: str, note: str) -> None:
    names.items(ids, "ids")
    for advice_id in ids:
        names.name(advice_id, "ids", ID_BYTES_MAX)
    names.name(by, "by", empty=True)
    names.name(note, "note", REASON_BYTES_MAX, empty=True)


@command("metadata.advice.approve")
class ApproveAdvice(Batch):
    """Let the controller carry out advice. It does when `advice_mode` is approve or auto."""

    urgent: ClassVar[bool] = True
    many: ClassVar[str] = "ids"
    ids: tuple[str, ...]
    by: str = ""
    note: str = ""

    def validate(self) -> None:
        """Names within their limits."""
        _check_decision(self.ids, self.by, self.note)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict unless it is open, in time, and one that the controller can do."""
        return each(db, self.ids, lambda advice_id: self._approve(db, at, advice_id))

    def _approve(self, db: Tables, at: Stamp, advice_id: str) -> None:
        row = held(db, advice_id)
        check_doable(row, at.now_ms)
        if row.state not in OPEN:
            raise Conflict(f"ids: {advice_id} is {row.state}")
        if row.state == PROPOSED:
            change(db, at, row, APPROVED, self.by, self.note)


@command("metadata.advice.dismiss")
class DismissAdvice(Batch):
    """Advice is not to be carried out, or was done by hand."""

    urgent: ClassVar[bool] = True
    many: ClassVar[str] = "ids"
    ids: tuple[str, ...]
    by: str = ""
    note: str = ""

    def validate(self) -> None:
        """Names within their limits."""
        _check_decision(self.ids, self.by, self.note)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict once it was begun. Dismissing again changes nothing."""
        return each(db, self.ids, lambda advice_id: self._dismiss(db, at, advice_id))

    def _dismiss(self, db: Tables, at: Stamp, advice_id: str) -> None:
        row = held(db, advice_id)
        if row.state in OPEN:
            change(db, at, row, DISMISSED, self.by, self.note)
        elif row.state != DISMISSED:
            raise Conflict(f"ids: {advice_id} is {row.state}")


@command("metadata.advice.undo")
class UndoAdvice(Batch):
    """Have the controller restore what was before advice was carried out, in any `advice_mode`."""

    urgent: ClassVar[bool] = True
    many: ClassVar[str] = "ids"
    ids: tuple[str, ...]
    by: str = ""
    note: str = ""

    def validate(self) -> None:
        """Names within their limits."""
        _check_decision(self.ids, self.by, self.note)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound; Conflict unless it was applied, and for a limit that was changed since. What
        is being undone, or was, stays as it is."""
        return each(db, self.ids, lambda advice_id: self._undo(db, at, advice_id))

    def _undo(self, db: Tables, at: Stamp, advice_id: str) -> None:
        row = held(db, advice_id)
        if row.state in (UNDOING, UNDONE):
            return
        if row.state != APPLIED:
            raise Conflict(f"ids: {advice_id} is {row.state}, not {APPLIED}")
        if row.kind == QUOTA:
            check_unchanged(db, row)
        change(db, at, row, UNDOING, self.by, self.note)


# -- read ----------------------------------------------------------------------------------------


@query("metadata.advice.get")
class GetAdvice:
    """Read an advice."""

    single_row: ClassVar[bool] = True
    id: str

    def validate(self) -> None:
        """A name within its limits."""
        names.name(self.id, "id", ID_BYTES_MAX)

    def read(self, db: Tables, at: Stamp) -> Advice | None:
        """None when there is none."""
        return db.get(ADVICE, self.id)


@query("metadata.advice.list")
class ListAdvice:
    """The advice there is, in any state or in one, a page at a time."""

    state: str = ""
    limit: int = PAGE_ROWS_MAX
    after: bytes = b""

    def validate(self) -> None:
        """A state that there is."""
        if self.state:
            names.one_of(self.state, "state", STATES)

    def read(self, db: Tables, at: Stamp) -> AdvicePage:
        """By id. A page may have less than `limit` of a state, and more may follow."""
        rows, after = db.page(ADVICE, after=self.after, limit=self.limit)
        found = [row for row, _ in rows if not self.state or row.state == self.state]
        return AdvicePage(tuple(found), after)
