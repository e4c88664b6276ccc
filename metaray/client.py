"""The door: an async client and a blocking one, over the same engine (`actors/caller.py`).

    async with metaray.connect() as client:
        await client.put("greeting", b"hello")

What to expect: a call that returns has happened, on a majority's disks. A call that raises
`Rejected` has not happened and says why. A call that raises `NoQuorum` was never accepted. A call
that raises `Unknown` was sent and its deadline passed: it may have happened; every retry before
that was safe, because the group remembers what it has answered. Reads are linearizable unless
`stale=True` is asked for.

Everything concurrent in one process shares calls: a thousand waiting `await`s cost one.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import warnings
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeVar, Unpack, overload
from weakref import WeakSet

from actors.caller import Caller
from actors.calls import LinkedCache, LinkedGroups
from actors.to_its_end import to_its_end
from actors.wanted import Part
from metaray.cached import Cache
from metaray.join import join_cluster
from metaray.loops import ended, give_up, run
from metaray.offsets import BlockingOffsets, Offsets
from metaray.timestamps import BlockingTimestamps, Timestamps
from metaray.transactions import Compare, Transacted, transact
from metaray.watches import Watches
from metaray.watching import Change, Progress
from metaray.where import ADDRESS_VARIABLE, DEFAULT_DATA
from state_machines.errors import Unknown
from state_machines.metadata.kv import DeleteKv, GetKv, KvEntry, KvPage, PutKv, RangeKv
from state_machines.op import Stamp
from state_machines.tables import Tables

if TYPE_CHECKING:
    from jobs.cut import Manifest
    from metaray.exporting import Choice, Refs

__all__ = [
    "ADDRESS_VARIABLE",
    "DEFAULT_DATA",
    "BlockingClient",
    "Change",
    "Client",
    "Part",
    "Progress",
    "connect",
    "connect_sync",
    "join_cluster",
]

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

TIMEOUT_MS = 30_000  #: the deadline of a call that names none

_OPEN: Final[WeakSet[Client]] = WeakSet()
_FOREIGN: Final[list[object]] = []  # of the process that was forked, whose loop nobody may close

Row = TypeVar("Row")


class Command(Protocol[R_co]):
    """Any `@command`: its reply is what `apply` returns."""

    def apply(self, db: Tables, at: Stamp, /) -> R_co:
        """Runs on every replica."""
        ...


class Query(Protocol[R_co]):
    """Any `@query`: its reply is what `read` returns."""

    def read(self, db: Tables, at: Stamp, /) -> R_co:
        """Runs on one replica."""
        ...


class Client(Offsets, Watches, Timestamps):
    """The async client. One event loop; any number of tasks."""

    def __init__(
        self, *, address: str | None = None, data: Path | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._address = address
        self._data = data
        self._timeout_ms = timeout_ms
        self._caller: Caller | None = None
        self._groups: LinkedGroups = LinkedGroups()
        self._process = os.getpid()
        self._word = "is not open: `async with metaray.connect()`, or `await client.open()`"

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    @property
    def where(self) -> tuple[str | None, Path | None]:
        """The address and the data that this client was given: what another would be given."""
        return self._address, self._data

    async def open(self) -> None:
        """Join the cluster and learn its groups; `async with` does this. Nothing happens where it
        is open. A client that was closed may be opened again, in the process that made it."""
        self._check_process()
        await asyncio.to_thread(join_cluster, self._address, self._data)
        if self._caller is not None:
            return
        groups = LinkedGroups()  # the links of a client that was closed are closed
        await groups.refresh()
        if self._caller is None:  # whoever opened it meanwhile may wait for an answer already
            self._groups = groups
            self._caller = Caller(groups, timeout_ms=self._timeout_ms, rng=SystemRandom())
            _OPEN.add(self)

    def _check_process(self) -> None:
        """Neither a loop nor its thread nor Ray goes on in a forked process."""
        if self._process != os.getpid():
            raise RuntimeError(f"the client {self._forked()}")

    def _forked(self) -> str:
        return (
            f"is of process {self._process}, and this is a fork of that: connect anew, in a "
            "process that was spawned (Ray does not outlive a fork)"
        )

    def _leave(self) -> None:
        """This is a fork. What is said here would go over the links of the other process, and
        that would take the answers for its own."""
        _FOREIGN.append((self._caller, self._door))
        self._caller, self._door, self._word = None, None, self._forked()

    @to_its_end
    async def aclose(self) -> None:
        """End what is under way: waiting callers get `Unknown`, or `NoQuorum` if never sent."""
        caller, self._caller = self._caller, None
        groups = self._groups
        await self._close_door()
        if caller is not None:
            self._word = "is closed"
            await caller.close()
            await groups.close()

    @overload
    async def call(
        self,
        operation: Command[R],
        /,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> R: ...
    @overload
    async def call(
        self,
        operation: Query[R],
        /,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> R: ...
    def call(
        self,
        operation: Any,
        /,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> Coroutine[Any, Any, Any]:
        """Carry out one command or query; the reply has the type the operation declares.

        `group` names the Raft group to ask, whatever the slot map says: for operations that belong
        to the groups of every kind, or to look at one of several. A `stale` read is answered by
        any replica, once it has applied `min_revision`. Each group has revisions of its own: for
        a read that goes to several it is Invalid, so name `group`.
        """
        if self._caller is None:
            raise RuntimeError(f"the client {self._word}")
        return self._caller.call(
            operation,
            timeout_ms=timeout_ms,
            stale=stale,
            min_revision=min_revision,
            group=group,
        )

    async def transact(
        self,
        *,
        compare: Iterable[Compare] = (),
        then: Iterable[Any] = (),
        otherwise: Iterable[Any] = (),
    ) -> Transacted:
        """`then` if every compare holds, else `otherwise`: all or nothing (`transactions.py`)."""
        return await transact(self, compare=compare, then=then, otherwise=otherwise)

    def _open(self) -> Caller:
        if self._caller is None:
            raise RuntimeError(f"the client {self._word}")
        return self._caller

    async def _find_cache(self) -> Cache:
        from actors import remote  # brings what replicas are made of: only for who uses a cache

        return LinkedCache(await asyncio.to_thread(remote.node_cache))

    @property
    def overloaded(self) -> int:
        """How many calls were told `Overloaded` since `open`; the client came back by itself."""
        return self._caller.overloaded if self._caller is not None else 0

    def groups(self) -> Sequence[str]:
        """The groups of this cluster, by name."""
        return self._groups.groups()

    def seats(self, group: str) -> Sequence[str]:
        """The seats of a group: the names of its actors."""
        return self._groups.seats(group)

    # The handful of calls everyone makes; everything else goes through `call`.

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        tenant: str = "default",
    ) -> Coroutine[Any, Any, int]:
        """Set a key. Returns its revision; Conflict unless at `expected_revision` (0: absent)."""
        return self.call(
            PutKv(tenant=tenant, key=key, value=value, expected_revision=expected_revision)
        )

    def get(
        self, key: str, *, tenant: str = "default", stale: bool = False
    ) -> Coroutine[Any, Any, KvEntry | None]:
        """A key's value and revision, None when there is none."""
        return self.call(GetKv(tenant=tenant, key=key), stale=stale)

    async def delete(
        self, key: str, *, expected_revision: int | None = None, tenant: str = "default"
    ) -> None:
        """Delete a key. NotFound when there is none."""
        await self.call(DeleteKv(tenant=tenant, key=key, expected_revision=expected_revision))

    async def list_keys(
        self, prefix: str = "", *, limit: int = 1000, after: bytes = b"", tenant: str = "default"
    ) -> KvPage:
        """Entries whose key starts with `prefix`, a page at a time: by group, in each by key;
        `page.next` continues."""
        return await self.call(RangeKv(tenant=tenant, prefix=prefix, limit=limit, after=after))

    async def export(self, out: Path, **choice: Unpack[Choice]) -> Manifest:
        """Write a cut of any groups to a directory: see `metaray.exporting`, also for `choice`."""
        from metaray import exporting  # brings pyarrow: only for who exports

        return await asyncio.to_thread(exporting.export, out, **choice)

    async def export_refs(self, **choice: Unpack[Choice]) -> Refs:
        """The same as Arrow in Ray's object store."""
        from metaray import exporting

        return await asyncio.to_thread(exporting.export_refs, **choice)


