"""Small services that answer what the models ask for, written without them: plain dicts.

`history` runs clients against one: they ask at the same time, a request takes effect at some moment
while it is asked, and some outcomes stay unknown. What comes out is linearizable by its making.
With `bugs` the service errs as real ones did: it loses a write it acknowledged, applies one twice,
or answers a read from its past; then the history may be illegal, and who wants to know checks it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Final

from tests.history.models import ABSENT, CONFLICT, FENCED, INVALID, NEVER_S, NOT_FOUND
from tests.history.operation import Operation, Value

BUGS: Final = ("lost", "twice", "stale")
PAST: Final = 4  #: how many changes back a stale read may look


class Server(ABC):
    """One service. `rows` holds what it keeps by key, as values that never change."""

    reads: tuple[str, ...] = ("get",)
    writes_max = 1 << 30  #: of one history: what comes after are reads

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.index = 0  #: how many writes there were
        self.drawn = 0

    def ask(self, kind: str, key: str, input: Value) -> Value:
        """Answer an operation."""
        if kind not in self.reads:
            self.index += 1
        return self.answer(kind, key, input)

    @abstractmethod
    def answer(self, kind: str, key: str, input: Value) -> Value:
        """Change `rows`, and say what came of it."""

    @abstractmethod
    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        """What somebody might ask next."""

    def fresh(self) -> str:
        """A value that nobody has written."""
        self.drawn += 1
        return f"v{self.drawn}"

    def near(self, luck: Random, number: int) -> int:
        """A number that is right, or was, or never will be."""
        return max(0, number - luck.choice((0, 0, 0, 0, 1, 2, -1)))


class RegisterServer(Server):
    """A row is (value or None, last revision)."""

    def answer(self, kind: str, key: str, input: Value) -> Value:
        value, revision = self.rows.get(key, (None, 0))
        now = 0 if value is None else revision
        if kind == "get":
            return None if value is None else (value, revision)
        expected = input[1] if kind == "put" else input
        if expected is not None and expected != now:
            return CONFLICT
        if kind == "put":
            revision = max(self.index, revision + 1)  # several of one entry
            self.rows[key] = (input[0], revision)
            return revision
        if value is None:
            return NOT_FOUND
        self.rows[key] = (None, revision)
        return None

    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        _, revision = self.rows.get(key, (None, 0))
        expected = luck.choice((None, self.near(luck, revision), 0))
        roll = luck.random()
        if roll < 0.4:
            return "get", None
        if roll < 0.55:
            return "delete", expected
        return "put", (luck.choice((self.fresh(), "a")), expected)


class AppendServer(Server):
    """A row is the items."""

    reads = ("read",)

    def answer(self, kind: str, key: str, input: Value) -> Value:
        items = self.rows.get(key, ())
        if kind == "read":
            return items
        self.rows[key] = (*items, input)
        return len(items) + 1

    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        if luck.random() < 0.4:
            return "read", None
        return "append", luck.choice((self.fresh(), self.fresh(), "a"))


class CounterServer(Server):
    """A row is the count. Every other counter does not tell what it has come to."""

    def answer(self, kind: str, key: str, input: Value) -> Value:
        value = self.rows.get(key, 0)
        if kind == "get":
            return value
        self.rows[key] = value + 1
        return value + 1 if len(key) % 2 else None

    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        return luck.choice(("add", "get")), None


class OffsetServer(Server):
    """A row is {(topic, partition): (offset, metadata, commits)}."""

    reads = ("fetch",)

    def answer(self, kind: str, key: str, input: Value) -> Value:
        rows = dict(self.rows.get(key, {}))
        if kind == "fetch":
            places = sorted(rows, key=lambda place: (len(place[0]), place))
            return tuple([(*place, *rows[place]) for place in places])
        if kind == "delete_group":
            self.rows[key] = {}
            return len(rows)
        refused = []
        for place, (topic, partition, offset, more) in enumerate(input):
            there, _, commits = rows.get((topic, partition), (ABSENT, "", 0))
            if kind == "commit":
                rows[topic, partition] = (offset, more, commits + 1)
            elif more in (None, there):
                rows[topic, partition] = (offset, "", commits + 1)
            else:
                refused.append(place)
        self.rows[key] = rows
        return len(input) if kind == "commit" else tuple(refused)

    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        roll = luck.random()
        if roll < 0.45:
            return "fetch", None
        if roll < 0.5:
            return "delete_group", None
        self.drawn += 1
        swap = luck.random() < 0.3
        more = (None, ABSENT, self.drawn - 1, self.drawn) if swap else ("", "m")
        return "swap" if swap else "commit", tuple(
            [
                (luck.choice(("t", "aa")), luck.randrange(2), self.drawn, luck.choice(more))
                for _ in range(luck.randrange(1, 3))
            ]
        )


class SessionServer(Server):
    """A row is (broker, epoch, connected, expiry_s, filters), or None."""

    def answer(self, kind: str, key: str, input: Value) -> Value:
        row: Any = self.rows.get(key)
        if kind == "get":
            return None if row is None else (*row[:4], len(row[4]))
        if kind == "delete":
            self.rows[key] = None
            return int(row is not None)
        if kind == "open":
            broker, expiry_s, clean_start = input
            kept = row is not None and row[3] != 0 and not clean_start
            self.rows[key] = (broker, self.index, True, expiry_s, row[4] if kept else frozenset())
            return self.index, kept
        if row is None:
            return NOT_FOUND
        broker, epoch, connected, before_s, filters = row
        if input[0] != epoch:
            return FENCED
        if kind == "subscribe":
            self.rows[key] = (broker, epoch, connected, before_s, filters | {input[1]})
            return None
        if not connected:
            return None
        expiry_s = before_s if input[2] is None else input[2]
        if expiry_s and not before_s:
            return INVALID
        self.rows[key] = (broker, epoch, False, expiry_s, filters) if expiry_s else None
        return None

    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        row = self.rows.get(key)
        epoch = self.near(luck, row[1] if row is not None else self.index)
        roll = luck.random()
        if roll < 0.3:
            expiry_s = luck.choice((0, NEVER_S, NEVER_S))
            return "open", (luck.choice(("b1", "b2")), expiry_s, luck.random() < 0.2)
        if roll < 0.45:
            return "close", (epoch, luck.random() < 0.5, luck.choice((None, None, 0, NEVER_S)))
        if roll < 0.65:
            return "subscribe", (epoch, luck.choice(("x", "y", "z")))
        return ("delete", None) if roll < 0.7 else ("get", None)


class FenceServer(Server):
    """A row is the highest epoch."""

    reads = ()

    def answer(self, kind: str, key: str, input: Value) -> Value:
        highest = self.rows.get(key, 0)
        if input < highest:
            return FENCED
        self.rows[key] = input
        return None

    def draw(self, luck: Random, key: str) -> tuple[str, Value]:
        highest: int = self.rows.get(key, 0)
        return "act", max(1, highest + luck.choice((-2, -1, 0, 0, 1, 2)))


SERVERS: Final[dict[str, Callable[[], Server]]] = {
    "register": RegisterServer,
    "append": AppendServer,
    "counter": CounterServer,
    "offset": OffsetServer,
    "session": SessionServer,
    "fence": FenceServer,
}
"""By the name of the model."""


@dataclass(slots=True)
class _Asked:
    """An operation under way."""

    operation: Operation
    doubtful: bool
    done: bool = False


@dataclass(slots=True)
class _Run:
    """Clients and a service, one moment after another."""

    server: Server
    luck: Random
    bugs: float
    now: int = 0
    ended: list[Operation] = field(default_factory=list)
    lingering: list[_Asked] = field(default_factory=list)
    past: list[dict[str, Any]] = field(default_factory=list)
    log: list[Operation] = field(default_factory=list)

    def happen(self, asked: _Asked) -> None:
        """It takes effect."""
        each, server, luck = asked.operation, self.server, self.luck
        asked.done = True
        before = dict(server.rows)
        reading = each.kind in server.reads
        bug = luck.choice(BUGS) if luck.random() < self.bugs else ""
        if bug == "stale" and self.past:
            server.rows = dict(luck.choice(self.past))
        output = server.ask(each.kind, each.key, each.input)
        if bug == "twice" and not reading:
            server.ask(each.kind, each.key, each.input)
        if bug == "lost" or (bug == "stale" and reading):
            server.rows = before
        if server.rows != before:
            self.past = [*self.past[1 - PAST :], before]
        index = 0 if reading else server.index
        asked.operation = replace(each, output=output, index=index)
        if not reading:
            self.log.append(asked.operation)

    def end(self, asked: _Asked) -> None:
        """It is answered, or given up."""
        if asked.doubtful:
            self.ended.append(replace(asked.operation, output=None, index=0))
            if not asked.done:
                self.lingering.append(asked)
        else:
            self.ended.append(replace(asked.operation, returned=self.now))


def history(
    server: Server,
    luck: Random,
    *,
    count: int,
    processes: int = 3,
    keys: Sequence[str] = ("k",),
    doubt: float = 0.15,
    bugs: float = 0.0,
    log: list[Operation] | None = None,
) -> list[Operation]:
    """`count` operations by so many processes. `doubt`: how many outcomes stay unknown.

    `log` gets the writes that took effect, each with its index, those in doubt too.
    """
    run = _Run(server, luck, bugs)
    busy: dict[int, _Asked] = {}
    left = count
    while left or busy:
        run.now += luck.random() < 0.8
        if run.lingering and luck.random() < 0.1:
            run.happen(run.lingering.pop(luck.randrange(len(run.lingering))))
        process = luck.randrange(processes)
        asked = busy.get(process)
        if asked is None:
            if left:
                left -= 1
                key = luck.choice(keys)
                kind, input = server.draw(luck, key)
                operation = Operation(f"p{process}", kind, key, input, None, run.now, None)
                busy[process] = _Asked(operation, luck.random() < doubt)
        elif not asked.done and not (asked.doubtful and luck.random() < 0.5):
            run.happen(asked)
        else:
            run.end(asked)
            del busy[process]
    if log is not None:
        log += run.log
    return sorted(run.ended, key=lambda each: each.invoked)
