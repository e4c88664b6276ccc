"""A process that collects its garbage itself still gets rid of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from random import Random

import pytest

from actors.garbage import FEW, LATEST, NEW_MAX, SOONEST, Garbage


class Cycle:
    """Nothing but a cycle gets rid of it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    try:
        yield Garbage(Random(1))
    finally:
        gc.enable()
        gc.unfreeze()


def times(garbage: Garbage, cycles: int = 1) -> int:
    """How often it is called until it has found so many, which are made here."""
    some = [Cycle() for _ in range(cycles)]
    gone = weakref.ref(some[-1])
    some.clear()
    for called in range(1, LATEST + 1):
        garbage.collect()
        if gone() is None:
            return called
    raise AssertionError("it stays")


def test_a_cycle_goes_the_later_the_fewer_there_are(garbage: Garbage) -> None:
    assert not gc.isenabled()
    within = SOONEST
    for _ in range(8):
        assert within // 2 <= times(garbage) <= within
        within = min(2 * within, LATEST)
    assert within == LATEST
    assert LATEST // 2 <= times(garbage, FEW) <= LATEST
    assert SOONEST // 2 <= times(garbage) <= SOONEST


def test_replicas_that_begin_together_do_not_look_together() -> None:
    """Each look holds all threads, and two of three replicas are a majority."""
    try:
        turns = {tuple(times(each) for _ in range(3)) for each in map(_begun, range(3))}
    finally:
        gc.enable()
        gc.unfreeze()
    assert len(turns) == 3


def _begun(seed: int) -> Garbage:
    return Garbage(Random(seed))


def test_many_go_at_once(garbage: Garbage) -> None:
    many = [Cycle() for _ in range(NEW_MAX + FEW)]
    gone = weakref.ref(many[-1])
    many.clear()
    garbage.collect()
    assert gone() is None
    fresh = weakref.ref(Cycle())
    garbage.collect()
    assert fresh() is not None, "there is little that is new since"


def test_one_that_has_grown_old_goes_as_well(garbage: Garbage) -> None:
    kept = [Cycle()]
    gone = weakref.ref(kept[0])
    times(garbage)
    kept.clear()
    more = [Cycle() for _ in range(NEW_MAX + FEW)]
    garbage.collect()
    assert more
    assert gone() is not None, "the old are not looked at each time"
    times(garbage)
    assert gone() is None
