"""The checker against one too simple to be wrong, and against histories known to be wrong."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from random import Random
from typing import Any, Final

from state_machines import op
from tests.history import brute, replay
from tests.history.commands import request
from tests.history.linearizable import check
from tests.history.logged import Command, compare, placed
from tests.history.models import MODELS
from tests.history.operation import Operation
from tests.history.servers import SERVERS, history
from tests.history.spoil import RUINS, spoil

SHORT_MAX: Final = 7  #: operations that every order of can be tried
LONG: Final = 120  #: operations of a long history, over a few keys
KEYS: Final = ("k", "kk", "kkk")
RUINED_STEPS_MAX: Final = 50_000  #: a search without end is no pass, and counted
ONE: Final = {"fence": KEYS[:1]}
"""What a group has one of has one key: a command does not name it."""

LOGGED: Final = sorted(set(MODELS) - {"append"})
"""Models whose writes are one command each, so that they can be found in a log."""


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
        figures["long_histories"] += 1
        figures["long_operations"] += len(operations)
        for ruin in RUINS:
            ruined = ruin(name, operations, luck)
            if ruined is None:
                continue
            wrong = check(ruined, model, steps_max=RUINED_STEPS_MAX)
            assert not wrong.legal, f"{name}, seed {seed}: {ruin.__name__} passed"
            figures["long_refused"] += 1
            figures["long_undecided"] += not all(each.decided for each in wrong.failures)
            figures[f"refused_{ruin.__name__}"] += 1
    return figures


def reads(name: str) -> tuple[str, ...]:
    return SERVERS[name]().reads


def asked_of(name: str) -> Any:
    """What an operation asked for; reads are not in the log."""

    def asked(operation: Operation) -> Any:
        if operation.kind in reads(name):
            return None
        return request(name, operation.kind, operation.key, operation.input)

    return asked


def logged(name: str, log: list[Operation]) -> list[Command]:
    """The log of a small service, as ours would have it: one command an entry."""
    return [
        Command(each.index, 1, 1, each.index, op.tag(command), op.encode(command))
        for each in log
        for command in [request(name, each.kind, each.key, each.input)]
    ]


def judge(name: str, operations: list[Operation], log: list[Operation]) -> list[str]:
    """All that history and log say against each other."""
    commands, asked = logged(name, log), asked_of(name)
    problems = compare(operations, commands, asked)
    found = placed(operations, commands, asked, group="g")
    verdict = replay.check(found, MODELS[name], reads=reads(name))
    return problems + verdict.problems + [f"{key} is left" for key in verdict.left]


def logged_histories(name: str, seeds: Iterable[int]) -> Counter[str]:
    """Long histories are what their logs say, until they are ruined."""
    figures: Counter[str] = Counter()
    for seed in seeds:
        log: list[Operation] = []
        luck = Random(seed)
        operations = history(
            SERVERS[name](), luck, count=LONG, processes=5, keys=ONE.get(name, KEYS), log=log
        )
        problems = judge(name, operations, log)
        assert problems == [], f"{name}, seed {seed}: {problems}"
        figures["replayed"] += 1
        for ruin in RUINS:
            ruined = ruin(name, operations, luck)
            if ruined is not None:
                found = judge(name, ruined, log)
                assert found, f"{name}, seed {seed}: {ruin.__name__} passed the replay"
                figures["replay_refused"] += 1
    return figures
