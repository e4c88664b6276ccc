"""How a replica answers reads, once it may: some in haste, and long ones beside everything else.

Reads of single rows are answered together, on the loop if there is haste (`storage_thread.py`). A
read that may walk over many rows would hold saves and applies up for as long: it is answered on the
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


def hand_reads(
    storage: StorageThread,
    machine: Machine,
    state: State,
    due: Sequence[Read],
    now_ms: Callable[[], int],
    failed: Callable[[BaseException], None],
) -> None:
    """Hand these over to be answered. What goes wrong is told to `failed`, and to who asked."""
    answers = _Answers(storage, machine, now_ms, failed)
    few = [read for read in due if _of_single_rows(read)]
    if few:
        rows = sum([runs.count_of(read.request.queries) for read in few])
        answers.here(few, Haste.HERE if rows <= SINGLE_ROWS_MAX else Haste.NONE)
    if len(few) < len(due):
        many = [read for read in due if not _of_single_rows(read)]
        storage.hand(
            partial(_reading, state), partial(answers.walk, many), partial(answers.lost, many)
        )


def _of_single_rows(read: Read) -> bool:
    for query in read.request.queries:
        if not getattr(op.QUERIES.get(query.tag), "single_row", False):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Answers:
    """The ways in which reads that are due are answered."""

    storage: StorageThread
    machine: Machine
    now_ms: Callable[[], int]
    failed: Callable[[BaseException], None]

    def here(self, reads: Sequence[Read], haste: Haste) -> None:
        """Together, in their turn among the storage thread's jobs."""
        self.storage.hand(
            lambda: answer(self.machine, reads, self.now_ms()),
            partial(_done, reads),
            partial(self.lost, reads),
            haste=haste,
        )

    def walk(self, reads: Sequence[Read], reading: Reading | None) -> None:
        """On the reader thread, from what was taken for it."""
        if reading is None:
            self.here(reads, Haste.NONE)  # so many views are open that it is better to wait
            return

        def job() -> list[bytes] | None:
            with closing(reading):
                try:
                    return answer(self.machine, reads, self.now_ms(), reading)
                except ViewLost:
                    return None

        def walked(replies: list[bytes] | None) -> None:
            if replies is None:
                self.here(reads, Haste.NONE)  # the environment grew meanwhile
            else:
                _done(reads, replies)

        self.storage.hand(job, walked, partial(self.lost, reads), of_state=False, on=On.READER)

    def lost(self, reads: Sequence[Read], error: BaseException) -> None:
        """They cannot be answered."""
        self.failed(error)
        refuse([read.reply for read in reads], Stopped(f"{self.machine.group}: {error}"))


def _done(reads: Sequence[Read], replies: list[bytes]) -> None:
    for read, reply in zip(reads, replies, strict=True):
        if not read.reply.done():
            read.reply.set_result(reply)


def _reading(state: State) -> Reading | None:
    try:
        return state.reading()
    except ViewLost:
        return None
