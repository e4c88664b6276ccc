"""How a replica answers reads, once it may: some in haste, and long ones beside everything else.

Reads of single rows are answered together, on the loop if there is haste (`storage_thread.py`), and
if all that is committed is applied their answers are made while their round is under way. A read
that may walk over many rows would hold saves and applies up for as long: it is answered on the
reader thread, from a `storage.reading` that is taken in its turn, so that it sees every entry that
was applied before, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from actors.pending import Read, refuse
from actors.storage_thread import Haste, On, StorageThread
from state_machines import op, runs
from state_machines.errors import Stopped
from state_machines.keyvalue import KeyValue
from state_machines.machine import Machine
from storage.errors import ViewLost
from storage.reading import Reading
from storage.state import State

SINGLE_ROWS_MAX: Final = 500  #: a millisecond or two


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


@dataclass(frozen=True, slots=True)
class Answers:
    """How one replica answers its reads. What goes wrong is told to `failed`, and to who asked."""

    storage: StorageThread
    machine: Machine
    state: State
    now_ms: Callable[[], int]
    failed: Callable[[BaseException], None]

    def hand(self, due: Sequence[Read]) -> None:
        """Hand these over to be answered."""
        few = [read for read in due if _of_single_rows(read)]
        if few:
            self._here(few, Haste.HERE if _rows_of(few) <= SINGLE_ROWS_MAX else Haste.NONE)
        if len(few) < len(due):
            many = [read for read in due if not _of_single_rows(read)]
            walk, lost = partial(self._walk, many), partial(self._lost, many)
            self.storage.hand(partial(_reading, self.state), walk, lost)

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

    def _walk(self, reads: Sequence[Read], reading: Reading | None) -> None:
        """On the reader thread, from what was taken for it."""
        if reading is None:
            self._here(reads, Haste.NONE)  # so many views are open that it is better to wait
            return

        def job() -> list[bytes] | None:
            with closing(reading):
                try:
                    return answer(self.machine, reads, self.now_ms(), reading)
                except ViewLost:
                    return None

        def walked(replies: list[bytes] | None) -> None:
            if replies is None:
                self._here(reads, Haste.NONE)  # the environment grew meanwhile
            else:
                _done(reads, replies)

        self.storage.hand(job, walked, partial(self._lost, reads), of_state=False, on=On.READER)

    def _lost(self, reads: Sequence[Read], error: BaseException) -> None:
        """They cannot be answered."""
        self.failed(error)
        refuse([read.reply for read in reads], Stopped(f"{self.machine.group}: {error}"))


def _done(reads: Sequence[Read], replies: list[bytes]) -> None:
    for read, reply in zip(reads, replies, strict=True):
        if not read.reply.done():
            read.reply.set_result(reply + read.partners)


def _reading(state: State) -> Reading | None:
    try:
        return state.reading()
    except ViewLost:
        return None
