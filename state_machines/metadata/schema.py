"""Schemas: what the records of a topic look like, version after version.

    PutSchemas(items=(SchemaPut(name="order", type="avro", text="...", expected_version=3),))

Whether a new version fits the old ones is found out at the door (`metaray/schemas`), where the
libraries of the formats are; what is put says which version it was checked against, of which text
(`expected_fingerprint`) and by which mode, and is a Conflict if any has changed since. So two who
register at the same moment cannot pass each other, and a text that was checked against the last
version is the next one.

Version numbers rise by one, and none is used again while the schema is there. One that is made
again after it was deleted begins anew with 1: a number alone does not say which text is meant, its
fingerprint does. The newest version goes only with its schema, because it is what the next one is
checked against. A schema and its versions do not go while the schema is bound to a resource, a
topic for instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import AlreadyExists, Conflict, Invalid, NotFound, QuotaExceeded
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.metadata.schemas import (
    BACKWARD,
    BINDINGS,
    BOUND,
    COMPATIBILITIES,
    FINGERPRINT_BYTES,
    SCHEMA_BYTES_MAX,
    SCHEMAS,
    TYPES,
    VERSIONS,
    VERSIONS_MAX,
    Schema,
    SchemaBinding,
    SchemaVersion,
    fingerprint,
    newest,
)
from state_machines.op import Stamp, command
from state_machines.tables import Tables

ROWS_DELETED_MAX: Final = 2_000  #: versions that one command deletes


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPut:
    """A version to be. `expected_version` is the newest that it was checked against, 0: none.

    `expected_fingerprint` is that one's (`SchemaVersion.fingerprint`); empty: not asked.
    """

    name: str
    type: str
    compatibility: str = BACKWARD  #: that it was checked by; a new schema's own
    text: str
    expected_version: int
    expected_fingerprint: str = ""


@dataclass(frozen=True, slots=True)
class SchemaMode:
    """By which mode the next version of a schema is to be checked."""

    name: str
    compatibility: str


@dataclass(frozen=True, slots=True)
class SchemaNumber:
    """A version of a schema."""

    name: str
    version: int


@dataclass(frozen=True, slots=True)
class SchemaUse:
    """A schema and a resource."""

    name: str
    resource: str


def _found(db: Tables, tenant: str, name: str) -> Schema:
    schema = db.get(SCHEMAS, tenant, name)
    if schema is None:
        raise NotFound(f"name: {name!r} is not there")
    return schema


def _unbound(schema: Schema) -> None:
    if schema.bindings:
        raise Conflict(f"name: {schema.name!r} is bound to {schema.bindings} resources")


def _check_compatibility(value: str) -> None:
    if value not in COMPATIBILITIES:
        known = ", ".join(COMPATIBILITIES)
        raise Invalid(f"items.compatibility: {value[:80]!r}, one of {known} is wanted")


def _check_fingerprint(expected: str, last: SchemaVersion | None) -> None:
    """Conflict unless the newest text is the expected one: the same number may be of another, in a
    schema that was made again or restored since."""
    if not expected:
        return
    if last is None:
        raise Conflict(f"expected_fingerprint: {expected}, there is no version to have it")
    if expected != last.fingerprint:
        raise Conflict(f"expected_fingerprint: {expected}, the newest has {last.fingerprint}")


class _OfSchemas(Batch):
    """Commands whose items name schemas. A schema, its versions and bindings stay together."""

    __slots__ = ()

    tenant: str

    def slot_key_of(
        self, item: SchemaPut | SchemaMode | SchemaNumber | SchemaUse | str
    ) -> tuple[str, str]:
        """Schemas spread by name."""
        return (self.tenant, item if isinstance(item, str) else item.name)


@command("metadata.schema.put")
class PutSchemas(_OfSchemas):
    """Add versions. Each that is OK is version `expected_version` + 1."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SchemaPut, ...]

    def validate(self) -> None:
        """Names, types and texts within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "items.name")
            if item.type not in TYPES:
                known = ", ".join(TYPES)
                raise Invalid(f"items.type: {item.type[:80]!r}, one of {known} is wanted")
            _check_compatibility(item.compatibility)
            names.name(item.text, "items.text", SCHEMA_BYTES_MAX)
            names.positive(item.expected_version, "items.expected_version")
            names.name(
                item.expected_fingerprint,
                "items.expected_fingerprint",
                FINGERPRINT_BYTES,
                empty=True,
            )

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Conflict unless type, mode, newest version and its fingerprint are as expected.

        AlreadyExists for the text of the newest version; QuotaExceeded beyond `VERSIONS_MAX`.
        """

        def put(item: SchemaPut) -> None:
            old = db.get(SCHEMAS, self.tenant, item.name) or Schema(
                self.tenant, item.name, item.type, item.compatibility, 0, 0, 0, at.now_ms, 0
            )
            if item.expected_version != old.version:
                raise Conflict(
                    f"expected_version: {item.expected_version}, the newest is {old.version}"
                )
            if item.type != old.type:
                raise Conflict(f"type: {item.type}, the schema is {old.type}")
            if item.compatibility != old.compatibility:
                raise Conflict(
                    f"compatibility: {item.compatibility}, in force is {old.compatibility}"
                )
            if old.versions >= VERSIONS_MAX:
                raise QuotaExceeded(f"name: {item.name!r} has {VERSIONS_MAX} versions, the limit")
            digest = fingerprint(item.text)
            last = newest(db, old)
            _check_fingerprint(item.expected_fingerprint, last)
            if last is not None and last.fingerprint == digest:
                raise AlreadyExists(f"text: it is version {last.version}")
            number = old.version + 1
            db.put(
                SCHEMAS,
                replace(old, version=number, versions=old.versions + 1, updated_ms=at.now_ms),
            )
            db.put(
                VERSIONS,
                SchemaVersion(
                    self.tenant, item.name, number, item.type, item.text, digest, at.now_ms
                ),
            )

        return each(db, self.items, put)


