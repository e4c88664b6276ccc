"""Key-value pairs: what the fleet wants kept and no entity has a place for.

Keys sort by their UTF-8 bytes, so a prefix is a range. Every change gives a pair a new revision,
and a writer may say which one it expects: 0 for "not there".

The revision is the index of the log entry, unless several commands of one entry write the same key:
then each has its own, one more than the last, so that nobody can replace what he has not seen.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import columnar, names, packing
from state_machines.errors import Conflict, NotFound
from state_machines.keyvalue import Part
from state_machines.op import Stamp, command, query
from state_machines.removal import remover
from state_machines.runs import Run, Values
from state_machines.tables import Table, Tables

TENANT_BYTES_MAX: Final = 64
STEP_PAIRS: Final = 64  #: pairs read at once: a value may have 1 MiB
STEP_PAIRS_SMALL: Final = 256  #: the same, if those of the step before were small:
STEP_BYTES: Final = 256 << 10  #: so many bytes in all
KEY_BYTES_MAX: Final = 400  #: with the tenant it fits a key of the state whole, so order is exact


@dataclass(frozen=True, slots=True)
class Kv:
    """A pair."""

    tenant: str
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class KvFloor:
    """A key that was written and deleted in one entry: its next revision is above this one."""

    tenant: str
    key: str
    revision: int


FLOORS: Final = Table("metadata.kv_floor", KvFloor, key=("tenant", "key"))
KV: Final = Table("metadata.kv", Kv, key=("tenant", "key"), revision_field="revision")

_KEY, _VALUE, _REVISION = map(packing.field_names(Kv).index, ("key", "value", "revision"))

_THREE_BYTES: Final = range(1 << 8, 1 << 16)
_FIVE_BYTES: Final = range(1 << 16, 1 << 31)
"""Indexes that msgpack packs into so many bytes, highest first: packed they compare as numbers do.
No revision is ahead of its entry by as much as nine bytes take."""

_IN_FIVE: Final = 0xCE
"""What a number that was packed into five bytes begins with."""


@dataclass(frozen=True, slots=True)
class KvEntry:
    """A pair as it is read."""

    key: str
    value: bytes
    revision: int


_READ: Final = slice(_KEY, _REVISION + 1)  #: what an entry says of a row
assert packing.field_names(Kv)[_READ] == packing.field_names(KvEntry)


def _entry(stored: bytes | None) -> KvEntry | None:
    """What a stored row says; None of none."""
    if stored is None:
        return None
    return KvEntry(*packing.unpack_values(stored)[1][_READ])


@dataclass(frozen=True, slots=True)
class KvPage:
    """Pairs, by group, in each by key; `next` continues after the last one, empty at the end."""

    entries: tuple[KvEntry, ...]
    next: bytes


def _drop_old_floors(db: Tables, at: Stamp) -> None:
    """Those that the log has passed say nothing any more. Two go for each that comes."""
    for floor in [row for _, row, _ in itertools.islice(db.scan(FLOORS), 2)]:
        if floor.revision < at.index:
            db.delete(FLOORS, floor.tenant, floor.key)


@remover(KV)
def _remove(db: Tables, at: Stamp, row: Kv) -> None:
    if row.revision >= at.index:
        _drop_old_floors(db, at)
        db.put(FLOORS, KvFloor(row.tenant, row.key, row.revision))
    db.delete(KV, row.tenant, row.key)


def check_key(tenant: str, key: str) -> None:
    """Raise Invalid unless both are within their limits."""
    names.name(tenant, "tenant", TENANT_BYTES_MAX)
    names.name(key, "key", KEY_BYTES_MAX)


def _check_places(columns: Mapping[str, Sequence[str]]) -> None:
    """`check_key` of a run."""
    for tenant in dict.fromkeys(columns["tenant"]):
        names.name(tenant, "tenant", TENANT_BYTES_MAX)
    names.column(columns["key"], "key", KEY_BYTES_MAX)


def put_pair(
    db: Tables, at: Stamp, tenant: str, key: str, value: bytes, expected: int | None
) -> int:
    """Set a pair and return its revision, or raise Conflict."""
    place = (tenant, key)
    revision = _next_revision(db, at, place, db.store.get(KV.name, place), expected)
    db.settle(KV.name, place, db.pack((db.revision, (tenant, key, value, revision))))
    return revision


def put_pairs(
    db: Tables, at: Stamp, rows: Iterable[tuple[str, str, bytes, int | None]]
) -> list[int | Conflict]:
    """`put_pair` for each row (tenant, key, value, expected). The hottest row of its kind: handled
    as plain values, many at a time."""
    pack, entry, index = db.pack, db.revision, at.index
    outcomes: list[int | Conflict] = []
    left, step = iter(rows), STEP_PAIRS
    while some := tuple(itertools.islice(left, step)):
        places = tuple([(tenant, key) for tenant, key, _, _ in some])
        before = db.store.get_many(KV.name, places)
        size = sum(map(len, filter(None, before)))
        step = STEP_PAIRS if size > STEP_BYTES else STEP_PAIRS_SMALL
        anyhow = [row[3] for row in some].count(None) == len(some)
        if anyhow and len(set(places)) == len(places) and _older(db, at, places, before):
            settled = [pack((entry, (tenant, key, value, index))) for tenant, key, value, _ in some]
            db.settle_many(KV.name, places, settled, sum(map(len, settled)) - size)
            outcomes += [index] * len(some)
        else:
            outcomes += _put_each(db, at, some, places, before)
    return outcomes


def _put_each(
    db: Tables,
    at: Stamp,
    some: Sequence[tuple[str, str, bytes, int | None]],
    places: tuple[tuple[str, str], ...],
    before: Sequence[bytes | None],
) -> list[int | Conflict]:
    """The same of rows that name a key twice, expect a revision, or meet one of this entry."""
    # What these have put themselves, if they name a key twice.
    again: dict[tuple[str, str], bytes] | None = {} if len(set(places)) < len(places) else None
    done: list[tuple[Part, ...]] = []
    written: list[bytes] = []
    outcomes: list[int | Conflict] = []
    for place, (tenant, key, value, expected), stored in zip(places, some, before, strict=True):
        old = stored if again is None else again.get(place, stored)
        try:
            revision = _next_revision(db, at, place, old, expected)
        except Conflict as error:
            outcomes.append(error)
            continue
        row = db.pack((db.revision, (tenant, key, value, revision)))
        done.append(place)
        written.append(row)
        outcomes.append(revision)
        if again is not None:
            again[place] = row
    db.settle_many(KV.name, places if len(done) == len(places) else tuple(done), written)
    return outcomes


def _older(
    db: Tables, at: Stamp, places: Sequence[tuple[str, str]], before: Sequence[bytes | None]
) -> bool:
    """Whether this entry's index is a new revision for all these pairs, as it mostly is."""
    there = [row for row in before if row is not None]
    if len(there) < len(places):
        new = tuple([place for place, row in zip(places, before, strict=True) if row is None])
        if any(db.store.get_many(FLOORS.name, new)):
            return False
    unpack = packing.unpack_values
    doubtful = _doubtful(at.index, there)
    newest: int = max([unpack(row)[1][_REVISION] for row in doubtful], default=0)
    return newest < at.index


