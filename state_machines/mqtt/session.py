"""Sessions: who owns a client id, on which broker, and until when.

Opening a session takes it over: the epoch rises and the former broker is fenced from it and all
that hangs on it. Closing it arms its expiry and its will. It ends when it expires, at a clean
start, with its connection if its expiry is 0 (a takeover, too, closes that), or when it is deleted;
then everything that hangs on it goes, and a will that is still due fires (MQTT 5, 3.1.2.5,
3.1.2.11.2, 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from state_machines import names, op, quota
from state_machines.budgets import BYTES_CHANGED_MAX, Budget
from state_machines.errors import QuotaExceeded, Rejected
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt.session_life import close, close_all, end_within, open_all
from state_machines.mqtt.session_quota import admit
from state_machines.mqtt.sessions import (
    SESSIONS,
    TALLIES,
    Session,
    SessionTally,
)
from state_machines.op import Stamp, command, query
from state_machines.runs import Run
from state_machines.tables import Tables


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
    created_ms: int = 0  #: since when the session is: of a later one of the client it is another


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Sessions by client id; `next` continues, empty at the end."""

    sessions: tuple[Session, ...]
    next: bytes


def check_columns(
    client_ids: Sequence[str], brokers: Sequence[str], expiry_s: Sequence[int]
) -> None:
    """The limits of what opens sessions. Raises Invalid."""
    names.column(client_ids, "client_id", MQTT_STRING_BYTES_MAX)
    for broker in dict.fromkeys(brokers):
        names.name(broker, "broker")
    for each in dict.fromkeys(expiry_s):
        names.seconds(each, "expiry_s")


def check_lost(client_ids: Sequence[str], expiry_s: Sequence[int | None]) -> None:
    """The limits of what closes sessions. Raises Invalid."""
    names.column(client_ids, "client_id", MQTT_STRING_BYTES_MAX)
    for each in dict.fromkeys(expiry_s):
        if each is not None:
            names.seconds(each, "expiry_s")


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
        check_columns((self.client_id,), (self.broker,), (self.expiry_s,))

    @classmethod
    def validate_run(cls, run: Run) -> None:
        """The same of a run."""
        columns = run.columns
        for tenant in dict.fromkeys(columns["tenant"]):
            names.tenant(tenant)
        check_columns(columns["client_id"], columns["broker"], columns["expiry_s"])

    def slot_key(self) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> OpenedSession:
        """The newest connection wins (MQTT 5, 3.1.4). QuotaExceeded beyond the tenant's."""
        admit(db, at, self.tenant, (self.client_id,))
        created: list[int] = []
        (epoch,), (present,) = open_all(
            db,
            at,
            (self.tenant,),
            (self.client_id,),
            (self.broker,),
            (self.expiry_s,),
            (self.clean_start,),
            created=created,
        )
        (created_ms,) = created
        return OpenedSession(self.client_id, epoch, present, created_ms)

    @classmethod
    def apply_run(cls, db: Tables, at: Stamp, run: Run) -> Sequence[OpenedSession | QuotaExceeded]:
        """The same of a run."""
        if any(quota.of(db, each) is not None for each in dict.fromkeys(run.columns["tenant"])):
            limit = db.grown + BYTES_CHANGED_MAX
            return [_opened(each, db, at, limit) for each in run.operations()]
        names_of = ("tenant", "client_id", "broker", "expiry_s", "clean_start")
        created: list[int] = []
        columns = [run.columns[each] for each in names_of]
        opened = open_all(db, at, *columns, created=created, partly=True)
        replies = list(map(OpenedSession, run.columns["client_id"], *opened, created))
        return [*replies, *_not_yet(run.count - len(replies))]


def _not_yet(count: int) -> list[QuotaExceeded]:
    """What is said of the last ones of a run, which clients ask for again by themselves."""
    return [QuotaExceeded(op.REPLY_FULL)] * count


def _opened(
    operation: OpenSession, db: Tables, at: Stamp, limit: int
) -> OpenedSession | QuotaExceeded:
    if db.grown > limit:
        return QuotaExceeded(op.REPLY_FULL)
    try:
        return operation.apply(db, at)
    except QuotaExceeded as error:
        return error


@command("mqtt.session.save")
class SaveSessions:
    """Open many sessions at once, an object each. `OpenSessions` says the same in columns."""

    many: ClassVar[str] = "sessions"
    tenant: str = names.DEFAULT_TENANT
    sessions: tuple[SessionItem, ...]

    def validate(self) -> None:
        """Each within its limits."""
        names.tenant(self.tenant)
        names.items(self.sessions, "sessions")
        check_columns(
            [each.client_id for each in self.sessions],
            [each.broker for each in self.sessions],
            [each.expiry_s for each in self.sessions],
        )

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
        """One outcome for each, in order. QuotaExceeded unless all fit the tenant's, and for more
        than one command can open: what the sessions before them leave may be that much."""
        admit(db, at, self.tenant, [each.client_id for each in self.sessions])
        client_ids = [each.client_id for each in self.sessions]
        created: list[int] = []
        opened = open_all(
            db,
            at,
            (self.tenant,) * len(client_ids),
            client_ids,
            [each.broker for each in self.sessions],
            [each.expiry_s for each in self.sessions],
            [each.clean_start for each in self.sessions],
            created=created,
        )
        return tuple(map(OpenedSession, client_ids, *opened, created))


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
        check_lost((self.client_id,), (self.expiry_s,))

    @classmethod
    def validate_run(cls, run: Run) -> None:
        """The same of a run."""
        columns = run.columns
        for tenant in dict.fromkeys(columns["tenant"]):
            names.tenant(tenant)
        check_lost(columns["client_id"], columns["expiry_s"])

    def slot_key(self) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Fenced with an epoch that is not in force; closing a closed session changes nothing."""
        asked = (self.epoch, self.graceful, self.expiry_s)
        close(db, at, self.tenant, self.client_id, *asked, Budget())

    @classmethod
    def apply_run(cls, db: Tables, at: Stamp, run: Run) -> Sequence[Rejected | None]:
        """The same of a run."""
        names_of = ("tenant", "client_id", "epoch", "graceful", "expiry_s")
        refusals = close_all(db, at, *[run.columns[each] for each in names_of])
        return [*refusals, *_not_yet(run.count - len(refusals))]


@command("mqtt.session.delete")
class DeleteSessions:
    """End sessions from outside. The reply is how many there were.

    Those that would make the command too long (`budgets`) have expired then: they count no more,
    and their rows go with the next pulses.
    """

    heavy: ClassVar[bool] = True
    many: ClassVar[str] = "client_ids"
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
        """What does not exist is passed over; what is over already goes, and is none of them."""
        found = [db.get(SESSIONS, self.tenant, each) for each in dict.fromkeys(self.client_ids)]
        there = [each for each in found if each is not None]
        budget = Budget()
        for session in there:
            end_within(db, at, session, budget)
        return sum(not each.over(at.now_ms) for each in there)


@query("mqtt.session.get")
class GetSession:
    """Read a session."""

    single_row: ClassVar[bool] = True
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
        """Client ids that begin with `starts`, without those whose time is over. A page may be
        empty and still have a next."""
        rows, after = db.page(
            SESSIONS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return SessionPage(tuple([row for row, _ in rows if not row.over(at.now_ms)]), after)


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
