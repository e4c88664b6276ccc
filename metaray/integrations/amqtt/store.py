"""What the plugin asks of metaray: one method for each thing, every call with a deadline.

Rows and commands are those of `state_machines/mqtt` and `state_machines/metadata/node.py`; nothing
is remembered here but the node's epoch, the expiries that the tenant's settings allow, and which
groups there are. Errors are those of `state_machines/errors.py`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from metaray.client import connect
from state_machines.errors import MetarayError, NotFound, Unavailable, Unknown
from state_machines.metadata.config import ResolveConfigs
from state_machines.metadata.node import (
    Address,
    HeartbeatNode,
    RegisterNode,
    UnregisterNode,
)
from state_machines.metadata.slot_map import GetSlots
from state_machines.mqtt.acl import AclRule, ListAclsOf
from state_machines.mqtt.auto_subscribe import AutoSubscribeRule, ListAutoSubscribe
from state_machines.mqtt.blacklist import Barred, CheckBlacklist
from state_machines.mqtt.retained import (
    DeleteRetained,
    GetRetained,
    ListRetained,
    Retained,
    SetRetained,
)
from state_machines.mqtt.rewrite import ListRewrites, RewriteRule
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.session_duty import ListHeldSessions
from state_machines.mqtt.session_will import OpenSessionWithWill
from state_machines.mqtt.sessions import Session
from state_machines.mqtt.subscription import (
    DeleteSubscriptions,
    ListSubscriptions,
    PutSubscriptions,
    TopicFilter,
)
from state_machines.mqtt.user import GetUser, User
from state_machines.mqtt.will import AckOutbox, ClaimOutbox, LastWill, Outbox, PendingOutbox
from state_machines.names import SECONDS_MAX
from state_machines.slots import SlotMap

EXPIRIES: Final = ("session_expiry_max_s", "message_expiry_max_s")
GRACE_SECONDS: Final = 1.0  #: beyond the client's own deadline: that one knows better what happened
SOON_SECONDS: Final = 1.0  #: so long leaders are waited for where any replica will do
LEASE_MS: Final = 10_000  #: how long wills that we have claimed are ours to publish

log = logging.getLogger(__name__)


class Caller(Protocol):
    """A client of metaray: `metaray.Client` is one, once it is open."""

    async def call(
        self, operation: Any, /, *, group: str = "", timeout_ms: int = 0, stale: bool = False
    ) -> Any:
        """Carry out one command or query, in the group that is named; `stale`: ask any replica."""
        ...

    async def aclose(self) -> None:
        """End what is under way."""
        ...


class Settings(Protocol):
    """The settings that matter here; `Config` has them."""

    name: str
    address: str | None
    listen: str
    tenant: str
    timeout_s: float
    page: int
    caller: Callable[[], Caller] | None


class Filter(NamedTuple):
    """A subscription as a broker knows it."""

    topic_filter: str
    qos: int


class Will(NamedTuple):
    """A will as CONNECT has it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool


class Opened(NamedTuple):
    """An open session: the epoch we hold, since when it is, and what there was before."""

    epoch: int
    present: bool
    created_ms: int = 0
    filters: tuple[Filter, ...] = ()


