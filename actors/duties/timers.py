"""Due timers of the `mqtt` groups fire: sessions expire, delayed wills go out."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from actors.duties.duty import ROUNDS_MAX, ROWS_A_COMMAND, Context, Duty
from actors.planners.timers import plan_timers
from state_machines.mqtt.pulse import NextDue, Pulse


class Timers(Duty):
    """Let due timers fire: sessions expire with all that hangs on them, wills are sent."""

    name: ClassVar[str] = "timers"
    interval: ClassVar[str] = "timer_check_ms"

    async def step(self, context: Context) -> int:
        """Pulses in every group until nothing is due any more."""
        return await context.in_each(
            self, context.of_kind("mqtt"), lambda each: _pulse(context, each)
        )


async def _pulse(context: Context, group: str) -> int:
    done = 0
    for _ in range(ROUNDS_MAX):
        due, now_ms = await asyncio.gather(
            context.caller.call(NextDue(), group=group), context.now_ms(group)
        )
        # failpoint: controller.before_pulse
        actions = plan_timers(due, now_ms)
        if not actions:
            break
        pulse = Pulse(controller_epoch=context.epoch, limit=ROWS_A_COMMAND)
        reply = await context.caller.call(pulse, group=group)
        # failpoint: controller.after_pulse
        fired = reply.wills + reply.sessions + reply.retained + reply.blacklist
        if not fired and reply.next_due_ms == due:
            break  # it is not due yet by the time of another leader
        done += 1
    return done
