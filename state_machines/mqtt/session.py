"""Sessions: who owns a client id, on which broker, and until when.

Opening a session takes it over: the epoch rises and the former broker is fenced from it and all
that hangs on it. Closing it arms its expiry and its will. It ends when it expires, at a clean
start, at once if its expiry is 0, or when it is deleted; then everything that hangs on it goes, and
a will that is still due fires (MQTT 5, 3.1.2.5, 3.1.2.11.2, 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from state_machines import names, op
from state_machines.errors import Invalid
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt import due, subscription, will
from state_machines.mqtt.sessions import (
    NEVER_S,
    SESSIONS,
    TALLIES,
    Session,
    SessionTally,
    delete_session,
    held,
    put_session,
)
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

MS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionItem:
    """A session to open, in a batch."""

    client_id: str
    broker: str
    expiry_s: int = 0
    clean_start: bool = False


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """The epoch that the broker now holds, and whether the session was there before."""

    client_id: str
    epoch: int
    present: bool


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions by client id; `next` continues, empty at the end."""

    sessions: tuple[Session, ...]
    next: bytes


def _check(item: SessionItem) -> None:
    names.client_id(item.client_id)
    names.name(item.broker, "broker")
    names.seconds(item.expiry_s, "expiry_s")


def _open(db: Tables, at: Stamp, tenant: str, item: SessionItem) -> OpenedSession:
    old = db.get(SESSIONS, tenant, item.client_id)
    if old is not None and (item.clean_start or 0 < old.expires_ms <= at.now_ms):
        end(db, at, old)
        old = None
    if old is not None:
        _settle_will(db, at, old)
        due.disarm(db, old.expires_ms, due.SESSION, tenant, item.client_id)
    epoch = db.unique()
    put_session(
        db,
        old,
        Session(
            tenant=tenant,
            client_id=item.client_id,
            broker=item.broker,
            epoch=epoch,
            connected=True,
            expiry_s=item.expiry_s,
            created_ms=old.created_ms if old is not None else at.now_ms,
            connected_ms=at.now_ms,
            disconnected_ms=0,
            expires_ms=0,
            subscriptions=old.subscriptions if old is not None else 0,
        ),
    )
    return OpenedSession(item.client_id, epoch, old is not None)


def _settle_will(db: Tables, at: Stamp, old: Session) -> None:
    """A client that comes back in time cancels its will (MQTT 5, 3.1.3.2.2).

    It is sent all the same if it was due before, though no pulse has seen it yet, or if this
    takeover closes a connection whose will has no delay (MQTT 5, 3.1.4).
    """
    pending = db.get(will.WILLS, old.tenant, old.client_id)
    if pending is None:
        return
    if 0 < pending.due_ms <= at.now_ms or (old.connected and pending.delay_s == 0):
        will.fire(db, at, pending, old.broker)
    else:
        will.cancel(db, pending)


def end(db: Tables, at: Stamp, session: Session) -> None:
    """The session is over: its will fires, and it goes with all that hangs on it."""
    pending = db.get(will.WILLS, session.tenant, session.client_id)
    if pending is not None:
        will.fire(db, at, pending, session.broker)
    subscription.remove_all(db, session.tenant, session.client_id)
    due.disarm(db, session.expires_ms, due.SESSION, session.tenant, session.client_id)
    delete_session(db, session)