def _doubtful(index: int, rows: Sequence[bytes]) -> Sequence[bytes]:
    """Those of these rows that may have a revision of `index` or above, which all of them end with:
    to unpack a row, value and all, takes three times as long as to look at its end.

    One that ends with what is less than the packed index has a lesser revision, if that was packed
    into as many bytes or into fewer; into more, its fifth byte from behind says so.
    """
    packed = packing.pack(index)
    end = slice(-len(packed), None)
    if index in _FIVE_BYTES:
        return [row for row in rows if row[end] >= packed]
    if index in _THREE_BYTES:
        return [row for row in rows if row[end] >= packed or row[-5] == _IN_FIVE]
    return rows


def _next_revision(
    db: Tables, at: Stamp, place: tuple[str, str], old: bytes | None, expected: int | None
) -> int:
    """The revision of what is put in place of `old`, or Conflict."""
    before = packing.unpack_values(old)[1][_REVISION] if old is not None else 0
    if expected is not None:
        _expect(before, expected)
    if old is None:
        floor = db.get(FLOORS, *place)
        if floor is not None:
            before = floor.revision
            db.delete(FLOORS, *place)
    return max(at.index, before + 1)


def drop_pair(db: Tables, at: Stamp, tenant: str, key: str, expected: int | None) -> None:
    """Remove a pair, or raise NotFound or Conflict."""
    row = db.get(KV, tenant, key)
    _expect(row.revision if row is not None else 0, expected)
    if row is None:
        raise NotFound(f"key: {key!r} is not there")
    _remove(db, at, row)