class BlockingClient(BlockingOffsets, BlockingTimestamps):
    """The same client for threads: an event loop of its own in the background."""

    def __init__(
        self, *, address: str | None = None, data: Path | None = None, timeout_ms: int = TIMEOUT_MS
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=run, args=(self._loop,), name="metaray client", daemon=True
        )
        self._client = Client(address=address, data=data, timeout_ms=timeout_ms)
        self._entry = threading.Lock()  #: held by who hands work to the loop, and by who ends it

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Join the cluster; `with` does this. Nothing happens where it is open. A client that could
        not be opened is closed, and one that is closed stays so."""
        self._check()
        begins = not self._thread.is_alive()
        try:
            join_cluster(self._client._address, self._client._data)  # Ray wants the main thread
            with self._entry:
                self._check()
                if not self._thread.is_alive():
                    self._thread.start()
            self._wait(self._client.open())
        except BaseException:
            if begins:
                self.close()
            raise

    def close(self) -> None:
        """End the background loop and what is under way: threads that wait for it are told, as by
        `Client.aclose`, or `Unknown` where something else than a group's answer is waited for."""
        if self._client._process != os.getpid():
            return  # all of it is of the process that was forked
        with self._entry:
            if self._thread.is_alive():
                asyncio.run_coroutine_threadsafe(ended(self._client.aclose), self._loop).result()
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._thread.join()
            self._loop.close()

    def __del__(self) -> None:
        """Who lets go of it without `close` leaves neither a thread nor links. In any thread."""
        loop, thread = self._loop, self._thread
        if sys.is_finalizing() or self._client._process != os.getpid() or not thread.is_alive():
            return
        warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
        ending = asyncio.run_coroutine_threadsafe(ended(self._client.aclose), loop)
        ending.add_done_callback(lambda _: loop.call_soon_threadsafe(loop.stop))

    def _check(self) -> None:
        self._client._check_process()
        if self._loop.is_closed():
            raise RuntimeError("the client is closed")

    def _begin(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        self._check()  # before the lock: nobody lets go of that in a fork
        with self._entry:
            self._check()
            if not self._thread.is_alive():
                raise RuntimeError(
                    "the client is not open: `with metaray.connect_sync()`, or `client.open()`"
                )
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    def _wait(self, work: Coroutine[Any, Any, R]) -> R:
        waiting = None
        try:
            waiting = self._begin(work)
            return waiting.result()
        except CancelledError:
            raise Unknown("the client was closed before this ended: it may have happened") from None
        except BaseException as error:  # KeyboardInterrupt, say, raised anywhere in here
            if waiting is None and isinstance(error, RuntimeError):
                work.close()  # it was not taken
            elif waiting is None or not waiting.done():
                self._loop.call_soon_threadsafe(give_up, work)
            raise

    @overload
    def call(
        self,
        operation: Command[R],
        /,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> R: ...
    @overload
    def call(
        self,
        operation: Query[R],
        /,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> R: ...
    def call(
        self,
        operation: Any,
        /,
        *,
        timeout_ms: int = 0,
        stale: bool = False,
        min_revision: int = 0,
        group: str = "",
    ) -> Any:
        """Carry out one command or query; `group` overrides the slot map."""
        return self._wait(
            self._client.call(
                operation,
                timeout_ms=timeout_ms,
                stale=stale,
                min_revision=min_revision,
                group=group,
            )
        )

    def groups(self) -> Sequence[str]:
        """The groups of this cluster, by name."""
        return self._client.groups()

    def put(
        self,
        key: str,
        value: bytes,
        *,
        expected_revision: int | None = None,
        tenant: str = "default",
    ) -> int:
        """Set a key. Returns its revision; Conflict unless at `expected_revision` (0: absent)."""
        return self._wait(
            self._client.put(key, value, expected_revision=expected_revision, tenant=tenant)
        )

    def get(self, key: str, *, tenant: str = "default", stale: bool = False) -> KvEntry | None:
        """A key's value and revision, None when there is none."""
        return self._wait(self._client.get(key, tenant=tenant, stale=stale))

    def delete(
        self, key: str, *, expected_revision: int | None = None, tenant: str = "default"
    ) -> None:
        """Delete a key. NotFound when there is none."""
        self._wait(self._client.delete(key, expected_revision=expected_revision, tenant=tenant))

    def list_keys(
        self, prefix: str = "", *, limit: int = 1000, after: bytes = b"", tenant: str = "default"
    ) -> KvPage:
        """Entries whose key starts with `prefix`, a page at a time: by group, in each by key;
        `page.next` continues."""
        return self._wait(self._client.list_keys(prefix, limit=limit, after=after, tenant=tenant))

    def export(self, out: Path, **choice: Unpack[Choice]) -> Manifest:
        """Write a cut of any groups to a directory: see `metaray.exporting`, also for `choice`."""
        return self._wait(self._client.export(out, **choice))

    def export_refs(self, **choice: Unpack[Choice]) -> Refs:
        """The same as Arrow in Ray's object store."""
        return self._wait(self._client.export_refs(**choice))


def _leave_all() -> None:
    for each in tuple(_OPEN):
        each._leave()


os.register_at_fork(after_in_child=_leave_all)


def connect(
    address: str | None = None, *, data: Path | None = None, timeout_ms: int = TIMEOUT_MS
) -> Client:
    """An async client of the cluster at `address` (a Ray address), or of the local one. A process
    is of one cluster at a time, that of its first client: to open one of another is Invalid."""
    return Client(address=address, data=data, timeout_ms=timeout_ms)


def connect_sync(
    address: str | None = None, *, data: Path | None = None, timeout_ms: int = TIMEOUT_MS
) -> BlockingClient:
    """A blocking client of the cluster at `address` (a Ray address), or of the local one; of one in
    a process, as with `connect`."""
    return BlockingClient(address=address, data=data, timeout_ms=timeout_ms)