@command("mqtt.session.open")
class OpenSession:
    """Take a client id over, as CONNECT does."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    broker: str
    expiry_s: int = 0
    clean_start: bool = False

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        _check(self._item())

    def _item(self) -> SessionItem:
        return SessionItem(
            client_id=self.client_id,
            broker=self.broker,
            expiry_s=self.expiry_s,
            clean_start=self.clean_start,
        )

    def slot_key(self) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> OpenedSession:
        """Always succeeds: the newest connection wins (MQTT 5, 3.1.4)."""
        return _open(db, at, self.tenant, self._item())


@command("mqtt.session.save")
class SaveSessions:
    """Open many sessions at once: what a broker does when it starts, or in a reconnect storm."""

    tenant: str = names.DEFAULT_TENANT
    sessions: tuple[SessionItem, ...]

    def validate(self) -> None:
        """Each within its limits."""
        names.tenant(self.tenant)
        names.items(self.sessions, "sessions")
        for each in self.sessions:
            _check(each)

    def slot_keys(self) -> list[tuple[str, ...]]:
        """A session and what hangs on it stay together."""
        return [(self.tenant, each.client_id) for each in self.sessions]

    def select(self, indexes: Sequence[int]) -> Self:
        """The sessions at these places."""
        return type(self)(
            tenant=self.tenant, sessions=tuple([self.sessions[index] for index in indexes])
        )

    def join(
        self, parts: Sequence[Self], replies: Sequence[tuple[OpenedSession, ...]]
    ) -> tuple[OpenedSession, ...]:
        """One reply for sessions that went to several groups, in the order asked."""
        return op.in_order(
            [each.client_id for each in self.sessions],
            [(each.client_id, each) for reply in replies for each in reply],
        )

    def apply(self, db: Tables, at: Stamp) -> tuple[OpenedSession, ...]:
        """One outcome for each, in order."""
        return tuple([_open(db, at, self.tenant, each) for each in self.sessions])


@command("mqtt.session.close")
class CloseSession:
    """The connection is gone. `graceful`: the client said DISCONNECT, so its will is void."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    epoch: int
    graceful: bool = False
    expiry_s: int | None = None  #: DISCONNECT may change it (MQTT 5, 3.14.2.2.2)

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)
        if self.expiry_s is not None:
            names.seconds(self.expiry_s, "expiry_s")

    def slot_key(self) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch that is not in force; closing a closed session changes nothing."""
        before = held(db, self.tenant, self.client_id, self.epoch)
        if not before.connected:
            return
        expiry_s = before.expiry_s if self.expiry_s is None else self.expiry_s
        if expiry_s and not before.expiry_s:
            raise Invalid("expiry_s: a session that ends with its connection cannot outlive it")
        pending = db.get(will.WILLS, self.tenant, self.client_id)
        if pending is not None and self.graceful:
            will.cancel(db, pending)
            pending = None
        expires_ms = 0 if expiry_s == NEVER_S else at.now_ms + expiry_s * MS
        session = replace(
            before,
            connected=False,
            expiry_s=expiry_s,
            disconnected_ms=at.now_ms,
            expires_ms=expires_ms,
        )
        if expiry_s == 0:
            end(db, at, before)
            return
        put_session(db, before, session)
        if expires_ms:
            due.arm(db, expires_ms, due.SESSION, self.tenant, self.client_id)
        if pending is None:
            return
        if pending.delay_s == 0:
            will.fire(db, at, pending, session.broker)
        else:
            will.arm(db, pending, at.now_ms + min(pending.delay_s, expiry_s) * MS)


@command("mqtt.session.delete")
class DeleteSessions:
    """End sessions from outside. The reply is how many there were."""

    tenant: str = names.DEFAULT_TENANT
    client_ids: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.client_ids, "client_ids")
        for each in self.client_ids:
            names.client_id(each)

    def slot_keys(self) -> list[tuple[str, ...]]:
        """A session and what hangs on it stay together."""
        return [(self.tenant, each) for each in self.client_ids]

    def select(self, indexes: Sequence[int]) -> Self:
        """The client ids at these places."""
        return type(self)(
            tenant=self.tenant, client_ids=tuple([self.client_ids[index] for index in indexes])
        )

    def join(self, parts: Sequence[Self], replies: Sequence[int]) -> int:
        """How many there were in all groups."""
        return sum(replies)

    def apply(self, db: Tables, at: Stamp) -> int:
        """What does not exist is passed over."""
        found = [db.get(SESSIONS, self.tenant, each) for each in dict.fromkeys(self.client_ids)]
        there = [each for each in found if each is not None]
        for session in there:
            end(db, at, session)
        return len(there)


@query("mqtt.session.get")
class GetSession:
    """Read a session."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.client_id(self.client_id)

    def slot_key(self) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, self.client_id)

    def read(self, db: Tables, at: Stamp) -> Session | None:
        """None when there is none. One whose time is over stays until a pulse ends it."""
        return db.get(SESSIONS, self.tenant, self.client_id)


@query("mqtt.session.list")
class ListSessions:
    """Sessions of a tenant by client id, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", MQTT_STRING_BYTES_MAX, empty=True)

    def read(self, db: Tables, at: Stamp) -> SessionPage:
        """Client ids that begin with `starts`."""
        rows, after = db.page(
            SESSIONS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return SessionPage(tuple([row for row, _ in rows]), after)


@query("mqtt.session.count")
class CountSessions:
    """How many sessions a tenant has, and how many of them are connected."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)

    def join(self, parts: Sequence[Self], replies: Sequence[SessionTally]) -> SessionTally:
        """Over all groups."""
        return SessionTally(
            self.tenant,
            sum(each.sessions for each in replies),
            sum(each.connected for each in replies),
        )

    def read(self, db: Tables, at: Stamp) -> SessionTally:
        """Kept by every command that changes it, so nothing is counted here."""
        return db.get(TALLIES, self.tenant) or SessionTally(self.tenant, 0, 0)
