"""Avro and Protocol buffers: what a new version may change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from metaray.schemas import check_compatible, check_schema
from state_machines.errors import Invalid

# -- Avro ---------------------------------------------------------------------------------------


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


ID: dict[str, Any] = {"name": "id", "type": "int"}
NOTE: dict[str, Any] = {"name": "note", "type": "string"}


@pytest.mark.parametrize(
    ("mode", "new", "old", "fits"),
    [
        ("backward", record(ID, {**NOTE, "default": ""}), record(ID), True),
        ("backward", record(ID, NOTE), record(ID), False),
        ("forward", record(ID, NOTE), record(ID), True),
        ("backward", record(ID), record(ID, NOTE), True),
        ("forward", record(ID), record(ID, NOTE), False),
        ("full", record(ID), record(ID, {**NOTE, "default": ""}), True),
        ("full", record(ID, NOTE), record(ID), False),
        ("backward", record({**ID, "type": "long"}), record(ID), True),
        ("forward", record({**ID, "type": "long"}), record(ID), False),
        ("backward", record({**ID, "type": "string"}), record(ID), False),
        ("backward", '["null", "int"]', '"int"', True),
        ("forward", '["null", "int"]', '"int"', False),
        ("none", record(NOTE), record(ID), True),
    ],
)
def test_avro_versions_follow_its_schema_resolution(
    mode: str, new: str, old: str, fits: bool
) -> None:
    found = check_compatible("avro", mode, new, old)
    assert (found == []) is fits, found


def test_avro_says_what_is_missing() -> None:
    (said,) = check_compatible("avro", "backward", record(ID, NOTE), record(ID))
    assert said == "backward: reader field missing default value: note (at /fields/1)"


POINT = {"type": "record", "name": "P", "fields": [ID, {**NOTE, "default": ""}]}


@pytest.mark.parametrize(
    ("type", "right", "wrong"),
    [
        ("null", [None], [0, ""]),
        ("boolean", [True], [1, "true"]),
        ("int", [0, -(2**31)], [None, "x", True, 1.0, 2**31]),
        ("long", [2**63 - 1], [2**63]),
        ("double", [1, 0.5], ["0.5", True]),
        ("string", ["", "€"], [None, 1]),
        ("bytes", ["", "ÿ"], ["€", [1]]),
        ({"type": "fixed", "name": "F", "size": 2}, ["ab"], ["a", 12]),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, ["A"], ["B", None]),
        ({"type": "array", "items": "int"}, [[], [1]], [["1"], {}]),
        ({"type": "map", "values": "int"}, [{}, {"a": 1}], [{"a": None}, []]),
        (["null", "int"], [None, 1], ["x"]),
        (["int", {"type": "array", "items": ["null", "string"]}], [1, [None, "x"]], [None, [1]]),
        ([], [], [None]),
        (POINT, [{"id": 1}, {"id": 1, "note": "a"}], [{}, {"id": ""}, 1]),
    ],
)
def test_an_avro_default_is_of_its_fields_type(
    type: Any, right: list[Any], wrong: list[Any]
) -> None:
    field = {"name": "more", "type": type}
    for value in right:
        new = record(ID, {**field, "default": value})
        assert check_compatible("avro", "full", new, record(ID)) == []
    for value in wrong:
        (said,) = check_schema("avro", record(ID, {**field, "default": value}))
        assert said == (
            f"not a schema: Order.more: the default {json.dumps(value)} is not of the field's type"
        )


def test_an_avro_default_within_another_type_is_looked_at() -> None:
    inner = json.loads(record({**ID, "default": None}))
    for type in ({"type": "array", "items": inner}, {"type": "map", "values": inner}, [inner]):
        (said,) = check_schema("avro", json.dumps(type))
        assert said.startswith("not a schema: Order.id: the default null is not of")


def test_a_wrong_avro_default_that_is_stored_already_counts_as_none() -> None:
    stored = record(ID, {**NOTE, "default": None})
    assert check_compatible("avro", "full", record(ID, NOTE), stored) == []
    assert check_compatible("avro", "backward", record(ID), stored) == []
    (said,) = check_compatible("avro", "forward", record(ID), stored)
    assert "missing default value: note" in said


@pytest.mark.parametrize("kind", [{"type": "bytes"}, {"type": "fixed", "name": "F", "size": 8}])
def test_an_avro_decimal_keeps_its_precision_and_scale(kind: dict[str, Any]) -> None:
    def amount(precision: int, scale: int) -> dict[str, Any]:
        decimal = {"logicalType": "decimal", "precision": precision, "scale": scale}
        return {"name": "amount", "type": {**kind, **decimal}}

    old = record(amount(10, 2))
    assert check_compatible("avro", "full", record(amount(10, 2), ID | {"default": 0}), old) == []
    for changed in (amount(10, 4), amount(12, 2)):
        for found in (
            check_compatible("avro", "backward", record(changed), old),
            check_compatible("avro", "forward", old, record(changed)),
        ):
            assert "not compatible with writer decimal of precision 10 and scale 2" in found[0]
    assert check_compatible("avro", "full", record({**amount(1, 0), "type": kind}), old) == []


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "1", "null", '"nothing"', '{"type": "record"}', "[" * 100_000),
        '{"type": "record", "name": [], "fields": {}}',
        '{"type": "enum", "name": "e", "symbols": [1]}',
        '{"type": "record", "name": "r", "fields":'
        ' [{"name": "a", "type": "double", "default": NaN}]}',
        '{"type": "array", "items": ' * 2_000 + '"int"' + "}" * 2_000,
    ],
)
def test_what_is_no_avro_schema(text: str) -> None:
    (said,) = check_schema("avro", text)
    assert said.startswith("not a schema: ")
    assert len(said) < 500


# -- Protocol buffers ---------------------------------------------------------------------------


def file(*lines: str, package: str = "shop") -> str:
    return "\n".join(('syntax = "proto3";', f"package {package};", *lines))


BEFORE = file(
    "message Order {",
    "  int32 id = 1;",
    "  string note = 2;",
    "  map<string, int32> counts = 3;",
    "  oneof buyer { string name = 4; int32 number = 5; }",
    "  optional int32 size = 6;",
    "  Kind kind = 7;",
    "  reserved 20 to 29; reserved 'old';",
    "  enum Kind { reserved 9; NEW = 0; PAID = 1; }",
    "  message Line { int32 price = 1; }",
    "}",
)


@pytest.mark.parametrize(
    ("change", "into", "says"),
    [
        ("string note = 2;", "string remark = 2; bytes more = 8;", None),
        ("string note = 2;", "reserved 2;", None),
        ("PAID = 1;", "PAID = 1; SENT = 2;", None),
        ("PAID = 1;", "reserved 1;", None),
        ("optional int32 size = 6;", "int32 size = 6;", None),
        ("string note = 2;", "", "shop.Order.note = 2 is gone and its number is not reserved"),
        ("int32 id = 1;", "int64 id = 1;", "its type was int32 and is int64"),
        ("Kind kind = 7;", "Line kind = 7;", "its type was shop.Order.Kind and is shop.Order.Line"),
        ("int32 id = 1;", "repeated int32 id = 1;", "its label was optional and is repeated"),
        ("string note = 2;", "oneof n { string note = 2; }", "its oneof is another"),
        ("int32 number = 5; }", "} int32 number = 5;", "its oneof is another"),
        ("reserved 20 to 29;", "int32 again = 25;", "shop.Order.again = 25 was reserved"),
        ("reserved 'old';", "int32 old = 30;", "shop.Order.old = 30 was reserved"),
        ("int32> counts", "int64> counts", "shop.Order.CountsEntry.value = 2: its type was"),
        ("int32> counts", "int32> amounts", None),
        ("map<string, int32> counts = 3;", "reserved 3;", None),
        ("map<string, int32> counts = 3;", "", "shop.Order.counts = 3 is gone and its number is"),
        ("map<string, int32> counts", "repeated Line counts", "and is shop.Order.Line"),
        ("map<string, int32> counts", "map<string, Line> amounts", "shop.Order.CountsEntry.value"),
        ("message Line { int32 price = 1; }", "", "shop.Order.Line is gone"),
        ("PAID = 1;", "", "shop.Order.Kind.PAID = 1 is gone and its number is not reserved"),
        ("reserved 9;", "AGAIN = 9;", "shop.Order.Kind.AGAIN = 9 was reserved"),
        ("reserved 9;", "", "shop.Order.Kind: 9 is no longer reserved"),
        ("reserved 20 to 29;", "", "shop.Order: 20 is no longer reserved"),
        ("reserved 20 to 29;", "reserved 26 to 40, 20 to 24;", "shop.Order: 25 is no longer"),
        ("reserved 20 to 29;", "reserved 25 to 40, 8 to 24;", None),
        ("reserved 'old';", "", "shop.Order: 'old' is no longer reserved"),
    ],
)
def test_a_number_keeps_its_meaning(change: str, into: str, says: str | None) -> None:
    after = BEFORE.replace(change, into)
    assert after != BEFORE
    if into == "AGAIN = 9;":  # the first value of proto3 is 0
        after = BEFORE.replace(change, "").replace("PAID = 1;", "PAID = 1; AGAIN = 9;")
    found = check_compatible("protobuf", "backward", after, BEFORE)
    assert found == check_compatible("protobuf", "full", after, BEFORE)
    if says is None:
        assert found == []
    else:
        assert any(says in each for each in found), found


def test_another_package_is_another_schema() -> None:
    old, new = (file("enum E { A = 0; }", package=each) for each in ("a", "b"))
    assert check_compatible("protobuf", "full", new, old) == ["a.E is gone"]


def test_required_fields_neither_come_nor_go() -> None:
    old = 'syntax = "proto2"; message M { required int32 a = 1; optional int32 b = 2; }'
    comes = old.replace("optional", "required")
    more = old.replace("}", "required int32 c = 3; }")
    goes = old.replace("required int32 a = 1;", "reserved 1;")
    assert check_compatible("protobuf", "full", comes, old) == [
        "M.b = 2: its label was optional and is required"
    ]
    said = "M.{} is required and comes or goes"
    assert check_compatible("protobuf", "full", more, old) == [said.format("c = 3")]
    assert check_compatible("protobuf", "full", goes, old) == [said.format("a = 1")]


def test_the_features_of_an_edition_count_wherever_they_are_set() -> None:
    old = 'edition = "2023"; message M { message N {} N n = 1; map<int32, N> all = 3; }'
    required = "[features.field_presence = LEGACY_REQUIRED]"
    more = old.replace("N n = 1;", f"N n = 1; int32 a = 2 {required};")
    assert check_compatible("protobuf", "full", more, old) == [
        "M.a = 2 is required and comes or goes"
    ]
    comes = old.replace("= 1", f"= 1 {required}")
    assert check_compatible("protobuf", "full", comes, old) == [
        "M.n = 1: its label was optional and is required"
    ]
    delimited = "features.message_encoding = DELIMITED"
    for new in (
        old.replace("= 1", f"= 1 [{delimited}]"),
        old.replace("message M", f"option {delimited}; message M"),
    ):
        assert check_compatible("protobuf", "full", new, old) == [
            "M.n = 1: its type was M.N and is group M.N"
        ]
        assert check_compatible("protobuf", "full", new, new) == []


@pytest.mark.parametrize(
    ("body", "extension", "says"),
    [
        ("extensions 101 to 199; reserved 100;", "", None),
        ("optional int32 e = 100;", "", None),
        ("optional string e = 100;", "", "M.[N.e] = 100: its type was int32 and is string"),
        ("extensions 100 to 199;", "", "M.[N.e] = 100 is gone and its number is not reserved"),
        (
            "extensions 100 to 199;",
            "extend M { optional string e = 100; }",
            "M.[N.e] = 100: its type was int32 and is string",
        ),
    ],
)
def test_an_extension_is_a_field_of_what_it_extends(
    body: str, extension: str, says: str | None
) -> None:
    text = 'syntax = "proto2"; message M {{ {} }} message N {{ {} }}'
    old = text.format("extensions 100 to 199;", "extend M { optional int32 e = 100; }")
    found = check_compatible("protobuf", "full", text.format(body, extension), old)
    assert found == ([] if says is None else [says])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("nonsense", "schema.proto:1:1: Expected top-level statement"),
        (file("message M { int32 a = 1; int32 b = 1; }"), "schema.proto:"),
        (file('import "other.proto";'), "other.proto: File not found"),
        (file('import "../../etc/passwd";'), "not a schema: "),
        ("\ud800", "not a schema: not UTF-8"),
    ],
)
def test_what_is_no_proto_file(text: str, says: str) -> None:
    (said,) = check_schema("protobuf", text)
    assert says in said
    assert "/tmp" not in said


def test_what_google_knows_may_be_used() -> None:
    assert not check_schema(
        "protobuf",
        file(
            'import "google/protobuf/timestamp.proto";',
            "message M { google.protobuf.Timestamp at = 1; }",
        ),
    )


# -- all ----------------------------------------------------------------------------------------


def test_there_is_no_other_type_and_no_other_mode() -> None:
    with pytest.raises(Invalid, match=r"^type: 'xml', one of json, avro, protobuf is wanted"):
        check_compatible("xml", "none", "", "")
    with pytest.raises(Invalid, match=r"^mode: 'sideways', one of none, backward, forward, full"):
        check_compatible("json", "sideways", "{}", "{}")
