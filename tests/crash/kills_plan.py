"""Lives that are killed from outside, at any moment: also while they are being found, while they
recover from the kill before, and while their seats are away, wiped or replaced."""

from __future__ import annotations

from random import Random
from typing import Final

from tests.crash.failpoints_plan import EVERYTHING
from tests.crash.victim import Order
from tests.crash.victim_workload import GROUPS

LIVES: Final = 8  #: killed in one directory before the verdict
EARLY: Final = 0.35  #: of all kills come before the first write, or hardly after it
EARLY_SECONDS: Final = 0.25  #: from the fork
LATE_SECONDS: Final = 1.2  #: from the first acknowledged write


def orders(seed: int, lives: int = LIVES) -> tuple[Order, ...]:
    """The lives of one chain; everything follows from the seed but where exactly the kill falls."""
    rng = Random(f"kills {seed}")
    wide, trouble = rng.choice(GROUPS), rng.random() < 0.3
    return tuple(_life(rng, wide, trouble) for _ in range(lives))


def _life(rng: Random, wide: str, trouble: bool) -> Order:
    early = rng.random() < EARLY
    return Order(
        root="",
        life=0,
        seed=rng.randrange(2**32),
        wide=wide,
        phases=tuple(rng.choices((*EVERYTHING, "bulk"), k=4)),
        trouble=trouble,
        kill_after=rng.uniform(0.0, EARLY_SECONDS if early else LATE_SECONDS),
        once_serving=not early,
    )
