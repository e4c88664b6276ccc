"""Which broker runs a connector, and whether it still does.

The controller gives idle connectors to brokers (`AssignConnectors`) and takes them back from those
that are gone (`ReleaseConnectors`) or silent (`ExpireConnectors`). Every assignment has an epoch: a
broker says with each heartbeat under which one it runs a connector, and is told `Fenced` as soon as
the connector was stopped, changed or given to another. Then it ends it and looks again.

What has been silent for too long is decided in the apply, by the group's time.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.budgets import Budget
from state_machines.errors import Conflict, Fenced, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.mqtt.connectors import (
    BEATS,
    CHECKS,
    FAILED,
    IDLE,
    RUNNING,
    ConnectorBeat,
    ConnectorCheck,
    at_places,
    found,
    let_go,
    put_connector,
)
from state_machines.op import Stamp, command
from state_machines.tables import Tables

REASON_BYTES_MAX: Final = 1_024
TIMEOUT_MS: Final = 30_000  #: after which a silent connector is given to another broker
TIMEOUT_MS_MAX: Final = 24 * 3_600_000
SOME_MAX: Final = 10_000  #: connectors that one command of the controller looks at


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorHeartbeat:
    """A broker runs a connector under this epoch, or gives it up and says why."""

    tenant: str = names.DEFAULT_TENANT
    name: str
    epoch: int
    failure: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorAssignment:
    """An idle connector of this epoch goes to a broker."""

    tenant: str = names.DEFAULT_TENANT
    name: str
    epoch: int
    broker: str


@command("mqtt.connector.heartbeat")
class HeartbeatConnectors(Batch):
    """A broker says which connectors it runs, and which it gives up."""

    urgent: ClassVar[bool] = True
    broker: str
    items: tuple[ConnectorHeartbeat, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.name(self.broker, "broker")
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.tenant, "items.tenant")
            names.name(item.name, "items.name")
            names.positive(item.epoch, "items.epoch")
            names.name(item.failure, "items.failure", REASON_BYTES_MAX, empty=True)

    def slot_key_of(self, item: ConnectorHeartbeat) -> tuple[str, ...]:
        """Connectors spread by name."""
        return (item.tenant, item.name)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Fenced for one that this broker does not run under this epoch; NotFound if deleted.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        def heartbeat(item: ConnectorHeartbeat) -> None:
            if not item.failure:  # the usual one: the configuration is not even read
                beat = db.get(BEATS, item.tenant, item.name)
                if beat is not None and beat.epoch == item.epoch and beat.broker == self.broker:
                    db.put(BEATS, replace(beat, heartbeat_ms=at.now_ms))
                    return
            connector = found(db, item.tenant, item.name)
            if connector.broker != self.broker:
                raise Fenced(f"broker: {self.broker!r} does not run it, {connector.broker!r} does")
            if connector.epoch != item.epoch:
                raise Fenced(f"epoch: {item.epoch}, in force is {connector.epoch}")
            assert item.failure, f"{connector} has no heartbeat"
            let_go(db, connector, at.now_ms, FAILED, item.failure)

        return each(db, self.items, heartbeat, large="items")


@command("mqtt.connector.assign")
class AssignConnectors(Batch):
    """The controller gives idle connectors to brokers. Each that is OK has a higher epoch."""

    urgent: ClassVar[bool] = True
    controller_epoch: int
    items: tuple[ConnectorAssignment, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.tenant, "items.tenant")
            names.name(item.name, "items.name")
            names.name(item.broker, "items.broker")
            names.positive(item.epoch, "items.epoch")

    def slot_key_of(self, item: ConnectorAssignment) -> tuple[str, ...]:
        """Connectors spread by name."""
        return (item.tenant, item.name)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict unless the connector is idle and of the expected epoch.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        pass_fence(db, self.controller_epoch)

        def assign(item: ConnectorAssignment) -> None:
            connector = found(db, item.tenant, item.name)
            if connector.status != IDLE:
                raise Conflict(f"status: {item.name!r} is {connector.status}")
            if connector.epoch != item.epoch:
                raise Conflict(f"epoch: {item.epoch}, in force is {connector.epoch}")
            epoch = connector.epoch + 1
            now = replace(
                connector, status=RUNNING, broker=item.broker, epoch=epoch, updated_ms=at.now_ms
            )
            put_connector(db, connector, now)
            db.put(
                BEATS,
                ConnectorBeat(item.tenant, item.name, item.broker, epoch, at.now_ms, at.now_ms),
            )
            db.put(CHECKS, ConnectorCheck(at.now_ms, item.tenant, item.name))

        return each(db, self.items, assign, large="items")


@command("mqtt.connector.expire")
class ExpireConnectors:
    """The controller takes connectors back whose brokers are silent. The reply is how many.

    It looks at `limit` of those that could be silent, the longest ago first, until those that it
    takes are about `BYTES_TAKEN_MAX`.
    """

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    controller_epoch: int
    timeout_ms: int = TIMEOUT_MS
    limit: int = 1_000

    def validate(self) -> None:
        """Numbers within their limits."""
        check_epoch(self.controller_epoch)
        check_timeout(self.timeout_ms)
        _check_limit(self.limit)

    def weight(self) -> int:
        """Connectors."""
        return self.limit

    def join(self, parts: Sequence[Self], replies: Sequence[int]) -> int:
        """How many in all groups."""
        return sum(replies)

    def apply(self, db: Tables, at: Stamp) -> int:
        """Silent is who has not been heard of for longer than the timeout, by the group's time."""
        pass_fence(db, self.controller_epoch)
        upto = at.now_ms - self.timeout_ms - 1
        expired, budget = 0, Budget(rows=self.limit)
        for _, check, _ in list(itertools.islice(db.scan(CHECKS, upto=upto), self.limit)):
            if budget.spent:
                break
            beat = db.get(BEATS, check.tenant, check.name)
            assert beat is not None, f"{check} is of nothing that runs"
            if beat.heartbeat_ms > upto:
                db.delete(CHECKS, check.since_ms, check.tenant, check.name)
                db.put(CHECKS, replace(check, since_ms=beat.heartbeat_ms))
                db.put(BEATS, replace(beat, since_ms=beat.heartbeat_ms))
                continue
            _take_back(db, at, (check.tenant, check.name), budget)
            expired += 1
        return expired


