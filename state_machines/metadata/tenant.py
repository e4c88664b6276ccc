"""Tenants: the namespaces that were recorded, what each may have, and how far a deletion is.

A tenant need not be recorded to be used: one that is not has no limits, and cannot be deleted as a
whole. `default` always exists. What a tenant may have is said here once, for the whole cluster; the
controller hands each group its share (`state_machines.quota`), under the row's `revision`.

Deleting a tenant only marks it. The controller then closes it in every group, purges its rows in
bounded steps, and removes this row last (`actors/planners/tenants.py`); `step` and `purged` show
how far it is, so that a controller that takes over goes on there, and an operator sees it move.
Each step may be done again. From the mark on, the name cannot be created anew until the row is
gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names, quota
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.errors import AlreadyExists, Conflict, Invalid, NotFound
from state_machines.fence import check_epoch, pass_fence
from state_machines.metadata.revisions import next_revision, remove_revised, removed_so
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

DESCRIPTION_BYTES_MAX: Final = 1_024

ACTIVE: Final = "active"
DELETING: Final = "deleting"

CLOSING: Final = "closing"
PURGING: Final = "purging"
STEPS: Final = ("", CLOSING, PURGING)  #: of a deletion, in order; none while active


@dataclass(frozen=True, slots=True)
class TenantQuotas:
    """What a tenant may have in the whole cluster; 0 is no limit.

    `topics` is asked of each kind on its own: of the topics in `metadata`, and of those in `mqtt`.
    """

    topics: int = 0
    sessions: int = 0
    session_opens_per_s: int = 0
    offset_commits_per_s: int = 0


@dataclass(frozen=True, slots=True)
class Tenant:
    """A recorded tenant. Times are the group's, Unix milliseconds.

    `revision` is that of the last change to what it is, not to how far its deletion is.
    """

    name: str
    description: str
    state: str
    quotas: TenantQuotas
    revision: int
    created_ms: int
    updated_ms: int
    step: str = ""
    purged: int = 0  #: rows that its deletion has removed, at least


@dataclass(frozen=True, slots=True)
class TenantPage:
    """Tenants by name; `next` continues, empty at the end."""

    tenants: tuple[Tenant, ...]
    next: bytes


TENANTS: Final = Table("metadata.tenant", Tenant, key=("name",), revision_field="revision")
removed_so(TENANTS)

_DEFAULT: Final = Tenant(names.DEFAULT_TENANT, "", ACTIVE, TenantQuotas(), 0, 0, 0)
"""What `default` is before anybody has said anything of it, or of any tenant."""


def find(db: Tables, name: str) -> Tenant | None:
    """A tenant, if it is recorded. Only the group `metadata-0` knows."""
    found = db.get(TENANTS, name)
    return _DEFAULT if found is None and name == names.DEFAULT_TENANT else found


def _held(db: Tables, name: str, expected: int | None) -> Tenant:
    """The tenant at the expected revision, or at any. NotFound, or Conflict."""
    found = find(db, name)
    if found is None:
        raise NotFound(f"name: tenant {name!r} is not recorded")
    if expected is not None and expected != found.revision:
        raise Conflict(f"expected_revision: {expected}, the tenant is at {found.revision}")
    return found


def _check_quotas(quotas: TenantQuotas) -> None:
    for limit in quota.LIMITS:
        quota.check_limit(getattr(quotas, limit), f"quotas.{limit}")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTenant:
    """A tenant to record."""

    name: str
    description: str = ""
    quotas: TenantQuotas = TenantQuotas()


@command("metadata.tenant.create")
class CreateTenants(Batch):
    """Record tenants. Rows that the name has already, from before it was recorded, stay."""

    items: tuple[NewTenant, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "name")
            names.name(item.description, "description", DESCRIPTION_BYTES_MAX, empty=True)
            _check_quotas(item.quotas)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """AlreadyExists for one that is there, `default` among them."""
        return each(db, self.items, lambda item: self.create(db, at, item))

    @staticmethod
    def create(db: Tables, at: Stamp, item: NewTenant) -> Revision:
        """Record one. Raises AlreadyExists."""
        old = find(db, item.name)
        if old is not None:
            raise AlreadyExists(f"name: tenant {item.name!r} is {old.state}")
        revision = next_revision(db, 0)
        db.put(
            TENANTS,
            Tenant(
                item.name,
                item.description,
                ACTIVE,
                item.quotas,
                int(revision),
                at.now_ms,
                at.now_ms,
            ),
        )
        return revision


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantChange:
    """What to change of a tenant; None leaves it."""

    name: str
    description: str | None = None
    quotas: TenantQuotas | None = None
    expected_revision: int | None = None


@command("metadata.tenant.update")
class UpdateTenants(Batch):
    """Change tenants. New quotas hold in a group from when the controller has told it."""

    items: tuple[TenantChange, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "name")
            if item.description is not None:
                names.name(item.description, "description", DESCRIPTION_BYTES_MAX, empty=True)
            if item.quotas is not None:
                _check_quotas(item.quotas)
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound without a row; Conflict at another revision, or while it is deleted."""
        return each(db, self.items, lambda item: self.update(db, at, item))

    @staticmethod
    def update(db: Tables, at: Stamp, item: TenantChange) -> Revision:
        """Change one. Raises NotFound or Conflict."""
        old = _held(db, item.name, item.expected_revision)
        if old.state != ACTIVE:
            raise Conflict(f"name: tenant {item.name!r} is {old.state}")
        revision = next_revision(db, old.revision)
        db.put(
            TENANTS,
            replace(
                old,
                description=old.description if item.description is None else item.description,
                quotas=old.quotas if item.quotas is None else item.quotas,
                revision=int(revision),
                created_ms=old.created_ms or at.now_ms,
                updated_ms=at.now_ms,
            ),
        )
        return revision


