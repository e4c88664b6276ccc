"""A run does what its operations would do one after the other, and is checked as they are."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import MISSING, fields
from types import NoneType
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from state_machines import columnar, op, packing, runs
from state_machines.errors import Conflict, Invalid, WrongShard
from state_machines.limits import (
    BATCH_ITEMS_MAX,
    DEPTH_MAX,
    REPLY_BYTES_MAX,
    VALUE_BYTES_MAX,
)
from state_machines.metadata.kv import STEP_PAIRS, DeleteKv, GetKv, PutKv
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.offset.offset import CommitOffsets, FetchOffsets, ListOffsets, OffsetCommit
from state_machines.slots import SLOTS, Own, SlotRange, slot_of
from state_machines.wire import api_pb2 as api
from tests.bad_input.bodies import FITTING, plain
from tests.bad_input.values import nested
from tests.machine.alone import Group, outcomes
from tests.machine.operations import commands

KINDS = sorted({op.kind(cls) for cls in op.COMMANDS.values() if columnar.flat(cls)} - {""})


def wire(operations: Sequence[Any], count: int | None = None) -> api.Command:
    """Some operations of one class as a run."""
    said = len(operations) if count is None else count
    return api.Command(
        tag=op.tag(operations[0]), body=runs.body_of(runs.of(operations)), count=said
    )


def carried_out(group: Group, operations: Sequence[Any]) -> list[Any]:
    """What comes of a run of commands: replies, and refusals in words."""
    proposal = group.proposal()
    proposal.commands.append(wire(operations))
    group.machine.admit(proposal)
    (reply,) = group.entry(proposal)
    return told(operations, reply)


def told(operations: Sequence[Any], reply: api.Reply) -> list[Any]:
    """The outcome of each operation of a run."""
    assert reply.code == api.OK, reply.detail
    (result,) = reply.results
    refused = {each.place: f"{api.Code.Name(each.code)} {each.detail}" for each in result.refusals}
    replies = iter(
        runs.unpack_replies(type(operations[0]), len(operations) - len(refused), result.body)
    )
    return [
        refused[place] if place in refused else next(replies) for place in range(len(operations))
    ]


@given(st.data())
@settings(max_examples=60)
def test_a_run_of_any_flat_class_survives_the_wire(data: st.DataObject) -> None:
    made = data.draw(st.lists(commands(data.draw(st.sampled_from(KINDS))), max_size=20))
    classes: set[Any] = {type(each) for each in made}
    for cls in filter(columnar.flat, classes):
        same = [each for each in made if type(each) is cls]
        body = runs.body_of(runs.of(same))
        run = runs.unpack(cls, len(same), body)
        assert run.operations() == same
        assert runs.body_of(runs.of(run.operations())) == body, "the same bytes twice"
        weight = sum(map(runs.weight, same))
        assert len(body) <= weight + 300
        assert runs.weight_of(runs.of(same).columns.values()) == weight


KEYS = st.sampled_from(["a", "b", "c", "ä", "x" * 300])
PUTS = st.builds(
    PutKv,
    key=KEYS,
    value=st.binary(max_size=3),
    expected_revision=st.one_of(st.none(), st.integers(0, 9)),
)


@given(before=st.lists(PUTS, max_size=4), run=st.lists(PUTS, min_size=1, max_size=12))
@settings(max_examples=150)
def test_puts_as_a_run_are_puts_one_by_one(before: list[PutKv], run: list[PutKv]) -> None:
    together, apart = Group("metadata"), Group("metadata")
    for group in (together, apart):
        if before:
            group.together(*before)
        group.together(DeleteKv(key="a"))
    first = carried_out(together, run)
    second = [
        f"{each.code} {each.detail}" if isinstance(each, Conflict) else each
        for each in apart.together(*run)
    ]
    assert first == second
    assert together.store.dump().keys() == apart.store.dump().keys()
    for key in ("a", "b", "c", "ä", "x" * 300):
        assert together.ask(GetKv(key=key)) == apart.ask(GetKv(key=key))


def test_a_run_gives_newer_revisions_to_keys_whose_own_ran_ahead() -> None:
    group = Group("metadata")
    puts = [PutKv(key="k", value=b"%d" % n) for n in range(5)]
    ahead = group.together(*puts)[-1]
    reply = carried_out(group, [PutKv(key=key, value=b"") for key in ("k", "l", "m")])
    assert ahead >= group.index
    assert reply == [ahead + 1, group.index, group.index]


OPENS = st.builds(
    OpenSession,
    client_id=st.sampled_from("abcdefgh"),
    broker=st.sampled_from(["b1", "b2"]),
    expiry_s=st.sampled_from([0, 5, 60]),
    clean_start=st.booleans(),
)


@given(st.lists(OPENS, min_size=1, max_size=8), st.lists(OPENS, min_size=1, max_size=8))
@settings(max_examples=80)
def test_sessions_opened_as_a_run_are_sessions_opened_one_by_one(
    first: list[OpenSession], again: list[OpenSession]
) -> None:
    together, apart = Group("mqtt"), Group("mqtt")
    for part in (first, again):
        left = carried_out(together, part)
        right = apart.together(*part)
        assert left == right
        for group in (together, apart):
            for opened in {each.client_id: each for each in right}.values():
                named = {"client_id": opened.client_id, "epoch": opened.epoch}
                if opened.client_id in "aeh":  # what ends with these is more than a row
                    group.together(PutSubscriptions(**named, filters=(TopicFilter(filter="f"),)))
                if opened.client_id < "e":  # the others stay, and are opened again as they are
                    group.together(CloseSession(**named, expiry_s=5))
            group.together(OpenSession(client_id="z", broker="b1"))  # the last reply kept is alike
    assert together.store.dump() == apart.store.dump()


def test_reads_as_a_run_find_what_is_there_and_none_else() -> None:
    group = Group("metadata")
    group.run(PutKv(key="b", value=b"2"))
    asked = [GetKv(key=key) for key in "abc"]
    reply = group.machine.query([wire(asked)], group.now_ms)
    (nothing, found, neither) = told(asked, reply)
    assert (nothing, neither) == (None, None)
    assert found == group.ask(GetKv(key="b"))


def test_replies_that_are_lists_come_in_runs_too() -> None:
    """Found by the nemesis: two brokers that fetched offsets at once stopped their leader."""
    group = Group("offset")
    commits = [OffsetCommit(group="g", topic="t", partition=n, offset=n) for n in range(3)]
    group.run(CommitOffsets.of(commits))
    fetches = [FetchOffsets(group="g"), FetchOffsets(group="nobody")]
    assert told(fetches, group.machine.query([wire(fetches)], group.now_ms)) == [
        group.ask(each) for each in fetches
    ]
    lists = [ListOffsets(group="g", limit=2), ListOffsets(), ListOffsets(group="nobody")]
    assert told(lists, group.machine.query([wire(lists)], group.now_ms)) == [
        group.ask(each) for each in lists
    ]


FLAT_QUERIES = [cls for cls in op.QUERIES.values() if columnar.flat(cls)]


@pytest.mark.parametrize("cls", FLAT_QUERIES, ids=lambda cls: op.TAGS[cls])
def test_a_run_of_any_flat_query_is_answered_as_one_by_one(cls: Any) -> None:
    group = Group(op.kind(cls) or "metadata")
    required: dict[str, Any] = {}
    for each in fields(cls):
        if each.default is MISSING:
            required[each.name] = {"str": "x", "int": 1, "bytes": b"x", "bool": True}[
                str(each.type)
            ]
    fitting = FITTING.get(op.TAGS[cls], {})
    required.update({name: fitting[name] for name in required if name in fitting})
    asked = [cls(**required)] * 3
    one = group.machine.query(
        [api.Command(tag=op.TAGS[cls], body=op.encode(asked[0]))], group.now_ms
    ).results[0]
    together = told(asked, group.machine.query([wire(asked)], group.now_ms))
    if one.code == api.OK:
        assert together == [op.decode_reply(asked[0], one.body)] * 3
    else:
        assert together == [f"{api.Code.Name(one.code)} {one.detail}"] * 3


def test_a_reply_that_grows_too_large_refuses_the_rest_of_the_run() -> None:
    group = Group("metadata")
    group.run(PutKv(key="big", value=b"x" * VALUE_BYTES_MAX))
    asked = [GetKv(key="big")] * 20
    (result,) = group.machine.query([wire(asked)], group.now_ms).results
    places = [each.place for each in result.refusals]
    assert places == list(range(places[0], 20)), "from some place on, all"
    assert {each.code for each in result.refusals} == {api.QUOTA_EXCEEDED}
    assert 8 <= places[0] <= 9


def test_reads_as_a_run_have_the_room_that_they_have_one_by_one() -> None:
    """Also beyond those that are read at once, and where some find nothing."""
    group = Group("metadata")
    group.run(PutKv(key="ä", value=b"x" * 100_000))
    asked = [GetKv(key="none"), GetKv(key="ä")] * 100
    sizes = [runs.weight(group.ask(each)) for each in asked[:2]] * 100
    before = itertools.accumulate(sizes, initial=0)
    fits = [size <= REPLY_BYTES_MAX for size, _ in zip(before, asked, strict=False)]
    assert 2 * STEP_PAIRS < fits.index(False) < len(asked)
    found = told(asked, group.machine.query([wire(asked)], group.now_ms))
    assert [not isinstance(each, str) for each in found] == fits
    assert found[: fits.index(False)] == [group.ask(each) for each in asked[: fits.index(False)]]


def test_a_moved_slot_is_refused_alone() -> None:
    group = Group("metadata")
    half = slot_of(("default", "a"))
    first, last = (0, half) if half < SLOTS - 1 else (half, SLOTS - 1)
    own = SlotRange(first, last, "metadata-0")
    group.run(Own(controller_epoch=1, group_kind="metadata", version=3, ranges=(own,)))
    away = next(f"k{n}" for n in range(99) if not first <= slot_of(("default", f"k{n}")) <= last)
    found = carried_out(group, [PutKv(key="a", value=b""), PutKv(key=away, value=b"")])
    assert isinstance(found[0], int)
    assert found[1].startswith(WrongShard.code)


@pytest.mark.parametrize(
    ("columns", "count", "said"),
    [
        ({"key": ["a", "b"], "value": [b"", b""]}, 3, "key: a list of 3"),
        ({"key": ["a", "b"]}, 2, "value: missing"),
        ({"key": ["a", 5], "value": [b"", b""]}, 2, "key: str is wanted, not int"),
        ({"key": "ab", "value": [b"", b""]}, 2, "key: a list of 2"),
        ({"key": ["a", ""], "value": [b"", b""]}, 2, "key: empty"),
        ({"key": ["a", "b\0"], "value": [b"", b""]}, 2, "key: contains NUL"),
        ({"key": ["a", "b" * 401], "value": [b"", b""]}, 2, "key: 401 bytes"),
        ({"key": ["a", "ä" * 201], "value": [b"", b""]}, 2, "key: 402 bytes"),
        ({"key": ["a"], "value": [b"x" * (VALUE_BYTES_MAX + 1)]}, 1, "value: "),
        ({"key": ["a"], "value": [b""], "expected_revision": [-1]}, 1, "expected_revision: -1"),
        (
            {"key": ["a"], "value": [b""], "expected_revision": [2**63]},
            1,
            "expected_revision: ",
        ),
        ([], 1, "body: a map"),
        ({}, BATCH_ITEMS_MAX + 1, "commands: "),
    ],
)
def test_a_run_beyond_the_limits_is_not_admitted(columns: Any, count: int, said: str) -> None:
    group = Group("metadata")
    body = msgpack.packb(columns)
    proposal = group.proposal()
    proposal.commands.add(tag="metadata.kv.put", body=body, count=count)
    with pytest.raises(Invalid) as caught:
        group.machine.admit(proposal)
    assert caught.value.detail.startswith(said)


def test_only_flat_classes_come_in_runs() -> None:
    assert not columnar.flat(PutSubscriptions)
    group = Group("mqtt")
    proposal = group.proposal()
    proposal.commands.add(tag=op.TAGS[PutSubscriptions], body=b"\x80", count=2)
    with pytest.raises(Invalid, match="does not come in runs"):
        group.machine.admit(proposal)


def test_what_nobody_knows_is_not_nested_too_deep_either() -> None:
    def body(depth: int) -> bytes:
        return bytes(msgpack.packb({"key": ["a"], "later": nested(depth)}))

    assert runs.unpack(GetKv, 1, body(DEPTH_MAX - 1)).columns["key"] == ["a"]
    with pytest.raises(Invalid, match=f"nested deeper than {DEPTH_MAX}"):
        runs.unpack(GetKv, 1, body(DEPTH_MAX))


@pytest.mark.parametrize(
    "body",
    [
        b"\xc0",
        b"\x90",
        b"\x91\x91\x05",
        b"\x92\x90\x91\x01",
        b"\x91\x92\x00\x00",
        b"\x94\x91\x00\x90\x90\x90",
    ],
)
def test_replies_that_do_not_fit_are_invalid(body: bytes) -> None:
    with pytest.raises(Invalid, match=r"^reply"):
        runs.unpack_replies(GetKv, 2, body)


FLAT = [each for each in sorted(op.TAGS, key=op.TAGS.__getitem__) if columnar.flat(each)]


@pytest.mark.parametrize("kind", FLAT, ids=op.TAGS.get)
def test_replies_of_a_run_are_what_they_are_alone(kind: Any) -> None:
    hint = op.reply_type(kind)
    reply = None if hint is NoneType else packing.decoder(hint)(plain(hint), "reply")
    body = runs.pack_replies(kind, [reply, reply])
    assert runs.unpack_replies(kind, 2, body) == [reply, reply]


@pytest.mark.parametrize("replies", [[1], [1, None], [1, "2"], [1, True], [1, 2**63], [1, [2]]])
def test_numbers_that_do_not_fit_are_invalid(replies: list[Any]) -> None:
    assert runs.unpack_replies(PutKv, 2, packing.pack((1, 2))) == [1, 2]
    with pytest.raises(Invalid, match=r"^reply"):
        runs.unpack_replies(PutKv, 2, msgpack.packb(replies))


def test_a_run_and_singles_share_a_proposal() -> None:
    group = Group("metadata")
    proposal = group.proposal(PutKv(key="one", value=b"1"))
    proposal.commands.append(wire([PutKv(key=key, value=b"2") for key in "ab"]))
    group.machine.admit(proposal)
    (reply,) = group.entry(proposal)
    (revision,) = outcomes([PutKv(key="one", value=b"1")], api.Reply(results=reply.results[:1]))
    assert revision == packing.unpack(int, reply.results[0].body, "reply")
    assert runs.unpack_replies(PutKv, 2, reply.results[1].body) == [revision, revision]
    assert {key: group.ask(GetKv(key=key)).value for key in ("one", "a", "b")} == {
        "one": b"1",
        "a": b"2",
        "b": b"2",
    }
