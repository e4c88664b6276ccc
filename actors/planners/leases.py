"""Which groups have leases to end.

Nobody's lease should end because its group could not be heard. What has run out before this
controller spoke to a group for the first time, or about when it was away, gets its grace there, in
the group's own rows, each lease once (`state_machines/lease.py`): waited for here, a group that is
late now and then would never be told.

An absence may be too short to be seen, and long enough for a lease of a second or two to run out.
So what has run out since the last look is left to the next one: until then its owner is heard.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

EXPIRED_AT_ONCE = 1_000  #: leases and rows of one command; one command a group and look


@dataclass(frozen=True, slots=True)
class GroupLeases:
    """What was seen of a group: when its next lease is due (0: none is), since when it answers
    again after it did not (0: it always has), and what time it was there at the look before (0:
    there was none)."""

    group: str
    next_due_ms: int
    back_ms: int = 0
    looked_ms: int = 0


@dataclass(frozen=True, slots=True)
class EndLeases:
    """Let the leases of a group that have run out end: so many at once, with this grace, also for
    what ran out before the group was back; those that had by `upto_ms`, if it is not 0."""

    group: str
    limit: int
    grace_ms: int
    upto_ms: int = 0
    back_ms: int = 0


def plan_leases(
    seen: Iterable[GroupLeases], now_ms: int, grace_ms: int, limit: int = EXPIRED_AT_ONCE
) -> list[EndLeases]:
    """One command for each group in which a lease is due."""
    return [
        EndLeases(each.group, limit, grace_ms, back_ms=each.back_ms, upto_ms=each.looked_ms)
        for each in seen
        if 0 < each.next_due_ms <= (each.looked_ms or now_ms)
    ]
