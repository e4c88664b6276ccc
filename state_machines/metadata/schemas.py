"""The rows of schemas, their versions and bindings. Commands are in `schema.py`."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from state_machines.tables import Table, Tables

TYPES: Final = ("json", "avro", "protobuf")

NONE: Final = "none"
BACKWARD: Final = "backward"  #: who has the new version can read what was written with the last
FORWARD: Final = "forward"  #: who has the last version can read what is written with the new
FULL: Final = "full"  #: both
COMPATIBILITIES: Final = (NONE, BACKWARD, FORWARD, FULL)

SCHEMA_BYTES_MAX: Final = 100_000
FINGERPRINT_BYTES: Final = 64  #: of a SHA-256 in hex
VERSIONS_MAX: Final = 1_000  #: of one schema, deleted ones not counted


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema. `version` is the last that was given: its newest, or after a restore one that is
    not there. Times are the group's, Unix milliseconds."""

    tenant: str
    name: str
    type: str
    compatibility: str
    version: int
    versions: int  #: how many there are
    bindings: int
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a schema; `fingerprint` is the SHA-256 of its text, in hex."""

    tenant: str
    name: str
    version: int
    type: str
    text: str
    fingerprint: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class SchemaBinding:
    """A resource, a topic for instance, whose records look like a schema."""

    tenant: str
    name: str
    resource: str
    bound_ms: int


@dataclass(frozen=True, slots=True)
class SchemaPage:
    """Schemas by name; `next` continues after the last one, empty at the end."""

    schemas: tuple[Schema, ...]
    next: bytes


@dataclass(frozen=True, slots=True)
class SchemaVersionPage:
    """Versions of a schema; `next` continues after the last one, empty at the end."""

    versions: tuple[SchemaVersion, ...]
    next: bytes


@dataclass(frozen=True, slots=True)
class SchemaBindingPage:
    """Bindings; `next` continues after the last one, empty at the end."""

    bindings: tuple[SchemaBinding, ...]
    next: bytes


SCHEMAS: Final = Table("metadata.schema", Schema, key=("tenant", "name"))
VERSIONS: Final = Table("metadata.schema_version", SchemaVersion, key=("tenant", "name", "version"))
BINDINGS: Final = Table(
    "metadata.schema_binding", SchemaBinding, key=("tenant", "name", "resource")
)
BOUND: Final = Table(
    "metadata.schema_bound",
    SchemaBinding,
    key=("tenant", "resource", "name"),
    slot_fields=("tenant", "name"),
)


def newest(db: Tables, schema: Schema) -> SchemaVersion | None:
    """The newest version that is there, None without any."""
    found = db.get(VERSIONS, schema.tenant, schema.name, schema.version)
    if found is not None:
        return found
    there = deque(db.store.scan(VERSIONS.name, (schema.tenant, schema.name)), maxlen=1)
    return VERSIONS.decode(there[0][1])[0] if there else None


def fingerprint(text: str) -> str:
    """The SHA-256 of a schema's text, in hex."""
    return sha256(text.encode()).hexdigest()
