"""Lists of rows in replies, as columns: what an asker reads who said so."""

from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines import columnar, op, packing, runs
from state_machines.columnar import ROWS_MIN
from state_machines.errors import Invalid
from state_machines.metadata.kv import KvEntry, KvPage, PutKv, RangeKv
from state_machines.mqtt.subscription import PutSubscriptions
from state_machines.wire import api_pb2 as api
from tests.machine import operations
from tests.machine.alone import Group, outcomes, wire

REPLIES = {tag: op.reply_type(cls) for tag, cls in sorted(op.QUERIES.items())}


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    owner: str | None
    words: tuple[str, ...]
    place: int = 7


def read(kind: Any, body: bytes) -> Any:
    """What an asker makes of it."""
    return columnar.decoder(kind)(packing.load(body, "reply"), "reply")


@pytest.mark.parametrize("tag", REPLIES)
@given(data=st.data())
@settings(max_examples=25)
def test_what_a_query_may_answer_is_read_back_however_it_was_packed(
    tag: str, data: st.DataObject
) -> None:
    """An older replica packs a list of rows one after the other."""
    reply = data.draw(operations.values(REPLIES[tag]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columnar, "ROWS_MIN", 3)  # lists that are drawn have no more
        assert read(REPLIES[tag], columnar.pack(reply)) == reply
    assert read(REPLIES[tag], packing.pack(reply)) == reply


@pytest.mark.parametrize("kind", [None, 7, "a", (), (1, 2, 3, 4), ("a",) * 4])
def test_what_has_no_rows_is_packed_as_it_was(kind: Any) -> None:
    assert columnar.pack(kind) == packing.pack(kind)


def test_a_few_rows_stay_a_list_and_more_are_a_map_of_columns() -> None:
    rows = [Row(f"n{number}", None, ("a", "b"), number) for number in range(ROWS_MIN)]
    assert type(msgpack.unpackb(columnar.pack(tuple(rows[1:])))) is list
    assert msgpack.unpackb(columnar.pack(tuple(rows))) == {
        "name": [f"n{number}" for number in range(ROWS_MIN)],
        "owner": [None] * ROWS_MIN,
        "words": [["a", "b"]] * ROWS_MIN,
        "place": list(range(ROWS_MIN)),
    }
    page = msgpack.unpackb(columnar.pack(KvPage((KvEntry("k", b"v", 1),) * 9, b"t")))
    assert page == {
        "entries": {"key": ["k"] * 9, "value": [b"v"] * 9, "revision": [1] * 9},
        "next": b"t",
    }


def test_columns_that_a_newer_replica_has_are_dropped_and_missing_ones_are_the_default() -> None:
    given = {"name": ["a", "b"], "owner": ["x", None], "words": [[], ["w"]], "later": [1, 2]}
    assert read(tuple[Row, ...], msgpack.packb(given)) == (
        Row("a", "x", (), 7),
        Row("b", None, ("w",), 7),
    )


GOOD: dict[str, Any] = {"name": ["a", "b"], "owner": [None] * 2, "words": [[]] * 2, "place": [1, 2]}


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({**GOOD, "place": [1]}, "place: a list of 2 is wanted"),
        ({**GOOD, "place": [1, 2, 3]}, "place: a list of 2 is wanted"),
        ({**GOOD, "place": 5}, "place: a list of 2 is wanted"),
        ({**GOOD, "place": [1, 2**63]}, "place: beyond 64 bits"),
        ({**GOOD, "place": [1, True]}, "place: int is wanted, not bool"),
        ({**GOOD, "owner": [None, 1]}, "owner: NoneType or str is wanted, not int"),
        ({**GOOD, "words": [[], "w"]}, "words: a list is wanted, not str"),
        ({**GOOD, "words": [[], [1]]}, "words: str is wanted, not int"),
        ({**GOOD, "name": None}, "reply: a list of rows is wanted, or columns of one"),
        ({"name": ["a"], "words": [[]]}, "owner: missing"),
        ({"place": [1]}, "name: missing"),
        ({"later": [1]}, "reply: a list of rows is wanted, or columns of one"),
        ({}, "reply: a list of rows is wanted, or columns of one"),
        (7, "reply: a list is wanted, not int"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(wrong: Any, says: str) -> None:
    assert len(read(tuple[Row, ...], msgpack.packb(GOOD))) == 2
    with pytest.raises(Invalid) as refused:
        read(tuple[Row, ...], msgpack.packb(wrong))
    assert refused.value.detail == says


def test_what_is_asked_or_commanded_is_no_columns() -> None:
    """A replica that reads them would let in what another does not."""
    body = msgpack.packb({"client_id": "c", "epoch": 1, "filters": {"filter": ["a", "b"]}})
    with pytest.raises(Invalid, match=r"^filters: a list is wanted"):
        packing.unpack(PutSubscriptions, body)


def test_only_who_says_so_is_answered_in_columns() -> None:
    group = Group("metadata")
    for number in range(ROWS_MIN):
        group.run(PutKv(key=f"k{number}", value=b"v"))
    range_, found = RangeKv(), []
    run = api.Command(tag=op.tag(range_), body=runs.body_of(runs.of([range_] * 2)), count=2)
    for asked in (wire(range_), run):
        for columns in (False, True):
            reply = group.machine.query([asked], group.now_ms, columns=columns)
            (result,) = reply.results
            plain = msgpack.unpackb(result.body)
            pages = plain if asked.count else [plain]
            kind = dict if columns else list
            assert [type(each["entries"]) for each in pages] == [kind] * len(pages)
            if not asked.count:
                found += outcomes([range_], reply)
    assert found[0] == found[1]
    assert [each.key for each in found[0].entries] == [f"k{number}" for number in range(ROWS_MIN)]


def test_rows_of_every_list_are_made_without_their_init() -> None:
    """So none may do more in it than set its fields."""
    kinds = {
        row
        for hint in REPLIES.values()
        for each in (hint, *typing.get_args(hint), *_hints(hint))
        for row in typing.get_args(each)
        if typing.get_origin(each) is tuple and hasattr(row, "__dataclass_fields__")
    }
    assert len(kinds) > 30
    for kind in kinds:
        assert not hasattr(kind, "__post_init__"), kind
        assert "__slots__" in vars(kind), kind


def _hints(hint: Any) -> list[Any]:
    kinds = [each for each in (hint, *typing.get_args(hint)) if hasattr(each, "__annotations__")]
    return [each for kind in kinds for each in typing.get_type_hints(kind).values()]
