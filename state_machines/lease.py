"""Leases: rows that live as long as somebody keeps saying so.

A lease is granted for `ttl_ms`, kept alive by its owner, and has rows attached to it, of any table
of its group that says how a row is removed (`removal.py`). When it runs out, or is revoked, they
go with it.

Time is the group's, the leader's stamp, so a lease neither ends nor begins anew because another
replica leads. It ends in `group.lease.expire` alone, which the controller proposes when one is due.
`DUES` is the index of when to look: a keep-alive writes nothing but the lease's own row, and a
lease that was kept alive is moved to its new time when its old one has come.

While nobody could be heard, leases run out. Those that had when a controller speaks for the first
time, and those whose time is over within `grace_ms` after it has heard the group again, get the
grace from then on: their owners can keep them alive. A lease gets it once until it is kept alive.
The controller ends only what had run out when it looked before (`upto_ms`), for a group may have
been away between two looks and its owners have to be heard first. So none is lost early, and none
outlives its time by more than two looks of the controller, or with a grace by that and four, two
before it and two after, however often the group is away for a moment.

An attachment is to this row, not to whatever stands at its key later. A row of a table that names
an `identity_field` (an epoch) is the same row however it changes. Any other is the same as long as
nobody has changed it: whoever writes it anew attaches it again, in the same transaction, and a
write by somebody else frees it, as a put without the lease does in etcd. A row has one lease: the
one it was attached to last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final
from zlib import crc32

from state_machines import batch, names, row_key
from state_machines.batch import Batch, Outcome
from state_machines.budgets import Budget
from state_machines.errors import Invalid, NotFound
from state_machines.fence import check_epoch, pass_fence
from state_machines.keyvalue import Part
from state_machines.op import Stamp, command, query
from state_machines.removal import LEASABLE, remove
from state_machines.tables import TABLES, Table, Tables

TTL_MS_MIN: Final = 1_000
TTL_MS_MAX: Final = 24 * 3_600_000
GRACE_MS_MAX: Final = 3_600_000
KEEP_MAX: Final = 1_000  #: leases that one command keeps alive
EXPIRE_MAX: Final = 10_000  #: leases looked at and rows removed by one command
REVOKE_ROWS_MAX: Final = 10_000  #: rows removed by one command


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease. Times are the group's, Unix milliseconds.

    `due_ms` is when it is looked at next, never after `deadline_ms`; `rows` are attached to it;
    `graced` says that it has had its grace since it was kept alive last; `ending` that it is over,
    and only rows are left to remove.
    """

    lease_id: int
    owner: str
    ttl_ms: int
    granted_ms: int
    deadline_ms: int
    due_ms: int
    rows: int
    graced: bool
    ending: bool


@dataclass(frozen=True, slots=True)
class LeaseDue:
    """When a lease is looked at."""

    due_ms: int
    lease_id: int


@dataclass(frozen=True, slots=True)
class Attachment:
    """A row's lease, and which row it is: by its identity, or by its revision and CRC-32."""

    table: str
    key: bytes
    lease_id: int
    revision: int
    mark: int


@dataclass(frozen=True, slots=True)
class AttachedRow:
    """The same by lease."""

    lease_id: int
    table: str
    key: bytes


@dataclass(frozen=True, slots=True)
class LeaseEpoch:
    """The controller that expires leases, and since when: its grace counts from there."""

    name: str
    epoch: int
    since_ms: int
    until_ms: int


