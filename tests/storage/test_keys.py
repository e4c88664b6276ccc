from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines.keyvalue import Part
from storage import keys
from storage.errors import BadKey

INTS = st.integers(-(1 << 63), (1 << 63) - 1)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.text(alphabet="a/\0é\U0001f600", max_size=200),
    st.integers(90, 100).map("x".__mul__),
    st.integers(300, 500).map("é".__mul__),
)
BLOBS = st.one_of(st.binary(max_size=8), st.integers(60, 500).map(b"\xff".__mul__))


@st.composite
def shaped(draw: st.DrawFn, size: int) -> list[tuple[Part, ...]]:
    """`size` keys of one shape."""
    kinds: list[st.SearchStrategy[Part]] = draw(
        st.lists(st.sampled_from([INTS, TEXTS, BLOBS]), min_size=1, max_size=4)
    )
    return [tuple(draw(kind) for kind in kinds) for _ in range(size)]


def encodable(key: tuple[Part, ...]) -> bool:
    return key not in {("",), (b"",)}


def test_the_layout_is_for_ever() -> None:
    assert keys.encode(("acme", 7, "a/b")) == b"\0\4acme\x80\0\0\0\0\0\0\7a/b"
    assert keys.encode((-1,)) == b"\x7f\xff\xff\xff\xff\xff\xff\xff"
    assert keys.encode(("t", b"\0\xff")) == b"\0\1t\0\xff"
    assert keys.encode(("", "")) == b"\0\0"
    assert keys.encode(("é", "é")) == b"\0\2\xc3\xa9\xc3\xa9"
    assert keys.entry_key(258) == b"\0\0\0\0\0\0\1\2"
    assert keys.entry_index(keys.entry_key(1 << 60)) == 1 << 60
    long = "x" * 65_535
    digest = sha256(long.encode()).digest()
    assert keys.encode((long, "a")) == b"\0\x60" + b"x" * 64 + digest + b"a"
    assert keys.encode(("t", long)) == b"\0\1t" + b"x" * (480 - 3 - 32) + digest


@settings(max_examples=200)
@given(st.integers(0, 5).flatmap(shaped))
def test_many_keys_are_encoded_as_each_is(some: list[tuple[Part, ...]]) -> None:
    if all(map(encodable, some)):
        assert keys.encode_many(tuple(some)) == [keys.encode(each) for each in some]


@pytest.mark.parametrize("tenant", ["", "t", "\u00e9", "t" * 96, "t" * 65_535])
@pytest.mark.parametrize("last", [("a", "b"), (1, 2), (1 << 40, -1)])
def test_keys_of_one_tenant_are_encoded_as_each_is(tenant: str, last: tuple[Part, ...]) -> None:
    some = tuple([(tenant, "topic", each) for each in last])
    assert keys.encode_many(some) == [keys.encode(each) for each in some]


@pytest.mark.parametrize(
    "odd",
    [
        ("a", True),
        ("a", 1 << 63),
        ("a", -(1 << 63) - 1),
        ("a", None),
        (True, 1),
        (None, 1),
    ],
)
def test_one_key_of_many_that_has_no_bytes_is_refused(odd: tuple[Part, ...]) -> None:
    with pytest.raises(BadKey):
        keys.encode_many((("a", 1), odd, ("a", 2)))


@settings(max_examples=200)
@given(shaped(2))
def test_two_keys_of_a_shape_meet_only_if_they_are_equal(pair: list[tuple[Part, ...]]) -> None:
    if not all(map(encodable, pair)):
        return
    first, second = map(keys.encode, pair)
    assert (first == second) == (pair[0] == pair[1])
    assert len(first) <= keys.KEY_BYTES


@settings(max_examples=200)
@given(st.tuples(TEXTS, INTS), INTS, INTS)
def test_integers_sort_by_value(lead: tuple[Part, ...], a: int, b: int) -> None:
    assert (keys.encode((*lead, a)) < keys.encode((*lead, b))) == (a < b)
    assert (keys.encode((*lead, a, "z")) < keys.encode((*lead, b, "a"))) == ((a, 1) < (b, 0))


@settings(max_examples=200)
@given(TEXTS, st.text(min_size=1, max_size=60), st.text(min_size=1, max_size=60))
def test_names_in_the_last_place_sort_by_their_bytes(lead: str, a: str, b: str) -> None:
    assert (keys.encode((lead, a)) < keys.encode((lead, b))) == (a.encode() < b.encode())


@settings(max_examples=200)
@given(shaped(6), st.data())
def test_a_prefix_covers_exactly_its_keys(
    some: list[tuple[Part, ...]], data: st.DataObject
) -> None:
    wanted = some[0][: data.draw(st.integers(0, len(some[0]) - 1))]
    first, end = keys.bounds(wanted)
    for key in filter(encodable, some):
        encoded = keys.encode(key)
        inside = first <= encoded and (end is None or encoded < end)
        assert inside == (key[: len(wanted)] == wanted)


