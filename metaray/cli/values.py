"""From words of the terminal to fields of an operation, and from replies to JSON.

    text      as it is                      str
    7, -1     a whole number                int
    text, @file, @-, hex:00ff, text:@x      bytes: UTF-8, a file, standard input, hex, UTF-8
    true, false                             bool, where it is an item of a list
    {"name": "a"}, @file                    JSON: a dataclass, a list in a list

In JSON bytes are strings too, `hex:...` where they are no text that can be printed; a file is read
only for what stands on the command line itself. Whatever does not fit is `Invalid` and names the
field, before anything is sent.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import re
import sys
import types
import typing
from pathlib import Path
from typing import Any, BinaryIO, Final

from jobs.words import moment, span
from state_machines.errors import Invalid
from state_machines.limits import REQUEST_BYTES_MAX

HEX: Final = "hex:"
TEXT: Final = "text:"
FILE: Final = "@"
DIGITS_MAX: Final = 20  #: of a number: 64 bits have 19, and a sign
TOKENS: Final = ("after", "next")  #: where a page goes on: bytes that are always said in hex

VERIFIER: Final = "verifier"  #: a field that is shown of one user that is asked for by name alone
CELL_MAX: Final = 200  #: characters of one value in a table
TIMES_FROM_MS: Final = 10**11  #: Unix milliseconds from here on are shown as a time (1973)
DURATIONS: Final = frozenset(
    {
        *("age_ms", "every_ms", "for_ms", "grace_ms", "lease_ms", "remaining_ms", "retention_ms"),
        *("step_ms", "timeout_ms", "ttl_ms", "wait_ms"),
    }
)
"""The fields that say how long; every other `_ms` says when, in Unix milliseconds."""

_NUMBER: Final = re.compile(rf"[+-]?\d{{1,{DIGITS_MAX}}}", re.ASCII)


def from_text(hint: Any, text: str, field: str) -> Any:
    """The value that one word of the command line says. Raises Invalid."""
    if hint is str:
        return text
    if hint is int:
        if not _NUMBER.fullmatch(text):
            raise Invalid(f"{field}: {text[:40]!r} is not a whole number of 64 bits")
        return int(text)
    if hint is bool:
        if text not in ("true", "false"):
            raise Invalid(f"{field}: true or false is wanted, not {text[:40]!r}")
        return text == "true"
    if hint is bytes:
        if field in TOKENS:
            return _from_hex(text.removeprefix(HEX), field)
        return _read(text[1:], field) if text.startswith(FILE) else _bytes(text, field)
    if (some := without_none(hint)) is not hint:
        return from_text(some, text, field)
    return from_json(hint, parsed(text, field), field)


def items_from_text(hint: Any, texts: list[str], field: str) -> tuple[Any, ...]:
    """The items that some words say; each word may say many of them as a JSON list."""
    found: list[Any] = []
    for text in texts:
        if is_plain(hint):
            found.append(from_text(hint, text, field))
            continue
        value = parsed(text, field)
        many = isinstance(value, list) and typing.get_origin(without_none(hint)) is not tuple
        found += [from_json(hint, each, field) for each in (value if many else [value])]
    return tuple(found)


def is_plain(hint: Any) -> bool:
    """Whether a value is one word: a scalar, and never none."""
    return hint in (str, int, bytes, bool)


def without_none(hint: Any) -> Any:
    """The other type of `T | None`; itself of any other."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (some,) = (each for each in typing.get_args(hint) if each is not types.NoneType)
        return some
    return hint


# -- JSON ---------------------------------------------------------------------------------------


def parsed(text: str, field: str) -> Any:
    """JSON, from the text itself or from a file. A name comes once in an object."""
    if text.startswith(FILE):
        text = _utf8(_read(text[1:], field), field)
    try:
        return json.loads(text, object_pairs_hook=_once, parse_float=_no_float)
    except _Refused as error:
        raise Invalid(f"{field}: {error}") from None
    except (ValueError, RecursionError):
        raise Invalid(f"{field}: not JSON: {text[:40]!r}") from None


