"""Registering schemas: the check at the door, and the put that holds what was checked.

    version = await register_schema(client, "order", "avro", text)

Whether a new version fits the newest one is found out here, where the libraries of the formats are
(Avro's own, `jsonschema`, and Google's `protoc` out of `grpcio-tools`). What is put says which
version and text it was checked against; if another came in between, be it the same number of a
schema that was made again, it is a Conflict there, and checked anew here. `check_compatible` is the
check alone, for a build that wants to know before it deploys.

The modes are those of `state_machines/metadata/schemas.py`: with `backward` who has the new schema
reads what was written with the old one, with `forward` the other way round, with `full` both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from metaray.client import Client
from metaray.schemas import avro_rules, json_rules, protobuf_rules
from metaray.schemas.problems import NotASchema
from state_machines.batch import Outcome
from state_machines.errors import Conflict, Invalid
from state_machines.metadata.schema import PutSchemas, SchemaPut
from state_machines.metadata.schema_queries import GetSchema, GetSchemaVersion
from state_machines.metadata.schemas import BACKWARD, COMPATIBILITIES, NONE, TYPES

__all__ = ["Incompatible", "check_compatible", "check_schema", "register_schema"]

ATTEMPTS_MAX: Final = 16  #: so often is a schema checked anew because another was faster
PROBLEMS_SHOWN: Final = 8  #: of them, in the words of an error

Parsed = TypeVar("Parsed")


class Incompatible(Invalid):
    """The text is no schema of its type, or does not fit the newest version. It says all it found.

    Nothing was proposed.
    """

    def __init__(self, detail: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(detail, problems)
        self.problems = problems

    def __str__(self) -> str:
        return self.detail


def check_schema(type: str, text: str) -> list[str]:
    """What keeps the text from being a schema of this type; nothing if it is one."""
    return check_compatible(type, NONE, text, "")


def check_compatible(type: str, mode: str, new: str, old: str) -> list[str]:
    """What keeps a new version from following the old one, in words; nothing if it fits.

    It may take tens of milliseconds: from an event loop call it with `asyncio.to_thread`. Raises
    Invalid for a type or a mode that there is not.
    """
    if type not in TYPES:
        raise Invalid(f"type: {type[:80]!r}, one of {', '.join(TYPES)} is wanted")
    if mode not in COMPATIBILITIES:
        raise Invalid(f"mode: {mode[:80]!r}, one of {', '.join(COMPATIBILITIES)} is wanted")
    match type:
        case "avro":
            return _checked(
                avro_rules.parse, avro_rules.parse_stored, avro_rules.problems, mode, new, old
            )
        case "json":
            return _checked(
                json_rules.parse, json_rules.parse_stored, json_rules.problems, mode, new, old
            )
        case _:
            return _checked(
                protobuf_rules.parse, protobuf_rules.parse, protobuf_rules.problems, mode, new, old
            )


def _checked(
    parse: Callable[[str], Parsed],
    parse_stored: Callable[[str], Parsed],
    problems: Callable[[str, Parsed, Parsed], list[str]],
    mode: str,
    new: str,
    old: str,
) -> list[str]:
    try:
        new_schema = parse(new)
    except NotASchema as error:
        return [f"not a schema: {error}"]
    if mode == NONE:
        return []
    try:
        old_schema = parse_stored(old)
    except NotASchema as error:
        return [f"the old version is not a schema: {error}"]
    return problems(mode, new_schema, old_schema)


async def register_schema(
    client: Client,
    name: str,
    type: str,
    text: str,
    *,
    compatibility: str = BACKWARD,
    tenant: str = "default",
) -> int:
    """Make the text the newest version of a schema. Returns its number.

    A schema that is not there begins with it, and with `compatibility`; later versions are checked
    by the mode in force. The text of the newest version is that version. Raises Incompatible if the
    text does not fit, Conflict if others were faster for `ATTEMPTS_MAX` times, and for a schema of
    which a restore has left no version.
    """
    for _ in range(ATTEMPTS_MAX):
        schema = await client.call(GetSchema(tenant=tenant, name=name))
        number, mode, old, fingerprint = 0, compatibility, "", ""
        if schema is not None:
            number, mode = schema.version, schema.compatibility
            newest = await client.call(GetSchemaVersion(tenant=tenant, name=name))
            if newest is None and not schema.versions:
                raise Conflict(
                    f"name: {name!r} has no versions to check a text against, as amid a restore"
                )
            if newest is None:
                continue  # deleted between the two reads
            if newest.text == text and newest.type == type:
                return newest.version
            old, fingerprint = newest.text, newest.fingerprint
            if type != schema.type:
                raise Incompatible(f"type: {type}, the schema is {schema.type}")
        checked = mode if schema is not None else NONE
        problems = await asyncio.to_thread(check_compatible, type, checked, text, old)
        if problems:
            said = "; ".join(problems[:PROBLEMS_SHOWN])
            more = len(problems) - PROBLEMS_SHOWN
            detail = f"text: {said}" + (f"; and {more} more" if more > 0 else "")
            raise Incompatible(detail, tuple(problems))
        item = SchemaPut(
            name=name,
            type=type,
            compatibility=mode,
            text=text,
            expected_version=number,
            expected_fingerprint=fingerprint,
        )
        (outcome,) = await client.call(PutSchemas(tenant=tenant, items=(item,)))
        if outcome.ok:
            return number + 1
        if not _overtaken(outcome):
            outcome.or_raise()
    raise Conflict(f"name: {name!r} was changed by others {ATTEMPTS_MAX} times meanwhile")


def _overtaken(outcome: Outcome) -> bool:
    """Whether somebody else has put a version since the read, perhaps this very text."""
    return outcome.code in ("CONFLICT", "ALREADY_EXISTS")
