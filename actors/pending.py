"""Callers that wait: for their write to be applied, or for their read to be safe.

Everything here is bounded and every caller gets exactly one answer: its reply, a refusal, or (from
its own deadline, in `replica.py`) `Unknown`. Touched only from the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from operator import attrgetter
from random import Random
from typing import Any, Self

from actors.admission import PROPOSALS, UNCHARGED, Admission, Charge, Refusals, Waits
from actors.clock import Clock
from actors.config import RaftSettings
from actors.fair_queue import FairQueue
from state_machines.errors import MetarayError, NotLeader, Overflow, Overloaded, WrongShard
from state_machines.machine import Admitted, Applied
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api

READS_MAX = 10_000  #: calls waiting for a read round
BATCH_BYTES_MAX = 1024 * 1024  #: soft: an entry closes once its proposals pass this
AHEAD_BYTES_MAX = 2 * 1024 * 1024  #: soft: in the log and not applied, before the next entry opens
TURN_SECONDS = 0.05  #: soft, the same of either: so many operations as are answered in this time
TURN_OPERATIONS_MIN, TURN_OPERATIONS_MAX = 1_000, 8_000

_READS_FULL = "the read queue is full"

_size_of, _queued_at = attrgetter("size"), attrgetter("queued_at")
_operations_of = attrgetter("charge.operations")

PHASES = ("queue", "append", "replicate", "apply")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Write:
    """A proposal call that waits for its fate."""

    proposal: api.Proposal
    admitted: Admitted
    size: int
    reply: asyncio.Future[bytes]
    queued_at: float
    charge: Charge = field(init=False)

    def __post_init__(self) -> None:
        self.charge = Charge.of(self.admitted, self.size)


@dataclass(slots=True)
class Slot:
    """An entry of this leader whose callers wait, and when it passed each phase (seconds)."""

    term: int
    writes: list[Write]
    proposed_at: float
    saved_at: float = 0.0
    committed_at: float = 0.0
    size: int = field(init=False)  #: bytes of its proposals
    operations: int = field(init=False)  #: of its proposals

    def __post_init__(self) -> None:
        self.size = sum(map(_size_of, self.writes))
        self.operations = sum(map(_operations_of, self.writes))

    @property
    def phase(self) -> str:
        """Where it is. What others have committed waits for the save here all the same."""
        if not self.saved_at:
            return "append"
        return "apply" if self.committed_at else "replicate"


@dataclass(slots=True)
class Read:
    """A query call that waits for its round; and its answer from the state at `ahead_at`, if that
    was made meanwhile."""

    request: api.QueryRequest
    reply: asyncio.Future[bytes]
    ahead: bytes = b""
    ahead_at: int = 0
    partners: bytes = b""  #: what goes with the answer: see `vouching.py`
    tenant: str = ""  #: whose it is, of a long one
    charge: Charge = UNCHARGED  #: what it costs, of one that waits for its turn

    @property
    def gone(self) -> bool:
        """Whether its caller waits no more."""
        return self.reply.done()

    def told_how_far(self, applied: int) -> bool:
        """Answer it if it is stale and asks nothing but how far the replica is; whether it is. The
        last entry may be without commands, which are all that the machine knows of."""
        if not self.request.stale or self.request.queries:
            return False
        self.reply.set_result(api.Reply(revision=applied).SerializeToString())
        return True

    def answered(self, index: int) -> bool:
        """Answer it with what was made ahead, if that is its answer now that it is safe at `index`;
        whether it is."""
        if not self.ahead or index > self.ahead_at:
            return False
        if not self.reply.done():
            self.reply.set_result(self.ahead)
        return True


@dataclass(slots=True)
class Writes:
    """Proposals on their way: queued, then in an entry of the log, then answered.

    Urgent ones enter first. The others enter only as long as little is in the log that is not
    applied: what is behind it can still be overtaken, and tenants have their turns (`fair_queue`).
    """

    name: str
    slow_seconds: float
    rng: Random
    linger_seconds: float = 0.0
    batch_max: int = PROPOSALS.calls
    slow: int = 0
    phases: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    admission: Admission = field(init=False)
    _urgent: deque[Write] = field(default_factory=deque)
    _queue: FairQueue[Write] = field(default_factory=FairQueue)
    _ahead: Waits = field(default_factory=Waits)  # in the log and not applied
    _slots: dict[int, Slot] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.admission = Admission(self.name, self.rng)

    @classmethod
    def of(cls, name: str, settings: RaftSettings, rng: Random) -> Self:
        """As the settings say."""
        return cls(
            name,
            slow_seconds=settings.slow_write_ms / 1000,
            rng=rng,
            linger_seconds=settings.batch_linger_ms / 1000,
            batch_max=settings.batch_max,
        )

    def __len__(self) -> int:
        return len(self._urgent) + len(self._queue)

    def queue(self, write: Write) -> None:
        """Take a proposal in. Raises Overloaded when `admission` refuses it."""
        self.admission.enter(write.charge, write.queued_at)
        (self._urgent if write.charge.urgent else self._queue).append(write)

    def linger(self, now: float) -> float:
        """How much longer the next entry waits for company; 0 for not at all."""
        if not self.linger_seconds or self._urgent or not 0 < len(self._queue) < self.batch_max:
            return 0.0
        if sum(write.charge.operations for write in self._queue) >= self.batch_max:
            return 0.0
        first: float = min(map(_queued_at, self._queue))
        return first + self.linger_seconds - now

    def take(self, now: float) -> list[Write]:
        """The proposals of the next entry: all that may enter, up to its limits."""
        writes: list[Write] = []
        size = operations = 0
        turn = self.admission.answered_in(TURN_SECONDS) or TURN_OPERATIONS_MAX
        turn = min(max(turn, TURN_OPERATIONS_MIN), TURN_OPERATIONS_MAX)
        full = self._ahead.size >= AHEAD_BYTES_MAX or self._ahead.operations >= turn
        queues: tuple[deque[Write] | FairQueue[Write], ...] = (self._urgent, self._queue)
        for queue in queues[:1] if full else queues:
            while (
                queue
                and size < BATCH_BYTES_MAX
                and operations < turn
                and len(writes) < self.batch_max
            ):
                write = queue.popleft()
                if write.reply.done():  # its caller's deadline may have passed while it waited
                    self.admission.leave(write.charge, now)
                    continue
                writes.append(write)
                size += write.size
                operations += write.charge.operations
        return writes

    def proposed(self, index: int, slot: Slot) -> None:
        """These writes went into the entry at `index`."""
        self._slots[index] = slot
        self._ahead.add(len(slot.writes), slot.operations, slot.size)

    def refuse(self, writes: Sequence[Write], error: MetarayError, now: float) -> None:
        """Taken, but the log did not."""
        for write in writes:
            self.admission.leave(write.charge, now)
        refuse([write.reply for write in writes], error, unproposed=True)

    def saved(self, entries: Iterable[Entry], now: float) -> None:
        """This replica has made the entries durable."""
        # failpoint: vote.before_promise
        for entry in entries:
            slot = self._slots.get(entry.index)
            if slot is not None and slot.term == entry.term:
                slot.saved_at = now

    def committed(self, entries: Iterable[Entry], now: float) -> list[tuple[Admitted, ...]]:
        """A majority has made the entries durable. Of each what its proposals came to when they
        were admitted; empty: not known."""
        known: list[tuple[Admitted, ...]] = []
        for entry in entries:
            slot = self._slots.get(entry.index)
            if slot is None or slot.term != entry.term:
                known.append(())
                continue
            slot.committed_at = now
            known.append(tuple([write.admitted for write in slot.writes]))
        return known

    def applied(self, index: int, term: int, replies: list[Applied], now: float) -> None:
        """The machine has applied the entry: answer its callers."""
        slot = self._slots.pop(index, None)
        if slot is None:
            return
        self._ahead.add(-len(slot.writes), -slot.operations, -slot.size)
        for write in slot.writes:
            self.admission.leave(write.charge, now)
        if slot.term != term:
            refuse([w.reply for w in slot.writes], NotLeader("another leader's entry won"))
            return
        # failpoint: apply.before_reply
        assert len(replies) == len(slot.writes), "one reply a proposal"
        for write, each in zip(slot.writes, replies, strict=True):
            if not write.reply.done():
                write.reply.set_result(each.reply)
        # failpoint: apply.after_reply
        self._measure(index, slot, now)

    def _measure(self, index: int, slot: Slot, now: float) -> None:
        first = min(map(_queued_at, slot.writes))
        # Two followers can be faster than this leader's own disk; then replication took no time.
        saved_at = slot.saved_at or slot.committed_at
        queue, append = slot.proposed_at - first, saved_at - slot.proposed_at
        replicate, apply = max(0.0, slot.committed_at - saved_at), now - slot.committed_at
        phases = self.phases
        phases["queue"] += queue
        phases["append"] += append
        phases["replicate"] += replicate
        phases["apply"] += apply
        if now - first > self.slow_seconds:
            self.slow += 1
            took = dict(zip(PHASES, (queue, append, replicate, apply), strict=True))
            shown = ", ".join(f"{phase} {seconds * 1000:.0f} ms" for phase, seconds in took.items())
            log.warning("%s: slow write at index %d: %s", self.name, index, shown)

    def _measure_lost(self, error: MetarayError, now: float) -> None:
        """Those that are never applied here are slow as well, and told of together."""
        slots = list(self._slots.values())
        waiting = [write for slot in slots for write in slot.writes]
        waiting += [write for queue in (self._urgent, self._queue) for write in queue]
        took = [now - write.queued_at for write in waiting]
        late = [seconds for seconds in took if seconds > self.slow_seconds]
        if not late:
            return
        self.slow += 1
        said = "%s: slow writes: %d were not applied, the oldest after %.0f ms in %s: %s"
        phase = slots[0].phase if slots else "queue"
        log.warning(said, self.name, len(late), max(late) * 1000, phase, error.detail)

    def fail(self, error: MetarayError, now: float) -> None:
        """Refuse everyone who waits."""
        self._measure_lost(error, now)
        for slot in self._slots.values():
            refuse([write.reply for write in slot.writes], error)
        self._slots.clear()
        for queue in (self._urgent, self._queue):
            refuse([write.reply for write in queue], error, unproposed=True)
            queue.clear()
        self.admission.clear()
        self._ahead = Waits()


@dataclass(slots=True)
class Reads:
    """Queries on their way: waiting for a round, in a round, waiting for the state to catch up."""

    name: str
    rng: Random
    clock: Clock
    refusals: Refusals = field(init=False)  #: not told how fast rounds are: each takes all
    begun: list[Read] = field(default_factory=list)  #: in the round under way, if there is but one
    waiting: list[Read] = field(default_factory=list)  #: for a round
    safe: list[tuple[int, list[Read]]] = field(default_factory=list)  #: once so much is applied
    stale: list[tuple[int, int, Read]] = field(default_factory=list)
    """The same, without a round: a heap by index, and as they came. Some may wait for an index that
    is far off, or never comes: with each apply only those are looked at that are due."""
    _rounds: dict[int, list[Read]] = field(default_factory=dict)
    _taken: int = 0  # reads in rounds, and those that are safe but for the state
    _next_round: int = 1
    _came: int = 0  # to `stale`, ever

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.name, self.rng, self.clock.monotonic)

    def __len__(self) -> int:
        return len(self.waiting) + self._taken + len(self.stale)

    def queue(self, read: Read) -> None:
        """Take a linearizable read in. Raises Overloaded when so many wait for their rounds, or for
        the state after them."""
        if len(self.waiting) + self._taken >= READS_MAX:
            self.refusals.let_go(self)
        if len(self.waiting) + self._taken >= READS_MAX:
            raise self.refusals.refuse(_READS_FULL, READS_MAX)
        self.waiting.append(read)

    def queue_stale(self, read: Read, index: int) -> None:
        """Take in a read that needs no round, only this index applied. Raises Overloaded."""
        if len(self.stale) >= READS_MAX:
            self.refusals.let_go(self)
        if len(self.stale) >= READS_MAX:
            raise self.refusals.refuse(_READS_FULL, READS_MAX)
        heappush(self.stale, (index, self._came, read))
        self._came += 1

    def begin_round(self) -> tuple[int, list[Read]] | None:
        """All that waits shares one round. Its context is never used again."""
        if not self.waiting:
            return None
        # failpoint: read.round
        reads, self.waiting = self.waiting, []
        context, self._next_round = self._next_round, self._next_round + 1
        self._rounds[context] = reads
        self._taken += len(reads)
        self.begun = reads if len(self._rounds) == 1 else []
        return context, reads

    def abandon(self, context: int, error: MetarayError) -> None:
        """The core refused this round."""
        self.begun = []
        refuse([read.reply for read in self._ended(context)], error)

    def confirmed(self, context: int, index: int) -> None:
        """The round is over: its reads are safe once `index` is applied."""
        reads = self._ended(context)
        # failpoint: read.confirmed
        if later := [read for read in reads if not read.answered(index)]:
            self.safe.append((index, later))
            self._taken += len(later)

    def _ended(self, context: int) -> list[Read]:
        reads = self._rounds.pop(context, [])
        self._taken -= len(reads)
        return reads

    def let_go(self) -> None:
        """Those whose callers wait no more leave room for others."""
        self.waiting = _wanted(self.waiting)
        for reads in (*self._rounds.values(), *[reads for _, reads in self.safe]):
            self._taken -= len(reads)
            reads[:] = _wanted(reads)
            self._taken += len(reads)
        self.safe = [each for each in self.safe if each[1]]
        self.stale = [each for each in self.stale if not each[2].gone]
        heapify(self.stale)

    @property
    def wait_for_state(self) -> bool:
        """Whether some may be due when more is applied."""
        return bool(self.safe or self.stale)

    def due(self, applied: int) -> list[Read]:
        """The reads that may be answered from the state at `applied`."""
        if not self.wait_for_state:
            return []
        # failpoint: read.due
        due: list[Read] = []
        later: list[tuple[int, list[Read]]] = []
        for index, reads in self.safe:
            if index <= applied:
                self._taken -= len(reads)
                due += _wanted(reads)
            else:
                later.append((index, reads))
        self.safe, stale = later, self.stale
        while stale and (stale[0][0] <= applied or stale[0][2].gone):
            read = heappop(stale)[2]
            if not read.gone:
                due.append(read)
        return due

    def fail(self, error: MetarayError, *, safe_too: bool) -> None:
        """Refuse everyone whose round is not over; with `safe_too`, everyone."""
        refuse([read.reply for read in self.waiting], error)
        self.waiting.clear()
        for reads in self._rounds.values():
            refuse([read.reply for read in reads], error)
        self._rounds.clear()
        self._taken = sum(len(reads) for _, reads in self.safe)
        if safe_too:
            self.fail_confirmed(error)
            refuse([read.reply for *_, read in self.stale], error)
            self.stale.clear()

    def fail_confirmed(self, error: MetarayError) -> None:
        """Refuse those whose round is over and that wait for the state: a disk that hangs may keep
        it from them, and another replica has it."""
        for _, reads in self.safe:
            self._taken -= len(reads)
            refuse([read.reply for read in reads], error)
        self.safe.clear()


def _wanted(reads: list[Read]) -> list[Read]:
    """Those whose callers still wait."""
    return [read for read in reads if not read.reply.done()]


def limit_ms(request: Any, settings: RaftSettings) -> int:
    """How long a request may take here."""
    limit = settings.write_timeout_ms
    return min(request.timeout_ms or limit, limit)


def refusal(error: MetarayError, *, unproposed: bool = False) -> api.Reply:
    """The reply that says this error; `caller.error_of` turns it back into the class.
    `unproposed`: what is refused is a proposal that came into no log, if it is one."""
    reply = api.Reply(code=error.code, detail=error.detail, unproposed=unproposed)
    if isinstance(error, NotLeader):
        reply.leader = error.leader
    if isinstance(error, WrongShard):
        reply.slot_version = error.version
    if isinstance(error, Overloaded):
        reply.retry_after_ms = error.retry_after_ms
    if isinstance(error, Overflow):
        reply.revision = error.revision
    return reply


def hinted(error: MetarayError, leader: str) -> MetarayError:
    """The core's error as callers want it: it knows the leader by its id, they by its seat."""
    return NotLeader(error.detail, leader) if isinstance(error, NotLeader) else error


def refused(error: MetarayError) -> asyncio.Future[bytes]:
    """The reply that says this error, there at once: nothing was done for the request."""
    reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    reply.set_result(refusal(error, unproposed=True).SerializeToString())
    return reply


def refuse(
    replies: Sequence[asyncio.Future[bytes]], error: MetarayError, *, unproposed: bool = False
) -> None:
    """Answer all of these with the same refusal. `unproposed`: see `refusal`."""
    if not replies:
        return
    reply = refusal(error, unproposed=unproposed).SerializeToString()
    for future in replies:
        if not future.done():
            future.set_result(reply)
