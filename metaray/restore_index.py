"""What a restore knows of its rows: a few bytes each, on disk, so that memory stays bounded.

For every row of the backup that is in the scope: a digest of its key, a digest of what it says
(`Restorer.comparable`), the number in it that only grows, when it is over, and what is to become of
it. For every row of the backup that lived on a lease: a digest. For every live row of the scope
that the backup does not have: its key. The file is SQLite's in a temporary directory and goes with
the index.
"""

from __future__ import annotations

import hashlib
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from state_machines import packing, row_key
from state_machines.errors import Invalid
from state_machines.restoring import Restorer

# What becomes of a row of the backup.
ADD: Final = 0  #: nothing is at its key
CHANGE: Final = 1
EQUAL: Final = 2
OVER: Final = 3  #: its time has passed: it is not restored
LEASED: Final = 4  #: it lived on a lease, and its owner is not known to live: not restored

KEY_BYTES: Final = 16
_MODULUS: Final = 1 << 256

_SCHEMA: Final = """
pragma journal_mode = off;
pragma synchronous = off;
create table rows (
    known integer, key blob, said blob, floor integer, ends integer, state integer,
    primary key (known, key)
) without rowid;
create table others (known integer, key blob, primary key (known, key)) without rowid;
create table leased (mark blob primary key) without rowid;
"""


def key_of(known: Restorer[Any], row: Any) -> bytes:
    """A row's key as it is named from outside."""
    return row_key.pack(known.table.key_of(row))


def short(key: bytes) -> bytes:
    """The digest that stands for a key."""
    return hashlib.sha256(key).digest()[:KEY_BYTES]


def said(known: Restorer[Any], row: Any) -> bytes:
    """The digest of what a row says, its key included."""
    return hashlib.sha256(packing.pack(known.comparable(row))).digest()


class Checksum:
    """A checksum over rows in any order: the sum of their digests."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, digest: bytes) -> None:
        """One more row."""
        self.rows += 1
        self._sum = (self._sum + int.from_bytes(digest, "big")) % _MODULUS

    def __str__(self) -> str:
        return f"{self._sum:064x}"


class Index:
    """The rows of one restore. Use it as a context manager. Raises OSError, and sqlite3.Error where
    the temporary directory has no room."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="metaray-restore-")
        try:
            self._db = sqlite3.connect(Path(self._directory.name) / "index", isolation_level=None)
            self._db.executescript(_SCHEMA)
            self._db.execute("begin")
        except sqlite3.Error:
            self._directory.cleanup()
            raise
        self._numbers: dict[str, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._db.close()
        self._directory.cleanup()

    def _number(self, known: Restorer[Any]) -> int:
        return self._numbers.setdefault(known.table.name, len(self._numbers))

    def add(self, known: Restorer[Any], row: Any, state: int) -> None:
        """A row of the backup. Raises Invalid for one that comes twice."""
        place = (self._number(known), short(key_of(known, row)))
        floor = known.floor(row)
        values = (*place, said(known, row), floor, known.ends_ms(row), state)
        try:
            self._db.execute("insert into rows values (?, ?, ?, ?, ?, ?)", values)
        except sqlite3.IntegrityError:
            if not known.local:
                key = known.table.key_of(row)
                raise Invalid(f"{known.table.name}: {key!r} comes twice") from None
            self._db.execute(
                "update rows set floor = max(floor, ?) where known = ? and key = ?",
                (floor, *place),
            )

    def lease(self, mark: bytes) -> None:
        """What stands for a row of the backup that lived on a lease."""
        self._db.execute("insert or ignore into leased values (?)", (mark,))

    def leased(self, mark: bytes) -> bool:
        """Whether it is one of those."""
        found = self._db.execute("select 1 from leased where mark = ?", (mark,))
        return found.fetchone() is not None

    def find(self, known: Restorer[Any], key: bytes) -> tuple[bytes, int, int] | None:
        """What the backup's row at a key says, its floor, and what is to become of it."""
        found: tuple[bytes, int, int] | None = self._db.execute(
            "select said, floor, state from rows where known = ? and key = ?",
            (self._number(known), short(key)),
        ).fetchone()
        return found

    def decide(self, known: Restorer[Any], key: bytes, state: int) -> None:
        """What is to become of the row at a key."""
        place = (state, self._number(known), short(key))
        self._db.execute("update rows set state = ? where known = ? and key = ?", place)

    def other(self, known: Restorer[Any], key: bytes) -> None:
        """A live row that the backup does not have."""
        self._db.execute("insert or ignore into others values (?, ?)", (self._number(known), key))

    def others(self, known: Restorer[Any]) -> Iterator[bytes]:
        """Their keys."""
        found = self._db.execute("select key from others where known = ?", (self._number(known),))
        return (key for (key,) in found)

    def counts(self, known: Restorer[Any]) -> dict[int, int]:
        """How many rows of the backup there are in each state."""
        return dict(
            self._db.execute(
                "select state, count(*) from rows where known = ? group by state",
                (self._number(known),),
            )
        )

    def others_count(self, known: Restorer[Any]) -> int:
        """How many live rows the backup does not have."""
        (count,) = self._db.execute(
            "select count(*) from others where known = ?", (self._number(known),)
        ).fetchone()
        return int(count)

    def checksum(self, known: Restorer[Any], states: tuple[int, ...], now_ms: int) -> Checksum:
        """Of the backup's rows in these states that are not over by now."""
        found = Checksum()
        marks = ", ".join("?" * len(states))
        for (digest,) in self._db.execute(
            f"select said from rows where known = ? and state in ({marks})"  # noqa: S608 - marks
            " and (ends <= 0 or ends > ?)",
            (self._number(known), *states, now_ms),
        ):
            found.add(digest)
        return found
