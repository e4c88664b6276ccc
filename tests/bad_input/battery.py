"""One bad input at a time, under watch: what may become of it, and what may not.

An area (`areas.py` lists them) turns a number into a `Case`, always the same one: first those that
can be listed (every offset, every bit, every field), then drawn ones without end. `judge` runs a
case and holds it to laws 18 and 19:

- it is refused with a typed error that says in one line which field and which limit, or it is
  dropped, or it is no bad input after all and is taken;
- nothing else comes out of it, nothing forges a line of the log, and it takes no more than
  `CPU_SECONDS_MAX`;
- refused, it has changed nothing: the cases of each area look for themselves, and raise `Wrong`;
- beside itself it takes no more memory than twice the largest frame of its area (and text up to
  four bytes a character, as Python has it). Python's own memory is looked at in every sampled case,
  and what protobuf takes beside it in the ones that are meant as bombs.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import signal
import traceback
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Final, Protocol

from state_machines.errors import MetarayError

CPU_SECONDS_MAX: Final = 1.0  #: of this process; the machine may be busy with others
MEASURED_FACTOR: Final = 8  #: while every allocation is noted, so much slower
HANGS_BELIEVED: Final = 3
DETAIL_MAX: Final = 1_000  #: characters of a refusal: it is read by people
FRAMES_MAX: Final = 2  #: memory that an input may take, in frames of its area
SLACK_BYTES: Final = 256 << 10  #: what the first use of anything caches for ever
FINDS_MAX: Final = 20  #: described in full


class Outcome(StrEnum):
    """What may become of an input."""

    REFUSED = "refused"  #: with a typed error
    DROPPED = "dropped"  #: a message that does not concern this replica
    STOPPED = "stopped"  #: a lie that no honest peer tells: the replica stops, saying so
    TAKEN = "taken"  #: it was valid after all


class Wrong(AssertionError):
    """Something that no input may bring about. `kind` is what it is counted as."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind = kind


class Hang(BaseException):
    """It took too long. No `except Exception` keeps it."""


@dataclass(frozen=True, slots=True)
class Case:
    """An input, made, and what to do with it."""

    what: str
    run: Callable[[], Outcome]
    bomb: bool = False  #: small on the wire, large if believed: all memory is measured
    size: int = 0  #: in bytes, if that is much: it is there itself, once
    wide: bool = False  #: text that takes more bytes in memory than on the wire


class Area(Protocol):
    """A door that inputs come through."""

    name: str
    frame_bytes: int  #: the largest frame that this door takes
    listed: int  #: so many cases are listed; those behind them are drawn

    def case(self, number: int) -> Case:
        """The case of this number."""
        ...


def close(area: Area) -> None:
    """Let go of what an area holds, if it holds anything."""
    getattr(area, "close", lambda: None)()


@dataclass(slots=True)
class Tally:
    """What was seen in some cases of one area."""

    cases: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(Outcome, 0))
    wrong: dict[str, int] = field(default_factory=dict)
    finds: list[str] = field(default_factory=list)
    measured: int = 0
    frames: float = 0.0  #: the most memory that a case took, in frames

    def find(self, kind: str, what: str) -> None:
        self.wrong[kind] = self.wrong.get(kind, 0) + 1
        if len(self.finds) < FINDS_MAX:
            self.finds.append(f"{kind}: {what}")


def refused(error: MetarayError, names: Sequence[str] = (), limit: bool = False) -> Outcome:
    """The outcome of an input that was answered with this error, if it says what it should: one of
    these names, and a limit."""
    detail = error.detail
    if not detail:
        raise Wrong("unnamed", f"{type(error).__name__} says nothing")
    if not detail.isprintable():
        raise Wrong("forged", f"more than one plain line: {detail[:200]!r}")
    if len(detail) > DETAIL_MAX:
        raise Wrong("unnamed", f"{len(detail)} characters: {detail[:200]!r}")
    if names and not any(name in detail for name in names):
        raise Wrong("unnamed", f"{names!r} is not named: {detail[:200]!r}")
    if limit and not any(each.isdigit() for each in detail):
        raise Wrong("unnamed", f"no limit is named: {detail[:200]!r}")
    return Outcome.REFUSED


def judge(area: Area, number: int, tally: Tally, *, measure: bool = False) -> None:
    """Run one case and note what became of it."""
    case = area.case(number)
    allowed = FRAMES_MAX * area.frame_bytes + case.size * (4 if case.wide else 1)
    memory = _Memory(case.bomb) if measure or case.bomb else None
    tally.cases += 1
    try:
        outcome = _run(case, memory)
    except Hang:
        tally.find("hang", f"{area.name} {number} ({case.what})")
        return
    except Wrong as error:
        tally.find(error.kind, f"{area.name} {number} ({case.what}): {error}")
        return
    except Exception as error:  # noqa: BLE001 - whatever comes out is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        told = f"{type(error).__name__}: {str(error)[:300]} at {where.filename}:{where.lineno}"
        tally.find("crash", f"{area.name} {number} ({case.what}): {told}")
        return
    tally.outcomes[outcome] += 1
    if memory is not None:
        tally.measured += 1
        took = memory.bytes - SLACK_BYTES
        beside = max(0, took - (allowed - FRAMES_MAX * area.frame_bytes))
        tally.frames = max(tally.frames, round(beside / area.frame_bytes, 3))
        if took > allowed:
            tally.find("memory", f"{area.name} {number} ({case.what}): {took >> 10} KiB")


def _run(case: Case, memory: _Memory | None) -> Outcome:
    """What became of it. Also a processor's time is longer on a busy machine: late is what is late
    each time."""
    for _ in range(HANGS_BELIEVED - 1):
        with suppress(Hang), _LISTENER, memory or nullcontext(), _watch(memory):
            return case.run()
    with _LISTENER, memory or nullcontext(), _watch(memory):
        return case.run()


class _Listener(logging.Handler):
    """Reads what is logged within a `with`, in place of a terminal."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self._forged = ""

    def __enter__(self) -> None:
        self._forged = ""
        logging.getLogger().addHandler(self)

    def __exit__(self, kind: object, *_: object) -> None:
        logging.getLogger().removeHandler(self)
        if self._forged and kind is None:
            raise Wrong("forged", f"logged {self._forged[:200]!r}")

    def emit(self, record: logging.LogRecord) -> None:
        said = record.getMessage()
        if not said.isprintable() or len(said) > DETAIL_MAX:
            self._forged = said


_LISTENER: Final = _Listener()


@contextmanager
def _watch(memory: _Memory | None) -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, late)
    seconds = CPU_SECONDS_MAX * (1 if memory is None else MEASURED_FACTOR)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class _Memory:
    """The most memory that was in use within a `with`, over what was in use before it."""

    def __init__(self, resident: bool) -> None:
        self._resident = resident
        self._before = 0
        self.bytes = 0

    def __enter__(self) -> None:
        if self._resident:
            gc.collect()
            _trim()
            self._before = _forget_peak()
        tracemalloc.start()

    def __exit__(self, *_: object) -> None:
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        if self._resident:
            # Notes on allocations are resident too, so only what is far beyond them is counted.
            beside = _peak() - self._before - NOTES_FACTOR * self.bytes
            self.bytes = max(self.bytes, beside)


NOTES_FACTOR: Final = 3


def _trim() -> None:
    """Give freed memory back, so that its next use is seen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _forget_peak() -> int:
    """Resident bytes now; the peak begins here. Where the system does not tell, 0 for both."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0
    return _resident("VmRSS")


def _peak() -> int:
    return _resident("VmHWM")


def _resident(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith(name)), 0)
