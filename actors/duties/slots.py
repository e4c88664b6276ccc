"""The slots of a kind that begins with several groups are given to all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from actors.duties.duty import Context, Duty
from actors.planners.slots import Founding, Kept, Late, plan_alone, plan_founding, plan_late
from actors.seat_names import kind_of
from state_machines.metadata.slot_map import AssignSlots, GetSlots
from state_machines.slots import GetHolding, Own

log = logging.getLogger(__name__)


class Slots(Duty):
    """Give the slots of a kind with several groups to all of them, before it has rows.

    A kind that has rows keeps them where they are: nothing moves them. One that began with several
    groups, was interrupted, and has one group now gets all slots there.
    """

    name: ClassVar[str] = "slots"
    interval: ClassVar[str] = "repair_check_ms"

    def __init__(self) -> None:
        self._left: tuple[Kept | Late, ...] = ()
        self._whole: set[str] = set()  # kinds whose only group has been asked: it has every slot

    def under_way(self) -> Sequence[str]:
        """The kinds with groups that have no slots, and why."""
        return [str(each) for each in self._left]

    async def step(self, context: Context) -> int:
        """Every kind that has several groups and no map, or one group without all slots. Returns
        how many got a map."""
        kinds = _by_kind(context.expected.union(context.groups.groups()))
        alone = {kind: groups[0] for kind, groups in kinds.items() if len(groups) == 1}
        done = 0
        for kind, group in alone.items():
            if kind not in self._whole and group in context.groups.groups():
                done += await _make_whole(context, kind, group)
                self._whole.add(kind)
        if len(alone) == len(kinds):
            return done
        left: list[Kept | Late] = []
        for kind, groups in _by_kind(await context.every_group()).items():
            if len(groups) == 1:
                continue
            maps = await context.caller.call(GetSlots())
            given = {each.group for row in maps if row.kind == kind for each in row.ranges}
            if given:
                left += filter(None, [plan_late(kind, given, groups)])
                continue
            held = await asyncio.gather(
                *(context.caller.call(GetHolding(group_kind=kind), group=group) for group in groups)
            )
            latest = max([each.version for each in maps], default=0)
            plan = plan_founding(kind, latest, dict(zip(groups, held, strict=True)))
            if isinstance(plan, Kept):
                left.append(plan)
                continue
            await _found(context, plan)
            done += 1
        self._left = tuple(left)
        return done


async def _make_whole(context: Context, kind: str, group: str) -> bool:
    """See to it that the only group of a kind has every slot; whether there was something to do."""
    maps = await context.caller.call(GetSlots())
    if any(each.kind == kind for each in maps):
        return False
    held = await context.caller.call(GetHolding(group_kind=kind), group=group)
    plan = plan_alone(kind, max([each.version for each in maps], default=0), group, held)
    if not isinstance(plan, Founding):
        return False
    await _found(context, plan)
    return True


async def _found(context: Context, plan: Founding) -> None:
    """Raises Conflict if a group has got rows meanwhile: the next run looks again."""
    for each in plan.ranges:
        own = Own(
            controller_epoch=context.epoch,
            group_kind=plan.kind,
            version=plan.version,
            ranges=(each,),
            only_empty=True,
        )
        await context.caller.call(own, group=each.group)
    assign = AssignSlots(
        kind=plan.kind,
        expected_version=0,
        ranges=plan.ranges,
        version=plan.version,
        controller_epoch=context.epoch,
    )
    await context.caller.call(assign)
    log.info("%r: %s", context, plan)


def _by_kind(groups: Sequence[str] | frozenset[str]) -> dict[str, list[str]]:
    """The groups of each kind, by number."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for group in sorted(groups, key=lambda group: (len(group), group)):
        found[kind_of(group)].append(group)
    return found
