"""What can be asked of connectors: the rows are in `connectors.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from state_machines import indexes, names
from state_machines.errors import Invalid
from state_machines.mqtt.connector_duty import TIMEOUT_MS, check_timeout
from state_machines.mqtt.connectors import (
    CHECKS,
    CONNECTORS,
    IDLE,
    LOADS,
    PLACES,
    STATUSES,
    Connector,
    ConnectorLoad,
)
from state_machines.op import Stamp, query
from state_machines.tables import Tables


@dataclass(frozen=True, slots=True)
class ConnectorPage:
    """Connectors; `next` continues after the last one, empty at the end."""

    connectors: tuple[Connector, ...]
    next: bytes


@query("mqtt.connector.get")
class GetConnector:
    """Read a connector."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """Connectors spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> Connector | None:
        """None when there is none."""
        return db.get(CONNECTORS, self.tenant, self.name)


@query("mqtt.connector.list")
class ListConnectors:
    """Connectors of a tenant whose name begins with `starts`, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> ConnectorPage:
        """By name."""
        rows, after = db.page(
            CONNECTORS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return ConnectorPage(tuple([row for row, _ in rows]), after)


@query("mqtt.connector.of_status")
class ListConnectorsByStatus:
    """Connectors of all tenants in a status, a page at a time; of one broker if it is named."""

    every_group: ClassVar[bool] = True
    status: str = IDLE
    broker: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """A known status, names within their limits."""
        if self.status not in STATUSES:
            known = ", ".join(STATUSES)
            raise Invalid(f"status: {self.status[:80]!r}, one of {known} is wanted")
        names.name(self.broker, "broker", empty=True)

    def read(self, db: Tables, at: Stamp) -> ConnectorPage:
        """By broker, tenant and name."""
        prefix = (self.status, self.broker) if self.broker else (self.status,)
        rows, after = indexes.page(
            db,
            PLACES,
            prefix,
            CONNECTORS,
            lambda place: (place.tenant, place.name),
            after=self.after,
            limit=self.limit,
        )
        return ConnectorPage(tuple(rows), after)


@query("mqtt.connector.loads")
class ConnectorLoads:
    """How many connectors each broker runs; a broker without one is not named."""

    every_group: ClassVar[bool] = True

    def join(
        self, parts: Sequence[Self], replies: Sequence[tuple[ConnectorLoad, ...]]
    ) -> tuple[ConnectorLoad, ...]:
        """Over all groups."""
        total: Counter[str] = Counter()
        for reply in replies:
            for load in reply:
                total[load.broker] += load.running
        return tuple([ConnectorLoad(*each) for each in sorted(total.items())])

    def read(self, db: Tables, at: Stamp) -> tuple[ConnectorLoad, ...]:
        """Kept by every command that changes it."""
        return tuple(sorted([row for _, row, _ in db.scan(LOADS)], key=lambda row: row.broker))


@query("mqtt.connector.silent")
class SilentConnectors:
    """Whether `ExpireConnectors` with this timeout would look at anything: a look at one row."""

    every_group: ClassVar[bool] = True
    timeout_ms: int = TIMEOUT_MS

    def validate(self) -> None:
        """Numbers within their limits."""
        check_timeout(self.timeout_ms)

    def join(self, parts: Sequence[Self], replies: Sequence[bool]) -> bool:
        """Over all groups."""
        return any(replies)

    def read(self, db: Tables, at: Stamp) -> bool:
        """By the group's time."""
        return next(db.scan(CHECKS, upto=at.now_ms - self.timeout_ms - 1), None) is not None
