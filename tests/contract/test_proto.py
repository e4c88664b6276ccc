"""The typed contract: fresh, compiled, able to say every value, and numbered for ever."""

from __future__ import annotations

import dataclasses
import types
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metaray.contract import proto, registry
from metaray.contract.numbers import Message, remembered
from metaray.contract.proto import Part
from state_machines import op
from state_machines.tables import TABLES
from tests.contract import messages
from tests.machine import operations

ALL = {each.tag: each for each in registry.operations()}

each_operation = pytest.mark.parametrize("tag", sorted(ALL))
some = settings(max_examples=5)


def test_the_file_is_what_the_registry_gives(request: pytest.FixtureRequest) -> None:
    was = messages.FILE.read_text(encoding="utf-8") if messages.FILE.exists() else ""
    now = proto.generate(was)
    if request.config.getoption("--rewrite"):
        messages.FILE.write_text(now, encoding="utf-8")
        return
    assert now == was, "something was added: run 'make contract'"


def test_a_second_generation_changes_nothing() -> None:
    once = proto.generate("")
    assert proto.generate(once) == once


def test_every_operation_row_and_reply_has_a_message() -> None:
    names = messages.contract().names
    for tag, each in ALL.items():
        assert f"op_tag {tag}" in names
        answered = f"op_reply {tag}" in names
        assert answered != dataclasses.is_dataclass(each.reply)
    ours = {table.name for table in TABLES.values() if not table.name.startswith("test.")}
    assert {name for name in ours if f"row_table {name}" not in names} == set()
    kept = {name.partition(" ")[2] for name in names if name.startswith("op_tag ")}
    assert kept == set(ALL), "a tag is for ever, and so is its message"


def test_services_say_what_answers_what() -> None:
    contract = messages.contract()
    answers = {}
    for service in contract.file.service:
        for method in service.method:
            answers[method.input_type] = method.output_type
            assert method.input_type.endswith(f".{method.name}")
    assert len(answers) == len(ALL)
    within = f".{messages.PACKAGE}."
    assert answers[f"{within}PutKv"] == f"{within}PutKvReply"
    assert answers[f"{within}RangeKv"] == f"{within}KvPage"


@each_operation
@given(data=st.data())
@some
def test_every_value_of_an_operation_can_be_said(tag: str, data: st.DataObject) -> None:
    said = data.draw(operations.instances(ALL[tag].cls))
    kind = messages.contract().of(f"op_tag {tag}")
    wire = messages.to_message(said, kind()).SerializeToString()
    assert messages.from_message(ALL[tag].cls, kind.FromString(wire)) == said


@each_operation
@given(data=st.data())
@some
def test_every_value_of_a_reply_can_be_said(tag: str, data: st.DataObject) -> None:
    hint = ALL[tag].reply
    nothing = hint in (None, types.NoneType)
    reply = None if nothing else data.draw(operations.values(hint))
    contract = messages.contract()
    convert: Any = messages.to_reply
    if dataclasses.is_dataclass(hint):
        convert = messages.to_message
        (method,) = (
            method
            for service in contract.file.service
            for method in service.method
            if method.input_type.endswith(f".{contract.names[f'op_tag {tag}']}")
        )
        kind = contract.named(method.output_type.rpartition(".")[2])
    else:
        kind = contract.of(f"op_reply {tag}")
    wire = (kind() if nothing else convert(reply, kind())).SerializeToString()
    assert messages.reply_of(hint, kind.FromString(wire)) == reply


@each_operation
def test_what_is_left_out_is_the_default(tag: str) -> None:
    cls = ALL[tag].cls
    kind = messages.contract().of(f"op_tag {tag}")
    found = messages.from_message(cls, kind())
    for each in ALL[tag].fields:
        if not each.required:
            assert getattr(found, each.name) == each.default


# -- what no entity has today -------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    name: str


@dataclass(frozen=True)
class Odd:
    """Every shape that a field may have."""

    plain: int
    maybe: str | None
    names: tuple[str, ...]
    maybe_names: tuple[str, ...] | None
    holes: tuple[int | None, ...]
    inner_holes: tuple[Inner | None, ...]
    table: tuple[tuple[int, ...], ...]
    inner: Inner
    maybe_inner: Inner | None
    inners: tuple[Inner, ...]
    maybe_inners: tuple[Inner, ...] | None
    flag: bool = True
    size: int = 7
    data: bytes = b""
    level: int | None = None


