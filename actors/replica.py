"""One member of a group: inputs -> core -> storage -> transport -> machine -> replies.

A plain class; everything it touches is passed in, so a test gives it what it likes and only
`remote.py` knows that it lives in a Ray actor. It decides nothing about the protocol: it does what
`Ready` says, in the order that `Ready` prescribes.

One core task (`_turn`, always on the event loop) is the only thing that touches the core; one
storage thread does everything that touches LMDB. Between them there is at most one save under way.
While it is, whatever arrives waits and then goes together: that is all the batching there is, and
it sizes itself. A write passes four phases, which the slow-write warning names: it waits in the
queue, its entry is saved here, a majority saves it, the machine applies it.

Two ways to fail, never a third (law 8): a refusal is data inside a reply; anything unexpected stops
this replica, which from then on answers `Stopped` with the reason. A failed commit ends the
process, because after a failed fsync nothing in memory can be trusted (law 17).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from actors.clock import Clock
from actors.config import RaftSettings
from actors.pending import Read, Reads, Slot, Write, Writes, refusal, refuse
from actors.snapshots import SnapshotReceiver, SnapshotSender
from actors.storage_thread import StorageThread
from actors.transport import ATTEND_SECONDS, Transport
from state_machines.errors import MetarayError, NotLeader, Rejected, Stopped, Unavailable
from state_machines.machine import Applied, Machine
from state_machines.raft import Raft
from state_machines.raft.confchange import Change
from state_machines.raft.messages import (
    Configuration,
    Entry,
    EntryKind,
    Message,
    Ready,
    SnapshotMeta,
)
from state_machines.wire import api_pb2 as api
from storage.errors import StorageFailed
from storage.state import State
from storage.stores import Stores

APPLY_JOBS_MAX = 64  #: applies handed to the storage thread before proposals wait
TICKS_CAUGHT_UP_MAX = 2  #: after a pause the core is not told of all the time that passed
FAILED_COMMIT_EXIT = 70  #: exit status after a commit that failed (law 17)

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Counters:
    """What the operator's face shows. Durations in seconds, as running sums with counts."""

    elections: int = 0
    proposals: int = 0
    queries: int = 0
    saves: int = 0
    save_seconds: float = 0.0
    applies: int = 0
    apply_seconds: float = 0.0


class Hooks(Protocol):
    """What the shell around a replica wants to hear."""

    def leadership(self, term: int, leads: bool) -> None:
        """This replica gained or lost the leadership of its group in this term."""
        ...

    def stopped(self, reason: str) -> None:
        """This replica serves no more."""
        ...