@command("mqtt.connector.release")
class ReleaseConnectors:
    """The controller takes up to `limit` connectors back from a broker that is gone, of about
    `BYTES_TAKEN_MAX`.

    The reply is how many: none if there are no more.
    """

    urgent: ClassVar[bool] = True
    every_group: ClassVar[bool] = True
    controller_epoch: int
    broker: str
    limit: int = 1_000

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_epoch(self.controller_epoch)
        names.name(self.broker, "broker")
        _check_limit(self.limit)

    def weight(self) -> int:
        """Connectors."""
        return self.limit

    def join(self, parts: Sequence[Self], replies: Sequence[int]) -> int:
        """How many in all groups."""
        return sum(replies)

    def apply(self, db: Tables, at: Stamp) -> int:
        """They are idle then."""
        pass_fence(db, self.controller_epoch)
        released, budget = 0, Budget(rows=self.limit)
        for key in list(itertools.islice(at_places(db, RUNNING, self.broker), self.limit)):
            if budget.spent:
                break
            _take_back(db, at, key, budget)
            released += 1
        return released


def _take_back(db: Tables, at: Stamp, key: tuple[str, str], budget: Budget) -> None:
    connector = found(db, *key)
    budget.spend(size=len(connector.config.encode()) + len(connector.topic_filter.encode()))
    let_go(db, connector, at.now_ms)


def check_timeout(timeout_ms: int) -> None:
    """Raise Invalid unless it is a time to wait for."""
    if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        raise Invalid(f"timeout_ms: {timeout_ms}, the range is 1 to {TIMEOUT_MS_MAX}")


def _check_limit(limit: int) -> None:
    if not 0 < limit <= SOME_MAX:
        raise Invalid(f"limit: {limit}, the range is 1 to {SOME_MAX}")