def set_quotas(db: Tables, at: Stamp, name: str, quotas: TenantQuotas) -> None:
    """Set what a tenant may have, for another entity's command. One not yet recorded is then.

    Raises Conflict while it is being deleted.
    """
    if find(db, name) is None:
        CreateTenants.create(db, at, NewTenant(name=name, quotas=quotas))
    else:
        UpdateTenants.update(db, at, TenantChange(name=name, quotas=quotas))


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantName:
    """A tenant, at a revision or at any."""

    name: str
    expected_revision: int | None = None


@command("metadata.tenant.delete")
class DeleteTenants(Batch):
    """Mark tenants as being deleted, with all they have. This cannot be taken back."""

    items: tuple[TenantName, ...]

    def validate(self) -> None:
        """Names within their limits; `default` is for ever."""
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "name")
            if item.name == names.DEFAULT_TENANT:
                raise Invalid(f"name: {item.name!r} cannot be deleted")
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound without a row; Conflict at another revision. Marking again changes nothing."""
        return each(db, self.items, lambda item: self._mark(db, at, item))

    @staticmethod
    def _mark(db: Tables, at: Stamp, item: TenantName) -> Revision:
        old = find(db, item.name)
        if old is not None and old.state == DELETING:
            return Revision(old.revision)
        old = _held(db, item.name, item.expected_revision)
        revision = next_revision(db, old.revision)
        db.put(
            TENANTS,
            replace(
                old,
                state=DELETING,
                revision=int(revision),
                updated_ms=at.now_ms,
                step=CLOSING,
            ),
        )
        return revision


@command("metadata.tenant.advance")
class AdvanceTenant:
    """The controller says how far a deletion is: the step, and how many rows went so far.

    `revision` is that of the mark, so that a step of an earlier deletion of the same name, however
    late it comes, is not taken for one of this. Never goes back.
    """

    urgent: ClassVar[bool] = True
    controller_epoch: int
    name: str
    revision: int
    step: str
    purged: int

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.name(self.name, "name")
        names.positive(self.revision, "revision")
        names.name(self.step, "step")
        if self.step not in STEPS:
            raise Invalid(f"step: {self.step!r} is none of {', '.join(STEPS[1:])}")
        names.positive(self.purged, "purged")

    def apply(self, db: Tables, at: Stamp) -> None:
        """NotFound without a row; Conflict for another revision; an older step changes nothing."""
        pass_fence(db, self.controller_epoch)
        old = _marked(db, self.name, self.revision)
        if old is None:
            raise NotFound(f"name: tenant {self.name!r} is not recorded")
        step = max(old.step, self.step, key=STEPS.index)
        new = replace(old, step=step, purged=max(old.purged, self.purged))
        if new != old:
            db.put(TENANTS, replace(new, updated_ms=at.now_ms))


@command("metadata.tenant.remove")
class RemoveTenant:
    """The controller has purged a tenant in every group: its row goes. Says whether there was one.

    The name is free again.
    """

    urgent: ClassVar[bool] = True
    controller_epoch: int
    name: str
    revision: int

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.name(self.name, "name")
        names.positive(self.revision, "revision")

    def apply(self, db: Tables, at: Stamp) -> bool:
        """Conflict unless it is marked at this revision and its rows are being purged."""
        pass_fence(db, self.controller_epoch)
        old = _marked(db, self.name, self.revision)
        if old is not None and old.step != PURGING:
            raise Conflict(f"name: the deletion of tenant {self.name!r} is at {old.step!r}")
        if old is not None:
            remove_revised(db, TENANTS, old)
        return old is not None


def _marked(db: Tables, name: str, revision: int) -> Tenant | None:
    found = db.get(TENANTS, name)
    if found is not None and found.state != DELETING:
        raise Conflict(f"name: tenant {name!r} is {found.state}")
    if found is not None and found.revision != revision:
        raise Conflict(f"revision: {revision}, the tenant is at {found.revision}")
    return found


@query("metadata.tenant.get")
class GetTenant:
    """Read a tenant."""

    single_row: ClassVar[bool] = True
    name: str = names.DEFAULT_TENANT

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.name, "name")

    def read(self, db: Tables, at: Stamp) -> Tenant | None:
        """None when it is not recorded."""
        return find(db, self.name)


@query("metadata.tenant.list")
class ListTenants:
    """Tenants whose name begins with `starts`, a page at a time: recorded ones, and `default`."""

    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> TenantPage:
        """By name."""
        rows, after = db.page(TENANTS, starts=self.starts, after=self.after, limit=self.limit)
        found = [row for row, _ in rows]
        if self._passes_default(after) and db.get(TENANTS, names.DEFAULT_TENANT) is None:
            found = sorted([*found, _DEFAULT], key=lambda each: each.name.encode())
            if len(found) > self.limit:
                found.pop()
                after = found[-1].name.encode()
        return TenantPage(tuple(found), after)

    def _passes_default(self, after: bytes) -> bool:
        """Whether the place of `default` is in the page that ends at `after`. A token is a name."""
        place = names.DEFAULT_TENANT.encode()
        here = self.after < place and (not after or place < after)
        return here and names.DEFAULT_TENANT.startswith(self.starts)
