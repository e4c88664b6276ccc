"""A history: who asked for what, when it was asked, when it was answered, and with what.

    recorder = Recorder(path)
    ticket = recorder.invoke("w1", "put", "k", ("v1", None))
    try:
        revision = await client.put("k", b"v1")
    except MetarayError as error:
        recorder.raised(ticket, error)
    else:
        recorder.ok(ticket, revision)

What came of an operation is one of three. `ok`: it was answered; a `Rejected` is an answer too, the
same on every replica, and is part of the history. `fail`: it certainly never happened (`NoQuorum`).
`unknown`: it may have happened, or may yet, at any time after it was asked.

On disk a history is one JSON object a line, written when it happens, so a process that is killed
leaves all it knew: an operation that was asked and never ended is unknown. Times are nanoseconds
of a clock that all processes share; what is answered at the very moment another is asked counts as
at the same time. Values are None, bool, int, str and tuples of these.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from state_machines.errors import (
    MetarayError,
    NoQuorum,
    Overloaded,
    Rejected,
    SessionExpired,
    WrongShard,
)

Value = Any
"""None, bool, int, str, or a tuple of these."""

REJECTED: Final = "rejected"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `returned` is None when its outcome is unknown; then `output` says nothing.

    `index` is the log index that the reply gave, 0 when it gave none: of a write the entry it is
    in, of a read the state it was answered from. `place` is its position among the commands of that
    entry, where the log was asked.
    """

    process: str
    kind: str
    key: str
    input: Value
    output: Value
    invoked: int
    returned: int | None
    group: str = ""
    index: int = 0
    place: int = 0

    @property
    def unknown(self) -> bool:
        """Whether nobody knows what came of it."""
        return self.returned is None

    def __str__(self) -> str:
        until = "?" if self.returned is None else _seconds(self.returned)
        asked = "" if self.input is None else repr(self.input)
        answer = "unknown" if self.returned is None else repr(self.output)
        at = f" @{self.group}:{self.index}" if self.index else ""
        span = f"[{_seconds(self.invoked)} .. {until}]"
        return f"{span} {self.process} {self.kind}({asked}) -> {answer}{at}"


def refusal(code: str) -> tuple[str, str]:
    """The output of an operation that was `Rejected` with this code."""
    return REJECTED, code


def is_refusal(output: Value) -> bool:
    """Whether the output is a `Rejected`."""
    return isinstance(output, tuple) and len(output) == 2 and output[0] == REJECTED


def frozen(value: Value) -> Value:
    """Lists, as JSON has them, become tuples."""
    return tuple([frozen(each) for each in value]) if isinstance(value, list | tuple) else value


class Recorder:
    """Writes down what happens, as it happens. Append-only; without a path, in memory only."""

    def __init__(
        self, path: Path | None = None, *, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._clock = clock
        self._tickets = itertools.count(1)
        self._lines: list[dict[str, Value]] = []
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("x", encoding="utf-8", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def invoke(self, process: str, kind: str, key: str, input: Value = None) -> int:
        """It is about to be asked. The ticket is for what comes of it, which may be nothing."""
        ticket = next(self._tickets)
        self._write(
            {
                "invoke": ticket,
                "process": process,
                "kind": kind,
                "key": key,
                "input": input,
                "at": self._clock(),
            }
        )
        return ticket

    def ok(self, ticket: int, output: Value = None, *, group: str = "", index: int = 0) -> None:
        """It was answered."""
        line = {"ok": ticket, "output": output, "at": self._clock()}
        self._write(line | ({"group": group, "index": index} if index else {}))

    def fail(self, ticket: int) -> None:
        """It certainly did not happen, and never will."""
        self._write({"fail": ticket, "at": self._clock()})

    def unknown(self, ticket: int) -> None:
        """Nobody knows."""
        self._write({"unknown": ticket, "at": self._clock()})

    def raised(self, ticket: int, error: MetarayError) -> None:
        """The client raised: a refusal is an answer, no quorum is none, all else is unknown.

        So is `SessionExpired`: a client says it only of what it had sent more than once. That the
        slot has moved is said by a group which then did nothing.
        """
        if isinstance(error, NoQuorum | Overloaded | WrongShard):
            self.fail(ticket)
        elif isinstance(error, Rejected) and not isinstance(error, SessionExpired):
            self.ok(ticket, refusal(error.code))
        else:
            self.unknown(ticket)

    def operations(self) -> list[Operation]:
        """The history so far."""
        return list(paired(self._lines)) if self._file is None else read(Path(self._file.name))

    def close(self) -> None:
        """Close the file. Closing twice is fine."""
        if self._file is not None:
            self._file.close()

    def _write(self, line: dict[str, Value]) -> None:
        if self._file is None:
            self._lines.append(line)
        else:
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")


def read(*paths: Path) -> list[Operation]:
    """The history that some recorders wrote, each in its own file, in the order of asking."""
    found: list[Operation] = []
    for path in paths:
        found += paired(_lines(path))
    return sorted(found, key=lambda each: each.invoked)


def write(path: Path, operations: Iterable[Operation]) -> None:
    """Write a history down as a recorder would have done."""
    events: list[tuple[int, int, dict[str, Value]]] = []
    for ticket, each in enumerate(operations, 1):
        asked = {"process": each.process, "kind": each.kind, "key": each.key, "input": each.input}
        events.append((each.invoked, 0, {"invoke": ticket, **asked}))
        if each.returned is not None:
            said = {"output": each.output, "group": each.group, "index": each.index}
            events.append((each.returned, 1, {"ok": ticket, **said}))
    events.sort(key=lambda event: event[:2])
    with path.open("x", encoding="utf-8") as file:
        for at, _, line in events:
            file.write(json.dumps(line | {"at": at}, separators=(",", ":")) + "\n")


def paired(lines: Iterable[dict[str, Value]]) -> Iterator[Operation]:
    """The operations of one recorder's lines, without those that did not happen."""
    asked: dict[int, dict[str, Value]] = {}
    ended: dict[int, dict[str, Value]] = {}
    for line in lines:
        if "invoke" in line:
            asked[line["invoke"]] = line
            continue
        ticket = next(line[end] for end in ("ok", "fail", "unknown") if end in line)
        assert ticket in asked, f"{line} ends what was never asked"
        assert ticket not in ended, f"{line} ends what has ended: {ended[ticket]}"
        ended[ticket] = line
    for ticket, line in asked.items():
        end = ended.get(ticket, {})
        if "fail" in end:
            continue
        answered = "ok" in end
        yield Operation(
            process=line["process"],
            kind=line["kind"],
            key=line["key"],
            input=frozen(line["input"]),
            output=frozen(end["output"]) if answered else None,
            invoked=line["at"],
            returned=end["at"] if answered else None,
            group=end.get("group", ""),
            index=end.get("index", 0),
        )


def _lines(path: Path) -> Iterator[dict[str, Value]]:
    text = path.read_text(encoding="utf-8")
    whole, _, _ = text.rpartition("\n")  # a process may be killed in the middle of its last line
    for number, line in enumerate(whole.split("\n") if whole else (), 1):
        try:
            yield json.loads(line)
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error


def _seconds(at: int) -> str:
    return f"{at / 1e9:.6f}" if at >= 1_000_000 else str(at)
