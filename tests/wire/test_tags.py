"""Tags are for ever: what was ever in a log or on the wire can still be read.

`tags.golden` lists every command and query with its fields and reply, and the types in them. A tag
may be added, and a field with a default; `pytest --rewrite` then writes them down. Nothing may go
or change its type.
"""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import pytest

import state_machines.machine  # noqa: F401 - registers every entity
from state_machines import op

GOLDEN = Path(__file__).with_name("tags.golden")


def spell(hint: Any, types: set[type]) -> str:
    """A type as it is written; the dataclasses in it are added to `types`."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        types.add(hint)
        return hint.__name__
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return f"tuple[{spell(arguments[0], types)}, ...]"
    if arguments:
        return " | ".join(sorted(spell(each, types) for each in arguments))
    return "None" if hint is type(None) else str(hint.__name__)


def fields(cls: Any, types: set[type]) -> list[str]:
    hints = typing.get_type_hints(cls)
    return [
        f"    {each.name}: {spell(hints[each.name], types)}"
        + ("" if each.default is dataclasses.MISSING else f" = {each.default!r}")
        for each in dataclasses.fields(cls)
    ]


def listing() -> str:
    lines: list[str] = []
    types: set[type] = set()
    for word, registry in (("command", op.COMMANDS), ("query", op.QUERIES)):
        for tag, cls in sorted(registry.items()):
            reply = spell(op.reply_type(cls), types)
            lines += [f"{word} {tag}", *fields(cls, types), f"    -> {reply}"]
    written: set[type] = set()
    while types != written:
        written = set(types)
        parts = {cls.__name__: fields(cls, types) for cls in written}
        assert len(parts) == len(written), "two types of one name"
    for name, part in sorted(parts.items()):
        lines += [f"type {name}", *part]
    return "\n".join(lines) + "\n"


def parse(text: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            found[line] = part = []
        else:
            part.append(line.strip())
    return found


def broken(was: dict[str, list[str]], now: dict[str, list[str]]) -> list[str]:
    """What a peer or a log of yesterday would trip over."""
    wrong = []
    for tag, fields in was.items():
        kept = now.get(tag)
        if kept is None:
            wrong.append(f"{tag}: gone")
            continue
        wrong += [f"{tag}: {each!r} is gone or has changed" for each in fields if each not in kept]
        wrong += [
            f"{tag}: {each!r} is new and has no default"
            for each in kept
            if each not in fields and not each.startswith("->") and " = " not in each
        ]
    return wrong


def test_tags_are_for_ever(request: pytest.FixtureRequest) -> None:
    now = listing()
    was = GOLDEN.read_text(encoding="utf-8") if GOLDEN.exists() else ""
    assert not broken(parse(was), parse(now))
    if request.config.getoption("--rewrite"):
        GOLDEN.write_text(now, encoding="utf-8")
        return
    assert now == was, "something was added: write it down with pytest --rewrite"


WAS = """\
command a.b
    key: str
    -> int
query a.c
    -> Page
type Page
    rows: tuple[int, ...]
"""


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("command a.b", "command a.d", "command a.b: gone"),
        ("command a.b", "query a.b", "command a.b: gone"),
        ("key: str", "name: str", "'key: str' is gone"),
        ("key: str", "key: bytes", "has changed"),
        ("-> int", "-> str", "has changed"),
        ("tuple[int, ...]", "tuple[str, ...]", "has changed"),
        ("key: str", "key: str\n    more: int", "'more: int' is new and has no default"),
    ],
)
def test_what_would_break(old: str, new: str, says: str) -> None:
    assert any(says in each for each in broken(parse(WAS), parse(WAS.replace(old, new, 1))))


def test_what_may_be_added() -> None:
    more = WAS.replace("key: str", "key: str\n    more: int = 0") + "query a.new\n    -> int\n"
    assert not broken(parse(WAS), parse(more))


def test_a_tag_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="tag declared twice"):
        op.query("metadata.kv.put")(type("Twice", (), {}))
