"""One client's network connection, and the order in which its packets count.

amqtt starts one task a packet. That is fine while a packet is handled without waiting; a retained
PUBLISH however waits until metaray has it, and must be neither overtaken by the packets behind it
nor forgotten when the client leaves. So a `Connection` replaces four methods of amqtt's protocol
handler, on this one instance, and has two more see to what topics stand for:

- `handle_publish`: a retained message is written before the publish goes on, so it is in metaray
  before the client is told PUBACK (QoS 1) or PUBREC (QoS 2). Messages of one connection go on in
  the order they came in; writes to different topics overlap, those to one topic do not.
- `handle_disconnect`: notes whether the client said goodbye, for its will depends on it, and lets
  what it sent before be handled first.
- `handle_read_timeout`: ends a connection that has been silent for 1.5 times its keep alive
  (MQTT-3.1.2-24). amqtt itself waits for ever, and then no will would ever fire.
- `stop` closes the stream before it waits for the reader. amqtt cancels the reader and waits;
  Python 3.11's `wait_for` may swallow that when a packet comes at the same moment, and then it
  would wait for ever. The end of the stream is not swallowed.
- `handle_subscribe`, `handle_unsubscribe` and `handle_publish` rewrite topics first of all, so that
  nothing behind them knows another name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from amqtt.adapters import ReaderAdapter, WriterAdapter
from amqtt.mqtt.disconnect import DisconnectPacket
from amqtt.mqtt.protocol.broker_handler import BrokerProtocolHandler
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from amqtt.session import Session

from state_machines.mqtt.rewrite import PUBLISH, SUBSCRIBE

PENDING_MAX: Final = (
    1_000  #: publishes of one connection that wait for metaray; beyond, it is ended
)
DRAIN_SECONDS: Final = 5.0  #: what a client sent before it left is waited for this long
CLOSE_SECONDS: Final = 2.0  #: a peer that does not read cannot hold up the end of its connection

Keep = Callable[["Connection", PublishPacket], Awaitable[bool]]
"""Writes a retained message. False: it could not be kept, so it must not be acknowledged."""

Rewrite = Callable[[str, str], str]
"""What a client's topic (to PUBLISH) or filter (to SUBSCRIBE) stands for."""

log = logging.getLogger(__name__)