LEASES: Final = Table("group.lease", Lease, key=("lease_id",))
DUES: Final = Table("group.lease_due", LeaseDue, key=("due_ms", "lease_id"))
ATTACHMENTS: Final = Table("group.lease_attachment", Attachment, key=("table", "key"))
ATTACHED: Final = Table("group.lease_row", AttachedRow, key=("lease_id", "table", "key"))
LEASE_EPOCHS: Final = Table("group.lease_epoch", LeaseEpoch, key=("name",))
NAME: Final = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """A lease that is wanted; `owner` is for people to read."""

    owner: str
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGrant:
    """A lease that was granted, and until when it holds if it is not kept alive."""

    lease_id: int
    deadline_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasesExpired:
    """Leases that ended, rows that went, leases that got their grace; when one is due next (0:
    none has a time); how many leases were due and looked at."""

    leases: int
    rows: int
    graced: int
    next_due_ms: int
    looked: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseView:
    """A lease as it is read; `remaining_ms` is 0 for one that has run out and was not ended yet."""

    lease_id: int
    owner: str
    ttl_ms: int
    remaining_ms: int
    rows: int
    ending: bool


@dataclass(frozen=True, slots=True)
class LeasePage:
    """Leases by id; `next` continues after the last one, empty at the end."""

    leases: tuple[LeaseView, ...]
    next: bytes


# -- leases -------------------------------------------------------------------------------------


def alive(db: Tables, lease_id: int) -> Lease:
    """The lease. Raises NotFound for one that has ended."""
    lease = db.get(LEASES, lease_id)
    if lease is None or lease.ending:
        raise NotFound(f"lease_id: {lease_id} was never granted, has run out or was revoked")
    return lease


def _look_at(db: Tables, lease: Lease, due_ms: int) -> None:
    """Set the lease, which is looked at then and not when it was to be."""
    db.delete(DUES, lease.due_ms, lease.lease_id)
    db.put(DUES, LeaseDue(due_ms, lease.lease_id))
    db.put(LEASES, replace(lease, due_ms=due_ms))


def _end(db: Tables, at: Stamp, lease: Lease, rows_max: int, budget: Budget) -> int:
    """The lease is over: at most so many of its rows go now, of no more bytes than the budget has,
    and with the last one itself."""
    gone = 0
    attached = [row for _, row, _ in itertools.islice(db.scan(ATTACHED, lease.lease_id), rows_max)]
    for row in attached:
        if budget.spent:
            break
        budget.spend(rows=0, size=_end_row(db, at, row))
        gone += 1
    left = 0  # what is attached says so: the count may be off
    if (gone == rows_max or budget.spent) and db.has_any(ATTACHED, lease.lease_id):
        left = max(1, lease.rows - gone)
    if left:
        _look_at(db, replace(lease, rows=left, ending=True), min(lease.due_ms, at.now_ms))
    else:
        db.delete(DUES, lease.due_ms, lease.lease_id)
        db.delete(LEASES, lease.lease_id)
    return gone


def _end_row(db: Tables, at: Stamp, row: AttachedRow) -> int:
    """How many bytes it had."""
    size, found = 0, row_of(db, row)
    if found is not None and found[0].name in LEASABLE:  # earlier versions attached others too
        table, key = found
        size = len(db.store.get(table.name, key) or b"")
        remove(db, at, table, key)
    free(db, row)
    return size


def free(db: Tables, row: AttachedRow) -> None:
    """Take a row from its lease; who calls this counts the rows."""
    db.delete(ATTACHMENTS, row.table, row.key)
    db.delete(ATTACHED, row.lease_id, row.table, row.key)


def row_of(db: Tables, row: AttachedRow) -> tuple[Table[Any], tuple[Part, ...]] | None:
    """Table and key, if what stands there is what was attached; None if that is gone."""
    table = TABLES[row.table]
    key = row_key.unpack(table, row.key, "key")
    attachment = db.get(ATTACHMENTS, row.table, row.key)
    assert attachment is not None, "an attached row has its attachment"
    stored = db.store.get(table.name, key)
    if stored is None:
        return None
    revision, mark = marks(table, stored)
    # Earlier versions knew topics by the log index of their last change.
    revisions = (revision, table.values_of(stored)[0])
    if attachment.mark != mark or attachment.revision not in revisions:
        return None
    return table, key


