"""Sessions whose broker is gone: found page by page, and closed by the controller.

A session that is connected has no timer. If the broker that holds it dies, nobody tells that the
connection is gone, so its expiry and its will would never begin to run. The controller finds the
sessions that silent brokers hold (`ListHeldSessions`) and closes them under their epochs
(`CloseHeldSessions`): a client that has connected elsewhere meanwhile has another.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import ClassVar

from state_machines import names, packing
from state_machines.batch import Batch, Outcome
from state_machines.errors import Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.limits import PAGE_BYTES_MAX, PAGE_ROWS_MAX
from state_machines.mqtt.session import SessionPage
from state_machines.mqtt.session_life import close_all, told
from state_machines.mqtt.sessions import SESSIONS, Session
from state_machines.op import Stamp, command, query
from state_machines.tables import Tables

_BROKER, _CONNECTED, _EXPIRES_MS = map(
    packing.field_names(Session).index, ("broker", "connected", "expires_ms")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldSession:
    """A session under the epoch that its broker holds."""

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    epoch: int


@command("mqtt.session.close_held")
class CloseHeldSessions(Batch):
    """The brokers that held these sessions are gone, and with them the connections."""

    heavy: ClassVar[bool] = True
    controller_epoch: int
    items: tuple[HeldSession, ...]

    def validate(self) -> None:
        """Names within their limits."""
        check_epoch(self.controller_epoch)
        names.items(self.items, "items")
        for item in self.items:
            names.tenant(item.tenant)
            names.client_id(item.client_id)

    def slot_key_of(self, item: HeldSession) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (item.tenant, item.client_id)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Closed as by `CloseSession`, not gracefully: NotFound for one that is gone, Fenced for
        one that was opened anew.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        pass_fence(db, self.controller_epoch)
        count = len(self.items)
        refusals = close_all(
            db,
            at,
            [each.tenant for each in self.items],
            [each.client_id for each in self.items],
            [each.epoch for each in self.items],
            (False,) * count,
            (None,) * count,
        )
        return told(db, refusals, count)


@query("mqtt.session.held")
class ListHeldSessions:
    """Sessions of these brokers, which hold them or did last, a page at a time: the controller asks
    when brokers are gone, and a broker when it starts."""

    every_group: ClassVar[bool] = True
    tenant: str = ""  #: that of all tenants if empty
    brokers: tuple[str, ...]
    connected: bool = False  #: only those that are connected
    limit: int = 1_000  #: of sessions that are looked at, so a page may have few of them, or none
    after: bytes = b""

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.tenant, "tenant", empty=True)
        names.items(self.brokers, "brokers")
        for each in self.brokers:
            names.name(each, "broker")
        if not 0 < self.limit <= PAGE_ROWS_MAX:
            raise Invalid(f"limit: {self.limit}, the range is 1 to {PAGE_ROWS_MAX}")

    def read(self, db: Tables, at: Stamp) -> SessionPage:
        """By tenant and client id, without those whose time is over. A page also ends softly at
        `PAGE_BYTES_MAX` of what was looked at."""
        brokers = frozenset(self.brokers)
        prefix = (self.tenant,) if self.tenant else ()
        found: list[Session] = []
        size, last = 0, b""
        scan = db.store.scan(SESSIONS.name, prefix, after=self.after)
        for token, value in islice(scan, self.limit):
            last = token
            size += len(value)
            _, values = SESSIONS.values_of(value)
            over = 0 < values[_EXPIRES_MS] <= at.now_ms
            wanted = values[_BROKER] in brokers and (values[_CONNECTED] or not self.connected)
            if wanted and not over:
                found.append(packing.row_of(Session, values))
            if size > PAGE_BYTES_MAX:
                break
        else:
            if next(scan, None) is None:
                last = b""
        return SessionPage(tuple(found), last)
