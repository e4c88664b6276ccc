"""Registering: what was checked is what is put, whoever else registers meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

import metaray.schemas
from metaray.client import Client
from metaray.schemas import ATTEMPTS_MAX, Incompatible, register_schema
from state_machines import op, packing, row_key
from state_machines.errors import Conflict, Invalid, QuotaExceeded
from state_machines.metadata import schema as schema_module
from state_machines.metadata.restore import RemoveMetadata, RestoreMetadata
from state_machines.metadata.schema import (
    ConfigureSchemas,
    DeleteSchemas,
    PutSchemas,
    SchemaMode,
    SchemaPut,
)
from state_machines.metadata.schema_queries import GetSchema, GetSchemaVersion
from state_machines.metadata.schemas import (
    SCHEMAS,
    VERSIONS,
    Schema,
    SchemaVersion,
    fingerprint,
)
from tests.entities.engine import one
from tests.entities.group import Group

FIRST = '{"type": "integer"}'
WIDER = '{"type": "number"}'
WIDEST = '{"type": ["number", "string"]}'
OTHER = '{"type": "null"}'


class Door:
    """A client of one group in this process. `meanwhile` happens before the next command."""

    def __init__(self) -> None:
        self.group = Group("metadata")
        self.meanwhile: Callable[[], None] = lambda: None
        self.checks = 0

    async def call(self, operation: Any) -> Any:
        if op.is_query(type(operation)):
            return self.group.ask(operation)
        happens, self.meanwhile = self.meanwhile, lambda: None
        happens()
        return self.group.run(operation)

    async def register(self, text: str, **changes: Any) -> int:
        fields = {"name": "order", "type": "json", "text": text, **changes}
        return await register_schema(cast(Client, self), **fields)

    def put(self, text: str, version: int, mode: str = "backward") -> None:
        item = SchemaPut(
            name="order", type="json", compatibility=mode, text=text, expected_version=version
        )
        one(self.group.run(PutSchemas(items=(item,))))

    def newest(self) -> str:
        found = self.group.ask(GetSchemaVersion(name="order"))
        return str(found.text)


@pytest.fixture
def door() -> Door:
    return Door()


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_versions_are_numbered_and_the_newest_text_is_its_version(door: Door) -> None:
    assert run(door.register(FIRST, compatibility="full")) == 1
    assert door.group.ask(GetSchema(name="order")).compatibility == "full"
    assert run(door.register(FIRST)) == 1
    one(door.group.run(ConfigureSchemas(items=(SchemaMode("order", "backward"),))))
    assert run(door.register(WIDER)) == 2
    assert run(door.register(WIDER)) == 2


def test_what_does_not_fit_is_not_put(door: Door) -> None:
    run(door.register(WIDER))
    with pytest.raises(Incompatible, match=r"^text: backward: \$: number is not") as caught:
        run(door.register(FIRST))
    assert caught.value.problems == ("backward: $: number is not accepted, only integer",)
    with pytest.raises(Incompatible, match=r"^text: not a schema: "):
        run(door.register("{"))
    with pytest.raises(Incompatible, match=r"^type: avro, the schema is json"):
        run(door.register(FIRST, type="avro"))
    with pytest.raises(Invalid, match=r"^type: 'xml'"):
        run(door.register(FIRST, name="new", type="xml"))
    assert (door.newest(), door.group.ask(GetSchema(name="order")).version) == (WIDER, 1)


def test_it_is_checked_against_the_newest_that_a_restore_has_left(door: Door) -> None:
    for text in (FIRST, WIDER):
        run(door.register(text))
    second = row_key.pack(("default", "order", 2))
    one(door.group.run(RemoveMetadata(table=VERSIONS.name, keys=(second,))))
    assert run(door.register(FIRST)) == 1
    with pytest.raises(Incompatible):
        run(door.register(OTHER))
    assert run(door.register(WIDEST)) == 3


def test_a_schema_without_versions_says_so_at_once(door: Door) -> None:
    """Its versions may be on their way: a text that fits none of them must not come first."""
    row = Schema("default", "order", "json", "backward", 3, 3, 0, 1, 1)
    one(door.group.run(RestoreMetadata(table=SCHEMAS.name, rows=(packing.pack(row),))))
    with pytest.raises(Conflict, match=r"^name: 'order' has no versions to check a text against"):
        run(door.register(FIRST))
    version = SchemaVersion("default", "order", 3, "json", FIRST, fingerprint(FIRST), 1)
    one(door.group.run(RestoreMetadata(table=VERSIONS.name, rows=(packing.pack(version),))))
    assert run(door.register(WIDER)) == 4


def test_the_first_version_is_a_schema(door: Door) -> None:
    with pytest.raises(Incompatible, match=r"^text: not a schema: "):
        run(door.register("nonsense"))
    assert door.group.ask(GetSchema(name="order")) is None


def test_it_is_checked_against_what_came_in_between(door: Door) -> None:
    """Reference defect 7: it fitted what it was checked against, and that is not the newest."""
    run(door.register(FIRST))
    door.meanwhile = lambda: door.put(WIDEST, 1)
    with pytest.raises(Incompatible, match="string is not accepted"):
        run(door.register(WIDER))
    assert door.newest() == WIDEST
    door.meanwhile = lambda: door.put(OTHER + " ", 2, "backward")
    with pytest.raises(Incompatible):
        run(door.register('{"type": ["number", "string", "boolean"]}'))


def test_it_is_put_after_what_came_in_between_if_it_still_fits(door: Door) -> None:
    run(door.register(FIRST))
    door.meanwhile = lambda: door.put(WIDER, 1)
    assert run(door.register(WIDEST)) == 3
    assert door.newest() == WIDEST


def test_the_same_text_put_by_another_is_that_version(door: Door) -> None:
    door.meanwhile = lambda: door.put(FIRST, 0)
    assert run(door.register(FIRST)) == 1


def test_another_mode_in_between_is_the_one_that_counts(door: Door) -> None:
    run(door.register(FIRST))
    modes = ConfigureSchemas(items=(SchemaMode("order", "full"),))
    door.meanwhile = lambda: one(door.group.run(modes))
    with pytest.raises(Incompatible, match=r"^text: forward: "):
        run(door.register(WIDER))


def test_a_schema_that_goes_in_between_begins_anew(door: Door) -> None:
    run(door.register(WIDER))
    door.meanwhile = lambda: one(door.group.run(DeleteSchemas(names=("order",))))
    assert run(door.register(WIDEST)) == 1


def test_a_schema_made_again_in_between_is_another(door: Door) -> None:
    """It has the number, the type and the mode of the one that was checked, and not its text."""
    run(door.register(FIRST))

    def made_again() -> None:
        one(door.group.run(DeleteSchemas(names=("order",))))
        door.put(WIDEST, 0)

    door.meanwhile = made_again
    with pytest.raises(Incompatible, match="string is not accepted"):
        run(door.register(WIDER))
    assert door.newest() == WIDEST


def test_a_text_that_a_restore_put_in_between_is_another(door: Door) -> None:
    run(door.register(FIRST))
    row = SchemaVersion("default", "order", 1, "json", WIDEST, fingerprint(WIDEST), 1)
    restored = RestoreMetadata(table=VERSIONS.name, rows=(packing.pack(row),), replace=True)
    door.meanwhile = lambda: one(door.group.run(restored))
    with pytest.raises(Incompatible, match="string is not accepted"):
        run(door.register(WIDER))


def test_another_refusal_is_passed_on(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_module, "VERSIONS_MAX", 1)
    run(door.register(FIRST))
    with pytest.raises(QuotaExceeded, match="has 1 versions, the limit"):
        run(door.register(WIDER))


def test_who_is_always_overtaken_gives_up(door: Door) -> None:
    run(door.register(FIRST))

    def again(version: int) -> None:
        door.put(FIRST + " " * version, version)
        door.meanwhile = lambda: again(version + 1)

    door.meanwhile = lambda: again(1)
    with pytest.raises(
        Conflict, match=f"^name: 'order' was changed by others {ATTEMPTS_MAX} times"
    ):
        run(door.register(WIDER))
    assert door.group.ask(GetSchema(name="order")).version == 1 + ATTEMPTS_MAX


def test_many_problems_are_all_there_and_some_are_said(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [f"problem {each}" for each in range(20)]
    monkeypatch.setattr(metaray.schemas, "check_compatible", lambda *_: found)
    with pytest.raises(Incompatible, match=r"problem 7; and 12 more$") as caught:
        run(door.register(FIRST))
    assert caught.value.problems == tuple(found)
