"""Repair: rows that an audit found wrong are made what the rows beside them say.

What a client has made wrong is put right by ordinary commands. What no command makes (a row whose
owner is gone, an index that misses a row, a count that is off) is repaired here, and only this way:

    group.repair.row     one row is looked at again, in apply: it goes if nothing owns it, and an
                         index row is there if and only if what it indexes says so
    group.repair.count   one count is moved by what it was off

A row's repair decides by the rows of its own group and does a bounded amount of work, so it needs
no condition: on a row that is right it changes nothing, however often it is sent.

A count has as many rows behind it as there are, so it is not counted here. But every command moves
the count and its rows alike: what it was off at one index it is off at all later ones, until
somebody repairs it. So an audit at index `seen` sends the difference, and `group.repaired`
remembers when a count was repaired last: who has `seen` less than that is fenced. Of two audits of
one state, or of one that is sent twice, one repairs. Whoever may repair a count may have counted
wrong: commands take none below 0, and what is to go with its last row is gone when there is no row.
A count that would have fallen below 0 is off by less from then on, so that is remembered as a
repair is (`clamp`); of rows that are more than their counts, the revision tells an audit as much.

    @repairs(SUBSCRIPTIONS)
    def _repair(db: Tables, at: Stamp, key: Key) -> bool: ...

    counted(TALLIES, "sessions", "connected")
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from state_machines import names, row_key
from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.keyvalue import Part
from state_machines.op import Stamp, command
from state_machines.tables import TABLES, Table, Tables

Key = tuple[Part, ...]
Repairer = Callable[[Tables, Stamp, Any], bool]

MORE_MAX: Final = 10**12  #: by which one command may move a count


@dataclass(frozen=True, slots=True)
class Counted:
    """The fields of a table's rows that count others.

    A row of `made` stands for nothing but its counts: it is made when there is something to count.
    One that is not `kept` goes when there is nothing.
    """

    fields: tuple[str, ...]
    made: bool
    kept: bool


@dataclass(frozen=True, slots=True)
class Repaired:
    """At which revision a count of a row was repaired last, or would have fallen below 0."""

    table: str
    key: bytes
    field: str
    revision: int


REPAIRED: Final = Table("group.repaired", Repaired, key=("table", "key", "field"))

REPAIRERS: Final[dict[str, Repairer]] = {}
COUNTED: Final[dict[str, Counted]] = {}


def repairs(table: Table[Any]) -> Callable[[Repairer], Repairer]:
    """Register how a row of this table is put right; the function says whether it changed any."""

    def register(function: Repairer) -> Repairer:
        assert table.name not in REPAIRERS, f"repair declared twice: {table.name}"
        REPAIRERS[table.name] = function
        return function

    return register


def counted(table: Table[Any], *fields: str, made: bool = True, kept: bool = False) -> None:
    """Register the fields of a table that every command moves with the rows that they count."""
    assert table.name not in COUNTED, f"counts declared twice: {table.name}"
    COUNTED[table.name] = Counted(fields, made, kept)


def clamp(db: Tables, table: Table[Any], key: Key, field: str, count: int) -> int:
    """What a command makes of a count that its rows would bring to `count`: none below 0."""
    if count >= 0:
        return count
    _remember(db, table.name, row_key.pack(key), field)
    return 0


def _remember(db: Tables, table: str, named: bytes, field: str) -> None:
    """What the count is off is not what it was before this entry."""
    db.put(REPAIRED, Repaired(table, named, field, db.revision))


def let(db: Tables, table: Table[Any], row: Any, wanted: bool) -> bool:
    """Have a row of an index there, or not. Whether that was a change."""
    key = table.key_of(row)
    there = db.get(table, *key) is not None
    if there and not wanted:
        db.delete(table, *key)
    elif wanted and not there:
        db.put(table, row)
    return there != wanted


def _place(table: Table[Any], key: Key) -> list[tuple[str, ...] | None]:
    # Rows that every group has of its own have no slot: who repairs them names the group.
    return [table.slot_key(key)] if table.kind else []


@command("group.repair.row")
class RepairRow:
    """Look at a row again, and put it right. The reply says whether anything changed.

    The key is msgpack, as that of a leased row is.
    """

    table: str
    key: bytes

    def validate(self) -> None:
        """A table whose rows can be repaired, and a key of it."""
        table = row_key.table_of(self.table, "table")
        if table.name not in REPAIRERS:
            raise Invalid(f"table: rows of {table.name} are not repaired")
        row_key.unpack(table, self.key, "key")

    def home_kind(self) -> str:
        """That of the row."""
        return TABLES[self.table].kind

    def places(self) -> list[tuple[str, ...] | None]:
        """That of the row."""
        return _place(TABLES[self.table], self._key())

    def apply(self, db: Tables, at: Stamp) -> bool:
        """What is right stays as it is."""
        return REPAIRERS[self.table](db, at, self._key())

    def _key(self) -> Key:
        return row_key.unpack(TABLES[self.table], self.key, "key")


@command("group.repair.count")
class RepairCount:
    """Move a count by what it was off at the index `seen`. The reply is what it is now."""

    table: str
    key: bytes
    field: str
    more: int
    seen: int

    def validate(self) -> None:
        """A field that counts, and numbers within their limits."""
        table = row_key.table_of(self.table, "table")
        known = COUNTED.get(table.name)
        if known is None:
            raise Invalid(f"table: rows of {table.name} count nothing")
        row_key.unpack(table, self.key, "key")
        if self.field not in known.fields:
            raise Invalid(f"field: one of {', '.join(known.fields)} is wanted")
        if not -MORE_MAX <= self.more <= MORE_MAX or self.more == 0:
            raise Invalid(f"more: {self.more}, the range is {-MORE_MAX} to {MORE_MAX} without 0")
        names.positive(self.seen, "seen")

    def home_kind(self) -> str:
        """That of the row."""
        return TABLES[self.table].kind

    def places(self) -> list[tuple[str, ...] | None]:
        """That of the row."""
        return _place(TABLES[self.table], self._key())

    def apply(self, db: Tables, at: Stamp) -> int:
        """Fenced if it was repaired after `seen`, or was so low that it would have fallen below 0;
        Conflict if it would be negative, or if `seen` is to come; NotFound without a row that is
        not for counting alone."""
        table, known, key = TABLES[self.table], COUNTED[self.table], self._key()
        named = row_key.pack(key)
        last = db.get(REPAIRED, self.table, named, self.field)
        if last is not None and self.seen < last.revision:
            raise Fenced(f"seen: {self.seen}, what it is off changed at {last.revision}")
        if self.seen >= at.index:
            raise Conflict(f"seen: {self.seen} is to come, this is {at.index}")
        row: Any = db.get(table, *key)
        if row is None:
            if not known.made:
                raise NotFound("key: there is no such row")
            fields = dict(zip(table.key, key, strict=True))
            row = table.row(**fields, **dict.fromkeys(known.fields, 0))
        count: int = getattr(row, self.field) + self.more
        if count < 0:
            raise Conflict(f"more: {self.more}, the count would be {count}")
        row = replace(row, **{self.field: count})
        if known.made and not known.kept and not any(getattr(row, each) for each in known.fields):
            db.delete(table, *key)
        else:
            db.put(table, row)
        _remember(db, self.table, named, self.field)
        db.memo.clear()  # the count may be one that is read once an entry
        return count

    def _key(self) -> Key:
        return row_key.unpack(TABLES[self.table], self.key, "key")
