"""How a replica answers reads, once it may: some in haste, and long ones beside everything else.

Reads of single rows are answered together, on the loop if there is haste (`storage_thread.py`). A
read that may walk over many rows would hold saves and applies up for as long: it is answered on the
reader thread, from a `storage.reading` that is taken in its turn, so that it sees every entry that
was applied before, whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
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

    def done(reads: Sequence[Read], replies: list[bytes]) -> None:
        for read, reply in zip(reads, replies, strict=True):
            if not read.reply.done():
                read.reply.set_result(reply)

    def lost(reads: Sequence[Read], error: BaseException) -> None:
        failed(error)
        refuse([read.reply for read in reads], Stopped(f"{machine.group}: {error}"))

    def here(reads: Sequence[Read], haste: Haste) -> None:
        storage.hand(
            lambda: answer(machine, reads, now_ms()),
            partial(done, reads),
            partial(lost, reads),
            haste=haste,
        )

    def walk(reads: Sequence[Read], reading: Reading | None) -> None:
        if reading is None:
            here(reads, Haste.NONE)  # so many views are open that it is better to wait
            return

        def job() -> list[bytes] | None:
            with closing(reading):
                try:
                    return answer(machine, reads, now_ms(), reading)
                except ViewLost:
                    return None

        def walked(replies: list[bytes] | None) -> None:
            if replies is None:
                here(reads, Haste.NONE)  # the environment grew meanwhile
            else:
                done(reads, replies)

        storage.hand(job, walked, partial(lost, reads), of_state=False, on=On.READER)

    few, many = _by_rows(due)
    if few:
        rows = runs.count_of(query for read in few for query in read.request.queries)
        here(few, Haste.HERE if rows <= SINGLE_ROWS_MAX else Haste.NONE)
    if many:
        storage.hand(partial(_reading, state), partial(walk, many), partial(lost, many))


def _reading(state: State) -> Reading | None:
    try:
        return state.reading()
    except ViewLost:
        return None


def _by_rows(reads: Sequence[Read]) -> tuple[list[Read], list[Read]]:
    """Those that read single rows only, and the others."""
    few: list[Read] = []
    many: list[Read] = []
    for read in reads:
        single = all(
            getattr(op.QUERIES.get(query.tag), "single_row", False)
            for query in read.request.queries
        )
        (few if single else many).append(read)
    return few, many