def marks(table: Table[Any], stored: bytes) -> tuple[int, int]:
    """What tells a row from the next one at its key."""
    if table.identity_field:
        return 0, table.identity_of(stored)
    # Two commands of one entry may write one row: its revision alone would not tell them apart.
    return table.revision_of(stored), crc32(stored)


@command("group.lease.grant")
class GrantLeases(Batch):
    """Grant leases. The reply has the id of each."""

    items: tuple[LeaseRequest, ...]

    def validate(self) -> None:
        """Owners and times within their limits."""
        names.items(self.items, "items")
        for place, each in enumerate(self.items):
            names.name(each.owner, f"items[{place}].owner")
            if not TTL_MS_MIN <= each.ttl_ms <= TTL_MS_MAX:
                raise Invalid(
                    f"items[{place}].ttl_ms: {each.ttl_ms}, the range is "
                    f"{TTL_MS_MIN} to {TTL_MS_MAX}"
                )

    def apply(self, db: Tables, at: Stamp) -> tuple[LeaseGrant, ...]:
        """Ids are never given twice."""
        granted = []
        for each in self.items:
            deadline = at.now_ms + each.ttl_ms
            lease = Lease(
                lease_id=db.unique(),
                owner=each.owner,
                ttl_ms=each.ttl_ms,
                granted_ms=at.now_ms,
                deadline_ms=deadline,
                due_ms=deadline,
                rows=0,
                graced=False,
                ending=False,
            )
            db.put(LEASES, lease)
            db.put(DUES, LeaseDue(deadline, lease.lease_id))
            granted.append(LeaseGrant(lease_id=lease.lease_id, deadline_ms=deadline))
        return tuple(granted)


