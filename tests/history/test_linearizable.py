"""The checker on histories small enough to be judged by eye."""

from __future__ import annotations

from tests.history.linearizable import check
from tests.history.models import MODELS
from tests.history.operation import Operation, Value, refusal

REGISTER = MODELS["register"]


def operation(
    kind: str, input: Value, output: Value, invoked: int, returned: int | None, key: str = "k"
) -> Operation:
    return Operation("p", kind, key, input, output, invoked, returned)


def legal(*operations: Operation, steps_max: int = 10_000) -> bool:
    return check(operations, REGISTER, steps_max=steps_max).legal


def put(value: str, revision: int, invoked: int, returned: int) -> Operation:
    return operation("put", (value, None), revision, invoked, returned)


def get(output: Value, invoked: int, returned: int) -> Operation:
    return operation("get", None, output, invoked, returned)


def test_a_read_sees_what_was_acknowledged_before_it_began() -> None:
    assert legal(put("a", 5, 1, 2), get(("a", 5), 3, 4))
    assert not legal(put("a", 5, 1, 2), get(None, 3, 4)), "lost"
    assert not legal(put("a", 5, 1, 2), put("b", 6, 3, 4), get(("a", 5), 5, 6)), "stale"
    assert not legal(put("a", 5, 1, 2), get(("b", 6), 3, 4)), "never written"


def test_what_overlaps_may_come_in_either_order() -> None:
    for seen in (None, ("a", 5)):
        assert legal(put("a", 5, 1, 10), get(seen, 2, 9))
    assert not legal(put("a", 5, 1, 10), get(("a", 5), 2, 3), get(None, 4, 5)), "seen, then unseen"


def test_what_ends_as_another_begins_overlaps() -> None:
    assert legal(put("a", 5, 1, 2), get(None, 2, 3))


def test_an_unknown_outcome_may_be_seen_at_any_later_time_or_never() -> None:
    lost = operation("put", ("a", None), None, 1, None)
    assert legal(lost, get(None, 2, 3), get(("a", 7), 4, 5))
    assert legal(lost, get(None, 2, 3), get(None, 4, 5))
    assert not legal(lost, get(("a", 7), 2, 3), get(None, 4, 5)), "once seen it stays"
    assert not legal(lost, get(("a", 7), 2, 3), put("b", 8, 4, 5), get(("a", 9), 6, 7)), "twice"


def test_a_revision_that_nobody_saw_lies_between_its_neighbours() -> None:
    lost = operation("put", ("a", None), None, 3, None)
    conflict = operation("put", ("c", 5), refusal("CONFLICT"), 4, 5)
    assert legal(put("x", 5, 1, 2), lost, conflict, put("b", 7, 6, 7))
    assert not legal(put("x", 5, 1, 2), lost, conflict, put("b", 6, 6, 7)), "no room for it"


def test_each_key_is_on_its_own() -> None:
    other = operation("get", None, None, 3, 4, key="other")
    verdict = check([put("a", 5, 1, 2), other, get(("a", 5), 5, 6)], REGISTER)
    assert (verdict.legal, verdict.keys, verdict.operations) == (True, 2, 3)
    assert str(verdict).startswith("linearizable: 3 operations, 2 keys")


def test_a_failure_says_where_it_went_wrong() -> None:
    history = [put("a", 5, 1, 2), put("b", 6, 3, 4), get(("a", 5), 5, 6), get(("b", 6), 7, 8)]
    (failure,) = check(history, REGISTER).failures
    assert (failure.key, failure.decided) == ("k", True)
    assert failure.prefix == tuple(history[:2])
    assert failure.conflict == (history[2],)
    assert "key 'k': not linearizable, 4 operations" in str(failure)
    assert "[5 .. 6] p get() -> ('a', 5)" in str(failure)


def test_a_search_without_end_is_no_pass() -> None:
    history = [put(f"v{n}", 100 + n, 1, 100) for n in range(30)]
    assert legal(*history)
    (failure,) = check(history, REGISTER, steps_max=20).failures
    assert not failure.decided
    assert "undecided within the limit" in str(failure)
