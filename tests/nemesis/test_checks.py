"""What the judgement of a history finds: each history is fine but for one thing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.history.operation import Operation
from tests.nemesis.checks import FINAL, Verdict, check

AT_THE_END = 1_000


def done(kind: str, key: str, asked: object, output: object, at: int) -> Operation:
    return Operation("c0", kind, key, asked, output, at, at + 1)


def end(kind: str, key: str, output: object) -> Operation:
    return Operation(FINAL, kind, key, None, output, AT_THE_END, AT_THE_END + 1)


def in_doubt(kind: str, key: str, asked: object, at: int) -> Operation:
    return Operation("c1", kind, key, asked, None, at, None)


def judged(*history: Operation) -> Verdict:
    return check(history, [])


def test_a_history_that_is_as_promised_is_fine() -> None:
    verdict = judged(
        done("put", "register.1", ("a", None), 7, 1),
        done("put", "register.1", ("b", 7), 9, 3),
        end("get", "register.1", ("b", 9)),
        done("add", "counter.1", None, None, 1),
        in_doubt("add", "counter.1", None, 3),
        end("get", "counter.1", 2),
        done("append", "append.1", "x", 1, 1),
        end("read", "append.1", ("x",)),
    )
    assert verdict.fine, verdict.wrong()
    assert (verdict.operations, verdict.unknown, verdict.keys) == (8, 1, 3)


@pytest.mark.parametrize(
    ("written", "found", "what"),
    [
        (done("put", "register.1", ("a", None), 7, 1), end("get", "register.1", None), "lost"),
        (done("add", "counter.1", None, None, 1), end("get", "counter.1", 0), "lost"),
        (done("add", "counter.1", None, None, 1), end("get", "counter.1", 2), "doubled"),
        (done("append", "append.1", "x", 1, 1), end("read", "append.1", ()), "lost"),
        (done("append", "append.1", "x", 1, 1), end("read", "append.1", ("x", "x")), "doubled"),
        (
            done("commit", "offset.1", (("t", 0, 5, ""),), 1, 1),
            end("fetch", "offset.1", (("t", 0, 5, "", 2),)),
            "doubled",
        ),
        (
            done("open", "session.1", ("b", 0xFFFFFFFF, False), (3, False), 1),
            end("get", "session.1", None),
            "lost",
        ),
    ],
    ids=lambda each: each.key if isinstance(each, Operation) else None,
)
def test_what_is_lost_or_doubled_is_counted_and_is_not_linearizable(
    written: Operation, found: Operation, what: str
) -> None:
    verdict = judged(written, found)
    assert len(getattr(verdict, what)) == 1
    assert verdict.illegal


def test_a_write_in_doubt_may_be_there_or_not_but_not_twice() -> None:
    for count, fine in ((0, True), (1, True), (2, False)):
        verdict = judged(in_doubt("add", "counter.1", None, 1), end("get", "counter.1", count))
        assert verdict.fine is fine


def test_a_stale_read_is_not_linearizable_though_nothing_is_lost() -> None:
    verdict = judged(
        done("put", "register.1", ("a", None), 7, 1),
        done("put", "register.1", ("b", None), 8, 3),
        done("get", "register.1", None, ("a", 7), 5),
        end("get", "register.1", ("b", 8)),
    )
    assert not verdict.lost
    assert verdict.illegal


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([[5], [7, "register.1", "a"], [9, "register.1", "b"]], ""),
        ([[5], [9, "register.1", "b"]], "lost"),  # the first is left out
        ([[5], [7, "register.1", "a"], [8, "register.1", "a"], [9, "register.1", "b"]], "doubled"),
        ([[5], [9, "register.1", "b"], [7, "register.1", "a"]], "illegal"),  # the wrong way round
        ([[5], [7, "register.1", "a"], [8, "register.1", "z"], [9, "register.1", "b"]], "illegal"),
        ([[8], [9, "register.1", "b"]], ""),  # he began later
        ([[5], [5, "mark", ""], [8], [9, "register.1", "b"]], ""),  # compacted, and told so
    ],
)
def test_a_watcher_is_told_of_each_write_once_in_order_and_of_nothing_else(
    told: list[list[object]], wrong: str, tmp_path: Path
) -> None:
    path = tmp_path / "c0.watch"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in told) + '[10, "regis')
    verdict = check(
        [
            done("put", "register.1", ("a", None), 7, 1),
            done("put", "register.1", ("b", None), 9, 3),
            end("get", "register.1", ("b", 9)),
        ],
        [path],
    )
    if wrong:
        assert getattr(verdict, wrong), verdict
    else:
        assert verdict.fine, verdict.wrong()


@pytest.mark.parametrize(
    ("told", "wrong"),
    [
        ([[7], [9, "register.1", "c"]], False),  # he began after the entry that wrote both
        ([[5], [5, "mark", ""], [7], [9, "register.1", "c"]], False),  # that one was compacted
        ([[5], [7, "register.1", "a"], [9, "register.1", "c"]], True),
    ],
)
def test_who_began_after_an_entry_is_not_told_of_the_second_write_in_it(
    told: list[list[object]], wrong: bool, tmp_path: Path
) -> None:
    path = tmp_path / "c0.watch"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in told))
    verdict = check(
        [
            done("put", "register.1", ("a", None), 7, 1),
            done("put", "register.1", ("b", None), 8, 3),  # of entry 7, as the first
            done("put", "register.1", ("c", None), 9, 5),
            end("get", "register.1", ("c", 9)),
        ],
        [path],
    )
    assert bool(verdict.lost) is wrong, verdict
    assert verdict.fine is not wrong
