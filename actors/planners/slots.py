"""How the slots of a kind are given out when it begins: to all of its groups, in even parts.

Only groups without rows are told, for nothing moves rows from one to another. So a kind that began
with one group stays there, and a group that comes later gets none. A start that was interrupted is
gone through again with a new version, also by a kind that has but one group then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from state_machines.slots import SLOTS, Holding, SlotRange, gives_up

_GROWING: Final = "; for rows on all groups restore a backup into a cluster that begins with them"


@dataclass(frozen=True, slots=True)
class Founding:
    """Tell these groups, in this order, what they own; then everybody, by the map."""

    kind: str
    version: int
    ranges: tuple[SlotRange, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A group has rows and keeps its slots, so no other group gets any."""

    kind: str
    group: str
    table: str

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.group} has rows of {self.table} and keeps every slot; "
            f"the other groups of the kind have none{_GROWING}"
        )


@dataclass(frozen=True, slots=True)
class Late:
    """These groups came when the kind's slots had been given out."""

    kind: str
    groups: tuple[str, ...]

    def __str__(self) -> str:
        late = ", ".join(self.groups)
        return f"{self.kind}: no slots for {late}, which came after the others{_GROWING}"


def plan_late(kind: str, owners: Collection[str], groups: Sequence[str]) -> Late | None:
    """Who has no slots of a kind that has a map, by number."""
    late = tuple(each for each in groups if each not in owners)
    return Late(kind, late) if late else None


def even(groups: Sequence[str]) -> tuple[SlotRange, ...]:
    """All slots, in as many ranges as there are groups; they differ by one slot at most."""
    count = len(groups)
    bounds = [SLOTS * number // count for number in range(count + 1)]
    return tuple(
        SlotRange(bounds[number], bounds[number + 1] - 1, group)
        for number, group in enumerate(groups)
    )


def plan_founding(kind: str, latest: int, holdings: Mapping[str, Holding]) -> Founding | Kept:
    """What to tell the groups of a kind that has no map yet. `latest`: the newest version of any
    kind's map; `holdings`: what each group of the kind has, all of them, by number.

    Group 0 is told first: who has no map yet goes there, and is sent away from then on.
    """
    ranges = even(tuple(holdings))
    for each in ranges:
        held = holdings[each.group]
        if held.table and gives_up(held.ranges, (each,)):
            return Kept(kind, each.group, held.table)
    version = max(latest, *(each.version for each in holdings.values())) + 1
    return Founding(kind, version, ranges)


def plan_alone(kind: str, latest: int, group: str, holding: Holding) -> Founding | Kept | None:
    """The same for the only group of a kind, if it was told of a part of the slots when there were
    to be several groups; None if it has them all."""
    if not gives_up(even((group,)), holding.ranges):
        return None
    return plan_founding(kind, latest, {group: holding})
