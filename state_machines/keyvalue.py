"""The port between entities and whatever keeps their rows.

A table is a sorted map from a key, a tuple of parts, to bytes. Every key of one table has the same
shape: the same number of parts, each of the same type. `storage.state.State` implements the port
over LMDB; `storage.memory.MemoryKeyValue` is its twin over a dict.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self

Part = str | int | bytes
"""One part of a key. Integers are 64-bit and signed; booleans are refused."""


class KeptKeys(tuple[tuple[Part, ...], ...]):
    """Keys of one table that will be named again, as this very object.

    A store may keep with them what it makes of them, and of nothing else: other stores find it.
    """

    form: Any
    """What a store made of them; None before."""

    distinct: bool
    """Whether no key is there twice."""

    @classmethod
    def of(cls, keys: Sequence[tuple[Part, ...]]) -> Self:
        """These."""
        made = cls(keys)
        made.form = None
        made.distinct = len(set(made)) == len(made)
        return made


class KeyValue(Protocol):
    """Tables of rows, ordered by key."""

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        """The row at `key`, or None."""
        ...

    def put(self, table: str, key: tuple[Part, ...], value: bytes) -> None:
        """Set the row at `key`."""
        ...

    def get_many(self, table: str, keys: tuple[tuple[Part, ...], ...]) -> list[bytes | None]:
        """What `get` finds at each key: at some thousands of them, at a fraction of the cost."""
        ...

    def put_many(
        self,
        table: str,
        keys: tuple[tuple[Part, ...], ...],
        values: Sequence[bytes],
        grown: int | None = None,
    ) -> None:
        """`put` for each key, in order: of a key that comes twice the later value holds.

        `grown`: by how many bytes the values are longer in all than those that `get_many` has just
        found there. Only who asked for these very keys, none of them twice, and has written nothing
        since may say so.
        """
        ...

    def delete(self, table: str, key: tuple[Part, ...]) -> None:
        """Remove the row at `key`; nothing happens if there is none."""
        ...

    def scan(
        self,
        table: str,
        prefix: tuple[Part, ...] = (),
        *,
        starts: str = "",
        after: bytes = b"",
        upto: int | None = None,
    ) -> Iterator[tuple[bytes, bytes]]:
        """Rows whose leading parts equal `prefix`, in key order, as (continuation token, value).

        `prefix` has fewer parts than the keys of the table. `starts`: only rows whose next part, a
        string and the last one, starts with it. `upto`: only rows whose next part, an integer, is
        at most that. `after`: only rows behind that token. An integer sorts by its value, a string
        in the last place by its UTF-8 bytes; a string before the last place sorts by length first.

        A part that is too long for a key is cut and hashed, so when `starts` itself is that long
        rows that only agree in the kept bytes are yielded too: who needs exactness compares the
        row's own field. Do not write to the table while a scan of it is being read.
        """
        ...
