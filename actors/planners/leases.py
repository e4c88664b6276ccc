"""Which groups have leases to end, and when not to yet.

Nobody's lease should end because its group could not be heard. A group that did not answer for a
while is left alone for the grace once it answers again: its owners keep their leases alive first.
What has run out before this controller spoke to a group for the first time gets its grace there, in
the group's own rows (`state_machines/lease.py`), so it is not waited for here.

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
class ExpireLeases:
    """Let the leases of a group that have run out end: so many at once, with this grace; those that
    had by `upto_ms`, if it is not 0."""

    group: str
    limit: int
    grace_ms: int
    upto_ms: int = 0


def plan_leases(
    seen: Iterable[GroupLeases], now_ms: int, grace_ms: int, limit: int = EXPIRED_AT_ONCE
) -> list[ExpireLeases]:
    """One command for each group in which a lease is due. A group that was waited for has had its
    grace."""
    return [
        ExpireLeases(each.group, limit, 0 if each.back_ms else grace_ms, each.looked_ms)
        for each in seen
        if 0 < each.next_due_ms <= (each.looked_ms or now_ms)
        and not (each.back_ms and now_ms < each.back_ms + grace_ms)
    ]
