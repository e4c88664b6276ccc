"""Avro: schema resolution as its specification has it, by Avro's own library.

A field that only the reader has needs a default; one that only the writer has is passed over; types
may be promoted (int to long); a reader's enum has the writer's symbols or a default.
"""

from __future__ import annotations

import json
from typing import Any

import avro.compatibility
import avro.errors
import avro.schema

from metaray.schemas.problems import NotASchema, each_way, shortened

Schema = Any
"""A schema as the library reads it."""


def parse(text: str) -> Schema:
    """Raises NotASchema."""
    try:
        return avro.schema.parse(text)
    except (avro.errors.AvroException, json.JSONDecodeError) as error:
        raise NotASchema(shortened(error)) from None
    except (RecursionError, ValueError, TypeError, KeyError, AttributeError) as error:
        # What the library has no refusal of its own for: nesting without end, a list for a name.
        raise NotASchema(type(error).__name__) from None


def problems(mode: str, new: Schema, old: Schema) -> list[str]:
    """Why one cannot read what was written with the other, in the directions of the mode."""
    return each_way(mode, new, old, _unreadable)


def _unreadable(reader: Schema, writer: Schema) -> list[str]:
    result = avro.compatibility.ReaderWriterCompatibilityChecker().get_compatibility(reader, writer)
    if result.compatibility is avro.compatibility.SchemaCompatibilityType.compatible:
        return []
    kinds = dict.fromkeys(each.value.replace("_", " ") for each in result.incompatibilities)
    said = ", ".join(sorted(result.messages))
    return [shortened(f"{', '.join(kinds)}: {said} (at {', '.join(sorted(result.locations))})")]
