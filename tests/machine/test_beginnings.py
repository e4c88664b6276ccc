"""Beginnings of bodies: whether they are known or not, a body says the same or is refused alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state_machines import beginnings, op, packing
from state_machines.beginnings import NOTED_MAX, Beginning, Beginnings
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, DEPTH_MAX, INT_MAX, VALUES_MAX
from state_machines.offset import offset
from state_machines.offset.offset import CommitOffsets, MoreColumns
from state_machines.offset.recurring import Named
from tests.bad_input.values import nested

TAG: Final = "offset.commit"
FIRST: Final = ("tenant", "groups", "topics", "partitions")


@pytest.fixture(autouse=True, scope="module")
def every_body_is_looked_up() -> Iterator[None]:
    """Also the shortest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "SHORT_BYTES", 0)
        yield


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Beginnings[Named]:
    """Nothing is known."""
    return forget(monkeypatch)


def forget(patch: pytest.MonkeyPatch) -> Beginnings[Named]:
    made: Beginnings[Named] = Beginnings(3, "offsets")
    patch.setattr(offset, "BEGINNINGS", made)
    return made


def decode(body: bytes) -> Any:
    return op.decode(op.COMMANDS, TAG, body)


def plain(body: bytes) -> CommitOffsets:
    """What the body says when it is read as a whole."""
    made: CommitOffsets = packing.unpack(CommitOffsets, body)
    made.validate()
    return made


def outcome(read: Any, body: bytes) -> Any:
    try:
        return read(body)
    except Invalid as error:
        return error.detail


def learn(body: bytes) -> None:
    """A beginning is kept when it comes again."""
    for _ in range(2):
        outcome(decode, body)


def fields_of(batch: CommitOffsets) -> dict[str, Any]:
    found: dict[str, Any] = msgpack.unpackb(op.encode(batch))
    return found


# What looks as if it ended a beginning: the name of the field after it, as msgpack says it, may be
# within a text, for A7 is the second byte of a letter.
NAMES = st.sampled_from(("g", "offsets", "\u00e7offsets", "\u00a7offsets\x91", "h" * 40, ""))
PARTITIONS = st.sampled_from((0, 1, 200, 2**31 - 1, 2**31, -1))
NUMBERS = st.sampled_from((0, 7, 128, 70_000, INT_MAX, -1))


@st.composite
def batches(draw: st.DrawFn) -> CommitOffsets:
    """Mostly valid ones."""
    count = draw(st.integers(1, 4))

    def column(values: st.SearchStrategy[Any]) -> tuple[Any, ...]:
        if draw(st.booleans()):
            return (draw(values),) * count
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    return CommitOffsets(
        tenant=draw(NAMES),
        groups=column(NAMES),
        topics=column(NAMES),
        partitions=column(PARTITIONS),
        offsets=column(NUMBERS),
        metadata=column(st.sampled_from(("", "note", "\0"))) if draw(st.booleans()) else (),
        more=MoreColumns(leader_epochs=column(st.integers(-2, 3))) if draw(st.booleans()) else None,
    )


VALUES = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), NAMES),
        st.binary(max_size=3),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(("a", "more")), inner)
    ),
    max_leaves=6,
)
FIELDS = st.sampled_from((*FIRST, "offsets", "metadata", "more", "unknown", b"offsets"))


@pytest.mark.parametrize("depth", [1, DEPTH_MAX - 2, DEPTH_MAX - 1, DEPTH_MAX, 1_000])
@pytest.mark.parametrize("field", ["offsets", "more", "unknown"])
def test_what_is_nested_too_deep_is_refused_whether_the_beginning_is_known_or_not(
    field: str, depth: int
) -> None:
    batch = CommitOffsets(groups=("g",), topics=("t",), partitions=(0,), offsets=(7,))
    learn(op.encode(batch))
    fields = fields_of(batch)
    fields[field] = {"unknown": nested(depth - 1)} if field == "more" else nested(depth)
    body = msgpack.packb(fields)
    assert outcome(decode, body) == outcome(plain, body)


