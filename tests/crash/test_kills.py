"""A whole cluster in one process, killed from outside at random moments, loses nothing."""

from __future__ import annotations

from tests.crash import kills_plan
from tests.crash.kills import KILLED, Lab
from tests.crash.test_failpoints import lab

__all__ = ["lab"]

SEED = 7
KILLS = 5


def test_killed_at_random_moments_again_and_again(lab: Lab) -> None:
    chain = lab.chain("kills", *kills_plan.orders(SEED, KILLS))
    assert chain.verdict.wrong == []
    assert [end.status for end in chain.ends] == [KILLED] * KILLS + [0]
    assert chain.verdict.acknowledged > 0
    assert chain.verdict.lost == chain.verdict.doubled == 0
