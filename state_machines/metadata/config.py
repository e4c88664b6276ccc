"""Resource configuration: the settings of the service that hold from now on, without a restart.

A row sets one setting (`state_machines.settings` declares them all) in one scope: `cluster`, or
`tenant/<name>` for those that a tenant may have otherwise. What is not set has its default; what is
in force for a tenant is its own value over the cluster's over the default (`settings.in_force`).
Who reads a setting watches these rows, or asks `metadata.config.resolve`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import names, packing, settings
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.limits import NAME_BYTES_MAX
from state_machines.metadata.revisions import next_revision, remove_revised, removed_so
from state_machines.metadata.tenant import DELETING, TENANTS
from state_machines.op import Stamp, command, query
from state_machines.purge import belongs
from state_machines.settings import SETTINGS, Setting, Value, fits
from state_machines.tables import Table, Tables

CLUSTER: Final = "cluster"
TENANT: Final = "tenant/"
SCOPE_BYTES_MAX: Final = len(TENANT) + NAME_BYTES_MAX
KEYS_MAX: Final = 256  #: settings that one question names


@dataclass(frozen=True, slots=True)
class Config:
    """A setting's value in a scope: a number, or a text. `updated_ms` is the group's time."""

    scope: str
    key: str
    number: int | None
    text: str | None
    revision: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class ConfigPage:
    """Values by scope and setting; `next` continues, empty at the end."""

    configs: tuple[Config, ...]
    next: bytes


CONFIGS: Final = Table("metadata.config", Config, key=("scope", "key"), revision_field="revision")
removed_so(CONFIGS)
_KEY, _NUMBER = (packing.field_names(Config).index(each) for each in ("key", "number"))
belongs(CONFIGS, lambda tenant: (f"{TENANT}{tenant}",))


def check_scope(scope: str, *, empty: bool = False) -> None:
    """Raise Invalid for a scope that is neither the cluster nor a tenant."""
    names.name(scope, "scope", SCOPE_BYTES_MAX, empty=empty)
    if scope not in (CLUSTER, "" if empty else CLUSTER) and not scope.startswith(TENANT):
        raise Invalid(
            f"scope: {scope[:80]!r} is neither {CLUSTER!r} nor '{TENANT}<name>', "
            f"of {SCOPE_BYTES_MAX} bytes at most"
        )
    if scope.startswith(TENANT):
        names.name(scope[len(TENANT) :], "scope")


def value_of(row: Config | None) -> Value | None:
    """The value that a row sets, None without a row."""
    return None if row is None else row.text if row.number is None else row.number


def value(db: Tables, key: str, tenant: str = "") -> Value:
    """What is in force now, for who decides by it in `metadata-0`."""
    own = db.get(CONFIGS, f"{TENANT}{tenant}", key) if tenant else None
    return settings.in_force(SETTINGS[key], value_of(own), value_of(db.get(CONFIGS, CLUSTER, key)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValue:
    """A value to set. `expected_revision`: 0 for one that is not set yet, None for any."""

    scope: str = CLUSTER
    key: str
    number: int | None = None
    text: str | None = None
    expected_revision: int | None = None


@command("metadata.config.set")
class SetConfigs(Batch):
    """Set values."""

    items: tuple[ConfigValue, ...]

    def validate(self) -> None:
        """Known settings, each within its range, where it may be set."""
        names.items(self.items, "items")
        for item in self.items:
            check_scope(item.scope)
            known = settings.known(item.key)
            if item.scope != CLUSTER and not known.per_tenant:
                raise Invalid(f"scope: {item.key} is set for the whole {CLUSTER}")
            settings.check(known, item.number, item.text)
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict at another revision; NotFound in a tenant that is being deleted."""
        return each(db, self.items, lambda item: self._set(db, at, item))

    @staticmethod
    def _set(db: Tables, at: Stamp, item: ConfigValue) -> Revision:
        if item.scope != CLUSTER:
            tenant = db.get(TENANTS, item.scope[len(TENANT) :])
            if tenant is not None and tenant.state == DELETING:
                raise NotFound(f"scope: tenant {tenant.name!r} is being deleted")
        before = _expected(db, item.scope, item.key, item.expected_revision)
        revision = next_revision(db, before.revision if before is not None else 0)
        db.put(
            CONFIGS,
            Config(item.scope, item.key, item.number, item.text, int(revision), at.now_ms),
        )
        return revision


