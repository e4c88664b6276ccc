"""A process that collects its garbage itself still gets rid of it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from actors.garbage import WHOLE_EVERY, YOUNG_EVERY, Garbage


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


def test_a_cycle_goes_with_the_next_collection_and_not_before(garbage: Garbage) -> None:
    gone = weakref.ref(Cycle())
    assert not gc.isenabled()
    for _ in range(YOUNG_EVERY - 1):
        garbage.collect()
    assert gone() is not None
    garbage.collect()
    assert gone() is None


def test_one_that_has_grown_old_goes_within_a_minute(garbage: Garbage) -> None:
    kept = [Cycle()]
    gone = weakref.ref(kept[0])
    for _ in range(3 * YOUNG_EVERY):
        garbage.collect()
    kept.clear()
    for _ in range(YOUNG_EVERY):
        garbage.collect()
    assert gone() is not None, "the old are not looked at each time"
    for _ in range(WHOLE_EVERY):
        garbage.collect()
    assert gone() is None
