"""The wills of many sessions at once: what a broker that takes them over sets in one entry.

Each item is what `SetWill` would be, with its limits and refusals, which are that item's alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.mqtt.properties import PublishProperties
from state_machines.mqtt.will import SetWill
from state_machines.op import Stamp, command
from state_machines.tables import Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class WillItem:
    """The will of one session. Fields as in `SetWill`."""

    client_id: str
    epoch: int
    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    delay_s: int = 0
    expiry_s: int | None = None
    properties: PublishProperties | None = None


@command("mqtt.will.set_all")
class SetWills(Batch):
    """Set the wills of connected sessions."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[WillItem, ...]

    def validate(self) -> None:
        """Names, payloads and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            self._one(item).validate()

    def slot_key_of(self, item: WillItem) -> tuple[str, ...]:
        """Where the session is."""
        return (self.tenant, item.client_id)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced with an epoch that is not the session's; NotFound without a session.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def put(item: WillItem) -> None:
            SetWill.apply(self._one(item), db, at)

        return each(db, self.items, put, changed="items")

    def _one(self, item: WillItem) -> SetWill:
        return SetWill(
            tenant=self.tenant,
            client_id=item.client_id,
            epoch=item.epoch,
            topic=item.topic,
            payload=item.payload,
            qos=item.qos,
            retain=item.retain,
            delay_s=item.delay_s,
            expiry_s=item.expiry_s,
            properties=item.properties,
        )
