"""The real machine, asked by one client after another: the judge of the models.

The small services of `servers.py` are held to it too, so that what is made with them means us.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from random import Random
from typing import Final

from state_machines import op
from tests.history.commands import KINDS, drive, perform
from tests.history.linearizable import check
from tests.history.models import MODELS
from tests.history.operation import Operation, Value
from tests.history.servers import SERVERS, Server
from tests.history.spoil import RUINS, spoil
from tests.machine.alone import Group

STEPS: Final = 120
KEYS: Final = dict.fromkeys(MODELS, ("k", "key")) | {"fence": ("the group",)}
"""A group has one fence."""


def ask(group: Group, operation: object) -> Value:
    """A query or a command; raises what it is refused with."""
    return group.ask(operation) if op.is_query(type(operation)) else group.run(operation)


def sequence(name: str, seed: int) -> Iterator[Operation]:
    """What the real machine says to one who asks after the other, an entry for each."""
    luck, group, server = Random(seed), Group(KINDS[name]), SERVERS[name]()
    for number in range(STEPS):
        key = luck.choice(KEYS[name])
        kind, input = server.draw(luck, key)
        output = drive(perform(name, kind, key, input), lambda each: ask(group, each))
        server.index = numbered(name, group.index, 1) - 1
        assert output == wanted(server, kind, key, input), f"seed {seed}, {kind}({input}) of {key}"
        now = 10 * number
        yield Operation("p", kind, key, input, output, now, now + 1, "g", group.index)


def numbered(name: str, index: int, nth: int) -> int:
    """What the small service calls the entry: epochs of sessions count within it too."""
    return (index << 20) | nth if name == "session" else index


def wanted(server: Server, kind: str, key: str, input: Value) -> Value:
    """The answer of the small service, which tells the count of some counters only."""
    output = server.ask(kind, key, input)
    return server.rows[key] if kind == "add" else output


def machine_histories(name: str, seeds: Iterable[int]) -> Counter[str]:
    """What the machine answers is legal, and refused once one answer is another."""
    figures: Counter[str] = Counter()
    model = MODELS[name]
    for seed in seeds:
        luck, operations = Random(seed), list(sequence(name, seed))
        verdict = check(operations, model)
        assert verdict.legal, f"{name}, seed {seed}: {verdict}"
        figures["machine_histories"] += 1
        figures["machine_operations"] += len(operations)
        for ruin in RUINS:
            ruined = ruin(name, operations, luck)
            if ruined is not None:
                legal = check(ruined, model).legal
                assert not legal, f"{name}, seed {seed}: {ruin.__name__} passed"
                figures["machine_refused"] += 1
        for _ in range(10):
            spoiled = spoil(operations, luck)
            changed = [
                new
                for old, new in zip(operations, spoiled, strict=False)
                if old != new and new.kind in SERVERS[name]().reads
            ]
            if len(spoiled) == len(operations) and changed:
                assert not check(spoiled, model).legal, f"{name}, seed {seed}: {changed}"
                figures["machine_refused"] += 1
    return figures
