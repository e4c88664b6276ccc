"""The slots of a kind that begins with several groups are given to all of them."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar

from actors.duties.duty import Context, Duty
from actors.planners.slots import Founding, Kept, Late, plan_founding, plan_late
from actors.seat_names import kind_of
from state_machines.metadata.slot_map import AssignSlots, GetSlots
from state_machines.slots import GetHolding, Own

log = logging.getLogger(__name__)


class Slots(Duty):
    """Give the slots of a kind with several groups to all of them, before it has rows.

    A kind that has rows keeps them where they are: nothing moves them yet.
    """

    name: ClassVar[str] = "slots"
    interval: ClassVar[str] = "repair_check_ms"

    def __init__(self) -> None:
        self._left: tuple[Kept | Late, ...] = ()

    def under_way(self) -> Sequence[str]:
        """The kinds with groups that have no slots, and why."""
        return [str(each) for each in self._left]

    async def step(self, context: Context) -> int:
        """Every kind that has several groups and no map. Returns how many got one."""
        if not _several(context.expected.union(context.groups.groups())):
            return 0
        done = 0
        left: list[Kept | Late] = []
        for kind, groups in _several(await context.every_group()).items():
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


def _several(groups: Sequence[str] | frozenset[str]) -> dict[str, list[str]]:
    """The groups of each kind that has more than one, by number."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for group in sorted(groups, key=lambda group: (len(group), group)):
        found[kind_of(group)].append(group)
    return {kind: each for kind, each in found.items() if len(each) > 1}
