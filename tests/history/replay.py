"""Is a history what its log says? In linear time, for histories too long to search.

The writes say where they stand: each has the index of its log entry, from its reply or from the log
itself (`logged.py`). So there is nothing to search. The model applies them in that order, each must
have been answered so; and every read must be the answer of the state at some index that is not
behind anything answered before it was asked (the floor), and not ahead of anything asked after it
was answered (the ceiling). What a read saw is the floor of whoever asks later: nobody sees the new
and then the old, on whatever key, as all keys of a group share its log.

Where a write of unknown outcome has no index, its key cannot be replayed, and is left to
`linearizable.check`: `Verdict.left` names these.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from tests.history.linearizable import Model, partition
from tests.history.operation import Operation, refusal

EVER: Final = 1 << 63
REFUSALS: Final = ("CONFLICT", "FENCED", "INVALID", "NOT_FOUND")
SHOWN: Final = 5  #: states that a report shows
TOGETHER_MAX: Final = 6  #: commands of one key in one entry whose order is tried

States = tuple[Hashable, ...]
"""Those that a key may be in: more than one where nobody was told what came of a write."""


@dataclass(slots=True)
class Verdict:
    """What a replay came to. `left`: the keys whose writes could not all be placed."""

    operations: int = 0
    writes: int = 0
    reads: int = 0
    problems: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def legal(self) -> bool:
        """Whether nothing was wrong with what could be replayed."""
        return not self.problems

    def __str__(self) -> str:
        if self.problems:
            return "\n".join(self.problems)
        return f"as its log says: {self.writes} writes, {self.reads} reads, {len(self.left)} left"


def check(operations: Iterable[Operation], model: Model, *, reads: Collection[str]) -> Verdict:
    """Replay a history. `reads`: the kinds of operations that change nothing."""
    verdict = Verdict()
    by_group: defaultdict[str, list[Operation]] = defaultdict(list)
    for key, found in partition(operations).items():
        verdict.operations += len(found)
        doubtful = any(x.kind not in reads and not x.index for x in found)
        if doubtful:
            verdict.left.append(key)
        groups = {each.group for each in found if each.index}
        if len(groups) > 1:
            verdict.problems.append(f"key {key!r} is in more than one group: {sorted(groups)}")
        elif not doubtful:
            by_group[next(iter(groups), "")] += found
    for group, found in sorted(by_group.items()):
        _Replay(found, model, reads, verdict).run(group)
    return verdict


def by_answers(operations: Iterable[Operation], model: Model) -> list[Operation]:
    """A history whose replies alone say where the writes stand: `Model.place` is their index.

    Such numbers are of one key (revisions: of several writes in one entry each is one ahead of the
    last), so each key is taken for a group.
    """
    found = []
    for each in operations:
        place = None if each.unknown else model.place(each)
        found.append(replace(each, group=each.key, index=place or 0, place=0))
    return found


class _Replay:
    """One group."""

    def __init__(
        self,
        operations: Sequence[Operation],
        model: Model,
        reads: Collection[str],
        verdict: Verdict,
    ) -> None:
        self._model = model
        self._verdict = verdict
        self._writes = [each for each in operations if each.kind not in reads]
        self._reads = [each for each in operations if each.kind in reads and not each.unknown]
        self._indexes: dict[str, list[int]] = {}
        self._states: dict[str, list[States]] = {}

    def run(self, group: str) -> None:
        """Everything, for this group."""
        self._verdict.writes += len(self._writes)
        self._verdict.reads += len(self._reads)
        self._places(group)
        for key, writes in partition(self._writes).items():
            self._apply(key, sorted(writes, key=self._rank))
        self._in_time()

    def _places(self, group: str) -> None:
        """Two writes are never at one place."""
        at: dict[tuple[int, int], Operation] = {}
        for each in self._writes:
            if each.place and at.setdefault((each.index, each.place), each) is not each:
                first = at[each.index, each.place]
                self._say(f"{group}: two writes at {each.index}.{each.place}: {first}, {each}")

    def _rank(self, operation: Operation) -> tuple[int, int, int]:
        told = None if operation.unknown else self._model.place(operation)
        return operation.index, operation.place, told or 0

    def _apply(self, key: str, writes: Sequence[Operation]) -> None:
        """The key's states, by the index from which on they held."""
        indexes: list[int] = [0]
        states: list[States] = [(self._model.initial,)]
        for index, together in itertools.groupby(writes, lambda each: each.index):
            after = self._entry(states[-1], list(together))
            if after != states[-1]:
                indexes.append(index)
                states.append(after)
        self._indexes[key], self._states[key] = indexes, states

    def _entry(self, states: States, entry: list[Operation]) -> States:
        """The states after one entry. Its order is known, or is any that explains the answers."""
        known = all(each.place for each in entry) or len(entry) > TOGETHER_MAX
        for order in [entry] if known else itertools.permutations(entry):
            after, refused = self._steps(states, order)
            if refused is None:
                return after
        after, refused = self._steps(states, entry)
        assert refused is not None, "it was tried above"
        shown = " or ".join(repr(each) for each in states[:SHOWN])
        self._say(f"key {refused.key!r}: in state {shown} it cannot be answered so: {refused}")
        return after

    def _steps(self, states: States, order: Iterable[Operation]) -> tuple[States, Operation | None]:
        """The states after these, and the first that cannot have been answered so."""
        refused = None
        for each in order:
            ways = (each,) if not each.unknown else (each, *_refused(each))
            found = [self._model.step(state, way) for way in ways for state in states]
            after = tuple(dict.fromkeys([state for state in found if state is not None]))
            refused = refused or (None if after else each)
            states = after or states
        return states, refused

    def _in_time(self) -> None:
        """Nobody is behind what was answered before he asked, nor ahead of what was not asked."""
        events = self._events()
        ceilings = _ceilings(events)
        floor, whose = 0, "nothing"
        floors: dict[int, tuple[int, str]] = {}
        for _, ends, number, each, reading in events:
            if not ends:
                floors[number] = floor, whose
                if not reading and each.index <= floor:
                    self._say(f"{each}\n  is behind what was answered before it was asked: {whose}")
                continue
            index = each.index
            if reading:
                index = self._read(each, *floors[number], ceilings[number])
            if index > floor:
                floor, whose = index, str(each)

    def _events(self) -> list[tuple[int, bool, int, Operation, bool]]:
        """Calls and returns in time; at one moment the calls come first."""
        numbered = enumerate(
            [*((x, False) for x in self._writes), *((x, True) for x in self._reads)]
        )
        events = []
        for number, (each, reading) in numbered:
            events.append((each.invoked, False, number, each, reading))
            if each.returned is not None:
                events.append((each.returned, True, number, each, reading))
        return sorted(events, key=lambda event: event[:3])

    def _read(self, read: Operation, floor: int, whose: str, ceiling: int) -> int:
        """The least index at which the read can have been answered so; the floor if at none."""
        indexes = self._indexes.get(read.key, [0])
        states = self._states.get(read.key, [(self._model.initial,)])
        if read.index and not floor <= read.index <= ceiling:
            self._say(
                f"{read}\n  is not within {floor} and {ceiling}, the first of which is of: {whose}"
            )
            return floor
        least, most = (read.index, read.index) if read.index else (floor, ceiling)
        place = bisect_right(indexes, least) - 1
        while place < len(indexes) and indexes[place] <= most:
            if any(self._model.step(state, read) is not None for state in states[place]):
                return max(least, indexes[place])
            place += 1
        where = states[bisect_right(indexes, least) - 1 : place]
        shown = [repr(each) for each in where[:SHOWN]] + ["..."] * (len(where) > SHOWN)
        self._say(
            f"key {read.key!r}: {read}\n  is no answer of a state from {least} to {most}: "
            + ", ".join(shown)
            + f"\n  the floor is of: {whose}"
        )
        return floor

    def _say(self, problem: str) -> None:
        self._verdict.problems.append(problem)


def _refused(operation: Operation) -> list[Operation]:
    """What nobody was told of may have been refused: each way in which it may."""
    return [
        replace(operation, output=refusal(code), returned=operation.invoked) for code in REFUSALS
    ]


def _ceilings(events: Sequence[tuple[int, bool, int, Operation, bool]]) -> dict[int, int]:
    """For each operation, what the log had reached at most when it was answered: the entry before
    the first of all writes that were asked for later."""
    found: dict[int, int] = {}
    least = EVER
    for _, ends, number, each, reading in reversed(events):
        if ends:
            found[number] = least - 1
        elif not reading:
            least = min(least, each.index)
    return found
