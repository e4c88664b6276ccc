"""How a replica answers reads, once it may: some in haste, and long ones beside everything else.

Reads of single rows are answered together, on the loop if there is haste (`storage_thread.py`), and
if all that is committed is applied their answers are made while their round is under way. Saves and
applies wait behind them on the storage thread, so many are answered in pieces: what is beyond
`ROWS_MAX` waits, within limits (`admission.py`), and tenants take turns by rows (`fair_queue.py`).

A read that may walk over many rows would hold saves and applies up for as long: it is answered on
the reader thread, from a `storage.reading` that is taken in its turn, so that it sees every entry
that was applied before, whole.

There is one reading at a time, however many wait: each pins a copy of the layer and a reader's
place in LMDB. What comes during a walk waits for its end, and then shares the next reading, which
is of a later moment than all of them. Of those that wait tenants take turns (`crowd.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final

from actors.admission import READS, Admission, Charge, Refusals
from actors.clock import Clock
from actors.crowd import Crowd
from actors.fair_queue import FairQueue
from actors.pending import READS_MAX, Read, refuse
from actors.storage_thread import Haste, On, StorageThread
from state_machines import op, runs
from state_machines.errors import MetarayError, Overloaded, Rejected, Stopped
from state_machines.keyvalue import KeyValue
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.machine import Machine
from storage.errors import ViewLost
from storage.reading import Reading
from storage.state import State

SINGLE_ROWS_MAX: Final = 500  #: a millisecond or two
ROWS_MAX: Final = 2_000  #: soft: of single rows at the storage thread, some milliseconds
WALK_MAX: Final = 500  #: reads in one walk
WALK_MS: Final = 50  #: soft: who was answered waits no longer for others of the same walk


def answer(
    machine: Machine, reads: Sequence[Read], now_ms: int, store: KeyValue | None = None
) -> list[bytes]:
    """The encoded reply to each read, from the state as it is, or as it is in `store`."""
    # failpoint: read.before_answer
    return [
        machine.query(
            read.request.queries, now_ms, store, columns=read.request.columns
        ).SerializeToString()
        for read in reads
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
    clock: Clock
    rng: Random
    failed: Callable[[BaseException], None]
    admission: Admission = field(init=False)  #: of those of single rows that wait for their turn
    refusals: Refusals = field(init=False)  #: of long ones
    _short: FairQueue[Read] = field(default_factory=FairQueue, init=False)  # waiting
    _rows: int = field(default=0, init=False)  # single ones at the storage thread
    _long: Crowd[Read] = field(default_factory=Crowd, init=False)  # waiting
    _walk_of: deque[Read] = field(default_factory=deque, init=False)  # in the walk under way
    _walking: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.admission = Admission(self.machine.group, self.rng, READS)
        self.refusals = Refusals(self.machine.group, self.rng, self.clock.monotonic)

    def __len__(self) -> int:
        return len(self._short) + len(self._long) + len(self._walk_of)

    @property
    def refused(self) -> int:
        """How many calls were told `Overloaded`."""
        return self.admission.refused + self.refusals.refused

    def hand(self, due: Sequence[Read]) -> None:
        """Hand these over to be answered. Some are refused when too many wait."""
        few = [read for read in due if _of_single_rows(read)]
        if len(few) < len(due):
            self._wait([read for read in due if not _of_single_rows(read)])
        if few:
            self._take(few)
        if len(self._long) and not self._walking:
            self.refusals.begin()
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
        """Refuse those that wait: the replica serves no more."""
        refuse([read.reply for read in (*self._short, *self._walk_of, *self._long)], error)
        self._short.clear()
        self.admission.clear()
        self._long, self._walk_of, self._walking = Crowd(), deque(), False

    def _take(self, reads: Sequence[Read]) -> None:
        """Single rows: now, if they find room at the storage thread, else when it is their turn."""
        rows = _rows_of(reads)
        if not self._short and self._rows + rows <= ROWS_MAX:
            self._piece(reads, rows)
            return
        for read in reads:
            try:
                self._enter(read)
            except Overloaded as error:
                refuse([read.reply], error)
        self._fill()

    def _enter(self, read: Read) -> None:
        """Raises Overloaded."""
        rows, size = _rows_of((read,)), read.request.ByteSize()
        if rows <= BATCH_ITEMS_MAX:  # or its answer is a refusal, and costs nothing
            self.admission.check_room(rows, size)
            read.charge = Charge.of(self._asked(read), size)
        self.admission.enter(read.charge, self.clock.monotonic())
        self._short.append(read)

    def _asked(self, read: Read) -> list[Any]:
        """What its queries say, but for those that cannot be decoded."""
        found = []
        for query in read.request.queries:
            with suppress(Rejected):
                found.append(self.machine.decode(op.QUERIES, query))
        return found

    def _fill(self) -> None:
        """Hand over those whose turn it is, once the storage thread has none: so nothing waits
        behind more than one piece there, and the loop has its turn in between."""
        while self._short and not self._rows:
            piece: list[Read] = []
            rows = 0
            while self._short and rows < ROWS_MAX:
                read = self._short.popleft()
                self.admission.leave(read.charge, self.clock.monotonic())
                if not read.gone:  # its caller's deadline may have passed while it waited
                    piece.append(read)
                    rows += _rows_of((read,))
            if piece:
                self._piece(piece, rows)

    def _piece(self, reads: Sequence[Read], rows: int) -> None:
        """Together, in their turn among the storage thread's jobs."""

        def done(replies: list[bytes]) -> None:
            self._rows -= rows
            _done(reads, replies)
            if self._short:
                self._fill()

        self._rows += rows
        self._hand(reads, done, Haste.HERE if rows <= SINGLE_ROWS_MAX else Haste.NONE)

    def _hand(
        self, reads: Sequence[Read], done: Callable[[list[bytes]], None], haste: Haste
    ) -> None:
        self.storage.hand(
            lambda: answer(self.machine, reads, self.clock.now_ms()),
            done,
            partial(self._lost, reads),
            haste=haste,
        )

    def _wait(self, reads: list[Read]) -> None:
        room = READS_MAX - len(self._walk_of)
        for read in reads:
            read.tenant = self._tenant_of(read)
            if not self._long.admits(read.tenant, room):
                self.refusals.let_go(self._long)
            if self._long.admits(read.tenant, room):
                self._long.append(read)
            else:
                refuse([read.reply], self.refusals.refuse("too many long reads wait", len(self)))

    def _tenant_of(self, read: Read) -> str:
        """Of its first query; empty for one that cannot be decoded, or is of no tenant."""
        try:
            first = self.machine.decode(op.QUERIES, read.request.queries[0])
        except Rejected:
            return ""
        if type(first) is runs.Run:
            return next(iter(first.columns.get("tenant", ())), "")
        tenant: str = getattr(first, "tenant", "")
        return tenant

    def _next(self, *, here: bool = False) -> None:
        """Walk for those whose turn it is, if anybody waits; `here`: for the first of them, in its
        turn among the storage thread's jobs, where no view can be lost."""
        if self._walk_of:  # the last walk came no further
            self._long.put_back(self._walk_of)
        self._long.let_go()
        walk = self._walk_of = deque()
        self._walking = self._long.fill(walk, 1 if here else WALK_MAX)
        if not walk:
            return
        if here:
            self._hand(tuple(walk), partial(self._walked, walk), Haste.NONE)
        else:
            # Not who comes until the reading is taken: it may be of a moment before that.
            job, lost = partial(self._walk, walk), partial(self._lost, ())
            self.storage.hand(partial(_reading, self.state), job, lost)

    def _walk(self, walk: deque[Read], reading: Reading | None) -> None:
        """On the reader thread, from what was taken for it."""
        if reading is None:
            self._next(here=True)  # so many views are open that it is better to wait
            return
        job, lost = partial(self._replies, tuple(walk), reading), partial(self._lost, ())
        walked = partial(self._walked, walk)
        self.storage.hand(job, walked, lost, of_state=False, on=On.READER)

    def _replies(self, reads: Sequence[Read], reading: Reading) -> list[bytes]:
        """To the first of them, as far as one walk goes; none if the environment grew meanwhile."""
        replies: list[bytes] = []
        begun = self.clock.now_ms()
        with closing(reading), suppress(ViewLost):
            for read in reads:
                now_ms = self.clock.now_ms()
                if replies and not begun <= now_ms < begun + WALK_MS:
                    break
                gone = read.reply.done()  # its caller's deadline may have passed while it waited
                replies += [b""] if gone else answer(self.machine, (read,), now_ms, reading)
        return replies

    def _walked(self, walk: deque[Read], replies: list[bytes]) -> None:
        if walk is not self._walk_of:
            return  # they were refused meanwhile
        _done([walk.popleft() for _ in replies], replies)
        self.refusals.answered(len(replies))
        self._next(here=not replies)

    def _lost(self, reads: Sequence[Read], error: BaseException) -> None:
        """These cannot be answered, and no long ones."""
        self.failed(error)
        stopped = Stopped(f"{self.machine.group}: {error}")
        refuse([read.reply for read in reads], stopped)
        self.fail(stopped)


def _done(reads: Sequence[Read], replies: list[bytes]) -> None:
    for read, reply in zip(reads, replies, strict=True):
        if not read.reply.done():
            read.reply.set_result(reply + read.partners)


def _reading(state: State) -> Reading | None:
    try:
        return state.reading()
    except ViewLost:
        return None
