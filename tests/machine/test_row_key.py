"""Keys that come from outside: whatever passes, the store can encode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

import state_machines.machine  # noqa: F401 - registers every entity
from state_machines import row_key
from state_machines.errors import Invalid
from state_machines.keyvalue import Part
from state_machines.tables import TABLES, Table
from storage import keys
from storage.errors import BadKey

ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=200)
    | st.binary(max_size=600),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)


def parts_of(name: str) -> st.SearchStrategy[Any]:
    """Keys of the table's shape, and others."""
    shapes = {str: st.text(max_size=300), int: st.integers(-(2**64), 2**64), bytes: st.binary()}
    return st.tuples(*[shapes[kind] for kind in row_key._kinds(name)]).map(list) | ANY


@given(st.data())
def test_what_passes_can_be_asked_of_the_store(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TABLES)))
    parts = data.draw(parts_of(name))
    try:
        packed = bytes(msgpack.packb(parts))
    except OverflowError:
        return
    try:
        key = row_key.unpack(TABLES[name], packed, "key")
    except Invalid as error:
        said = error.detail
    else:
        said = "key: "
        assert list(key) == parts
        assert row_key.pack(key) == packed
        assert len(keys.encode(key)) <= keys.KEY_BYTES
    assert said.startswith("key: ")


@dataclass(frozen=True, slots=True)
class Wide:
    a: str
    b: str
    c: str
    d: str
    e: bytes
    f: int


def test_a_key_with_too_much_in_front_is_refused() -> None:
    """More than any table of ours can have; the store would stop the replica."""
    assert (row_key.LEAD_PART_BYTES, row_key.LEAD_BYTES_MAX) == (keys.PART_BYTES, keys.LEAD_BYTES)
    table = Table("test.wide", Wide, key=("a", "b", "c", "d", "e", "f"))
    try:
        for size in (0, 70, 81, 82, 96, 300):
            parts: list[Part] = [*["x" * size] * 4, b"x" * size, 1]
            packed = row_key.pack(parts)
            try:
                keys.encode(tuple(parts))
            except BadKey:
                with pytest.raises(Invalid, match=r"^key: its leading parts"):
                    row_key.unpack(table, packed, "key")
            else:
                assert row_key.unpack(table, packed, "key") == tuple(parts)
    finally:
        del TABLES["test.wide"]
