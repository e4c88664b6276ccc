"""What can be asked of schemas: the rows and commands are in `schemas.py` and `schema.py`."""

from __future__ import annotations

from typing import ClassVar

from state_machines import names
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.metadata.schemas import (
    BINDINGS,
    BOUND,
    SCHEMAS,
    VERSIONS,
    Schema,
    SchemaBindingPage,
    SchemaPage,
    SchemaVersion,
    SchemaVersionPage,
    newest,
)
from state_machines.op import Stamp, query
from state_machines.tables import Tables


@query("metadata.schema.get")
class GetSchema:
    """Read a schema without its texts."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    name: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """Schemas spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> Schema | None:
        """None when there is none."""
        return db.get(SCHEMAS, self.tenant, self.name)


@query("metadata.schema.version")
class GetSchemaVersion:
    """Read one version of a schema; 0 asks for the newest."""

    tenant: str = names.DEFAULT_TENANT
    name: str
    version: int = 0

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")
        names.positive(self.version, "version")

    def slot_key(self) -> tuple[str, ...]:
        """Schemas spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> SchemaVersion | None:
        """None when there is none."""
        schema = db.get(SCHEMAS, self.tenant, self.name)
        if schema is None:
            return None
        if not self.version:
            return newest(db, schema)
        return db.get(VERSIONS, self.tenant, self.name, self.version)


@query("metadata.schema.list")
class ListSchemas:
    """Schemas of a tenant whose name begins with `starts`, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", empty=True)

    def read(self, db: Tables, at: Stamp) -> SchemaPage:
        """By name."""
        rows, after = db.page(
            SCHEMAS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return SchemaPage(tuple([row for row, _ in rows]), after)


@query("metadata.schema.versions")
class ListSchemaVersions:
    """The versions of a schema, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    name: str
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """Schemas spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> SchemaVersionPage:
        """The oldest first."""
        rows, after = db.page(VERSIONS, self.tenant, self.name, after=self.after, limit=self.limit)
        return SchemaVersionPage(tuple([row for row, _ in rows]), after)


@query("metadata.schema.bindings")
class ListSchemaBindings:
    """What a schema is bound to, a page at a time."""

    tenant: str = names.DEFAULT_TENANT
    name: str
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.name, "name")

    def slot_key(self) -> tuple[str, ...]:
        """Schemas spread by name."""
        return (self.tenant, self.name)

    def read(self, db: Tables, at: Stamp) -> SchemaBindingPage:
        """By resource."""
        rows, after = db.page(BINDINGS, self.tenant, self.name, after=self.after, limit=self.limit)
        return SchemaBindingPage(tuple([row for row, _ in rows]), after)


@query("metadata.schema.bound")
class ListBoundSchemas:
    """Which schemas a resource is bound to, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    resource: str
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.resource, "resource", MQTT_STRING_BYTES_MAX)

    def read(self, db: Tables, at: Stamp) -> SchemaBindingPage:
        """By schema."""
        rows, after = db.page(BOUND, self.tenant, self.resource, after=self.after, limit=self.limit)
        return SchemaBindingPage(tuple([row for row, _ in rows]), after)
