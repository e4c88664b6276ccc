"""How many fields an encoded protobuf message has, counted before it is decoded.

Two bytes on the wire can be sixty in memory: an empty command, an entry, a voter. So a large frame
is walked first, without making anything, and one with more fields than it may have is refused (law
18). A small frame needs no walk: whatever is in it, it stays within the limits of a large one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

Inside = Mapping[int, "Inside | None"]
"""What to look into, by field number: messages, whose fields are counted too, and (None) what may
hold packed numbers, whose bytes are."""

SMALL_BYTES: Final = 128 << 10

_VARINT, _FIXED64, _DELIMITED, _FIXED32 = 0, 1, 2, 5


def too_many_fields(data: bytes, inside: Inside, limit: int) -> bool:
    """Whether there are more than `limit`. What is cut short is left for the decoder to refuse."""
    if len(data) <= SMALL_BYTES:
        return False
    try:
        return _count(data, inside, limit) > limit
    except IndexError:
        return False


def _count(data: bytes, inside: Inside, limit: int) -> int:
    count = 0
    parts = [(0, len(data), inside)]
    while parts:
        at, end, inside = parts.pop()
        while at < end and count <= limit:
            count += 1
            tag, at = _varint(data, at)
            kind = tag & 7
            if kind == _DELIMITED:
                size, at = _varint(data, at)
                if (field := tag >> 3) in inside:
                    nested = inside[field]
                    if nested is None:
                        count += size
                    else:
                        parts.append((at, min(at + size, end), nested))
                at += size
            elif kind == _VARINT:
                _, at = _varint(data, at)
            elif kind in (_FIXED64, _FIXED32):
                at += 8 if kind == _FIXED64 else 4
            else:
                return limit + 1  # groups: nothing of ours has them
    return count


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most ten bytes, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 or shift > 63:
            return value, at
        shift += 7
