"""Quotas: what a tenant may have in a group, enforced in apply, where the rows are.

The controller gives a group a row for each tenant that has limits (`group.quota.set`). With several
groups of a kind each enforces its `share`, so the whole may be passed by less than one item a
group. 0 is no limit, and a tenant without a row has none at all: a tenant need not be recorded
to be used, and then costs one lookup an entry.

There are two sorts of limits. How many there are at once (topics, sessions) is kept as a count that
every command moves that makes or removes one, limited or not, so that a limit can be set at any
time; what is above a new, lower limit stays, and nothing is added until it is below. How many
there are in a second (opened sessions, committed offsets) is a bucket of tokens, filled by the
group's clock, that holds one second's worth. A command takes as many tokens as it has items and is
let in if there is one: the rest is debt, which the next ones wait for. So a batch larger than the
bucket is possible, and over time the rate holds.

What a batch gets that fits only partly depends on its reply. Where it has an `Outcome` for each
item, the first ones fit and the rest are QuotaExceeded, each on its own; where it has none
(`mqtt.topic.create`, `mqtt.session.save`, `mqtt.session.open_all`, `offset.commit`) the whole
command is QuotaExceeded and has changed nothing. A rate always speaks of whole commands.

A tenant that is being deleted is closed: every command in it is NotFound, except the controller's
(`check_open`, asked by the machine, so that no entity has to).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Fenced, Invalid, NotFound, QuotaExceeded
from state_machines.fence import check_epoch, pass_fence
from state_machines.op import Stamp, command, query
from state_machines.repair import clamp
from state_machines.tables import Table, Tables

TOPICS: Final = "topics"
SESSIONS: Final = "sessions"
SESSION_OPENS: Final = "session_opens_per_s"
OFFSET_COMMITS: Final = "offset_commits_per_s"

LIMITS: Final = (TOPICS, SESSIONS, SESSION_OPENS, OFFSET_COMMITS)
RATES_OF: Final = (SESSION_OPENS, OFFSET_COMMITS)

LIMIT_MAX: Final = 10**12  #: of a quota: in thousandths it still fits 64 bits
_M: Final = 1_000  #: thousandths: a rate of n a second is n thousandths of a token a millisecond


@dataclass(frozen=True, slots=True)
class GroupQuota:
    """What a tenant may have in this group. A limit of 0 is none.

    `version` is the revision of the tenant's row that this follows from: an older one is refused.
    `clean` says of a closed tenant that a purge has found nothing left (`purge.py`).
    """

    tenant: str
    version: int
    closed: bool = False
    topics: int = 0
    sessions: int = 0
    session_opens_per_s: int = 0
    offset_commits_per_s: int = 0
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Usage:
    """How many of something a tenant has in this group. There is no row for 0."""

    tenant: str
    resource: str
    count: int


@dataclass(frozen=True, slots=True)
class RateLevel:
    """A bucket: thousandths of a token at a time of the group; negative is debt."""

    tenant: str
    resource: str
    level_m: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class QuotaBook:
    """How many quota rows this group has, and how many of them are closed."""

    name: str
    rows: int
    closed: int


@dataclass(frozen=True, slots=True)
class QuotaPage:
    """Quotas by tenant; `next` continues, empty at the end."""

    quotas: tuple[GroupQuota, ...]
    next: bytes


QUOTAS: Final = Table("group.quota", GroupQuota, key=("tenant",))
USAGES: Final = Table("group.usage", Usage, key=("tenant", "resource"))
LEVELS: Final = Table("group.rate_level", RateLevel, key=("tenant", "resource"))
BOOK: Final = Table("group.quota_book", QuotaBook, key=("name",))
NAME: Final = "quota"
NO_BOOK: Final = QuotaBook(NAME, 0, 0)

_BOOK: Final = "quota.book"
_QUOTA: Final = "quota.of/"


def share(limit: int, groups: int) -> int:
    """What each of so many groups enforces of a limit: its part, rounded up. 0 stays 0."""
    return -(-limit // groups)


# -- asked by who creates ------------------------------------------------------------------------


def _book(db: Tables) -> QuotaBook:
    """Read once an entry."""
    found: QuotaBook | None = db.memo.get(_BOOK)
    if found is None:
        found = db.memo[_BOOK] = db.get(BOOK, NAME) or NO_BOOK
    return found


def of(db: Tables, tenant: str) -> GroupQuota | None:
    """A tenant's limits in this group, None for one that has none. Read once an entry."""
    if not _book(db).rows:
        return None
    place = _QUOTA + tenant
    if place not in db.memo:
        db.memo[place] = db.get(QUOTAS, tenant)
    found: GroupQuota | None = db.memo[place]
    return found


