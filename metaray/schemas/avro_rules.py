"""Avro: schema resolution as its specification has it, by Avro's own library.

A field that only the reader has needs a default; one that only the writer has is passed over; types
may be promoted (int to long); a reader's enum has the writer's symbols or a default; a decimal
keeps its precision and scale.

The library looks at no default, so that is done here: one that is not of the field's type is
refused with a new version. One that is stored already counts as none. A union's default may be of
any of its types, as Avro 1.12 has it, though some readers, Python's among them, take it for one of
the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import avro.compatibility
import avro.errors
import avro.schema

from metaray.schemas.problems import NotASchema, each_way, no_constant, shortened

Schema = Any
"""A schema as the library reads it."""

BITS: Final = {"int": 32, "long": 64}


def parse(text: str) -> Schema:
    """Raises NotASchema, also for a default that is not of its field's type, and for NaN."""
    schema, misfits = _read(text)
    json.loads(text, parse_constant=no_constant)
    for name, field in misfits:
        said = f"{name}: the default {json.dumps(field.default)} is not of the field's type"
        raise NotASchema(shortened(said))
    return schema


def parse_stored(text: str) -> Schema:
    """A schema whose defaults were not looked at when it was put. Raises NotASchema."""
    schema, misfits = _read(text)
    for _, field in misfits:
        field._has_default = False
    return schema


def _read(text: str) -> tuple[Schema, list[tuple[str, Any]]]:
    """A schema, and the fields whose default is not of their type, by full name."""
    try:
        schema = avro.schema.parse(text)
        return schema, list(_misfits(schema))
    except (avro.errors.AvroException, json.JSONDecodeError) as error:
        raise NotASchema(shortened(error)) from None
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError) as error:
        # What the library has no refusal of its own for: nesting without end, a list for a name.
        raise NotASchema(type(error).__name__) from None


def _misfits(schema: Schema) -> Iterator[tuple[str, Any]]:
    waiting, seen = [schema], set()
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, avro.schema.RecordSchema):
            for field in each.fields:
                waiting.append(field.type)
                if field.has_default and not _is_of(field.type, field.default):
                    yield f"{each.fullname}.{field.name}", field
        elif isinstance(each, avro.schema.UnionSchema):
            waiting += each.schemas
        elif each.type in ("array", "map"):
            waiting.append(each.items if each.type == "array" else each.values)


def _is_of(schema: Schema, value: Any) -> bool:
    """Whether a default, as JSON has it, is of the type."""
    match schema.type:
        case "null":
            return value is None
        case "boolean":
            return type(value) is bool
        case "int" | "long":
            bound = 1 << BITS[schema.type] - 1
            return type(value) is int and -bound <= value < bound
        case "float" | "double":
            return type(value) in (int, float)
        case "string":
            return type(value) is str
        case "bytes" | "fixed":  # a letter is a byte
            if type(value) is not str or max(value, default="") > "\xff":
                return False
            return bool(schema.type == "bytes" or len(value) == schema.size)
        case "enum":
            return value in schema.symbols
        case "array":
            return type(value) is list and all(_is_of(schema.items, each) for each in value)
        case "map":
            return type(value) is dict and all(
                _is_of(schema.values, each) for each in value.values()
            )
        case "union" | "error_union":
            return any(_is_of(each, value) for each in schema.schemas)
        case _:
            return type(value) is dict and all(
                _is_of(field.type, value[field.name]) if field.name in value else field.has_default
                for field in schema.fields
            )


def problems(mode: str, new: Schema, old: Schema) -> list[str]:
    """Why one cannot read what was written with the other, in the directions of the mode."""
    return each_way(mode, new, old, _unreadable)


class _Checker(avro.compatibility.ReaderWriterCompatibilityChecker):  # type: ignore[misc]
    """The library's own, which takes any two decimals for the same."""

    def calculate_compatibility(self, reader: Schema, writer: Schema, location: list[str]) -> Any:
        """What it says of the pair, unless it is two decimals that differ."""
        wanted, given = _decimal(reader), _decimal(writer)
        if wanted and given and wanted != given:
            return avro.compatibility.incompatible(
                avro.compatibility.SchemaIncompatibilityType.type_mismatch,
                f"reader {wanted} not compatible with writer {given}",
                location,
            )
        return super().calculate_compatibility(reader, writer, location)


def _decimal(schema: Schema) -> str:
    """A decimal with what has to match; nothing for any other type."""
    if not isinstance(schema, avro.schema.DecimalLogicalSchema):
        return ""
    return f"decimal of precision {schema.precision} and scale {schema.scale}"


def _unreadable(reader: Schema, writer: Schema) -> list[str]:
    result = _Checker().get_compatibility(reader, writer)
    if result.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
        return []
    kinds = dict.fromkeys(each.value.replace("_", " ") for each in result.incompatibilities)
    said = ", ".join(sorted(result.messages))
    return [shortened(f"{', '.join(kinds)}: {said} (at {', '.join(sorted(result.locations))})")]
