"""The life of a seat: find a replica's directory, or wait for one; host the replica.

A placement group reserves a place for each replica and Ray keeps an actor alive in it, but neither
knows where a disk is. After a node is lost the actor may start on a node that never held the group.
So identity lives in the directory (law 1), and the actor is only a *seat*:

    vacant    no directory of this group here: holds no vote and says so
    founding  a directory was made for a group that does not exist yet; silent
    active    a replica lives here and takes part
    stopped   the replica refused its directory or met a fault; it says why

A group is founded in three rounds that may be repeated from any point (`bootstrap.py`): every seat
makes a directory and tells its new replica id; every seat writes down the founding configuration;
only when all have done so are they activated. A seat that turns up vacant later is given a new id
by the controller and joins as a learner; it never speaks as the replica that was lost.

A learner's seat (`seat_names.py`) begins vacant and is filled in the same way; what it hosts is
never promoted. Such seats come and go while the others stay, so the seats are told of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

from actors.clock import Clock
from actors.committed import Committed
from actors.config import LEARNERS_MAX
from actors.export import Exports
from actors.pending import refusal, refused
from actors.replica import Replica
from actors.requests import decoded
from actors.seat_names import group_of, is_learner, learners_among
from actors.seat_spec import SeatSpec
from actors.storage_thread import StorageThread
from actors.to_its_end import to_its_end
from actors.transport import ActorTransport, Calls
from state_machines.errors import Conflict, Invalid, Stopped
from state_machines.machine import Machine
from state_machines.raft import Raft
from state_machines.raft.confchange import Change
from state_machines.raft.messages import Configuration, SnapshotMeta
from state_machines.wire import api_pb2 as api
from storage.errors import DirectoryInUse, StorageError
from storage.home import Held, Home
from storage.identity import Found
from storage.stores import Stores

log = logging.getLogger(__name__)


class Seat:
    """A plain class; `remote.py` makes it an actor. All methods run on the actor's event loop."""

    def __init__(
        self,
        spec: SeatSpec,
        *,
        home: Home,
        calls: Calls,
        clock: Clock,
        rng: Random,
        leadership: Callable[[int, bool], None],
        storage_thread: Callable[[str], StorageThread] = StorageThread,
    ) -> None:
        self.spec = spec
        self.replica: Replica | None = None
        self._home = home
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._leadership = leadership
        self._storage_thread = storage_thread
        self._directory: Held | None = None
        self._transport: ActorTransport | None = None
        self._storage: StorageThread | None = None
        self._stores: Stores | None = None
        self._exports: Exports | None = None
        self._committed: Committed | None = None
        self._fault = ""
        self._seats = spec.seats  # as they are now
        self._changing = asyncio.Lock()  # what is asked twice at once is done once

    def __repr__(self) -> str:
        return repr(self.replica) if self.replica else f"{self.spec.seat} {self.status_word}"

    @property
    def status_word(self) -> str:
        """vacant, founding, active or stopped."""
        if self._fault or (self.replica is not None and self.replica.stopped_because):
            return "stopped"
        if self._directory is None:
            return "vacant"
        return str(self._directory.identity.status)

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Look for a directory of this group on this node, and resume its replica."""
        try:
            found = await asyncio.to_thread(self._home.find, self.spec.group)
            for each in found:
                if each.identity.status != "retired" and self._directory is None:
                    self._directory = await self._take(each)
            if self._directory is not None and self._directory.identity.status == "active":
                self._resume(await self._opened())
        except (StorageError, OSError) as error:
            self._fault = f"{type(error).__name__}: {error}"
            log.error("%s: %s", self.spec.seat, self._fault)

    async def _take(self, found: Found) -> Held | None:
        """Open a directory, unless another seat of this node was quicker."""
        try:
            return await asyncio.to_thread(self._home.open, found)
        except DirectoryInUse as error:
            log.info("%s: %s", self.spec.seat, error)
            return None

    @to_its_end
    async def reserve(self, cluster: str) -> int:
        """Make a directory with a new replica id here, or tell the id of one that waits already."""
        async with self._changing:
            # failpoint: member.before_reserve
            self._check_cluster(cluster)
            if self._directory is None:
                self._directory = await asyncio.to_thread(
                    self._home.create, cluster, self.spec.group
                )
        return self._directory.identity.replica

    @to_its_end
    async def found(self, configuration: Configuration) -> None:
        """Write down the founding configuration. Raises Conflict when the replica is active."""
        directory = self._must_have_directory()
        if self.spec.learner:
            raise Invalid(f"voters: {self.spec.seat} is a learner's seat, it never votes")
        if directory.identity.status == "active":
            raise Conflict(f"{self.spec.seat}: replica {directory.identity.replica:x} is active")
        if directory.identity.replica not in configuration.voters:
            raise Invalid(f"voters: {self.spec.seat} is not among them")
        # failpoint: member.before_founding
        await asyncio.to_thread(directory.update, founding=configuration)

    @to_its_end
    async def activate(self) -> None:
        """Let the replica take part. Harmless when it does already."""
        async with self._changing:
            directory = self._must_have_directory()
            if directory.identity.status == "active":
                return
            stores = await self._opened()  # from "active" on, a log that is gone is missed
            # failpoint: member.before_activation
            await asyncio.to_thread(directory.update, status="active")
            # failpoint: member.after_activation
            self._resume(stores)
            if self._fault:
                raise Stopped(f"{self.spec.seat}: {self._fault}")

    async def _opened(self) -> Stores:
        """What the directory holds, opened once."""
        directory, settings = self._must_have_directory(), self.spec.settings
        if self._fault:
            raise Stopped(f"{self.spec.seat}: {self._fault}")
        if self._storage is None:
            self._storage = self._storage_thread(self.spec.seat)
        if self._stores is None:
            try:
                self._stores = await self._storage.run(
                    lambda: self._home.stores(
                        directory,
                        flush_bytes=settings.flush_bytes,
                        journal_bytes=settings.journal_bytes,
                        map_bytes=settings.map_bytes,
                    )
                )
            except StorageError as error:  # this process does not try it again (law 17)
                self._fault = f"{type(error).__name__}: {error}"
                raise
            self._stores.state.hot.limit_bytes = settings.hot_bytes
        return self._stores

    def _resume(self, stores: Stores) -> None:
        """Start the replica over what its directory holds. Whatever prevents it stops the seat
        (law 8): a replica that is half there would answer, and never tick."""
        try:
            self.replica = self._started(stores)
        except Exception as error:
            self._fault = f"{type(error).__name__}: {error}"
            log.exception("%s: its replica does not start", self.spec.seat)

    def _started(self, stores: Stores) -> Replica:
        directory, storage = self._must_have_directory(), self._storage
        assert storage is not None, "its stores were opened on it"
        settings, who, loaded = self.spec.settings, directory.identity, stores.loaded
        founding = SnapshotMeta(0, 0, who.founding)
        core = Raft(
            id=who.replica,
            config=settings.core(),
            rng=self._rng,
            snapshot=loaded.snapshot if loaded.snapshot.index else founding,
            entries=loaded.entries,
            hard_state=loaded.hard_state,
            applied=stores.state.applied.index,
        )
        transport = self._transport = ActorTransport(
            cluster=who.cluster,
            group=self.spec.group,
            replica=who.replica,
            seat=self.spec.seat,
            seats=self._seats,
            calls=self._calls,
            received=lambda messages: replica.receive(messages),
            died=lambda peer: replica.peer_died(peer),
        )

        replica = Replica(
            cluster=who.cluster,
            group=self.spec.group,
            seat=self.spec.seat,
            core=core,
            founding=founding,
            stores=stores,
            machine=Machine(self.spec.kind, self.spec.group, stores.state),
            transport=transport,
            storage=storage,
            settings=settings,
            clock=self._clock,
            rng=self._rng,
            hooks=self,
        )
        self._exports = Exports(replica, cluster=who.cluster, clock=self._clock)
        self._committed = Committed(replica)
        # failpoint: member.before_start
        replica.start()
        log.info("%s: replica %x, boot %d", self.spec.seat, who.replica, who.boot)
        return replica

    async def close(self) -> None:
        """Stop cleanly: what is applied is flushed. The directory can be opened again at once."""
        async with self._changing:
            if self.replica is not None:
                await self.replica.close()
            await self._let_go("closed")

    async def abandon(self) -> None:
        """Let go of everything without a flush, as a process that is killed does."""
        async with self._changing:
            await self._let_go("abandoned")

    async def _let_go(self, fault: str) -> None:
        """Of what is open, once: a storage thread that is closed answers nobody any more. Whoever
        asks the seat later finds it stopped, with this fault, and opens nothing."""
        self._fault = self._fault or fault
        exports, storage, stores = self._exports, self._storage, self._stores
        directory, self._directory = self._directory, None
        self._exports = self._storage = self._stores = None
        if self.replica is not None:
            self.replica.abandon()
        try:
            if exports is not None:
                await asyncio.to_thread(exports.close_all)
            if storage is not None:
                try:
                    if stores is not None:
                        await storage.run(stores.close)
                finally:
                    await asyncio.to_thread(storage.close)
        finally:
            if directory is not None:
                directory.close()

    @to_its_end
    async def retire(self, replica: int, upto: tuple[int, int]) -> None:
        """Let go for ever of a replica that its group has removed; the seat is vacant then.

        The replica itself may not have heard of it. On a voter's seat it may know of no later term
        than `upto`, the leader's who says so and the index of its last entry, and have no entry
        after it: it would be a member by what that leader does not know. Raises Conflict, also if
        another replica sits here.
        """
        async with self._changing:
            if self._directory is None:
                return
            if (sits := self._directory.identity.replica) != replica:
                raise Conflict(f"replica: {self.spec.seat} has {sits:x}, not {replica:x}")
            if not self.spec.learner:
                core = self.replica.core if self.replica is not None else None
                last = (0, 0) if core is None else (core.last_term, core.last_index)
                if core is None or core.term > upto[0] or last > upto:
                    raise Conflict(f"{self.spec.seat} has a voter, which only its group can remove")
            if self.replica is not None:
                self.replica.abandon()
            self.removed()
            await self._let_go("retired")
            self.replica = self._transport = None
            self._fault = ""

    def leadership(self, term: int, leads: bool) -> None:
        """The replica's hook; the shell decides what a leader's node hosts."""
        log.info("%s: %s term %d", self.spec.seat, "leads" if leads else "no longer leads", term)
        self._leadership(term, leads)

    def stopped(self, reason: str) -> None:
        """The replica's hook: it serves no more."""
        log.error("%s: stopped: %s", self.spec.seat, reason)

    def removed(self) -> None:
        """The replica's hook: its directory is never opened again."""
        log.warning("%s: its replica was removed from the group", self.spec.seat)
        if self._directory is not None:
            # failpoint: member.before_retirement
            self._directory.update(status="retired")
            # failpoint: member.after_retirement

    # -- what peers call --------------------------------------------------------------------

    async def deliver(self, envelope: bytes) -> bytes:
        """Raft messages in, Raft messages out (`transport.py`)."""
        if self._transport is None or self.replica is None or self.replica.stopped_because:
            return b""  # a seat without a replica is silent, as a lost message is
        return await self._transport.deliver(envelope)

    def take(self, envelope: bytes) -> None:
        """The same by a link: what is to be said to it goes by a link of ours. Raises Invalid."""
        if self._transport is not None and self.replica is not None:
            self._transport.take(envelope)

    async def chunk(self, chunk: bytes) -> bool:
        """One chunk of a snapshot."""
        return self.replica is not None and await self.replica.take_chunk(chunk)

    async def attend(self, replica: int) -> bool:
        """Wait while that replica leads here."""
        if self.replica is None or self.replica.core.id != replica:
            return False
        return await self.replica.leadership.attend()

    # -- what clients call ------------------------------------------------------------------

    async def propose(self, request: bytes) -> bytes:
        """An encoded `api.ProposeRequest`; returns an encoded `api.Reply`."""
        return await self.begin_proposal(request)

    async def query(self, request: bytes) -> bytes:
        """An encoded `api.QueryRequest`; returns an encoded `api.Reply`."""
        return await self.begin_query(request)

    def begin_proposal(self, request: bytes) -> asyncio.Future[bytes]:
        """`propose` by a link, which needs no task for it."""
        try:
            replica, message = self._addressed(request, api.ProposeRequest)
        except (Invalid, Stopped) as error:
            return refused(error)
        return replica.propose(message)

    def begin_query(self, request: bytes) -> asyncio.Future[bytes]:
        """`query` by a link."""
        try:
            replica, message = self._addressed(request, api.QueryRequest)
        except (Invalid, Stopped) as error:
            return refused(error)
        return replica.query(message)

    async def watch(self, request: bytes) -> bytes:
        """An encoded `api.WatchRequest`; returns an encoded `api.Reply`."""
        try:
            replica, message = self._addressed(request, api.WatchRequest)
        except (Invalid, Stopped) as error:
            return refusal(error).SerializeToString()
        return await replica.watch(message)

    def _addressed(self, request: bytes, kind: Any) -> tuple[Replica, Any]:
        if self.replica is None:
            raise Stopped(f"{self.spec.seat} is {self.status_word}")
        group, seat = self.spec.group, self.spec.seat
        return self.replica, decoded(request, kind, group=group, seat=seat)

    # -- what operators and the controller call ---------------------------------------------

    def hello(self, replica: int = 0, at: str = "") -> dict[str, Any]:
        """Who sits here. A replica that asks says who it is itself, and where."""
        if replica and self._transport is not None:
            self._transport.greeted(replica, at)
        who = self._directory.identity if self._directory is not None else None
        return {
            "seat": self.spec.seat,
            "status": self.status_word,
            "replica": who.replica if who is not None else 0,
            "cluster": who.cluster if who is not None else "",
            "boot": who.boot if who is not None else 0,
            "founding": who.founding if who is not None else None,
            "fault": self._fault or (self.replica.stopped_because if self.replica else ""),
        }

    def status(self) -> dict[str, Any]:
        """`hello`, and all that the replica says of itself."""
        shown = {
            **self.hello(),
            "group": self.spec.group,
            "group_seats": self._seats,
            "role": self.status_word,
        }
        if self.replica is not None:
            shown.update(self.replica.status())
        return shown

    def introduce(self, learners: tuple[str, ...]) -> None:
        """These are the group's learners' seats now; those of voters stay as they are. Invalid."""
        for each in learners:
            if group_of(each) != self.spec.group or not is_learner(each):
                raise Invalid(f"learners: {each[:80]!r} is no learner's seat of {self.spec.group}")
        if len(learners) > LEARNERS_MAX:
            raise Invalid(f"learners: {len(learners)}, the limit is {LEARNERS_MAX}")
        voters = [each for each in self.spec.seats if not is_learner(each)]
        self._seats = (*voters, *learners_among(learners))
        if self._transport is not None:
            self._transport.know(self._seats)

    def change(self, change: Change) -> int:
        """Change the group's membership; only at its leader. Invalid for a learner's promotion."""
        replica = self._must_have_replica()
        for each in change.add_voters:
            if is_learner(where := replica.transport.seat_of(each)):
                raise Invalid(f"add_voters: {each:x} sits at {where}, and never votes")
        # failpoint: member.before_change
        return replica.change(change)

    def campaign(self) -> None:
        """Stand for election now: a group that was just started need not wait for a timeout."""
        self._must_have_replica().campaign()

    def transfer(self, target: int) -> None:
        """Hand the leadership to another voter; only at the leader."""
        self._must_have_replica().transfer(target)

    async def export_open(self, tables: tuple[str, ...]) -> dict[str, Any]:
        """Take a cut (`export.py`)."""
        self._must_have_replica()
        assert self._exports is not None, "a replica has its exports"
        return await self._exports.open(tables)

    async def export_aside(self, cut: str) -> str:
        """Put a cut aside for an `Exporter` of this node. Returns the directory of the copy."""
        self._must_have_replica()
        assert self._exports is not None, "a replica has its exports"
        return await self._exports.aside(cut)

    async def export_page(
        self, cut: str, table: str, after: bytes, rows: int
    ) -> tuple[bytes, bytes]:
        """One page of a cut as Arrow IPC bytes, and the token of the next (empty: the end)."""
        self._must_have_replica()
        assert self._exports is not None, "a replica has its exports"
        return await self._exports.page(cut, table, after, rows)

    def export_close(self, cut: str) -> None:
        """Let a cut go."""
        if self._exports is not None:
            self._exports.close(cut)

    async def committed(
        self, exporter: str, first: int, bytes_max: int, timeout_ms: int, exported: int
    ) -> dict[str, Any]:
        """A page of committed entries for the operation history (`committed.py`)."""
        self._must_have_replica()
        assert self._committed is not None, "a replica has what it committed"
        return await self._committed.page(exporter, first, bytes_max, timeout_ms, exported)

    def hold_log(self, exporter: str, exported: int) -> int:
        """An exporter that reads at another seat has everything up to this entry. How far the group
        has agreed, as this replica knows it."""
        self._must_have_replica()
        assert self._committed is not None, "a replica has what it committed"
        return self._committed.hold(exporter, exported)

    def _must_have_directory(self) -> Held:
        if self._directory is None:
            raise Stopped(f"{self.spec.seat} is vacant{': ' + self._fault if self._fault else ''}")
        return self._directory

    def _must_have_replica(self) -> Replica:
        if self.replica is None:
            raise Stopped(f"{self.spec.seat} is {self.status_word}")
        return self.replica

    def _check_cluster(self, cluster: str) -> None:
        if self._fault:
            raise Stopped(f"{self.spec.seat}: {self._fault}")
        if self._directory is not None and self._directory.identity.cluster != cluster:
            raise Conflict(
                f"{self.spec.seat}: its directory belongs to cluster "
                f"{self._directory.identity.cluster!r}, not {cluster!r}"
            )
