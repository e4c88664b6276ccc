"""The registry as data: what is read from annotations, comments and code."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pytest

from metaray.contract import registry, source
from metaray.contract.refusals import refusals
from state_machines import fence, limits, op
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import Conflict, Fenced, Invalid, NotFound
from state_machines.metadata import kv, kv_batch
from state_machines.mqtt import session
from state_machines.op import Stamp
from state_machines.slots import SlotRange
from state_machines.tables import TABLES, Tables

ALL = {each.tag: each for each in registry.operations()}

COUNT_MAX: Final = 3  #: of nothing
BELOW_MIN: Final = -1
"""Said below it."""

NEITHER: Final = 5  #: no limit by its name


@dataclass(frozen=True, slots=True)
class Explained:
    """A class of this file."""

    first: int  #: behind
    #: above,
    #: in two lines
    second: str = ""
    third: bytes = b""
    """below"""
    fourth: bool = False  # an ordinary comment


class Part(Batch):
    """An operation of this file."""

    many: ClassVar[str] = "items"
    items: tuple[str, ...]

    def slot_key_of(self, item: str) -> tuple[str, ...]:
        """By item."""
        return ("t", item)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """Each alone."""
        if at.index < 0:
            raise Conflict("index")
        return each(db, self.items, lambda item: self._one(db, item))

    def _one(self, db: Tables, item: str) -> None:
        if not item:
            raise NotFound(f"item: {item!r}, of {COUNT_MAX}")
        fence.pass_fence(db, 1)


def test_comments_behind_above_and_below_are_found() -> None:
    assert source.meanings(Explained) == {
        "first": "behind",
        "second": "above, in two lines",
        "third": "below",
    }
    said = {part.name: part.meaning for part in registry.fields_of(Explained)}
    assert said["fourth"] == ""


def test_limits_are_the_numbers_that_are_called_so() -> None:
    assert source.constants(__name__) == (
        source.Constant("COUNT_MAX", 3, "of nothing"),
        source.Constant("BELOW_MIN", -1, "Said below it."),
    )
    imported = {each.name: each for each in source.constants(session.__name__)}
    assert imported["MQTT_STRING_BYTES_MAX"].value == limits.MQTT_STRING_BYTES_MAX
    assert "client ids" in imported["MQTT_STRING_BYTES_MAX"].meaning


def test_a_module_without_source_explains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "test_without_source", type(sys)("test_without_source"))
    assert source.of_module("test_without_source").tree.body == []
    assert source.functions("test_without_source") == {}
    assert source.constants("test_without_source") == ()


def test_refusals_are_found_through_lambdas_and_other_modules_with_their_constants() -> None:
    found = [(each.error, each.words) for each in refusals(Part, Part.apply)]
    assert found == [
        (Conflict, "index"),
        (NotFound, "item: …, of 3"),
        (Fenced, "controller_epoch: …, in force is …"),
    ]


@pytest.mark.parametrize(
    ("tag", "errors"),
    [
        ("metadata.kv.put", {Conflict}),
        ("metadata.kv.delete", {Conflict, NotFound}),
        ("mqtt.session.close", {Fenced, NotFound, Invalid}),
        ("mqtt.pulse", {Fenced}),
        ("metadata.node.register", set()),
    ],
)
def test_refusals_of_real_operations(tag: str, errors: set[type]) -> None:
    assert {each.error for each in ALL[tag].refusals} == errors


def test_the_errors_that_a_docstring_names_are_found() -> None:
    """`NotFound, or Conflict unless ...`: whoever writes that raises them."""
    kinds: tuple[type, ...] = (Conflict, Fenced, NotFound)
    missing = [
        f"{tag}: {kind.__name__}"
        for tag, operation in ALL.items()
        for kind in kinds
        if operation.effect.startswith(f"{kind.__name__} ")
        and kind not in {each.error for each in operation.refusals}
    ]
    assert not missing


def test_every_operation_and_table_is_in_one_entity() -> None:
    entities = registry.entities()
    tags = [each.tag for entity in entities for each in entity.operations]
    tables = [each.name for entity in entities for each in entity.tables]
    assert sorted(tags) == sorted(ALL)
    assert sorted(tables) == sorted(name for name in TABLES if not name.startswith("test."))
    assert len({(each.kind, each.name) for each in entities}) == len(entities)


def test_entities_are_named_by_tag_or_file_and_take_their_tables() -> None:
    found = {(each.kind, each.name): each for each in registry.entities()}
    assert {each.name for each in found["mqtt", "session"].tables} == {
        "mqtt.session",
        "mqtt.session_tally",
    }
    assert [each.name for each in found["offset", "offset"].tables][-1] == "offset.offset"
    assert [each.tag for each in found["mqtt", "pulse"].operations] == ["mqtt.due", "mqtt.pulse"]
    assert found["group", "slots"].modules == ["state_machines.slots"]
    assert found["mqtt", "session"].modules[0] == "state_machines.mqtt.session"


@pytest.mark.parametrize(
    ("tag", "traits", "place"),
    [
        ("metadata.kv.put", set(), "by `(tenant, key)`"),
        ("metadata.kv.range", {"paged"}, "every group of the kind"),
        ("metadata.node.expire", {"controller only", "urgent"}, "`metadata-0`"),
        ("group.own", {"controller only", "urgent"}, "the group that is named"),
        ("metadata.slots.assign", {"controller or by hand", "urgent"}, "`metadata-0`"),
        (
            "mqtt.session.delete",
            {"batch of `client_ids`"},
            "by `[(tenant, each) for each in client_ids]`",
        ),
    ],
)
def test_how_an_operation_travels(tag: str, traits: set[str], place: str) -> None:
    assert set(ALL[tag].traits) == traits
    assert ALL[tag].place == place


def test_a_batch_goes_by_its_items_or_is_cluster_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.Operation("x", Part).place == "by `('t', item)`"
    monkeypatch.delattr(Part, "slot_key_of")
    monkeypatch.setattr(registry.Operation, "kind", "metadata")
    assert registry.Operation("x", Part).place == "`metadata-0`"


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "int"),
        (None, "none"),
        (type(None), "none"),
        (str | None, "str or none"),
        (tuple[SlotRange, ...], "list of SlotRange"),
        (tuple[int, ...] | None, "list of int or none"),
    ],
)
def test_types_in_words(hint: Any, words: str) -> None:
    assert registry.spell(hint) == words


def test_types_are_found_in_types() -> None:
    assert registry.dataclasses_in([kv.KvPage | None]) == [kv.KvPage, kv.KvEntry]
    (entity,) = (each for each in registry.entities() if each.name == "kv")
    assert entity.types == [kv.KvEntry, kv_batch.KvItem, kv_batch.KvKey, kv.KvPage]
    homes = [cls for each in registry.entities() for cls in each.types]
    shared = [cls for cls in registry.parts() if registry.home(cls) is None]
    assert sorted(map(str, homes + shared)) == sorted(map(str, registry.parts()))
    assert Outcome not in homes


def test_a_generated_docstring_is_none() -> None:
    bare = dataclasses.make_dataclass("Bare", [("a", int)])
    assert registry.words(bare) == ""
    assert registry.words(Explained) == "A class of this file."


@pytest.mark.parametrize("tag", sorted(op.COMMANDS | op.QUERIES))
def test_replies_that_are_equal_are_the_same(tag: str) -> None:
    # The machine packs a reply once for the commands of an entry that are answered alike.
    kinds: list[Any] = registry.dataclasses_in([op.reply_type((op.COMMANDS | op.QUERIES)[tag])])
    for kind in kinds:
        assert kind.__eq__ is not object.__eq__, f"{kind}: nothing is equal to it"
        assert all(field.compare for field in dataclasses.fields(kind)), kind
