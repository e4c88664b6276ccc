"""Schemas: versions that follow one another, and nobody who passes another by."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from state_machines.batch import Outcome
from state_machines.errors import Invalid
from state_machines.metadata import schema as schema_module
from state_machines.metadata.schema import (
    ROWS_DELETED_MAX,
    BindSchemas,
    ConfigureSchemas,
    DeleteSchemas,
    DeleteSchemaVersions,
    PutSchemas,
    SchemaMode,
    SchemaNumber,
    SchemaPut,
    SchemaUse,
    UnbindSchemas,
)
from state_machines.metadata.schema_queries import (
    GetSchema,
    GetSchemaVersion,
    ListBoundSchemas,
    ListSchemaBindings,
    ListSchemas,
    ListSchemaVersions,
)
from state_machines.metadata.schemas import (
    BACKWARD,
    FULL,
    NONE,
    SCHEMA_BYTES_MAX,
    VERSIONS_MAX,
    Schema,
    SchemaVersion,
    fingerprint,
)
from state_machines.slots import SlotMap, SlotRange
from tests.entities.engine import one, outcome
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def put(group: Group, text: str, expected: int, **changes: Any) -> Outcome:
    fields = {"name": "order", "type": "avro", "text": text, "expected_version": expected}
    return outcome(group.run(PutSchemas(items=(SchemaPut(**{**fields, **changes}),))))


def versions(group: Group, count: int, name: str = "order") -> None:
    for number in range(count):
        assert put(group, f"text {number + 1}", number, name=name).ok


def schema(group: Group, name: str = "order") -> Schema:
    found = group.ask(GetSchema(name=name))
    assert isinstance(found, Schema)
    return found


def bind(group: Group, *resources: str, name: str = "order") -> tuple[Outcome, ...]:
    items = tuple([SchemaUse(name, each) for each in resources])
    outcomes: tuple[Outcome, ...] = group.run(BindSchemas(items=items))
    return outcomes


def test_versions_follow_one_another(group: Group) -> None:
    assert put(group, "first", 0, compatibility=FULL).ok
    group.later(1)
    assert put(group, "second", 1, compatibility=FULL).ok
    assert schema(group) == Schema(
        *("default", "order", "avro", FULL, 2, 2, 0, NOW_MS, NOW_MS + 1_000)
    )
    newest = group.ask(GetSchemaVersion(name="order"))
    assert newest == SchemaVersion(
        *("default", "order", 2, "avro", "second", sha256(b"second").hexdigest(), NOW_MS + 1_000)
    )
    assert group.ask(GetSchemaVersion(name="order", version=1)).text == "first"
    assert group.ask(GetSchemaVersion(name="order", version=3)) is None
    assert group.ask(GetSchemaVersion(name="other")) is None
    assert group.ask(GetSchema(name="other")) is None


def test_of_two_who_register_at_once_only_the_first_does(group: Group) -> None:
    """Reference defect 7: what was checked at the door still holds in the apply, or is void."""
    versions(group, 1)
    items = tuple(
        [
            SchemaPut(name="order", type="avro", text=text, expected_version=1)
            for text in ("one", "other")
        ]
    )
    outcomes = group.run(PutSchemas(items=items))
    assert [each.code for each in outcomes] == ["OK", "CONFLICT"]
    assert outcomes[1].detail == "expected_version: 1, the newest is 2"
    assert group.ask(GetSchemaVersion(name="order")).text == "one"


def test_a_check_by_another_mode_is_void(group: Group) -> None:
    versions(group, 1)
    one(group.run(ConfigureSchemas(items=(SchemaMode("order", NONE),))))
    refused = put(group, "next", 1)
    assert (refused.code, refused.detail) == (
        "CONFLICT",
        f"compatibility: {BACKWARD}, in force is {NONE}",
    )
    assert put(group, "next", 1, compatibility=NONE).ok
    missing = outcome(group.run(ConfigureSchemas(items=(SchemaMode("other", NONE),))))
    assert (missing.code, missing.detail) == ("NOT_FOUND", "name: 'other' is not there")


def test_a_schema_keeps_its_type(group: Group) -> None:
    versions(group, 1)
    refused = put(group, "next", 1, type="json")
    assert (refused.code, refused.detail) == ("CONFLICT", "type: json, the schema is avro")


def test_the_newest_text_is_not_put_twice(group: Group) -> None:
    versions(group, 2)
    refused = put(group, "text 2", 2)
    assert (refused.code, refused.detail) == ("ALREADY_EXISTS", "text: it is version 2")
    assert put(group, "text 1", 2).ok, "an older one may come again"


def test_a_schema_has_so_many_versions(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "VERSIONS_MAX", 3)
    versions(group, 3)
    refused = put(group, "text 4", 3)
    assert (refused.code, refused.detail) == (
        "QUOTA_EXCEEDED",
        "name: 'order' has 3 versions, the limit",
    )
    one(group.run(DeleteSchemaVersions(items=(SchemaNumber("order", 1),))))
    assert put(group, "text 4", 3).ok
    assert VERSIONS_MAX <= ROWS_DELETED_MAX, "every schema can be deleted"


def test_old_versions_go_and_their_numbers_do_not_come_back(group: Group) -> None:
    versions(group, 3)
    items = tuple([SchemaNumber("order", each) for each in (3, 2, 2, 9)])
    outcomes = group.run(DeleteSchemaVersions(items=(*items, SchemaNumber("other", 1))))
    assert [each.code for each in outcomes] == [
        *("CONFLICT", "OK", "NOT_FOUND", "NOT_FOUND", "NOT_FOUND")
    ]
    assert outcomes[0].detail == "version: 3 is the newest, it goes with the schema"
    assert (schema(group).version, schema(group).versions) == (3, 2)
    assert put(group, "text 4", 3).ok
    listed = group.ask(ListSchemaVersions(name="order")).versions
    assert [each.version for each in listed] == [1, 3, 4]


def test_what_is_bound_stays(group: Group) -> None:
    versions(group, 2)
    assert [each.code for each in bind(group, "t/1", "t/2", "t/1")] == ["OK"] * 3
    assert schema(group).bindings == 2
    for command in (
        DeleteSchemas(names=("order",)),
        DeleteSchemaVersions(items=(SchemaNumber("order", 1),)),
    ):
        refused = outcome(group.run(command))
        assert (refused.code, refused.detail) == (
            "CONFLICT",
            "name: 'order' is bound to 2 resources",
        )
    items = tuple([SchemaUse("order", each) for each in ("t/1", "t/2", "t/2")])
    outcomes = group.run(UnbindSchemas(items=items))
    assert [each.code for each in outcomes] == ["OK", "OK", "NOT_FOUND"]
    assert outcomes[2].detail == "resource: 'order' is not bound to it"
    one(group.run(DeleteSchemas(names=("order",))))
    assert group.ask(GetSchema(name="order")) is None
    tables = ("schema", "schema_version", "schema_binding", "schema_bound")
    assert [group.rows(f"metadata.{each}") for each in tables] == [0] * 4


def test_bindings_are_found_from_both_sides(group: Group) -> None:
    versions(group, 1)
    versions(group, 1, "user")
    bind(group, "t/2", "t/1")
    bind(group, "t/1", name="user")
    refused = outcome(bind(group, "t/1", name="other"))
    assert (refused.code, refused.detail) == ("NOT_FOUND", "name: 'other' is not there")
    by_schema = group.ask(ListSchemaBindings(name="order")).bindings
    assert [each.resource for each in by_schema] == ["t/1", "t/2"]
    by_resource = group.ask(ListBoundSchemas(resource="t/1")).bindings
    assert sorted(each.name for each in by_resource) == ["order", "user"]
    assert group.ask(ListBoundSchemas(resource="t")).bindings == ()


def test_a_schema_made_again_begins_anew(group: Group) -> None:
    versions(group, 3)
    one(group.run(DeleteSchemas(names=("order",))))
    assert put(group, "text 3", 3).detail == "expected_version: 3, the newest is 0"
    assert put(group, "first", 0, type="json").ok


def test_a_check_against_another_text_of_that_number_is_void(group: Group) -> None:
    """A schema made again has version 1 again, and nobody has checked anything against that one."""
    versions(group, 1)
    checked = fingerprint("text 1")
    one(group.run(DeleteSchemas(names=("order",))))
    assert put(group, "of another", 0).ok
    refused = put(group, "next", 1, expected_fingerprint=checked)
    assert (refused.code, refused.detail) == (
        "CONFLICT",
        f"expected_fingerprint: {checked}, the newest has {fingerprint('of another')}",
    )
    assert schema(group).version == 1
    assert put(group, "next", 1, expected_fingerprint=fingerprint("of another")).ok
    assert put(group, "unchecked", 2).ok, "who names no text asks for the number alone"


def test_there_is_no_text_to_have_checked_before_the_first(group: Group) -> None:
    refused = put(group, "first", 0, expected_fingerprint=fingerprint("text"))
    assert refused.detail == (
        f"expected_fingerprint: {fingerprint('text')}, there is no version to have it"
    )
    assert group.ask(GetSchema(name="order")) is None


def test_a_command_deletes_so_many_versions(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "ROWS_DELETED_MAX", 3)
    for name, count in (("a", 2), ("b", 2), ("c", 1)):
        versions(group, count, name)
    outcomes = group.run(DeleteSchemas(names=("a", "b", "c", "x")))
    assert [each.code for each in outcomes] == ["OK", "QUOTA_EXCEEDED", "OK", "NOT_FOUND"]
    assert outcomes[1].detail == "names: 'b' has 2 versions, the command may delete 1"
    one(group.run(DeleteSchemas(names=("b",))))


def test_tenants_have_their_own(group: Group) -> None:
    versions(group, 1)
    made = SchemaPut(name="order", type="json", text="{}", expected_version=0)
    one(group.run(PutSchemas(tenant="acme", items=(made,))))
    assert group.ask(GetSchema(tenant="acme", name="order")).type == "json"
    assert schema(group).type == "avro"
    one(group.run(DeleteSchemas(tenant="acme", names=("order",))))
    assert schema(group).version == 1


def test_lists_are_in_pages(group: Group) -> None:
    for name in ("a1", "b", "a2", "a3"):
        versions(group, 1, name)
    page = group.ask(ListSchemas(starts="a", limit=2))
    rest = group.ask(ListSchemas(starts="a", limit=2, after=page.next))
    assert [each.name for each in page.schemas + rest.schemas] == ["a1", "a2", "a3"]
    assert rest.next == b""
    versions(group, 3)
    page = group.ask(ListSchemaVersions(name="order", limit=2))
    rest = group.ask(ListSchemaVersions(name="order", limit=2, after=page.next))
    assert [each.version for each in page.versions + rest.versions] == [1, 2, 3]
    with pytest.raises(Invalid, match=r"^limit: 0"):
        group.ask(ListSchemas(limit=0))


def test_a_schema_its_versions_and_its_bindings_are_in_one_group() -> None:
    slots = SlotMap(1, {"metadata": (SlotRange(0, 8_000, "metadata-1"),)})
    made = SchemaPut(name="order", type="json", text="{}", expected_version=0)
    groups = {
        slots.route(each)[0][0]
        for each in (
            PutSchemas(items=(made,)),
            BindSchemas(items=(SchemaUse("order", "t"),)),
            DeleteSchemas(names=("order",)),
            GetSchema(name="order"),
            GetSchemaVersion(name="order"),
            ListSchemaVersions(name="order"),
            ListSchemaBindings(name="order"),
        )
    }
    assert len(groups) == 1


def made(**changes: Any) -> PutSchemas:
    fields = {"name": "s", "type": "json", "text": "{}", "expected_version": 0}
    return PutSchemas(items=(SchemaPut(**{**fields, **changes}),))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (PutSchemas(items=()), "items"),
        (PutSchemas(tenant="", items=()), "tenant"),
        (made(name=""), "items.name"),
        (made(name="s" * 257), "items.name"),
        (made(type="xml"), "items.type"),
        (made(compatibility="sideways"), "items.compatibility"),
        (made(text=""), "items.text"),
        (made(text="x" * (SCHEMA_BYTES_MAX + 1)), "items.text"),
        (made(expected_version=-1), "items.expected_version"),
        (made(expected_fingerprint="a" * 65), "items.expected_fingerprint"),
        (ConfigureSchemas(items=()), "items"),
        (ConfigureSchemas(items=(SchemaMode("", FULL),)), "items.name"),
        (ConfigureSchemas(items=(SchemaMode("s", "x"),)), "items.compatibility"),
        (DeleteSchemaVersions(items=()), "items"),
        (DeleteSchemaVersions(items=(SchemaNumber("", 1),)), "items.name"),
        (DeleteSchemaVersions(items=(SchemaNumber("s", -1),)), "items.version"),
        (DeleteSchemas(names=()), "names"),
        (DeleteSchemas(names=("",)), "names"),
        (DeleteSchemas(tenant="", names=("s",)), "tenant"),
        (BindSchemas(items=()), "items"),
        (BindSchemas(items=(SchemaUse("", "t"),)), "items.name"),
        (BindSchemas(items=(SchemaUse("s", ""),)), "items.resource"),
        (BindSchemas(items=(SchemaUse("s", "t" * 65_536),)), "items.resource"),
        (UnbindSchemas(tenant="", items=(SchemaUse("s", "t"),)), "tenant"),
        (UnbindSchemas(items=(SchemaUse("s", ""),)), "items.resource"),
        (GetSchema(name=""), "name"),
        (GetSchema(tenant="", name="s"), "tenant"),
        (GetSchemaVersion(name="s", version=-1), "version"),
        (GetSchemaVersion(name=""), "name"),
        (ListSchemas(tenant=""), "tenant"),
        (ListSchemas(starts="s" * 257), "starts"),
        (ListSchemaVersions(name=""), "name"),
        (ListSchemaBindings(name=""), "name"),
        (ListBoundSchemas(resource=""), "resource"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    versions(group, 1, "s")
    group.beyond(operation, field)


def test_the_limits_themselves_are_within(group: Group) -> None:
    assert put(group, "x" * SCHEMA_BYTES_MAX, 0, name="s" * 256).ok
    one(bind(group, "t" * 65_535, name="s" * 256))
    found = group.ask(ListBoundSchemas(resource="t" * 65_535)).bindings
    assert [each.name for each in found] == ["s" * 256]