@st.composite
def bodies_like(draw: st.DrawFn, batch: CommitOffsets) -> bytes:
    """Bodies that begin as the body of this batch does, or nearly so."""
    fields: list[tuple[Any, Any]] = list(fields_of(batch).items())
    match draw(st.integers(0, 5)):
        case 0:  # other values at its end
            count = len(batch.groups)
            fields = fields[:4]
            fields.append(("offsets", draw(st.lists(NUMBERS, min_size=count, max_size=count))))
            if draw(st.booleans()):
                fields.append(("metadata", draw(st.lists(NAMES, max_size=count))))
        case 1:  # anything after the names
            fields = fields[: draw(st.integers(3, 5))]
            fields += draw(st.lists(st.tuples(FIELDS, VALUES), max_size=3))
        case 2:  # a field that is gone, or twice there, or elsewhere
            fields = draw(st.lists(st.sampled_from(fields), max_size=8))
        case 3:
            fields = list(draw(st.permutations(fields)))
        case 4:
            place = draw(st.integers(0, len(fields) - 1))
            fields[place] = (draw(FIELDS), fields[place][1])
    packer = msgpack.Packer()
    data = packer.pack_map_header(len(fields))
    data += b"".join([packer.pack(name) + packer.pack(value) for name, value in fields])
    for _ in range(draw(st.integers(0, 2))):  # bytes that are others, too few or too many
        place = draw(st.integers(0, len(data)))
        gone = draw(st.integers(0, 3))
        data = data[:place] + draw(st.binary(max_size=3)) + data[place + gone :]
    return bytes(data[: draw(st.integers(0, len(data)))] if draw(st.integers(0, 9)) == 0 else data)


