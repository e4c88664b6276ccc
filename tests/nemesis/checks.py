"""The judgement of a history: linearizable by search, and nothing lost or doubled by counting.

Every key is read once more at the end, and that read is part of the history that the search of
`tests/history` judges. The counts say the same more plainly where the service numbers what it does:
an acknowledged write that is not there is lost, more than what was asked for is doubled. A watcher
must have been told of every write after where he began, in order, and of nothing that nobody wrote.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.history import linearizable
from tests.history.models import MODELS
from tests.history.operation import Operation, is_refusal

FINAL = "the end"
"""The process that reads every key when all is over."""


@dataclass(slots=True)
class Verdict:
    """What a history came to."""

    operations: int = 0
    unknown: int = 0
    refused: int = 0
    keys: int = 0
    steps: int = 0  #: of the search
    told: int = 0  #: changes that watchers were told of
    lost: list[str] = field(default_factory=list)  #: acknowledged, and not there
    doubled: list[str] = field(default_factory=list)  #: there more often than asked
    illegal: list[str] = field(default_factory=list)  #: no order of the operations explains it

    @property
    def fine(self) -> bool:
        """Nothing is wrong."""
        return not (self.lost or self.doubled or self.illegal)

    def wrong(self) -> str:
        """What is wrong, in words."""
        return "\n".join([*self.lost, *self.doubled, *self.illegal])


def check(history: Sequence[Operation], watches: Iterable[Path]) -> Verdict:
    """All checks over one history, which holds the final read of every key."""
    verdict = Verdict(
        operations=len(history),
        unknown=sum(each.unknown for each in history),
        refused=sum(is_refusal(each.output) for each in history),
    )
    by_model: dict[str, list[Operation]] = defaultdict(list)
    for each in history:
        by_model[each.key.partition(".")[0]].append(each)
    for name, operations in sorted(by_model.items()):
        searched = linearizable.check(operations, MODELS[name])
        verdict.keys += searched.keys
        verdict.steps += searched.steps
        verdict.illegal += [f"{name}: {failure}" for failure in searched.failures]
        for key, one in linearizable.partition(operations).items():
            _count(name, key, one, verdict)
    for path in watches:
        _told(path, by_model["register"] + by_model["append"], verdict)
    return verdict


def _done(history: Iterable[Operation], *kinds: str) -> list[Operation]:
    """Those of these kinds that were acknowledged."""
    return [
        each
        for each in history
        if each.kind in kinds and not each.unknown and not is_refusal(each.output)
    ]


def _count(model: str, key: str, history: Sequence[Operation], verdict: Verdict) -> None:
    """What the last read says, against what was acknowledged and what was in doubt."""
    finals = [each for each in history if each.process == FINAL]
    assert len(finals) == 1, f"{key} is read once at the end"
    end = finals[0].output
    doubtful = [each for each in history if each.unknown]
    match model:
        case "register":
            _grown(key, [each.output for each in _done(history, "put")], end and end[1], verdict)
        case "session":
            _grown(
                key, [each.output[0] for each in _done(history, "open")], end and end[1], verdict
            )
        case "append":
            there: Counter[str] = Counter(end)
            for each in _done(history, "append"):
                if not there[each.input]:
                    verdict.lost.append(f"{key}: {each.input} was appended")
            verdict.doubled += [f"{key}: {item} {n} times" for item, n in there.items() if n > 1]
        case "counter":
            sure = len(_done(history, "add"))
            _between(key, sure, end, sure + len(doubtful), verdict)
        case "offset":
            sure = sum(each.output for each in _done(history, "commit"))
            most = sure + sum(len(each.input) for each in doubtful)
            _between(key, sure, sum(row[4] for row in end), most, verdict)


def _grown(key: str, given: Sequence[int], end: int | None, verdict: Verdict) -> None:
    """Each number was given once, and the last one is not behind any."""
    if given and max(given) > (end or 0):
        verdict.lost.append(f"{key}: {max(given)} was acknowledged, {end} is there")
    twice = [number for number, count in Counter(given).items() if count > 1]
    verdict.doubled += [f"{key}: {number} was given twice" for number in twice]


def _between(key: str, least: int, found: int, most: int, verdict: Verdict) -> None:
    if found < least:
        verdict.lost.append(f"{key}: {least} were acknowledged, {found} are there")
    if found > most:
        verdict.doubled.append(f"{key}: {most} were asked for at most, {found} are there")


def _told(path: Path, history: Sequence[Operation], verdict: Verdict) -> None:
    """One watcher."""
    asked: set[tuple[str, str]] = set()
    acknowledged: dict[tuple[str, str], int] = {}
    for each in history:
        if each.kind == "put":
            asked.add((each.key, each.input[0]))
            if isinstance(each.output, int):
                acknowledged[each.key, each.input[0]] = each.output
    told: dict[tuple[str, str], int] = {}
    begun, last, compacted = 0, 0, []
    for line in _lines(path):
        revision, *change = line
        if revision < last:
            verdict.illegal.append(f"{path.stem}: was told of {revision} after {last}")
        if not change:
            compacted += [(last, revision)] if last else []
            begun = begun or revision
        elif change[0].startswith("register."):
            place = (change[0], str(change[1]))
            if place not in asked:
                verdict.illegal.append(f"{path.stem}: was told of {place}, which nobody wrote")
            if told.setdefault(place, revision) != revision:
                verdict.doubled.append(f"{path.stem}: {place} at {told[place]} and {revision}")
        last = max(last, revision)
    verdict.told += len(told)
    given: dict[str, set[int]] = defaultdict(set)
    for (key, _), revision in acknowledged.items():
        given[key].add(revision)
    for place, revision in acknowledged.items():
        entry = _entry_of(revision, given[place[0]])
        missed = begun < entry and revision < last and place not in told
        if missed and not any(low < revision and entry <= high for low, high in compacted):
            verdict.lost.append(f"{path.stem}: was not told of {place} at {revision}")


def _entry_of(revision: int, given: Set[int]) -> int:
    """The entry in which a pair was written, or an earlier one: its revision is ahead of the entry
    only where it is one more than that of the write before, which may be of the same entry."""
    while revision - 1 in given:
        revision -= 1
    return revision


def _lines(path: Path) -> list[list[Any]]:
    whole, _, _ = path.read_text().rpartition("\n")  # a killed process leaves half a line
    return [json.loads(line) for line in whole.split("\n")] if whole else []
