"""Typed rows over a key-value port, and the journal that makes one command all or nothing.

    SESSIONS = Table("mqtt.session", Session, key=("tenant", "client_id"))

    db.get(SESSIONS, "default", "c1")      # Session | None
    db.put(SESSIONS, session)              # under the key that its own fields say
    db.scan(SESSIONS, "default")           # in key order, under a prefix of the key

`Tables` is what one entry's commands see. Writes go straight into the store, so a scan sees them;
the journal remembers what was there before, and `roll_back` puts it back when a command is refused.
Every row carries the revision (log index) at which it last changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from typing import Any, Final, Generic, TypeVar

from state_machines import columnar, packing
from state_machines.changes import Changes
from state_machines.errors import Rejected
from state_machines.keyvalue import KeyValue, Part
from state_machines.layout import Layout
from state_machines.limits import PAGE_BYTES_MAX
from state_machines.op import EVERY_KIND, check_limit

R = TypeVar("R")

TABLES: Final[dict[str, Table[Any]]] = {}

UNIQUE_BITS: Final = 20
"""Of a number from `Tables.unique`: its place within the entry. An entry has fewer items."""


@dataclass(frozen=True)
class Table(Generic[R]):
    """A named table of rows of one class; `key` names the fields that are its key, in order."""

    name: str
    row: type[R]
    key: tuple[str, ...]
    slot_fields: tuple[str, ...] | None = None  #: of the slot key; None: see `slot_key`
    slot_rule: Callable[..., tuple[str, ...]] | None = None  #: of the key's parts; before all else
    revision_field: str = ""  #: of rows that carry a revision of their own: what clients see
    identity_field: str = ""  #: a number that no other row at this key has ever had (an epoch)
    layout: Layout | None = None  #: of its rows, if they are not msgpack

    def __post_init__(self) -> None:
        assert self.name not in TABLES, f"table declared twice: {self.name}"
        TABLES[self.name] = self

    def key_of(self, row: R) -> tuple[Part, ...]:
        """The key that the row's fields say."""
        return tuple([getattr(row, name) for name in self.key])

    def decode(self, value: bytes) -> tuple[R, int]:
        """A stored row and its revision."""
        revision, values = self.values_of(value)
        return packing.row_of(self.row, values), revision

    def decode_many(self, values: Sequence[bytes]) -> list[tuple[R, int]]:
        """`decode` of each."""
        if len(values) >= columnar.ROWS_MIN:
            kind: Any = self.row
            revisions, columns = self._columns_of(values)
            if len(columns) == len(columnar.fields_of(kind)):
                return list(zip(columnar.rows(kind, columns), revisions, strict=True))
        return [self.decode(each) for each in values]

    def _columns_of(self, values: Sequence[bytes]) -> tuple[Sequence[int], Sequence[Any]]:
        """Revisions and columns of stored rows; fewer columns than fields if some are of another
        form, or older than a field."""
        if self.layout is not None:
            return self.layout.unpack_columns(values)
        revisions, rows = packing.unpack_columns(values)
        return revisions, packing.columns_of(rows)

    def values_of(self, value: bytes) -> tuple[int, list[Any]]:
        """Revision and plain values of a stored row, in the order of its fields."""
        return packing.unpack_values(value) if self.layout is None else self.layout.unpack(value)

    def encode(self, row: R, revision: int, pack: Callable[[Any], bytes]) -> bytes:
        """What is stored of a row. `pack`: `packing.row_packer`."""
        values = packing.row_values(row)
        if self.layout is None:
            return pack((revision, values))
        return self.layout.pack(pack, revision, values)

    @property
    def kind(self) -> str:
        """The kind of group that has it, empty for every kind."""
        first = self.name.partition(".")[0]
        return "" if first in EVERY_KIND else first

    def slot_key(self, key: tuple[Part, ...]) -> tuple[str, ...] | None:
        """What the group of the row at a key is chosen by; None for a cluster-wide row.

        A table that says it neither by `slot_fields` nor by `slot_rule` has the tenant and what
        follows it. Empty `slot_fields` are for rows that every group has of its own.
        """
        if self.slot_rule is not None:
            return self.slot_rule(*key)
        fields = self.slot_fields
        if fields is None:
            fields = self.key[:2] if self.key[0] == "tenant" and len(self.key) > 1 else ()
        parts = dict(zip(self.key, key, strict=True))
        return tuple([str(parts[name]) for name in fields]) or None

    @property
    def has_slots(self) -> bool:
        """Whether its rows are spread over the groups of their kind."""
        return bool(self.kind) and self.slot_key(self.key) is not None

    @property
    def of_each_group(self) -> bool:
        """Whether each group has rows of its own in it, at keys that others may have too. Those of
        the kind metadata that have no slot are the cluster's: they are in `metadata-0`."""
        return not (self.has_slots or self.kind == "metadata")

    def revision_of(self, value: bytes) -> int:
        """The revision of a stored row, as a client sees it."""
        revision, values = self.values_of(value)
        if self.revision_field:
            revision = values[self._place(self.revision_field)]
        return revision

    def identity_of(self, value: bytes) -> int:
        """The number by which a stored row differs from others at its key; 0 if it has none."""
        if not self.identity_field:
            return 0
        identity: int = self.values_of(value)[1][self._place(self.identity_field)]
        return identity

    def _place(self, field: str) -> int:
        row: Any = self.row
        return packing.field_names(row).index(field)


