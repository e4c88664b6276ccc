"""Is a history linearizable? Wing and Gong's search, with Lowe's memory, one key at a time.

A history is linearizable when every operation can be given a moment between being asked and being
answered, such that in the order of these moments each answer is what the model would have said.
Keys do not know of each other, so each is searched alone (P-compositionality: Horn and Kroening).

The search keeps a list of calls and returns in time. Whatever was called before the first return in
the list may come next; taking it lifts its call and return out of the list, and taking it back puts
them in again. What was tried once (the set of operations taken, and the state they led to) is never
tried again. An operation of unknown outcome has no return: it may be taken at any later moment, if
it changes something then, or never.

Three shortcuts, none of which loses an order. What may come next and changes nothing comes next:
it could not come better later. Where replies themselves say where they stand among others
(`Model.place`: revisions, epochs), no other order is tried. Of equal operations of unknown outcome
the one that was asked first is taken first.

The search is bounded. One that comes to no end is a failure, never a pass.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from tests.history.operation import Operation

STEPS_MAX: Final = 2_000_000  #: asked of the model, for one key
SHOWN: Final = 12  #: operations of a prefix that a report shows


Options = list[tuple[int, Hashable]]
"""Operations by number, and the state after each."""


class Model(Protocol):
    """What the service is supposed to be, one key of it. States are hashable and never change."""

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        ...

    @property
    def initial(self) -> Hashable:
        """The state before the first operation."""
        ...

    def step(self, state: Hashable, operation: Operation) -> Hashable | None:
        """The state after the operation, None if it could not have been answered so.

        For one of unknown outcome: the state after it took effect, or None (or the state itself)
        when it would have changed nothing.
        """
        ...

    def place(self, operation: Operation) -> int | None:
        """Where the answer says the operation stands among all that say it; None: it does not.

        The model must refuse any other order, and two at one place.
        """
        ...


@dataclass(frozen=True, slots=True)
class Failure:
    """A key whose history is not linearizable, or could not be decided."""

    key: str
    decided: bool
    operations: int
    prefix: tuple[Operation, ...]
    state: Hashable
    conflict: tuple[Operation, ...]

    def __str__(self) -> str:
        if not self.decided:
            said = f"undecided within the limit of steps, {self.operations} operations"
        else:
            said = f"not linearizable, {self.operations} operations"
        lines = [f"key {self.key!r}: {said}"]
        lines.append(f"  the longest order that fits has {len(self.prefix)} of them, and ends with")
        lines += [f"    {each}" for each in self.prefix[-SHOWN:]] or ["    (nothing)"]
        lines.append(f"  after which the state is {self.state!r}")
        lines.append("  and one of these would have to come next, but none can:")
        lines += [f"    {each}" for each in self.conflict]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check came to. `steps`: how often the model was asked."""

    keys: int
    operations: int
    steps: int
    failures: tuple[Failure, ...]

    @property
    def legal(self) -> bool:
        """Whether every key was found to be linearizable."""
        return not self.failures

    def __str__(self) -> str:
        if self.legal:
            return (
                f"linearizable: {self.operations} operations, {self.keys} keys, {self.steps} steps"
            )
        return "\n".join(str(each) for each in self.failures)


def check(operations: Iterable[Operation], model: Model, *, steps_max: int = STEPS_MAX) -> Verdict:
    """Check a history, key by key. `steps_max`: how often the model may be asked for one key."""
    by_key = partition(operations)
    failures: list[Failure] = []
    steps = 0
    for key in sorted(by_key):
        search = _Search(by_key[key], model)
        failure = search.run(steps_max)
        steps += search.steps
        if failure is not None:
            failures.append(failure)
    return Verdict(len(by_key), sum(map(len, by_key.values())), steps, tuple(failures))


def partition(operations: Iterable[Operation]) -> dict[str, list[Operation]]:
    """The operations of each key, in the order of asking."""
    by_key: defaultdict[str, list[Operation]] = defaultdict(list)
    for each in sorted(operations, key=lambda each: each.invoked):
        by_key[each.key].append(each)
    return dict(by_key)


