"""Where the plugin takes hold of amqtt's broker: every use of what amqtt does not call public.

amqtt tells a plugin what has happened once the client has been told, and waits for no answer. A
plugin that must have a session in metaray *before* CONNACK, and a subscription *before* SUBACK,
cannot live on that. So `Seams` replaces methods of the one broker object its plugin belongs to:

- `_initialize_client_session` only reads CONNECT. amqtt's own also looks the session up and deletes
  or overwrites it, for a client nobody has authenticated yet.
- `_handle_client_session` has the client authenticated, then its session opened in metaray, then
  lets amqtt go on: CONNACK and all that follows. A refusal is a CONNACK with its own code and
  leaves no trace. When amqtt is done the session is closed in metaray.
- `_authenticate` says yes: it has been asked by then.
- `add_subscription` and `_handle_unsubscription` write before SUBACK and UNSUBACK say so.
- `_publish_retained_messages_for_subscription` acts for new subscriptions alone, as MQTT-3.3.1-6
  has it. amqtt would also send a returning client what matches *any* client's filters, and stumble
  over a filter that is added meanwhile.
- `_handle_message_delivery` drops a message that its client may not publish. MQTT 3.1.1 has no way
  to say so but to end the connection; it is acknowledged, as amqtt does with its own filters.
- `_del_all_subscriptions` takes those of one session, not all of its client's, and does not look
  through every filter of the broker for them.
- `_client_message_loop` begins with the retained messages of what the client was subscribed to
  without asking. Those subscriptions are made before CONNACK.

Every connection has an amqtt `Session` of its own. A client that returns to its session takes over
what its last one still held (messages queued for it, flows in flight), so that no two connections
share state. A session that began later has none of that, though its client is the same.

Written against amqtt 0.12.1; a broker that lacks one of the methods is refused: PluginInitError.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.broker import AMQTT_MAGIC_VALUE_RET_SUBSCRIBED as REFUSED
from amqtt.broker import Broker, Server
from amqtt.errors import AMQTTError, MQTTError, NoDataError, PluginInitError
from amqtt.mqtt.connack import NOT_AUTHORIZED, SERVER_UNAVAILABLE, ConnackPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler, UnSubscription
from amqtt.session import IncomingApplicationMessage, Session

from metaray.integrations.amqtt.connect import read_connect
from metaray.integrations.amqtt.connection import Connection, Keep, Rewrite, close_stream, gone
from metaray.integrations.amqtt.refusal import Refused
from metaray.integrations.amqtt.store import Filter, Opened, Will
from metaray.integrations.amqtt.subscribed import Subscribed
from state_machines import names
from state_machines.errors import Invalid
from state_machines.mqtt import matching
from state_machines.mqtt.subscription import TopicFilter

CONNECT_SECONDS: Final = (
    30.0  #: a peer that connects and sends no CONNECT is let go after this long
)
CREATED: Final = "metaray.created_ms"  #: attribute of an amqtt session: since when metaray has it
SEND_RETAINED: Final = 0  #: of a subscription: always (MQTT 5, 3.8.3.1)
SEND_RETAINED_IF_NEW: Final = 1

log = logging.getLogger(__name__)


class Keeper(Protocol):
    """What the seams ask of the plugin. False means: not kept, so do not tell the client it is."""

    refusing: str  #: why nobody may connect; empty: they may
    retained: Keep
    rewritten: Rewrite

    async def opening(self, connection: Connection, will: Will | None) -> Opened:
        """Open the client's session, or raise Refused."""
        ...

    def closed(self, connection: Connection) -> None:
        """The connection is gone; it had an epoch and no other connection has superseded it."""
        ...

    async def subscribed(self, connection: Connection, topic_filter: str, qos: int) -> bool:
        """Keep a subscription of a persistent session."""
        ...

    async def unsubscribed(self, connection: Connection, topic_filters: Sequence[str]) -> bool:
        """Forget subscriptions of a persistent session."""
        ...

    async def may_publish(self, connection: Connection, topic: str, qos: int, retain: bool) -> bool:
        """Whether the client may."""
        ...

    async def may_subscribe(self, connection: Connection, topic_filter: str, qos: int) -> bool:
        """Whether the client may."""
        ...

    def automatic(self, connection: Connection) -> Sequence[TopicFilter]:
        """What the client is subscribed to without asking."""
        ...

    async def refresh(self, topic_filter: str) -> None:
        """Bring the broker's retained messages that match up to date."""
        ...