def any_closed(db: Tables) -> bool:
    """Whether a tenant is being deleted from this group."""
    return _book(db).closed > 0


def check_open(db: Tables, operation: Any) -> None:
    """Raise NotFound for a command in a tenant that is being deleted.

    The controller's commands, which carry its epoch, are what deletes it.
    """
    if not any_closed(db) or hasattr(operation, "controller_epoch"):
        return
    tenant = getattr(operation, "tenant", "")
    found = of(db, tenant) if tenant else None
    if found is not None and found.closed:
        raise NotFound(f"tenant: {tenant!r} is being deleted")


def used(db: Tables, tenant: str, resource: str) -> int:
    """How many a tenant has."""
    row = db.get(USAGES, tenant, resource)
    return row.count if row is not None else 0


def add(db: Tables, tenant: str, resource: str, more: int) -> None:
    """There are so many more. Raises QuotaExceeded when that is beyond the tenant's limit."""
    count = used(db, tenant, resource) + more
    check_count(of(db, tenant), resource, count)
    db.put(USAGES, Usage(tenant, resource, count))


def take_away(db: Tables, tenant: str, resource: str, fewer: int) -> None:
    """There are so many fewer."""
    # Never below none: rows may have come here with their slot, and been counted elsewhere.
    left = used(db, tenant, resource) - fewer
    count = clamp(db, USAGES, (tenant, resource), "count", left)
    if count:
        db.put(USAGES, Usage(tenant, resource, count))
    elif fewer:
        db.delete(USAGES, tenant, resource)


def check_count(limits: GroupQuota | None, resource: str, count: int) -> None:
    """Raise QuotaExceeded if the limits, when there are any, are below the count."""
    limit: int = getattr(limits, resource) if limits is not None else 0
    if limits is not None and 0 < limit < count:
        raise QuotaExceeded(
            f"{resource}: {count} of tenant {limits.tenant!r}, the limit of this group is {limit}"
        )


