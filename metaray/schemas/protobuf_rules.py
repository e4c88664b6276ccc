"""Protocol buffers: what was written stays readable while a number means what it meant.

The text is compiled by `protoc`, in a process of its own, so what is compared are descriptors with
full names. Unknown numbers are passed over by every reader, so a field may be added at any time,
and what breaks one way breaks the other: the rules are the same for every mode but `none`.

- a message or an enum is not gone, nor a field or a value without its number being reserved;
- a field number keeps its type, its label and its oneof;
- a reserved number or name stays reserved, so that no later version uses it again;
- no `required` field comes or goes.

An extension counts as a field of the message that it extends, if that is in the file. What the
features of an edition make of a field is resolved first: `LEGACY_REQUIRED` is `required`,
`DELIMITED` a group.

A field may be renamed: the number is what is written. The message that protoc makes of a map is
part of its field, whose name it has, and comes and goes with that. Services are not looked at. A
file stands alone, but for Google's well-known types.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import DescriptorPool

from metaray.schemas.problems import NotASchema, shortened

FILE: Final = "schema.proto"
COMPILE_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class ProtoFile:
    """The messages, with their extensions among the fields, and enums of a file, by full name."""

    messages: dict[str, DescriptorProto]
    enums: dict[str, EnumDescriptorProto]


def parse(text: str) -> ProtoFile:
    """Raises NotASchema."""
    with tempfile.TemporaryDirectory(prefix="metaray-schema-") as folder:
        path, out = Path(folder, FILE), Path(folder, "out")
        try:
            path.write_text(text, encoding="utf-8")
        except UnicodeEncodeError:
            raise NotASchema("not UTF-8") from None
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
        try:
            done = subprocess.run(
                [*command, f"--descriptor_set_out={out}", "--include_imports", FILE],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=COMPILE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NotASchema(f"not compiled within {COMPILE_SECONDS:.0f} s") from None
        if done.returncode != 0:
            raise NotASchema(_said(done.stderr, folder))
        files = FileDescriptorSet.FromString(out.read_bytes()).file
    file = files[-1]  # after what it imports
    messages = dict(_messages(file))
    fields = list(_fields(file, messages))
    if file.syntax == "editions":
        _resolve(files, fields)
    for name, field in fields:
        extended = messages.get(field.extendee.removeprefix("."))
        if extended is not None:
            extended.field.append(field)
            extended.field[-1].name = f"[{name}]"
    enums = {f"{_prefix(file)}{each.name}": each for each in file.enum_type}
    for name, message in messages.items():
        enums |= {f"{name}.{each.name}": each for each in message.enum_type}
    return ProtoFile(messages, enums)


def _said(stderr: str, folder: str) -> str:
    """What protoc found, without what it warns of."""
    lines = [each.removeprefix(f"{folder}/") for each in stderr.splitlines() if ".proto:" in each]
    found = [each for each in lines if not each.startswith("W")]
    return shortened(" ".join(found) or "protoc does not take it")


def _prefix(file: FileDescriptorProto) -> str:
    return f"{file.package}." if file.package else ""


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    waiting = [(f"{_prefix(file)}{each.name}", each) for each in file.message_type]
    while waiting:
        name, message = waiting.pop()
        yield name, message
        waiting += [(f"{name}.{each.name}", each) for each in message.nested_type]


def _fields(
    file: FileDescriptorProto, messages: dict[str, DescriptorProto]
) -> Iterator[tuple[str, FieldDescriptorProto]]:
    """All fields and extensions, by full name."""
    for extension in file.extension:
        yield f"{_prefix(file)}{extension.name}", extension
    for name, message in messages.items():
        for field in (*message.field, *message.extension):
            yield f"{name}.{field.name}", field


def _resolve(
    files: Iterable[FileDescriptorProto], fields: list[tuple[str, FieldDescriptorProto]]
) -> None:
    """Give fields the type and the label that the features of their edition make of them."""
    pool = DescriptorPool()
    try:
        for each in files:
            pool.Add(each)
    except TypeError as error:  # an edition that protoc knows and the library does not
        raise NotASchema(shortened(error)) from None
    for name, field in fields:
        find = pool.FindExtensionByName if field.extendee else pool.FindFieldByName
        resolved = find(name)
        if resolved.type == FieldDescriptorProto.TYPE_GROUP:
            field.type = FieldDescriptorProto.TYPE_GROUP
        if resolved.is_required:
            field.label = FieldDescriptorProto.LABEL_REQUIRED


def problems(mode: str, new: ProtoFile, old: ProtoFile) -> list[str]:
    """What of `old` is gone or means something else in `new`, whatever the mode is."""
    found: list[str] = []
    for name, before in sorted(old.messages.items()):
        if before.options.map_entry:
            continue  # part of its field
        now = new.messages.get(name)
        found += _of_message(name, now, before) if now is not None else [f"{name} is gone"]
    for name, values in sorted(old.enums.items()):
        left = new.enums.get(name)
        found += _of_enum(name, left, values) if left is not None else [f"{name} is gone"]
    return found


def _of_message(name: str, new: DescriptorProto, old: DescriptorProto) -> list[str]:
    found = []
    now = {each.number: each for each in new.field}
    for before in old.field:
        where = f"{name}.{before.name} = {before.number}"
        field = now.get(before.number)
        if field is not None:
            entry, was = _entry(name, new, field), _entry(name, old, before)
            if entry is not None and was is not None:
                found += _of_message(f"{name}.{was.name}", entry, was)
                field, before = _untyped(field), _untyped(before)
            found += [f"{where}: {each}" for each in _of_field(new, field, old, before)]
        elif not _within(before.number, new):
            found.append(f"{where} is gone and its number is not reserved")
    required = {(each.number, each.name) for each in old.field if _required(each)}
    required ^= {(each.number, each.name) for each in new.field if _required(each)}
    kept = now.keys() & {each.number for each in old.field}
    found += [
        f"{name}.{field} = {number} is required and comes or goes"
        for number, field in sorted(required)
        if number not in kept  # of one that stays the label is compared
    ]
    for field in new.field:
        if _within(field.number, old) or field.name in old.reserved_name:
            found.append(f"{name}.{field.name} = {field.number} was reserved")
    return [*found, *_no_longer_reserved(name, new, old, 0)]


def _entry(
    name: str, message: DescriptorProto, field: FieldDescriptorProto
) -> DescriptorProto | None:
    """What protoc has made of a map; none of any other field."""
    for each in message.nested_type:
        if each.options.map_entry and field.type_name == f".{name}.{each.name}":
            return each
    return None


def _untyped(field: FieldDescriptorProto) -> FieldDescriptorProto:
    """A field but for the name of its type."""
    found = FieldDescriptorProto()
    found.CopyFrom(field)
    found.ClearField("type_name")
    return found


def _no_longer_reserved(
    name: str,
    new: DescriptorProto | EnumDescriptorProto,
    old: DescriptorProto | EnumDescriptorProto,
    last: int,
) -> Iterator[str]:
    """What `old` reserves and `new` does not; `last` is 1 where ranges have their end in them."""
    ranges = sorted((each.start, each.end + last) for each in new.reserved_range)
    for each in old.reserved_range:
        free = each.start
        for start, end in ranges:
            if start <= free < end:
                free = end
        if free < each.end + last:
            yield f"{name}: {free} is no longer reserved"
    for word in sorted(set(old.reserved_name) - set(new.reserved_name)):
        yield f"{name}: {word!r} is no longer reserved"


def _within(number: int, message: DescriptorProto) -> bool:
    """Whether the number is reserved."""
    return any(each.start <= number < each.end for each in message.reserved_range)


def _required(field: FieldDescriptorProto) -> bool:
    return field.label == FieldDescriptorProto.LABEL_REQUIRED


def _of_field(
    new: DescriptorProto,
    field: FieldDescriptorProto,
    old: DescriptorProto,
    before: FieldDescriptorProto,
) -> Iterator[str]:
    if (field.type, field.type_name) != (before.type, before.type_name):
        yield f"its type was {_type(before)} and is {_type(field)}"
    if field.label != before.label:
        yield f"its label was {_label(before)} and is {_label(field)}"
    if _oneof(new, field) != _oneof(old, before):
        yield "its oneof is another"


def _type(field: FieldDescriptorProto) -> str:
    name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    full_name = field.type_name.removeprefix(".")
    return f"group {full_name}" if name == "group" else full_name or name


def _label(field: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Label.Name(field.label).removeprefix("LABEL_").lower()


def _oneof(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    """The oneof that a field is in; that of an `optional` of proto3 is none."""
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return message.oneof_decl[field.oneof_index].name


def _of_enum(name: str, new: EnumDescriptorProto, old: EnumDescriptorProto) -> list[str]:
    now = {each.number for each in new.value}
    found = [
        f"{name}.{value.name} = {value.number} is gone and its number is not reserved"
        for value in old.value
        if value.number not in now and not _valued(value.number, new)
    ]
    found += [
        f"{name}.{value.name} = {value.number} was reserved"
        for value in new.value
        if _valued(value.number, old) or value.name in old.reserved_name
    ]
    return [*found, *_no_longer_reserved(name, new, old, 1)]


def _valued(number: int, enum: EnumDescriptorProto) -> bool:
    """Whether the number is reserved; an enum's ranges have their end in them."""
    return any(each.start <= number <= each.end for each in enum.reserved_range)
