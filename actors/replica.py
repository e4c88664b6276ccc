"""One member of a group: inputs -> core -> storage -> transport -> machine -> replies.

A plain class; everything it touches is passed in, and only `remote.py` knows that it is an actor.
It decides nothing about the protocol: it does what `Ready` says, in the order that it prescribes.

One core task (`_turn`, always on the event loop) is the only thing that touches the core; one
storage thread does what touches LMDB, but for the writing of a flush (`upkeep.py`). While one save
is under way what arrives waits, and then goes together: that is all the batching there is. A write
is in one of four phases: it is queued, saved here, saved by a majority, applied.

Two ways to fail, never a third (law 8): a refusal is data inside a reply; anything unexpected stops
this replica, which from then on answers `Stopped` with the reason. A failed commit ends the
process, because after a failed fsync nothing in memory can be trusted (law 17).
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from random import Random
from typing import Any, TypeVar

from actors import pending
from actors.answers import Answers
from actors.clock import Clock
from actors.config import RaftSettings
from actors.deadlines import Deadlines
from actors.hooks import Hooks
from actors.leadership import Leadership
from actors.snapshots import SnapshotReceiver, SnapshotSender
from actors.stamps import Stamps
from actors.status import Counters, role_of, status_of
from actors.storage_jobs import Outcome, apply, haste_of_apply, haste_of_save, save
from actors.storage_thread import Haste, StorageThread
from actors.ticker import Ticker
from actors.transport import Transport
from actors.upkeep import Upkeep
from actors.vouching import Vouching
from actors.watches import History
from state_machines.errors import NotLeader, Rejected, Stopped, Unavailable
from state_machines.machine import Machine, batch_of
from state_machines.raft import Raft
from state_machines.raft.confchange import Change
from state_machines.raft.messages import Entry, Message, Ready, SnapshotMeta
from state_machines.wire import api_pb2 as api
from storage.errors import StorageFailed
from storage.stores import Stores

T = TypeVar("T")

APPLY_JOBS_MAX = 64  #: applies handed to the storage thread before proposals wait
FAILED_COMMIT_EXIT = 70  #: exit status after a commit that failed (law 17)

log = logging.getLogger(__name__)


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
        if not __debug__:  # not an assertion: -O is just what takes those away
            raise RuntimeError("assertions carry the laws: no replica starts under python -O")
        self.group, self.seat = group, seat
        self.core, self.counters = core, Counters()
        self.stopped_because = ""
        self.stores, self._machine = stores, machine
        self.transport, self.storage = transport, storage
        self.settings, self._clock, self._hooks = settings, clock, hooks
        self.stamps = Stamps(clock, core.last_index)
        self._loop = asyncio.get_running_loop()
        self._steps: deque[Callable[[], None]] = deque()  # what the next turn begins with
        self.writes = pending.Writes.of(seat, settings, rng)
        self.reads = pending.Reads(seat, rng, clock)
        self._deadlines = Deadlines(group)
        failed = self.storage_failed
        self.answers = Answers(storage, machine, stores.state, self.stamps, rng, failed)
        self._saving, self._applying = False, 0
        # A new group has applied nothing yet, but it knows who its members are.
        self.applied = stores.state.applied if stores.state.applied.index else founding
        self._configuration = self.applied.configuration  # after all that was handed to apply
        self.history = History(self.applied.index, settings, clock.monotonic())
        self.leadership = Leadership(hooks)
        self._vouching = Vouching(core)
        self._standing = (0, 0)  # term and leader when `leadership` was last told
        self._turn_scheduled = self._turning = False
        self._noted = self.applied.configuration  # when `_note_removal` last looked
        self._was_member = core.id in self._noted.members
        self.ticker = Ticker(
            clock, settings.tick_ms, lambda count: self._in_turn(partial(self._tick, count))
        )
        self.upkeep = Upkeep(
            core=core, stores=stores, storage=storage, settings=settings, clock=clock, failed=failed
        )
        self.snapshots = SnapshotSender(
            cluster=cluster, group=group, replica=core.id, transport=transport, upkeep=self.upkeep
        )
        self._receiver = SnapshotReceiver(
            cluster=cluster, group=group, replica=core.id, storage=storage, state=stores.state
        )

    def __repr__(self) -> str:
        return f"{self.seat} {self.core.id:016x} {self.role}"

    @property
    def role(self) -> str:
        """The role, in Raft's words ("learner" for a follower without a vote), or "stopped"."""
        return "stopped" if self.stopped_because else role_of(self.core)

    @property
    def leads(self) -> bool:
        """Whether this replica believes to lead."""
        return not self.stopped_because and self.core.leader == self.core.id

    def start(self) -> None:
        """Begin to tick and take turns."""
        self.transport.meet(self.core.configuration.members)
        self.ticker.start()

    # -- inputs -----------------------------------------------------------------------------

    def receive(self, messages: Sequence[Message]) -> None:
        """Messages from peers, in any order, any number of times: somebody waits for the answer."""
        self._steps.extend([partial(self.core.step, message) for message in messages])
        if not self._turning:
            self._turn()

    def peer_died(self, peer: int) -> None:
        """The peer's process has ended. If it led, an election may begin early (design 5.5)."""

        def step() -> None:
            led = peer == self.core.leader
            self.core.unreachable(peer)
            if led:
                log.info("%s: the leader's process has ended", self.seat)
                self.core.campaign()

        self._in_turn(step)

    def campaign(self) -> None:
        """Stand for election early, unless there is a leader."""
        self._in_turn(lambda: self.core.campaign() if self.core.leader == 0 else None)

    def propose(self, request: api.ProposeRequest) -> asyncio.Future[bytes]:
        """Put a proposal into the log; the reply is an encoded `api.Reply`."""
        limit_ms = pending.limit_ms(request, self.settings)
        try:
            if not self.leads:
                self._must_lead()
            admitted, size = self._machine.admit(request.proposal), request.ByteSize()
            reply, now = self._loop.create_future(), self._clock.monotonic()
            write = pending.Write(request.proposal, admitted, size, reply, now)
            self.writes.queue(write)
        except (Rejected, Unavailable) as error:
            return self.leadership.refused(error, self.core.leader, limit_ms)
        self.counters.proposals += 1
        self._wake()
        return self._deadlines.watch(write.reply, limit_ms)

    def query(self, request: api.QueryRequest) -> asyncio.Future[bytes]:
        """Answer queries: after a read round or if somebody vouches (`vouching.py`), or (stale)
        from what is applied. A stale request without queries asks how far that is."""
        read = pending.Read(request, self._loop.create_future())
        limit_ms = pending.limit_ms(request, self.settings)
        try:
            self._must_run()
            if request.vouch:
                return self._vouching.vouch(request, read.reply)
            if not request.stale:
                self._must_lead()
                read.partners = self._vouching.partners(request, self.applied.term)
            if request.stale or read.partners:
                self._answer(read, self.core.commit if read.partners else request.min_revision)
            else:
                self.reads.queue(read)
                self._wake()
        except (Rejected, Unavailable) as error:
            return self.leadership.refused(error, self.core.leader, limit_ms)
        self.counters.queries += 1
        return self._deadlines.watch(read.reply, limit_ms)

    async def watch(self, request: api.WatchRequest) -> bytes:
        """Answer a watch (`watches.py`). Elsewhere than at the leader only a stale one, and only
        while a leader is heard: who is cut off would say for ever that nothing happens."""
        try:
            self._must_lead(or_follow=request.stale and not request.now)
            limit_ms = pending.limit_ms(request, self.settings)
            reply = await self.history.watch(request, limit_ms, self.core.last_index)
        except (Rejected, Unavailable) as error:
            reply = pending.refusal(error)
        return reply.SerializeToString()

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

    async def take_chunk(self, data: bytes) -> bool:
        """Take one chunk of a snapshot; once the stream is whole and verified, ask the core."""
        self._must_run()
        taken, question = await self._stored(self._receiver.take(data, self.core.term))
        if question is not None:
            self.receive([question])
        return taken

    async def cut(self) -> Any:
        """A consistent view of all that is applied, durable, for export. The caller closes it."""
        self._must_run()
        return await self._stored(self.upkeep.view())

    async def _stored(self, work: Awaitable[T]) -> T:
        """What the storage thread gives to a caller, who must not outlive a failed commit."""
        try:
            return await work
        except StorageFailed as error:
            self.storage_failed(error)
            raise

    def _must_run(self) -> None:
        if self.stopped_because:
            raise Stopped(f"{self.seat}: {self.stopped_because}")

    def _must_lead(self, *, or_follow: bool = False) -> None:
        self._must_run()
        if not (self.leads or (or_follow and self.core.leader)):
            raise NotLeader(f"{self.seat} is not the leader of {self.group}", self.leader_seat)

    # -- turns ------------------------------------------------------------------------------

    def _wake(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(partial(self._turn, woken=True))

    def _in_turn(self, step: Callable[[], None]) -> None:
        self._steps.append(step)
        if not self._turning:
            self._wake()

    def _tick(self, count: int) -> None:
        for _ in range(count):
            self.core.tick()
        self.stamps.tick(self._machine.reached, leads=self.leads)
        self.history.tick(self._clock.monotonic())
        # Turns do so only when the leader is another; and the watch over this one may have ended.
        self.transport.attend(0 if self.leads else self.core.leader)
        self.transport.meet(self.core.configuration.members)
        self.upkeep.tick()

    def _turn(self, *, woken: bool = False) -> None:
        if woken:
            self._turn_scheduled = False
        if self.stopped_because:
            return
        self._turning = True  # what is done in haste has its consequences in the same turn
        try:
            core, steps = self.core, self._steps
            while True:
                while steps:
                    steps.popleft()()
                if self.reads.waiting:
                    self._take_reads()
                if not self._saving:
                    self._take_proposals()
                # Once: the core has nothing more to say until something happens to it.
                if not steps and (ready := core.ready()) is not None:
                    self._handle(ready)
                if self.stopped_because:
                    return
                if not steps:
                    break
            if begun := self.reads.begun:
                self.reads.begun = []
                self.answers.make_ahead(begun, self.core.commit, self.applied.index)
            if self._receiver.holds and not self._saving and not core.installing:
                self._receiver.release()
            if core.standing != self._standing:
                self._notice_leadership()
        except Exception as error:
            log.exception("%s: turn failed", self.seat)
            self._stop(f"turn failed: {error!r}")
            self._hooks.stopped(self.stopped_because)
        finally:
            self._turning = False

    def _take_reads(self) -> None:
        if (begun := self.reads.begin_round()) is None:
            return
        try:
            self.core.read(begun[0])
        except Unavailable as error:
            self.reads.abandon(begun[0], pending.hinted(error, self.leader_seat))

    def _take_proposals(self) -> None:
        """Everything that waits becomes one entry, unless a save is under way."""
        while not self._saving and self.writes and self._applying < APPLY_JOBS_MAX:
            now = self._clock.monotonic()
            if (wait := self.writes.linger(now)) > 0:
                self._loop.call_later(wait, self._wake)
                return
            if not (writes := self.writes.take(now)):
                return
            data = batch_of(self.stamps.take(), [write.proposal for write in writes])
            try:
                index = self.core.propose(data)
            except Unavailable as error:
                self.writes.refuse(writes, pending.hinted(error, self.leader_seat), now)
                continue
            self.writes.proposed(index, pending.Slot(self.core.term, writes, now))

    @property
    def leader_seat(self) -> str:
        """Where the leader sits, empty when not known."""
        return self.transport.seat_of(self.core.leader) if self.core.leader else ""

    def _handle(self, ready: Ready) -> None:
        if ready.messages:
            self.transport.send(ready.messages)
        if ready.must_save:
            self._save(ready)
            while self._steps:  # of a save in haste: its promises do not wait for the applies
                self._steps.popleft()()
        if ready.committed:
            self._apply(ready.committed)
        for read in ready.reads:
            self.reads.confirmed(read.context, read.index)
        if ready.reads:
            self._serve_reads()
        for peer in ready.snapshot_to:
            self.snapshots.start(peer, self.core.term, self._snapshot_ended)

    def _save(self, ready: Ready) -> None:
        assert not self._saving, "two saves under way"
        self._saving = True
        staged = self._receiver.claim(ready.snapshot) if ready.snapshot else None

        def job() -> float:
            begun = self._clock.monotonic()
            save(self.stores, ready, staged)
            if staged is not None:
                self._machine.forget()
            return begun

        def done(begun: float) -> None:
            self._saving = False
            self.counters.saves += 1
            self.counters.save_seconds += self._clock.monotonic() - begun
            if ready.snapshot is not None:
                self.applied, self._configuration = ready.snapshot, ready.snapshot.configuration
                self.history.restart(ready.snapshot.index)
                self._serve_reads()
            self._steps.append(partial(self._after_save, ready))
            if not self._turning:
                self._turn()  # a callback of its own: there is nothing to wait for

        haste = haste_of_save(ready) if staged is None else Haste.NONE
        self.storage.hand(job, done, self.storage_failed, haste=haste, of_state=staged is not None)

    def _after_save(self, ready: Ready) -> None:
        self.core.advance(ready)
        self.writes.saved(ready.entries, self._clock.monotonic())
        if ready.promises:
            self.transport.send(ready.promises)
        if self.core.commit > self.core.applied_handed:
            self._wake()  # the only voter: what it has saved is committed with that

    def _apply(self, entries: Sequence[Entry]) -> None:
        admitted = self.writes.committed(entries, self._clock.monotonic())
        self._applying += 1
        changed = [each.configuration for each in entries if each.configuration is not None]
        configuration = self._configuration = changed[-1] if changed else self._configuration

        def job() -> tuple[float, list[Outcome], SnapshotMeta]:
            begun, state = self._clock.monotonic(), self.stores.state
            outcomes = apply(self._machine, state, entries, admitted, configuration)
            return begun, outcomes, state.applied

        def done(result: tuple[float, list[Outcome], SnapshotMeta]) -> None:
            # Not where the thread is by now: watches would hear of it before its changes.
            begun, outcomes, self.applied = result
            self._applying -= 1
            now = self._clock.monotonic()
            self.counters.applies += 1
            self.counters.apply_seconds += now - begun
            for index, term, replies, changes in outcomes:
                self.writes.applied(index, term, replies, now)
                self.history.add(index, changes)
            self.history.applied(self.applied.index)
            if self.reads.wait_for_state:
                self._serve_reads()
            if self.applied.configuration is not self._noted:
                self._note_removal()
            if self.writes:  # they may have waited for this
                self._wake()

        haste = haste_of_apply(entries, self.stores.state)
        self.storage.hand(job, done, self.storage_failed, haste=haste)

    def _answer(self, read: pending.Read, index: int) -> None:
        """Answer a read that needs no round, once this index is applied: mostly it is."""
        if index > self.applied.index:
            self.reads.queue_stale(read, index)
        elif not read.told_how_far(self.applied.index):
            self.answers.hand((read,))

    def _serve_reads(self) -> None:
        """Answer every read whose index is applied, in one job."""
        if due := self.reads.due(self.applied.index):
            self.answers.hand(due)

    def _snapshot_ended(self, peer: int, whole: bool) -> None:
        core = self.core
        self._in_turn(partial(core.snapshot_sent if whole else core.snapshot_failed, peer))

    def _note_removal(self) -> None:
        """A replica that its group has voted out is silent from then on, and for ever."""
        was_member, self._noted = self._was_member, self.applied.configuration
        self._was_member = self.core.id in self._noted.members
        if was_member and not self._was_member:
            self._stop("removed from its group")
            self._hooks.removed()

    def _notice_leadership(self) -> None:
        self._standing = self.core.standing
        self.transport.attend(0 if self.leads else self.core.leader)
        if self.leadership.notice(self.core.term if self.leads else 0, self.leader_seat):
            # Callers ask the next leader, with the same client and sequence.
            error = NotLeader(f"{self.seat} lost the leadership of {self.group}", self.leader_seat)
            self.writes.fail(error, self._clock.monotonic())
            self.reads.fail(error, safe_too=False)
            self.reads.fail_confirmed(error)

    # -- the end ----------------------------------------------------------------------------

    def storage_failed(self, error: BaseException) -> None:
        """The disk did not take, or did not give back, what it should: serve no more."""
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
        self.stopped_because = reason
        error = Stopped(f"{self.seat}: {reason}")
        self.writes.fail(error, self._clock.monotonic())
        self.reads.fail(error, safe_too=True)
        self.answers.fail(error)
        self.history.fail(error.detail)
        self._deadlines.close()
        self.ticker.stop()
        self.upkeep.close(error)
        self.snapshots.close()
        self.transport.close()
        self.leadership.notice(0)

    async def close(self) -> None:
        """Stop cleanly: what is applied is flushed, so the next start has nothing to replay."""
        if not self.stopped_because:
            self._stop("closed")
            await self._stored(self.storage.run(self.stores.state.flush))

    def abandon(self) -> None:
        """Stop without a flush; what was saved is all there is."""
        self._stop("abandoned")

    def status(self) -> dict[str, Any]:
        """Everything `status` and the dashboards show of this replica. Plain values only."""
        return status_of(self)
