"""Many connections lost at once: what a broker closes in one entry.

Each item is what `CloseSession` would be, with its limits and refusals, which are that item's
alone: a client that has moved on is Fenced, and the others are closed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from state_machines import names
from state_machines.batch import Batch, Outcome
from state_machines.mqtt.session import check_lost
from state_machines.mqtt.session_life import close_all, told
from state_machines.op import Stamp, command
from state_machines.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class LostSession:
    """A session whose connection is gone. Fields as in `CloseSession`."""

    client_id: str
    epoch: int
    graceful: bool = False
    expiry_s: int | None = None


@command("mqtt.session.close_all")
class CloseSessions(Batch):
    """These connections are gone."""

    heavy: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    items: tuple[LostSession, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        check_lost([each.client_id for each in self.items], [each.expiry_s for each in self.items])

    def slot_key_of(self, item: LostSession) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, item.client_id)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced with an epoch that is not in force; closing a closed session changes nothing.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        refusals = close_all(
            db,
            at,
            (self.tenant,) * len(self.items),
            [each.client_id for each in self.items],
            [each.epoch for each in self.items],
            [each.graceful for each in self.items],
            [each.expiry_s for each in self.items],
        )
        return told(db, refusals, len(self.items))
