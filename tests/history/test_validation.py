"""Is the checker right? It agrees with one that tries every order, and refuses what was made wrong.

The long run is `python -m tests.history`; here is a fixed sample of it.
"""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.history import brute
from tests.history.linearizable import check
from tests.history.models import MODELS
from tests.history.servers import SERVERS, history
from tests.history.spoil import spoil
from tests.history.validation import long_histories, short_histories

SHORT = 1_700  #: histories a model; six models
LONG = 6
ILLEGAL_PERCENT = (25, 75)
EACH = pytest.mark.parametrize("name", sorted(MODELS))


@EACH
def test_short_histories_are_judged_as_by_trying_every_order(name: str) -> None:
    figures = short_histories(name, range(SHORT))
    assert figures["histories"] == figures["legal"] + figures["illegal"] == SHORT
    least, most = ILLEGAL_PERCENT
    assert least * SHORT <= 100 * figures["illegal"] <= most * SHORT, figures
    assert figures["with_unknown"] > SHORT // 5
    assert figures["overlapping"] > SHORT // 2


@EACH
def test_trying_every_order_is_right_about_permutations(name: str) -> None:
    seen = set()
    for seed in range(100):
        luck = Random(seed)
        operations = history(SERVERS[name](), luck, count=4, doubt=0.3)
        if luck.random() < 0.6:
            operations = spoil(operations, luck)
        legal = brute.legal(operations, MODELS[name])
        assert legal == brute.legal_by_permutation(operations, MODELS[name]), f"seed {seed}"
        seen.add(legal)
    assert seen == {True, False}


@EACH
def test_long_histories_are_legal_until_they_are_ruined(name: str) -> None:
    figures = long_histories(name, range(LONG))
    assert figures["long_histories"] == LONG
    assert figures["long_refused"] >= LONG * 2


@EACH
def test_two_hundred_operations_of_ten_processes_take_no_time(name: str) -> None:
    operations = history(SERVERS[name](), Random(1), count=200, processes=10, doubt=0.05)
    before = time.thread_time()
    verdict = check(operations, MODELS[name])
    assert verdict.legal, str(verdict)
    assert time.thread_time() - before < 1
    assert verdict.steps < 100_000
