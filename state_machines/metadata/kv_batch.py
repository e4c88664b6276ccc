"""Many pairs at once (`kv.py`): one entry, and an outcome for each.

Two items of one key are two changes, in the order of the items, each with a revision of its own. So
an item that expects a revision is a Conflict behind another that has written its key.
"""

from __future__ import annotations

from dataclasses import dataclass

from state_machines import names
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.metadata.kv import check_key, drop_pair, put_pair
from state_machines.op import Stamp, command
from state_machines.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class KvItem:
    """A pair to put. `expected_revision` is 0 for "not there", None for any."""

    key: str
    value: bytes
    expected_revision: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvKey:
    """A pair to remove, at a revision or (None) at any."""

    key: str
    expected_revision: int | None = None


class _Pairs(Batch):
    """Pairs spread by key."""

    __slots__ = ()
    tenant: str

    def slot_key_of(self, item: KvItem | KvKey) -> tuple[str, ...]:
        """Tenant and key, as of one pair."""
        return (self.tenant, item.key)


@command("metadata.kv.put_all")
class PutAllKv(_Pairs):
    """Set values, over about `BYTES_CHANGED_MAX` of others. The revision in an outcome is the
    pair's own."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[KvItem, ...]

    def validate(self) -> None:
        """Keys and values within their limits."""
        names.items(self.items, "items")
        for item in self.items:
            check_key(self.tenant, item.key)
            names.payload(item.value, "value")
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict for a pair that is not at the expected revision.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def put(item: KvItem) -> Revision:
            return Revision(
                put_pair(db, at, self.tenant, item.key, item.value, item.expected_revision)
            )

        return each(db, self.items, put, changed="items")


@command("metadata.kv.delete_all")
class DeleteAllKv(_Pairs):
    """Remove pairs: of about `BYTES_TAKEN_MAX` in one command."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[KvKey, ...]

    def validate(self) -> None:
        """Keys within their limits."""
        names.items(self.items, "items")
        for item in self.items:
            check_key(self.tenant, item.key)
            names.positive(item.expected_revision or 0, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound, or Conflict for a pair that is not at the expected revision.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def drop(item: KvKey) -> None:
            drop_pair(db, at, self.tenant, item.key, item.expected_revision)

        return each(db, self.items, drop, large="items")
