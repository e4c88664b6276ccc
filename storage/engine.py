"""The engine port: one environment of named tables, each a sorted map from bytes to bytes.

    engine.write([("entries", key, value), ("meta", key, None)])   # one synced transaction
    engine.get("entries", key)
    with engine.view() as view: view.scan("entries")               # one moment, any thread

Two engines pass one contract suite: `memory.MemoryEngine` and `disk.DiskEngine` (LMDB). A write is
atomic, and durable when it returns. A table exists once something was written to it; reading one
that does not exist finds nothing. Writes and direct reads belong to one thread, the storage thread;
a view may be read and closed on another one. What is large is written on a second thread while the
storage thread reads: `make_room`, then `write_slices` there, then `renew`.

LMDB has no checksums: a bit that flips on the disk is read back as data. So every value that
`log.py` and `state.py` store is sealed here first with a CRC-32 over table, key and value, and
unsealed at every read. A value that turns up under another key is found out too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from operator import add, itemgetter
from pathlib import Path
from struct import Struct
from types import TracebackType
from typing import Protocol, Self

from isal.isal_zlib import crc32

from storage.errors import BadKey, CorruptRecord

Change = tuple[str, bytes, bytes | None]
"""(table, key, value); the value None deletes. Of two changes of one key the later one holds."""

ENGINE_KEY_BYTES = 511
"""What LMDB 0.9 takes. The layout stays below it (`keys.KEY_BYTES`)."""

ENGINE_VALUE_BYTES = 64 << 20
"""The largest value an engine takes: far above every limit of a row, an entry or a batch."""

CRC_BYTES = 4
"""What `seal` puts in front of a value."""

_CRC = Struct(">I")
_CHECKSUM = itemgetter(slice(CRC_BYTES))
_VALUE = itemgetter(slice(CRC_BYTES, None))


@dataclass(frozen=True, slots=True)
class EngineStats:
    """How full an environment is. `used_bytes` is the high-water mark of the file's pages."""

    path: str
    map_bytes: int
    limit_bytes: int
    used_bytes: int
    records: int
    views: int


@dataclass(frozen=True, slots=True)
class Slice:
    """Changes of one table: `keys` in order with their `values`, and the keys that are `gone`.

    Two lists and not one of pairs: pairs would be objects for the garbage collector to look at.
    """

    table: str
    keys: list[bytes]
    values: list[bytes]
    gone: list[bytes]
    #: bytes of all keys and values
    size: int

    @property
    def rows(self) -> int:
        """How many rows change."""
        return len(self.keys) + len(self.gone)

    def changes(self) -> Iterator[Change]:
        """The same one by one."""
        for key in self.gone:
            yield self.table, key, None
        for key, value in zip(self.keys, self.values, strict=True):
            yield self.table, key, value


