"""Purging a tenant's rows from `mqtt` groups: see `state_machines.purge`.

A connector leaves its place and the load of its broker, a member of a share group its group and the
counts of brokers: they go in their own way, and what is kept beside them goes with them.
"""

from __future__ import annotations

from typing import ClassVar

from state_machines.mqtt import due
from state_machines.mqtt.blacklist import BLACKLIST, Barred, timer_name
from state_machines.mqtt.connectors import BEATS, CONNECTORS, Connector, remove_connector
from state_machines.mqtt.share_rows import MEMBERS, OF_CLIENT, ShareMember, remove_member
from state_machines.op import Stamp, command
from state_machines.purge import Purge, goes, goes_with_others
from state_machines.tables import Tables

goes_with_others(BEATS)
goes_with_others(OF_CLIENT)


@goes(BLACKLIST)
def _remove_barred(db: Tables, at: Stamp, barred: Barred) -> None:
    due.disarm(db, barred.end_ms, due.BLACKLIST, barred.tenant, timer_name(barred))
    db.delete(BLACKLIST, *BLACKLIST.key_of(barred))


@goes(CONNECTORS)
def _remove_connector(db: Tables, at: Stamp, connector: Connector) -> None:
    remove_connector(db, connector)


@goes(MEMBERS)
def _remove_member(db: Tables, at: Stamp, member: ShareMember) -> None:
    remove_member(db, member)


@command("mqtt.tenant.purge")
class PurgeMqtt(Purge):
    """The controller deletes a tenant: up to `limit` rows of it go from each `mqtt` group."""

    of_kind: ClassVar[str] = "mqtt"
    controller_epoch: int
    tenant: str
    limit: int = 1_000
