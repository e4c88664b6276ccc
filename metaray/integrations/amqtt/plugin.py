"""The plugin: what amqtt's broker keeps in memory, kept in metaray as well.

What a client can count on, once the broker has answered:

- CONNACK: its session is open in metaray under a new epoch, which fences whoever had it before; its
  will is in metaray. `session present` says what metaray knows, whichever broker knew the session.
- SUBACK, UNSUBACK: the subscription of a persistent session is written, or deleted.
- PUBACK, PUBREC of a retained message: it is written.

A session whose client asked for a clean one ends with its connection; its subscriptions are not
written. Messages that wait for a client are not metaray's: amqtt keeps those, in memory.

**Wills.** MQTT 3.1.1 has no will delay, so the broker's operator sets one: `will_delay_s`, or by
client id in `will_delays`. amqtt is left no will to publish. A client that goes without DISCONNECT
has its session closed with the will armed; the controller fires it when its delay, or the session,
has ended, unless the client is back by then; a broker, any, takes it from the outbox, publishes it
and acknowledges it. A broker that dies between the two, or does not reach metaray again before its
claim has run out, leaves it to be published again: that is the one way a will comes twice. A client
that connects again in time, wherever, goes on with its session: no will; without a delay there is
no such time. A client whose lasting session was opened, and who is refused all the same, because
metaray fails to answer, or is gone by then, counts as lost: the will that it had is void, and its
new one comes unless it is back in time.

A will is published after it fired, up to `outbox_s` later or when a broker is there again, so it
may come after what its client, back by then, has said; but what that has retained since stays.
amqtt sends it to everyone at the will's own QoS, also to who was granted a lower one.

Sessions that a broker left open, because it was killed or metaray did not answer in time when it
stopped, are closed by the next process of its name, unless their clients are back within
`restart_grace_s`, or by the controller once it has marked it offline.

**A start** does not wait until all sessions are read: clients connect as soon as the broker has
joined the fleet and read its rules, and what it had is loaded beside (`recovery.py`). Messages for
an absent client whose session is not restored yet are not queued, but wills wait until all is
restored that can be. Nor are messages queued once its session has moved to another broker: what
waits here then is dropped, as it is when the session has ended.

**Not offered:** shared subscriptions. amqtt has none, so `$share/...` is refused (SUBACK 0x80).

**Expiries.** A session outlives its connection for `session_expiry_s`, or for the tenant's setting
`session_expiry_max_s` if that is shorter; a retained message stays for `message_expiry_max_s`. Both
are read when the broker starts and every `rules_s` seconds.

**Rules.** Users, ACL rules, the blacklist, auto-subscribe and rewrite rules of the tenant are at
work here as far as they are switched on: `security.py`.

**When metaray does not answer**, nobody can connect (CONNACK 3, server unavailable), nothing is
granted or acknowledged that it does not have, and clients that are connected stay connected. What
the broker owes it then, sessions to close, is made good when it answers again. While one of several
`mqtt` groups is away, those suffer whose session or user it has; with `rewrite` or `auto_subscribe`
no broker starts without the group of the tenant's rules, and with `blacklist` see `security.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from amqtt.broker import BrokerContext
from amqtt.contexts import Action
from amqtt.mqtt.connack import IDENTIFIER_REJECTED, NOT_AUTHORIZED, SERVER_UNAVAILABLE
from amqtt.mqtt.publish import PublishPacket
from amqtt.plugins.base import BaseAuthPlugin
from amqtt.session import Session

from metaray.integrations.amqtt.config import Config
from metaray.integrations.amqtt.connection import Connection
from metaray.integrations.amqtt.loops import RETRY_SECONDS, Loops, answered
from metaray.integrations.amqtt.memory import RetainedMemory
from metaray.integrations.amqtt.recovery import Recovery
from metaray.integrations.amqtt.refusal import Refused
from metaray.integrations.amqtt.seams import Seams, invalid
from metaray.integrations.amqtt.security import Security
from metaray.integrations.amqtt.store import Filter, Opened, Store, Will
from metaray.integrations.amqtt.wills import Wills
from state_machines.errors import (
    Fenced,
    Invalid,
    MetarayError,
    NotFound,
    Rejected,
    Unavailable,
    Unknown,
)
from state_machines.mqtt.acl import PUBLISH, SUBSCRIBE
from state_machines.mqtt.subscription import TopicFilter
from state_machines.mqtt.will import LastWill, check_will

STARTS: Final = "the broker starts"
ABSENT: Final = 200  #: sessions of clients that are not here, of which one look asks who has them

log = logging.getLogger(__name__)


class MetarayPlugin(BaseAuthPlugin):  # type: ignore[misc]  # amqtt is not typed for us
    """Keeps sessions, subscriptions, retained messages and wills of an amqtt broker in metaray."""

    Config = Config

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self.settings: Config = context.config
        self.security = Security(self.settings)
        self._memory = RetainedMemory(context.retained_messages)
        self.seams = Seams(context._broker_instance, self)
        self.refusing = STARTS  #: why no client may connect; empty: they may
        self.ready = asyncio.Event()  #: what the broker had is loaded; clients may connect before
        self.fenced = asyncio.Event()  #: another broker has taken this one's name; it must stop
        self._store: Store | None = None
        self._wills = Wills(self.refresh, context.broadcast_message)
        #: clients whose session may be open for all we know, and until when it may yet be opened
        self._in_doubt: dict[str, float] = {}
        self._absent: list[Session] = []  #: of which to ask who has them; all were once it is empty
        self._loops = Loops(self._give_up)
        self._outboxes: set[str] = set()  #: groups whose outbox has a loop
        self._recovery = self._new_recovery()
        self._closings: set[asyncio.Task[None]] = set()

    # -- the broker's life -------------------------------------------------------------------

    async def on_broker_pre_start(self) -> None:
        """Join the fleet, before anyone can connect."""
        self.refusing = STARTS
        self.fenced.clear()
        self._loops.allow()
        self._outboxes.clear()
        self._recovery = self._new_recovery()
        try:
            await self._begin()
        except MetarayError as error:
            log.error("metaray does not answer, so clients are refused until it does: %s", error)
            self._loops.run(self._begin_later())

    async def on_broker_pre_shutdown(self) -> None:
        """Let nobody in any more; amqtt is about to end every connection."""
        self.refusing = "the broker stops"
        await self.seams.end_connecting()

    async def on_broker_post_shutdown(self) -> None:
        """Close what amqtt has let go of, and leave the fleet."""
        await self.close()

    async def close(self) -> None:
        """Stop. With sessions open after the deadline, or perhaps open, we stay registered: the
        controller will mark us offline and close them, or our next start does."""
        self.refusing = "the broker stops"
        unknown = not self.ready.is_set()  # what we had, so what of that is open
        self.ready.clear()
        self._recovery.close_left_open()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.timeout_s):
                for connection in tuple(self.seams.serving):
                    await connection.ended.wait()
                if self._closings:
                    await asyncio.wait(self._closings)
        owing = bool(unknown or self.seams.serving or self._closings or self._in_doubt)
        await self._loops.stop()
        closings = tuple(self._closings)
        for task in closings:
            task.cancel()
        await asyncio.gather(*closings, return_exceptions=True)
        store, self._store = self._store, None
        if store is not None:
            await store.leave(unregister=not owing)

    async def _begin(self) -> None:
        store = self._store or Store(self.settings)
        await store.open()
        self._store = store
        if not store.registered:
            await store.register()
            # At once: one that is silent while it begins is marked offline, its sessions closed.
            self._loops.every(self.settings.heartbeat_s, store.heartbeat)
        await store.read_expiries()
        await store.read_groups()
        await self.security.load(store)
        if self.refusing != STARTS:  # it has lost its name meanwhile, or stops
            return
        self.refusing = ""
        self._loops.run(self._recovery.run(store, self._memory, self.settings.restart_grace_s))
        for seconds, step in (
            (self.settings.outbox_s, self._publish_wills),
            (self.settings.check_s, self._check_owners),
            (self.settings.check_s, self._check_absent),
            (self.settings.check_s, self._close_what_is_in_doubt),
            (self.settings.rules_s, self.security.refresh),
            (self.settings.rules_s, self._end_the_barred),
            (self.settings.rules_s, store.read_expiries),
            (self.settings.rules_s, store.read_groups),
        ):
            self._loops.every(seconds, step)

    async def _begin_later(self) -> None:
        if await self._loops.until_done(self._begin):
            log.warning("metaray answers: clients may connect")

    def _new_recovery(self) -> Recovery:
        def close(client_id: str, epoch: int) -> None:
            self._close_later(client_id, epoch, graceful=False)

        return Recovery(self.seams, self._loops, self.ready, close)

    async def _give_up(self, error: Fenced) -> None:
        log.error("another broker runs under the name %r: %s", self.settings.name, error)
        self.refusing = "another broker runs under this one's name"
        self.fenced.set()
        for connection in tuple(self.seams.live.values()):
            await connection.end(self.refusing)

    # -- what the seams ask ------------------------------------------------------------------

    async def authenticate(self, *, session: Session) -> bool | None:
        """amqtt asks before it opens a session. Raises Refused, which says why."""
        if self.refusing:
            raise Refused(SERVER_UNAVAILABLE, self.refusing)
        return await self.security.admit(session)

    async def opening(self, connection: Connection, will: Will | None) -> Opened:
        """Open the session, with the will. Raises Refused, and then the session is not open."""
        store = self._store
        if self.refusing or store is None:
            raise Refused(SERVER_UNAVAILABLE, self.refusing)
        client_id = connection.client_id
        last_will: LastWill | None = None
        if will is not None:
            will = will._replace(topic=self.rewritten(PUBLISH, will.topic))
            last_will = LastWill(**will._asdict(), delay_s=self._delay(client_id))
            try:
                check_will(last_will)
            except Invalid as error:
                raise Refused(IDENTIFIER_REJECTED, f"{error!r}") from error
            if invalid(will.topic) or not await self.may_publish(
                connection, will.topic, will.qos, will.retain
            ):
                raise Refused(NOT_AUTHORIZED, f"it may not publish its will to {will.topic[:80]!r}")
        opened: Opened | None = None
        try:
            opened = await store.open_session(
                client_id, connection.persistent, self.settings.session_expiry_s, last_will
            )
            self._recovery.opened(client_id)
            if opened.present:
                opened = opened._replace(filters=await store.filters(client_id))
        except MetarayError as error:
            if opened is not None:
                self._close_later(client_id, opened.epoch, graceful=False)
            elif isinstance(error, Unknown):
                until = asyncio.get_running_loop().time() + self.settings.timeout_s
                self._in_doubt[client_id] = until
            code = IDENTIFIER_REJECTED if isinstance(error, Invalid) else SERVER_UNAVAILABLE
            raise Refused(code, f"{error!r}") from error
        return opened

    def _delay(self, client_id: str) -> int:
        for pattern, delay in self.settings.will_delays.items():
            if fnmatchcase(client_id, pattern):
                return delay
        return self.settings.will_delay_s

    def closed(self, connection: Connection) -> None:
        """Close the session of a connection that is gone, however long that takes."""
        self._close_later(connection.client_id, connection.epoch, graceful=connection.graceful)

    def _close_later(self, client_id: str, epoch: int, *, graceful: bool) -> None:
        task = asyncio.create_task(self._close(client_id, epoch, graceful))
        self._closings.add(task)
        task.add_done_callback(self._closings.discard)

    async def _close(self, client_id: str, epoch: int, graceful: bool) -> None:
        store = self._store
        while store is not None:
            try:
                await store.close_session(client_id, epoch, graceful)
                return
            except (Fenced, NotFound):
                return  # taken over, or ended: it is not ours to close
            except Rejected as error:
                log.warning("client %r: its session was not closed: %r", client_id, error)
                return
            except MetarayError as error:
                log.warning("client %r: its session waits to be closed: %r", client_id, error)
            if await self._loops.pause(RETRY_SECONDS):
                return

    async def subscribed(self, connection: Connection, topic_filter: str, qos: int) -> bool:
        """Write a subscription."""
        return await self._kept(
            connection,
            lambda store: store.subscribe(
                connection.client_id, connection.epoch, Filter(topic_filter, qos)
            ),
        )

    async def unsubscribed(self, connection: Connection, topic_filters: Sequence[str]) -> bool:
        """Delete subscriptions."""
        return await self._kept(
            connection,
            lambda store: store.unsubscribe(connection.client_id, connection.epoch, topic_filters),
        )

    async def retained(self, connection: Connection, packet: PublishPacket) -> bool:
        """Write a retained message, or delete it if empty. True if amqtt is to refuse it itself."""
        topic: str = packet.topic_name
        if invalid(topic) or not await self.may_publish(connection, topic, packet.qos or 0, True):
            return True
        plugins = self.context._broker_instance.plugins_manager
        allowed = await plugins.map_plugin_topic(
            session=connection.session, topic=topic, action=Action.PUBLISH
        )
        if not all(allowed.values()):
            return True
        return await self._kept(
            connection,
            lambda store: store.retain(topic, bytes(packet.data or b""), packet.qos or 0),
        )

    async def _kept(
        self, connection: Connection, write: Callable[[Store], Coroutine[Any, Any, None]]
    ) -> bool:
        if self._store is None:
            return False
        try:
            await write(self._store)
        except Fenced:
            self.seams.gone_elsewhere(connection)
            await connection.end("another broker has its session")
            return False
        except MetarayError as error:
            log.warning("client %r: not kept: %r", connection.client_id, error)
            return False
        return True

    async def may_publish(self, connection: Connection, topic: str, qos: int, retain: bool) -> bool:
        """What the ACL says of a topic."""
        return await self.security.allowed(connection.session, topic, PUBLISH, qos, retain)

    async def may_subscribe(self, connection: Connection, topic_filter: str, qos: int) -> bool:
        """What the ACL says of a filter."""
        return await self.security.allowed(connection.session, topic_filter, SUBSCRIBE, qos)

    def rewritten(self, action: str, topic: str) -> str:
        """What a client's topic stands for."""
        return self.security.rewritten(action, topic)

    def automatic(self, connection: Connection) -> Sequence[TopicFilter]:
        """What the client is subscribed to without asking."""
        return self.security.automatic(connection.session)

    async def refresh(self, topic_filter: str) -> None:
        """Learn what other brokers have retained since."""
        if self._store is None:
            return
        try:
            await self._memory.refresh(self._store, topic_filter)
        except MetarayError as error:
            log.warning("retained messages for %r may be old: %r", topic_filter[:200], error)

    # -- what is done again and again --------------------------------------------------------

    async def _publish_wills(self) -> None:
        """Have a loop for each outbox: a group that does not answer holds no other up."""
        for group in self._store.groups if self._store is not None else ():
            if group not in self._outboxes:
                self._outboxes.add(group)
                self._publish_wills_of(group)

    def _publish_wills_of(self, group: str) -> None:
        async def publish_wills() -> None:
            if not self._recovery.tried.is_set():
                return  # who is absent would miss them
            if self._store is not None and group in self._store.groups:
                await self._wills.publish(self._store, group)

        self._loops.every(self.settings.outbox_s, publish_wills)

    async def _check_owners(self) -> None:
        """End connections whose session another broker has opened."""
        store = self._store
        if store is None:
            return
        live = tuple(self.seams.live.values())
        async for connection, row in answered(lambda each: store.session(each.client_id), live):
            if row is None:
                self.seams.gone_elsewhere(connection)
            if row is None or not row.connected or row.epoch != connection.epoch:
                await connection.end("its session was taken over, or closed for us")

    async def _check_absent(self) -> None:
        """Let go of sessions that have moved or ended while their clients were not here: nobody
        would ever fetch the messages that wait for them. A few at a time, all in turn."""
        store = self._store
        if store is None:
            return
        if not self._absent:
            self._absent = self.seams.absent()
        some, self._absent = self._absent[:ABSENT], self._absent[ABSENT:]
        async for session, row in answered(lambda each: store.session(each.client_id), some):
            if row is None:
                self.seams.drop(session)

    async def _close_what_is_in_doubt(self) -> None:
        """Close sessions that were opened after all, though their clients were told they were not.

        What is on its way to metaray when the answer is given up may arrive a little later.
        """
        store = self._store
        if store is None:
            return

        async def settle(client_id: str) -> None:
            async with self.seams.turn(client_id):  # no CONNECT is under way
                over = asyncio.get_running_loop().time() > self._in_doubt.get(client_id, 0)
                row = await store.session(client_id)
                epoch = row.epoch if row is not None and row.connected else 0
                connection = self.seams.live.get(client_id)
                foreign = epoch and (connection is None or connection.epoch != epoch)
                if foreign:
                    clean = row is None or not row.expiry_s
                    self._close_later(client_id, epoch, graceful=clean)
                if foreign or over:
                    self._in_doubt.pop(client_id, None)

        async for _ in answered(settle, tuple(self._in_doubt)):
            pass

    async def _end_the_barred(self) -> None:
        """End connections that the blacklist has got meanwhile."""
        live = tuple(self.seams.live.values())
        try:
            async for connection, barred in answered(
                lambda each: self.security.barred(each.session), live
            ):
                if barred:
                    await connection.end("it is on the blacklist")
        except Refused as refusal:
            raise Unavailable(refusal.reason) from refusal
