"""JSON Schema: whether everything that one schema accepts, another accepts too.

That is not decidable in general, so the rules are few, and what they cannot prove counts as
incompatible. A reader's keyword is proven by the writer's:

    type                    the writer's types are among the reader's (an integer is a number)
    enum, const             every value of the writer's is one of the reader's (no const in draft 4)
    required                the writer requires it too
    properties              each fits, by the writer's own schema for it or for additional ones
    additionalProperties    what else the writer may write fits; without it everything does
    items                   each item fits
    minimum, maxLength, …   the writer's bound is as narrow
    $ref                    what it points to, within its document
    pattern, format, allOf, anyOf, oneOf, not, …   the writer says the very same

Titles, descriptions, defaults and examples do not matter. A property that only the reader has may
be added when the writer's objects are closed (`additionalProperties: false`), because elsewhere a
writer may have put anything under that name. Draft 3 has other keywords under the same names and
is not compared.

A new version whose references point to what is no schema is refused. In one that is stored already
such a reference counts as one that points nowhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import jsonschema
import jsonschema.exceptions
import jsonschema.validators

from metaray.schemas.problems import NotASchema, each_way, no_constant, shortened

DEPTH_MAX: Final = 128  #: of schemas within schemas, a reference counting as one

Schema = Any
"""A schema as `json` reads it: an object, or true (everything) or false (nothing)."""

REMARKS: Final = frozenset(
    {
        *("$anchor", "$comment", "$defs", "$id", "$schema", "$vocabulary", "id"),
        *("default", "definitions", "deprecated", "description", "examples", "readOnly"),
        *("title", "writeOnly"),
    }
)
"""Keywords that refuse nothing."""

SAME: Final = frozenset(
    {
        *("allOf", "anyOf", "contentEncoding", "contentMediaType", "dependentRequired", "format"),
        *("multipleOf", "not", "oneOf", "pattern", "propertyNames", "uniqueItems"),
    }
)
"""Keywords that mean the same wherever they stand: the same value proves them."""

NAMED: Final = frozenset(
    {
        *("$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties"),
        "properties",
    }
)
"""Keywords that hold schemas by name."""

HOLDING: Final = NAMED | {
    *("additionalItems", "additionalProperties", "allOf", "anyOf", "contains", "contentSchema"),
    *("else", "if", "items", "not", "oneOf", "prefixItems", "propertyNames", "then"),
    *("unevaluatedItems", "unevaluatedProperties"),
}
"""Keywords that hold schemas, each of them in some dialect."""

LEAST: Final = {"minItems": "array", "minLength": "string", "minProperties": "object"}
MOST: Final = {"maxItems": "array", "maxLength": "string", "maxProperties": "object"}
NUMBERS: Final = frozenset({"integer", "number"})
KINDS: Final = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})


@dataclass(frozen=True, slots=True)
class Document:
    """A schema and what its references point into."""

    root: Schema
    broken: dict[str, str] = field(default_factory=dict)
    """References that point to what is no schema, and why it is none."""


def parse(text: str) -> Document:
    """Raises NotASchema, also for a reference to what is no schema, and for NaN."""
    document = parse_stored(text, no_constant)
    for reference, why in document.broken.items():
        raise NotASchema(shortened(f"$ref {reference!r}: {why}"))
    return document


def parse_stored(text: str, constant: Callable[[str], float] = float) -> Document:
    """A schema whose references were not looked at when it was put, nor its numbers: NaN and
    Infinity, which JSON does not have, go through `constant`. Raises NotASchema."""
    try:
        root = json.loads(text, parse_constant=constant)
        if type(root) not in (dict, bool):
            raise NotASchema("an object, true or false is wanted")
        if type(_dialect(root) or "") is not str:
            raise NotASchema("$schema is not a text")
        _validator(root).check_schema(root)
        return Document(root, _broken(root))
    except jsonschema.exceptions.SchemaError as error:
        raise NotASchema(shortened(f"{error.json_path}: {error.message}")) from None
    except json.JSONDecodeError as error:
        raise NotASchema(shortened(error)) from None
    except (RecursionError, ValueError) as error:
        raise NotASchema(type(error).__name__) from None


def _broken(root: Schema) -> dict[str, str]:
    """References to what is no schema: under a keyword that nobody knows may be anything."""
    if _embeds(root):
        return {}  # a reference may start from elsewhere; such schemas are not compared
    validator = _validator(root)
    broken: dict[str, str] = {}
    others: dict[str, Schema] = {}  # where the root's own check has not looked
    sound: set[int] = set()
    waiting = _schemas(root, validator, sound)
    seen = set(sound)
    while waiting:
        reference: Any = waiting.pop().get("$ref")
        target = _pointed(root, reference)
        if type(target) is dict and id(target) not in sound:
            others[reference] = target
            waiting += _schemas(target, validator, seen)
        elif target is not None and type(target) not in (dict, bool):
            broken[reference] = "an object, true or false is wanted"
    for reference in sorted(others, key=len):  # what lies around another comes before it
        if id(others[reference]) in sound:
            continue
        try:
            validator.check_schema(others[reference])
            _schemas(others[reference], validator, sound)
        except jsonschema.exceptions.SchemaError as error:
            broken[reference] = error.message
        except RecursionError as error:
            broken[reference] = type(error).__name__
    return broken


def problems(mode: str, new: Document, old: Document) -> list[str]:
    """What one accepts and the other may not, in the directions of the mode."""
    return each_way(mode, new, old, _unreadable)


def _unreadable(reader: Document, writer: Document) -> list[str]:
    if _same(reader.root, writer.root):
        return []
    if _dialect(reader.root) != _dialect(writer.root):
        return ["$schema: schemas of two dialects cannot be compared"]
    if _validator(reader.root) is jsonschema.validators.Draft3Validator:
        return ["$schema: schemas of draft 3 cannot be compared"]
    if any(_embeds(each.root) for each in (reader, writer)):
        return ["$id: schemas with others embedded cannot be compared"]
    return list(_Comparison(reader, writer).fits(reader.root, writer.root, "$"))


def _dialect(root: Schema) -> Any:
    return root.get("$schema") if type(root) is dict else None


def _validator(root: Schema) -> Any:
    """The class that knows its dialect."""
    newest = jsonschema.validators.Draft202012Validator
    return jsonschema.validators.validator_for(root, default=newest)


@cache
def _holding(validator: Any) -> frozenset[str]:
    """The keywords that hold schemas in a dialect: those that refuse a number there."""
    dialect = validator(validator.META_SCHEMA)
    return frozenset(each for each in HOLDING if not dialect.is_valid({each: 5}))


def _schemas(root: Schema, validator: Any, seen: set[int]) -> list[dict[str, Any]]:
    """The schemas within one, itself among them, that were not seen yet.

    They are found by their places: a const, an example or an unknown keyword holds data.
    """
    found, waiting = [], [root]
    while waiting:
        schema = waiting.pop()
        if type(schema) is not dict or id(schema) in seen:
            continue
        seen.add(id(schema))
        found.append(schema)
        for keyword in _holding(validator) & schema.keys():
            held = schema[keyword]
            if keyword in NAMED:
                waiting += held.values() if type(held) is dict else ()
            else:
                waiting += held if type(held) is list else (held,)
    return found


def _embeds(root: Schema) -> bool:
    """Whether a schema within names itself, so that references within it start from there."""
    return any(
        type(each.get(name)) is str
        for each in _objects(root)
        if each is not root
        for name in ("$id", "id")
    )


def _objects(root: Schema) -> Iterator[dict[str, Any]]:
    """All objects of a document, itself among them."""
    waiting = [root]
    while waiting:
        each = waiting.pop()
        if type(each) is dict:
            yield each
            waiting += each.values()
        elif type(each) is list:
            waiting += each


def _spelled(value: Any) -> str:
    """A value as text, so that 1, 1.0 and true are three."""
    return json.dumps(value, sort_keys=True)


def _same(one: Any, other: Any) -> bool:
    return _spelled(one) == _spelled(other)


def _closed(schema: Schema) -> bool:
    """Whether it says all by itself: a reference may point to something else elsewhere."""
    return 'Ref"' not in (text := _spelled(schema)) and '"$ref"' not in text


@dataclass(slots=True)
class _Comparison:
    """The two documents, and the pairs of schemas that have been compared or are.

    A pair comes once. Within itself it is taken to fit: a counterexample would be a finite value,
    and would show at a smaller part of it. Later on, what it lacks was said already.
    """

    reader: Document
    writer: Document
    seen: set[tuple[str, str]] = field(default_factory=set)
    depth: int = 0

    def fits(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """What the writer's schema accepts and the reader's may not."""
        pair = (_spelled(reader), _spelled(writer))
        if pair in self.seen or (pair[0] == pair[1] and _closed(reader)):
            return
        if self.depth >= DEPTH_MAX:
            yield f"{where}: nested too deep to be compared"
            return
        self.seen.add(pair)
        self.depth += 1
        yield from self._compared(reader, writer, where)
        self.depth -= 1

    def _compared(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        if reader is True or writer is False:
            return
        if reader is False:
            yield f"{where}: nothing is accepted any more"
            return
        written: dict[str, Any] = {} if writer is True else writer
        if "const" not in _validator(self.reader.root).VALIDATORS:  # draft 4: it says nothing
            reader, written = _without_const(reader), _without_const(written)
        if "$ref" in reader:
            yield from self._referred(reader, written, where)
            return
        if "$ref" in written:
            target = _target(self.writer, written["$ref"])
            yield from self.fits(reader, True if target is None else target, where)
            return
        for keyword, value in sorted(reader.items()):
            if keyword in REMARKS:
                continue
            rule = _RULES.get(keyword)
            if rule is not None:
                yield from rule(self, reader, written, where)
            elif keyword in LEAST or keyword in MOST:
                yield from _counted(keyword, value, written, where)
            elif keyword in SAME:
                if not (_same(value, written.get(keyword)) and _closed(value)):
                    yield f"{where}: {keyword} is not what the writer keeps to"
            else:
                yield f"{where}: {keyword} cannot be compared"

    def _referred(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        if not reader.keys() - {"$ref"} <= REMARKS:
            yield f"{where}: $ref beside other keywords cannot be compared"
            return
        target = _target(self.reader, reader["$ref"])
        if target is None:
            yield f"{where}: $ref {reader['$ref']!r} is not within the document"
            return
        yield from self.fits(target, writer, where)

    def type(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """Types."""
        wanted, given = _named(reader["type"]), _types(writer)
        if "number" in wanted:
            wanted |= {"integer"}
        if given - wanted:
            yield f"{where}: {_listed(given - wanted)} is not accepted, only {_listed(wanted)}"

    def enum(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """Values one by one."""
        wanted, given = _values(reader) or [], _values(writer)
        if given is None:
            yield f"{where}: the writer may write any value, accepted are {_shown(wanted)}"
            return
        known = {_spelled(each) for each in wanted}
        strange = [each for each in given if _spelled(each) not in known]
        if strange:
            yield f"{where}: {_shown(strange)} is not accepted"

    def required(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """Properties that must be there."""
        if "object" not in _types(writer):
            return
        for name in reader["required"]:
            if name not in writer.get("required", ()):
                yield f"{where}.{name}: is required and may not be written"

    def properties(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """Properties that have a schema."""
        if "object" not in _types(writer):
            return
        for name, schema in sorted(reader["properties"].items()):
            yield from self.fits(schema, _property(writer, name), f"{where}.{name}")

    def additional(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """All other properties."""
        schema = reader["additionalProperties"]
        if schema is True or "object" not in _types(writer):
            return
        if "patternProperties" in reader or "patternProperties" in writer:
            yield f"{where}: additionalProperties beside patternProperties cannot be compared"
            return
        for name, given in sorted(writer.get("properties", {}).items()):
            if name not in reader.get("properties", {}):
                yield from self.fits(schema, given, f"{where}.{name}")
        yield from self.fits(schema, writer.get("additionalProperties", True), f"{where}.*")

    def items(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """Items of an array, all of one schema."""
        if "array" not in _types(writer):
            return
        given = writer.get("items", True)
        if "prefixItems" in writer or list in (type(reader["items"]), type(given)):
            yield f"{where}: items by their place cannot be compared"
            return
        yield from self.fits(reader["items"], given, f"{where}[]")

    def least(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """A lower bound, with itself or without."""
        yield from _bounded(reader, writer, where, "minimum", "exclusiveMinimum", 1)

    def most(self, reader: Schema, writer: Schema, where: str) -> Iterator[str]:
        """An upper bound, with itself or without."""
        yield from _bounded(reader, writer, where, "maximum", "exclusiveMaximum", -1)


Rule = Callable[[_Comparison, Schema, Schema, str], Iterator[str]]

_RULES: Final[dict[str, Rule]] = {
    "type": _Comparison.type,
    "enum": _Comparison.enum,
    "const": _Comparison.enum,
    "required": _Comparison.required,
    "properties": _Comparison.properties,
    "additionalProperties": _Comparison.additional,
    "items": _Comparison.items,
    "minimum": _Comparison.least,
    "exclusiveMinimum": _Comparison.least,
    "maximum": _Comparison.most,
    "exclusiveMaximum": _Comparison.most,
}


def _without_const(schema: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != "const"}


def _target(document: Document, reference: Any) -> Schema | None:
    """The schema that a reference within the document points to; None for any other."""
    found = _pointed(document.root, reference)
    return None if found is None or reference in document.broken else found


def _pointed(root: Schema, reference: Any) -> Any:
    """What a reference within the document points to (RFC 6901); None for any other."""
    if type(reference) is not str or not (reference == "#" or reference.startswith("#/")):
        return None
    found = root
    for part in reference.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if type(found) is not dict or name not in found:
            return None
        found = found[name]
    return found


def _types(schema: Schema) -> set[str]:
    """The types that a schema may accept."""
    values = _values(schema)
    if values is not None:
        return {_type_of(each) for each in values}
    return _named(schema["type"]) if "type" in schema else set(KINDS) - {"integer"}


def _named(types: str | list[str]) -> set[str]:
    return {types} if type(types) is str else set(types)


def _type_of(value: Any) -> str:
    """The type of a value; whether 1.0 is an integer depends on the dialect, a number it is."""
    if value is None:
        return "null"
    kinds = {bool: "boolean", dict: "object", float: "number", int: "integer"}
    return {**kinds, list: "array", str: "string"}[type(value)]


def _values(schema: Schema) -> list[Any] | None:
    """The only values that a schema accepts, if it lists them."""
    found = schema.get("enum")
    listed = found if type(found) is list else None
    if "const" not in schema:
        return listed
    const = schema["const"]
    return [const] if listed is None or any(_same(const, each) for each in listed) else []


def _property(writer: Schema, name: str) -> Schema:
    """What the writer may write under a name."""
    own = writer.get("properties", {}).get(name)
    if own is not None:
        return own
    return True if "patternProperties" in writer else writer.get("additionalProperties", True)


def _counted(keyword: str, bound: Any, writer: Schema, where: str) -> Iterator[str]:
    """A bound on how many letters, items or properties there are."""
    least = keyword in LEAST
    if (LEAST | MOST)[keyword] not in _types(writer) or (least and bound <= 0):
        return
    given = writer.get(keyword)
    if not _number(given) or (given < bound if least else given > bound):
        yield f"{where}: {keyword} {bound} is not kept by the writer"


def _bounded(
    reader: Schema, writer: Schema, where: str, closed: str, opened: str, sign: int
) -> Iterator[str]:
    if not NUMBERS & _types(writer):
        return
    for keyword in (closed, opened):
        if keyword not in reader:
            continue
        bound = reader[keyword]
        inside = [
            each
            for each in (closed, opened)
            if _number(writer.get(each))
            and _number(bound)
            and (
                sign * writer[each] > sign * bound
                or (writer[each] == bound and (keyword == closed or each == opened))
            )
        ]
        if not inside:
            yield f"{where}: {keyword} {bound} is not kept by the writer"


def _number(value: Any) -> bool:
    return type(value) in (int, float)


def _listed(types: set[str]) -> str:
    return " or ".join(sorted(types))


def _shown(values: list[Any]) -> str:
    return shortened(", ".join(map(_spelled, values)))
