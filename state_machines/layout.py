"""Rows whose numbers stand in front, so that those of a whole batch are changed at once.

A row is msgpack of its values (`packing`). Those of the hottest table have a layout of their own:

    mark | revision | number | number | ... | msgpack of the other values | one text, as UTF-8

with eight bytes for each in front, little-endian and signed. A batch then reads and sets columns of
words, and copies the rest as it is, all at the speed of C: a third of what unpacking, changing and
packing each row takes. The text, which is often empty and may change with the numbers, is last for
the same reason; the mark is `MARK` and, above its lowest byte, how many bytes the text has.

msgpack never begins with the byte C1, so both forms may lie beside each other in a table: a row
that was written before its table had a layout is read all the same, and takes this form when it is
next written. As everywhere, a row class may grow by fields at its end: they come last among the
other values.
"""

from __future__ import annotations

import dataclasses
import struct
import sys
from array import array
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import add, itemgetter
from struct import Struct
from typing import Any, Final

from state_machines import packing

MARK: Final = 0xC1
WORD_BYTES: Final = 8
FIRST: Final = 2  #: the place of the first number, after mark and revision
CUTS_KEPT: Final = 16  #: of so many sizes of a batch it is known how its rows are cut


class Layout:
    """How rows of a class are laid out: these fields as numbers, in this order, and this text."""

    def __init__(self, row: Any, numbers: Sequence[str], text: str) -> None:
        fields = packing.field_names(row)
        others = [name for name in fields if name not in (*numbers, text)]
        #: words that stand in front of a row, and the bytes that they take
        self.words = FIRST + len(numbers)
        self.bytes = self.words * WORD_BYTES
        #: the place of each number among the words
        self.place = {name: FIRST + place for place, name in enumerate(numbers)}
        #: the field that comes last
        self.text = text
        self._head = Struct(f"<{self.words}q")
        self._numbers = itemgetter(*[fields.index(name) for name in numbers])
        self._text = fields.index(text)
        self._others = itemgetter(*[fields.index(name) for name in others])
        stored = (*numbers, text, *others)
        self._ordered = itemgetter(*[stored.index(name) for name in fields])
        defaults = {each.name: each.default for each in dataclasses.fields(row)}
        self._later = [defaults[name] for name in fields]
        self._others_later = [defaults[name] for name in others]

    # -- one row ----------------------------------------------------------------------------

    def pack(self, pack: Callable[[Any], bytes], revision: int, values: Sequence[Any]) -> bytes:
        """A row of these values, in the order of its fields. `pack`: `packing.row_packer`."""
        text = values[self._text].encode()
        head = self._head.pack(MARK | len(text) << 8, revision, *self._numbers(values))
        row: bytes = head + pack(self._others(values)) + text
        return row

    def unpack(self, row: bytes) -> tuple[int, list[Any]]:
        """Revision and values, in the order of the fields, of a row of either form."""
        if row[0] != MARK:
            revision, values = packing.unpack_values(row)
            return revision, values + self._later[len(values) :]
        mark, revision, *numbers = self._head.unpack_from(row)
        end = len(row) - (mark >> 8)
        others: Any = packing.unpack_values(row[self.bytes : end])
        others += self._others_later[len(others) :]
        return revision, list(self._ordered((*numbers, row[end:].decode(), *others)))

    # -- many rows: their words, one row after the other -----------------------------------------

    def heads(self, rows: Sequence[bytes | None]) -> array[int]:
        """The words of each row: all 0, the mark as well, for none and for one of the old form."""
        length, step = self.bytes, self.words
        heads = b"".join([row[:length] if row is not None else b"" for row in rows])
        if len(heads) != length * len(rows):  # some are none, or short and therefore old
            heads = b"".join([(row or b"")[:length].ljust(length, b"\0") for row in rows])
        words = array("q", heads)
        if sys.byteorder == "big":
            words.byteswap()
        marks = self.marks(words)
        if marks.count(MARK) != len(marks):
            for place, mark in enumerate(marks):
                if mark & 0xFF != MARK:
                    words[place * step : (place + 1) * step] = array("q", (0,) * step)
        return words

    def marks(self, words: array[int]) -> array[int]:
        """The mark of each row."""
        return words[:: self.words]

    def column(self, words: array[int], name: str) -> array[int]:
        """A number of each row."""
        return words[self.place[name] :: self.words]

    def set_column(self, words: array[int], name: str, values: Sequence[int]) -> None:
        """Set a number of each row."""
        column = array("q")
        column.frombytes(struct.pack(f"={len(values)}q", *values))
        words[self.place[name] :: self.words] = column

    def fill(self, words: array[int], name: str, value: int) -> None:
        """Set a number to the same in every row."""
        self._fill(words, self.place[name], value)

    def count_up(self, words: array[int], name: str) -> None:
        """Add one to a number of each row, which is not negative.

        As one long number: none of them carries into the next, and no object is made of each.
        """
        column = self.column(words, name)
        ones = array("q", (1,)) * len(column)
        more = int.from_bytes(column.tobytes(), sys.byteorder)
        more += int.from_bytes(ones.tobytes(), sys.byteorder)
        counted = array("q")
        counted.frombytes(more.to_bytes(WORD_BYTES * len(column), sys.byteorder))
        words[self.place[name] :: self.words] = counted

    def tails(self, rows: Sequence[bytes | None], marks: array[int]) -> list[bytes]:
        """What follows the words of each row, without its text. `marks`: as `heads` found them.

        Whatever comes where it found none is of no use.
        """
        length = self.bytes
        if marks.count(MARK) == len(marks):
            return [row[length:] for row in rows if row is not None]
        there = [row or b"" for row in rows]
        there = [row[: len(row) - (mark >> 8)] for row, mark in zip(there, marks, strict=True)]
        return [row[length:] for row in there]

    def joined(
        self, words: array[int], revision: int, tails: Sequence[bytes], texts: Sequence[str] = ()
    ) -> list[bytes]:
        """The rows with these words, this revision, these tails, and these texts: none, if there
        are no texts. The words are those of the rows afterwards."""
        notes: list[bytes] = list(map(str.encode, texts))
        if notes:
            words[:: self.words] = array("q", [MARK | len(note) << 8 for note in notes])
        else:
            self._fill(words, 0, MARK)
        self._fill(words, 1, revision)
        little = words
        if sys.byteorder == "big":
            little = words[:]
            little.byteswap()
        heads = _cuts(self.bytes, len(tails)).unpack(little.tobytes())
        made: list[bytes] = list(map(add, heads, tails))
        return list(map(add, made, notes)) if notes else made

    def _fill(self, words: array[int], place: int, value: int) -> None:
        words[place :: self.words] = array("q", (value,)) * (len(words) // self.words)


@lru_cache(maxsize=CUTS_KEPT)
def _cuts(size: int, count: int) -> Struct:
    """Takes bytes apart into so many pieces of this size."""
    return Struct(f"{size}s" * count)
