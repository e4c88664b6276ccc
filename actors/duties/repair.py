"""Groups whose replica lost its disk get a new one at the seat that stands vacant, and learners."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from actors.duties.duty import CALL_SECONDS, Context, Duty
from actors.planners.repair import (
    Action,
    Activate,
    ChangeMembership,
    Introduce,
    Reserve,
    Retire,
    plan_members,
    plan_restart,
)
from actors.seat_names import is_learner
from actors.status import leader_of
from state_machines.errors import Conflict

Answers = dict[str, dict[str, Any] | None]
"""What each seat of a group says of itself, None where one did not answer."""

log = logging.getLogger(__name__)


class Repair(Duty):
    """Replace replicas whose directory is gone: learner first, then voter, then the lost one goes.
    What sits on a learner's seat stays a learner. A seat whose process hangs gets another one.

    It also looks again which groups and seats there are, for all duties.
    """

    name: ClassVar[str] = "repair"
    interval: ClassVar[str] = "repair_check_ms"
    deadline_seconds: ClassVar[float] = 300.0  # seats may be silent, and their disks slow

    def __init__(self) -> None:
        self._waits: dict[str, str] = {}  # groups whose membership cannot change yet, and why
        self._silent: dict[str, dict[str, int]] = {}  # group -> seat -> looks in a row in vain

    def under_way(self) -> Sequence[str]:
        """The changes of membership that wait for another one, or for a learner: no error, the next
        run tries again."""
        return [f"{group}: {why}" for group, why in sorted(self._waits.items())]

    async def step(self, context: Context) -> int:
        """One step of the replacement in every group that needs one."""
        await context.groups.refresh()
        groups = context.groups.groups()
        self._waits = {each: why for each, why in self._waits.items() if each in groups}
        self._silent = {each: looks for each, looks in self._silent.items() if each in groups}
        return await context.in_each(self, groups, partial(self._of, context))

    async def _of(self, context: Context, group: str) -> int:
        seats = [*context.groups.seats(group), *context.groups.learners(group)]
        answers = await asyncio.gather(
            *(context.call_seat(seat, "status") for seat in seats),
            return_exceptions=True,
        )
        said = dict(zip(seats, answers, strict=True))
        known = {seat: each if isinstance(each, dict) else None for seat, each in said.items()}
        silent = [seat for seat, each in said.items() if isinstance(each, TimeoutError)]
        restarted = await self._restart(context, group, silent, known)
        done, why = await _repair(context, group, known)
        self._waits.pop(group, None)
        if why:
            self._waits[group] = why
        return restarted + done

    async def _restart(
        self, context: Context, group: str, silent: Sequence[str], known: Answers
    ) -> int:
        """Have the process of a seat that hangs started again. Returns how many."""
        before = self._silent.get(group, {})
        looks = {seat: before.get(seat, 0) + 1 for seat in silent}
        self._silent[group] = looks
        seat = plan_restart(looks, [each for each in known.values() if each is not None])
        if seat is None:
            return 0
        # Not again at the next look: Ray takes seconds to end a process that hangs.
        seconds = looks.pop(seat) * CALL_SECONDS
        again = await context.calls.start_again(seat)
        if again:
            log.warning(
                "%r: %s has not answered for %.0f s, it is started again", context, seat, seconds
            )
        return int(again)


async def _repair(context: Context, group: str, known: Answers) -> tuple[int, str]:
    """One step of the replacement in one group: how much was done, and what waits for what. By what
    its seats say, None where one did not."""
    leader = leader_of(known.values())
    if leader is None:
        return 0, ""
    # A voter's seat that Ray does not name just now has not answered.
    voters = [seat for seat in leader["group_seats"] if not is_learner(seat)]
    actions = plan_members(leader, {**dict.fromkeys(voters), **known})
    done, waits = 0, ""
    for action in actions:
        log.warning("%r: %s: %s", context, group, action)
        # failpoint: controller.before_repair
        try:
            await _act(context, action, leader)
        except Conflict as error:
            if not isinstance(action, ChangeMembership):
                raise
            waits = f"a change of its members waits: {error.detail}"
            continue
        done += 1
        # failpoint: controller.after_repair
    return done, waits


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