class Replica:
    """A member of a group. Made and used on one event loop; `start` begins its turns."""

    def __init__(
        self,
        *,
        cluster: str,
        group: str,
        seat: str,
        core: Raft,
        founding: SnapshotMeta,
        stores: Stores,
        machine: Machine,
        transport: Transport,
        storage: StorageThread,
        settings: RaftSettings,
        clock: Clock,
        rng: Random,
        hooks: Hooks,
    ) -> None:
        assert __debug__, "assertions carry the laws: a replica does not start under python -O"
        self.group = group
        self.seat = seat
        self.core = core
        self.counters = Counters()
        self.stopped_because = ""
        self.retired = False
        self._log = stores.log
        self._state = stores.state
        self._machine = machine
        self._transport = transport
        self._storage = storage
        self._settings = settings
        self._clock = clock
        self._rng = rng
        self._hooks = hooks
        self._loop = asyncio.get_running_loop()

        self._inbox: deque[Message] = deque()
        self._saved: deque[Ready] = deque()
        self._writes = Writes(seat, settings.slow_write_ms / 1000)
        self._reads = Reads(seat)
        self._changed = asyncio.Event()  # leadership or configuration moved

        self._saving = False
        self._applying = 0
        self._flushing = False
        # A new group has applied nothing yet, but it knows who its members are.
        self._applied = stores.state.applied if stores.state.applied.index else founding
        self._configuration = self._applied.configuration  # after all that was handed to apply
        self._led_term = 0
        self._turn_scheduled = False
        self._last_tick = clock.monotonic()
        self._last_flush = clock.monotonic()
        self._was_member = False
        self._tick_timer: asyncio.TimerHandle | None = None
        self._sender = SnapshotSender(
            cluster=cluster,
            group=group,
            replica=core.id,
            transport=transport,
            storage=storage,
            state=stores.state,
        )
        self._receiver = SnapshotReceiver(
            cluster=cluster, group=group, replica=core.id, storage=storage, state=stores.state
        )

    def __repr__(self) -> str:
        return f"{self.seat} {self.role}"

    @property
    def role(self) -> str:
        """The role, in Raft's words, or what keeps it from having one."""
        if self.stopped_because:
            return "stopped"
        return "retired" if self.retired else self.core.role.name

    @property
    def leads(self) -> bool:
        """Whether this replica believes to lead."""
        return not self.stopped_because and self.core.leader == self.core.id

    @property
    def snapshots_sent(self) -> int:
        """Whole snapshots that peers took from this replica."""
        return self._sender.sent

    def start(self) -> None:
        """Begin to tick and take turns."""
        self._last_tick = self._clock.monotonic()
        self._tick()

    # -- inputs -----------------------------------------------------------------------------

    def receive(self, messages: Sequence[Message]) -> None:
        """Messages from peers, in any order, any number of times."""
        self._inbox.extend(messages)
        self._wake()

    def peer_died(self, peer: int) -> None:
        """The peer's process has ended. If it led, an election may begin early (design 5.5)."""
        if self.stopped_because:
            return
        led = peer == self.core.leader
        self.core.unreachable(peer)
        if led:
            # A short random wait keeps the survivors from meeting in a tie.
            delay = self._rng.randrange(0, self._settings.tick_ms) / 1000
            self._loop.call_later(delay, self._campaign_in, self.core.term)
        self._wake()

    def _campaign_in(self, term: int) -> None:
        if self.core.term == term:
            self.campaign()

    def campaign(self) -> None:
        """Stand for election early, unless there is a leader."""
        if not self.stopped_because and self.core.leader == 0:
            self.core.campaign()
            self._wake()

    async def propose(self, request: api.ProposeRequest) -> bytes:
        """Put a proposal into the log and wait for its reply (an encoded `api.Reply`)."""
        write = Write(
            request.proposal,
            request.ByteSize(),
            self._loop.create_future(),
            self._clock.monotonic(),
        )
        try:
            self._must_lead()
            self._machine.admit(request.proposal)
            self._writes.queue(write)
        except (Rejected, Unavailable) as error:
            return refusal(error).SerializeToString()
        self.counters.proposals += 1
        self._wake()
        return await self._answered(write.reply, request.timeout_ms)

    async def query(self, request: api.QueryRequest) -> bytes:
        """Answer queries: after a read round (linearizable), or from what is applied (stale)."""
        read = Read(request, self._loop.create_future())
        try:
            self._must_run()
            if request.stale:
                self._reads.queue_stale(read)
                self._serve_reads()
            else:
                self._must_lead()
                self._reads.queue(read)
                self._wake()
        except Unavailable as error:
            return refusal(error).SerializeToString()
        self.counters.queries += 1
        return await self._answered(read.reply, request.timeout_ms)

    async def _answered(self, reply: asyncio.Future[bytes], timeout_ms: int) -> bytes:
        limit = min(timeout_ms or self._settings.write_timeout_ms, self._settings.write_timeout_ms)
        try:
            return await asyncio.wait_for(reply, limit / 1000)
        except TimeoutError:
            return api.Reply(
                code=api.UNKNOWN, detail=f"{self.group}: no answer within {limit} ms"
            ).SerializeToString()

    def change(self, change: Change) -> int:
        """Change the membership; returns the entry's index. NotLeader, Conflict or Invalid."""
        self._must_lead()
        index = self.core.change(change)
        self._wake()
        return index

    def transfer(self, target: int) -> None:
        """Hand the leadership to another voter."""
        self._must_lead()
        self.core.transfer(target)
        self._wake()

    async def attend(self) -> bool:
        """Wait while this replica leads, at most `ATTEND_SECONDS`; False if it does not."""
        deadline = self._loop.time() + ATTEND_SECONDS
        while self.leads and (left := deadline - self._loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        return self.leads

    async def take_chunk(self, data: bytes) -> bool:
        """Take one chunk of a snapshot; once the stream is whole and verified, ask the core."""
        self._must_run()
        taken, question = await self._receiver.take(data, self.core.term)
        if question is not None:
            self.receive([question])
        return taken

    async def cut(self) -> Any:
        """A consistent view of all that is applied, durable, for export. The caller closes it."""
        self._must_run()
        return await self._storage.run(self._state.view)

    def _must_run(self) -> None:
        if self.stopped_because:
            raise Stopped(f"{self.seat}: {self.stopped_because}")

    def _must_lead(self) -> None:
        self._must_run()
        if not self.leads:
            raise NotLeader(f"{self.seat} is not the leader of {self.group}", self._leader_seat())

    # -- turns ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _tick(self) -> None:
        if self.stopped_because:
            return
        seconds = self._settings.tick_ms / 1000
        now = self._clock.monotonic()
        due = int((now - self._last_tick) / seconds)
        if due:
            self._last_tick += due * seconds
            for _ in range(min(due, TICKS_CAUGHT_UP_MAX)):
                self.core.tick()
            self._wake()
        if now - self._last_flush >= self._settings.flush_interval_ms / 1000:
            self._flush()
        self._tick_timer = self._loop.call_later(seconds, self._tick)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if self.stopped_because:
            return
        try:
            core = self.core
            while self._inbox:
                core.step(self._inbox.popleft())
            while self._saved:
                self._after_save(self._saved.popleft())
            self._take_reads()
            self._take_proposals()
            while (ready := core.ready()) is not None:
                self._handle(ready)
            if self._receiver.holds and not self._saving and core.durable_index:
                self._receiver.release()
            self._notice_leadership()
        except Exception as error:
            log.exception("%s: turn failed", self.seat)
            self._stop(f"turn failed: {error!r}")
            self._hooks.stopped(self.stopped_because)

    def _take_reads(self) -> None:
        begun = self._reads.begin_round()
        if begun is None:
            return
        context, reads = begun
        try:
            self.core.read(context)
        except Unavailable as error:
            self._reads.abandon(context)
            refuse([read.reply for read in reads], self._with_hint(error))

    def _take_proposals(self) -> None:
        """Everything that waits becomes one entry, unless a save is under way."""
        while self._writes and not self._saving and self._applying < APPLY_JOBS_MAX:
            writes = self._writes.take()
            if not writes:
                continue
            batch = api.Batch(
                now_ms=self._clock.now_ms(), proposals=[write.proposal for write in writes]
            )
            try:
                index = self.core.propose(batch.SerializeToString())
            except Unavailable as error:
                refuse([write.reply for write in writes], self._with_hint(error))
                continue
            self._writes.proposed(index, Slot(self.core.term, writes, self._clock.monotonic()))

    def _with_hint(self, error: MetarayError) -> MetarayError:
        """The core knows the leader by its id; callers know seats."""
        if isinstance(error, NotLeader):
            return NotLeader(error.detail, self._leader_seat())
        return error

    def _leader_seat(self) -> str:
        return self._transport.seat_of(self.core.leader) if self.core.leader else ""

    def _handle(self, ready: Ready) -> None:
        if ready.messages:
            self._transport.send(ready.messages)
        if ready.must_save:
            self._save(ready)
        if ready.committed:
            self._apply(ready.committed)
        for read in ready.reads:
            self._reads.confirmed(read.context, read.index)
        if ready.reads:
            self._serve_reads()
        for peer in ready.snapshot_to:
            self._sender.start(peer, self.core.term, self._snapshot_ended)

    def _save(self, ready: Ready) -> None:
        assert not self._saving, "two saves under way"
        self._saving = True
        staged = self._receiver.claim(ready.snapshot) if ready.snapshot else None

        def job() -> float:
            begun = self._clock.monotonic()
            if ready.snapshot is not None:
                # State first: reopening accepts a state newer than the log, not the reverse.
                assert staged is not None, "claimed above"
                self._state.install(staged, ready.snapshot)
            self._log.save(ready.snapshot, ready.entries, ready.hard_state)
            return begun

        def done(begun: float) -> None:
            self._saving = False
            self.counters.saves += 1
            self.counters.save_seconds += self._clock.monotonic() - begun
            if ready.snapshot is not None:
                self._applied = ready.snapshot
                self._configuration = ready.snapshot.configuration
            self._saved.append(ready)
            self._wake()

        self._storage.hand(job, done, self._storage_failed)

    def _after_save(self, ready: Ready) -> None:
        self.core.advance(ready)
        self._writes.saved(ready.entries, self._clock.monotonic())
        if ready.promises:
            self._transport.send(ready.promises)

    def _apply(self, entries: Sequence[Entry]) -> None:
        self._writes.committed(entries, self._clock.monotonic())
        self._applying += 1

        for entry in entries:
            if entry.configuration is not None:
                self._configuration = entry.configuration
        configuration = self._configuration

        def job() -> tuple[float, list[tuple[int, int, list[Applied]]]]:
            begun = self._clock.monotonic()
            return begun, apply_entries(self._machine, self._state, entries, configuration)

        def done(result: tuple[float, list[tuple[int, int, list[Applied]]]]) -> None:
            begun, applied = result
            self._applying -= 1
            self.counters.applies += 1
            self.counters.apply_seconds += self._clock.monotonic() - begun
            self._applied = self._state.applied
            now = self._clock.monotonic()
            for index, term, replies in applied:
                self._writes.applied(index, term, replies, now)
            self._serve_reads()
            self._note_removal()
            self._wake()

        self._storage.hand(job, done, self._storage_failed)

    def _serve_reads(self) -> None:
        """Hand every read whose index is applied to the storage thread, in one job."""
        due = self._reads.due(self._applied.index)
        if not due:
            return

        def job() -> list[bytes]:
            now_ms = self._clock.now_ms()
            return [
                self._machine.query(read.request.queries, now_ms).SerializeToString()
                for read in due
            ]

        def done(replies: list[bytes]) -> None:
            for read, reply in zip(due, replies, strict=True):
                if not read.reply.done():
                    read.reply.set_result(reply)

        self._storage.hand(job, done, self._storage_failed)

    # -- upkeep -----------------------------------------------------------------------------

    def _flush(self) -> None:
        """Make the applied rows durable, then let go of the log they no longer need."""
        self._last_flush = self._clock.monotonic()
        if self._flushing:
            return
        self._flushing = True

        def job() -> None:
            self._state.flush()

        def done(_: None) -> None:
            self._flushing = False
            self._compact()

        self._storage.hand(job, done, self._storage_failed)

    def _compact(self) -> None:
        keep = self._settings.log_keep_entries
        target = min(self._state.flushed.index, self.core.applied_handed) - keep
        if target - self.core.first_index < keep:
            return  # in strides, so that each delete is worth its transaction
        point = self.core.snapshot_meta(target)
        self.core.compact(target)
        self._storage.hand(lambda: self._log.compact(point), lambda _: None, self._storage_failed)

    def _snapshot_ended(self, peer: int, whole: bool) -> None:
        if self.stopped_because:
            return
        if whole:
            self.core.snapshot_sent(peer)
        else:
            self.core.snapshot_failed(peer)
        self._wake()

    def _note_removal(self) -> None:
        """A replica that its group has voted out says nothing more, but keeps its directory."""
        configuration = self._applied.configuration
        if configuration.members and self.core.id not in configuration.members:
            if not self.retired and self._was_member:
                self.retired = True
                log.warning("%s: replica %x is no longer a member", self.seat, self.core.id)
        elif self.core.id in configuration.members:
            self._was_member = True

    def _notice_leadership(self) -> None:
        self._transport.attend(0 if self.leads else self.core.leader)
        leads = self.leads
        if leads == bool(self._led_term) and (not leads or self._led_term == self.core.term):
            return
        if self._led_term:
            self._led_term = 0
            self._drop_waiting()
            self._hooks.leadership(self.core.term, False)
        if leads:
            self.counters.elections += 1
            self._led_term = self.core.term
            self._hooks.leadership(self.core.term, True)
        self._changed.set()

    def _drop_waiting(self) -> None:
        """Leadership is gone: callers ask the next leader, with the same client and sequence."""
        error = NotLeader(f"{self.seat} lost the leadership of {self.group}", self._leader_seat())
        self._writes.fail(error)
        self._reads.fail(error, safe_too=False)

    # -- the end ----------------------------------------------------------------------------

    def _storage_failed(self, error: BaseException) -> None:
        if isinstance(error, StorageFailed):
            log.critical("%s: a commit failed, the process ends: %s", self.seat, error)
            logging.shutdown()
            os._exit(FAILED_COMMIT_EXIT)  # law 17: never retry over a failed fsync
        log.error("%s: storage stopped this replica", self.seat, exc_info=error)
        self._stop(f"{type(error).__name__}: {error}")
        self._hooks.stopped(self.stopped_because)

    def _stop(self, reason: str) -> None:
        if self.stopped_because:
            return
        led, self._led_term = self._led_term, 0
        self.stopped_because = reason
        error = Stopped(f"{self.seat}: {reason}")
        self._writes.fail(error)
        self._reads.fail(error, safe_too=True)
        self._changed.set()
        if self._tick_timer is not None:
            self._tick_timer.cancel()
        self._sender.close()
        self._transport.close()
        if led:
            self._hooks.leadership(self.core.term, False)

    async def close(self) -> None:
        """Stop cleanly: what is applied is flushed, so the next start has nothing to replay."""
        if not self.stopped_because:
            self._stop("closed")
            await self._storage.run(self._state.flush)

    def abandon(self) -> None:
        """Stop without a flush; what was saved is all there is."""
        self._stop("abandoned")

    # -- the operator's face ----------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """Everything `status` and the dashboards show of this replica. Plain values only."""
        core = self.core
        configuration: Configuration = core.configuration
        return {
            "group": self.group,
            "seat": self.seat,
            "replica": core.id,
            "role": self.role,
            "stopped": self.stopped_because,
            "term": core.term,
            "leader": core.leader,
            "leader_seat": self._leader_seat(),
            "first_index": core.first_index,
            "last_index": core.last_index,
            "commit": core.commit,
            "applied": self._applied.index,
            "flushed": self._state.flushed.index,
            "voters": list(configuration.voters),
            "outgoing": list(configuration.outgoing),
            "learners": list(configuration.learners),
            "progress": {
                peer: {"match": each.match_index, "state": each.state.value}
                for peer, each in sorted(core.progress.items())
            }
            if self.leads
            else {},
            "seats": {peer: self._transport.seat_of(peer) for peer in configuration.members},
            "queue": len(self._writes),
            "reads": len(self._reads),
            "storage_queue": self._storage.queued,
            "dirty_bytes": self._state.dirty_bytes,
            "counters": {
                "elections": self.counters.elections,
                "slow_writes": self._writes.slow,
                "proposals": self.counters.proposals,
                "queries": self.counters.queries,
                "saves": self.counters.saves,
                "save_seconds": self.counters.save_seconds,
                "applies": self.counters.applies,
                "apply_seconds": self.counters.apply_seconds,
                "phases": dict(self._writes.phases),
            },
        }


def apply_entries(
    machine: Machine, state: State, entries: Sequence[Entry], configuration: Configuration
) -> list[tuple[int, int, list[Applied]]]:
    """Apply committed entries in order; on the storage thread. (index, term, replies) of each.

    `configuration` is the one in force after the last of them.
    """
    results = [
        (entry.index, entry.term, machine.apply(entry))
        for entry in entries
        if entry.kind is EntryKind.NORMAL and entry.data
    ]
    last = entries[-1]
    state.set_applied(SnapshotMeta(last.index, last.term, configuration))
    return results
