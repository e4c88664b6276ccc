"""Bad input for every command and query: refused by name, and not a byte of the state changes.

Each field in turn gets each wrong value; each body is cut, flipped and grown. What is admitted all
the same is applied, and nothing but a refusal may come of it either (laws 8 and 18).
"""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from typing import Any

import msgpack
import pytest

from state_machines import op, packing
from state_machines.errors import Invalid
from state_machines.limits import DEPTH_MAX, PARTS_MAX, VALUES_MAX
from state_machines.machine import Machine
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.entities.group import Group, rows_but_books
from tests.machine.plausible import history

BOMB: list[Any] = []
for _ in range(DEPTH_MAX + 1):
    BOMB = [BOMB]

WRONG: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63)),
    *(0.0, 1.5, float("nan"), float("inf")),
    *("", "x", "x" * 257, "x" * 65_536, "a\0b", "a/#/b", "+a", "../..", "\u202e", "a\nERROR: b"),
    *(b"", b"\xff", b"x" * 300, [], [1], ["a"], [None], [[]], [1.5], [2**63], {}, {"a": 1}, [{}]),
    *(BOMB, msgpack.ExtType(1, b""), msgpack.Timestamp(1)),
]
"""What a field may be told that it must not be; some of it is right for some fields."""


def sample(hint: Any) -> Any:
    """A plain value of an annotated type."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return sample(arguments[0])
    if origin is tuple:
        return [sample(arguments[0])]
    if dataclasses.is_dataclass(hint):
        return fields_of(hint)
    return {str: "a", int: 1, bytes: b"1", bool: True}[hint]


def fields_of(cls: Any) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {each.name: sample(hints[each.name]) for each in dataclasses.fields(cls)}


OPERATIONS = {
    tag: cls for tag, cls in {**op.COMMANDS, **op.QUERIES}.items() if tag != op.REGISTER_TAG
}
each_operation = pytest.mark.parametrize("tag", sorted(OPERATIONS))


class Target:
    """A group that has seen a little of everything, and is told one body after the other."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        kind = op.kind(OPERATIONS[tag]) or "metadata"
        store = MemoryKeyValue()
        machine = Machine(kind, f"{kind}-0", store)
        for index, batch in enumerate(history(kind, random.Random(4), 15), 1):
            machine.apply(Entry(1, index, batch.SerializeToString()))
        self.group = Group(kind, store)
        self.refused = self.taken = 0
        self.before = rows_but_books(store)

    def tell(self, body: bytes) -> None:
        group, tag = self.group, self.tag
        command = api.Command(tag=tag, body=body)
        if tag in op.QUERIES:
            reply = group.machine.query([command], group.now_ms)
        else:
            proposal = group.proposal()
            proposal.commands.append(command)
            admitted = ""
            try:
                group.machine.admit(proposal)
            except Invalid as error:
                admitted = error.detail
                assert admitted.isprintable(), "nobody writes lines into our logs"
            (reply,) = group.entry(proposal)
            if admitted:
                assert (reply.results[0].code, reply.results[0].detail) == (api.INVALID, admitted)
        (result,) = reply.results
        if result.code == api.OK:
            self.taken += 1
            self.before = rows_but_books(group.store)
            return
        self.refused += 1
        assert ":" in result.detail, "a refusal names the field"
        assert len(result.detail) < 1_000
        assert result.detail.isprintable()
        assert rows_but_books(group.store) == self.before

    def tell_fields(self, fields: dict[str, Any]) -> None:
        self.tell(bytes(msgpack.packb(fields)))


@each_operation
def test_every_wrong_value_of_every_field(tag: str) -> None:
    target = Target(tag)
    good = fields_of(OPERATIONS[tag])
    for name in good:
        for value in WRONG:
            target.tell_fields({**good, name: value})
        target.tell_fields({other: value for other, value in good.items() if other != name})
        if isinstance(good[name], list) and isinstance(good[name][0], dict):
            for inner in good[name][0]:
                for value in WRONG:
                    target.tell_fields({**good, name: [{**good[name][0], inner: value}]})
    target.tell_fields({**good, "unknown": WRONG[:1] * 3, "": {"a": {"b": []}}})
    assert target.refused >= 20 * len(good)


@each_operation
def test_every_cut_and_many_flips_of_a_body(tag: str) -> None:
    target = Target(tag)
    rng = random.Random(tag)
    body = bytes(msgpack.packb(fields_of(OPERATIONS[tag])))
    for size in range(len(body)):
        target.tell(body[:size])
    assert target.taken == 0, "a body is whole or none"
    for _ in range(60):
        flipped = bytearray(body)
        flipped[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        target.tell(bytes(flipped))
    for _ in range(20):
        target.tell(rng.randbytes(rng.randrange(40)))
        target.tell(body + rng.randbytes(rng.randrange(1, 5)))


@each_operation
def test_bodies_that_are_no_body(tag: str) -> None:
    target = Target(tag)
    for body in (
        b"",
        b"\xc1",
        b"\x91" * 10_000,
        b"\x81\xa1a" * 10_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\x7f\xff\xff\xff",
        b"\x82\xa1a\x01\xa1a\x02",
        b"\x81\xa1\xff\x01",
        b"\x81\x01\x01",
        b"\x81\xc0\x01",
        bytes(msgpack.packb([0] * 10_001)),
        bytes(msgpack.packb({str(number): 0 for number in range(10_001)})),
    ):
        target.tell(body)
    assert target.taken == 0


def test_a_body_of_nothing_but_lists_is_refused_while_it_is_small() -> None:
    """Each costs a byte to say and an object to make: 4 MiB of them took seconds and 300 MiB."""

    def lists(count: int) -> bytes:
        return bytes(msgpack.packb([[[]] * 1_000] * (count // 1_000)))

    packing.load(lists(PARTS_MAX - 1_000))
    with pytest.raises(Invalid, match="65536 lists and maps"):
        packing.load(lists(PARTS_MAX + 1_000))


def test_a_body_that_is_not_counted_cannot_be_too_much() -> None:
    maps = packing.FEW_BYTES - 3
    densest = b"\xdc" + maps.to_bytes(2, "big") + b"\x80" * maps
    spent = packing.Spent()
    assert packing.load(densest, spent=spent) == packing.load(densest) == [{}] * maps
    assert spent.parts == maps + 1 < PARTS_MAX
    assert spent.values == 3 * maps < VALUES_MAX