@command("metadata.schema.configure")
class ConfigureSchemas(_OfSchemas):
    """Change by which mode the next versions are checked. Versions that are there stay."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SchemaMode, ...]

    def validate(self) -> None:
        """Names and modes."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "items.name")
            _check_compatibility(item.compatibility)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for a schema that is not there."""

        def configure(item: SchemaMode) -> None:
            schema = _found(db, self.tenant, item.name)
            changed = replace(schema, compatibility=item.compatibility, updated_ms=at.now_ms)
            db.put(SCHEMAS, changed)

        return each(db, self.items, configure)


@command("metadata.schema.delete_version")
class DeleteSchemaVersions(_OfSchemas):
    """Delete old versions."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SchemaNumber, ...]

    def validate(self) -> None:
        """Names and numbers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            names.name(item.name, "items.name")
            names.positive(item.version, "items.version")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there; Conflict for the newest, and while it is bound.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """

        last: dict[str, SchemaVersion | None] = {}

        def delete(item: SchemaNumber) -> None:
            schema = _found(db, self.tenant, item.name)
            _unbound(schema)
            if item.name not in last:  # it stays the newest, whatever goes here
                last[item.name] = newest(db, schema)
            kept = last[item.name]
            if kept is not None and item.version == kept.version:
                raise Conflict(f"version: {item.version} is the newest, it goes with the schema")
            if not db.delete(VERSIONS, self.tenant, item.name, item.version):
                raise NotFound(f"version: {item.name!r} has no version {item.version}")
            left = schema.versions - 1
            db.put(SCHEMAS, replace(schema, versions=left, updated_ms=at.now_ms))

        return each(db, self.items, delete, large="items")


@command("metadata.schema.delete")
class DeleteSchemas(_OfSchemas):
    """Delete schemas with all their versions: up to `ROWS_DELETED_MAX` of these in one command."""

    heavy: ClassVar[bool] = True
    many: ClassVar[str] = "names"
    tenant: str = names.DEFAULT_TENANT
    names: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.names, "names")
        for name in self.names:
            names.name(name, "names")

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there; Conflict while it is bound.

        QuotaExceeded for those that are too many for this command: ask again for them.
        """
        left = ROWS_DELETED_MAX

        def delete(name: str) -> None:
            nonlocal left
            schema = _found(db, self.tenant, name)
            _unbound(schema)
            if schema.versions > left:
                raise QuotaExceeded(
                    f"names: {name!r} has {schema.versions} versions, the command may delete {left}"
                )
            left -= schema.versions
            for _, row, _ in list(db.scan(VERSIONS, self.tenant, name)):
                db.delete(VERSIONS, self.tenant, name, row.version)
            db.delete(SCHEMAS, self.tenant, name)

        return each(db, self.names, delete, large="names")


def _check_uses(tenant: str, items: Sequence[SchemaUse]) -> None:
    names.tenant(tenant)
    names.items(tuple(items), "items")
    for item in items:
        names.name(item.name, "items.name")
        names.name(item.resource, "items.resource", MQTT_STRING_BYTES_MAX)


@command("metadata.schema.bind")
class BindSchemas(_OfSchemas):
    """Bind schemas to resources. What is bound already stays as it is."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SchemaUse, ...]

    def validate(self) -> None:
        """Names within their limits."""
        _check_uses(self.tenant, self.items)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for a schema that is not there."""

        def bind(item: SchemaUse) -> None:
            schema = _found(db, self.tenant, item.name)
            if db.get(BINDINGS, self.tenant, item.name, item.resource) is not None:
                return
            row = SchemaBinding(self.tenant, item.name, item.resource, at.now_ms)
            db.put(BINDINGS, row)
            db.put(BOUND, row)
            db.put(SCHEMAS, replace(schema, bindings=schema.bindings + 1))

        return each(db, self.items, bind)


@command("metadata.schema.unbind")
class UnbindSchemas(_OfSchemas):
    """Take bindings back."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[SchemaUse, ...]

    def validate(self) -> None:
        """Names within their limits."""
        _check_uses(self.tenant, self.items)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for a binding that is not there."""

        def unbind(item: SchemaUse) -> None:
            schema = _found(db, self.tenant, item.name)
            if not db.delete(BINDINGS, self.tenant, item.name, item.resource):
                raise NotFound(f"resource: {item.name!r} is not bound to it")
            db.delete(BOUND, self.tenant, item.resource, item.name)
            db.put(SCHEMAS, replace(schema, bindings=schema.bindings - 1))

        return each(db, self.items, unbind)
