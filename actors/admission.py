"""Admission: who may wait to be served now, and who is told to come back, and when.

At a leader these are proposals. What was admitted *waits* until it is answered: in the queue, then
in the log, then to be applied. At every replica they are also the reads of single rows for which
there is no room in the job under way (`answers.py`), with limits of their own.
Proposals are of two classes. All of whose commands are `urgent` (`op.py`) enter the log first and
are refused only at a limit of their own, so that a broker's heartbeat does not wait behind a storm.
For the rest what waits is bounded in operations and bytes, twice. An operation counts as its items,
or as the rows it may touch, if it says how many (`op.weight`), a transaction as its heavier branch.

    up to the soft limit    everybody is taken
    beyond it               whoever has its fair share waiting, or more, is told `Overloaded`:
                            the soft limit over the tenants that wait, the asking one included
    at the hard limit       everybody is told so

So one tenant never has more than the soft limit waiting, but for its last proposal, and who comes
with little finds room between the two limits. A proposal may carry operations of several tenants:
each is charged its own, and it is refused when most of them are of tenants at their share.

When to come back is what waits over the rate at which it was answered lately, with jitter, so that
those who were refused together do not come back together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, Protocol

from state_machines import op, runs
from state_machines.errors import Invalid, Overloaded
from state_machines.limits import CALL_ITEMS_MAX

URGENT_MAX: Final = 2_000  #: urgent calls that wait
URGENT_BYTES_MAX: Final = 4 << 20

RETRY_MS_MIN: Final = 10
RETRY_MS_MAX: Final = 5_000
RETRY_MS_UNKNOWN: Final = 100  #: as long as nothing was answered yet
RATE_SECONDS: Final = 0.1  #: how long a rate is measured before it is believed
LOOK_SECONDS: Final = 0.05  #: between two looks at who gave up, of which the first was in vain
LOOK_PARTS: Final = 8  #: it was, if fewer than one in so many had given up

Share = tuple[int, int]
"""Operations and bytes."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may wait, of what is not urgent."""

    calls: int
    operations_soft: int  #: beyond it tenants keep to their share
    operations: int  #: beyond it everybody is refused
    size_soft: int = 24 << 20  #: the same in bytes
    size: int = 64 << 20


PROPOSALS: Final = Limits(calls=10_000, operations_soft=40_000, operations=100_000)
READS: Final = Limits(calls=10_000, operations_soft=200_000, operations=500_000)
"""Half a second of reading, about, and a second and a quarter."""


