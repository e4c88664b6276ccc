"""Purging a tenant's rows from `mqtt` groups: see `state_machines.purge`.

A connector leaves its place and the load of its broker with it, and its heartbeats.
"""

from __future__ import annotations

from typing import ClassVar

from state_machines.mqtt.connectors import BEATS, CONNECTORS, Connector, remove_connector
from state_machines.op import Stamp, command
from state_machines.purge import Purge, goes, goes_with_others
from state_machines.tables import Tables

goes_with_others(BEATS)


@goes(CONNECTORS)
def _remove_connector(db: Tables, at: Stamp, connector: Connector) -> None:
    remove_connector(db, connector)


@command("mqtt.tenant.purge")
class PurgeMqtt(Purge):
    """The controller deletes a tenant: up to `limit` rows of it go from each `mqtt` group."""

    of_kind: ClassVar[str] = "mqtt"
    controller_epoch: int
    tenant: str
    limit: int = 1_000
