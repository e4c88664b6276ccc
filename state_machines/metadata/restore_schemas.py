"""How schemas, their versions and bindings come back from a backup.

A schema counts its versions and bindings: the counts follow from the rows that are put, not from
what the backup says. The number of its last version only rises, so what is put next has a number
that neither the backup nor the schema that is there has given.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from state_machines import names, restoring
from state_machines.errors import Conflict, Invalid, NotFound, QuotaExceeded
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.metadata.schema import PutSchemas, SchemaPut
from state_machines.metadata.schemas import (
    BINDINGS,
    BOUND,
    COMPATIBILITIES,
    SCHEMAS,
    TYPES,
    VERSIONS,
    VERSIONS_MAX,
    Schema,
    SchemaBinding,
    SchemaVersion,
    fingerprint,
)
from state_machines.op import Stamp
from state_machines.restoring import left_out, restorer
from state_machines.tables import Tables

OF_SCHEMA: Final = 1  #: the rank of what hangs on one

left_out("made from the bindings", BOUND)


def _check_schema(row: Schema) -> None:
    names.tenant(row.tenant)
    names.name(row.name, "name")
    restoring.check_word(row.type, "type", TYPES)
    restoring.check_word(row.compatibility, "compatibility", COMPATIBILITIES)
    restoring.count(row.version, "version", 1)


def _remove_schema(db: Tables, at: Stamp, row: Schema) -> None:
    if row.versions or row.bindings:
        raise Conflict(f"name: {row.name!r} has {row.versions} versions, {row.bindings} bindings")
    db.delete(SCHEMAS, row.tenant, row.name)


@restorer(
    SCHEMAS,
    check=_check_schema,
    plain=lambda row: replace(row, versions=0, bindings=0),
    floors=("version",),
    remove=_remove_schema,
)
def _schema(db: Tables, at: Stamp, before: Schema | None, row: Schema) -> None:
    there = before if before is not None else replace(row, versions=0, bindings=0)
    version = max(there.version, row.version)
    now = replace(row, version=version, versions=there.versions, bindings=there.bindings)
    db.put(SCHEMAS, now)


def _counted(
    db: Tables, tenant: str, name: str, versions: int = 0, bindings: int = 0, version: int = 0
) -> None:
    """The schema has so many more, and was given this version at least. NotFound without one,
    QuotaExceeded beyond the limit."""
    schema = db.get(SCHEMAS, tenant, name)
    if schema is None:
        raise NotFound(f"name: {name!r} is not there")
    if schema.versions + versions > VERSIONS_MAX:
        raise QuotaExceeded(f"name: {name!r} has {VERSIONS_MAX} versions, the limit")
    now = replace(
        schema,
        version=max(schema.version, version),
        versions=schema.versions + versions,
        bindings=schema.bindings + bindings,
    )
    db.put(SCHEMAS, now)


def _check_version(row: SchemaVersion) -> None:
    item = SchemaPut(name=row.name, type=row.type, text=row.text, expected_version=0)
    PutSchemas(tenant=row.tenant, items=(item,)).validate()
    restoring.count(row.version, "version", 1)
    if row.fingerprint != fingerprint(row.text):
        raise Invalid("fingerprint: it is not that of the text")


def _remove_version(db: Tables, at: Stamp, row: SchemaVersion) -> None:
    db.delete(VERSIONS, row.tenant, row.name, row.version)
    _counted(db, row.tenant, row.name, versions=-1)


@restorer(VERSIONS, check=_check_version, rank=OF_SCHEMA, remove=_remove_version)
def _version(db: Tables, at: Stamp, before: SchemaVersion | None, row: SchemaVersion) -> None:
    if before is None:
        _counted(db, row.tenant, row.name, versions=1, version=row.version)
    db.put(VERSIONS, row)


def _check_binding(row: SchemaBinding) -> None:
    names.tenant(row.tenant)
    names.name(row.name, "name")
    names.name(row.resource, "resource", MQTT_STRING_BYTES_MAX)


def _remove_binding(db: Tables, at: Stamp, row: SchemaBinding) -> None:
    db.delete(BINDINGS, row.tenant, row.name, row.resource)
    db.delete(BOUND, row.tenant, row.resource, row.name)
    _counted(db, row.tenant, row.name, bindings=-1)


@restorer(BINDINGS, check=_check_binding, rank=OF_SCHEMA, remove=_remove_binding)
def _binding(db: Tables, at: Stamp, before: SchemaBinding | None, row: SchemaBinding) -> None:
    if before is None:
        _counted(db, row.tenant, row.name, bindings=1)
    db.put(BINDINGS, row)
    db.put(BOUND, row)