class _Search:
    """The search over one key. Entry 2i is the call of operation i, 2i + 1 its return."""

    def __init__(self, operations: Sequence[Operation], model: Model) -> None:
        # Who was answered first is tried first, and what is unknown last.
        self._ops = sorted(operations, key=_rank)
        self._model = model
        self.steps = 0
        count = len(self._ops)
        self._head = 2 * count
        self._next = [0] * (2 * count + 1)
        self._before = [0] * (2 * count + 1)
        events: list[tuple[int, bool, int]] = []
        for i, each in enumerate(self._ops):
            events.append((each.invoked, False, 2 * i))
            if each.returned is not None:
                assert each.returned >= each.invoked, f"answered before it was asked: {each}"
                events.append((each.returned, True, 2 * i + 1))  # calls first: ties overlap
        last = self._head
        for _, _, entry in sorted(events):
            self._next[last], self._before[entry] = entry, last
            last = entry
        self._next[last], self._before[self._head] = self._head, last
        self._after = self._orders()

    def _orders(self) -> list[int]:
        """For each operation, the bit of one that has to be taken before it; 0 if there is none."""
        after = [0] * len(self._ops)
        twins: dict[tuple[str, object], int] = {}
        placed: list[tuple[int, int]] = []
        for i, each in enumerate(self._ops):
            if each.returned is None:
                same = (each.kind, each.input)
                if same in twins:
                    after[i] = 1 << twins[same]
                twins[same] = i
            elif (place := self._model.place(each)) is not None:
                placed.append((place, i))
        placed.sort()
        for (_, former), (_, latter) in itertools.pairwise(placed):
            after[latter] = 1 << former
        return after

    def run(self, steps_max: int) -> Failure | None:
        """Search; None when an order was found."""
        ops = self._ops
        state, taken = self._model.initial, 0
        left = sum(each.returned is not None for each in ops)
        seen: set[tuple[int, Hashable]] = set()
        stack: list[tuple[int, Hashable, Options]] = []
        options = self._options(state, taken)
        furthest: Failure | None = None
        while left:
            if self.steps > steps_max:
                here = furthest or self._stuck([each for each, _, _ in stack], state)
                return replace(here, decided=False)
            while options:
                i, new = options.pop()
                mark = (taken | 1 << i, new)
                if mark not in seen:
                    break
            else:
                if furthest is None or len(stack) > len(furthest.prefix):
                    furthest = self._stuck([each for each, _, _ in stack], state)
                if not stack:
                    return furthest
                i, state, options = stack.pop()
                taken ^= 1 << i
                left += self._put_back(i)
                continue
            seen.add(mark)
            stack.append((i, state, options))
            taken, state = mark
            left -= self._take(i)
            options = self._options(state, taken)
        return None

    def _options(self, state: Hashable, taken: int) -> Options:
        """What may come next and the state after it, the best last."""
        found: Options = []
        for i in self._choices():
            if self._after[i] & ~taken:
                continue
            self.steps += 1
            new = self._model.step(state, self._ops[i])
            if new == state and self._ops[i].returned is not None:
                return [(i, new)]
            if new is not None and new != state:
                found.append((i, new))
        return found

    def _stuck(self, taken: Sequence[int], state: Hashable) -> Failure:
        """What to report if the search comes no further than here."""
        prefix = tuple([self._ops[i] for i in taken])
        conflict = tuple([self._ops[i] for i in reversed(self._choices())])
        return Failure(self._ops[0].key, True, len(self._ops), prefix, state, conflict)

    def _choices(self) -> list[int]:
        """What was called before the first return in the list; the best last."""
        found: list[int] = []
        entry = self._next[self._head]
        while not entry & 1 and entry != self._head:
            found.append(entry >> 1)
            entry = self._next[entry]
        found.sort(reverse=True)
        return found

    def _take(self, i: int) -> int:
        """Lift an operation out of the list; how many returns went with it."""
        self._unlink(2 * i)
        if self._ops[i].returned is None:
            return 0
        self._unlink(2 * i + 1)
        return 1

    def _put_back(self, i: int) -> int:
        """The reverse of `_take`, in the reverse order."""
        known = self._ops[i].returned is not None
        if known:
            self._link(2 * i + 1)
        self._link(2 * i)
        return int(known)

    def _unlink(self, entry: int) -> None:
        before, after = self._before[entry], self._next[entry]
        self._next[before], self._before[after] = after, before

    def _link(self, entry: int) -> None:
        self._next[self._before[entry]] = self._before[self._next[entry]] = entry


def _rank(operation: Operation) -> tuple[bool, int, int]:
    if operation.returned is None:
        return True, operation.invoked, 0
    return False, operation.returned, operation.invoked
