"""The look at all rows finds what no single read could."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import walk
from storage.disk import PAGE_BYTES, DiskEngine
from storage.engine import Change, seal
from storage.errors import CorruptRecord, ViewLost
from storage.memory import MemoryEngine
from storage.shelf import MemoryShelf
from storage.state import State
from storage.walk import STEP_ROWS, Walk
from tests.storage.faults import point

BRANCH = 0x01  #: the flag of a page that leads to others
HEADER = 16
ROWS = 5_000


def change(n: int) -> Change:
    key = b"key %06d" % n
    return "t", key, seal("t", key, b"value of %06d" % n)


def engine_of(rows: int) -> MemoryEngine:
    engine = MemoryEngine()
    engine.write([change(n) for n in range(rows)])
    return engine


def looked_at(engine: MemoryEngine | DiskEngine) -> int:
    with engine.view() as view:
        return walk.walk(view, engine.path)


@pytest.mark.parametrize("rows", [1, STEP_ROWS - 1, STEP_ROWS, STEP_ROWS + 1, 3 * STEP_ROWS])
def test_sound_rows_are_counted(rows: int) -> None:
    engine = engine_of(rows)
    engine.write([("u", b"k", seal("u", b"k", b"1"))])
    assert looked_at(engine) == rows + 1
    with engine.view() as view:
        walked = Walk(view, "e", "t")
        steps = 1
        while walked.step():
            steps += 1
    assert (walked.rows, steps) == (rows, rows // STEP_ROWS + 1)
    with pytest.raises(ViewLost):
        Walk(view, "e", "t").step()


def test_a_row_under_another_key_is_found() -> None:
    """A flipped bit in a key: who looks for the row finds nothing, as if it had never been."""
    engine = engine_of(100)
    _, key, value = change(50)
    engine.write([("t", key, None), ("t", b"key 000850", value)])
    with pytest.raises(CorruptRecord, match="000850"):
        looked_at(engine)


def test_rows_that_are_not_there_are_missed(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    engine.write([change(n) for n in range(100)])
    view = engine.view()
    scan = view.scan

    def some(table: str) -> Iterator[tuple[bytes, bytes]]:
        return (row for row in scan(table) if row[0] != b"key 000070")

    view.scan = some  # type: ignore[assignment, method-assign]
    with pytest.raises(CorruptRecord, match="99 records were found where 100 should be"):
        walk.walk(view, "e")
    engine.close()


@pytest.mark.parametrize("count", [99, 101])
def test_a_table_that_says_another_number_of_rows_is_found(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(100).view() as view:
        monkeypatch.setattr(view, "records", lambda table: count)
        with pytest.raises(CorruptRecord, match=f"100 records were found where {count} should be"):
            walk.walk(view, "e")


@pytest.mark.parametrize("order", [[0, 2, 1], [0, 1, 1]])
def test_rows_that_do_not_stand_in_order_are_found(
    order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_of(3).view() as view:
        rows = list(view.scan("t"))
        monkeypatch.setattr(view, "scan", lambda table: iter([rows[each] for each in order]))
        with pytest.raises(CorruptRecord, match="it stands behind"):
            walk.walk(view, "e")


def branches(data: bytearray) -> Iterator[int]:
    """Where the pages are that lead to others."""
    for start in range(2 * PAGE_BYTES, len(data), PAGE_BYTES):
        if int.from_bytes(data[start + 10 : start + 12], "little") == BRANCH:
            yield start


def test_a_flipped_bit_in_the_tree_hides_a_row_that_stands_where_it_should(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    engine.write([change(n) for n in range(ROWS)])
    engine.close()
    file = tmp_path / "e" / "data.mdb"
    data = bytearray(file.read_bytes())
    page = max(branches(data), key=lambda at: data[at + 12 : at + 14][::-1])  # the fullest
    node = page + int.from_bytes(data[page + HEADER + 20 : page + HEADER + 22], "little")
    key = data[node + 8 : node + 8 + int.from_bytes(data[node + 6 : node + 8], "little")]
    assert key.startswith(b"key ")
    last = node + 8 + len(key) - 1
    data[last] ^= 4
    file.write_bytes(data)
    engine = DiskEngine(tmp_path / "e")
    assert [key for key, _ in engine.scan("t")] == [change(n)[1] for n in range(ROWS)]
    hidden = [n for n in range(ROWS) if engine.get("t", change(n)[1]) is None]
    assert 0 < len(hidden) < 8
    with pytest.raises(CorruptRecord, match="are found by their key"):
        looked_at(engine)
    engine.close()


def test_a_state_knows_whether_its_rows_were_looked_at() -> None:
    shelf = MemoryShelf()
    state = State(shelf)
    assert not state.verified
    state.put("t", ("a",), b"1")
    state.set_applied(point(1))
    state.flush()
    state.verify()
    assert state.verified
    value = shelf.engine.get("t", next(key for key, _ in shelf.engine.scan("t")))
    assert value is not None
    shelf.engine.write([("t", b"elsewhere", value)])
    state = State(shelf)
    with pytest.raises(CorruptRecord):
        state.verify()
    assert not state.verified
