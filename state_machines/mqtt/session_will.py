"""Opening a session with a will: what a CONNECT that has one does, in one command.

Opening cancels the will that the session had (`session.py`). With a second command for the new one,
a broker that is cut off between the two would leave the session without any.
"""

from __future__ import annotations

from state_machines import names
from state_machines.mqtt.session import OpenedSession, OpenSession
from state_machines.mqtt.will import LastWill, SetWill
from state_machines.op import Stamp, command
from state_machines.tables import Tables


@command("mqtt.session.open_with_will")
class OpenSessionWithWill:
    """`OpenSession`, and `SetWill` under the epoch that it gives.

    A command of its own, so that openings without a will still come in runs.
    """

    tenant: str = names.DEFAULT_TENANT
    client_id: str
    broker: str
    expiry_s: int = 0
    clean_start: bool = False
    will: LastWill

    def validate(self) -> None:
        """As both of them."""
        self._open().validate()
        self._set(0).validate()

    def slot_key(self) -> tuple[str, ...]:
        """A session and what hangs on it stay together."""
        return (self.tenant, self.client_id)

    def apply(self, db: Tables, at: Stamp) -> OpenedSession:
        """As both of them. QuotaExceeded beyond the tenant's, and then nothing is cancelled."""
        opened = OpenSession.apply(self._open(), db, at)
        SetWill.apply(self._set(opened.epoch), db, at)
        return opened

    def _open(self) -> OpenSession:
        return OpenSession(
            tenant=self.tenant,
            client_id=self.client_id,
            broker=self.broker,
            expiry_s=self.expiry_s,
            clean_start=self.clean_start,
        )

    def _set(self, epoch: int) -> SetWill:
        return SetWill(
            tenant=self.tenant,
            client_id=self.client_id,
            epoch=epoch,
            topic=self.will.topic,
            payload=self.will.payload,
            qos=self.will.qos,
            retain=self.will.retain,
            delay_s=self.will.delay_s,
            expiry_s=self.will.expiry_s,
            properties=self.will.properties,
        )
