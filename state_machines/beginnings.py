"""Bodies that begin alike: what a beginning says is read once, and remembered.

    look = BEGINNINGS.look(body)
    if look.known is not None:
        rest = BEGINNINGS.rest(body, look.known)  # all that is left to be read
    ...
    BEGINNINGS.keep(body, look, said, items)  # it was read as a whole, and is valid

Who commits the same partitions again and again sends the same bytes each time, but for the offsets
at their end. A *beginning* is a body's bytes up to the name of the field with which what differs
begins. It is kept only when its body was read as a whole and found valid, and when a parser has
confirmed that the fields end there: the name may as well be part of a value. msgpack is read from
front to back, so bytes that begin a body with so many whole fields begin every body with them.

This is a memo of a pure function: an operation is the same whether it was read as a whole or with
help of its beginning, and whatever cannot be read so is read as a whole, which says what is wrong
with it. What comes once is not worth keeping, so a beginning is kept when it comes again. Memory is
bounded: when half of `KEPT_BYTES_MAX` is new, what was not asked for since the last time goes.

A leader admits on one thread what it applies on another: every step here is one operation on a
dict, and what is lost when two meet is read as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Generic, NamedTuple, TypeVar
from zlib import crc32

import msgpack

from state_machines import packing
from state_machines.limits import REQUEST_BYTES_MAX

S = TypeVar("S")

KEPT_BYTES_MAX: Final = 32 << 20  #: of all that is kept of the bodies of one class, about
ENTRY_BYTES: Final = 2_048  #: what is kept of any
ITEM_BYTES: Final = 512  #: what is kept of an item beside its names
BYTES_PER_BYTE: Final = 5  #: a name is in the body, an object, a key, a row and the end of a row
NOTED_MAX: Final = 4_096  #: beginnings that came once
SHORT_BYTES: Final = 128  #: a body of fewer is read as fast as it is looked up

FIXED_MAP_MASK: Final = 0xF0


@dataclass(frozen=True, slots=True)
class Beginning(Generic[S]):
    """A beginning and what it says."""

    data: bytes
    said: S
    fields: int  #: of the whole body
    spent: int  #: values that it has of those that a body may have (`packing.load`)
    size: int  #: bytes that are kept for it, about


class Look(NamedTuple, Generic[S]):
    """What a look at a body came to. `again`: its beginning was seen before, but is not kept."""

    known: Beginning[S] | None = None
    again: bool = False
    end: int = 0
    mark: int = 0


class Beginnings(Generic[S]):
    """Those of one class, which begins with so many `columns` after one scalar field."""

    def __init__(self, columns: int, then: str, *, limit_bytes: int = KEPT_BYTES_MAX) -> None:
        self._columns = columns
        self._then = packing.pack(then)
        self._limit = limit_bytes // 2
        self._nothing: Look[S] = Look()
        self._noted: dict[int, None] = {}
        self._new: dict[int, Beginning[S]] = {}
        self._old: dict[int, Beginning[S]] = {}
        self._size = 0  # of the new ones

    @property
    def size(self) -> int:
        """About how many bytes are kept."""
        return sum([each.size for some in (self._new, self._old) for each in some.values()])

    def look(self, body: bytes) -> Look[S]:
        """Whether the beginning of a body is known."""
        if not SHORT_BYTES <= len(body) <= REQUEST_BYTES_MAX:
            return self._nothing
        end = body.find(self._then)
        if end < 0:
            return self._nothing
        mark = crc32(memoryview(body)[:end])
        known = self._new.get(mark)
        if known is None and (known := self._old.pop(mark, None)) is not None:
            self._add(mark, known)
        if known is not None and body.startswith(known.data):
            return Look(known)
        if mark in self._noted:
            return Look(None, True, end, mark)
        if len(self._noted) >= NOTED_MAX:
            self._noted = {}
        self._noted[mark] = None
        return self._nothing

    def rest(self, body: bytes, known: Beginning[S]) -> dict[Any, Any]:
        """The fields of a body after its beginning, as plain values, whose types are to be asked
        for: they may be nested too deep. Otherwise read as they would be if it were read as a
        whole. Raises Invalid if that says too little of what is wrong."""
        left = known.fields - self._columns - 1
        spent = packing.Spent(self._columns, known.spent)
        data = packing.map_head(left) + body[len(known.data) :]
        found: dict[Any, Any] = packing.load(data, spent=spent, any_depth=True)
        return found

    def keep(self, body: bytes, look: Look[S], said: S, items: int) -> None:
        """This is what the beginning of a valid body says, in columns of so many items."""
        fields = self._fields(body, look.end)
        size = ENTRY_BYTES + BYTES_PER_BYTE * look.end + ITEM_BYTES * items
        if fields and size <= self._limit:
            spent = 2 * (self._columns + 1) + self._columns * items
            self._add(look.mark, Beginning(body[: look.end], said, fields, spent, size))

    def _fields(self, body: bytes, end: int) -> int:
        """How many fields a body has whose first ones end here; 0 if they do not."""
        if body[0] & FIXED_MAP_MASK != packing.FIXED_MAP:
            return 0
        reader = msgpack.Unpacker(max_buffer_size=len(body))
        reader.feed(body)
        fields: int = reader.read_map_header()
        for _ in range(2 * min(fields, self._columns + 1)):
            reader.skip()
        return fields if reader.tell() == end else 0

    def _add(self, mark: int, beginning: Beginning[S]) -> None:
        if self._size + beginning.size > self._limit:
            self._old, self._new, self._size = self._new, {}, 0
        self._new[mark] = beginning
        self._size += beginning.size