def _expected(db: Tables, scope: str, key: str, expected: int | None) -> Config | None:
    """A row, None without one. Raises Conflict unless its revision (0: none) is as expected."""
    row = db.get(CONFIGS, scope, key)
    revision = row.revision if row is not None else 0
    if expected is not None and expected != revision:
        raise Conflict(f"expected_revision: {expected}, {key} of {scope} is at {revision}")
    return row


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigName:
    """A value to take back, at a revision or at any."""

    scope: str = CLUSTER
    key: str
    expected_revision: int | None = None


@command("metadata.config.delete")
class DeleteConfigs(Batch):
    """Take values back: what the scope above says holds again. Settings may be unknown by now."""

    items: tuple[ConfigName, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.items(self.items, "items")
        for item in self.items:
            check_scope(item.scope)
            names.name(item.key, "key")
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not set; Conflict at another revision."""
        return each(db, self.items, lambda item: self._delete(db, item))

    @staticmethod
    def _delete(db: Tables, item: ConfigName) -> None:
        row = _expected(db, item.scope, item.key, item.expected_revision)
        if row is None:
            raise NotFound(f"key: {item.key!r} is not set in {item.scope!r}")
        remove_revised(db, CONFIGS, row)


@query("metadata.config.get")
class GetConfig:
    """Read what a scope says of a setting."""

    single_row: ClassVar[bool] = True
    scope: str = CLUSTER
    key: str

    def validate(self) -> None:
        """Names within their limits."""
        check_scope(self.scope)
        names.name(self.key, "key")

    def read(self, db: Tables, at: Stamp) -> Config | None:
        """None when it says nothing."""
        return db.get(CONFIGS, self.scope, self.key)


@query("metadata.config.list")
class ListConfigs:
    """The values of a scope, or (empty) of all, a page at a time."""

    scope: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        check_scope(self.scope, empty=True)

    def read(self, db: Tables, at: Stamp) -> ConfigPage:
        """By scope and setting."""
        prefix = (self.scope,) if self.scope else ()
        rows, after = db.page(CONFIGS, *prefix, after=self.after, limit=self.limit)
        return ConfigPage(tuple([row for row, _ in rows]), after)


@query("metadata.config.largest")
class LargestConfig:
    """The largest number that the cluster or a tenant has set for a setting."""

    key: str

    def validate(self) -> None:
        """A known setting that has numbers."""
        if settings.known(self.key).choices:
            raise Invalid(f"key: {self.key!r} is a text, it has no largest one")

    def read(self, db: Tables, at: Stamp) -> int | None:
        """None when nobody has set it. What is out of its range holds nowhere."""
        known = SETTINGS[self.key]
        # Of all settings of all tenants: their plain values, no row is made of them.
        rows = (CONFIGS.values_of(value)[1] for _, value in db.store.scan(CONFIGS.name, ()))
        numbers = [row[_NUMBER] for row in rows if row[_KEY] == self.key]
        return max(
            [each for each in numbers if each is not None and fits(known, each)], default=None
        )


@dataclass(frozen=True, slots=True)
class InForce:
    """A setting's value as it holds: a number, or a text."""

    key: str
    number: int | None
    text: str | None


@query("metadata.config.resolve")
class ResolveConfigs:
    """What is in force for a tenant, or (empty) for the cluster: of these settings, or of all."""

    tenant: str = ""
    keys: tuple[str, ...] = ()

    def validate(self) -> None:
        """Known settings."""
        names.name(self.tenant, "tenant", empty=True)
        if len(self.keys) > KEYS_MAX:
            raise Invalid(f"keys: {len(self.keys)} items, the limit is {KEYS_MAX}")
        for key in self.keys:
            settings.known(key)

    def read(self, db: Tables, at: Stamp) -> tuple[InForce, ...]:
        """In the order asked, or by name."""
        found = []
        for key in self.keys or sorted(SETTINGS):
            now = value(db, key, self.tenant)
            found.append(
                InForce(key, now, None) if isinstance(now, int) else InForce(key, None, now)
            )
        return tuple(found)


@query("metadata.config.settings")
class ListSettings:
    """The settings that this version knows, with their ranges and defaults."""

    def read(self, db: Tables, at: Stamp) -> tuple[Setting, ...]:
        """By name."""
        return tuple([SETTINGS[name] for name in sorted(SETTINGS)])
