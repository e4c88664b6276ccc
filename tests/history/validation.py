"""The checker against one too simple to be wrong, and against histories known to be wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Final

from tests.history import brute
from tests.history.linearizable import check
from tests.history.models import MODELS
from tests.history.operation import Operation
from tests.history.servers import SERVERS, history
from tests.history.spoil import RUINS, spoil

SHORT_MAX: Final = 7  #: operations that every order of can be tried
LONG: Final = 120  #: operations of a long history, over a few keys
KEYS: Final = ("k", "kk", "kkk")


def short_history(name: str, seed: int) -> list[Operation]:
    """A few operations: of a service that works, of one that errs, or with an answer changed."""
    luck = Random(seed)
    operations = history(
        SERVERS[name](),
        luck,
        count=luck.randrange(3, SHORT_MAX + 1),
        processes=luck.randrange(2, 5),
        keys=KEYS[: luck.choice((1, 1, 2))],
        bugs=luck.choice((0, 0, 0.4)),
    )
    for _ in range(luck.choice((0, 1, 1, 2))):
        operations = spoil(operations, luck)
    return operations


def short_histories(name: str, seeds: Iterable[int]) -> Counter[str]:
    """Both checkers on short histories; they agree on each."""
    figures: Counter[str] = Counter()
    model = MODELS[name]
    for seed in seeds:
        operations = short_history(name, seed)
        verdict, legal = check(operations, model), brute.legal(operations, model)
        assert verdict.legal == legal, f"{name}, seed {seed}: {legal}, not\n{verdict}"
        figures["histories"] += 1
        figures["legal" if legal else "illegal"] += 1
        figures["with_unknown"] += any(each.unknown for each in operations)
        figures["overlapping"] += any(
            a.returned is None or a.returned >= b.invoked for a, b in itertools.pairwise(operations)
        )
    return figures


def long_histories(name: str, seeds: Iterable[int]) -> Counter[str]:
    """Long legal histories are accepted, and refused once anything in them is made wrong."""
    figures: Counter[str] = Counter()
    model = MODELS[name]
    for seed in seeds:
        luck = Random(seed)
        operations = history(
            SERVERS[name](), luck, count=LONG, processes=luck.randrange(2, 8), keys=KEYS, doubt=0.05
        )
        verdict = check(operations, model)
        assert verdict.legal, f"{name}, seed {seed}:\n{verdict}"
        figures["legal"] += 1
        figures["operations"] += len(operations)
        figures["steps"] += verdict.steps
        for ruin in RUINS:
            ruined = ruin(name, operations, luck)
            if ruined is None:
                continue
            assert not check(ruined, model).legal, f"{name}, seed {seed}: {ruin.__name__} passed"
            figures["ruined"] += 1
            figures[ruin.__name__] += 1
    return figures
