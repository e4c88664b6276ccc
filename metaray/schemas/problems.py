"""What the rules of the formats share: a refusal, and which way a mode asks about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from state_machines.metadata.schemas import BACKWARD, FORWARD, FULL

Schema = TypeVar("Schema")

WORDS_MAX: Final = 400  #: letters of a library's own explanation that are passed on


class NotASchema(Exception):
    """The text is not a schema of its type, in the words of who read it."""


def no_constant(name: str) -> float:
    """What Python reads as a number, and JSON does not have: NaN and Infinity."""
    raise NotASchema(f"{name} is not JSON")


def shortened(words: object) -> str:
    """An explanation on one line, cut where it is long."""
    line = " ".join(str(words).split())
    return line if len(line) <= WORDS_MAX else line[:WORDS_MAX] + "…"


def each_way(
    mode: str, new: Schema, old: Schema, unreadable: Callable[[Schema, Schema], list[str]]
) -> list[str]:
    """What `unreadable(reader, writer)` says, in the directions that the mode asks about."""
    found = []
    if mode in (BACKWARD, FULL):
        found += [f"backward: {each}" for each in unreadable(new, old)]
    if mode in (FORWARD, FULL):
        found += [f"forward: {each}" for each in unreadable(old, new)]
    return found
