"""Rows whose numbers stand in front, so that those of a whole batch are changed at once.

A row is msgpack of its values (`packing`). Those of the hottest table have a layout of their own:

    mark | revision | number | number | ... | msgpack of the other values | one text, as UTF-8

with eight bytes for each in front, little-endian and signed. A batch then reads and sets columns of
words, and copies the rest as it is (`sheet.py`). The text, which is often empty and may change with
the numbers, is last for the same reason; the mark is `MARK` and, above its lowest byte, how many
bytes the text has.

msgpack never begins with the byte C1, so both forms may lie beside each other in a table: a row
that was written before its table had a layout is read all the same, and takes this form when it is
next written. As everywhere, a row class may grow by fields at its end: they come last among the
other values.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any, Final

from state_machines import packing

MARK: Final = 0xC1
WORD_BYTES: Final = 8
FIRST: Final = 2  #: the place of the first number, after mark and revision


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

    def unpack_columns(self, rows: Sequence[bytes]) -> tuple[Sequence[int], Sequence[Any]]:
        """Revisions of some rows, at least one, and a column for each field. No columns unless all
        have this form and the same fields."""
        if any(row[0] != MARK for row in rows):
            return (), ()
        heads = b"".join([row[: self.bytes] for row in rows])
        words = struct.unpack(f"<{self.words * len(rows)}q", heads)
        marks, revisions, *numbers = [words[place :: self.words] for place in range(self.words)]
        ends = [len(row) - (mark >> 8) for row, mark in zip(rows, marks, strict=True)]
        texts = [row[end:].decode() for row, end in zip(rows, ends, strict=True)]
        rest = [row[self.bytes : end] for row, end in zip(rows, ends, strict=True)]
        others = packing.unpack_columns(rest)
        if len(others) != len(self._others_later):
            return (), ()
        return revisions, self._ordered((*numbers, texts, *others))