class Seams:
    """The broker's side of the plugin: who is connected, and what the broker holds in memory."""

    def __init__(self, broker: Broker, keeper: Keeper) -> None:
        self.live: dict[str, Connection] = {}
        self.serving: set[Connection] = set()  #: the live ones, and those whose CONNECT is answered
        self._connecting: set[WriterAdapter] = set()  # whose CONNECT is yet to come
        self._stops = False  # nobody waits for a CONNECT any more
        self._broker = broker
        self._keeper = keeper
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._subscribed = Subscribed(broker)
        replace = {
            "_initialize_client_session": self._initialize,
            "_handle_client_session": self._serve,
            "_authenticate": _authenticated,
            "add_subscription": self._subscribe,
            "_handle_unsubscription": self._unsubscribe,
            "_del_all_subscriptions": self._subscribed.forget_session,
            "_publish_retained_messages_for_subscription": self._publish_retained,
            "_handle_message_delivery": self._deliver,
            "_client_message_loop": self._loop,
        }
        missing = [name for name in replace if not callable(getattr(broker, name, None))]
        if missing:
            raise PluginInitError(
                f"this amqtt is not one the plugin knows: no {', '.join(missing)}"
            )
        self._amqtt: dict[str, Callable[..., Coroutine[Any, Any, Any]]] = {
            name: getattr(broker, name) for name in replace
        }
        for name, method in replace.items():
            setattr(broker, name, method)

    # -- the broker's memory -----------------------------------------------------------------

    def restore_absent(self, client_id: str, created_ms: int, filters: Sequence[Filter]) -> None:
        """Have the session of a client that is not connected."""
        sessions = self._broker._sessions
        if client_id not in sessions:
            handler, session = self._broker.create_offline_session(client_id)
            sessions[client_id] = (session, handler)
        session, _ = sessions[client_id]
        session.clean_session = False
        session.attributes[CREATED] = created_ms
        self._subscribed.restore(session, filters)

    def absent(self) -> list[Session]:
        """The sessions of clients that are not connected."""
        return [
            session
            for client_id, (session, _) in self._broker.sessions.items()
            if client_id not in self.live
        ]

    def drop(self, session: Session) -> None:
        """Let go of a session that is not ours any more, unless its client is coming back."""
        client_id: str = session.client_id
        known, _ = self._broker.sessions.get(client_id, (None, None))
        if known is session and client_id not in self.live and not self.turn(client_id).locked():
            self._subscribed.forget(client_id)
            del self._broker._sessions[client_id]
            session.clear_queues()

    async def end_connecting(self) -> None:
        """The broker stops: amqtt does not know of those, but since Python 3.12 waits for them."""
        self._stops = True
        await asyncio.gather(*map(close_stream, self._connecting))

    def gone_elsewhere(self, connection: Connection) -> None:
        """Another broker has the session of a connection: no more messages wait for it here."""
        if self.live.get(connection.client_id) is connection:
            self._subscribed.forget(connection.client_id)

    def _adopt(self, connection: Connection, opened: Opened) -> None:
        """Give the new connection what metaray says, and what the client's last one still held."""
        session = connection.session
        session.parent = int(opened.present)
        session.is_anonymous = session.is_anonymous and not connection.persistent
        session.attributes[CREATED] = opened.created_ms
        known, _ = self._broker.sessions.get(connection.client_id, (None, None))
        if (
            known is not None
            and opened.present
            and known.attributes.get(CREATED) == opened.created_ms
        ):
            session.inflight_out = known.inflight_out
            session.inflight_in = known.inflight_in
            session.retained_messages = known.retained_messages
            session.delivered_message_queue = known.delivered_message_queue
            _keep_only(session.retained_messages, opened.filters)
        self._subscribed.restore(session, opened.filters)

    # -- connections -------------------------------------------------------------------------

    async def _initialize(
        self, reader: ReaderAdapter, writer: WriterAdapter, address: str, port: int
    ) -> tuple[BrokerProtocolHandler, Session]:
        if self._stops:
            await close_stream(writer)
            raise AMQTTError("the broker stops")
        self._connecting.add(writer)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                handler, session = await read_connect(reader, writer, self._broker.plugins_manager)
        except (AMQTTError, MQTTError, NoDataError, OSError, TimeoutError) as error:
            log.warning("%s:%s did not send a valid CONNECT: %r", address, port, error)
            await close_stream(writer)
            raise AMQTTError(f"no valid CONNECT: {error!r}") from error
        finally:
            self._connecting.discard(writer)
        if session.keep_alive > 0:
            session.keep_alive += self._broker.config.get("timeout-disconnect-delay", 0) or 0
        return handler, session

    async def _serve(
        self,
        reader: ReaderAdapter,
        writer: WriterAdapter,
        session: Session,
        handler: BrokerProtocolHandler,
        server: Server,
        listener: str,
    ) -> None:
        will = _take_will(session)
        keeper = self._keeper
        connection = Connection(session, handler, writer, keeper.retained, keeper.rewritten)
        self.serving.add(connection)
        try:
            await self._serve_client(connection, will, reader, writer, server, listener)
        except BaseException:
            await close_stream(writer)  # amqtt does not: the client would wait, and nobody count it
            raise
        finally:
            self.serving.discard(connection)
            connection.ended.set()

    async def _serve_client(
        self,
        connection: Connection,
        will: Will | None,
        reader: ReaderAdapter,
        writer: WriterAdapter,
        server: Server,
        listener: str,
    ) -> None:
        session, handler = connection.session, connection.handler
        try:
            config = self._broker.listeners_config[listener]
            if not await self._amqtt["_authenticate"](session, config):
                raise Refused(NOT_AUTHORIZED, "not authenticated")
            await self._open(connection, will, lambda: gone(reader, writer))
        except Refused as refusal:
            # Unavailability is told of once, by the plugin, not for each client that tries.
            level = logging.INFO if refusal.code == SERVER_UNAVAILABLE else logging.WARNING
            log.log(level, "client %r is refused: %s", connection.client_id, refusal.reason)
            with contextlib.suppress(OSError):  # it did not wait for the answer
                await ConnackPacket.build(0, refusal.code).to_stream(writer)
            await close_stream(writer)
            return
        try:
            await self._subscribe_unasked(connection)
            if self._keeper.refusing:  # it stops: amqtt has ended those it knew by then
                connection.graceful = True
                await close_stream(writer)
                return
            await self._amqtt["_handle_client_session"](
                reader, writer, session, handler, server, listener
            )
        finally:
            await self._let_go(connection)

    def turn(self, client_id: str) -> asyncio.Lock:
        """Held while a client's session is opened: of two that name one, one after the other."""
        return self._turns.setdefault(client_id, asyncio.Lock())

    async def _open(
        self, connection: Connection, will: Will | None, left: Callable[[], bool]
    ) -> None:
        async with self.turn(connection.client_id):
            self._check_wanted(left)
            opened = await self._keeper.opening(connection, will)
            connection.epoch = opened.epoch
            before = self.live.get(connection.client_id)
            if before is not None:
                before.superseded = True
                await before.end("the client has connected again")
                await before.ended.wait()
            try:
                self._check_wanted(left)
            except Refused:
                # Nobody was told of it. But opening has made the will of a lasting session void, so
                # who is gone leaves the new one; not who is refused as the broker stops.
                connection.graceful = bool(self._keeper.refusing) or not connection.persistent
                self._keeper.closed(connection)
                raise
            self._adopt(connection, opened)
            self.live[connection.client_id] = connection

    def _check_wanted(self, left: Callable[[], bool]) -> None:
        """Refuse a client that did not wait for its turn, or its answer: what it asked for would
        be done to the session of a connection that came later. And all, while the broker stops."""
        if left():
            raise Refused(SERVER_UNAVAILABLE, "it is gone")
        if self._keeper.refusing:
            raise Refused(SERVER_UNAVAILABLE, self._keeper.refusing)

    async def _let_go(self, connection: Connection) -> None:
        if connection.session.transitions.state == "connected":
            # amqtt stops listening to a client that publishes to an invalid topic, but stays
            # connected to it.
            await connection.end("it broke the protocol")
            connection.session.transitions.disconnect()
        if self.live.get(connection.client_id) is connection:
            del self.live[connection.client_id]
        if not connection.superseded:
            self._keeper.closed(connection)

    async def _loop(self, session: Session, handler: BrokerProtocolHandler) -> None:
        connection = self._connection(session)
        if connection is not None:
            for subscription in connection.unasked:
                connection.granted.add(subscription[0])
                await self._publish_retained(subscription, session)
            if connection.incomplete:
                await connection.end("what it is to be subscribed to was not kept")
        await self._amqtt["_client_message_loop"](session, handler)

    async def _deliver(
        self,
        session: Session,
        handler: BrokerProtocolHandler,
        waiter: asyncio.Future[IncomingApplicationMessage | None],
    ) -> bool:
        message, connection = waiter.result(), self._connection(session)
        if connection is not None and message is not None and not invalid(message.topic):
            retain = bool(message.publish_packet and message.publish_packet.retain_flag)
            if not await self._keeper.may_publish(
                connection, message.topic, message.qos or 0, retain
            ):
                log.info("client %r may not publish to %r", session.client_id, message.topic[:200])
                return True
        delivered: bool = await self._amqtt["_handle_message_delivery"](session, handler, waiter)
        return delivered

    # -- subscriptions -----------------------------------------------------------------------

    async def _subscribe_unasked(self, connection: Connection) -> None:
        """Subscribe the client to what the rules say. One that it may not have is left out."""
        for each in self._keeper.automatic(connection):
            if not _possible(each.filter) or not await self._keeper.may_subscribe(
                connection, each.filter, each.qos
            ):
                log.info("client %r may not have %r", connection.client_id, each.filter[:200])
                continue
            before = self._subscribed.entry(each.filter, connection.session)
            granted = await self._subscribe((each.filter, each.qos), connection.session)
            connection.granted.discard(each.filter)
            if granted == REFUSED:
                connection.incomplete = True
            elif each.retain_handling == SEND_RETAINED or (
                each.retain_handling == SEND_RETAINED_IF_NEW and before is None
            ):
                connection.unasked.append((each.filter, granted))

    def _connection(self, session: Session) -> Connection | None:
        connection = self.live.get(session.client_id)
        return connection if connection is not None and connection.session is session else None

    async def _subscribe(self, subscription: tuple[str, int], session: Session) -> int:
        topic_filter, qos = subscription
        if not _possible(topic_filter):
            log.info("client %r cannot have %r", session.client_id, topic_filter[:200])
            return int(REFUSED)
        connection = self._connection(session)
        if connection is not None and not await self._keeper.may_subscribe(
            connection, topic_filter, qos
        ):
            log.info("client %r may not subscribe to %r", session.client_id, topic_filter[:200])
            return int(REFUSED)
        before = self._subscribed.entry(topic_filter, session)
        granted: int = await self._amqtt["add_subscription"](subscription, session)
        if granted == REFUSED:
            return granted
        self._subscribed.was_set(topic_filter, session.client_id)
        if connection is None:
            return granted
        if connection.persistent and not await self._keeper.subscribed(
            connection, topic_filter, granted
        ):
            self._subscribed.set(topic_filter, connection.client_id, before)
            return int(REFUSED)
        # MQTT-3.8.4-3: the same filter again replaces the subscription; amqtt keeps the old QoS.
        self._subscribed.set(topic_filter, connection.client_id, (session, granted))
        connection.granted.add(topic_filter)
        return granted

    async def _unsubscribe(
        self,
        session: Session,
        handler: BrokerProtocolHandler,
        waiter: asyncio.Future[UnSubscription],
    ) -> None:
        connection = self._connection(session)
        topic_filters = list(waiter.result().topics)
        if (
            connection is not None
            and connection.persistent
            and not await self._keeper.unsubscribed(connection, topic_filters)
        ):
            # UNSUBACK cannot say no. A client that gets none asks again when it has reconnected.
            await connection.end("its subscriptions could not be deleted")
            return
        for each in topic_filters:
            self._subscribed.set(each, session.client_id, None)
        await self._amqtt["_handle_unsubscription"](session, handler, waiter)

    async def _publish_retained(self, subscription: tuple[str, int], session: Session) -> None:
        topic_filter, _ = subscription
        connection = self._connection(session)
        if connection is not None:
            if topic_filter not in connection.granted:
                return
            connection.granted.discard(topic_filter)
            await self._keeper.refresh(topic_filter)
        await self._amqtt["_publish_retained_messages_for_subscription"](subscription, session)


def _keep_only(queue: asyncio.Queue[Any], filters: Sequence[Filter]) -> None:
    """Drop messages that match no filter: the client has unsubscribed at another broker."""
    for _ in range(queue.qsize()):
        message = queue.get_nowait()
        if any(matching.matches(each.topic_filter, message.topic) for each in filters):
            queue.put_nowait(message)


def _possible(topic_filter: str) -> bool:
    """Whether a client can be subscribed to it: amqtt has no shared subscriptions, and takes such a
    filter for one that nothing ever matches."""
    try:
        names.topic_filter(topic_filter)
    except Invalid:
        return False
    return not names.shared(topic_filter)


def invalid(topic: str | None) -> bool:
    """Whether amqtt itself ends who publishes to this topic."""
    return not topic or "#" in topic or "+" in topic or topic.startswith("$")


async def _authenticated(_session: Session, _listener: object) -> bool:
    return True


def _take_will(session: Session) -> Will | None:
    """The client's will; amqtt is left none to publish."""
    if not session.will_flag:
        return None
    session.will_flag = False
    return Will(
        topic=session.will_topic,
        payload=bytes(session.will_message or b""),
        qos=session.will_qos or 0,
        retain=bool(session.will_retain),
    )
