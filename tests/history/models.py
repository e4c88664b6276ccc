"""What each kind of thing that the service keeps is supposed to answer, one key of it.

    register    kv: put, delete and their expected revisions, get
    append      a list kept in one kv pair by compare-and-set: append, read
    counter     what must not happen twice: add (a node's registrations), get
    offset      a consumer group's offsets: commit, swap, fetch, delete_group
    session     an MQTT client's session: open (takeover), close, subscribe, delete, get
    fence       a controller's epoch: act

Each says what our commands really answer, refusals too; `workloads.py` has the commands. Models of
numbers that the log gives (revisions, epochs) know of them that they only grow, so an operation of
unknown outcome leaves one behind that is known only by what is above and below it (`growing.py`).
"""

from __future__ import annotations

from typing import Any, Final

from tests.history import growing
from tests.history.growing import Growing
from tests.history.linearizable import Model
from tests.history.operation import Operation, Value, refusal

CONFLICT: Final = refusal("CONFLICT")
NOT_FOUND: Final = refusal("NOT_FOUND")
FENCED: Final = refusal("FENCED")
INVALID: Final = refusal("INVALID")

ABSENT: Final = -1
"""What a swap expects where there is no offset."""

NEVER_S: Final = 0xFFFFFFFF
"""The expiry of a session that never ends by time (MQTT 5, 3.1.2.11.2)."""

Pair = tuple[str | None, Growing]


class Register:
    """put: (value, expected revision or None) -> revision. delete: expected -> None.
    get: None -> (value, revision) or None."""

    name = "register"
    initial: Pair = (None, growing.NONE_YET)

    def step(self, state: Any, operation: Operation) -> Pair | None:
        value = state[0]
        output, unknown = operation.output, operation.returned is None
        if operation.kind == "get":
            return self._get(state, output) if not unknown else None
        assert operation.kind in ("put", "delete"), operation
        putting = operation.kind == "put"
        new, expected = operation.input if putting else (None, operation.input)
        if not unknown and output == CONFLICT:
            differs = _differs(state, expected)
            return None if differs is None else (value, differs)
        met = _meets(state, expected)
        if met is None:
            return None
        if putting:
            given = growing.follow(met) if unknown else growing.give(met, output)
            return None if given is None else (new, given)
        if value is None:
            return state if not unknown and output == NOT_FOUND else None
        return (None, met) if unknown or output is None else None

    @staticmethod
    def _get(state: Pair, output: Value) -> Pair | None:
        value, revision = state
        if output is None or value is None:
            return state if output is None and value is None else None
        told, at = output if isinstance(output, tuple) and len(output) == 2 else (None, None)
        seen = growing.equal(revision, at)
        return (value, seen) if told == value and seen is not None else None

    def place(self, operation: Operation) -> int | None:
        """A put by the revision it gave."""
        if operation.kind == "put" and isinstance(operation.output, int):
            return operation.output
        return None


def _meets(state: Pair, expected: int | None) -> Growing | None:
    """The revision, if it may be the expected one. One that is not there is at 0."""
    value, revision = state
    if expected is None:
        return revision
    if value is None:
        return revision if expected == 0 else None
    return growing.equal(revision, expected)


def _differs(state: Pair, expected: int | None) -> Growing | None:
    """The revision, if it may be another than the expected one."""
    value, revision = state
    if expected is None:
        return None
    if value is None:
        return revision if expected != 0 else None
    return growing.differ(revision, expected)


class Append:
    """append: item -> the list's length. read: None -> the items."""

    name = "append"
    initial: tuple[str, ...] = ()

    def step(self, state: Any, operation: Operation) -> tuple[str, ...] | None:
        items: tuple[str, ...] = state
        if operation.kind == "read":
            return items if operation.output == items else None
        assert operation.kind == "append", operation
        if not operation.unknown and operation.output == CONFLICT:
            return items  # others were always faster; it has not happened
        longer = (*items, operation.input)
        return longer if operation.unknown or operation.output == len(longer) else None

    def place(self, operation: Operation) -> int | None:
        """An append by the length it made."""
        if operation.kind == "append" and isinstance(operation.output, int):
            return operation.output
        return None


class Counter:
    """add: None -> the new value, or None where the command does not tell. get: None -> value."""

    name = "counter"
    initial = 0

    def step(self, state: Any, operation: Operation) -> int | None:
        value: int = state
        if operation.kind == "get":
            return value if operation.output == value else None
        assert operation.kind == "add", operation
        return value + 1 if operation.output in (None, value + 1) else None

    def place(self, operation: Operation) -> int | None:
        """An addition by the value it made."""
        if operation.kind == "add" and isinstance(operation.output, int):
            return operation.output
        return None


Position = tuple[str, int]
"""Topic and partition."""


