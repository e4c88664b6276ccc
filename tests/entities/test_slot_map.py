"""The slot map's limits. How it routes and how it grows is in `tests/machine/test_slots.py`."""

from __future__ import annotations

from typing import Any

import pytest

from actors import config
from state_machines.errors import Conflict, Fenced
from state_machines.limits import INT_MAX
from state_machines.metadata.node import RegisterNode
from state_machines.metadata.slot_map import KINDS, SLOT_MAPS, AssignSlots, GetSlots, KindSlots
from state_machines.mqtt.session import OpenSession
from state_machines.slots import ALL, RANGES_MAX, SLOTS, GetHolding, Holding, Own, SlotRange
from state_machines.tables import TABLES, Tables
from tests.entities.group import Group

LAST = SLOTS - 1
WHOLE = (SlotRange(0, LAST, "mqtt-0"),)
GAP = (SlotRange(0, 5, "mqtt-0"), SlotRange(7, LAST, "mqtt-1"))
OVERLAP = (SlotRange(0, 5, "mqtt-0"), SlotRange(5, LAST, "mqtt-1"))


def assign(
    *ranges: SlotRange, kind: str = "mqtt", expected: int = 0, version: int = 0, epoch: int = 0
) -> AssignSlots:
    return AssignSlots(
        kind=kind,
        expected_version=expected,
        ranges=ranges,
        version=version,
        controller_epoch=epoch,
    )


def own(**changes: Any) -> Own:
    fields: dict[str, Any] = {
        "controller_epoch": 1,
        "group_kind": "mqtt",
        "version": 1,
        "ranges": (SlotRange(0, 5),),
    }
    return Own(**{**fields, **changes})


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (assign(), "ranges"),
        (assign(*GAP), "ranges"),
        (assign(*OVERLAP), "ranges"),
        (assign(*reversed(GAP)), "ranges"),
        (assign(SlotRange(0, SLOTS, "mqtt-0")), "ranges"),
        (assign(SlotRange(-1, LAST, "mqtt-0")), "ranges"),
        (assign(SlotRange(0, LAST, "")), "ranges.group"),
        (assign(SlotRange(0, LAST, "offset-0")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqtt")), "ranges.group"),
        (assign(SlotRange(0, LAST, "0")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqtt-")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqtt-a")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqtt-01")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqtt-\u0661")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqtt-10000")), "ranges.group"),
        (assign(SlotRange(0, LAST, "mqqt-0"), kind="mqqt"), "kind"),
        (assign(SlotRange(0, LAST, "group-0"), kind="group"), "kind"),
        (assign(*WHOLE, kind=""), "kind"),
        (assign(*WHOLE, version=-1), "version"),
        (assign(*WHOLE, epoch=-1), "controller_epoch"),
        (assign(*WHOLE, version=INT_MAX + 1), "version"),
        (assign(*[SlotRange(n, n, "mqtt-0") for n in range(RANGES_MAX + 1)]), "ranges"),
        (own(controller_epoch=0), "controller_epoch"),
        (own(group_kind=""), "group_kind"),
        (own(version=0), "version"),
        (own(ranges=OVERLAP), "ranges"),
        (own(ranges=(SlotRange(6, 5),)), "ranges"),
        (GetHolding(group_kind=""), "group_kind"),
    ],
)
def test_limits(operation: Any, field: str) -> None:
    group = Group("metadata")
    group.run(assign(*WHOLE))
    group.beyond(operation, field)


def test_a_map_that_somebody_else_replaced_is_not_replaced_again() -> None:
    group = Group("metadata")
    halves = (SlotRange(0, 9, "mqtt-0"), SlotRange(10, LAST, "mqtt-1"))
    first, second = group.together(assign(*WHOLE), assign(*halves))
    assert first == 1
    assert isinstance(second, Conflict)
    with group.refuses(Conflict, "^expected_version: 0, the map is at 1"):
        group.run(assign(*halves))
    assert group.run(assign(*halves, expected=1)) == 2
    assert group.ask(GetSlots()) == (KindSlots("mqtt", 2, halves),)


def test_a_map_has_the_version_that_the_groups_were_told() -> None:
    group = Group("metadata")
    assert group.run(assign(*WHOLE, version=5)) == 5
    offset = (SlotRange(0, LAST, "offset-0"),)
    with group.refuses(Conflict, "^version: 5, there is a map of version 5"):
        group.run(assign(*offset, kind="offset", version=5))
    assert group.run(assign(*offset, kind="offset")) == 6


def test_the_kinds_are_those_of_the_tables() -> None:
    ours = [each for each in TABLES.values() if each.row.__module__.startswith("state_machines.")]
    assert sorted({each.kind for each in ours} - {""}) == sorted(KINDS) == sorted(config.KINDS)


def test_a_map_of_what_is_no_kind_counts_for_nothing_but_its_version() -> None:
    """One that was taken when any kind was: who counts groups would wait for its owners."""
    group = Group("metadata")
    row = KindSlots("mqqt", 7, (SlotRange(0, LAST, "mqqt-0"),))
    Tables(group.store, 1).put(SLOT_MAPS, row)
    assert group.ask(GetSlots()) == ()
    assert group.run(assign(*WHOLE)) == 8
    assert group.ask(GetSlots()) == (KindSlots("mqtt", 8, WHOLE),)


def test_an_older_controller_assigns_nothing() -> None:
    group = Group("metadata")
    group.run(assign(*WHOLE, epoch=9))
    with group.refuses(Fenced, "^controller_epoch: 8, in force is 9"):
        group.run(assign(*WHOLE, kind="mqtt", expected=1, epoch=8))
    assert group.run(assign(*WHOLE, expected=1)) == 2, "by hand"


def test_slots_are_taken_from_a_group_only_while_it_has_no_rows() -> None:
    group = Group("mqtt")
    opened = OpenSession(client_id="c", broker="b", expiry_s=9)
    assert group.ask(GetHolding(group_kind="mqtt")) == Holding(0, ALL, "")
    group.run(own(only_empty=True, ranges=ALL))
    group.run(opened)
    held = group.ask(GetHolding(group_kind="mqtt"))
    assert (held.version, held.ranges) == (1, ALL)
    assert held.table.startswith("mqtt.")
    with group.refuses(Conflict, f"^only_empty: {held.table} has rows, and nothing moves them"):
        group.run(own(only_empty=True, version=2))
    group.run(own(only_empty=True, version=2, ranges=ALL))  # takes nothing from it
    group.run(own(version=3))  # who moves rows does not ask


def test_rows_of_another_kind_and_rows_without_a_slot_hold_nothing_up() -> None:
    group = Group("metadata")
    group.run(RegisterNode(node_id="n"))
    group.run(own(only_empty=True, group_kind="metadata"))
    assert group.ask(GetHolding(group_kind="metadata")) == Holding(1, (SlotRange(0, 5),), "")
    assert group.ask(GetHolding(group_kind="mqtt")) == Holding(0, ALL, "")