class Connection:
    """A client, connected or about to be. `epoch` is 0 until metaray has opened the session."""

    def __init__(
        self,
        session: Session,
        handler: BrokerProtocolHandler,
        writer: WriterAdapter,
        keep: Keep,
        rewrite: Rewrite,
    ) -> None:
        self.session = session
        self.handler = handler
        self.client_id: str = session.client_id
        self.persistent = not session.clean_session
        self.epoch = 0
        self.graceful = False  #: the client sent DISCONNECT: its will is void
        self.ending = False
        self.superseded = False  #: another connection of this broker holds the session by now
        self.ended = asyncio.Event()  #: amqtt has let go of the connection
        self.granted: set[str] = set()  #: filters of the SUBSCRIBE that is being answered
        self.unasked: list[tuple[str, int]] = []  #: subscribed to by rule; its retained are to come
        self.incomplete = False  #: some of that was not kept
        self._writer = writer
        self._keep = keep
        self._rewrite = rewrite
        self._pending: set[asyncio.Task[None]] = set()
        self._last: asyncio.Task[None] | None = None
        self._topics: dict[str, asyncio.Task[bool]] = {}
        self._flows: set[asyncio.Task[None]] = set()
        self._publish: Callable[[PublishPacket], Coroutine[Any, Any, None]] = handler.handle_publish
        self._disconnect: Callable[[DisconnectPacket | None], Awaitable[None]] = (
            handler.handle_disconnect
        )
        self._stop: Callable[[], Awaitable[None]] = handler.stop
        self._subscribe: Callable[[SubscribePacket], Coroutine[Any, Any, None]] = (
            handler.handle_subscribe
        )
        self._unsubscribe: Callable[[UnsubscribePacket], Coroutine[Any, Any, None]] = (
            handler.handle_unsubscribe
        )
        handler.stop = self._on_stop
        handler.handle_publish = self._on_publish
        handler.handle_subscribe = self._on_subscribe
        handler.handle_unsubscribe = self._on_unsubscribe
        handler.handle_disconnect = self._on_disconnect
        handler.handle_read_timeout = self._on_silence
        session.keep_alive += (session.keep_alive + 1) // 2

    def __repr__(self) -> str:
        return f"Connection({self.client_id!r}, epoch {self.epoch})"

    async def end(self, reason: str) -> None:
        """Close the connection from our side, as a lost one: the client's will stays armed."""
        if self.ending:
            return
        self.ending = True
        log.info("closing the connection of client %r: %s", self.client_id, reason)
        await self._disconnect(None)
        await self.handler.stop()

    # -- the handlers ------------------------------------------------------------------------
    #
    # Plain functions that return an awaitable: amqtt calls them in the order packets come in, but
    # makes the result a task, and cancels that task if the client is gone before it began to run.

    def _on_publish(self, packet: PublishPacket) -> Coroutine[Any, Any, None]:
        if packet.topic_name:
            packet.topic_name = self._rewrite(PUBLISH, packet.topic_name)
        if not packet.retain_flag and not self._pending:
            return self._publish(packet)
        work = asyncio.create_task(self._in_turn(packet, self._last))
        self._last = work
        self._pending.add(work)
        work.add_done_callback(self._pending.discard)
        return _joined(work)

    def _on_subscribe(self, packet: SubscribePacket) -> Coroutine[Any, Any, None]:
        if packet.payload is not None:
            packet.payload.topics = [
                (self._rewrite(SUBSCRIBE, each), qos) for each, qos in packet.payload.topics
            ]
        return self._subscribe(packet)

    def _on_unsubscribe(self, packet: UnsubscribePacket) -> Coroutine[Any, Any, None]:
        if packet.payload is not None:
            packet.payload.topics = [
                self._rewrite(SUBSCRIBE, each) for each in packet.payload.topics
            ]
        return self._unsubscribe(packet)

    def _on_disconnect(self, packet: DisconnectPacket | None) -> Coroutine[Any, Any, None]:
        if packet is not None and not self.ending:
            self.graceful = True
        return self._after_pending(packet)

    async def _on_stop(self) -> None:
        await close_stream(self._writer)
        await self._stop()

    def _on_silence(self) -> None:
        self._start(self.end(f"silent for {self.session.keep_alive} s"))

    async def _in_turn(self, packet: PublishPacket, before: asyncio.Task[None] | None) -> None:
        kept = True
        if len(self._pending) > PENDING_MAX:
            kept = False
            log.warning("client %r: more than %d publishes wait", self.client_id, PENDING_MAX)
        elif packet.retain_flag and packet.topic_name:
            kept = await self._keep_in_turn(packet)
        if before is not None:
            await asyncio.wait((before,))
        if not kept:
            # MQTT 3.1.1 has no other way to refuse a PUBLISH. Not acknowledged, it is sent again.
            await self.end(f"its retained message for {packet.topic_name[:200]!r} was not kept")
        if not self.ending:
            self._start(self._publish(packet))

    async def _keep_in_turn(self, packet: PublishPacket) -> bool:
        topic: str = packet.topic_name
        before = self._topics.get(topic)
        work = asyncio.create_task(self._keep_after(packet, before))
        self._topics[topic] = work
        try:
            return await work
        finally:
            if self._topics.get(topic) is work:
                del self._topics[topic]

    async def _keep_after(self, packet: PublishPacket, before: asyncio.Task[bool] | None) -> bool:
        if before is not None:
            await asyncio.wait((before,))
        return await self._keep(self, packet)

    async def _after_pending(self, packet: DisconnectPacket | None) -> None:
        try:
            if self._pending and not self.ending:
                await asyncio.wait(tuple(self._pending), timeout=DRAIN_SECONDS)
        except asyncio.CancelledError:
            if packet is not None:
                raise  # the reader has seen the end of the stream: it calls again with None
            # amqtt stops its reader, and waits for it to pass this point.
        await self._disconnect(packet)

    def _start(self, flow: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(flow)
        self._flows.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._flows.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("client %r: %r", self.client_id, error)


async def close_stream(writer: WriterAdapter) -> None:
    """Close a client's stream in order; drop it if its peer is gone, or does not read."""
    try:
        async with asyncio.timeout(CLOSE_SECONDS):
            await writer.close()
    except (OSError, TimeoutError) as error:
        log.debug("a stream is dropped: %r", error)
        stream = getattr(writer, "_writer", None)  # a websocket closes itself, within its limit
        if isinstance(stream, asyncio.StreamWriter):
            stream.transport.abort()


def gone(reader: ReaderAdapter, writer: WriterAdapter) -> bool:
    """Whether a client has left, and left nothing to be read."""
    socket = getattr(writer, "_protocol", None)
    if socket is not None:  # a websocket
        return socket.close_code is not None
    source, stream = getattr(reader, "_reader", None), getattr(writer, "_writer", None)
    return (isinstance(source, asyncio.StreamReader) and source.at_eof()) or (
        isinstance(stream, asyncio.StreamWriter) and stream.is_closing()
    )


async def _joined(work: asyncio.Task[None]) -> None:
    """Wait for the work; whoever cancels this wait does not cancel the work."""
    await asyncio.wait((work,))