class Tables:
    """The rows of a group, as the commands of the entry at `revision` see and change them."""

    def __init__(self, store: KeyValue, revision: int) -> None:
        self.store = store
        self.revision = revision
        self.pack = packing.row_packer()
        #: what the commands of this entry would read again and again; who changes it forgets it
        self.memo: dict[str, Any] = {}
        self._given = 0
        #: bytes of what was there before, of the rows that the parts of this command have changed
        self.taken = 0
        #: bytes of the rows that the commands of this entry have `put`
        self.grown = 0
        #: how many rows those have changed that are done
        self.changed = 0
        self._parts = 0  # how deep in parts of a command that can be taken back alone
        self._journal: dict[tuple[str, tuple[Part, ...]], bytes | None] = {}
        self._written = Changes()

    def get(self, table: Table[R], *key: Part) -> R | None:
        """The row at a key."""
        value = self.store.get(table.name, key)
        return None if value is None else table.decode(value)[0]

    def versioned(self, table: Table[R], *key: Part) -> tuple[R, int] | None:
        """The row at a key and the revision at which it last changed."""
        value = self.store.get(table.name, key)
        return None if value is None else table.decode(value)

    def put(self, table: Table[R], row: R) -> None:
        """Set a row. It now has this entry's revision."""
        value = table.encode(row, self.revision, self.pack)
        self.grown += len(value)
        self.set(table.name, table.key_of(row), value)

    def delete(self, table: Table[R], *key: Part) -> bool:
        """Remove a row; whether there was one."""
        old = self.store.get(table.name, key)
        if old is not None:
            self.swap(table.name, key, old, None)
        return old is not None

    def unique(self) -> int:
        """A number that no other call gives in this group, and larger than all before.

        It follows from the log alone: the index, and how many were given in this entry before.
        """
        return self.unique_many(1)[0]

    def unique_many(self, count: int) -> range:
        """What `unique` gives if it is called so many times, one after the other."""
        first = (self.revision << UNIQUE_BITS) | (self._given + 1)
        self._given += count
        assert self._given < 1 << UNIQUE_BITS, "an entry has fewer items than that"
        return range(first, first + count)

    def scan(
        self,
        table: Table[R],
        *prefix: Part,
        starts: str = "",
        after: bytes = b"",
        upto: int | None = None,
    ) -> Iterator[tuple[bytes, R, int]]:
        """Token, row and revision of the rows under a prefix (see `KeyValue.scan`).

        Collect what you need before you write to the table.
        """
        found = self.store.scan(table.name, prefix, starts=starts, after=after, upto=upto)
        for token, value in found:
            row, revision = table.decode(value)
            yield token, row, revision

    def has_any(self, table: Table[Any], *prefix: Part) -> bool:
        """Whether there is a row under a prefix."""
        return next(iter(self.store.scan(table.name, prefix)), None) is not None

    def page(
        self,
        table: Table[R],
        *prefix: Part,
        starts: str = "",
        after: bytes = b"",
        limit: int,
        bytes_max: int = PAGE_BYTES_MAX,
    ) -> tuple[list[tuple[R, int]], bytes]:
        """Up to `limit` rows with their revisions, and the token to go on after (empty: the end).

        `starts` is asked of the last field of the key. A page also ends softly at `bytes_max`.
        Raises Invalid for a limit out of range.
        """
        check_limit(limit)
        rows: list[tuple[R, int]] = []
        came: list[bytes] = []  # since those
        size, last = 0, b""
        for token, value in self.store.scan(table.name, prefix, starts=starts, after=after):
            if len(rows) + len(came) >= limit or size + len(value) > bytes_max:
                size -= _add(rows, table, came, starts)
                if len(rows) >= limit or (rows and size + len(value) > bytes_max):
                    return rows, last
            came.append(value)
            size += len(value)
            last = token
        _add(rows, table, came, starts)
        return rows, b""

    # Raw values, for what is not a row (`clients.py`) and for the hottest rows.

    def set(self, table: str, key: tuple[Part, ...], value: bytes | None) -> None:
        """Set or (None) delete a raw value, journaled."""
        place = (table, key)
        if place not in self._journal:
            self._journal[place] = self.store.get(table, key)
        self._written.add(table, key, value)
        if value is None:
            self.store.delete(table, key)
        else:
            self.store.put(table, key, value)

    def swap(self, table: str, key: tuple[Part, ...], old: bytes | None, new: bytes | None) -> None:
        """`set`, by who has just read `old` there."""
        place = (table, key)
        self._journal.setdefault(place, old)
        self._written.add(table, key, new)
        if new is None:
            self.store.delete(table, key)
        else:
            self.store.put(table, key, new)

    def settle(self, table: str, key: tuple[Part, ...], value: bytes) -> None:
        """Set a raw value for good, by who cannot be refused any more.

        Within a part somebody else may yet refuse: there it is journaled.
        """
        if self._parts:
            self.set(table, key, value)
            return
        self._written.add(table, key, value)
        self.store.put(table, key, value)

    def settle_many(
        self,
        table: str,
        keys: tuple[tuple[Part, ...], ...],
        values: Sequence[bytes],
        grown: int | None = None,
    ) -> None:
        """`settle` for each key, in order. `grown`: see `KeyValue.put_many`."""
        if self._parts:
            for key, value in zip(keys, values, strict=True):
                self.set(table, key, value)
            return
        self._written.add_many(table, keys, values)
        self.store.put_many(table, keys, values, grown)

    def begin(self) -> None:
        """A command begins: what it writes can be taken back until the next one begins."""
        self._journal.clear()
        self._written = Changes()
        self.taken = 0

    def written(self) -> Changes:
        """All that the command has written so far, in order."""
        return self._written

    def take_written(self) -> Changes:
        """All that the command has written, now that it is done."""
        written, self._written = self._written, Changes()
        self.changed += len(written)
        return written

    def roll_back(self) -> None:
        """The command was refused: everything is as before it began."""
        self._undo()
        self._journal.clear()
        self._written = Changes()

    @contextmanager
    def part(self) -> Iterator[None]:
        """A part of a command: what is `Rejected` within is taken back, and only that. May nest."""
        before, written, taken = self._journal, len(self._written), self.taken
        self._journal = {}
        self._parts += 1
        try:
            yield
        except Rejected:
            self._undo()
            self._written.cut(written)
            self._journal = {}
            raise
        finally:
            self._parts -= 1
            size = 0
            for place, old in self._journal.items():
                if before.setdefault(place, old) is old and old is not None:
                    size += len(old)
            self.taken = taken + size  # what parts within have taken is in the journal by now
            self._journal = before

    def _undo(self) -> None:
        self.memo.clear()
        for (table, key), value in self._journal.items():
            if value is None:
                self.store.delete(table, key)
            else:
                self.store.put(table, key, value)


def _add(rows: list[tuple[R, int]], table: Table[R], came: list[bytes], starts: str) -> int:
    """Add to the rows of a page what came, which is none then. How many bytes of it do not count: a
    name longer than a key is cut there, so that its key may only look as if it began so."""
    found, more = table.decode_many(came), 0
    if starts:
        name = table.key[-1]
        fits = [getattr(row, name).startswith(starts) for row, _ in found]
        if not all(fits):
            more = sum(map(len, came)) - sum(map(len, compress(came, fits)))
            found = list(compress(found, fits))
    rows += found
    came.clear()
    return more
