"""The list of free pages, read from files that are made here page by page."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from storage import meta_pages
from storage.meta_pages import BIG, BRANCH, FREE_AT, HEADER_BYTES, NO_PAGE, NUMBER_AT

PAGE_BYTES = 4096
LEAF = 0x02
KEY = bytes(8)  #: of a leaf's node: the transaction that has freed the pages


def meta(number: int, root: int) -> bytes:
    page = bytearray(PAGE_BYTES)
    struct.pack_into("=Q", page, NUMBER_AT, number)
    struct.pack_into("=Q", page, FREE_AT, root)
    return bytes(page)


def page(flags: int, nodes: list[bytes]) -> bytes:
    """A page of a tree: its head, where the nodes are, and the nodes."""
    first = HEADER_BYTES + 2 * len(nodes)
    places = [first + sum(map(len, nodes[:place])) for place in range(len(nodes))]
    head = struct.pack("=10x2H2x", flags, first) + struct.pack(f"={len(nodes)}H", *places)
    return (head + b"".join(nodes)).ljust(PAGE_BYTES, b"\0")


def numbers(*pages: int) -> bytes:
    """Free pages as they are listed."""
    return struct.pack(f"={1 + len(pages)}Q", len(pages), *pages)


def leaf_node(data: bytes, size: int | None = None, flags: int = 0) -> bytes:
    size = len(data) if size is None else size
    return struct.pack("=4H", size & 0xFFFF, size >> 16, flags, len(KEY)) + KEY + data


def branch_node(number: int) -> bytes:
    return struct.pack("=4H", number & 0xFFFF, number >> 16 & 0xFFFF, number >> 32, 0)


def file_of(path: Path, root: int, pages: dict[int, bytes]) -> Path:
    """A file in whose later transaction the list begins at page `root`."""
    with path.open("wb") as file:
        file.write(meta(6, NO_PAGE) + meta(7, root))
        for number, content in pages.items():
            file.seek(number * PAGE_BYTES)
            file.write(content)
    return path


def test_a_list_is_read_wherever_its_pages_are(tmp_path: Path) -> None:
    far = 70_000  # its number has more than 16 bits
    pages = {
        2: page(BRANCH, [branch_node(3), branch_node(far)]),
        3: page(LEAF, [leaf_node(numbers(10, 11)), leaf_node(numbers(12))]),
        far: page(LEAF, [leaf_node(numbers(13))]),
    }
    found = meta_pages.free(file_of(tmp_path / "data.mdb", 2, pages), PAGE_BYTES)
    assert found == {10, 11, 12, 13}


def test_a_long_list_has_pages_of_its_own(tmp_path: Path) -> None:
    listed = numbers(*range(100, 10_100))
    pages = {
        2: page(LEAF, [leaf_node(struct.pack("=Q", 3), len(listed), BIG)]),
        3: bytes(HEADER_BYTES) + listed,
    }
    path = file_of(tmp_path / "data.mdb", 2, pages)
    assert meta_pages.free(path, PAGE_BYTES) == set(range(100, 10_100))
    with path.open("r+b") as file:
        file.truncate(3 * PAGE_BYTES + HEADER_BYTES + len(listed) - 1)
    with pytest.raises(ValueError, match="the file ends before"):
        meta_pages.free(path, PAGE_BYTES)


def test_the_later_transaction_has_the_list(tmp_path: Path) -> None:
    path = file_of(tmp_path / "data.mdb", NO_PAGE, {})
    assert meta_pages.free(path, PAGE_BYTES) == set()
    content = path.read_bytes()
    path.write_bytes(meta(8, 2) + content[PAGE_BYTES:] + page(LEAF, [leaf_node(numbers(9))]))
    assert meta_pages.free(path, PAGE_BYTES) == {9}


@pytest.mark.parametrize("root", [4, 1 << 41, 1 << 60, NO_PAGE - 1])
def test_a_list_that_begins_nowhere_is_none(root: int, tmp_path: Path) -> None:
    path = file_of(tmp_path / "data.mdb", root, {2: page(LEAF, [])})
    with pytest.raises(ValueError, match=r"page \d+: |the file ends before|cannot fit"):
        meta_pages.free(path, PAGE_BYTES)


@pytest.mark.parametrize(
    ("damaged", "why"),
    [
        (page(BRANCH, [branch_node(3), branch_node(3)]), "page 3 comes twice"),
        (page(BRANCH, [branch_node(2)]), "page 2 comes twice"),
        (page(LEAF, [leaf_node(struct.pack("=Q", 1 << 62))]), "page 2: "),
        (page(LEAF, [leaf_node(b"")])[:-8].rjust(PAGE_BYTES, b"\xff"), "page 2: "),
    ],
    ids=["twice", "itself", "more than there is", "nodes beyond the page"],
)
def test_a_damaged_list_is_none(damaged: bytes, why: str, tmp_path: Path) -> None:
    pages = {2: damaged, 3: page(LEAF, [leaf_node(numbers(9))])}
    with pytest.raises(ValueError, match=why):
        meta_pages.free(file_of(tmp_path / "data.mdb", 2, pages), PAGE_BYTES)
