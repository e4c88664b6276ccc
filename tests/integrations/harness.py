"""What the tests stand on: the real machines in this process, and brokers on a loop of their own.

`Service` answers like a cluster does, through the real client engine: one replica a group, without
log or network. Its clock moves when a test says so, and so do its timers. `House` runs real amqtt
brokers on an event loop in a thread; paho's clients run in threads of their own.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from random import Random
from typing import Any, TypeVar

from amqtt.broker import Broker

from actors.caller import Caller
from actors.clock import SystemClock
from actors.config import RaftSettings
from actors.duties.duty import Context
from actors.duties.sessions import Sessions
from metaray.demo.mqtt_member import Address, Member
from metaray.integrations.amqtt.__main__ import configuration
from metaray.integrations.amqtt.plugin import MetarayPlugin
from state_machines.errors import Rejected
from state_machines.machine import Machine
from state_machines.metadata.node import GetNode
from state_machines.metadata.slot_map import AssignSlots
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import GetSession
from state_machines.mqtt.will import PendingOutbox
from state_machines.raft.messages import Entry
from state_machines.slots import SLOTS, Own, SlotRange
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue

R = TypeVar("R")

DEADLINE_S = 10.0
WILL_DELAY_S = 20  #: by the service's clock, which stands unless a test moves it
MQTT = ("mqtt-0", "mqtt-1")
PATIENCE_S = 5.0  #: of brokers with the service, unless a test has them wait for nothing


class Service:
    """`Groups` for the client's engine: the state machines of four groups, and a clock.

    `mqtt-1` has nothing unless a test says that it has (`House.split`).
    """

    def __init__(self) -> None:
        self.now_ms = 1_700_000_000_000
        self.down = False  #: nothing answers
        self.away: set[str] = set()  #: groups that do not answer
        self.leaderless: set[str] = set()  #: groups that answer only what may be stale
        self.held: asyncio.Event | None = None  #: proposals wait until it is set
        self.waiting = 0  #: how many do
        self._lock = threading.Lock()
        self._index = 0
        self._machines = {
            group: Machine(group.partition("-")[0], group, MemoryKeyValue())
            for group in ("metadata-0", *MQTT, "offset-0")
        }

    def seats(self, group: str) -> Sequence[str]:
        return (f"{group}/0",) if group in self._machines else ()

    def groups(self) -> Sequence[str]:
        return sorted(self._machines)

    def learners(self, group: str) -> Sequence[str]:
        return ()

    async def refresh(self) -> None:
        return None

    def _reach(self, group: str, *, stale: bool = False) -> None:
        if self.down or group in self.away or (group in self.leaderless and not stale):
            raise ConnectionError("it does not answer")

    async def propose(self, seat: str, request: bytes) -> bytes:
        if self.held is not None:
            self.waiting += 1
            await self.held.wait()
        asked = api.ProposeRequest.FromString(request)
        self._reach(asked.group)
        with self._lock:
            machine = self._machines[asked.group]
            try:
                machine.admit(asked.proposal)
            except Rejected as error:
                reply = api.Reply(code=error.code, detail=error.detail)
                return reply.SerializeToString()
            self._index += 1
            batch = api.Batch(now_ms=self.now_ms, proposals=[asked.proposal])
            entry = Entry(term=1, index=self._index, data=batch.SerializeToString())
            return machine.apply(entry)[0].reply

    async def query(self, seat: str, request: bytes) -> bytes:
        asked = api.QueryRequest.FromString(request)
        self._reach(asked.group, stale=asked.stale)
        with self._lock:
            machine, queries = self._machines[asked.group], list(asked.queries)
            reply = machine.query(queries, self.now_ms, columns=asked.columns)
        return reply.SerializeToString()

    async def watch(self, seat: str, request: bytes) -> bytes:
        raise ConnectionError("a broker watches nothing")


class InProcess(Caller):
    """The client's engine on `Service`, under the name that the plugin closes it by."""

    async def aclose(self) -> None:
        await self.close()


