"""Timestamps: numbers that are given once each, and only grow, for whoever has to order things.

A timestamp is `[physical ms][logical counter]`, the milliseconds above 18 bits of counter, as PD's
oracle has it. `TakeTimestamps` gives the next ones: they begin above the last that was given, and
not below the group's time. The last one given is a row of `metadata-0` and every range goes through
the log, so nothing has to be handed over when the leader changes, nobody serves from memory what
somebody else may serve too, and a next leader that is behind is only seen in the counter, which
runs on where it was. Callers that ask at once share an entry; one that needs many takes a range in
one call. What was given to somebody who never heard of it is left out.

Ranges that are taken faster than time passes, or while a clock that was ahead is waited for, run
ahead of the group's time, a millisecond every 262 144 timestamps. They may by a minute, and no
further, so that nobody can push time away: beyond that they are refused until it has come closer.
A million a second can be taken for more than four hours of a group whose time stands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines.errors import Invalid, QuotaExceeded
from state_machines.limits import INT_MAX
from state_machines.op import Stamp, command
from state_machines.tables import Table, Tables

LOGICAL_BITS: Final = 18
COUNT_MAX: Final = 1 << LOGICAL_BITS  #: of one range: what a millisecond has
AHEAD_MS_MAX: Final = 60_000  #: that a timestamp may be ahead of the group's time


@dataclass(frozen=True, slots=True)
class LastTimestamp:
    """The last timestamp that was given; never deleted."""

    name: str
    last: int


TIMESTAMPS: Final = Table("metadata.timestamp", LastTimestamp, key=("name",))
NAME: Final = "timestamp"


@command("metadata.timestamp.take")
class TakeTimestamps:
    """Take `count` timestamps that follow each other. The reply is the first: all of them are above
    every timestamp that was given before."""

    count: int = 1

    def validate(self) -> None:
        """A count within its limits."""
        if not 1 <= self.count <= COUNT_MAX:
            raise Invalid(f"count: {self.count}, the range is 1 to {COUNT_MAX}")

    def apply(self, db: Tables, at: Stamp) -> int:
        """QuotaExceeded for what would be too far ahead of the group's time: ask again later."""
        before = db.get(TIMESTAMPS, NAME)
        first = max(at.now_ms << LOGICAL_BITS, before.last + 1 if before is not None else 0)
        last = first + self.count - 1
        reached_ms = last >> LOGICAL_BITS
        limit_ms = min(at.now_ms + AHEAD_MS_MAX, INT_MAX >> LOGICAL_BITS)
        if reached_ms > limit_ms:
            raise QuotaExceeded(
                f"count: {self.count} more reach {reached_ms} ms, the limit is {limit_ms}: "
                f"{AHEAD_MS_MAX} ahead of the group's time"
            )
        db.put(TIMESTAMPS, LastTimestamp(NAME, last))
        return first
