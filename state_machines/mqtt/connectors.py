"""The connector rows, and the index by what they wait for. Commands are in `connector.py`.

A *connector* carries messages between topics and another system. `put_connector` keeps the index
(status and broker of every connector) and how many each broker runs, so what the controller has to
do is found without looking at what runs well.

Heartbeats are a row of their own, so that one costs a few bytes whatever the configuration weighs.
When a connector has to be looked at is a row of `CHECKS`, one for each that runs, set when it is
assigned; a check that finds a newer heartbeat moves it there. So a heartbeat writes one row, and a
connector is looked at once per timeout, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from state_machines.errors import NotFound
from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.repair import clamp
from state_machines.tables import Table, Tables

IDLE: Final = "idle"  #: it is to run and waits for a broker
RUNNING: Final = "running"  #: a broker has it
STOPPED: Final = "stopped"  #: it is not to run
FAILED: Final = "failed"  #: its broker gave it up: it runs again when it is started
STATUSES: Final = (IDLE, RUNNING, STOPPED, FAILED)


@dataclass(frozen=True, slots=True)
class ConnectorFailure:
    """What becomes of a message that cannot be delivered.

    `discard`; `retry` so many times, waiting in between, then discard; or `dead_letter` to a topic.
    """

    strategy: str = "discard"
    times: int = 0
    wait_ms: int = 0
    topic: str = ""


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector. `epoch` rises whenever a broker gets or loses it. Times are the group's."""

    tenant: str
    name: str
    type: str
    config: str  #: a JSON object
    topic_filter: str
    failure: ConnectorFailure
    status: str
    broker: str  #: node id; empty unless it runs
    epoch: int
    reason: str  #: why it failed
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class ConnectorPlace:
    """A row of the index."""

    status: str
    broker: str
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class ConnectorBeat:
    """When the broker of a running connector last spoke of it."""

    tenant: str
    name: str
    broker: str
    epoch: int
    heartbeat_ms: int
    since_ms: int  #: where its check stands


@dataclass(frozen=True, slots=True)
class ConnectorCheck:
    """A running connector that has been silent since `since_ms`, unless its beat says otherwise."""

    since_ms: int
    tenant: str
    name: str


@dataclass(frozen=True, slots=True)
class ConnectorLoad:
    """How many connectors a broker runs."""

    broker: str
    running: int


CONNECTORS: Final = Table("mqtt.connector", Connector, key=("tenant", "name"))
PLACES: Final = Table(
    "mqtt.connector_place",
    ConnectorPlace,
    key=("status", "broker", "tenant", "name"),
    slot_fields=("tenant", "name"),
)
BEATS: Final = Table("mqtt.connector_beat", ConnectorBeat, key=("tenant", "name"))
CHECKS: Final = Table(
    "mqtt.connector_check",
    ConnectorCheck,
    key=("since_ms", "tenant", "name"),
    slot_fields=("tenant", "name"),
)
LOADS: Final = Table("mqtt.connector_load", ConnectorLoad, key=("broker",))


def found(db: Tables, tenant: str, name: str) -> Connector:
    """The connector, or NotFound."""
    connector = db.get(CONNECTORS, tenant, name)
    if connector is None:
        raise NotFound(f"name: {name!r} is not there")
    return connector


def put_connector(db: Tables, before: Connector | None, connector: Connector) -> None:
    """Set the connector that was `before`, and keep the index and the loads."""
    if before is None or (before.status, before.broker) != (connector.status, connector.broker):
        if before is not None:
            _leave(db, before)
        place = (connector.status, connector.broker, connector.tenant, connector.name)
        db.put(PLACES, ConnectorPlace(*place))
        _load(db, connector.broker, 1)
    db.put(CONNECTORS, connector)


def remove_connector(db: Tables, connector: Connector) -> None:
    """Forget the connector."""
    _leave(db, connector)
    db.delete(CONNECTORS, connector.tenant, connector.name)


@remover(CONNECTORS)
def _remove(db: Tables, at: Stamp, connector: Connector) -> None:
    remove_connector(db, connector)


def _leave(db: Tables, connector: Connector) -> None:
    """Take it off the index, and forget its heartbeats."""
    db.delete(PLACES, connector.status, connector.broker, connector.tenant, connector.name)
    beat = db.get(BEATS, connector.tenant, connector.name)
    if beat is not None:
        db.delete(BEATS, beat.tenant, beat.name)
        db.delete(CHECKS, beat.since_ms, beat.tenant, beat.name)
    _load(db, connector.broker, -1)


def _load(db: Tables, broker: str, more: int) -> None:
    if not broker:
        return
    load = db.get(LOADS, broker)
    running = more + (load.running if load is not None else 0)
    running = clamp(db, LOADS, (broker,), "running", running)  # one may be too low
    if running:
        db.put(LOADS, ConnectorLoad(broker, running))
    else:
        db.delete(LOADS, broker)


def let_go(
    db: Tables, connector: Connector, now_ms: int, status: str = IDLE, reason: str = ""
) -> None:
    """No broker has it any more: whoever had it holds an old epoch from now on."""
    put_connector(
        db,
        connector,
        replace(
            connector,
            status=status,
            broker="",
            epoch=connector.epoch + 1,
            reason=reason,
            updated_ms=now_ms,
        ),
    )


def at_places(db: Tables, *prefix: str) -> Iterator[tuple[str, str]]:
    """Tenant and name of the connectors of a status, or of a status and a broker."""
    return ((row.tenant, row.name) for _, row, _ in db.scan(PLACES, *prefix))