@given(st.data())
def test_a_body_is_read_as_if_nothing_was_known(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:
        forget(patch)
        batch = data.draw(batches())
        learn(op.encode(batch))
        for _ in range(data.draw(st.integers(1, 3))):
            body = data.draw(bodies_like(batch))
            for _ in range(3):  # it may come to be known itself
                assert outcome(decode, body) == outcome(plain, body)


BATCH: Final = CommitOffsets(
    groups=("g",) * 3, topics=("t",) * 3, partitions=(0, 1, 2), offsets=(5, 6, 7)
)


def test_what_a_batch_names_is_read_once() -> None:
    body = op.encode(BATCH)
    assert decode(body).named is None, "what comes once is not kept"
    named = decode(body).named
    other = decode(op.encode(dataclasses.replace(BATCH, offsets=(8, 9, 10))))
    assert other.named is named
    assert other.groups is named.groups
    assert other.offsets == (8, 9, 10)
    assert [*named.keys] == [("default", "g", "t", partition) for partition in range(3)]
    assert named.keys.distinct


def test_a_name_may_look_like_the_end_of_a_beginning(known: Beginnings[Named]) -> None:
    body = op.encode(
        CommitOffsets(
            groups=("\u00e7offsets",) * 3,
            topics=("t",) * 3,
            partitions=(0, 1, 2),
            offsets=(5, 6, 7),
        )
    )
    for _ in range(4):
        assert decode(body) == plain(body)
    assert known.size == 0


@pytest.mark.parametrize(
    "rest",
    [
        {"offsets": [5, 6]},
        {"offsets": [5, 6, -7]},
        {"offsets": [5, 6, True]},
        {"offsets": [5, 6, 2**63]},
        {"offsets": [5, 6, 7.0]},
        {"offsets": "567"},
        {"offsets": [5, 6, 7], "metadata": ["m"]},
        {"offsets": [5, 6, 7], "metadata": ["m", "m", "\0"]},
        {"offsets": [5, 6, 7], "more": {"leader_epochs": [1]}},
        {"offsets": [5, 6, 7], "more": {"expected": [-2, 0, 0]}},
        {"offsets": [5, 6, 7], "more": [[]]},
        {"offsets": [5, 6, 7], "tenant": "other"},
        {"offsets": [5, 6, 7], "groups": ["x", "y", "z"]},
        {"offsets": [5, 6, 7], "unknown": 5},
    ],
)
def test_what_follows_is_checked_as_ever(rest: dict[str, Any], known: Beginnings[Named]) -> None:
    names = {name: fields_of(BATCH)[name] for name in FIRST}
    packer = msgpack.Packer()
    pairs = [*names.items(), *rest.items()]
    body = bytes(packer.pack_map_header(len(pairs)))
    body += b"".join([packer.pack(name) + packer.pack(value) for name, value in pairs])
    good = {"offsets": [1, 2, 3], "metadata": []}
    learn(msgpack.packb(names | dict([*good.items()][: len(rest)])))
    assert known.look(body).known is not None, "it begins like one that is known"
    assert outcome(decode, body) == outcome(plain, body)


def test_values_are_counted_over_the_whole_body() -> None:
    count = BATCH_ITEMS_MAX
    names = {
        "tenant": "default",
        "groups": ["g"] * count,
        "topics": ["t"] * count,
        "partitions": [0] * count,
    }
    learn(msgpack.packb(names | {"offsets": [0] * count, "more": None}))
    for columns in range(7, 12):
        more = {str(each): [0] * count for each in range(columns)}
        body = msgpack.packb(names | {"offsets": [0] * count, "more": more})
        assert outcome(decode, body) == outcome(plain, body)
        beyond = (4 + columns) * count > VALUES_MAX
        assert (type(outcome(decode, body)) is str) is beyond


# -- what is kept ---------------------------------------------------------------------------------


def body_of(number: int, items: int = 1) -> bytes:
    return op.encode(
        CommitOffsets(
            groups=(f"g-{number}",) * items,
            topics=("t",) * items,
            partitions=tuple(range(items)),
            offsets=(0,) * items,
        )
    )


def kept(some: Beginnings[str], body: bytes, items: int = 1) -> None:
    look = some.look(body)
    if look.again:
        some.keep(body, look, "said", items)


def test_what_is_kept_is_bounded() -> None:
    limit = 64 << 10
    some: Beginnings[str] = Beginnings(3, "offsets", limit_bytes=limit)
    largest = 0
    for number in range(200):
        for _ in range(2):
            kept(some, body_of(number))
            largest = max(largest, some.size)
    assert limit // 4 < largest <= limit
    assert some.look(body_of(199)).known is not None
    assert some.look(body_of(0)).known is None


def test_what_is_asked_for_stays() -> None:
    some: Beginnings[str] = Beginnings(3, "offsets", limit_bytes=64 << 10)
    for number in range(200):
        for _ in range(2):
            kept(some, body_of(number))
        found: Beginning[str] | None = some.look(body_of(0)).known
        assert found is not None
        assert found.said == "said"


def test_what_is_too_large_is_not_kept() -> None:
    some: Beginnings[str] = Beginnings(3, "offsets", limit_bytes=64 << 10)
    for _ in range(3):
        kept(some, body_of(0, 100), 100)
    assert some.size == 0


def test_what_came_once_is_forgotten_in_the_end() -> None:
    some: Beginnings[str] = Beginnings(3, "offsets")
    some.look(body_of(0))
    assert some.look(body_of(0)).again
    for number in range(1, NOTED_MAX + 1):
        some.look(body_of(number))
        assert len(some._noted) <= NOTED_MAX
    assert not some.look(body_of(0)).again


def test_two_that_have_the_same_mark_are_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "crc32", lambda data: 5)
    for number in (1, 2, 1, 2, 2, 1):
        learn(body_of(number))
        assert decode(body_of(number)) == plain(body_of(number))