class Store:
    """metaray, as one broker of one tenant uses it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._name = settings.name
        self._tenant = settings.tenant
        self._caller: Caller | None = None
        self._node_epoch = 0
        self._session_max_s = self._message_max_s = SECONDS_MAX
        self.groups: Sequence[str] = ()  #: those that have sessions

    async def open(self) -> None:
        """Join the cluster, unless we have."""
        if self._caller is not None:
            return
        if self._settings.caller is not None:
            self._caller = self._settings.caller()
            return
        timeout_ms = math.ceil(self._settings.timeout_s * 1000)
        client = connect(self._settings.address, timeout_ms=timeout_ms)
        await client.open()
        self._caller = client

    async def _call(self, operation: Any, group: str = "", **terms: Any) -> Any:
        assert self._caller is not None, "open the store first"
        try:
            async with asyncio.timeout(self._settings.timeout_s + GRACE_SECONDS):
                return await self._caller.call(operation, group=group, **terms)
        except TimeoutError:
            raise Unknown(f"no answer within {self._settings.timeout_s} s") from None

    # -- the broker itself -------------------------------------------------------------------

    async def register(self) -> None:
        """Join the fleet under our name, and fence whoever had it."""
        listen = self._settings.listen
        addresses = (Address("mqtt", listen),) if listen else ()
        node = await self._call(
            RegisterNode(node_id=self._name, addresses=addresses, roles=("mqtt",))
        )
        self._node_epoch = node.epoch

    @property
    def registered(self) -> bool:
        """Whether the broker has joined."""
        return self._node_epoch > 0

    async def heartbeat(self) -> None:
        """Say that we live. Fenced when another process has our name."""
        try:
            await self._call(HeartbeatNode(node_id=self._name, epoch=self._node_epoch))
        except NotFound:
            await self.register()

    async def leave(self, *, unregister: bool) -> None:
        """End the client. Unregister before that if it is wanted and metaray answers."""
        caller = self._caller
        if caller is None:
            return
        try:
            if self._node_epoch and unregister:
                await self._call(UnregisterNode(node_id=self._name, epoch=self._node_epoch))
        except MetarayError as error:
            log.warning("broker %r leaves without a word: %r", self._name, error)
        self._caller = None
        await caller.aclose()

    async def read_expiries(self) -> None:
        """Learn how long sessions and retained messages of the tenant may stay from now on."""
        found = await self._call(ResolveConfigs(tenant=self._tenant, keys=EXPIRIES))
        self._session_max_s, self._message_max_s = (each.number for each in found)

    async def read_groups(self) -> None:
        """Learn which groups have sessions, and so wills."""
        rows = await self._call(GetSlots())
        self.groups = SlotMap(0, {row.kind: row.ranges for row in rows}).groups("mqtt")

    # -- sessions ----------------------------------------------------------------------------

    async def open_session(
        self, client_id: str, persistent: bool, expiry_s: int, will: LastWill | None
    ) -> Opened:
        """Take a client id over. Its expiry may become a shorter one (MQTT 5, 3.2.2.3.2)."""
        asked: dict[str, Any] = {
            "tenant": self._tenant,
            "client_id": client_id,
            "broker": self._name,
            "expiry_s": min(expiry_s, self._session_max_s) if persistent else 0,
            "clean_start": not persistent,
        }
        opened = await self._call(
            OpenSession(**asked) if will is None else OpenSessionWithWill(**asked, will=will)
        )
        return Opened(opened.epoch, opened.present, opened.created_ms)

    async def close_session(self, client_id: str, epoch: int, graceful: bool) -> None:
        """The connection is gone. Unless it was graceful the will is armed."""
        await self._call(
            CloseSession(tenant=self._tenant, client_id=client_id, epoch=epoch, graceful=graceful)
        )

    async def session(self, client_id: str) -> Session | None:
        """A session, if it is ours, open or not."""
        row: Session | None = await self._call(GetSession(tenant=self._tenant, client_id=client_id))
        return row if row is not None and row.broker == self._name else None

    async def sessions(self, group: str) -> AsyncIterator[tuple[Session, ...]]:
        """The sessions of the tenant in a group that are or were ours, page by page."""
        after = b""
        while True:
            page = await self._call(
                ListHeldSessions(
                    tenant=self._tenant,
                    brokers=(self._name,),
                    limit=self._settings.page,
                    after=after,
                ),
                group,
            )
            yield page.sessions
            after = page.next
            if not after:
                return

    # -- subscriptions -----------------------------------------------------------------------

    async def filters(self, client_id: str) -> tuple[Filter, ...]:
        """The subscriptions of a session."""
        found: list[Filter] = []
        after = b""
        while True:
            page = await self._call(
                ListSubscriptions(
                    tenant=self._tenant,
                    client_id=client_id,
                    limit=self._settings.page,
                    after=after,
                )
            )
            found += [Filter(row.filter, row.qos) for row in page.subscriptions]
            after = page.next
            if not after:
                return tuple(found)

    async def subscribe(self, client_id: str, epoch: int, added: Filter) -> None:
        """Add a subscription to a session we hold, or change it."""
        await self._call(
            PutSubscriptions(
                tenant=self._tenant,
                client_id=client_id,
                epoch=epoch,
                filters=(TopicFilter(filter=added.topic_filter, qos=added.qos),),
            )
        )

    async def unsubscribe(self, client_id: str, epoch: int, gone: Sequence[str]) -> None:
        """Remove subscriptions from a session we hold; one that is not there is no error."""
        await self._call(
            DeleteSubscriptions(
                tenant=self._tenant, client_id=client_id, epoch=epoch, filters=tuple(gone)
            )
        )

    # -- retained messages -------------------------------------------------------------------

    async def retain(self, topic: str, payload: bytes, qos: int) -> None:
        """Retain a message; an empty one deletes what was retained (MQTT-3.3.1-10)."""
        if payload:
            await self._call(
                SetRetained(
                    tenant=self._tenant,
                    topic=topic,
                    payload=payload,
                    qos=qos,
                    expiry_s=self._message_expiry_s(None),
                )
            )
        else:
            await self._call(DeleteRetained(tenant=self._tenant, topic=topic))

    async def retain_will(self, will: Outbox) -> None:
        """Retain a will that was claimed, with what its client said of it, as long as it is left,
        unless something has been retained since it fired.

        By the group's time: the claim was made `LEASE_MS` before it ends.
        """
        left_ms = will.expires_ms - (will.claimed_until_ms - LEASE_MS)
        await self._call(
            SetRetained(
                tenant=will.tenant,
                topic=will.topic,
                payload=will.payload,
                qos=will.qos,
                expiry_s=self._message_expiry_s(-(-left_ms // 1_000) if will.expires_ms else None),
                properties=will.properties,
                as_of_ms=will.fired_ms,
            )
        )

    def _message_expiry_s(self, wanted_s: int | None) -> int | None:
        """As long as was wanted, None for ever, or as long as it may."""
        if self._message_max_s == SECONDS_MAX:
            return wanted_s
        return self._message_max_s if wanted_s is None else min(wanted_s, self._message_max_s)

    async def retained_at(self, topic: str) -> Retained | None:
        """The retained message of a topic."""
        row: Retained | None = await self._call(GetRetained(tenant=self._tenant, topic=topic))
        return row

    async def retained(self, starts: str = "") -> AsyncIterator[tuple[Retained, ...]]:
        """Retained messages whose topic starts like this, page by page."""
        after = b""
        while True:
            page = await self._call(
                ListRetained(
                    tenant=self._tenant, starts=starts, limit=self._settings.page, after=after
                )
            )
            yield page.messages
            after = page.next
            if not after:
                return

    # -- wills that have fired: each group has an outbox, and numbers it by itself -----------

    async def has_wills(self, group: str) -> bool:
        """Whether any wait. A question, where a claim would be an entry in the log."""
        state = await self._call(PendingOutbox(tenant=self._tenant), group)
        return bool(state.waiting)

    async def claim_wills(self, group: str, limit: int) -> tuple[Outbox, ...]:
        """Take wills to publish: those of our clients, and those that no other broker has taken."""
        claim = ClaimOutbox(broker=self._name, tenant=self._tenant, limit=limit, lease_ms=LEASE_MS)
        rows: tuple[Outbox, ...] = await self._call(claim, group)
        return rows

    async def ack_wills(self, group: str, claimed: Sequence[Outbox]) -> None:
        """They are published."""
        ids = tuple(row.outbox_id for row in claimed)
        await self._call(AckOutbox(broker=self._name, ids=ids), group)

    # -- rules -------------------------------------------------------------------------------

    async def user(self, username: str) -> User | None:
        """A user of the tenant."""
        row: User | None = await self._call(GetUser(tenant=self._tenant, username=username))
        return row

    async def barred(self, client_id: str, user: str, ip: str) -> Barred | None:
        """The entry of the blacklist that bars a client.

        Every group is asked. One that has no leader must not keep everybody out: any replica of
        each answers then, which may have missed the newest entries.
        """
        check = CheckBlacklist(tenant=self._tenant, client_id=client_id, user=user, ip=ip)
        soon_ms = math.ceil(min(SOON_SECONDS, self._settings.timeout_s) * 1000)
        row: Barred | None
        try:
            row = await self._call(check, timeout_ms=soon_ms)
        except (Unavailable, Unknown):
            row = await self._call(check, stale=True)
        return row

    async def acl_rules(self, resource_type: str, resource: str) -> tuple[AclRule, ...]:
        """The rules of a resource."""
        return await self._all(
            ListAclsOf(tenant=self._tenant, resource_type=resource_type, resource=resource)
        )

    async def rewrites(self) -> tuple[RewriteRule, ...]:
        """The tenant's rules of what topics stand for."""
        return await self._all(ListRewrites(tenant=self._tenant))

    async def auto_subscribe_rules(self) -> tuple[AutoSubscribeRule, ...]:
        """The tenant's rules of what clients are subscribed to without asking."""
        return await self._all(ListAutoSubscribe(tenant=self._tenant))

    async def _all(self, query: Any) -> tuple[Any, ...]:
        rules: list[Any] = []
        while True:
            page = await self._call(query)
            rules += page.rules
            if not page.next:
                return tuple(rules)
            query = replace(query, after=page.next)
