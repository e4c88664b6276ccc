"""Lengths as protobuf writes them, for messages that are put together from encoded parts."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

KEPT: Final = 1_024  #: lengths whose bytes are remembered: messages are mostly as long as others


@lru_cache(maxsize=KEPT)
def varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; all but the last byte say that more follow."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)