def from_json(hint: Any, value: Any, field: str) -> Any:
    """A value of an annotated type. Raises Invalid for another type, and for unknown names."""
    if (some := without_none(hint)) is not hint:
        return None if value is None else from_json(some, value, field)
    if hint is bytes:
        if not isinstance(value, str):
            raise _wrong(field, "a string", value)
        return _from_hex(value, field) if field in TOKENS else _bytes(value, field)
    if hint in (str, int, bool):
        if type(value) is not hint:
            raise _wrong(field, hint.__name__, value)
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, list):
            raise _wrong(field, "a list", value)
        return tuple([from_json(typing.get_args(hint)[0], each, field) for each in value])
    found = fields_from_json(hint, value, field)
    for each in dataclasses.fields(hint):
        if each.default is dataclasses.MISSING and each.name not in found:
            raise Invalid(f"{field}: {each.name} is missing")
    return hint(**found)


def fields_from_json(cls: Any, value: Any, field: str) -> dict[str, Any]:
    """The fields of `cls` that an object has."""
    if not isinstance(value, dict):
        raise _wrong(field, "an object", value)
    hints = typing.get_type_hints(cls)
    known = [each.name for each in dataclasses.fields(cls)]
    if unknown := sorted(set(value) - set(known)):
        raise Invalid(f"{field}: {unknown[0][:40]!r} is not one of {', '.join(known)}")
    return {name: from_json(hints[name], each, name) for name, each in value.items()}


def to_json(value: Any, name: str = "") -> Any:
    """Plain values of a reply, which `from_json` takes back."""
    if isinstance(value, bytes):
        return value.hex() if name in TOKENS else _shown(value)
    if isinstance(value, tuple | list):
        return [to_json(each) for each in value]
    if dataclasses.is_dataclass(value):
        return {
            each.name: to_json(getattr(value, each.name), each.name)
            for each in dataclasses.fields(value)
        }
    return value


def without_verifiers(plain: Any) -> Any:
    """The same plain values, with nothing in the fields that are `VERIFIER`, as lists have them."""
    if isinstance(plain, list):
        return [without_verifiers(each) for each in plain]
    if not isinstance(plain, dict):
        return plain
    return {
        name: "" if name == VERIFIER and each else without_verifiers(each)
        for name, each in plain.items()
    }


def text_of(value: Any, name: str = "") -> str:
    """One value in a cell."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        if name in DURATIONS:
            return span(value) if value > 0 else str(value)  # -1 may be for ever
        if name.endswith("_ms") and value >= TIMES_FROM_MS:
            return moment(value)
        return str(value)
    said = value if isinstance(value, str) else to_json(value, name)
    said = said if isinstance(said, str) else json.dumps(said, ensure_ascii=False)
    return said if len(said) <= CELL_MAX else f"{said[: CELL_MAX - 1]}…"


class _Refused(ValueError):
    """What JSON may say and we do not take."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Refused("a name comes twice")
    return found


def _no_float(text: str) -> Any:
    raise _Refused(f"{text[:40]} is not a whole number")


def _wrong(field: str, wanted: str, value: Any) -> Invalid:
    return Invalid(f"{field}: {wanted} is wanted, not {type(value).__name__}")


# -- bytes --------------------------------------------------------------------------------------


def _shown(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return HEX + data.hex()
    if text.startswith((HEX, TEXT)):
        return TEXT + text
    return text if text.isprintable() else HEX + data.hex()


def _bytes(text: str, field: str) -> bytes:
    if text.startswith(HEX):
        return _from_hex(text.removeprefix(HEX), field)
    try:
        return text.removeprefix(TEXT).encode()
    except UnicodeEncodeError:
        raise Invalid(f"{field}: not UTF-8") from None


def _from_hex(text: str, field: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Invalid(f"{field}: {text[:40]!r} is not hex") from None


def _utf8(data: bytes, field: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise Invalid(f"{field}: the file is not UTF-8") from None


def _read(path: str, field: str) -> bytes:
    """A whole file, or standard input, no larger than a request may be."""
    try:
        if path == "-":
            if sys.stdin is None:  # `<&-`, or a service that was begun without one
                raise OSError(errno.EBADF, "standard input is closed")
            data = _within(sys.stdin.buffer)
        else:
            with Path(path).open("rb") as file:
                data = _within(file)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise Invalid(f"{field}: {path[:200]!r} cannot be read: {why}") from None
    if len(data) > REQUEST_BYTES_MAX:
        raise Invalid(f"{field}: the file is larger than {REQUEST_BYTES_MAX} bytes")
    return data


def _within(file: BinaryIO) -> bytes:
    return file.read(REQUEST_BYTES_MAX + 1)