class Reader(Protocol):
    """What can be read: by the engine as it is now, by a view as it was."""

    def get(self, table: str, key: bytes) -> bytes | None:
        """The value at `key`, or None."""
        ...

    def scan(
        self, table: str, start: bytes = b"", end: bytes | None = None, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Key and value of everything in [start, end), in key order or against it, lazily."""
        ...


class View(Reader, Protocol):
    """An environment at one moment. Close it soon: while it is open no old page is used again.

    Every method raises `ViewLost` once the view is closed, here or by the engine.
    """

    def tables(self) -> tuple[str, ...]:
        """The tables there were, sorted."""
        ...

    def records(self, table: str) -> int:
        """How many rows the table says it has."""
        ...

    def count_of(self, table: str, keys: Sequence[bytes]) -> int:
        """How many of these keys are found, each looked for by itself."""
        ...

    @property
    def size(self) -> int:
        """Bytes that a copy would have; 0 of a view that cannot be copied."""
        ...

    def copy_to(self, path: Path, pace: Callable[[int], None]) -> None:
        """Write the environment as it is at this moment to a new file, on any thread. `pace` is
        told how many bytes there are by now, and may take its time or raise. What it leaves when it
        raises is the caller's to remove. Raises `OSError` or `ViewLost`."""
        ...

    def close(self) -> None:
        """Let go of the moment. Closing twice is fine."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Store(Reader, Protocol):
    """What can be read and written: all that the log needs."""

    @property
    def path(self) -> str:
        """Where it lies, for messages."""
        ...

    def write(self, changes: Iterable[Change]) -> None:
        """All of `changes`, or, if it raises, none of them, in one transaction that is durable
        on return. Raises `MapFull` (nothing happened) or `StorageFailed` (exit)."""
        ...

    def close(self) -> None:
        """Close it; views that are still open are lost. Closing twice is fine."""
        ...


class Engine(Store, Protocol):
    """One environment."""

    def find(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """What `get` finds at these keys, of those that are there."""
        ...

    def make_room(self, rows: int, size: int) -> None:
        """Before `write_slices`, on the storage thread: see that so many rows of so many bytes fit.
        Open views may be lost, as by a `write`."""
        ...

    def write_slices(self, slices: Sequence[Slice]) -> None:
        """What `write` does, on any one thread while the storage thread reads. Until `renew` the
        storage thread may see it or not. Raises `MapFull` also where `write` would make room: that
        is for the storage thread to do."""
        ...

    def renew(self) -> None:
        """After `write_slices`, on the storage thread: it reads what was written from here on."""
        ...

    def leaves(self, table: str) -> int:
        """How many pages the rows of a table fill, each of which is copied if one row of it
        changes; 0 where there is no table, or where rows need no pages."""
        ...

    def tables(self) -> tuple[str, ...]:
        """The tables there are, sorted."""
        ...

    def view(self, *, to_copy: bool = False) -> View:
        """The environment as it is at this moment. `to_copy`: so that `View.copy_to` can be used,
        if nobody writes just now."""
        ...

    def stats(self) -> EngineStats:
        """How full it is."""
        ...


def checked(changes: Iterable[Change]) -> dict[str, dict[bytes, bytes | None]]:
    """Changes by table, the last one of each key, refused if an engine could not hold one."""
    tables: dict[str, dict[bytes, bytes | None]] = {}
    for table, key, value in changes:
        if not 0 < len(key) <= ENGINE_KEY_BYTES:
            raise BadKey(f"a key has 1 to {ENGINE_KEY_BYTES} bytes, not {len(key)}")
        if value is not None and len(value) > ENGINE_VALUE_BYTES:
            raise ValueError(f"a value has at most {ENGINE_VALUE_BYTES} bytes, not {len(value)}")
        rows = tables.get(table)
        if rows is None:
            rows = tables[table] = {}
        rows[key] = value
    return tables


@cache
def _seed(table: str) -> int:
    """The table's share of every checksum in it. There are a few dozen table names."""
    return crc32(table.encode())


def _checksums(table: str, keys: Iterable[bytes], values: Iterable[bytes]) -> Iterator[int]:
    """The checksum of each value, as `seal` makes it, at the speed of C."""
    return map(crc32, map(add, keys, values), repeat(_seed(table)))


def seal(table: str, key: bytes, value: bytes) -> bytes:
    """The value as it is stored: its CRC-32, bound to table and key, and then itself."""
    return crc32(value, crc32(key, _seed(table))).to_bytes(CRC_BYTES, "big") + value


def slice_of(table: str, rows: Mapping[bytes, bytes | None]) -> Slice:
    """Changes of one table in order; None is a key that goes."""
    keys: list[bytes] = []
    values: list[bytes] = []
    gone: list[bytes] = []
    for key in sorted(rows):
        value = rows[key]
        if value is None:
            gone.append(key)
        else:
            keys.append(key)
            values.append(value)
    return Slice(table, keys, values, gone, sum(map(len, rows)) + sum(map(len, values)))


def sealed_slice(table: str, keys: list[bytes], rows: Mapping[bytes, bytes | None]) -> Slice:
    """These rows, sealed and in order; None is one that goes. The list of keys is taken over."""
    keys.sort()
    gone = [key for key in keys if rows[key] is None]
    if gone:
        keys = [key for key in keys if rows[key] is not None]
    plain = [value for key in keys if (value := rows[key]) is not None]
    values = list(map(add, map(_CRC.pack, _checksums(table, keys, plain)), plain))
    return Slice(table, keys, values, gone, sum(map(len, keys)) + sum(map(len, values)))


def sound(table: str, keys: Iterable[bytes], sealed: Collection[bytes]) -> list[bytes] | None:
    """The values that `seal` stored at these keys; None if one of them is anything else."""
    values = list(map(_VALUE, sealed))
    found = b"".join(map(_CHECKSUM, sealed))
    return values if found == b"".join(map(_CRC.pack, _checksums(table, keys, values))) else None


def unseal_many(where: str, table: str, stored: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """`unseal` of each, by key."""
    values = sound(table, stored, stored.values())
    if values is None:
        return {key: unseal(where, table, key, each) for key, each in stored.items()}
    return dict(zip(stored, values, strict=True))


def unseal(where: str, table: str, key: bytes, stored: bytes) -> bytes:
    """The value that `seal` stored there. Raises `CorruptRecord` if it is anything else."""
    value = stored[CRC_BYTES:]
    computed = crc32(value, crc32(key, _seed(table)))
    if computed != int.from_bytes(stored[:CRC_BYTES], "big") or len(stored) < CRC_BYTES:
        found = stored[:CRC_BYTES].hex()
        why = f"its checksum is {found or 'missing'}, its bytes give {computed:08x}"
        raise CorruptRecord(where, table, repr(key), why)
    return value
