"""Restoring: rows of a backup become rows of a live group again, by ordinary commands.

    @restorer(TOPICS, check=_check, plain=lambda row: replace(row, topic_id=0, revision=0))
    def _restore(db: Tables, at: Stamp, before: Topic | None, row: Topic) -> None: ...

Tables are of three sorts, and each says of which. *Truth* is what users and brokers have said: it
has a restorer. What is *made* from truth (an index, a timer, a tally) is never copied: the restorer
makes it anew, so it fits the rows that are there. And what says how things stand at this moment
(who lives, who holds what, which slots a group owns) would be a lie if it came back. The last two
are `left_out`, with the reason.

A row from a backup is from outside. Its entity's limits are asked before it is proposed and again
where it is applied. `plain` is what of a row a backup can say: a revision, an epoch, who leads and
how many children there are is the live group's own, and such fields are blanked in it. Two rows
with the same `plain` are equal: nothing is written and no watcher hears of it, so a restore may be
done again. A number that only grows (`floors`) is equal when it is not lower, and is raised to the
higher of both. Every change has the revision of its entry, like any other.

Restorers have a rank: a session before its subscriptions. Rows go in the opposite order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Generic, TypeVar

from state_machines import names, packing, quota, removal, row_key
from state_machines.batch import Batch, Outcome, Revision, each
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.keyvalue import Part
from state_machines.op import Stamp
from state_machines.tables import TABLES, Table, Tables

R = TypeVar("R")

ROWS_MAX: Final = 1_000  #: of one command
COUNT_MAX: Final = 1 << 62  #: of a number that grows by one: it never reaches the end of 64 bits
NOT_KNOWN_MS: Final = -1  #: the least that a time may be

GRACE_S: Final = 60
"""What a restored session or will has at least before it ends: time to connect again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorer(Generic[R]):
    """How rows of one table come back, and how those go that a backup does not have."""

    table: Table[R]
    rank: int
    check: Callable[[R], None]
    plain: Callable[[R], R]
    put: Callable[[Tables, Stamp, R | None, R], None]
    remove: Callable[[Tables, Stamp, R], None]
    floors: tuple[str, ...]
    ends_ms: Callable[[R], int]
    tenant: Callable[[R], str]
    into: Callable[[R, str], R]
    topic: str  #: its field that names a topic, empty for none
    consumers: str  #: its field that names a consumer group
    local: bool  #: every Raft group has such a row of its own
    stays: bool  #: its rows are never taken away

    def comparable(self, row: R) -> R:
        """What two rows are equal in, but for `floors`."""
        row = self.plain(row)
        blank: dict[str, Any] = dict.fromkeys(self.floors, 0)
        return dataclasses.replace(row, **blank) if blank else row  # type: ignore[type-var]

    def floor(self, row: R) -> int:
        """The number that only grows; 0 for a row without one."""
        return int(getattr(row, self.floors[0])) if self.floors else 0

    def equal(self, before: R, row: R) -> bool:
        """Whether `before` is as a restore of `row` would leave it."""
        return self.comparable(before) == self.comparable(row) and self.floor(before) >= self.floor(
            row
        )


RESTORERS: Final[dict[str, Restorer[Any]]] = {}
LEFT_OUT: Final[dict[str, str]] = {}


def left_out(why: str, *tables: Table[Any]) -> None:
    """Rows of these tables are not restored."""
    for table in tables:
        assert table.name not in LEFT_OUT, f"left out twice: {table.name}"
        LEFT_OUT[table.name] = why


def _no_tenant(row: Any) -> str:
    return ""


def _same_tenant(row: Any, tenant: str) -> Any:
    return row


def _own_tenant(row: Any) -> str:
    return str(row.tenant)


def _into_tenant(row: Any, tenant: str) -> Any:
    return dataclasses.replace(row, tenant=tenant)


Put = Callable[[Tables, Stamp, R | None, R], None]


def restorer(
    table: Table[R],
    *,
    check: Callable[[R], None],
    rank: int = 0,
    plain: Callable[[R], R] | None = None,
    floors: tuple[str, ...] = (),
    remove: Callable[[Tables, Stamp, R], None] | None = None,
    ends_ms: Callable[[R], int] = lambda _: 0,
    tenant: Callable[[R], str] | None = None,
    into: Callable[[R, str], R] | None = None,
    topic: str = "",
    consumers: str = "",
    local: bool = False,
    stays: bool = False,
) -> Callable[[Put[R]], Put[R]]:
    """Register how a row of this table is put: `before` is the one that is there, if any.

    What is decorated may refuse the row by raising `Rejected`. `check` raises Invalid for a row
    beyond its limits; `remove` takes one away that the backup does not have, by default as
    `removal.remove`; `ends_ms` is when a row is over by itself, 0 for never.
    """
    kind: Any = table.row
    owned = "tenant" in packing.field_names(kind)
    assert len(floors) < 2, "one number grows, the others follow from it"

    def by_remover(db: Tables, at: Stamp, row: R) -> None:
        removal.remove(db, at, table, table.key_of(row))

    def register(put: Put[R]) -> Put[R]:
        assert table.name not in RESTORERS, f"restorer declared twice: {table.name}"
        RESTORERS[table.name] = Restorer(
            table=table,
            rank=rank,
            check=check,
            plain=plain or (lambda row: row),
            put=put,
            remove=remove or by_remover,
            floors=floors,
            ends_ms=ends_ms,
            tenant=tenant or (_own_tenant if owned else _no_tenant),
            into=into or (_into_tenant if owned else _same_tenant),
            topic=topic,
            consumers=consumers,
            local=local,
            stays=stays,
        )
        return put

    return register