def _expect(revision: int, expected: int | None) -> None:
    if expected is not None and revision != expected:
        raise Conflict(f"expected_revision: {expected}, the key is at {revision}")


@command("metadata.kv.put")
class PutKv:
    """Set a value. The reply is its revision."""

    tenant: str = names.DEFAULT_TENANT
    key: str
    value: bytes
    expected_revision: int | None = None

    def validate(self) -> None:
        """Key and value within their limits."""
        check_key(self.tenant, self.key)
        names.payload(self.value, "value")
        names.positive(self.expected_revision or 0, "expected_revision")

    def slot_key(self) -> tuple[str, ...]:
        """Pairs spread by key."""
        return (self.tenant, self.key)

    @classmethod
    def validate_run(cls, run: Run) -> None:
        """The same of a run."""
        columns = run.columns
        _check_places(columns)
        names.payload(max(columns["value"], key=len), "value")
        expected = min(filter(None, columns["expected_revision"]), default=0)
        names.positive(expected, "expected_revision")

    def apply(self, db: Tables, at: Stamp) -> int:
        """Conflict unless the pair is at the expected revision."""
        return put_pair(db, at, self.tenant, self.key, self.value, self.expected_revision)

    @classmethod
    def apply_run(cls, db: Tables, at: Stamp, run: Run) -> Sequence[int | Conflict]:
        """The same of a run."""
        return put_pairs(db, at, run.rows("tenant", "key", "value", "expected_revision"))


@command("metadata.kv.delete")
class DeleteKv:
    """Remove a pair."""

    tenant: str = names.DEFAULT_TENANT
    key: str
    expected_revision: int | None = None

    def validate(self) -> None:
        """The key within its limit."""
        check_key(self.tenant, self.key)
        names.positive(self.expected_revision or 0, "expected_revision")

    def slot_key(self) -> tuple[str, ...]:
        """Pairs spread by key."""
        return (self.tenant, self.key)

    def apply(self, db: Tables, at: Stamp) -> None:
        """NotFound, or Conflict unless the pair is at the expected revision."""
        drop_pair(db, at, self.tenant, self.key, self.expected_revision)


@query("metadata.kv.get")
class GetKv:
    """Read a pair."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    key: str

    def validate(self) -> None:
        """The key within its limit."""
        check_key(self.tenant, self.key)

    def slot_key(self) -> tuple[str, ...]:
        """Pairs spread by key."""
        return (self.tenant, self.key)

    def read(self, db: Tables, at: Stamp) -> KvEntry | None:
        """None when there is none."""
        return _entry(db.store.get(KV.name, (self.tenant, self.key)))

    @classmethod
    def validate_run(cls, run: Run) -> None:
        """The same of a run."""
        _check_places(run.columns)

    @classmethod
    def read_run(cls, db: Tables, at: Stamp, run: Run) -> Iterator[list[Values]]:
        """The same of a run."""
        places, unpack = iter(run.rows("tenant", "key")), packing.unpack_values
        while some := tuple(itertools.islice(places, STEP_PAIRS)):
            found = db.store.get_many(KV.name, some)
            yield [None if each is None else unpack(each)[1][_READ] for each in found]


@query("metadata.kv.range")
class RangeKv:
    """Pairs whose key starts with `prefix`, a page at a time: by group, in each by key."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    prefix: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """The prefix within the key's limit."""
        names.name(self.tenant, "tenant", TENANT_BYTES_MAX)
        names.name(self.prefix, "prefix", KEY_BYTES_MAX, empty=True)

    def read(self, db: Tables, at: Stamp) -> KvPage:
        """A page ends at `limit` pairs or, softly, at 1 MiB of values."""
        rows, after = db.page(
            KV, self.tenant, starts=self.prefix, after=self.after, limit=self.limit
        )
        return KvPage(columnar.alike(KvEntry, [row for row, _ in rows]), after)
