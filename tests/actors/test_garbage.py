"""A process that collects its garbage itself still gets rid of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from actors.garbage import NEW_MAX, WHOLE_EVERY, Garbage


class Cycle:
    """Nothing but a cycle gets rid of it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def garbage() -> Iterator[Garbage]:
    try:
        yield Garbage()
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_cycle_goes_within_a_minute_and_not_before(garbage: Garbage) -> None:
    gone = weakref.ref(Cycle())
    assert not gc.isenabled()
    for _ in range(WHOLE_EVERY - 1):
        garbage.collect()
    assert gone() is not None
    garbage.collect()
    assert gone() is None


def test_many_go_at_once(garbage: Garbage) -> None:
    many = [Cycle() for _ in range(NEW_MAX)]
    gone = weakref.ref(many[-1])
    many.clear()
    garbage.collect()
    assert gone() is None
    fresh = weakref.ref(Cycle())
    garbage.collect()
    assert fresh() is not None, "there is little that is new since"


def test_one_that_has_grown_old_goes_within_a_minute(garbage: Garbage) -> None:
    kept = [Cycle()]
    gone = weakref.ref(kept[0])
    for _ in range(WHOLE_EVERY):
        garbage.collect()
    kept.clear()
    more = [Cycle() for _ in range(NEW_MAX)]
    garbage.collect()
    assert more
    assert gone() is not None, "the old are not looked at each time"
    for _ in range(WHOLE_EVERY):
        garbage.collect()
    assert gone() is None
