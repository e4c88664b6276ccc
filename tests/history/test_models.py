"""The models say what our commands answer: histories of the real machine are the judge of that.

The small services of `servers.py` are held to it too, so that what is made with them means us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from state_machines import op
from state_machines.errors import Rejected
from tests.history.commands import KINDS, drive, perform, request, told
from tests.history.linearizable import check
from tests.history.models import MODELS, NEVER_S
from tests.history.operation import Operation, Value, refusal
from tests.history.servers import SERVERS, Server
from tests.history.spoil import RUINS, spoil
from tests.machine.alone import Group

SEEDS = 8
STEPS = 120
KEYS = dict.fromkeys(MODELS, ("k", "key")) | {"fence": ("the group",)}
"""A group has one fence."""

EACH = pytest.mark.parametrize("name", sorted(MODELS))


def ask(group: Group, operation: object) -> Value:
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
    """What the service here calls the entry: epochs of sessions count within it too."""
    return (index << 20) | nth if name == "session" else index


def wanted(server: Server, kind: str, key: str, input: Value) -> Value:
    """The answer of the small service, which tells the count of some counters only."""
    output = server.ask(kind, key, input)
    return server.rows[key] if kind == "add" else output


@EACH
def test_what_the_machine_answers_is_legal_and_anything_else_is_not(name: str) -> None:
    refused = 0
    for seed in range(SEEDS):
        luck, operations = Random(seed), list(sequence(name, seed))
        verdict = check(operations, MODELS[name])
        assert verdict.legal, f"seed {seed}: {verdict}"
        for ruin in RUINS:
            ruined = ruin(name, operations, luck)
            if ruined is not None:
                assert not check(ruined, MODELS[name]).legal, f"seed {seed}: {ruin.__name__}"
                refused += 1
        for _ in range(10):
            spoiled = spoil(operations, luck)
            changed = [
                new
                for old, new in zip(operations, spoiled, strict=False)
                if old != new and new.kind in SERVERS[name]().reads
            ]
            if len(spoiled) == len(operations) and changed:
                assert not check(spoiled, MODELS[name]).legal, f"seed {seed}: {changed}"
                refused += 1
    assert refused > SEEDS


@EACH
def test_every_answer_there_is_was_given(name: str) -> None:
    """A model that is only ever asked the easy half has not been tried."""
    given = {
        (each.kind, each.output[1] if each.output[:1] == ("rejected",) else "ok")
        if isinstance(each.output, tuple)
        else (each.kind, "ok")
        for seed in range(SEEDS)
        for each in sequence(name, seed)
    }
    refused = {
        "register": {("put", "CONFLICT"), ("delete", "CONFLICT"), ("delete", "NOT_FOUND")},
        "session": {
            *(("close", code) for code in ("FENCED", "NOT_FOUND", "INVALID")),
            *(("subscribe", code) for code in ("FENCED", "NOT_FOUND")),
        },
        "fence": {("act", "FENCED")},
    }
    assert {each for each in given if each[1] != "ok"} == refused.get(name, set())


@pytest.mark.parametrize("name", ["register", "offset", "session", "fence"])
def test_commands_of_one_entry_are_as_good_as_in_a_row(name: str) -> None:
    for seed in range(SEEDS):
        luck, group, server = Random(seed), Group(KINDS[name]), SERVERS[name]()
        operations: list[Operation] = []
        while len(operations) < STEPS:
            batch = []
            for _ in range(luck.randrange(1, 5)):
                key = luck.choice(KEYS[name])
                kind, input = server.draw(luck, key)
                if kind in server.reads:
                    reply = told(name, kind, group.ask(request(name, kind, key, input)))
                    assert reply == server.answer(kind, key, input)
                    now = len(operations) * 10
                    operations.append(Operation("p", kind, key, input, reply, now, now + 1))
                else:
                    batch.append((kind, key, input))
            if not batch:
                continue
            replies = group.together(*(request(name, *each) for each in batch))
            opened = 0
            for (kind, key, input), reply in zip(batch, replies, strict=True):
                opened += kind == "open"
                server.index = numbered(name, group.index, opened) - 1
                output = (
                    refusal(reply.code) if isinstance(reply, Rejected) else told(name, kind, reply)
                )
                assert output == server.ask(kind, key, input), f"seed {seed}, {kind}({input})"
                now = len(operations) * 10
                operations.append(Operation("p", kind, key, input, output, now, now + 1))
        verdict = check(operations, MODELS[name])
        assert verdict.legal, f"seed {seed}: {verdict}"


def test_a_session_that_time_ends_is_not_judged() -> None:
    timed = Operation("p", "open", "c", ("b", 30, False), (1, False), 1, 2)
    with pytest.raises(AssertionError, match="a session that time ends has no model"):
        check([timed], MODELS["session"])
    assert check([replace(timed, input=("b", NEVER_S, False))], MODELS["session"]).legal


def test_what_a_model_does_not_know_is_said() -> None:
    for name, model in MODELS.items():
        with pytest.raises(AssertionError, match="fly"):
            check([Operation("p", "fly", "k", None, None, 1, 2)], model)
        with pytest.raises(AssertionError, match=f"{name} has no fly"):
            request(name, "fly", "k", None)