class Offset:
    """The offsets of one consumer group.

    commit: ((topic, partition, offset, metadata), ...) -> how many. delete_group: None -> how many
    offsets there were. fetch: None -> ((topic, partition, offset, metadata, commits), ...).
    swap: ((topic, partition, offset, expected or None), ...) -> the places of those refused.
    The last commit wins, and may go back; every commit counts, also two of one partition.
    """

    name = "offset"
    initial: tuple[Value, ...] = ()

    def step(self, state: Any, operation: Operation) -> tuple[Value, ...] | None:
        rows: tuple[Value, ...] = state
        output, unknown = operation.output, operation.unknown
        if operation.kind == "fetch":
            return rows if not unknown and output == rows else None
        if operation.kind == "delete_group":
            return () if unknown or output == len(rows) else None
        assert operation.kind in ("commit", "swap"), operation
        by_place: dict[Position, Value] = {(row[0], row[1]): row for row in rows}
        refused = []
        for place, (topic, partition, offset, more) in enumerate(operation.input):
            old = by_place.get((topic, partition))
            there, commits = (ABSENT, 0) if old is None else (old[2], old[4])
            if operation.kind == "swap" and more not in (None, there):
                refused.append(place)
                continue
            note = more if operation.kind == "commit" else ""
            by_place[topic, partition] = (topic, partition, offset, note, commits + 1)
        told = tuple(refused) if operation.kind == "swap" else len(operation.input)
        if not unknown and output != told:
            return None
        return tuple([by_place[each] for each in sorted(by_place, key=_in_order)])

    def place(self, operation: Operation) -> int | None:
        """Replies do not say."""
        return None


def _in_order(position: Position) -> tuple[int, bytes, int]:
    """A string that is not the last part of a key sorts by its length first (`keyvalue.py`)."""
    topic = position[0].encode()
    return len(topic), topic, position[1]


Held = tuple[Value, Growing]
"""(broker, connected, expiry_s, filters) or None, and the epoch in force or last given."""


class Session:
    """The session of one MQTT client. Expiries are 0 or `NEVER_S`: no clock takes part.

    open: (broker, expiry_s, clean_start) -> (epoch, present). close: (epoch, graceful, expiry_s or
    None) -> None. subscribe: (epoch, filter) -> None. delete: None -> how many there were.
    get: None -> (broker, epoch, connected, expiry_s, subscriptions) or None.
    """

    name = "session"
    initial: Held = (None, growing.NONE_YET)

    def step(self, state: Any, operation: Operation) -> Held | None:
        session, epoch = state
        output, unknown = operation.output, operation.unknown
        match operation.kind:
            case "open":
                return self._open(state, operation)
            case "get":
                return self._get(state, output) if not unknown else None
            case "delete":
                there = session is not None
                return (None, epoch) if unknown or output == int(there) else None
            case "close" | "subscribe":
                return self._fenced(state, operation)
        raise AssertionError(operation)

    @staticmethod
    def _open(state: Held, operation: Operation) -> Held | None:
        session, epoch = state
        broker, expiry_s, clean_start = operation.input
        assert expiry_s in (0, NEVER_S), f"a session that time ends has no model: {operation}"
        # One that ends with its connection is never resumed.
        kept = session is not None and session[2] != 0 and not clean_start
        fresh = (broker, True, expiry_s, session[3] if kept else ())
        if operation.unknown:
            return fresh, growing.follow(epoch)
        output = operation.output
        if not isinstance(output, tuple) or output[1:] != (kept,):
            return None
        given = growing.give(epoch, output[0])
        return None if given is None else (fresh, given)

    @staticmethod
    def _get(state: Held, output: Value) -> Held | None:
        session, epoch = state
        if session is None or output is None:
            return state if session is None and output is None else None
        broker, connected, expiry_s, filters = session
        if not isinstance(output, tuple) or (output[:1] + output[2:]) != (
            broker,
            connected,
            expiry_s,
            len(filters),
        ):
            return None
        seen = growing.equal(epoch, output[1])
        return None if seen is None else (session, seen)

    def _fenced(self, state: Held, operation: Operation) -> Held | None:
        """What only the holder of the epoch in force may do."""
        session, epoch = state
        output, unknown = operation.output, operation.unknown
        if session is None:
            return state if not unknown and output == NOT_FOUND else None
        if not unknown and output == FENCED:
            other = growing.differ(epoch, operation.input[0])
            return None if other is None else (session, other)
        mine = growing.equal(epoch, operation.input[0])
        if mine is None:
            return None
        if operation.kind == "subscribe":
            broker, connected, expiry_s, filters = session
            more = tuple(sorted({*filters, operation.input[1]}))
            new: Value = (broker, connected, expiry_s, more)
        else:
            new = self._close(session, operation)
            if new == INVALID:
                return (session, mine) if not unknown and output == INVALID else None
        return (new, mine) if unknown or output is None else None

    @staticmethod
    def _close(session: Value, operation: Operation) -> Value:
        """The session after it was closed, or INVALID."""
        broker, connected, before_s, filters = session
        _, _, expiry_s = operation.input
        if not connected:
            return session
        expiry_s = before_s if expiry_s is None else expiry_s
        if expiry_s and not before_s:
            return INVALID
        return (broker, False, expiry_s, filters) if expiry_s else None

    def place(self, operation: Operation) -> int | None:
        """A takeover by the epoch it gave."""
        output = operation.output
        if operation.kind == "open" and isinstance(output, tuple):
            return next((each for each in output[:1] if isinstance(each, int)), None)
        return None


class Fence:
    """act: epoch -> None, or FENCED once a higher one has acted."""

    name = "fence"
    initial = 0

    def step(self, state: Any, operation: Operation) -> int | None:
        highest: int = state
        assert operation.kind == "act", operation
        epoch: int = operation.input
        if operation.unknown:
            return max(highest, epoch)
        if operation.output == FENCED:
            return highest if epoch < highest else None
        return epoch if operation.output is None and epoch >= highest else None

    def place(self, operation: Operation) -> int | None:
        """Many may act under one epoch."""
        return None


MODELS: Final[dict[str, Model]] = {
    each.name: each for each in (Register(), Append(), Counter(), Offset(), Session(), Fence())
}
"""By name."""
