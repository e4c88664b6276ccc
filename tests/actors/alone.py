"""One replica in virtual time, between a test and its disk: nothing reaches either by itself.

    replica = Alone.of(founders=(1, 2, 3))
    replica.hear(RequestVote(...))          # a message arrives
    replica.said                            # all that it has sent
    replica.disk.stuck = True               # jobs wait until `release`, or `step`

What is under test is the shell: the core, the stores and the machine are the product's own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Self, TypeVar, cast

from actors.clock import Clock
from actors.config import RaftSettings
from actors.replica import Replica
from actors.storage_thread import Haste, On, StorageThread
from actors.transport import Transport
from state_machines.machine import Machine
from state_machines.raft import Configuration, Message, Raft, RaftConfig, SnapshotMeta
from state_machines.wire import api_pb2 as api
from storage.stores import memory_stores
from tests.actors.virtual_time import VirtualClock, settled
from tests.machine.alone import EMPTY

T = TypeVar("T")


class Disk:
    """A storage thread without the thread."""

    def __init__(self) -> None:
        self.stuck = False
        self._jobs: deque[Callable[[], Callable[[], None]]] = deque()

    def hand(
        self,
        job: Callable[[], T],
        done: Callable[[T], None],
        failed: Callable[[BaseException], None],
        *,
        haste: Haste = Haste.NONE,
        of_state: bool = True,
        on: On = On.STORAGE,
    ) -> None:
        """See `StorageThread`. This disk knows no haste, and its one thread does everything."""
        if haste is Haste.SPARE:
            return

        def work() -> Callable[[], None]:
            try:
                result = job()
            except Exception as error:  # noqa: BLE001 - as the thread hands it over
                return partial(failed, error)
            return partial(done, result)

        self._jobs.append(work)
        asyncio.get_running_loop().call_soon(self._go_on)

    @property
    def queued(self) -> int:
        """How many jobs wait for the disk."""
        return len(self._jobs)

    def release(self) -> None:
        """The disk works again."""
        self.stuck = False
        self._go_on()

    def step(self) -> Callable[[], None]:
        """Do one job. The loop hears of it when what this returns is called."""
        return self._jobs.popleft()()

    def _go_on(self) -> None:
        while self._jobs and not self.stuck:
            self.step()()


@dataclass
class Said:
    """A transport that only takes note."""

    messages: list[Message] = field(default_factory=list)

    def send(self, messages: Iterable[Message]) -> None:
        self.messages.extend(messages)

    def seat_of(self, peer: int) -> str:
        return f"g-0/{peer}"

    def meet(self, members: Iterable[int]) -> None:
        """Everybody is known."""

    def attend(self, leader: int) -> None:
        """Nobody dies unseen here."""

    def close(self) -> None:
        """What a closed transport would lose is noted too."""


@dataclass
class Heard:
    """What the shell was told."""

    news: list[str] = field(default_factory=list)

    def leadership(self, term: int, leads: bool) -> None:
        self.news.append(f"{'leads' if leads else 'led'} {term}")

    def stopped(self, reason: str) -> None:
        self.news.append(f"stopped: {reason}")

    def removed(self) -> None:
        self.news.append("removed")


class Alone:
    """A replica with id 1."""

    def __init__(
        self,
        founders: tuple[int, ...],
        clock: Clock | None = None,
        settings: RaftSettings | None = None,
    ) -> None:
        founding = Configuration(voters=founders)
        start = SnapshotMeta(0, 0, founding)
        self.disk, self.transport, self.hooks = Disk(), Said(), Heard()
        self.stores = memory_stores(founding=founding)
        self.machine = Machine("metadata", "metadata-0", self.stores.state)
        config = RaftConfig(pre_vote=False, check_quorum=False)
        self.replica = Replica(
            cluster="c",
            group="metadata-0",
            seat="metadata-0/1",
            core=Raft(id=1, config=config, rng=Random(1), snapshot=start),
            founding=start,
            stores=self.stores,
            machine=self.machine,
            transport=cast(Transport, self.transport),
            storage=cast(StorageThread, self.disk),
            settings=settings or RaftSettings(),
            clock=clock or VirtualClock(),
            rng=Random(2),
            hooks=self.hooks,
        )

    @classmethod
    async def leading(
        cls, clock: Clock | None = None, settings: RaftSettings | None = None
    ) -> Self:
        """The only voter, and leader in term 1."""
        made = cls((1,), clock, settings)
        made.replica.campaign()
        await settled()
        assert made.replica.leads
        return made

    @property
    def said(self) -> list[Message]:
        return self.transport.messages

    async def hear(self, *messages: Message) -> None:
        """Messages arrive, and what can follow does."""
        self.replica.receive(messages)
        await settled()

    def proposes(
        self, *commands: api.Command, client: int = 0, sequence: int = 1, timeout_ms: int = 0
    ) -> asyncio.Task[bytes]:
        """A client's proposal; without commands it registers."""
        register = api.Command(tag="client.register", body=EMPTY)
        proposal = api.Proposal(client=client, sequence=sequence, commands=commands or [register])
        request = api.ProposeRequest(group="metadata-0", proposal=proposal, timeout_ms=timeout_ms)
        return asyncio.ensure_future(self.replica.propose(request))

    def asks(self, **fields: Any) -> asyncio.Task[bytes]:
        """A client's query."""
        request = api.QueryRequest(group="metadata-0", **fields)
        return asyncio.ensure_future(self.replica.query(request))


def code(answer: asyncio.Task[bytes]) -> int:
    """What was answered; fails when nothing was yet."""
    assert answer.done(), "nothing is answered yet"
    return api.Reply.FromString(answer.result()).code
