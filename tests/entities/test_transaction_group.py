"""A transaction lies in one group: it finds it by what it carries, or is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from state_machines import op
from state_machines.errors import Invalid, WrongShard
from state_machines.lease import ExpireLeases
from state_machines.metadata.kv import KV, GetKv, Kv, PutKv, RangeKv
from state_machines.metadata.node import NODES, RegisterNode
from state_machines.metadata.slot_map import GetSlots
from state_machines.mqtt.session import OpenSession
from state_machines.mqtt.topic import TOPICS, CreateTopics, GetTopic
from state_machines.offset.offset import OFFSETS
from state_machines.slots import SLOTS, Own, SlotMap, SlotRange, slot_of
from state_machines.tables import TABLES, Table
from state_machines.transaction import Compare, Transaction
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group


@pytest.fixture
def group() -> Group:
    return Group("metadata")


HALVES = (
    SlotRange(0, SLOTS // 2 - 1, "metadata-0"),
    SlotRange(SLOTS // 2, SLOTS - 1, "metadata-1"),
)
TWO = SlotMap(3, {"metadata": HALVES})


def keys_of(number: int, count: int = 2) -> list[str]:
    """Keys that lie in one of the halves."""
    owned = HALVES[number]
    found = (f"k{n}" for n in range(10_000))
    lie = (key for key in found if owned.first <= slot_of(("default", key)) <= owned.last)
    return [next(lie) for _ in range(count)]


def test_it_finds_its_group_by_what_it_carries() -> None:
    (low, lower), (high, higher) = keys_of(0), keys_of(1)

    def route(*then: Any, compare: Sequence[Compare] = ()) -> str:
        made = Transaction.of(compare=compare, then=then)
        ((group, part),) = TWO.route(made)
        assert part is made
        return group

    assert route(PutKv(key=low, value=b""), GetKv(key=lower)) == "metadata-0"
    assert route(PutKv(key=high, value=b""), GetKv(key=higher)) == "metadata-1"
    assert route(RangeKv(), compare=[Compare.exists(KV, "default", high)]) == "metadata-1"
    assert route(RegisterNode(node_id="n"), PutKv(key=low, value=b"")) == "metadata-0"
    assert route(GetSlots()) == "metadata-0"
    assert route(CreateTopics(names=("t",))) == "mqtt-0"
    assert route(compare=[Compare.exists(OFFSETS, "default", "g", "t", 0)]) == "offset-0"


def test_rows_of_two_groups_are_refused_before_anything_is_sent() -> None:
    (low, _), (high, _) = keys_of(0), keys_of(1)
    for then, compare in (
        ([PutKv(key=low, value=b""), PutKv(key=high, value=b"")], []),
        ([PutKv(key=low, value=b"")], [Compare.exists(KV, "default", high)]),
        ([PutKv(key=high, value=b""), RegisterNode(node_id="n")], []),
        ([PutKv(key=high, value=b"")], [Compare.exists(NODES, "n")]),
    ):
        made = Transaction.of(compare=compare, then=then)
        op.validate(made)
        with pytest.raises(Invalid, match=r"^group\.transact: one group is wanted, .*metadata-1"):
            TWO.route(made)
        assert [group for group, _ in SlotMap().route(made)] == ["metadata-0"]


def test_what_is_of_two_kinds_is_refused(group: Group) -> None:
    made = Transaction.of(then=[PutKv(key="a", value=b""), CreateTopics(names=("t",))])
    group.beyond(made, "then")
    made = Transaction.of(
        compare=[Compare.exists(TOPICS, "default", "t")], then=[PutKv(key="a", value=b"")]
    )
    group.beyond(made, "then")


def test_a_group_of_another_kind_refuses_it(group: Group) -> None:
    made = Transaction.of(then=[OpenSession(client_id="c", broker="b")])
    op.validate(made)
    with pytest.raises(Invalid, match=r"tag: 'group\.transact' does not belong to metadata-0"):
        group.machine.admit(group.proposal(made))
    (reply,) = group.entry(group.proposal(made))
    assert reply.results[0].code == api.INVALID


def test_of_every_kind_alone_it_needs_a_group(group: Group) -> None:
    made = Transaction.of(then=[ExpireLeases(controller_epoch=1)])
    with pytest.raises(Invalid, match=r"group\.transact: name the group"):
        TWO.route(made)
    assert group.run(made).succeeded


def test_a_group_that_does_not_own_a_slot_of_it_says_so(group: Group) -> None:
    (low, lower), (high, _) = keys_of(0), keys_of(1)
    group.run(Own(controller_epoch=1, group_kind="metadata", version=4, ranges=HALVES[:1]))
    mine, other = PutKv(key=low, value=b""), PutKv(key=high, value=b"")
    group.run(Transaction.of(then=[mine, PutKv(key=lower, value=b"")]))
    with group.refuses(WrongShard):
        group.run(Transaction.of(then=[mine, other]))
    with group.refuses(WrongShard):
        group.run(Transaction.of(compare=[Compare.absent(KV, "default", high)], then=[mine]))


def test_a_table_hashes_what_its_commands_hash() -> None:
    """Or a compare would look for its row in a group that does not have it."""
    for operation, table, key in (
        (PutKv(key="k", value=b""), KV, ("default", "k")),
        (GetTopic(name="t"), TOPICS, ("default", "t")),
        (OpenSession(client_id="c", broker="b"), TABLES["mqtt.session"], ("default", "c")),
    ):
        assert operation.slot_key() == table.slot_key(key)
    assert NODES.slot_key(("n",)) is None
    assert OFFSETS.slot_key(("default", "g", "t", 0)) == ("default", "g")
    assert TABLES["mqtt.subscription"].slot_key(("default", "c", "f")) == ("default", "c")


def test_a_table_may_say_what_the_slot_key_of_its_rows_is() -> None:
    made: list[Table[Kv]] = []
    try:
        said: list[dict[str, Any]] = [
            {"slot_fields": ("key",)},
            {"slot_rule": lambda _, key: (key[0],)},
            {"slot_fields": ()},
        ]
        for number, each in enumerate(said):
            made.append(Table(f"test.said_{number}", Kv, key=("tenant", "key"), **each))
        assert [table.slot_key(("t", "abc")) for table in made] == [("abc",), ("a",), None]
    finally:
        for table in made:
            del TABLES[table.name]