def take(db: Tables, at: Stamp, limits: GroupQuota | None, resource: str, tokens: int) -> None:
    """Take tokens from a tenant's bucket, or raise QuotaExceeded when there is not one left."""
    rate: int = getattr(limits, resource) if limits is not None else 0
    if limits is None or not rate:
        return
    full = rate * _M
    row = db.get(LEVELS, limits.tenant, resource)
    level = full if row is None else min(full, row.level_m + rate * (at.now_ms - row.at_ms))
    if level < _M:
        wait_ms = -(-(_M - level) // rate)
        raise QuotaExceeded(
            f"{resource}: of tenant {limits.tenant!r}, the limit of this group is {rate}; "
            f"there is room in {wait_ms} ms"
        )
    db.put(LEVELS, RateLevel(limits.tenant, resource, level - tokens * _M, at.now_ms))


def found_clean(db: Tables, limits: GroupQuota) -> None:
    """Nothing is left of a closed tenant in this group; and nothing can come."""
    if not limits.clean:
        db.put(QUOTAS, replace(limits, clean=True))
        db.memo.clear()


# -- the controller's commands -------------------------------------------------------------------


def _enter(db: Tables, before: GroupQuota | None, after: GroupQuota | None) -> None:
    """Keep the book; forget what this entry has read."""
    book = db.get(BOOK, NAME) or QuotaBook(NAME, 0, 0)
    rows = book.rows + (after is not None) - (before is not None)
    closed = (after is not None and after.closed) - (before is not None and before.closed)
    db.put(BOOK, QuotaBook(NAME, rows, book.closed + closed))
    db.memo.clear()


@command("group.quota.set")
class SetQuotas(Batch):
    """The controller tells a group the limits of tenants: this group's shares."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    items: tuple[GroupQuota, ...]

    def validate(self) -> None:
        """Names and limits within theirs."""
        check_epoch(self.controller_epoch)
        names.items(self.items, "items")
        for item in self.items:
            names.tenant(item.tenant)
            _check_version(item.version)
            for limit in LIMITS:
                check_limit(getattr(item, limit), limit)
            if item.clean:
                raise Invalid("clean: a purge finds that out")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced with a version below the row's; the same again is fine."""
        pass_fence(db, self.controller_epoch)
        return each(db, self.items, lambda item: self._set(db, item))

    @staticmethod
    def _set(db: Tables, item: GroupQuota) -> None:
        old = db.get(QUOTAS, item.tenant)
        _not_older(old, item.version)
        same = old is not None and replace(old, clean=False) == item
        if not same:
            db.put(QUOTAS, item)
            _enter(db, old, item)


@dataclass(frozen=True, slots=True)
class QuotaVersion:
    """A tenant's quota row, up to a version."""

    tenant: str
    version: int


@command("group.quota.drop")
class DropQuotas(Batch):
    """The controller tells a group that tenants have no limits any more, or are gone."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    items: tuple[QuotaVersion, ...]

    def validate(self) -> None:
        """Names and versions within their limits."""
        check_epoch(self.controller_epoch)
        names.items(self.items, "items")
        for item in self.items:
            names.tenant(item.tenant)
            _check_version(item.version)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced with a version below the row's; what is not there is fine."""
        pass_fence(db, self.controller_epoch)
        return each(db, self.items, lambda item: self._drop(db, item))

    @staticmethod
    def _drop(db: Tables, item: QuotaVersion) -> None:
        old = db.get(QUOTAS, item.tenant)
        _not_older(old, item.version)
        for resource in RATES_OF:
            db.delete(LEVELS, item.tenant, resource)
        if db.delete(QUOTAS, item.tenant):
            _enter(db, old, None)


def _not_older(old: GroupQuota | None, version: int) -> None:
    if old is not None and version < old.version:
        raise Fenced(f"version: {version}, in force is {old.version}")


def _check_version(version: int) -> None:
    if version < 1:
        raise Invalid(f"version: {version}, the least is 1")


def check_limit(value: int, field: str) -> None:
    """Raise Invalid for a quota that cannot be."""
    if not 0 <= value <= LIMIT_MAX:
        raise Invalid(f"{field}: {value}, the range is 0 (no limit) to {LIMIT_MAX}")


@query("group.quota.get")
class GetQuota:
    """Read a tenant's quota row of a group."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def read(self, db: Tables, at: Stamp) -> GroupQuota | None:
        """None when it has no limits here."""
        return db.get(QUOTAS, self.tenant)


@query("group.quota.list")
class ListQuotas:
    """The quota rows of a group by tenant, a page at a time."""

    limit: int = 1_000
    after: bytes = b""

    def read(self, db: Tables, at: Stamp) -> QuotaPage:
        """By tenant."""
        rows, after = db.page(QUOTAS, after=self.after, limit=self.limit)
        return QuotaPage(tuple([row for row, _ in rows]), after)


@query("group.quota.usage")
class GetUsage:
    """What a tenant has in a group, as far as it is counted for quotas."""

    tenant: str = names.DEFAULT_TENANT

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def read(self, db: Tables, at: Stamp) -> tuple[Usage, ...]:
        """By resource. Sessions are in `mqtt.session.count`."""
        return tuple([row for _, row, _ in db.scan(USAGES, self.tenant)])
