"""Histories made wrong. `spoil` changes something, legal or not; `RUINS` what nothing explains.

Each ruin says why there is no order left: what was read was never written, or not any more; a
number that is given once was given twice; a write that nobody could refuse was refused. It looks
for a place in a long legal history where that is certain, and gives None when there is none.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from tests.history.models import CONFLICT, FENCED, MODELS, NOT_FOUND
from tests.history.operation import Operation, Value, is_refusal

History = Sequence[Operation]
Ruin = Callable[[str, History, Random], "list[Operation] | None"]
"""(model, history, luck) -> an illegal history, or None where this cannot be done."""

READS: Final = {
    "register": "get",
    "append": "read",
    "counter": "get",
    "offset": "fetch",
    "session": "get",
}
GROWS: Final = {
    "register": "put",
    "append": "append",
    "counter": "add",
    "offset": "commit",
    "session": "open",
}
"""The writes after which the service never answers again as it did before."""

FAR: Final = 10**9  #: beyond every number that a history gives


def spoil(operations: History, luck: Random) -> list[Operation]:
    """Change one answer, to another one of the history or to one nearby, or leave one out."""
    found = list(operations)
    known = [place for place, each in enumerate(found) if not each.unknown]
    if not known:
        return found
    place = luck.choice(known)
    each = found[place]
    if luck.random() < 0.15:
        del found[place]
    else:
        others = [x.output for x in found if x.kind == each.kind and not x.unknown]
        output = luck.choice([*others, *_nearby(each.output)])
        found[place] = replace(each, output=output)
    return found


def _nearby(output: Value) -> list[Value]:
    if output is None:
        return [FENCED, NOT_FOUND, CONFLICT]
    if isinstance(output, bool) or is_refusal(output):
        return [None]
    if isinstance(output, int):
        return [output - 1, output + 1]
    if isinstance(output, tuple):
        numbers = [at for at, part in enumerate(output) if type(part) is int]
        changed = [(*output[:at], output[at] - 1, *output[at + 1 :]) for at in numbers]
        return [output[:-1], None, *changed]
    return [None]


def _with(operations: History, old: Operation, **changes: Any) -> list[Operation]:
    return [replace(each, **changes) if each is old else each for each in operations]


def _grows(name: str, each: Operation) -> bool:
    return each.kind == GROWS[name] and not each.unknown and not is_refusal(each.output)


def _seen(name: str, each: Operation) -> bool:
    """A read that saw something."""
    return each.kind == READS.get(name) and not each.unknown and bool(each.output)


def _pick(luck: Random, found: Sequence[Any]) -> Any:
    return luck.choice(found) if found else None


def phantom(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """A read sees what nobody wrote."""
    if name not in READS:
        return None
    read = _pick(luck, [each for each in operations if _seen(name, each)])
    if read is None:
        return None
    out = read.output
    never: dict[str, Callable[[], Value]] = {
        "register": lambda: ("never", out[1]),
        "append": lambda: (*out, "never"),
        "counter": lambda: FAR,
        "offset": lambda: ((*out[0][:2], FAR, *out[0][3:]), *out[1:]),
        "session": lambda: ("nobody", *out[1:]),
    }
    return _with(operations, read, output=never[name]())


def stale(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """A read answers as one did before a write that was acknowledged before the read began."""
    pairs = _around_a_write(name, operations)
    found = _pick(luck, pairs)
    return None if found is None else _with(operations, found[1], output=found[0].output)


def swapped(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """Two reads with an acknowledged write between them exchange their answers."""
    found = _pick(luck, _around_a_write(name, operations))
    if found is None:
        return None
    first, second = found
    changed = _with(operations, first, output=second.output)
    return _with(changed, second, output=first.output)


def _around_a_write(name: str, operations: History) -> list[tuple[Operation, Operation]]:
    """Pairs of reads, the first of which saw something, with a write wholly between them."""
    pairs = []
    for write in [each for each in operations if name in GROWS and _grows(name, each)]:
        mine = [each for each in operations if each.key == write.key and each.returned is not None]
        before = [x for x in mine if _seen(name, x) and _end(x) < write.invoked]
        after = [x for x in mine if x.kind == READS[name] and x.invoked > _end(write)]
        if before and after:
            pairs.append((before[-1], after[0]))
    return pairs


def _end(operation: Operation) -> int:
    assert operation.returned is not None
    return operation.returned


def given_twice(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """Two writes say that they made the same number."""
    model = MODELS[name]
    told = [each for each in operations if not each.unknown and model.place(each) is not None]
    pairs = [(a, b) for a, b in itertools.pairwise(told) if a.key == b.key]
    found = _pick(luck, pairs)
    return None if found is None else _with(operations, found[0], output=found[1].output)


def forgotten(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """A write that only it can have made, and that was read, is not in the history."""
    if name == "register":
        seen = {each.output[0] for each in operations if _seen(name, each)}
        writes = [x for x in operations if _grows(name, x) and x.input[0] in seen - {"a"}]
    elif name == "append":
        seen = {item for each in operations if _seen(name, each) for item in each.output}
        writes = [x for x in operations if _grows(name, x) and x.input in seen - {"a"}]
    elif name == "offset":
        seen = {row[2] for each in operations if _seen(name, each) for row in each.output}
        writes = [x for x in operations if _grows(name, x) and {row[2] for row in x.input} <= seen]
    else:
        return None
    write = _pick(luck, writes)
    return None if write is None else [each for each in operations if each is not write]


def foreseen(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """A read sees a write that is asked for only after the read has ended."""
    if name not in ("register", "append"):
        return None
    pairs = []
    for write in [x for x in operations if x.kind == GROWS[name] and x.invoked > 1]:
        value = write.input[0] if name == "register" else write.input
        pairs += [
            (write, read)
            for read in operations
            if value != "a" and read.key == write.key and _seen(name, read) and value in read.output
        ]
    found = _pick(luck, pairs)
    if found is None:
        return None
    write, read = found
    return _with(operations, read, invoked=write.invoked - 1, returned=write.invoked - 1)


def denied(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """Something is refused that nothing stood against."""
    if name == "register":
        free = [x for x in operations if _grows(name, x) and x.input[1] is None]
        output = CONFLICT
    elif name == "fence":
        highest = max(each.input for each in operations)
        free = [x for x in operations if x.input == highest and not x.unknown]
        output = FENCED
    elif name == "session":
        free, output = [x for x in operations if _grows(name, x)], FENCED
    else:
        return None
    found = _pick(luck, free)
    return None if found is None else _with(operations, found, output=output)


def not_fenced(name: str, operations: History, luck: Random) -> list[Operation] | None:
    """Someone acts under an epoch although a higher one was acknowledged before."""
    if name == "fence":
        refused = [
            late
            for late in operations
            if late.output == FENCED
            and any(
                x.input > late.input
                and x.output is None
                and not x.unknown
                and _end(x) < late.invoked
                for x in operations
                if x.key == late.key
            )
        ]
    elif name == "session":
        refused = [
            late
            for late in operations
            if late.output == FENCED
            and any(
                x.key == late.key
                and _grows(name, x)
                and _end(x) < late.invoked
                and x.output[0] > late.input[0]
                for x in operations
            )
        ]
    else:
        return None
    found = _pick(luck, refused)
    return None if found is None else _with(operations, found, output=None)


RUINS: Final[tuple[Ruin, ...]] = (
    phantom,
    stale,
    swapped,
    given_twice,
    forgotten,
    foreseen,
    denied,
    not_fenced,
)
"""Every way to make a legal history illegal."""
