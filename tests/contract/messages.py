"""`proto/entities.proto` as a broker in another language has it: compiled, without our classes.

`to_message` and `from_message` put values of the registry's classes into its messages and take them
out again, by field names and presence alone: what the contract can say, they can.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import grpc_tools
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc

from metaray.cli.values import without_none

ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "proto" / "entities.proto"
INCLUDE: Final = Path(grpc_tools.__file__).parent / "_proto"
PACKAGE: Final = "metaray.entities"


def compiled(text: str) -> descriptor_pb2.FileDescriptorSet:
    """What protoc makes of a file, with what it imports. Fails if it refuses the file."""
    with TemporaryDirectory() as folder:
        source, out = Path(folder, "entities.proto"), Path(folder, "out")
        source.write_text(text, encoding="utf-8")
        arguments = [
            f"-I{folder}",
            f"-I{INCLUDE}",
            "--include_imports",
            f"--descriptor_set_out={out}",
        ]
        assert protoc.main(["protoc", *arguments, str(source)]) == 0
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


class Contract:
    """The messages of a file, in a pool of their own, found by what they stand for."""

    def __init__(self, text: str) -> None:
        self.pool = descriptor_pool.DescriptorPool()
        files = compiled(text).file
        for each in files:
            self.pool.Add(each)
        # Options that the runtime does not know are kept as bytes; here they are known.
        self.options: Any = message_factory.GetMessageClass(
            self.pool.FindMessageTypeByName("google.protobuf.MessageOptions")
        )
        message_factory.GetMessageClassesForFiles([each.name for each in files], self.pool)
        self.file = files[-1]
        self.names: dict[str, str] = {}
        for message in self.file.message_type:
            for option, value in self._stands_for(message):
                self.names[f"{option} {value}"] = message.name

    def _stands_for(self, message: descriptor_pb2.DescriptorProto) -> list[tuple[str, str]]:
        options = self.options.FromString(message.options.SerializeToString())
        found = []
        for extension, value in options.ListFields():
            values = [value] if isinstance(value, str) else list(value)
            found += [(extension.name, each) for each in values]
        return found

    def named(self, name: str) -> Any:
        """The class of a message."""
        found = self.pool.FindMessageTypeByName(f"{PACKAGE}.{name}")
        return message_factory.GetMessageClass(found)

    def of(self, stands_for: str) -> Any:
        """The class of the message that stands for a tag, a table or a type."""
        return self.named(self.names[stands_for])


@cache
def contract() -> Contract:
    """The committed one."""
    return Contract(FILE.read_text(encoding="utf-8"))


def to_message(value: Any, message: Any) -> Any:
    """A dataclass, or what stands in a wrapper, as a message. What is none is not there."""
    if not message.DESCRIPTOR.GetOptions().SerializeToString():  # it stands for nothing of ours
        return to_reply(value, message)
    for each in dataclasses.fields(value):
        _set(message, each.name, getattr(value, each.name))
    return message


def to_reply(value: Any, message: Any) -> Any:
    """The one value of a reply that is no dataclass, as the reply's message."""
    _set(message, "value", value)
    return message


def _set(message: Any, name: str, value: Any) -> None:
    field = message.DESCRIPTOR.fields_by_name[name]
    if value is None:
        return
    if field.is_repeated:
        for each in value:
            if field.message_type is None:
                getattr(message, name).append(each)
            else:
                to_message(each, getattr(message, name).add())
    elif field.message_type is not None:
        getattr(message, name).SetInParent()
        to_message(value, getattr(message, name))
    else:
        setattr(message, name, value)


def from_message(hint: Any, message: Any) -> Any:
    """The value of an annotated type that a message says."""
    found = {}
    hints = typing.get_type_hints(hint)
    for each in dataclasses.fields(hint):
        descriptor = message.DESCRIPTOR.fields_by_name[each.name]
        if descriptor.has_presence and not message.HasField(each.name):
            default = each.default
            found[each.name] = None if default is dataclasses.MISSING else default
        else:
            found[each.name] = value_of(hints[each.name], getattr(message, each.name))
    return hint(**found)


def value_of(hint: Any, value: Any) -> Any:
    """The same of one field's value that is there."""
    hint = without_none(hint)
    if typing.get_origin(hint) is tuple:
        (item, _) = typing.get_args(hint)
        items = value.value if hasattr(value, "DESCRIPTOR") else value
        return tuple([_unwrapped(item, each) for each in items])
    return from_message(hint, value) if dataclasses.is_dataclass(hint) else value


def _unwrapped(hint: Any, value: Any) -> Any:
    if without_none(hint) is not hint:
        return value_of(hint, value.value) if value.HasField("value") else None
    return value_of(hint, value)


def reply_of(hint: Any, message: Any) -> Any:
    """The reply that a reply's message says."""
    if hint in (None, types.NoneType):
        return None
    if dataclasses.is_dataclass(hint):
        return from_message(hint, message)
    descriptor = message.DESCRIPTOR.fields_by_name["value"]
    if descriptor.has_presence and not message.HasField("value"):
        return None
    return value_of(hint, message.value)
