"""Opening many sessions as columns, so that no object is made a session: the reconnect storm."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from state_machines import names, op
from state_machines.errors import Invalid
from state_machines.mqtt.session import SessionItem, check_columns
from state_machines.mqtt.session_life import open_all
from state_machines.mqtt.session_quota import admit
from state_machines.op import Stamp, command
from state_machines.tables import Tables


@dataclass(frozen=True, slots=True)
class SavedSessions:
    """Of each session, in the order they were named: its epoch, and whether it was there before."""

    epochs: tuple[int, ...]
    present: tuple[bool, ...]


@command("mqtt.session.open_all")
class OpenSessions:
    """Open many sessions at once: what a broker does when it starts, or in a reconnect storm.

    Columns of one length, a place a session; what all leave at its default may be empty.
    """

    many: ClassVar[str] = "client_ids"
    tenant: str = names.DEFAULT_TENANT
    client_ids: tuple[str, ...]
    brokers: tuple[str, ...]
    expiry_s: tuple[int, ...] = ()
    clean_starts: tuple[bool, ...] = ()

    @classmethod
    def of(cls, sessions: Sequence[SessionItem], tenant: str = names.DEFAULT_TENANT) -> Self:
        """The columns of some sessions."""
        expiry_s = tuple([each.expiry_s for each in sessions])
        clean_starts = tuple([each.clean_start for each in sessions])
        return cls(
            tenant=tenant,
            client_ids=tuple([each.client_id for each in sessions]),
            brokers=tuple([each.broker for each in sessions]),
            expiry_s=expiry_s if any(expiry_s) else (),
            clean_starts=clean_starts if any(clean_starts) else (),
        )

    def validate(self) -> None:
        """Columns of one length, each within its limits."""
        names.tenant(self.tenant)
        names.items(self.client_ids, "client_ids")
        count = len(self.client_ids)
        for column, field, needed in (
            (self.brokers, "brokers", True),
            (self.expiry_s, "expiry_s", False),
            (self.clean_starts, "clean_starts", False),
        ):
            if len(column) != count and (column or needed):
                raise Invalid(f"{field}: {len(column)} items, client_ids has {count}")
        check_columns(self.client_ids, self.brokers, self.expiry_s)

    def slot_keys(self) -> list[tuple[str, ...]]:
        """A session and what hangs on it stay together."""
        return [(self.tenant, each) for each in self.client_ids]

    def select(self, indexes: Sequence[int]) -> Self:
        """The sessions at these places."""

        def pick(column: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple([column[index] for index in indexes]) if column else ()

        return type(self)(
            tenant=self.tenant,
            client_ids=pick(self.client_ids),
            brokers=pick(self.brokers),
            expiry_s=pick(self.expiry_s),
            clean_starts=pick(self.clean_starts),
        )

    def join(self, parts: Sequence[Self], replies: Sequence[SavedSessions]) -> SavedSessions:
        """One reply for sessions that went to several groups, in the order asked."""
        pairs = op.in_order(
            self.client_ids,
            [
                (client_id, pair)
                for part, reply in zip(parts, replies, strict=True)
                for client_id, *pair in zip(
                    part.client_ids, reply.epochs, reply.present, strict=True
                )
            ],
        )
        epochs, present = zip(*pairs, strict=True)
        return SavedSessions(epochs, present)

    def apply(self, db: Tables, at: Stamp) -> SavedSessions:
        """One outcome for each, in order. QuotaExceeded unless all fit the tenant's, and for more
        than one command can open: what the sessions before them leave may be that much."""
        admit(db, at, self.tenant, self.client_ids)
        count = len(self.client_ids)
        epochs, present = open_all(
            db,
            at,
            (self.tenant,) * count,
            self.client_ids,
            self.brokers,
            self.expiry_s or (0,) * count,
            self.clean_starts or (False,) * count,
        )
        return SavedSessions(tuple(epochs), tuple(present))
