"""Which lives show a failpoint: what has to befall the group for it to be passed, and how often it
is to be passed before the end.

Each trial is a chain: a first life ends at the failpoint, the next one at another point, which
mostly is in the middle of recovery, and the last comes to rest and is judged. Everything follows
from the trial's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from tests.crash.failpoints import Action, Armed
from tests.crash.victim import Order
from tests.crash.victim_workload import GROUPS

HITS: Final = (1, 2, 4, 9, 30, 100)  #: how often a point is passed before its life ends there
RARE: Final = 2  #: points of these areas are passed a few times in a life
EVERYTHING: Final = ("crash", "transfer", "away", "wipe", "remove", "cut")

_PHASES: Final = {
    "snapshot": ("away", "wipe", "away"),
    "receive": ("away", "wipe", "away"),
    "stage": ("away", "wipe", "away"),
    "install": ("away", "wipe", "away"),
    "inspection": ("crash", "crash", "crash"),
    "identity": ("wipe", "remove", "crash"),
    "member": ("remove", "wipe", "crash"),
    "file": ("wipe", "away", "remove"),
    "vote.won": ("crash", "transfer", "cut"),
    "vote.lost": ("transfer", "cut", "crash"),
    "journal.before_read": ("crash", "cut"),
    "journal.after_read": ("crash", "cut"),
    "log.before_load": ("crash", "cut"),
    "log.after_load": ("crash", "cut"),
    "log.before_purge_of_snapshot": ("away", "wipe"),
    "client.following": ("transfer", "crash", "cut"),
    "controller.before_repair": ("wipe", "wipe"),
    "controller.after_repair": ("wipe", "wipe"),
    "controller.before_change": ("wipe", "wipe"),
    "controller.before_expiry": ("silence", "crash", "silence"),
    "controller.fenced": ("transfer", "crash", "cut"),
    "disk.before_growing": ("bulk",),
    "disk.after_growing": ("bulk",),
    "flush.of_full_layer": ("bulk",),
}
_OFTEN: Final = frozenset(
    {
        *("apply", "client", "compact", "disk", "flush", "journal", "log", "message", "read"),
        *("vote.before_promise", "vote.before_save"),
    }
)
_FEW: Final = frozenset(
    {
        *("journal.before_read", "journal.after_read", "log.before_load", "log.after_load"),
        "log.before_purge_of_snapshot",
    }
)
_ONCE: Final = frozenset({"file.before_removal", "member.before_retirement"})
_METADATA: Final = frozenset({"controller.before_expiry", "controller.fenced"})
"""Passed when metadata has three replicas: another leader there has another controller."""
_TROUBLED: Final = frozenset({"apply.duplicate"})  #: passed only when replies get lost
RECONCILE: Final = frozenset({"log.before_reconcile", "log.after_reconcile"})
"""Passed at the opening after a life that ended at `BETWEEN`."""
BETWEEN: Final = "install.before_log"

RECOVERY: Final = (
    "apply.before_point",
    "checkpoint.begun",
    "disk.before_commit",
    "file.after_rename",
    "file.before_rename",
    "flush.after_write",
    "identity.before_boot",
    "install.before_log",
    "install.switched",
    "journal.after_append",
    "journal.after_read",
    "log.after_load",
    "log.after_save",
    "log.before_load",
    "log.before_save",
    "member.before_start",
    "vote.before_promise",
    "vote.before_save",
    "vote.won",
)
"""Where a life that goes on from a kill may end in its turn."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One chain."""

    name: str
    nth: int
    action: Action
    orders: tuple[Order, ...]

    def __str__(self) -> str:
        return f"{self.name}-{self.nth}-{self.action}"


def hits(name: str) -> tuple[int, ...]:
    """After how many passes the lives of this failpoint end."""
    area = name.partition(".")[0]
    if name in RECONCILE or name in _ONCE:
        return (1,)
    if name in _FEW or not {area, name} & _OFTEN:
        return HITS[:RARE]
    return HITS


def trials(names: list[str], *, seed: int = 1) -> Iterator[Trial]:
    """Every failpoint killed at its first pass, then with an error instead that ends only the seat
    (or stopped for a while, where no seat would meet an error), then killed at later passes."""
    wide = {name: GROUPS[place % len(GROUPS)] for place, name in enumerate(sorted(names))}
    for nth in HITS:
        for name in sorted(names):
            if nth in hits(name):
                rng = Random(f"{seed} {name} {nth}")
                yield Trial(name, nth, "kill", _orders(name, nth, "kill", wide[name], rng))
        for name in sorted(names) if nth == 1 else ():
            alone = name.partition(".")[0] in ("client", "controller")
            other: Action = "stop" if alone else "raise"
            rng = Random(f"{seed} {name} {other}")
            yield Trial(name, 1, other, _orders(name, 1, other, wide[name], rng)[:-1])


def _orders(name: str, nth: int, action: Action, wide: str, rng: Random) -> tuple[Order, ...]:
    area = name.partition(".")[0]
    phases = _PHASES.get(name) or _PHASES.get(area) or tuple(rng.sample(EVERYTHING, 3))
    if name in _METADATA:
        wide = "metadata-0"
    base = Order(
        root="",
        life=0,
        seed=rng.randrange(2**32),
        wide=wide,
        trouble=name in _TROUBLED or rng.random() < 0.25,
    )
    ending = _armed(base, Armed(name, nth, action), phases)
    recovering = _armed(
        base, Armed(rng.choice(RECOVERY), rng.choice((1, 1, 2, 3, 8))), (rng.choice(EVERYTHING),)
    )
    if name in RECONCILE:
        between = _armed(base, Armed(BETWEEN), ("away", "wipe"))
        return (between, ending, recovering)
    return (ending, recovering)


def _armed(base: Order, armed: Armed, phases: tuple[str, ...]) -> Order:
    return Order(
        root="",
        life=0,
        seed=base.seed + 1000 * armed.nth,
        wide=base.wide,
        armed=armed,
        phases=phases,
        trouble=base.trouble,
    )
