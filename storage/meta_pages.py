"""The two meta pages of an LMDB file (format of engine 0.9): which transaction is in force.

They are the first two pages. The larger number is in force, the smaller one's transaction came
before it (`storage.disk`, Meta pages).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

NUMBER_AT: Final = 144
"""Where a meta page has the number of its transaction (16 bytes of page, 128 of meta before it)."""


def read(path: Path, page_bytes: int) -> bytes:
    """Both pages."""
    with path.open("rb") as file:
        return file.read(2 * page_bytes)


def numbers(pages: bytes) -> tuple[int, int]:
    """The numbers of the transactions that they are of."""
    size = len(pages) // 2
    even, odd = (pages[at + NUMBER_AT : at + NUMBER_AT + 8] for at in (0, size))
    return int.from_bytes(even, sys.byteorder), int.from_bytes(odd, sys.byteorder)