class House:
    """The service, its brokers, and their clients. Blocking, for tests; all closed at the end."""

    def __init__(self) -> None:
        self.service = Service()
        self.patience_s = PATIENCE_S  #: of brokers that are started from now on
        self.changed = threading.Condition()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokers")
        self._thread.start()
        self._caller = self.run(self._new_caller())
        self.brokers: dict[str, Broker] = {}
        self.clients: list[Member] = []

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Await it on the brokers' loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    async def _new_caller(self) -> InProcess:
        return self.caller()

    def caller(self) -> InProcess:
        """A client of the service, with the brokers' patience."""
        return InProcess(self.service, timeout_ms=int(self.patience_s * 1000), rng=Random(1))

    def call(self, operation: Any, group: str = "") -> Any:
        """One command or query, as anyone may ask it."""
        return self.run(self._caller.call(operation, group=group))

    def later(self, seconds: float) -> None:
        """Let time pass for the service, and its timers fire."""
        self.service.now_ms += int(seconds * 1000)
        for group in MQTT:
            self.call(Pulse(controller_epoch=1, limit=100), group)

    def close_held(self) -> int:
        """Have the controller look for sessions of silent brokers; how many it closed."""
        anyone: Any = self.service
        context = Context(1, self._caller, anyone, anyone, RaftSettings(), SystemClock())
        return self.run(Sessions().step(context))

    def split(self) -> None:
        """Have each of the two `mqtt` groups own half of the slots."""
        half = SLOTS // 2
        ranges = (SlotRange(0, half - 1, MQTT[0]), SlotRange(half, SLOTS - 1, MQTT[1]))
        version = self.call(AssignSlots(kind="mqtt", expected_version=0, ranges=ranges))
        for each in ranges:
            own = Own(controller_epoch=1, group_kind="mqtt", version=version, ranges=(each,))
            self.call(own, each.group)

    def hold(self) -> None:
        """Let commands wait on their way to the service."""
        self.service.waiting = 0
        self.service.held = asyncio.Event()

    def release(self) -> None:
        """Let them go on."""
        held, self.service.held = self.service.held, None
        assert held is not None
        self._loop.call_soon_threadsafe(held.set)

    def until(self, condition: Callable[[], object]) -> None:
        """Wait for what only asking can tell: every turn asks the brokers' loop, or the service."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, "it never came true"
            self.run(_one_turn())

    def until_closed(self, client_id: str) -> None:
        """A broker closes a session after the connection is gone, which a client cannot see."""

        def closed() -> bool:
            session = self.call(GetSession(client_id=client_id))
            return session is None or not session.connected

        self.until(closed)

    def until_outbox_is_empty(self) -> None:
        """Every fired will has been published and acknowledged."""
        self.until(lambda: not any(self.call(PendingOutbox(), each).waiting for each in MQTT))

    # -- brokers -----------------------------------------------------------------------------

    def start(self, name: str, port: int = 0, *, loaded: bool = True, **settings: Any) -> Address:
        """Start a broker, also again, and say where it listens, once it has what it had."""
        address = self.starting(name, port, **settings).result(DEADLINE_S)
        if loaded:
            self.until(self.plugin(name).ready.is_set)
        return address

    def starting(self, name: str, port: int = 0, **settings: Any) -> Future[Address]:
        """Begin to start a broker."""
        return asyncio.run_coroutine_threadsafe(self._start(name, port, settings), self._loop)

    async def _start(self, name: str, port: int, settings: dict[str, Any]) -> Address:
        config = configuration(
            host="127.0.0.1",
            port=port,
            **{
                "session_expiry_s": 3_600,
                "name": name,
                "caller": self.caller,
                "timeout_s": self.patience_s,
                "will_delay_s": WILL_DELAY_S,
                "heartbeat_s": 0.1,
                "outbox_s": 0.02,
                "check_s": 0.05,
                "restart_grace_s": 0,
                "page": 3,
                **settings,
            },
        )
        self.brokers[name] = broker = Broker(config)
        await broker.start()
        port = broker._servers["default"].instance.sockets[0].getsockname()[1]
        return Address(name=name, port=port)

    def stop(self, name: str) -> None:
        """Stop a broker in order."""
        self.stopping(name).result(DEADLINE_S)

    def stopping(self, name: str) -> Future[None]:
        """Begin to stop a broker in order."""
        return asyncio.run_coroutine_threadsafe(self.brokers.pop(name).shutdown(), self._loop)

    def abandon(self, name: str) -> None:
        """End a broker as kill -9 does, as far as the service can tell: it hears no more of it."""
        plugin = self.plugin(name)
        plugin._store = None
        self.stop(name)

    def beat(self, name: str) -> None:
        """Wait until a broker has sent a heartbeat at the service's present time."""

        def heard() -> bool:
            node = self.call(GetNode(node_id=name))
            return node is not None and node.heartbeat_ms == self.service.now_ms

        self.until(heard)

    def plugin(self, name: str) -> MetarayPlugin:
        """The plugin of a running broker."""
        plugin = self.brokers[name].plugins_manager.get_plugin("MetarayPlugin")
        assert isinstance(plugin, MetarayPlugin)
        return plugin

    # -- clients -----------------------------------------------------------------------------

    def client(self, name: str, broker: Address, **options: Any) -> Client:
        """A connected client."""
        client = self.stranger(name, broker, **options)
        client.connect()
        client.until(lambda: client.connects or client.refusals, "CONNACK")
        assert client.connects, f"{name} was refused"
        return client

    def stranger(self, name: str, broker: Address, **options: Any) -> Client:
        """A client that has not connected yet."""
        client = Client(name, broker, self.changed, **options)
        self.clients.append(client)
        return client

    def close(self) -> None:
        for client in self.clients:
            client.leave()
        for client in self.clients:
            client.join()
        self.service.down = False
        self.service.away = self.service.leaderless = set()
        for name in tuple(self.brokers):
            self.stop(name)
        self.run(self._caller.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _one_turn() -> None:
    await asyncio.sleep(0.005)


class Client(Member):
    """A paho client whose calls wait for what the broker answers."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.reasons: list[str] = []  #: of refusals

    def _on_connect(self, _c: Any, _u: Any, flags: Any, reason: Any, _p: Any) -> None:
        if reason.is_failure:
            self.reasons.append(str(reason))
        super()._on_connect(_c, _u, flags, reason, _p)

    @property
    def session_present(self) -> bool:
        return self.connects[-1]

    def until(self, condition: Callable[[], object], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE_S), f"{self.name}: no {what}"

    def until_lost(self) -> None:
        self.until(lambda: self.lost, "end of the connection")

    def until_received(self, *messages: tuple[str, bytes]) -> None:
        wanted = set(messages)
        self.until(lambda: wanted <= {(m.topic, m.payload) for m in self.received}, f"{wanted}")

    def payloads(self, topic: str) -> list[bytes]:
        with self._changed:
            return [each.payload for each in self.received if each.topic == topic]

    def until_count(self, topic: str, count: int) -> None:
        self.until(lambda: len(self.payloads(topic)) >= count, f"{count} messages on {topic}")

    def subscribe(self, *topic_filters: str, qos: int = 1) -> list[bool]:
        before = len(self.subscribed)
        self.client.subscribe([(each, qos) for each in topic_filters])
        self.until(lambda: len(self.subscribed) == before + len(topic_filters), "SUBACK")
        return self.subscribed[before:]

    def unsubscribe(self, *topic_filters: str) -> None:
        before = self.unsubscribed
        self.client.unsubscribe(list(topic_filters))
        self.until(lambda: self.unsubscribed > before, "UNSUBACK")

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> None:
        before = self.acknowledged
        self.client.publish(topic, payload, qos=qos, retain=retain)
        self.until(lambda: self.acknowledged > before, "PUBACK")
