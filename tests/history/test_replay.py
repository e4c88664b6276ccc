"""Replay judges as the search does, where there is a log; and the log itself is a witness."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from state_machines import op
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from tests.history import linearizable, replay
from tests.history.commands import request
from tests.history.logged import Log, agreed, commands_in, compare, placed
from tests.history.models import MODELS, NEVER_S
from tests.history.operation import Operation
from tests.history.servers import SERVERS, history
from tests.history.spoil import foreseen, given_twice, phantom, stale, swapped
from tests.history.validation import KEYS, LOGGED, ONE, asked_of, judge, logged_histories, reads

SEEDS = 6
EACH = pytest.mark.parametrize("name", LOGGED)


@EACH
def test_a_legal_history_is_what_its_log_says_until_it_is_ruined(name: str) -> None:
    figures = logged_histories(name, range(SEEDS))
    assert figures["replayed"] == SEEDS
    assert figures["replay_refused"] >= SEEDS


@EACH
def test_what_replay_accepts_is_linearizable(name: str) -> None:
    """It is the stricter of the two: it knows the order, which the search has to find."""
    accepted = refused = 0
    for seed in range(120):
        log: list[Operation] = []
        luck = Random(seed)
        operations = history(
            SERVERS[name](),
            luck,
            count=12,
            keys=ONE.get(name, KEYS[:2]),
            bugs=luck.choice((0, 0.1)),
            log=log,
        )
        if judge(name, operations, log):
            refused += 1
        else:
            accepted += 1
            assert linearizable.check(operations, MODELS[name]).legal, f"seed {seed}"
    assert accepted > 24
    assert refused > 6


@pytest.mark.parametrize("name", ["register", "session"])
def test_replies_that_say_their_place_need_no_log(name: str) -> None:
    model, server = MODELS[name], SERVERS[name]
    ruined = 0

    class Plain(server):  # type: ignore[misc, valid-type]
        """Asked for nothing that only a log can place: no delete, nothing that is refused."""

        def draw(self, luck: Random, key: str) -> tuple[str, Any]:
            if luck.random() < 0.5:
                return "get", None
            if name == "register":
                return "put", (self.fresh(), None)
            return "open", (luck.choice("ab"), NEVER_S, False)

    for seed in range(SEEDS):
        operations = history(Plain(), Random(seed), count=90, keys=KEYS, doubt=0)
        found = replay.by_answers(operations, model)
        verdict = replay.check(found, model, reads=reads(name))
        assert verdict.legal, f"seed {seed}: {verdict}"
        assert (verdict.operations, verdict.left) == (90, [])
        for ruin in (phantom, stale, swapped, given_twice, foreseen):
            wrong = ruin(name, operations, Random(seed))
            if wrong is not None:
                again = replay.check(replay.by_answers(wrong, model), model, reads=reads(name))
                assert not again.legal, f"seed {seed}: {ruin.__name__} passed"
                ruined += 1
    assert ruined >= 3 * SEEDS


def test_nobody_sees_the_new_and_then_the_old() -> None:
    def get(output: Any, invoked: int, returned: int, index: int = 0) -> Operation:
        return Operation("p", "get", "k", None, output, invoked, returned, "g", index)

    put = Operation("p", "put", "k", ("v", None), 5, 1, 100, "g", 5)
    old, new = get(None, 2, 3), get(("v", 5), 2, 3)

    def problems(*operations: Operation) -> list[str]:
        return replay.check(operations, MODELS["register"], reads=("get",)).problems

    assert problems(put, old, get(("v", 5), 4, 5)) == []
    (said,) = problems(put, new, get(None, 4, 5))
    assert "no answer of a state from 5 to" in said
    assert problems(put, get(None, 2, 3, index=4), get(("v", 5), 4, 5, index=6)) == []
    (said,) = problems(put, get(("v", 5), 2, 3, index=6), get(("v", 5), 4, 5, index=5))
    assert "is not within 6 and" in said
    later = Operation("p", "put", "k", ("w", None), 9, 50, 60, "g", 9)
    (said,) = problems(put, later, get(("w", 9), 10, 20))
    assert "no answer of a state from 0 to 8" in said, "it was not asked for yet"
    twice = [replace(put, place=1), replace(later, index=5, place=1, output=6)]
    assert "two writes at 5.1" in problems(*twice)[0]


def test_without_a_place_a_key_is_left_to_the_search() -> None:
    lost = Operation("p", "put", "k", ("v", None), None, 1, None)
    other = Operation("p", "get", "other", None, None, 1, 2)
    verdict = replay.check([lost, other], MODELS["register"], reads=("get",))
    assert (verdict.left, verdict.legal, verdict.reads) == (["k"], True, 1)


def entry(index: int, *proposals: api.Proposal, term: int = 1) -> Entry:
    return Entry(term, index, api.Batch(proposals=proposals).SerializeToString())


def proposal(sequence: int, *keys: str) -> api.Proposal:
    commands = [request("register", "put", key, ("v", None)) for key in keys]
    return api.Proposal(
        client=1,
        sequence=sequence,
        commands=[api.Command(tag=op.tag(each), body=op.encode(each)) for each in commands],
    )


def test_a_retry_in_the_log_is_no_second_write() -> None:
    found = commands_in([entry(3, proposal(1, "a", "b")), entry(4, proposal(1, "a", "b"))])
    assert [(each.index, each.place) for each in found] == [(3, 1), (3, 2)]
    found = commands_in([entry(3, proposal(1, "a"), proposal(2, "a")), Entry(2, 4)])
    assert [(each.index, each.place) for each in found] == [(3, 1), (3, 2)]


def test_logs_that_differ_about_what_is_committed_are_found() -> None:
    mine, theirs = entry(3, proposal(1, "a")), entry(3, proposal(1, "b"))
    assert agreed([Log(2, 3, (mine,)), Log(2, 2, (theirs,))]) == [mine]
    assert agreed([Log(2, 0, (mine,)), Log(2, 0, (mine,)), Log(2, 0, (theirs,))]) == [mine]
    with pytest.raises(AssertionError, match="two entries are committed at 3"):
        agreed([Log(2, 3, (mine,)), Log(2, 3, (theirs,))])
    removed = Log(2, 0, (theirs,))
    assert agreed([Log(2, 3, (mine,)), removed, removed, removed]) == [mine]


def test_who_asked_for_the_very_same_is_placed_only_if_that_is_certain() -> None:
    asked = asked_of("register")
    commands = commands_in([entry(3, proposal(1, "k")), entry(5, proposal(2, "k"))])

    def put(invoked: int, returned: int | None, index: int = 0) -> Operation:
        return Operation("p", "put", "k", ("v", None), index, invoked, returned, "g", index)

    def at(*operations: Operation) -> list[tuple[int, int]]:
        return [(each.index, each.place) for each in placed(operations, commands, asked)]

    assert at(put(1, 9, index=5), put(2, 9, index=3)) == [(5, 1), (3, 1)]
    assert at(put(1, 9), put(2, 9)) == [(0, 0), (0, 0)], "which was which, nobody knows"
    assert at(put(1, None), put(2, 9, index=3)) == [(5, 1), (3, 1)]
    assert at(put(1, None), put(2, None), put(3, None)) == [(3, 1), (5, 1)], "one never happened"
    commands = commands_in([entry(3, proposal(1, "k"), proposal(2, "k"))])
    assert at(put(1, 9, index=3), put(2, 9, index=3)) == [(3, 0), (3, 0)], "in either order"
    found = placed([put(1, 9, index=3), put(2, None)], commands, asked, begin=1)
    assert [each.index for each in found] == [3, 3]


def test_what_log_and_history_say_against_each_other_is_said() -> None:
    asked = asked_of("register")
    put = Operation("p", "put", "k", ("v", None), 3, 1, 2, "g", 3)
    there = commands_in([entry(3, proposal(1, "k"))])
    assert compare([put], there, asked) == []
    assert "not in the log at 4" in compare([replace(put, index=4)], there, asked)[0]
    assert "not in the log: " in compare([replace(put, index=0)], [], asked)[0]
    assert compare([put], [], asked, begin=3) == [], "compacted away"
    (said,) = compare([], there, asked)
    assert "is in the log 1 times, at 3.1, and was asked for 0 times: PutKv" in said
    assert compare([], there, asked, tags=frozenset({"metadata.kv.put"})) == []
    doubled = commands_in([entry(3, proposal(1, "k"), proposal(2, "k"))])
    assert "2 times, at 3.1, 3.2" in compare([replace(put, returned=None)], doubled, asked)[0]
