"""The two meta pages of an LMDB file (format of engine 0.9): which transaction is in force.

They are the first two pages. The larger number is in force, the smaller one's transaction came
before it (`storage.disk`, Meta pages). They also say where the list of free pages begins.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import BinaryIO, Final

NUMBER_AT: Final = 144
"""Where a meta page has the number of its transaction (16 bytes of page, 128 of meta before it)."""

FREE_AT: Final = 80
"""Where it has the root of the tree that lists the free pages."""

NO_PAGE: Final = (1 << 64) - 1
HEADER_BYTES: Final = 16
NODE_BYTES: Final = 8
BRANCH: Final = 0x01  #: a page's flag
BIG: Final = 0x01  #: a node's flag: its data have pages of their own


def read(path: Path, page_bytes: int) -> bytes:
    """Both pages."""
    with path.open("rb") as file:
        return file.read(2 * page_bytes)


def numbers(pages: bytes) -> tuple[int, int]:
    """The numbers of the transactions that they are of."""
    size = len(pages) // 2
    even, odd = (pages[at + NUMBER_AT : at + NUMBER_AT + 8] for at in (0, size))
    return int.from_bytes(even, sys.byteorder), int.from_bytes(odd, sys.byteorder)


def free(path: Path, page_bytes: int) -> set[int]:
    """The numbers of the free pages. Raises ValueError if the file does not have their list."""
    pages = read(path, page_bytes)
    even, odd = numbers(pages)
    (root,) = struct.unpack_from("=Q", pages, FREE_AT + page_bytes * (odd > even))
    found: set[int] = set()
    seen: set[int] = set()
    todo = [] if root == NO_PAGE else [root]
    with path.open("rb") as file:
        while todo:
            number = todo.pop()
            if number in seen:
                raise ValueError(f"page {number} comes twice")
            seen.add(number)
            try:
                _walk(file, page_bytes, number, todo, found)
            except (struct.error, OSError) as error:
                raise ValueError(f"page {number}: {error}") from None
    return found


def _walk(file: BinaryIO, size: int, number: int, todo: list[int], found: set[int]) -> None:
    """One page of that tree: what is below it, or the free pages that it lists."""
    page = _read(file, number * size, size)
    flags, lower = struct.unpack_from("=2H", page, 10)
    for at in struct.unpack_from(f"={(lower - HEADER_BYTES) // 2}H", page, HEADER_BYTES):
        low, high, more, key_bytes = struct.unpack_from("<4H", page, at)
        if flags & BRANCH:
            todo.append(low | high << 16 | more << 32)
            continue
        data = page[at + NODE_BYTES + key_bytes :]
        if more & BIG:
            (first,) = struct.unpack_from("=Q", data)
            data = _read(file, first * size + HEADER_BYTES, low | high << 16)
        (count,) = struct.unpack_from("=Q", data)
        found.update(struct.unpack_from(f"={count}Q", data, 8))


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    data = file.read(size)
    if len(data) < size:
        raise ValueError(f"the file ends before {at + size}")
    return data