@dataclass(frozen=True, slots=True)
class Charge:
    """What a call costs, and whom."""

    urgent: bool
    operations: int
    size: int
    tenants: Mapping[str, Share]

    @classmethod
    def of(cls, admitted: Iterable[Any], size: int) -> Charge:
        """The charge of what a call's commands, or queries, say: operations and runs."""
        counts: dict[str, int] = {}
        urgent = True
        for each in admitted:
            kind: Any = type(each)
            if kind is runs.Run:
                kind = each.kind
                _count_run(counts, each)
            else:
                for tenant, rows in op.charges(each):
                    counts[tenant] = counts.get(tenant, 0) + rows
            urgent = urgent and op.urgent(kind)
        if len(counts) == 1:
            ((tenant, count),) = counts.items()
            return cls(urgent, count, size, {tenant: (count, size)})
        total = sum(counts.values())
        shares = {name: (count, size * count // total) for name, count in counts.items()}
        return cls(urgent and bool(counts), total, size, shares)


UNCHARGED: Final = Charge(False, 0, 0, {})


def _count_run(counts: dict[str, int], run: runs.Run) -> None:
    if op.heavy(run.kind):
        for each in run.operations():
            tenant = getattr(each, "tenant", "")
            counts[tenant] = counts.get(tenant, 0) + op.weight(each)
        return
    column = run.columns.get("tenant") or [""]
    first = column[0]
    if column.count(first) == len(column):
        counts[first] = counts.get(first, 0) + run.count
        return
    for tenant, count in Counter(column).items():
        counts[tenant] = counts.get(tenant, 0) + count


class Drain:
    """How fast what waits is answered, and so when to come back."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._rate = 0.0  # operations a second
        self._since = 0.0  # without the time in which nothing waited
        self._last = 0.0
        self._answered = 0

    def begin(self, now: float) -> None:
        """Something waits again: the time without work says nothing about speed."""
        self._since += now - self._last

    def answered(self, operations: int, now: float) -> None:
        """So many do not wait any more."""
        self._answered += operations
        self._last = now
        took = now - self._since
        if took >= RATE_SECONDS:
            rate = self._answered / took
            self._rate = (self._rate + rate) / 2 if self._rate else rate
            self._since, self._answered = now, 0

    def answered_in(self, seconds: float) -> int:
        """How many are answered in this time, at the speed of late; 0 as long as none was."""
        return int(self._rate * seconds)

    def retry_after_ms(self, waiting: int) -> int:
        """When so many will have been answered, at the speed of late; with jitter."""
        wanted = waiting * 1_000 / self._rate if self._rate else RETRY_MS_UNKNOWN
        bounded = min(max(wanted, RETRY_MS_MIN), RETRY_MS_MAX)
        return max(1, int(bounded * self._rng.randrange(50, 151)) // 100)


class Room(Protocol):
    """Where calls wait."""

    def __len__(self) -> int:
        """How many."""
        ...

    def let_go(self) -> None:
        """Without those whose callers wait no more."""
        ...


class Refusals:
    """What those are told who find no room where calls wait, and how many they were."""

    def __init__(self, name: str, rng: Random, monotonic: Callable[[], float]) -> None:
        self.refused = 0  #: calls that were told `Overloaded`
        self._name = name
        self._drain = Drain(rng)
        self._monotonic = monotonic
        self._rests_until = 0.0  # after a look in vain

    def let_go(self, room: Room) -> None:
        """Have who gave up leave the room, now that it is full. That is a look at all that wait, so
        nobody looks for a while after a look that was in vain."""
        now = self._monotonic()
        if now < self._rests_until:
            return
        before = len(room)
        room.let_go()
        if (before - len(room)) * LOOK_PARTS < before:
            self._rests_until = now + LOOK_SECONDS

    def begin(self) -> None:
        """Something waits again."""
        self._drain.begin(self._monotonic())

    def answered(self, calls: int) -> None:
        """So many do not wait any more."""
        self._drain.answered(calls, self._monotonic())

    def refuse(self, why: str, waiting: int) -> Overloaded:
        """Come back when those that wait will have been answered, if it is known how fast they are;
        with jitter."""
        self.refused += 1
        return Overloaded(f"{self._name}: {why}", self._drain.retry_after_ms(waiting))


@dataclass(slots=True)
class Waits:
    """What waits: in all, or of a tenant."""

    calls: int = 0
    operations: int = 0
    size: int = 0

    def add(self, calls: int, operations: int, size: int) -> None:
        """More, or with negative numbers less."""
        self.calls += calls
        self.operations += operations
        self.size += size


@dataclass(slots=True)
class Admission:
    """Who waits at one replica. Pure: the time is told, luck is passed in."""

    name: str
    rng: Random
    limits: Limits = PROPOSALS
    refused: int = 0  #: calls that were told `Overloaded`
    urgent: Waits = field(default_factory=Waits)
    rest: Waits = field(default_factory=Waits)
    _tenants: dict[str, Waits] = field(default_factory=dict)
    _drain: Drain = field(init=False)

    def __post_init__(self) -> None:
        self._drain = Drain(self.rng)

    def enter(self, charge: Charge, now: float) -> None:
        """Take a call in. Raises Overloaded, or Invalid for one that is too much at once; then
        nothing is charged."""
        if charge.operations > CALL_ITEMS_MAX:
            raise Invalid(
                f"commands: {charge.operations} items, the limit is {CALL_ITEMS_MAX}; each row "
                "that a command says it may touch is one"
            )
        why = self._why_urgent_not(charge) if charge.urgent else self._why_not(charge)
        if why:
            raise self._refusal(why)
        if not self.urgent.calls and not self.rest.calls:
            self._drain.begin(now)
        if charge.urgent:
            self.urgent.add(1, charge.operations, charge.size)
            return
        self.rest.add(1, charge.operations, charge.size)
        for tenant, share in charge.tenants.items():
            waits = self._tenants.get(tenant)
            if waits is None:
                waits = self._tenants[tenant] = Waits()
            waits.add(1, *share)

    def check_room(self, operations: int, size: int) -> None:
        """Raise Overloaded if so much more finds no room, whoever asks: before it is known whose it
        is."""
        if why := self._why_full(operations, size):
            raise self._refusal(why)

    def leave(self, charge: Charge, now: float) -> None:
        """It was answered, or is not waited for any more."""
        self._drain.answered(charge.operations, now)
        if charge.urgent:
            self.urgent.add(-1, -charge.operations, -charge.size)
            return
        self.rest.add(-1, -charge.operations, -charge.size)
        for tenant, (operations, size) in charge.tenants.items():
            waits = self._tenants[tenant]
            waits.add(-1, -operations, -size)
            if not waits.calls:
                del self._tenants[tenant]

    def answered_in(self, seconds: float) -> int:
        """How many operations are answered in this time, at the speed of late; 0: not known."""
        return self._drain.answered_in(seconds)

    def clear(self) -> None:
        """Nobody waits any more."""
        self.urgent, self.rest = Waits(), Waits()
        self._tenants.clear()

    def _why_urgent_not(self, charge: Charge) -> str:
        if self.urgent.calls >= URGENT_MAX:
            return f"{URGENT_MAX} urgent proposals wait, the limit"
        if self.urgent.size + charge.size > URGENT_BYTES_MAX:
            return f"urgent proposals of {self.urgent.size} bytes wait, {URGENT_BYTES_MAX} may"
        return ""

    def _refusal(self, why: str) -> Overloaded:
        self.refused += 1
        after = self._drain.retry_after_ms(self.urgent.operations + self.rest.operations)
        return Overloaded(f"{self.name}: {why}", after)

    def _why_not(self, charge: Charge) -> str:
        rest, limits = self.rest, self.limits
        if why := self._why_full(charge.operations, charge.size):
            return why
        if rest.operations >= limits.operations_soft or rest.size >= limits.size_soft:
            return self._who_has_enough(charge)
        return ""

    def _why_full(self, operations: int, size: int) -> str:
        rest, limits = self.rest, self.limits
        if rest.calls >= limits.calls:
            return f"{limits.calls} calls wait, the limit"
        if rest.calls and rest.operations + operations > limits.operations:
            return f"{rest.operations} operations wait, the limit is {limits.operations}"
        if rest.size + size > limits.size:
            return f"{rest.size} bytes wait, the limit is {limits.size}"
        return ""

    def _who_has_enough(self, charge: Charge) -> str:
        tenants, limits = self._tenants, self.limits
        count = len(tenants.keys() | charge.tenants.keys())
        theirs, who = 0, ""
        for tenant, (operations, _) in charge.tenants.items():
            waits = tenants.get(tenant)
            if waits is not None and (
                waits.operations * count >= limits.operations_soft
                or waits.size * count >= limits.size_soft
            ):
                theirs, who = theirs + operations, tenant
        if theirs * 2 <= charge.operations:
            return ""
        return f"tenant {who!r} has its share of what waits ({count} tenants do)"