def written(*parts: Part, before: str = "") -> str:
    """A file with these messages alone."""
    kept = proto._named(list(parts), remembered(before))
    spelling = proto._Spelling(
        {part.key: each.name for part, each in zip(parts, kept, strict=True)}
    )
    made = [proto._written(*both, spelling) for both in zip(parts, kept, strict=True)]
    return "\n".join([proto._HEAD, *made, *spelling.wrappers.values()])


def part(cls: Any, *names: str) -> Part:
    every = names or (cls.__name__, f"Test{cls.__name__}", f"TestFile{cls.__name__}")
    stands_for = f"part_type {registry.PACKAGE}.{cls.__module__}.{cls.__name__}"
    return Part(cls, (stands_for,), every, "", registry.fields_of(cls))


@given(said=operations.instances(Odd))
@some
def test_every_shape_of_a_field_can_be_said(said: Odd) -> None:
    kind = odd().named("Odd")
    wire = messages.to_message(said, kind()).SerializeToString()
    assert messages.from_message(Odd, kind.FromString(wire)) == said


_ODD: list[messages.Contract] = []


def odd() -> messages.Contract:
    if not _ODD:
        _ODD.append(messages.Contract(written(part(Odd), part(Inner))))
    return _ODD[0]


def test_a_list_with_a_default_of_its_own_cannot_be_said() -> None:
    field = registry.Field("names", tuple[str, ...], ("a",), "")
    with pytest.raises(TypeError, match="names: a list"):
        proto._Spelling({}).field(field)


# -- numbers ------------------------------------------------------------------------------------


def test_numbers_never_move() -> None:
    message = Message("M", {"a": 1, "b": 2, "c": 3})
    message.renumber(["new", "c", "a"])
    assert message.numbers == {"a": 1, "c": 3, "new": 4}
    assert message.reserved() == ["  reserved 2;", '  reserved "b";']
    message.renumber(["b", "a"])
    assert message.numbers == {"a": 1, "b": 5}, "a name that comes back is another field"
    assert message.reserved() == ["  reserved 2, 3, 4;", '  reserved "c", "new";']


@given(versions=st.lists(st.lists(st.sampled_from("abcdef"), unique=True), max_size=8))
def test_no_history_of_a_class_gives_a_number_twice(versions: list[list[str]]) -> None:
    given_to: dict[int, str] = {}
    text = ""
    gone: set[int] = set()
    for fields in versions:
        shown = tuple(registry.Field(each, int, 0, "") for each in fields)
        text = written(Part("t", ("op_tag t",), ("M",), "", shown), before=text)
        now = remembered(text)["op_tag t"].numbers
        assert list(now) == fields
        assert not gone & set(now.values())
        gone |= {number for number in given_to if number not in now.values()}
        for name, number in now.items():
            assert given_to.setdefault(number, name) == name


def test_a_field_that_goes_is_reserved_in_the_real_file() -> None:
    text = messages.FILE.read_text(encoding="utf-8")
    here = '  option (op_tag) = "metadata.kv.put";\n'
    again = proto.generate(text.replace(here, f"{here}  string gone = 9;\n"))
    assert again == text.replace(here, f'{here}  reserved 9;\n  reserved "gone";\n')
    assert proto.generate(again) == again
    messages.compiled(again)
    assert remembered(again)["op_tag metadata.kv.put"].retired_numbers == {9}


def test_a_name_that_two_classes_have_goes_to_neither_and_stays_with_whom_it_was() -> None:
    first = Part("one", ("part_type a.Same",), ("Same", "ASame", "AFileSame"), "", ())
    second = Part("two", ("part_type b.Same",), ("Same", "BSame", "BFileSame"), "", ())
    both = written(first, second)
    assert "message ASame {" in both
    assert "message BSame {" in both
    later = written(first, second, before=written(first))
    assert "message Same {" in later
    assert "message BSame {" in later
    assert written(second, first, before=later).count("message Same {") == 1


def test_a_type_that_becomes_a_row_keeps_its_numbers() -> None:
    kept = remembered(
        'message Was {\n  option (part_type) = "tests.Inner";\n  string name = 5;\n}\n'
    )
    asked = dataclasses.replace(part(Inner), stands_for=("row_table x",))
    kept[f"part_type {proto._folder(Inner)}.Inner"] = next(iter(kept.values()))
    (message,) = proto._named([asked], kept)
    assert (message.name, message.numbers) == ("Was", {"name": 5})


def test_the_tags_of_the_contract_are_those_of_the_wire() -> None:
    assert set(ALL) == set(op.COMMANDS) | set(op.QUERIES)
