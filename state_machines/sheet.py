"""The rows of a batch beside each other in one array, so that their numbers are changed as columns.

    sheet = Sheet.of(LAYOUT, rows)       # rows of a `Layout`, as a batch finds them
    sheet.set_column("offset", offsets)
    sheet.count_up("commits")
    written = sheet.rows(revision)

All of it is at the speed of C: a third of what unpacking, changing and packing each row takes. What
follows the words of the rows is copied as it is: from a list beside the array or, in a sheet whose
rows will be changed again (`whole`), from the array itself, where each row has as much room as the
longest one needs. Words are little-endian there, as in the rows.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from operator import add
from struct import Struct
from typing import Final, Self

from state_machines.layout import MARK, WORD_BYTES, Layout

CUTS_KEPT: Final = 16  #: of so many batches it is known how their rows are cut
LOOSE_MAX: Final = 2  #: rows beside each other take at most so many times their own bytes

_WORD: Final = Struct("<q")


class Sheet:
    """Some rows of a layout. What it finds in place of a row that is none, or is of the old form,
    has the mark 0, and is of no use."""

    __slots__ = ("_bare", "_count", "_cut", "_layout", "_step", "_tails", "_words")

    def __init__(
        self,
        layout: Layout,
        words: array[int],
        tails: Sequence[bytes],
        cut: Struct,
        *,
        count: int,
        bare: bool,
    ) -> None:
        self._layout = layout
        self._words = words
        self._tails = tails  # empty if they are among the words
        self._cut = cut
        self._count = count
        self._step = len(words) // count
        self._bare = bare

    @classmethod
    def of(cls, layout: Layout, rows: Sequence[bytes | None]) -> Self:
        """These, at least one."""
        length, step, count = layout.bytes, layout.words, len(rows)
        heads = b"".join([row[:length] if row is not None else b"" for row in rows])
        if len(heads) != length * count:  # some are none, or short and therefore old
            heads = b"".join([(row or b"")[:length].ljust(length, b"\0") for row in rows])
        words = array("q", heads)
        cut = _cut(length, count)
        made = cls(layout, words, (), cut, count=count, bare=False)
        marks = made.marks()
        if marks.count(MARK) == count:
            made._bare = True
            made._tails = [row[length:] for row in rows if row is not None]
            return made
        nothing = array("q", (0,)) * step
        for place, mark in enumerate(marks):
            if mark & 0xFF != MARK:
                words[place * step : (place + 1) * step] = nothing
        there = [row or b"" for row in rows]
        there = [row[: len(row) - (mark >> 8)] for row, mark in zip(there, marks, strict=True)]
        made._tails = [row[length:] for row in there]
        return made

    def whole(self) -> Self:
        """The same rows, to be changed again and again. All of them are of today's form."""
        words, tails, size = self._words, self._tails, self._layout.bytes
        room = -(-(size + max(map(len, tails))) // WORD_BYTES) * WORD_BYTES
        if room * self._count > LOOSE_MAX * (size * self._count + sum(map(len, tails))):
            return self
        bodies = list(map(add, self._cut.unpack(words), tails))
        words = array("q", b"".join([each.ljust(room) for each in bodies]))
        cut = _cuts(room, tuple(map(len, bodies)))
        return type(self)(self._layout, words, (), cut, count=self._count, bare=self._bare)

    def copy(self) -> Self:
        """The same rows, to be changed."""
        count, bare = self._count, self._bare
        return type(self)(
            self._layout, self._words[:], self._tails, self._cut, count=count, bare=bare
        )

    @property
    def bare(self) -> bool:
        """Whether no row has a text."""
        return self._bare

    def marks(self) -> tuple[int, ...]:
        """The mark of each row."""
        return self._read(0)

    def column(self, name: str) -> tuple[int, ...]:
        """A number of each row."""
        return self._read(self._layout.place[name])

    def set_column(self, name: str, values: Sequence[int]) -> None:
        """Set a number of each row."""
        self._write(self._layout.place[name], struct.pack(f"<{self._count}q", *values))

    def fill(self, name: str, value: int) -> None:
        """Set a number to the same in every row."""
        self._fill(self._layout.place[name], value)

    def count_up(self, name: str) -> None:
        """Add one to a number of each row, which is not negative.

        As one long number: none of them carries into the next, and no object is made of each.
        """
        place, size = self._layout.place[name], WORD_BYTES * self._count
        more = int.from_bytes(self._words[place :: self._step].tobytes(), "little")
        self._write(place, (more + _ones(self._count)).to_bytes(size, "little"))

    def rows(self, revision: int, texts: Sequence[str] = ()) -> list[bytes]:
        """The rows as they are now, with this revision and these texts: none, if there are no
        texts."""
        notes: list[bytes] = list(map(str.encode, texts))
        if notes:
            marks = [MARK | len(note) << 8 for note in notes]
            self._write(0, struct.pack(f"<{self._count}q", *marks))
        elif not self._bare:
            self._fill(0, MARK)
        self._bare = not any(notes)
        self._fill(1, revision)
        made: list[bytes] = list(self._cut.unpack(self._words))
        if self._tails:
            made = list(map(add, made, self._tails))
        return list(map(add, made, notes)) if notes else made

    def _read(self, place: int) -> tuple[int, ...]:
        return struct.unpack(f"<{self._count}q", self._words[place :: self._step])

    def _write(self, place: int, column: bytes) -> None:
        self._words[place :: self._step] = array("q", column)

    def _fill(self, place: int, value: int) -> None:
        self._write(place, _WORD.pack(value) * self._count)


@lru_cache(maxsize=CUTS_KEPT)
def _ones(count: int) -> int:
    """The number that has a one in each of so many words."""
    return int.from_bytes(_WORD.pack(1) * count, "little")


@lru_cache(maxsize=CUTS_KEPT)
def _cut(size: int, count: int) -> Struct:
    """Takes bytes apart into so many pieces of this size."""
    return Struct(f"{size}s" * count)


@lru_cache(maxsize=CUTS_KEPT)
def _cuts(size: int, lengths: tuple[int, ...]) -> Struct:
    """Takes bytes apart into pieces of this size, and of each its beginning of that length."""
    return Struct("".join([f"{each}s{size - each}x" for each in lengths]))
