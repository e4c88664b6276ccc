"""Bodies: strict in what they take, and every refusal names the field."""

from __future__ import annotations

import tracemalloc
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import packing
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, DEPTH_MAX, REQUEST_BYTES_MAX
from tests.bad_input.values import nested


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    name: str
    size: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    text: str
    number: int = 0
    flag: bool = False
    data: bytes = b""
    maybe: int | None = None
    names: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    inners: tuple[Inner, ...] = ()
    inner: Inner | None = None


FULL = Body(
    text="ü",
    number=-(2**63),
    flag=True,
    data=b"\xff\x00",
    maybe=2**63 - 1,
    names=("a", ""),
    numbers=(0, -1),
    inners=(Inner(name="x"), Inner(name="y", size=0)),
    inner=Inner(name="z"),
)


def body(**values: Any) -> bytes:
    return bytes(msgpack.packb({"text": "t", **values}))


@pytest.mark.parametrize("value", [FULL, Body(text="")])
def test_a_body_comes_back(value: Body) -> None:
    assert packing.unpack(Body, packing.pack(value)) == value
    packing.check(value)


def test_packing_what_is_small_takes_little() -> None:
    """With buffers of 256 KiB, two packers at once took and gave back pages for each value."""
    value = Body(text="k")
    tracemalloc.start()
    try:
        rows = packing.row_packer()
        rows((7, [packing.pack(value), packing.pack_checked(value)]))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


def test_missing_fields_take_their_default_and_unknown_ones_are_dropped() -> None:
    assert packing.unpack(Body, body(later={"a": [1, 2]}, number=5)) == Body(text="t", number=5)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"text": b"t"}, "text: str is wanted, not bytes"),
        ({"text": None}, "text: str is wanted, not NoneType"),
        ({"number": True}, "number: int is wanted, not bool"),
        ({"number": 1.0}, "number: int is wanted, not float"),
        ({"number": float("nan")}, "number: int is wanted, not float"),
        ({"number": 2**63}, "number: beyond 64 bits"),
        ({"number": 2**64 - 1}, "number: beyond 64 bits"),
        ({"maybe": "1"}, "maybe: int is wanted, not str"),
        ({"flag": 1}, "flag: bool is wanted, not int"),
        ({"data": "x"}, "data: bytes is wanted, not str"),
        ({"names": "ab"}, "names: a list is wanted, not str"),
        ({"names": ["a", 1]}, "names: str is wanted, not int"),
        ({"numbers": [1, False]}, "numbers: int is wanted, not bool"),
        ({"numbers": [1, 2**63]}, "numbers: beyond 64 bits"),
        ({"inners": [{"name": "x"}, 5]}, "inners: a map of fields is wanted, not int"),
        ({"inners": [{"size": 1}]}, "name: missing"),
        ({"inner": {"name": 1}}, "name: str is wanted, not int"),
    ],
)
def test_a_wrong_type_is_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Invalid) as caught:
        packing.unpack(Body, body(**values))
    assert caught.value.detail == said


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        body()[:-1],
        body() + b"\x00",
        b"\x81\xa4text\xa1\xff",  # not UTF-8
        b"\x82\xa4text\xa1a\xa4text\xa1b",  # twice
        b"\x81\x01\x02",  # a number as a name
        b"\xdd\xff\xff\xff\xff",  # a list that claims 2**32 - 1 items
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb({"text": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"text": "t", "names": ["a"] * (BATCH_ITEMS_MAX + 1)}),
        b"\x91" * 5_000,
    ],
)
def test_what_is_not_msgpack_within_the_limits_is_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="body: not msgpack within the limits"):
        packing.unpack(Body, data)


@pytest.mark.parametrize("data", [b"\x90", b"\xc0", b"\x05"])
def test_a_body_is_a_map(data: bytes) -> None:
    with pytest.raises(Invalid, match="body: a map of fields is wanted"):
        packing.unpack(Body, data)


def test_nesting_ends_at_its_limit_also_in_fields_nobody_knows() -> None:
    packing.unpack(Body, body(later=nested(DEPTH_MAX - 1)))
    with pytest.raises(Invalid, match=f"nested deeper than {DEPTH_MAX}"):
        packing.unpack(Body, body(later=nested(DEPTH_MAX)))


def test_a_body_has_a_size() -> None:
    with pytest.raises(Invalid, match=f"the limit is {REQUEST_BYTES_MAX}"):
        packing.unpack(Body, bytes(REQUEST_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (Body(text=b"t"), "text: str is wanted, not bytes"),  # type: ignore[arg-type]
        (Body(text="\ud800"), "text: not UTF-8"),
        (Body(text="t", names=("a", "\udfff")), "names: not UTF-8"),
        (Body(text="t", names=["a"]), "names: a tuple is wanted, not list"),  # type: ignore[arg-type]
        (Body(text="t", number=2**63), "number: beyond 64 bits"),
        (Body(text="t", number=1.5), "number: int is wanted, not float"),  # type: ignore[arg-type]
        (Body(text="t", inner=Inner(name=1)), "name: str is wanted, not int"),  # type: ignore[arg-type]
        (Body(text="t", inners=(1,)), "inners: Inner is wanted, not int"),  # type: ignore[arg-type]
        (Body(text="t", inners=[]), "inners: a tuple is wanted, not list"),  # type: ignore[arg-type]
    ],
)
def test_an_object_is_asked_the_same_before_it_is_sent(value: Body, said: str) -> None:
    with pytest.raises(Invalid) as caught:
        packing.check(value)
    assert caught.value.detail == said


def test_a_type_that_no_body_has_is_a_mistake_of_the_program() -> None:
    for kind in (float, dict[str, int], tuple[int, str], int | str):
        with pytest.raises(TypeError):
            packing.decoder(kind)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_body_or_invalid(data: bytes) -> None:
    try:
        packing.unpack(Body, data)
    except Invalid:
        return


@given(st.data())
def test_a_body_with_one_byte_changed_is_a_body_or_invalid(data: st.DataObject) -> None:
    whole = bytearray(packing.pack(FULL))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] = data.draw(st.integers(0, 255))
    try:
        found = packing.unpack(Body, bytes(whole))
    except Invalid:
        return
    packing.check(found)


def test_every_beginning_of_a_body_is_refused() -> None:
    whole = packing.pack(FULL)
    for end in range(len(whole)):
        with pytest.raises(Invalid):
            packing.unpack(Body, whole[:end])


@dataclass(frozen=True, slots=True)
class OldRow:
    name: str
    inners: tuple[Inner, ...]


@dataclass(frozen=True, slots=True)
class NewRow:
    name: str
    inners: tuple[Inner, ...]
    since: int = 7
    tags: tuple[str, ...] = ()


def test_a_row_grows_at_its_end() -> None:
    old = OldRow("n", (Inner(name="x"),))
    data = packing.row_packer()((5, packing.row_values(old)))
    revision, values = packing.unpack_values(data)
    assert revision == 5
    assert packing.row_of(NewRow, [*values]) == NewRow("n", old.inners)
    assert packing.row_of(OldRow, values) == old
    new = NewRow("n", old.inners, 8, ("a",))
    revision, values = packing.unpack_values(packing.row_packer()((6, packing.row_values(new))))
    assert (packing.row_of(NewRow, values), revision) == (new, 6)
