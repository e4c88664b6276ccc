"""What the clients of a victim do, each of it with an effect that shows how often it was done.

    append     a list in a key: compare-and-set of the value with one more id at its end
    register   a broker registers again: each time raises its epoch
    commit     an offset commit: each time raises the row's count
    will       open a session, set a will, lose the connection: fires one outbox row with its id
    bulk       large values at once, on demand: the maps grow, the layer is full before its time
    silence    nothing from the brokers, on demand, until the controller has marked one offline

Every operation has an id that says in which life it was made, and the id is in its command, so it
can be found in the log. Clients know nothing of the lives before but what they read.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from random import Random
from typing import Any, Final

from actors.caller import Caller
from state_machines.errors import MetarayError
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.node import Address, ListNodes, RegisterNode
from state_machines.mqtt.session import CloseSession, OpenSession
from state_machines.mqtt.will import SetWill
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from tests.actors.wires import eventually
from tests.crash.victim_journal import Journal

BULK: Final = 14  #: values written at once,
BULK_BYTES: Final = 60_000  #: of so many bytes each: more than a map's first size, together
GROUPS: Final = ("metadata-0", "offset-0", "mqtt-0")
KINDS: Final = ("append", "register", "commit", "open")  #: what every writer can always do again
LIST_IDS: Final = 40  #: ids in one list; then the writer begins another key
PADDING: Final = b"." * 1_500  #: so that maps grow, layers fill and snapshots take several chunks
WRITERS: Final = 2  #: of each kind
PAUSE_SECONDS: Final = 0.02  #: at most, between two operations of one writer
SILENCE_SECONDS: Final = 60.0  #: until a silent broker is offline; its time is 100 ms here
WILL_DELAY_S: Final = 2  #: at most; in a victim's time that is 100 ms


class Clients:
    """Tasks that write until they are stopped."""

    def __init__(
        self, caller: Caller, journal: Journal, life: int, seed: int, serving: Callable[[], None]
    ) -> None:
        """`serving` is called at the first acknowledgement."""
        self._caller = caller
        self._journal = journal
        self._life = life
        self._rng = Random(seed)
        self._serving = serving
        self._began = time.monotonic()
        self._numbers = itertools.count(1)
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._brokers_speak = asyncio.Event()
        self._brokers_speak.set()
        self.acked: Counter[str] = Counter()  #: acknowledged operations of this life, by kind

    def start(self) -> None:
        """Begin all of them."""
        for number in range(WRITERS):
            for writer in (self._append, self._register, self._commit, self._will):
                self._tasks.append(asyncio.create_task(writer(number)))

    async def stop(self) -> None:
        """Let each finish what it has begun. Raises what one of them has met."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    @property
    def failed(self) -> BaseException | None:
        """What ended a writer that was not to end."""
        ended = (each.exception() for each in self._tasks if each.done())
        return next((error for error in ended if error is not None), None)

    async def bulk(self) -> None:
        """Write more at once than a map holds at first."""
        await asyncio.gather(
            *(
                self._do("metadata-0", "bulk", f"bulk/{number}", _fill(f"bulk/{number}"))
                for number in range(BULK)
            )
        )

    async def silence(self) -> None:
        """Keep the brokers silent, once one was heard, until one of them is offline."""
        await eventually(lambda: self.acked["register"], SILENCE_SECONDS)
        self._brokers_speak.clear()
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                while not await self._offline():  # noqa: ASYNC110 - the service is what is asked
                    await asyncio.sleep(PAUSE_SECONDS)
        finally:
            self._brokers_speak.set()

    async def _offline(self) -> bool:
        try:
            page = await self._caller.call(ListNodes())
        except MetarayError:  # as every operation here may be refused
            return False
        return any(not each.online for each in page.nodes)

    async def _append(self, number: int) -> None:
        for list_number in itertools.count():
            key = f"list/{number}/{self._life}/{list_number}" if list_number else f"list/{number}"
            ids, revision = await self._read(key)
            while len(ids) < LIST_IDS:
                if self._stopping:
                    return
                done = await self._do("metadata-0", "append", key, _put(key, ids, revision))
                if done is None or self._rng.random() < 0.2:
                    ids, revision = await self._read(key)  # done or not, or one before it late
                else:
                    ids, revision = [*ids, done[0]], done[1]

    async def _register(self, number: int) -> None:
        node = f"broker-{number}"
        while not self._stopping:
            await self._brokers_speak.wait()
            await self._do(
                "metadata-0",
                "register",
                node,
                lambda name: RegisterNode(node_id=node, addresses=(Address("id", name),)),
            )

    async def _commit(self, number: int) -> None:
        group = f"consumers-{number}"

        def commit(name: str) -> CommitOffsets:
            one = OffsetCommit(group=group, topic="t", partition=0, offset=7, metadata=name)
            return CommitOffsets.of([one])

        while not self._stopping:
            await self._do("offset-0", "commit", group, commit)

    async def _will(self, number: int) -> None:
        while not self._stopping:
            client = f"client-{number}-{self._life}-{next(self._numbers)}"
            opened = await self._do("mqtt-0", "open", client, _open(client))
            if opened is None:
                continue
            epoch, delay_s = opened[1].epoch, self._rng.randrange(WILL_DELAY_S + 1)
            if await self._do("mqtt-0", "will", client, _set_will(client, epoch, delay_s)):
                await self._do("mqtt-0", "close", client, _close(client, epoch))

    async def _read(self, key: str) -> tuple[list[str], int]:
        """Ids and revision of a list, by a linearizable read; and once more from any replica."""
        read = f"{self._life}.{next(self._numbers)}"
        self._journal("ask", read, key)
        entry = await self._caller.call(GetKv(key=key))
        ids = [] if entry is None else [each.decode() for each in entry.value.split(b",")[:-1]]
        revision = 0 if entry is None else entry.revision
        self._journal("saw", read, ids)
        late = await self._caller.call(GetKv(key=key), stale=True, min_revision=revision)
        assert (late.revision if late is not None else 0) >= revision, f"{late} after {entry}"
        return ids, revision

    async def _do(
        self, group: str, what: str, key: str, make: Callable[[str], Any]
    ) -> tuple[str, Any] | None:
        """One operation, written down: its id and reply; None when it was refused or is unknown."""
        await asyncio.sleep(self._rng.random() * PAUSE_SECONDS)
        name = f"{self._life}.{next(self._numbers)}"
        self._journal("do", name, group, what, key)
        try:
            reply = await self._caller.call(make(name))
        except MetarayError as error:
            self._journal("no", name, f"{type(error).__name__}: {error}")
            return None
        self._journal("ok", name, _plain(reply))
        if not self.acked:
            self._journal("serve", round(time.monotonic() - self._began, 3))
            self._serving()
        self.acked[what] += 1
        return name, reply


def _plain(reply: Any) -> Any:
    return asdict(reply) if is_dataclass(reply) and not isinstance(reply, type) else reply


def _put(key: str, ids: list[str], revision: int) -> Callable[[str], PutKv]:
    def make(name: str) -> PutKv:
        value = b"".join(each.encode() + b"," for each in [*ids, name])
        return PutKv(key=key, value=value + PADDING, expected_revision=revision)

    return make


def _fill(key: str) -> Callable[[str], PutKv]:
    return lambda name: PutKv(key=key, value=name.encode() + b"," + bytes(BULK_BYTES))


def _open(client: str) -> Callable[[str], OpenSession]:
    return lambda name: OpenSession(client_id=client, broker=name, expiry_s=5)


def _set_will(client: str, epoch: int, delay_s: int) -> Callable[[str], SetWill]:
    return lambda name: SetWill(
        client_id=client, epoch=epoch, topic="t", payload=name.encode(), delay_s=delay_s
    )


def _close(client: str, epoch: int) -> Callable[[str], CloseSession]:
    return lambda _: CloseSession(client_id=client, epoch=epoch)
