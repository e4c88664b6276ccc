"""Groups whose replica lost its disk get a new one at the seat that stands vacant, and learners."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import Any, ClassVar

from actors.duties.duty import Context, Duty
from actors.planners.repair import (
    Action,
    Activate,
    ChangeMembership,
    Introduce,
    Reserve,
    Retire,
    plan_members,
)
from actors.seat_names import is_learner
from actors.status import leader_of

log = logging.getLogger(__name__)


class Repair(Duty):
    """Replace replicas whose directory is gone: learner first, then voter, then the lost one goes.
    What sits on a learner's seat stays a learner.

    It also looks again which groups and seats there are, for all duties.
    """

    name: ClassVar[str] = "repair"
    interval: ClassVar[str] = "repair_check_ms"
    deadline_seconds: ClassVar[float] = 300.0  # seats may be silent, and their disks slow

    async def step(self, context: Context) -> int:
        """One step of the replacement in every group that needs one."""
        await context.groups.refresh()
        return await context.in_each(self, context.groups.groups(), partial(_repair, context))


async def _repair(context: Context, group: str) -> int:
    """One step of the replacement in one group."""
    seats = [*context.groups.seats(group), *context.groups.learners(group)]
    answers = await asyncio.gather(
        *(context.call_seat(seat, "status") for seat in seats),
        return_exceptions=True,
    )
    known = {
        seat: answer if isinstance(answer, dict) else None
        for seat, answer in zip(seats, answers, strict=True)
    }
    leader = leader_of(known.values())
    if leader is None:
        return 0
    # A voter's seat that Ray does not name just now has not answered.
    voters = [seat for seat in leader["group_seats"] if not is_learner(seat)]
    actions = plan_members(leader, {**dict.fromkeys(voters), **known})
    for action in actions:
        log.warning("%r: %s: %s", context, group, action)
        # failpoint: controller.before_repair
        await _act(context, action, leader)
        # failpoint: controller.after_repair
    return len(actions)


async def _act(context: Context, action: Action, leader: dict[str, Any]) -> None:
    match action:
        case Reserve(seat=seat):
            await context.call_seat(seat, "reserve", leader["cluster"])
        case Activate(seat=seat):
            await context.call_seat(seat, "activate")
        case Retire(seat=seat, replica=replica):
            upto = leader["term"], leader["last_index"]
            await context.call_seat(seat, "retire", replica, upto)
        case Introduce(seat=seat, learners=learners):
            await context.call_seat(seat, "introduce", learners)
        case ChangeMembership(change=change):
            # failpoint: controller.before_change
            await context.call_seat(leader["seat"], "change", change)
        case _:
            raise TypeError(action)