@settings(max_examples=200)
@given(TEXTS, st.lists(st.text(alphabet="ab/é", min_size=1, max_size=6), min_size=1))
def test_a_beginning_covers_exactly_its_names(lead: str, names: list[str]) -> None:
    starts = names[0][:2]
    first, end = keys.bounds((lead,), starts)
    for name in names:
        encoded = keys.encode((lead, name))
        assert (first <= encoded and (end is None or encoded < end)) == name.startswith(starts)


def test_a_beginning_too_long_for_a_key_covers_all_that_agree_in_what_is_kept() -> None:
    wanted, other = "x" * 1000 + "a", "x" * 1000 + "b"
    first, end = keys.bounds(("t",), "x" * 1000 + "a")
    assert end is not None
    for name in (wanted, other):
        assert first <= keys.encode(("t", name)) < end
    assert not first <= keys.encode(("t", "y" * 1000)) < end
    kept = keys.KEY_BYTES - 3 - keys.DIGEST_BYTES
    first, end = keys.bounds(("t",), "x" * kept)  # what is kept is exact
    assert end is not None
    assert first <= keys.encode(("t", wanted)) < end
    assert not first <= keys.encode(("t", "x" * (kept - 1) + "y" * 900)) < end


@settings(max_examples=200)
@given(st.lists(st.tuples(INTS, st.text(max_size=3)), min_size=1, max_size=8), INTS)
def test_upto_covers_the_integers_at_most_that(due: list[tuple[int, str]], upto: int) -> None:
    first, end = keys.bounds(("t",), upto=upto)
    for when, name in due:
        for key in (("t", when, name), ("t", when)):  # in the middle and in the last place
            encoded = keys.encode(key)
            assert (first <= encoded and (end is None or encoded < end)) == (when <= upto)


def test_upto_at_the_ends() -> None:
    top, bottom = (1 << 63) - 1, -(1 << 63)
    first, end = keys.bounds(("t",), upto=top)
    assert end is not None
    assert first <= keys.encode(("t", top, "z")) < end
    first, end = keys.bounds((), upto=top)
    assert end is None
    first, end = keys.bounds((), upto=bottom)
    assert end is not None
    assert keys.encode((bottom, "z")) < end <= keys.encode((bottom + 1, ""))


def test_after_is_exclusive_and_never_leaves_the_range() -> None:
    token = keys.encode(("t", "m"))
    first, _ = keys.bounds(("t",), after=token)
    assert token < first <= keys.encode(("t", "m\0"))
    first, end = keys.bounds(("t",), after=keys.encode(("s", "z")))
    assert first == keys.bounds(("t",))[0]
    first, end = keys.bounds(("t",), after=b"\xff" * 70_000)  # a made-up token finds nothing
    assert end is not None
    assert first > end
    assert len(first) <= keys.KEY_BYTES + 1


def test_no_name_can_be_made_up_that_meets_anothers_hash() -> None:
    # A hashed part has a length that no unhashed part of the place has.
    long = b"v" * 1000
    for place in (lambda part: (part, "x"), lambda part: ("x", part)):
        hashed = keys.encode(place(long))
        lead = 2 if place(b"")[0] == b"" else 3
        forged = hashed[lead : lead + (keys.PART_BYTES if lead == 2 else keys.KEY_BYTES)]
        assert keys.encode(place(forged)) != hashed


@pytest.mark.parametrize(
    "key",
    [
        (),
        ("",),
        (b"",),
        (1.5,),
        (True,),
        (None,),
        ("t", True),
        (True, "t"),
        (("a",), "t"),
        (1 << 63,),
        (-(1 << 63) - 1, "t"),
        (bytearray(b"a"),),
        ("x" * 96,) * 6,
    ],
)
def test_what_has_no_bytes_is_refused(key: tuple[Part, ...]) -> None:
    with pytest.raises(BadKey):
        keys.encode(key)
    if len(key) == 6:
        with pytest.raises(BadKey, match="leading parts"):
            keys.bounds(key[:5])


def test_four_long_leading_parts_still_fit() -> None:
    key = ("x" * 1000, "y" * 1000, "z" * 1000, "w" * 1000, "v" * 1000)
    assert len(keys.encode(key)) == keys.KEY_BYTES


def test_long_beginnings_are_not_remembered() -> None:
    """A client id may have 65 535 bytes: those of 8 192 clients took 515 MB for good."""
    kept = keys._lead.cache_info().currsize
    some = [("t", f"{number}" + "c" * 65_000, "a/b") for number in range(10)]
    assert keys.encode_many(some) == [keys.encode(each) for each in some]
    assert keys._lead.cache_info().currsize == kept


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [(b"", None), (b"a", b"b"), (b"a\xff", b"b"), (b"\xff\xff", None), (b"a\xff\0", b"a\xff\1")],
)
def test_successor(prefix: bytes, expected: bytes | None) -> None:
    assert keys.successor(prefix) == expected
