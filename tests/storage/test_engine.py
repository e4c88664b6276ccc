"""What every engine is given: changes that were checked, slices in order, values with checksums."""

from __future__ import annotations

import pytest

from storage.engine import (
    CRC_BYTES,
    ENGINE_KEY_BYTES,
    ENGINE_VALUE_BYTES,
    checked,
    seal,
    sealed_slice,
    unseal,
)
from storage.errors import CorruptRecord
from storage.state_view import unsealed


def test_the_longest_key_and_the_longest_value_are_taken() -> None:
    key, value = b"k" * ENGINE_KEY_BYTES, bytes(ENGINE_VALUE_BYTES)
    assert checked([("t", key, value), ("t", b"l", None)]) == {"t": {key: value, b"l": None}}


def test_a_slice_is_in_order_and_counts_what_goes() -> None:
    rows = {b"c": b"3", b"a": None, b"b": b"2"}
    part = sealed_slice("t", list(rows), rows)
    assert (part.keys, part.gone, part.rows) == ([b"b", b"c"], [b"a"], 3)
    assert part.size == 2 * (1 + CRC_BYTES + 1)
    assert list(part.changes()) == [
        *(("t", b"a", None), ("t", b"b", seal("t", b"b", b"2")), ("t", b"c", seal("t", b"c", b"3")))
    ]


def test_what_is_shorter_than_a_checksum_is_none_whatever_it_says() -> None:
    keys = (b"%d" % number for number in range(10_000))
    key = next(key for key in keys if seal("t", key, b"")[0] == 0)
    with pytest.raises(CorruptRecord):
        unseal("", "t", key, seal("t", key, b"")[1:])  # the same number in fewer bytes


@pytest.mark.parametrize("count", [1, 2, 16, 17, 80, 81, 200])
@pytest.mark.parametrize("hurt", [0, 1, 15, 16, 79, 80, 199])
def test_rows_before_one_that_is_damaged_are_told_and_none_after(count: int, hurt: int) -> None:
    """However many are checked at once."""
    rows = [(b"%03d" % number, b"v%d" % number) for number in range(count)]
    stored = [(key, seal("t", key, value)) for key, value in rows]
    assert list(unsealed("here", "t", iter(stored))) == rows
    if hurt >= count:
        return
    key, sealed = stored[hurt]
    for wrong in (sealed[:-1] + b"?", b"", sealed[:3], seal("u", key, rows[hurt][1])):
        stored[hurt] = (key, wrong)
        told = []
        with pytest.raises(CorruptRecord, match=key.decode()):  # noqa: PT012 - as far as it came
            for each in unsealed("here", "t", iter(stored)):
                told.append(each)  # noqa: PERF402 - and no further
        assert told == rows[:hurt]


def test_whoever_wants_one_row_has_one_checked() -> None:
    stored = ((key, seal("t", key, b"")) for key in (b"a", b"b", b"c"))
    first = next(unsealed("here", "t", stored))
    assert first == (b"a", b"")
    assert next(stored)[0] == b"b", "the others were not asked for"
