"""The same question as `linearizable.py`, answered in the plainest ways: by trying every order.

`legal` builds orders one operation at a time and gives one up as soon as the model refuses it;
`legal_by_permutation` does not even do that. Neither splits by key, remembers where it was, or
looks at what replies say of their place: whatever the real search does to be quick is not here.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import chain, combinations, permutations

from tests.history.linearizable import Model
from tests.history.operation import Operation


def legal(operations: Sequence[Operation], model: Model) -> bool:
    """Whether some order explains the history."""
    return _goes_on({}, tuple(operations), model)


def _goes_on(states: dict[str, Hashable], left: tuple[Operation, ...], model: Model) -> bool:
    ends = [each.returned for each in left if each.returned is not None]
    if not ends:
        return True  # what is left may never have happened
    first = min(ends)
    for place, each in enumerate(left):
        if each.invoked > first:
            continue
        new = model.step(states.get(each.key, model.initial), each)
        rest = left[:place] + left[place + 1 :]
        if new is not None and _goes_on({**states, each.key: new}, rest, model):
            return True
    return False


def legal_by_permutation(operations: Sequence[Operation], model: Model) -> bool:
    """Whether some permutation does, of all known operations and any of the unknown ones."""
    known = [each for each in operations if not each.unknown]
    doubtful = [each for each in operations if each.unknown]
    subsets = chain.from_iterable(combinations(doubtful, size) for size in range(len(doubtful) + 1))
    return any(
        _in_time(order) and _explains(order, model)
        for some in subsets
        for order in permutations([*known, *some])
    )


def _in_time(order: Sequence[Operation]) -> bool:
    """Nothing comes before what had ended when it began."""
    return not any(
        later.returned is not None and later.returned < sooner.invoked
        for sooner, later in combinations(order, 2)
    )


def _explains(order: Sequence[Operation], model: Model) -> bool:
    states: dict[str, Hashable] = {}
    for each in order:
        new = model.step(states.get(each.key, model.initial), each)
        if new is None:
            return False
        states[each.key] = new
    return True
