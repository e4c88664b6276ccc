"""The slot map's limits. How it routes and how it grows is in `tests/machine/test_slots.py`."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Conflict
from state_machines.metadata.slot_map import AssignSlots, GetSlots, KindSlots
from state_machines.slots import RANGES_MAX, SLOTS, Own, SlotRange
from tests.entities.group import Group

LAST = SLOTS - 1
WHOLE = (SlotRange(0, LAST, "mqtt-0"),)
GAP = (SlotRange(0, 5, "mqtt-0"), SlotRange(7, LAST, "mqtt-1"))
OVERLAP = (SlotRange(0, 5, "mqtt-0"), SlotRange(5, LAST, "mqtt-1"))


def assign(*ranges: SlotRange, kind: str = "mqtt", expected: int = 0) -> AssignSlots:
    return AssignSlots(kind=kind, expected_version=expected, ranges=ranges)


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
        (assign(*WHOLE, kind=""), "kind"),
        (assign(*[SlotRange(n, n, "mqtt-0") for n in range(RANGES_MAX + 1)]), "ranges"),
        (own(controller_epoch=0), "controller_epoch"),
        (own(group_kind=""), "group_kind"),
        (own(version=0), "version"),
        (own(ranges=OVERLAP), "ranges"),
        (own(ranges=(SlotRange(6, 5),)), "ranges"),
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