def in_order() -> list[Restorer[Any]]:
    """All restorers, parents first."""
    return sorted(RESTORERS.values(), key=lambda each: (each.rank, each.table.name))


def check_row(known: Restorer[Any], row: Any) -> None:
    """Raise Invalid, naming table and field, unless a row may be put."""
    kind: Any = type(row)
    try:
        for name in packing.field_names(kind):
            value = getattr(row, name)
            if name.endswith("_ms") and type(value) is int and value < NOT_KNOWN_MS:
                raise Invalid(f"{name}: {value} is no time")
        known.check(row)
        row_key.unpack(known.table, row_key.pack(known.table.key_of(row)), "key")
    except Invalid as error:
        raise Invalid(f"{known.table.name}: {error.detail}") from None


def count(value: int, field: str, least: int = 0, most: int = COUNT_MAX) -> None:
    """Raise Invalid for a number out of range."""
    if not least <= value <= most:
        raise Invalid(f"{field}: {value}, the range is {least} to {most}")


# -- the commands -------------------------------------------------------------------------------


def _known(table: str, kind: str) -> Restorer[Any]:
    known = RESTORERS.get(table)
    if known is None or known.table.kind != kind:
        why = LEFT_OUT.get(table, f"it is none of the {len(RESTORERS)} that are, of {kind} groups")
        raise Invalid(f"table: {table[:80]!r} is not restored: {why}")
    return known


@lru_cache(maxsize=1)
def _decoded(table: str, rows: tuple[bytes, ...]) -> tuple[Any, ...]:
    """What the rows of a command say: kept until the next one, for it is asked when the command is
    checked, when it is sent to its groups and when it is applied. Raises Invalid."""
    kind = TABLES[table].row
    return tuple([packing.unpack(kind, row, f"rows of {table}") for row in rows])


class Restore(Batch):
    """Put rows of a table. What the kinds' commands share; each declares the fields below.

    A row is its fields as msgpack (`packing.pack`). One that is as it should be is left alone: its
    outcome is OK at revision 0.
    """

    __slots__ = ()

    many: ClassVar[str] = "rows"
    of_kind: ClassVar[str]
    table: str
    rows: tuple[bytes, ...]
    replace: bool

    def validate(self) -> None:
        """Rows of a table that is restored, each within its entity's limits."""
        known = _known(self.table, self.of_kind)
        count(len(self.rows), "rows", 1, ROWS_MAX)
        for row in _decoded(self.table, self.rows):
            check_row(known, row)

    def slot_key_of(self, item: Any) -> tuple[str, ...] | None:
        """That of a row, as its table says."""
        table = TABLES[self.table]
        return table.slot_key(table.key_of(item))

    def slot_keys(self) -> list[tuple[str, ...]]:
        """One for each row, or none for cluster-wide ones."""
        keys = map(self.slot_key_of, _decoded(self.table, self.rows))
        return [key for key in keys if key is not None]

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Without `replace` a row that is there stays, whatever it says.

        NotFound for one whose parent is not there, or whose tenant is being deleted; Conflict for
        one that cannot be put while what is there is in the way; QuotaExceeded beyond a quota.
        """
        known = RESTORERS[self.table]

        def put(row: Any) -> Revision:
            tenant = known.tenant(row)
            limits = quota.of(db, tenant) if tenant else None
            if limits is not None and limits.closed:
                raise NotFound(f"tenant: {tenant!r} is being deleted")
            before = db.get(known.table, *known.table.key_of(row))
            if before is not None and (not self.replace or known.equal(before, row)):
                return Revision(0)
            known.put(db, at, before, row)
            return Revision(db.revision)

        return each(db, _decoded(self.table, self.rows), put)


class Remove(Batch):
    """Take rows away that a backup does not have. Each declares the fields below.

    A key is its parts as msgpack (`row_key.pack`). What is gone already is OK at revision 0.
    """

    __slots__ = ()

    many: ClassVar[str] = "keys"
    of_kind: ClassVar[str]
    table: str
    keys: tuple[bytes, ...]

    def validate(self) -> None:
        """Keys of a table that is restored."""
        known = _known(self.table, self.of_kind)
        count(len(self.keys), "keys", 1, ROWS_MAX)
        for place, key in enumerate(self.keys):
            row_key.unpack(known.table, key, f"keys[{place}]")

    def _parts(self, key: bytes) -> tuple[Part, ...]:
        return row_key.unpack(TABLES[self.table], key, "keys")

    def slot_key_of(self, item: bytes) -> tuple[str, ...] | None:
        """That of the row, as its table says."""
        return TABLES[self.table].slot_key(self._parts(item))

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict for a row that others hang on.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        known = RESTORERS[self.table]

        def take(item: bytes) -> Revision:
            row = db.get(known.table, *self._parts(item))
            if row is None:
                return Revision(0)
            if known.stays:
                raise Conflict("keys: what was given once is never forgotten")
            known.remove(db, at, row)
            return Revision(db.revision)

        return each(db, self.keys, take, large="keys")


def check_word(value: str, field: str, choices: tuple[str, ...]) -> None:
    """One of a few words, or Invalid."""
    names.one_of(value, field, choices)
