"""Advice is shown, expires, and is carried out as far as operators let the controller."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from actors.duties.duty import Context, Duty
from actors.planners.advice import (
    Action,
    Begin,
    CarryOut,
    Led,
    Settle,
    Transfer,
    command_of,
    plan_advice,
    wants_leaders,
)
from actors.status import leader_of, voters_of
from state_machines.errors import Conflict, Fenced, MetarayError, NotFound, Rejected
from state_machines.metadata.advice import (
    APPLIED,
    FAILED,
    OFF,
    OPEN,
    REASON_BYTES_MAX,
    UNDOING,
    Advice,
    ListAdvice,
)

ROUNDS_MAX = 3  #: what was begun goes on in the same run
SHOWN_MAX = 5  #: rows of advice that `status` says in words

log = logging.getLogger(__name__)


class Advices(Duty):
    """Show advice, let it expire, and carry it out if `advice_mode` lets the controller."""

    name: ClassVar[str] = "advice"
    interval: ClassVar[str] = "advice_check_ms"
    deadline_seconds: ClassVar[float] = 60.0  # silent seats of some groups

    def __init__(self) -> None:
        self._open: list[Advice] = []  # as they were seen last

    def under_way(self) -> Sequence[str]:
        """The open advice, the newest first, and what to do about it."""
        newest = sorted(self._open, key=lambda each: (-each.start_ms, each.id))
        said = [
            f"{each.kind} {each.target!r} is {each.state} (metaray advice show {each.id}): "
            f"{each.reason}"
            for each in newest[:SHOWN_MAX]
        ]
        more = len(newest) - len(said)
        return [*said, f"{more} more: metaray advice list"] if more > 0 else said

    async def step(self, context: Context) -> int:
        """Plan and act until there is nothing to go on with before something has happened."""
        mode = str(context.value("advice_mode"))
        done = 0
        for _ in range(ROUNDS_MAX):
            rows = await context.rows(ListAdvice())
            self._open = [] if mode == OFF else [each for each in rows if each.state in OPEN]
            now_ms = await context.now_ms()
            wanted = wants_leaders(rows, mode, now_ms)
            groups = {group: await _led(context, group) for group in wanted}
            actions = plan_advice(rows, mode, groups, now_ms)
            for action in actions:
                done += await _act(context, action)
            if not any(isinstance(each, Begin) for each in actions):
                break
        return done


async def _act(context: Context, action: Action) -> int:
    """Do it. What a group refuses for good is written down as what became of it."""
    log.warning("%r: advice: %s", context, action)
    if isinstance(action, Transfer):
        try:
            await context.call_seat(action.seat, "transfer", action.replica)
        except (MetarayError, TimeoutError) as error:
            log.warning("%r: %s: %s", context, action.seat, error)  # the next run tries again
            return 0
        return 1
    try:
        await context.caller.call(command_of(action, context.epoch))
    except Fenced:
        raise
    except Rejected as error:
        if not isinstance(action, CarryOut | Begin):
            raise
        with contextlib.suppress(Conflict, NotFound):  # somebody has decided meanwhile
            await context.caller.call(command_of(_refused(action.row, error), context.epoch))
    return 1


def _refused(row: Advice, error: Rejected) -> Settle:
    state = APPLIED if row.state == UNDOING else FAILED
    return Settle(row, state, error.detail.encode()[:REASON_BYTES_MAX].decode(errors="ignore"))


async def _led(context: Context, group: str) -> Led | None:
    """Who leads a group. None without a leader, and for a group that is not there."""
    if group not in context.groups.groups():
        return None
    answers = await asyncio.gather(
        *(context.call_seat(seat, "status") for seat in context.groups.seats(group)),
        return_exceptions=True,
    )
    leader = leader_of(each for each in answers if isinstance(each, dict))
    return None if leader is None else led_of(leader)


def led_of(leader: Mapping[str, Any]) -> Led:
    """Who leads, from the status of the replica that does."""
    return Led(str(leader["seat"]), voters_of(leader))
