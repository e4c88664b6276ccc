"""A whole cluster in one process, killed at named places, goes on without losing anything."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.failpoints import Armed
from tests.crash.kills import KILLED, Lab
from tests.crash.victim import RESTED, Order

PLACE = Path(__file__).parents[2] / "build" / f"crash-test-{os.getpid()}"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab(PLACE) as made:
        yield made


@pytest.mark.parametrize(
    ("name", "wide", "phase"),
    [
        ("log.before_save", "metadata-0", "cut"),
        ("flush.after_write", "offset-0", "cut"),
        ("apply.before_point", "mqtt-0", "cut"),
        ("compact.after_base", "metadata-0", "cut"),
        ("install.before_log", "offset-0", "away"),
    ],
)
def test_killed_at_a_failpoint_and_at_another_life_of_it(
    lab: Lab, name: str, wide: str, phase: str
) -> None:
    order = Order(root="", life=0, seed=3, wide=wide, armed=Armed(name), phases=(phase,))
    chain = lab.chain(name, order)
    assert chain.verdict.wrong == []
    assert [end.status for end in chain.ends] == [KILLED, RESTED]
    assert chain.verdict.ended == [name]
    assert chain.verdict.acknowledged > 0
