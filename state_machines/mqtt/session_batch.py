"""Many connections lost at once: what a broker closes in one entry.

Each item is what `CloseSession` would be, with its limits and refusals, which are that item's
alone: a client that has moved on is Fenced, and the others are closed.
"""

from __future__ import annotations

from dataclasses import dataclass

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.mqtt.session import CloseSession
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

    tenant: str = names.DEFAULT_TENANT
    items: tuple[LostSession, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            self._one(item).validate()

    def slot_key_of(self, item: LostSession) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, item.client_id)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced with an epoch that is not in force; closing a closed session changes nothing."""
        return each(db, self.items, lambda item: CloseSession.apply(self._one(item), db, at))

    def _one(self, item: LostSession) -> CloseSession:
        return CloseSession(
            tenant=self.tenant,
            client_id=item.client_id,
            epoch=item.epoch,
            graceful=item.graceful,
            expiry_s=item.expiry_s,
        )
