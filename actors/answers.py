"""How a replica answers reads, once it may: some in haste, and long ones beside everything else.

Reads of single rows are answered together, on the loop if there is haste (`storage_thread.py`), and
if all that is committed is applied their answers are made while their round is under way. A read
that may walk over many rows would hold saves and applies up for as long: it is answered on the
reader thread, from a `storage.reading` that is taken in its turn, so that it sees every entry that
was applied before, whole.

There is one reading at a time, however many wait: each pins a copy of the layer and a reader's
place in LMDB. What comes during a walk waits for its end, and then shares the next reading, which
is of a later moment than all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from actors.pending import READS_MAX, Read, refuse
from actors.storage_thread import Haste, On, StorageThread
from state_machines import op, runs
from state_machines.errors import MetarayError, Overloaded, Stopped
from state_machines.keyvalue import KeyValue
from state_machines.machine import Machine
from storage.errors import ViewLost
from storage.reading import Reading
from storage.state import State

SINGLE_ROWS_MAX: Final = 500  #: a millisecond or two
WALK_MS: Final = 50  #: soft: who was answered waits no longer for others of the same walk


def answer(
    machine: Machine, reads: Sequence[Read], now_ms: int, store: KeyValue | None = None
) -> list[bytes]:
    """The encoded reply to each read, from the state as it is, or as it is in `store`."""
    # failpoint: read.before_answer
    return [
        machine.query(read.request.queries, now_ms, store).SerializeToString() for read in reads
    ]


def _rows_of(reads: Sequence[Read]) -> int:
    return sum([runs.count_of(read.request.queries) for read in reads])


def _of_single_rows(read: Read) -> bool:
    for query in read.request.queries:
        if not getattr(op.QUERIES.get(query.tag), "single_row", False):
            return False
    return True


@dataclass(slots=True)
class Answers:
    """How one replica answers its reads. What goes wrong is told to `failed`, and to who asked."""

    storage: StorageThread
    machine: Machine
    state: State
    now_ms: Callable[[], int]
    failed: Callable[[BaseException], None]
    _long: list[Read] = field(default_factory=list, init=False)  # waiting, and in the walk
    _walking: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self._long)

    def hand(self, due: Sequence[Read]) -> None:
        """Hand these over to be answered. Long ones are refused when too many wait."""
        few = [read for read in due if _of_single_rows(read)]
        if len(few) < len(due):
            self._wait([read for read in due if not _of_single_rows(read)])
        if few:
            self._here(few, Haste.HERE if _rows_of(few) <= SINGLE_ROWS_MAX else Haste.NONE)
        if self._long and not self._walking:
            self._next()

    def make_ahead(self, reads: Sequence[Read], commit: int, applied: int) -> None:
        """Make the answers to reads whose round is under way, which takes longer than that. They
        are answers once the round has ended at no later index than `applied`."""
        if applied < commit or not all(map(_of_single_rows, reads)):
            return
        if _rows_of(reads) > SINGLE_ROWS_MAX:
            return

        def made(replies: list[bytes]) -> None:
            for read, reply in zip(reads, replies, strict=True):
                read.ahead, read.ahead_at = reply, applied

        self._hand(reads, made, Haste.SPARE)

    def fail(self, error: MetarayError) -> None:
        """Refuse the long reads: the replica serves no more."""
        refuse([read.reply for read in self._long], error)
        self._long, self._walking = [], False

    def _here(self, reads: Sequence[Read], haste: Haste) -> None:
        """Together, in their turn among the storage thread's jobs."""
        self._hand(reads, partial(_done, reads), haste)

    def _hand(
        self, reads: Sequence[Read], done: Callable[[list[bytes]], None], haste: Haste
    ) -> None:
        self.storage.hand(
            lambda: answer(self.machine, reads, self.now_ms()),
            done,
            partial(self._lost, reads),
            haste=haste,
        )

    def _wait(self, reads: list[Read]) -> None:
        if len(self._long) + len(reads) > READS_MAX:
            self._long = _unanswered(self._long)  # who gave up leaves room for others
            room = READS_MAX - len(self._long)
            error = Overloaded(f"{self.machine.group}: too many long reads wait", 50)
            refuse([read.reply for read in reads[room:]], error)
            del reads[room:]
        self._long += reads

    def _next(self, *, here: bool = False) -> None:
        """Walk for all that wait by now, if anybody does; `here`: for the first of them, in its
        turn among the storage thread's jobs, where no view can be lost."""
        waiting = self._long = _unanswered(self._long)
        self._walking = bool(waiting)
        if not waiting:
            return
        if here:
            self._hand(waiting[:1], partial(self._walked, waiting[:1]), Haste.NONE)
        else:
            # Not who comes until the reading is taken: it may be of a moment before that.
            walk, lost = partial(self._walk, tuple(waiting)), partial(self._lost, ())
            self.storage.hand(partial(_reading, self.state), walk, lost)

    def _walk(self, reads: Sequence[Read], reading: Reading | None) -> None:
        """On the reader thread, from what was taken for it."""
        if reading is None:
            self._next(here=True)  # so many views are open that it is better to wait
            return
        job, lost = partial(self._replies, reads, reading), partial(self._lost, ())
        walked = partial(self._walked, reads)
        self.storage.hand(job, walked, lost, of_state=False, on=On.READER)

    def _replies(self, reads: Sequence[Read], reading: Reading) -> list[bytes]:
        """To the first of them, as far as one walk goes; none if the environment grew meanwhile."""
        replies: list[bytes] = []
        begun = self.now_ms()
        with closing(reading), suppress(ViewLost):
            for read in reads:
                now_ms = self.now_ms()
                if replies and not begun <= now_ms < begun + WALK_MS:
                    break
                gone = read.reply.done()  # its caller's deadline may have passed while it waited
                replies += [b""] if gone else answer(self.machine, (read,), now_ms, reading)
        return replies

    def _walked(self, reads: Sequence[Read], replies: list[bytes]) -> None:
        _done(reads[: len(replies)], replies)
        self._next(here=not replies)

    def _lost(self, reads: Sequence[Read], error: BaseException) -> None:
        """These cannot be answered, and no long ones."""
        self.failed(error)
        stopped = Stopped(f"{self.machine.group}: {error}")
        refuse([read.reply for read in reads], stopped)
        self.fail(stopped)


def _unanswered(reads: list[Read]) -> list[Read]:
    return [read for read in reads if not read.reply.done()]


def _done(reads: Sequence[Read], replies: list[bytes]) -> None:
    for read, reply in zip(reads, replies, strict=True):
        if not read.reply.done():
            read.reply.set_result(reply + read.partners)


def _reading(state: State) -> Reading | None:
    try:
        return state.reading()
    except ViewLost:
        return None
