"""The verdict finds what is wrong: in journals that were tampered with, and in broken products."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.failpoints import ROOT, Armed
from tests.crash.kills import Lab, seats_of
from tests.crash.verdict import Verdict, judge
from tests.crash.victim import Order
from tests.crash.victim_journal import read

PLACE = ROOT / "build" / f"crash-verdict-{os.getpid()}"
SOUND = PLACE.with_name(f"{PLACE.name}-sound")
ORDER = Order(root="", life=0, seed=11, wide="metadata-0", phases=("crash",))
FLUSHED = Order(root="", life=0, seed=5, armed=Armed("flush.after_write", 9))
# A broken product may never get over its trouble; a sound one takes a few seconds.
LATER = Order(
    root="", life=0, seed=5, phases=("bulk", "crash", "transfer", "away"), kill_after=60.0
)
TROUBLED = Order(root="", life=0, seed=5, trouble=True, kill_after=30.0)
Lines = list[list[Any]]


@pytest.fixture(scope="module")
def history() -> Iterator[Path]:
    """The directory of a chain in which nothing was wrong."""
    with Lab(SOUND) as lab:
        chain = lab.chain("history", ORDER, keep=True)
        assert chain.verdict.wrong == []
        yield lab.place / "history"
        shutil.rmtree(lab.place / "history")


def first(lines: Lines, kind: str, *which: Any) -> list[Any]:
    return next(each for each in lines if each[0] == kind and each[2 : 2 + len(which)] == [*which])


def acknowledged(lines: Lines, what: str) -> list[Any]:
    """The acknowledgement of the first write of this kind that has one."""
    names = {each[1] for each in lines if each[0] == "do" and each[3] == what}
    return next(each for each in lines if each[0] == "ok" and each[1] in names)


def a_write_that_is_nowhere(lines: Lines) -> str:
    lines += [["do", "9.9", "offset-0", "commit", "consumers-0"], ["ok", "9.9", {}]]
    return "acknowledged, and not in the log"


def an_epoch_given_twice(lines: Lines) -> str:
    names = {
        each[1] for each in lines if each[:1] == ["do"] and each[3:] == ["register", "broker-0"]
    }
    told = [each for each in lines if each[0] == "ok" and each[1] in names]
    told[1][2]["epoch"] = told[0][2]["epoch"]
    return "epochs were given twice"


def an_acknowledgement_at_another_index(lines: Lines) -> str:
    acknowledged(lines, "append")[2] += 1
    return "acknowledged at"


def two_entries_at_an_index(lines: Lines) -> str:
    entries = [each for each in lines if each[:2] == ["entry", "mqtt-0"]]
    entries[5][2] = entries[4][2]
    return "two entries at index"


def an_entry_that_nobody_applied(lines: Lines) -> str:
    index = next(each for each in lines if each[:2] == ["entry", "offset-0"])[2]
    lines[:] = [each for each in lines if each[:3] != ["entry", "offset-0", index]]
    return "nobody has applied"


def a_vote_given_twice(lines: Lines) -> str:
    vote = next(each for each in lines if each[0] == "vote")
    lines.append(["vote", vote[1], vote[2], vote[3] + 1])
    return "gave two votes"


def reopened(lines: Lines) -> list[Any]:
    """The opening of stores in a term in which their replica has spoken before."""
    spoken: set[tuple[int, int]] = set()
    for each in lines:
        if each[0] == "vote":
            spoken.add((each[1], each[2]))
        if each[0] == "open" and (each[3], each[5]) in spoken:
            return each
    raise AssertionError("no replica was opened again in the term of its vote")


def a_vote_forgotten(lines: Lines) -> str:
    reopened(lines)[6] += 1
    return "voted for"


def a_term_forgotten(lines: Lines) -> str:
    reopened(lines)[5] -= 1
    return "opens in term"


def an_acceptance_forgotten(lines: Lines) -> str:
    match = next(each for each in lines if each[0] == "match")
    at = next(n for n, each in enumerate(lines) if each[0] == "open" and each[3] == match[1])
    after = next(n for n, each in enumerate(lines) if each[0] == "open" and n > at)
    reopened = next(e for e in lines[after:] if e[0] == "open" and e[3] == match[1])
    lines.insert(after, ["match", match[1], reopened[5], 10_000])
    return "it promised"


def a_wiped_replica_that_comes_back(lines: Lines) -> str:
    replica = next(each for each in lines if each[0] == "open")[3]
    lines.insert(1, ["wiped", replica])
    return "was wiped before"


def a_read_that_misses_a_write(lines: Lines) -> str:
    for each in lines:
        if each[0] == "saw":
            each[2] = []
    return "does not see"


def a_replica_with_another_state(lines: Lines) -> str:
    next(each for each in lines if each[0] == "state")[4] = "0" * 64
    return "and these states"


def a_state_that_is_not_the_logs(lines: Lines) -> str:
    for each in lines:
        if each[:2] == ["state", "offset-0"]:
            each[4] = "0" * 64
    return "not what the log gives"


def a_life_that_hung(lines: Lines) -> str:
    lines.insert(9, ["stuck", "TimeoutError()"])
    return "was stuck"


TAMPERED = (
    a_write_that_is_nowhere,
    an_epoch_given_twice,
    an_acknowledgement_at_another_index,
    two_entries_at_an_index,
    an_entry_that_nobody_applied,
    a_vote_given_twice,
    a_vote_forgotten,
    a_term_forgotten,
    an_acceptance_forgotten,
    a_wiped_replica_that_comes_back,
    a_read_that_misses_a_write,
    a_replica_with_another_state,
    a_state_that_is_not_the_logs,
    a_life_that_hung,
)


def judged(history: Path, lines: Lines) -> Verdict:
    """The verdict over the same directory with another journal."""
    journal = history / "journal"
    sound = journal.read_bytes()
    journal.write_text("".join(json.dumps(each) + "\n" for each in lines))
    try:
        return judge(history, seats_of(ORDER))
    finally:
        journal.write_bytes(sound)


def test_a_sound_history_is_found_sound(history: Path) -> None:
    verdict = judged(history, list(read(history / "journal")))
    assert verdict.wrong == []
    assert min(verdict.acknowledged, verdict.reads, verdict.promises, verdict.entries) > 0


@pytest.mark.parametrize("tamper", TAMPERED, ids=lambda each: each.__name__)
def test_the_verdict_finds(history: Path, tamper: Callable[[Lines], str]) -> None:
    lines = list(read(history / "journal"))
    said = tamper(lines)
    assert any(said in each for each in judged(history, lines).wrong)


def test_the_verdict_finds_what_is_left_over_in_a_directory(history: Path) -> None:
    left = next((history / "metadata-0-1" / "metadata-0").iterdir()) / "staging" / "incoming"
    left.mkdir()
    try:
        verdict = judge(history, seats_of(ORDER))
    finally:
        shutil.rmtree(left, ignore_errors=True)  # whoever opens the stores sweeps it away
    assert any("left over" in each for each in verdict.wrong)


CHAINS_MAX = 12


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("broken", "orders", "found"),
    [
        (
            "rows-behind-their-point",
            3 * [FLUSHED],
            "not what the log gives|and these states|stuck|does not open",
        ),
        ("a-retry-is-applied-again", [TROUBLED], "not what the log gives"),
        ("an-install-keeps-the-old-rows", [LATER], "and these states"),
    ],
)
def test_the_verdict_finds_a_product_with(broken: str, orders: list[Order], found: str) -> None:
    wrong: list[str] = []
    with Lab(PLACE, broken=broken) as lab:
        for attempt in range(CHAINS_MAX):  # where in its work a life is killed differs
            wrong += lab.chain(f"life{attempt}", *orders).verdict.wrong
            shutil.rmtree(lab.place / f"life{attempt}", ignore_errors=True)  # gone if all was well
            if any(re.search(found, each) for each in wrong):
                return
    raise AssertionError(f"never found in {CHAINS_MAX} chains: {wrong}")
