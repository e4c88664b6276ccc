"""JSON Schema: what is said to fit does, for every value; and what fits is mostly seen to."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from metaray.schemas import check_compatible, check_schema

OBJECT: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}}
CLOSED: dict[str, Any] = {**OBJECT, "additionalProperties": False}
DRAFT7: dict[str, Any] = {"$schema": "http://json-schema.org/draft-07/schema#"}
DRAFT4: dict[str, Any] = {"$schema": "http://json-schema.org/draft-04/schema#"}
DRAFT3: dict[str, Any] = {"$schema": "http://json-schema.org/draft-03/schema#"}
TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "left": {"$ref": "#/$defs/node"},
                "right": {"$ref": "#/$defs/node"},
            },
        }
    },
    "$ref": "#/$defs/node",
}


def backward(new: Any, old: Any) -> list[str]:
    return check_compatible("json", "backward", json.dumps(new), json.dumps(old))


def with_tree(**properties: Any) -> dict[str, Any]:
    node = TREE["$defs"]["node"]
    return {
        **TREE,
        "$defs": {"node": {**node, "properties": {**node["properties"], **properties}}},
    }


@pytest.mark.parametrize(
    ("new", "old"),
    [
        (True, False),
        ({}, {"type": "string"}),
        (OBJECT, OBJECT),
        ({**OBJECT, "title": "x", "description": "y", "default": {}}, OBJECT),
        ({"type": "number"}, {"type": "integer"}),
        ({"type": ["string", "null"]}, {"type": "string"}),
        ({"type": "string"}, {"enum": ["a", "b"]}),
        ({"enum": ["a", "b", 1]}, {"enum": [1, "a"]}),
        ({"enum": ["a", "b"]}, {"const": "a"}),
        ({"required": ["a"]}, {"type": "object", "required": ["a", "b"]}),
        ({"required": ["a"]}, {"type": "string"}),
        ({**CLOSED, "properties": {**CLOSED["properties"], "b": {"type": "string"}}}, CLOSED),
        (OBJECT, CLOSED),
        ({**OBJECT, "additionalProperties": {"type": "string"}}, CLOSED),
        ({"items": {"type": "number"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"minimum": 1}, {"type": "number", "minimum": 1}),
        ({"minimum": 1}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"exclusiveMaximum": 9}, {"type": "number", "maximum": 8}),
        ({"maximum": 9}, {"type": "string"}),
        ({"minLength": 1, "maxLength": 9}, {"type": "string", "minLength": 2, "maxLength": 8}),
        ({"minItems": 0}, {}),
        ({"maxProperties": 1}, {"type": "array"}),
        ({"pattern": "^a", "type": "string"}, {"type": "string", "pattern": "^a"}),
        ({"allOf": [{"type": "string"}]}, {"allOf": [{"type": "string"}], "minLength": 1}),
        (TREE, TREE),
        (with_tree(left={"$ref": "#/$defs/node", "title": "left"}), TREE),
        (with_tree(value={"type": "number"}), TREE),
        ({"$ref": "#/$defs/n", "$defs": {"n": {"type": "number"}}}, {"type": "integer"}),
    ],
)
def test_what_fits(new: Any, old: Any) -> None:
    assert backward(new, old) == []


@pytest.mark.parametrize(
    ("new", "old", "says"),
    [
        (False, True, "$: nothing is accepted any more"),
        ({"type": "integer"}, {"type": "number"}, "number is not accepted, only integer"),
        ({"type": "string"}, {}, "array or boolean"),
        ({"type": "null", "const": []}, {"const": []}, "array is not accepted, only null"),
        ({"enum": ["a"]}, {"enum": ["a", "b"]}, '"b" is not accepted'),
        ({"enum": [1]}, {"enum": [True]}, "true is not accepted"),
        ({"const": 1}, {"type": "integer"}, "the writer may write any value"),
        ({"required": ["a"]}, OBJECT, "$.a: is required and may not be written"),
        ({**OBJECT, "properties": {"b": {"type": "string"}}}, OBJECT, "$.b: "),
        ({**OBJECT, "properties": {"a": {"type": "string"}}}, OBJECT, "$.a: integer is not"),
        (CLOSED, OBJECT, "$.*: nothing is accepted"),
        (CLOSED, {**CLOSED, "properties": {"c": {}}}, "$.c: nothing is accepted"),
        ({"items": {"type": "string"}}, {"type": "array"}, "$[]: "),
        ({"prefixItems": [{}]}, {"type": "array"}, "prefixItems cannot be compared"),
        ({"items": {"type": "string"}}, {"prefixItems": [True]}, "by their place"),
        ({"minimum": 2}, {"minimum": 1}, "minimum 2 is not kept"),
        ({"exclusiveMinimum": 1}, {"minimum": 1}, "exclusiveMinimum 1 is not kept"),
        ({"maximum": 1}, {"type": "integer"}, "maximum 1 is not kept"),
        ({"maxLength": 2}, {"maxLength": 3}, "maxLength 2 is not kept"),
        ({"minItems": 1}, {}, "minItems 1 is not kept"),
        ({"pattern": "a"}, {"pattern": "b"}, "pattern is not what the writer keeps to"),
        ({"not": {"type": "null"}}, {}, "not is not what the writer keeps to"),
        ({"if": {}, "then": {}}, {}, "if cannot be compared"),
        ({**OBJECT, "patternProperties": {"b": {}}}, OBJECT, "patternProperties cannot"),
        (with_tree(value={"type": "string"}), TREE, "$.value: integer is not accepted"),
        ({"$ref": "https://example.com/x"}, {}, "is not within the document"),
        ({"$ref": "#", "type": "string"}, {}, "$ref beside other keywords"),
        (
            {"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "string"}}},
            {"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": {"type": "null"}}},
            "allOf is not what the writer keeps to",
        ),
        ({"properties": {"a": {"$id": "https://x/y"}}}, {}, "embedded cannot be compared"),
        ({"$schema": "http://json-schema.org/draft-07/schema#"}, {}, "two dialects"),
        ({**DRAFT4, "enum": ["a"]}, {**DRAFT4, "const": "a"}, "may write any value"),
        ({**DRAFT4, "type": "string"}, {**DRAFT4, "const": "a"}, "only string"),
        (
            {**DRAFT4, "properties": {"a": {"enum": [1]}}},
            {**DRAFT4, "properties": {"a": {"const": 1}}},
            "may write any value",
        ),
        ({**DRAFT3, "type": [{"type": "null"}]}, {**DRAFT3, "required": True}, "of draft 3"),
    ],
)
def test_what_does_not_fit_and_what_cannot_be_proven(new: Any, old: Any, says: str) -> None:
    found = backward(new, old)
    assert any(says in each for each in found), found
    assert all(each.startswith("backward: $") for each in found)


def test_const_refuses_nothing_in_a_dialect_that_has_none() -> None:
    assert backward({**DRAFT4, "const": "b"}, {**DRAFT4, "const": "a"}) == []
    assert backward({**DRAFT7, "enum": ["a"]}, {**DRAFT7, "const": "a"}) == []


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_what_json_has_no_word_for_is_no_schema_but_in_one_that_is_stored(number: str) -> None:
    text = f'{{"enum": [{number}]}}'
    assert check_schema("json", text) == [f"not a schema: {number} is not JSON"]
    assert check_compatible("json", "backward", "{}", text) == []


def test_the_mode_says_which_way() -> None:
    narrow, wide = '{"type": "integer"}', '{"type": "number"}'
    assert check_compatible("json", "backward", wide, narrow) == []
    assert check_compatible("json", "forward", narrow, wide) == []
    assert len(check_compatible("json", "full", narrow, wide)) == 1
    assert len(check_compatible("json", "full", wide, narrow)) == 1
    assert check_compatible("json", "none", narrow, '"nonsense"') == []


def test_schemas_that_share_much_are_compared_in_one_go() -> None:
    """A chain whose every link is used twice has more paths than could ever be walked."""

    def chain(kind: str) -> dict[str, Any]:
        links = {
            f"n{each}": {
                "type": "object",
                "properties": {side: {"$ref": f"#/$defs/n{each + 1}"} for side in ("l", "r")},
            }
            for each in range(25)
        }
        return {"$ref": "#/$defs/n0", "$defs": {**links, "n25": {"type": kind}}}

    assert backward(chain("number"), chain("integer")) == []
    assert len(backward(chain("string"), chain("integer"))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "1",
        "null",
        '"a"',
        "[]",
        '{"type": "strin"}',
        '{"minimum": "1"}',
        "[" * 100_000,
        '{"properties": {"a": 1}}',
        '{"items": ' * 2_000 + "true" + "}" * 2_000,
        '{"$schema": 1}',
    ],
)
def test_what_is_no_schema(text: str) -> None:
    (said,) = check_schema("json", text)
    assert said.startswith("not a schema: ")
    assert len(said) < 500
    (old,) = check_compatible("json", "full", "{}", text)
    assert old.startswith("the old version is not a schema: ")


@pytest.mark.parametrize("target", [{"type": 5}, {"required": 5}, {"items": {"enum": 3}}, 5, []])
def test_a_reference_points_to_a_schema(target: Any) -> None:
    within = {"x": target, "properties": {"a": {"$ref": "#/x"}}}
    (said,) = check_schema("json", json.dumps(within))
    assert said.startswith("not a schema: $ref '#/x': ")


@pytest.mark.parametrize(
    "stored",
    [
        {"x": 5, "properties": {"a": {"$ref": "#/x"}}},
        {"x": {"type": 5}, "properties": {"a": {"$ref": "#/x"}}},
        {
            "x": {"items": {"type": 5}},
            "properties": {"a": {"$ref": "#/x"}, "b": {"$ref": "#/x/items"}},
        },
        {**DRAFT7, "$defs": {"x": {"type": 5}}, "properties": {"a": {"$ref": "#/$defs/x"}}},
    ],
)
def test_a_stored_reference_to_no_schema_points_nowhere(stored: dict[str, Any]) -> None:
    """So a version that is right may follow it."""
    dialect = {name: stored[name] for name in ("$schema",) if name in stored}
    free, narrow = {**dialect, "title": "right"}, {**dialect, "properties": {"b": {"type": "null"}}}
    assert backward(free, stored) == []
    assert len(backward(narrow, stored)) == 1
    said = check_compatible("json", "forward", json.dumps(free), json.dumps(stored))
    assert any("is not within the document" in each for each in said)


@pytest.mark.parametrize("keyword", ["const", "default", "examples", "enum", "x-meta"])
def test_what_looks_like_a_reference_in_data_is_none(keyword: str) -> None:
    data = [{"$ref": "#/title"}]
    assert check_schema("json", json.dumps({"title": "x", keyword: data})) == []
    assert check_schema("json", json.dumps({"title": "x", "items": {keyword: data}})) == []
    (said,) = check_schema("json", json.dumps({"title": "x", "anyOf": data}))
    assert said.startswith("not a schema: $ref '#/title': ")


@pytest.mark.parametrize("keyword", ["properties", "x-meta"])
def test_no_part_of_a_schema_is_checked_for_each_reference(
    keyword: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema: dict[str, Any] = {}
    for _ in range(20):
        schema = {"properties": {"a": schema}}
    within = [f"#/{keyword}/a" + "/properties/a" * each for each in range(20)]
    top = {keyword: {"a": schema}, "anyOf": [{"$ref": each} for each in within]}
    checked: list[Any] = []
    check = jsonschema.Draft202012Validator.check_schema

    def counted(given: Any) -> None:
        checked.append(given)
        check(given)

    monkeypatch.setattr(jsonschema.Draft202012Validator, "check_schema", counted)
    assert check_schema("json", json.dumps(top)) == []
    assert checked == ([top] if keyword == "properties" else [top, schema])


# -- whatever is said to fit, fits --------------------------------------------------------------

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from((0.5, 1.0, "", "a", "ab")),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)
TYPES = st.sampled_from(("null", "boolean", "integer", "number", "string", "array", "object"))
SMALL = st.integers(0, 2)


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
            "enum": st.lists(VALUES, min_size=1, max_size=3),
            "const": VALUES,
            "required": st.lists(st.sampled_from("ab"), unique=True),
            "properties": st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
            "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
            "additionalProperties": inner,
            "items": inner,
            "minimum": SMALL,
            "exclusiveMinimum": SMALL,
            "maximum": SMALL,
            "exclusiveMaximum": SMALL,
            "minLength": SMALL,
            "maxLength": SMALL,
            "minItems": SMALL,
            "maxItems": SMALL,
            "minProperties": SMALL,
            "maxProperties": SMALL,
            "not": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "$ref": st.just("#"),
        },
    )


SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.booleans() | st.just({}), keywords, max_leaves=4
).filter(lambda schema: schema != {"$ref": "#"})


@given(data=st.data())
@settings(max_examples=120, suppress_health_check=list(HealthCheck))
def test_whatever_is_said_to_fit_fits(data: st.DataObject) -> None:
    old = data.draw(SCHEMAS)
    new = old
    if type(old) is dict and data.draw(st.booleans()):
        dropped = data.draw(st.sets(st.sampled_from(sorted(old)))) if old else set()
        new = {name: value for name, value in old.items() if name not in dropped}
        new |= data.draw(keywords(st.booleans()))
    else:
        new = data.draw(SCHEMAS)
    assume(not backward(new, old))
    writer, reader = (jsonschema.Draft202012Validator(each) for each in (old, new))
    for value in data.draw(st.lists(VALUES, min_size=5, max_size=15)):
        try:
            if writer.is_valid(value):
                assert reader.is_valid(value), (new, old, value)
        except RecursionError:
            assume(False)  # a reference to itself: no schema of anything
