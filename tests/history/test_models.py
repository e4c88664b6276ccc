"""The models say what our commands answer: histories of the real machine are the judge of that.

The small services of `servers.py` are held to it too, so that what is made with them means us.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from state_machines.errors import Rejected
from tests.history.commands import KINDS, request, told
from tests.history.linearizable import check
from tests.history.machine import KEYS, STEPS, machine_histories, numbered, sequence
from tests.history.models import MODELS, NEVER_S
from tests.history.operation import Operation, refusal
from tests.history.servers import SERVERS
from tests.machine.alone import Group

SEEDS = 6
EACH = pytest.mark.parametrize("name", sorted(MODELS))


@EACH
def test_what_the_machine_answers_is_legal_and_anything_else_is_not(name: str) -> None:
    figures = machine_histories(name, range(SEEDS))
    assert figures["machine_histories"] == SEEDS
    assert figures["machine_refused"] > SEEDS


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


def forgets_expectations(state: Any, each: Operation) -> Operation:
    """A put that expects nothing; and so it can never be refused."""
    return replace(each, input=(each.input[0], None)) if each.kind == "put" else each


def takes_any_number(state: Any, each: Operation) -> Operation:
    """Whatever a write says that it gave is the next number."""
    if each.kind == "put" and isinstance(each.output, int):
        return replace(each, output=state[1][0] + 1)
    return each


def counts_a_batch_once(state: Any, each: Operation) -> Operation:
    """Of several commits of one partition only the last counts."""
    if each.kind != "commit":
        return each
    last = {(topic, partition): (topic, partition, *rest) for topic, partition, *rest in each.input}
    return replace(each, input=tuple(last.values()), output=len(last))


def never_starts_clean(state: Any, each: Operation) -> Operation:
    """A session is always taken up where it was."""
    return replace(each, input=(*each.input[:2], False)) if each.kind == "open" else each


def any_epoch_closes(state: Any, each: Operation) -> Operation:
    """Nobody is fenced who closes."""
    if each.kind == "close" and state[0] is not None:
        return replace(each, input=(state[1][0], *each.input[1:]))
    return each


def fences_the_same(state: Any, each: Operation) -> Operation:
    """Only a higher epoch may act."""
    return replace(each, input=each.input - 1) if each.input <= state else each


def tells_the_length_before(state: Any, each: Operation) -> Operation:
    """An append says where its item is, not how long the list has become."""
    return replace(each, output=each.output + 1) if each.kind == "append" else each


def gets_one_more(state: Any, each: Operation) -> Operation:
    """A counter that begins at one."""
    return replace(each, output=each.output - 1) if each.kind == "get" else each


WRONG: dict[Callable[[Any, Operation], Operation], str] = {
    forgets_expectations: "register",
    takes_any_number: "register",
    counts_a_batch_once: "offset",
    never_starts_clean: "session",
    any_epoch_closes: "session",
    fences_the_same: "fence",
    tells_the_length_before: "append",
    gets_one_more: "counter",
}
"""What somebody might think that the service answers: the operation as they would have it."""


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.__name__)
def test_a_wrong_model_is_found(
    wrong: Callable[[Any, Operation], Operation], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = WRONG[wrong]
    right = MODELS[name]

    class Wrong:
        initial, place, name = right.initial, staticmethod(right.place), right.name

        @staticmethod
        def step(state: Hashable, operation: Operation) -> Hashable | None:
            return right.step(state, wrong(state, operation))

    monkeypatch.setitem(MODELS, name, Wrong())
    with pytest.raises(AssertionError, match=f"^{name}, seed"):
        machine_histories(name, range(SEEDS))
