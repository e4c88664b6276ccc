"""The pulse: the one command in which timers fire, proposed by the controller when one is due."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from state_machines.budgets import Budget
from state_machines.errors import Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.mqtt import blacklist, due, retained, session_life, will
from state_machines.mqtt.properties import message_bytes
from state_machines.mqtt.sessions import SESSIONS
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

PULSE_MAX: Final = 10_000  #: timers that one command may fire


@dataclass(frozen=True, slots=True)
class PulseReply:
    """What fired, and when the next timer is due (0: there is none)."""

    wills: int
    sessions: int
    retained: int
    next_due_ms: int
    blacklist: int = 0


@command("mqtt.pulse")
class Pulse:
    """Fire what has come due by the group's time: at most `limit` timers.

    A session's subscriptions and memberships go with it and count by their rows, and so do the
    bytes of messages (`budgets`), so that one pulse is never long: a timer more and no other may
    pass that. What is left is due still, and the reply says so.
    """

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    controller_epoch: int
    limit: int = 1_000

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        if not 0 < self.limit <= PULSE_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {PULSE_MAX}")

    def weight(self) -> int:
        """Timers, and what goes with them."""
        return self.limit

    def apply(self, db: Tables, at: Stamp) -> PulseReply:
        """Fenced with an epoch below the highest one seen."""
        pass_fence(db, self.controller_epoch)
        fired = dict.fromkeys((due.WILL, due.SESSION, due.RETAINED, due.BLACKLIST), 0)
        budget = Budget(rows=self.limit)
        for timer in list(itertools.islice(due.due(db, at.now_ms), self.limit)):
            if budget.spent:
                break
            due.disarm(db, timer.due_ms, timer.kind, timer.tenant, timer.name)
            fired[timer.kind] += _fire(db, at, timer, budget)
        return PulseReply(
            wills=fired[due.WILL],
            sessions=fired[due.SESSION],
            retained=fired[due.RETAINED],
            next_due_ms=due.next_due_ms(db),
            blacklist=fired[due.BLACKLIST],
        )


def _fire(db: Tables, at: Stamp, timer: due.Due, budget: Budget) -> bool:
    """Whether it did anything: an earlier timer of this pulse may have done it already."""
    match timer.kind:
        case due.WILL:
            pending = db.get(will.WILLS, timer.tenant, timer.name)
            owner = db.get(SESSIONS, timer.tenant, timer.name)
            if pending is None or pending.due_ms != timer.due_ms:
                budget.spend()
                return False
            will.fire(db, at, pending, owner.broker if owner is not None else "")
            budget.spend(size=message_bytes(pending))
        case due.SESSION:
            owner = db.get(SESSIONS, timer.tenant, timer.name)
            if owner is None or owner.expires_ms != timer.due_ms:
                budget.spend()
                return False
            session_life.end(db, at, owner, budget)
        case due.RETAINED:
            message = db.get(retained.RETAINED, timer.tenant, timer.name)
            if message is None or message.expires_ms != timer.due_ms:
                budget.spend()
                return False
            retained.remove(db, message)
            budget.spend(size=message_bytes(message))
        case due.BLACKLIST:
            budget.spend()
            return blacklist.expire(db, at, timer.tenant, timer.name, timer.due_ms)
        case _:
            raise AssertionError(f"no such timer: {timer}")
    return True


@query("mqtt.due")
class NextDue:
    """When the earliest timer of this group is due, Unix milliseconds; 0 when there is none."""

    every_group: ClassVar[bool] = True

    def join(self, parts: Sequence[Self], replies: Sequence[int]) -> int:
        """Over all groups."""
        return min([each for each in replies if each], default=0)

    def read(self, db: Tables, at: Stamp) -> int:
        """By the group's time."""
        return due.next_due_ms(db)
