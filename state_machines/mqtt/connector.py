"""Connectors: which system each leads to, and whether it is to run.

One that is to run is `idle` until the controller gives it to a broker (`connector_duty.py`). What
an operator changes takes it from whoever runs it, by a higher epoch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import json_text, names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import AlreadyExists, Invalid
from state_machines.mqtt.connectors import (
    CONNECTORS,
    FAILED,
    IDLE,
    RUNNING,
    STOPPED,
    Connector,
    ConnectorFailure,
    found,
    let_go,
    put_connector,
    remove_connector,
)
from state_machines.op import Stamp, command
from state_machines.tables import Tables

TYPES: Final = (
    "amqp",
    "clickhouse",
    "elasticsearch",
    "file",
    "http",
    "influxdb",
    "kafka",
    "mongodb",
    "mqtt",
    "mysql",
    "nats",
    "postgres",
    "pulsar",
    "rabbitmq",
    "redis",
    "rocketmq",
    "s3",
    "webhook",
)
DISCARD: Final = "discard"
RETRY: Final = "retry"
DEAD_LETTER: Final = "dead_letter"
STRATEGIES: Final = (DISCARD, RETRY, DEAD_LETTER)
DISCARDING: Final = ConnectorFailure()

CONFIG_BYTES_MAX: Final = 65_535
TIMES_MAX: Final = 1_000
WAIT_MS_MAX: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorItem:
    """A connector as it is wanted."""

    name: str
    type: str
    config: str = "{}"
    topic_filter: str
    failure: ConnectorFailure = DISCARDING


def _check_failure(failure: ConnectorFailure) -> None:
    strategy = failure.strategy
    if strategy not in STRATEGIES:
        known = ", ".join(STRATEGIES)
        raise Invalid(f"items.failure.strategy: {strategy[:80]!r}, one of {known} is wanted")
    retries = strategy == RETRY
    if not (1 if retries else 0) <= failure.times <= (TIMES_MAX if retries else 0):
        raise Invalid(f"items.failure.times: {failure.times}, 1 to {TIMES_MAX} with {RETRY} only")
    if not 0 <= failure.wait_ms <= (WAIT_MS_MAX if retries else 0):
        raise Invalid(
            f"items.failure.wait_ms: {failure.wait_ms}, 0 to {WAIT_MS_MAX} with {RETRY} only"
        )
    if strategy == DEAD_LETTER:
        names.topic_name(failure.topic, "items.failure.topic")
    elif failure.topic:
        raise Invalid(f"items.failure.topic: with {DEAD_LETTER} only")


def _check_items(tenant: str, items: tuple[ConnectorItem, ...]) -> None:
    names.tenant(tenant)
    names.items(items, "items")
    for item in items:
        names.name(item.name, "items.name")
        if item.type not in TYPES:
            raise Invalid(f"items.type: {item.type[:80]!r}, one of {', '.join(TYPES)} is wanted")
        names.topic_filter(item.topic_filter, "items.topic_filter")
        _check_failure(item.failure)
        json_text.check_object(item.config, "items.config", CONFIG_BYTES_MAX)


class _OfItems(Batch):
    """Commands whose items are connectors of one tenant."""

    __slots__ = ()

    tenant: str

    def slot_key_of(self, item: ConnectorItem | str) -> tuple[str, ...]:
        """Connectors spread by name."""
        return (self.tenant, item if isinstance(item, str) else item.name)


@command("mqtt.connector.create")
class CreateConnectors(_OfItems):
    """Create connectors. They wait for a broker, unless they are not to `start`."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[ConnectorItem, ...]
    start: bool = True

    def validate(self) -> None:
        """Names, configurations and numbers within their limits."""
        _check_items(self.tenant, self.items)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """AlreadyExists for a name that is taken."""

        def create(item: ConnectorItem) -> None:
            if db.get(CONNECTORS, self.tenant, item.name) is not None:
                raise AlreadyExists(f"items.name: {item.name!r} is there already")
            connector = Connector(
                tenant=self.tenant,
                name=item.name,
                type=item.type,
                config=item.config,
                topic_filter=item.topic_filter,
                failure=item.failure,
                status=IDLE if self.start else STOPPED,
                broker="",
                epoch=db.unique(),  # above those of a connector that had this name before
                reason="",
                created_ms=at.now_ms,
                updated_ms=at.now_ms,
            )
            put_connector(db, None, connector)

        return each(db, self.items, create)


@command("mqtt.connector.update")
class UpdateConnectors(_OfItems):
    """Change connectors. One that runs is assigned anew, so that it runs as it is wanted now."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[ConnectorItem, ...]

    def validate(self) -> None:
        """Names, configurations and numbers within their limits."""
        _check_items(self.tenant, self.items)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def update(item: ConnectorItem) -> None:
            before = found(db, self.tenant, item.name)
            changed = replace(
                before,
                type=item.type,
                config=item.config,
                topic_filter=item.topic_filter,
                failure=item.failure,
                updated_ms=at.now_ms,
            )
            put_connector(db, before, changed)
            if before.status == RUNNING:
                let_go(db, changed, at.now_ms)

        return each(db, self.items, update, changed="items")


class _ByName(_OfItems):
    """Commands that name connectors of one tenant."""

    __slots__ = ()

    names: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for name in self.names:
            names.name(name, "names")


@command("mqtt.connector.delete")
class DeleteConnectors(_ByName):
    """Delete connectors; whoever runs one learns of it with its next heartbeat."""

    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def delete(name: str) -> None:
            remove_connector(db, found(db, self.tenant, name))

        return each(db, self.names, delete, large="names")


@command("mqtt.connector.start")
class StartConnectors(_ByName):
    """Let connectors run that were stopped or have failed. One that runs goes on."""

    heavy: ClassVar[bool] = True
    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def start(name: str) -> None:
            connector = found(db, self.tenant, name)
            if connector.status in (STOPPED, FAILED):
                let_go(db, connector, at.now_ms)

        return each(db, self.names, start, large="names")


@command("mqtt.connector.stop")
class StopConnectors(_ByName):
    """Let connectors run no longer; whoever runs one learns of it with its next heartbeat."""

    heavy: ClassVar[bool] = True
    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def stop(name: str) -> None:
            connector = found(db, self.tenant, name)
            if connector.status != STOPPED:
                let_go(db, connector, at.now_ms, STOPPED)

        return each(db, self.names, stop, large="names")