@command("group.lease.keep")
class KeepLeases:
    """Keep leases alive: each has its whole time again from now on.

    It does not wait behind other commands, and so it is never long.
    """

    urgent: ClassVar[bool] = True
    items: tuple[int, ...]  #: lease ids

    def validate(self) -> None:
        """The number of items within its limit."""
        if not 0 < len(self.items) <= KEEP_MAX:
            raise Invalid(f"items: {len(self.items)} items, the range is 1 to {KEEP_MAX}")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that has ended: its rows are gone, or going."""
        return batch.each(db, self.items, lambda lease_id: self._keep(db, at, lease_id))

    @staticmethod
    def _keep(db: Tables, at: Stamp, lease_id: int) -> None:
        lease = alive(db, lease_id)
        deadline = max(lease.deadline_ms, at.now_ms + lease.ttl_ms)
        db.put(LEASES, replace(lease, deadline_ms=deadline, graced=False))


@command("group.lease.revoke")
class RevokeLeases(Batch):
    """End leases now. One that is not there any more is NotFound.

    One command removes `REVOKE_ROWS_MAX` rows, or `BYTES_TAKEN_MAX` of them. Leases
    whose rows do not fit are over as well, their outcome says how many rows are left, and the
    controller's next command removes them.
    """

    heavy: ClassVar[bool] = True
    items: tuple[int, ...]  #: lease ids

    def validate(self) -> None:
        """The number of items within its limit."""
        names.items(self.items, "items")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """In the order given."""
        left, budget, outcomes = REVOKE_ROWS_MAX, Budget(), []
        for lease_id in self.items:
            lease = db.get(LEASES, lease_id)
            if lease is None or lease.ending:
                outcomes.append(Outcome(NotFound.code, f"lease_id: {lease_id} is not there", 0))
                continue
            gone = _end(db, at, lease, left, budget)
            left -= gone
            rest = f"{lease.rows - gone} rows are left" if gone < lease.rows else ""
            outcomes.append(Outcome(batch.OK, rest, db.revision))
        return tuple(outcomes)


# -- time ---------------------------------------------------------------------------------------


@command("group.lease.expire")
class ExpireLeases:
    """The controller ends leases that have run out: `limit` leases looked at and rows removed,
    or `BYTES_TAKEN_MAX` of these.

    What is left is due still, and the reply says so.
    """

    urgent: ClassVar[bool] = True
    controller_epoch: int
    limit: int = 1_000
    grace_ms: int = 10_000
    upto_ms: int = 0  #: what has run out later by the group's time is left for now; 0: nothing is
    back_ms: int = 0  #: since when the group answers again that did not; 0: it always has

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        if not 0 < self.limit <= EXPIRE_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {EXPIRE_MAX}")
        if not 0 <= self.grace_ms <= GRACE_MS_MAX:
            raise Invalid(f"grace_ms: {self.grace_ms}, the range is 0 to {GRACE_MS_MAX}")
        names.positive(self.upto_ms, "upto_ms")
        names.positive(self.back_ms, "back_ms")

    def weight(self) -> int:
        """Leases and rows."""
        return self.limit

    def apply(self, db: Tables, at: Stamp) -> LeasesExpired:
        """What has run out is decided here, by the group's time, not by the caller's."""
        pass_fence(db, self.controller_epoch)
        epoch = db.get(LEASE_EPOCHS, NAME)
        if epoch is None or epoch.epoch < self.controller_epoch:
            until = at.now_ms + self.grace_ms
            epoch = LeaseEpoch(NAME, self.controller_epoch, at.now_ms, until)
            db.put(LEASE_EPOCHS, epoch)
        heard_ms = min(self.back_ms, at.now_ms) + self.grace_ms if self.back_ms else 0
        left, looked, ended, rows, graced = self.limit, 0, 0, 0, 0
        budget = Budget()  # of bytes
        upto = min(at.now_ms, self.upto_ms or at.now_ms)
        for due in [row for _, row, _ in itertools.islice(db.scan(DUES, upto=upto), left)]:
            if left <= 0 or budget.spent:
                break
            left -= 1
            looked += 1
            lease = db.get(LEASES, due.lease_id)
            assert lease is not None, "a lease that is due is there"
            if lease.deadline_ms <= upto and not lease.ending and not lease.graced:
                until = epoch.until_ms if lease.deadline_ms <= epoch.since_ms else 0
                deadline = max(lease.deadline_ms, until, heard_ms)
                if deadline > at.now_ms:
                    lease = replace(lease, deadline_ms=deadline, graced=True)
                    graced += 1
            if lease.deadline_ms > upto and not lease.ending:
                _look_at(db, lease, lease.deadline_ms)
                continue
            gone = _end(db, at, lease, max(left, 1), budget)
            ended += gone == lease.rows
            rows += gone
            left -= gone
        return LeasesExpired(
            leases=ended, rows=rows, graced=graced, next_due_ms=_next_due_ms(db), looked=looked
        )


def _next_due_ms(db: Tables) -> int:
    return next((row.due_ms for _, row, _ in db.scan(DUES)), 0)


@query("group.lease.due")
class NextLeaseDue:
    """When the next lease is to be looked at, Unix milliseconds; 0 when there is none."""

    def read(self, db: Tables, at: Stamp) -> int:
        """By the group's time."""
        return _next_due_ms(db)


def _view(lease: Lease, at: Stamp) -> LeaseView:
    return LeaseView(
        lease_id=lease.lease_id,
        owner=lease.owner,
        ttl_ms=lease.ttl_ms,
        remaining_ms=max(0, lease.deadline_ms - at.now_ms),
        rows=lease.rows,
        ending=lease.ending,
    )


@query("group.lease.get")
class GetLease:
    """Read a lease."""

    single_row: ClassVar[bool] = True
    lease_id: int

    def read(self, db: Tables, at: Stamp) -> LeaseView | None:
        """None when there is none."""
        lease = db.get(LEASES, self.lease_id)
        return _view(lease, at) if lease is not None else None


@query("group.lease.list")
class ListLeases:
    """All leases of the group, a page at a time."""

    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> LeasePage:
        """By id, which is the order in which they were granted."""
        rows, after = db.page(LEASES, after=self.after, limit=self.limit)
        return LeasePage(tuple([_view(row, at) for row, _ in rows]), after)
