"""Key-value pairs: what the fleet wants kept and no entity has a place for.

Keys sort by their UTF-8 bytes, so a prefix is a range. Every change has a revision (the log index),
and a writer may say which revision it expects: 0 for "not there".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines import names
from state_machines.errors import Conflict, NotFound
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

KEY_BYTES_MAX: Final = 400  #: fits a key of the state whole, tenant included, so prefixes are exact


@dataclass(frozen=True, slots=True)
class Kv:
    """A pair."""

    tenant: str
    key: str
    value: bytes


KV: Final = Table("metadata.kv", Kv, key=("tenant", "key"))


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A pair as it is read."""

    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class KvPage:
    """Pairs in key order; `next` continues after the last one, empty at the end."""

    entries: tuple[KvEntry, ...]
    next: bytes


def _check_key(tenant: str, key: str) -> None:
    names.name(tenant, "tenant", 64)
    names.name(key, "key", KEY_BYTES_MAX)


def _expect(db: Tables, tenant: str, key: str, expected: int | None) -> int:
    """The pair's revision, which is the expected one if there is one. Raises Conflict."""
    found = db.versioned(KV, tenant, key)
    revision = found[1] if found is not None else 0
    if expected is not None and revision != expected:
        raise Conflict(f"expected_revision: {expected}, the key is at {revision}")
    return revision


@command("metadata.kv.put")
class PutKv:
    """Set a value. The reply is its revision."""

    tenant: str = names.DEFAULT_TENANT
    key: str
    value: bytes
    expected_revision: int | None = None

    def validate(self) -> None:
        """Key and value within their limits."""
        _check_key(self.tenant, self.key)
        names.payload(self.value, "value")
        names.positive(self.expected_revision or 0, "expected_revision")

    def slot_key(self) -> tuple[str, ...]:
        """Pairs spread by key."""
        return (self.tenant, self.key)

    def apply(self, db: Tables, at: Stamp) -> int:
        """Conflict unless the pair is at the expected revision."""
        _expect(db, self.tenant, self.key, self.expected_revision)
        db.put(KV, Kv(self.tenant, self.key, self.value))
        return at.index


@command("metadata.kv.delete")
class DeleteKv:
    """Remove a pair."""

    tenant: str = names.DEFAULT_TENANT
    key: str
    expected_revision: int | None = None

    def validate(self) -> None:
        """The key within its limit."""
        _check_key(self.tenant, self.key)

    def slot_key(self) -> tuple[str, ...]:
        """Pairs spread by key."""
        return (self.tenant, self.key)

    def apply(self, db: Tables, at: Stamp) -> None:
        """NotFound, or Conflict unless the pair is at the expected revision."""
        if _expect(db, self.tenant, self.key, self.expected_revision) == 0:
            raise NotFound(f"key: {self.key!r} is not there")
        db.delete(KV, self.tenant, self.key)


@query("metadata.kv.get")
class GetKv:
    """Read a pair."""

    tenant: str = names.DEFAULT_TENANT
    key: str

    def validate(self) -> None:
        """The key within its limit."""
        _check_key(self.tenant, self.key)

    def slot_key(self) -> tuple[str, ...]:
        """Pairs spread by key."""
        return (self.tenant, self.key)

    def read(self, db: Tables, at: Stamp) -> KvEntry | None:
        """None when there is none."""
        found = db.versioned(KV, self.tenant, self.key)
        return None if found is None else KvEntry(found[0].key, found[0].value, found[1])


@query("metadata.kv.range")
class RangeKv:
    """Pairs whose key starts with `prefix`, in key order, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    prefix: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """The prefix within the key's limit."""
        names.name(self.tenant, "tenant", 64)
        names.name(self.prefix, "prefix", KEY_BYTES_MAX, empty=True)

    def read(self, db: Tables, at: Stamp) -> KvPage:
        """A page ends at `limit` pairs or, softly, at 1 MiB of values."""
        rows, after = db.page(
            KV, self.tenant, starts=self.prefix, after=self.after, limit=self.limit
        )
        return KvPage(tuple([KvEntry(row.key, row.value, rev) for row, rev in rows]), after)
