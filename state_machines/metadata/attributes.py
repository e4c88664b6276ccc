"""Attributes: a small map of names to texts that metaray keeps for a protocol and does not read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines import names
from state_machines.errors import Invalid

ATTRIBUTES_MAX: Final = 64
VALUE_BYTES_MAX: Final = 1_024


@dataclass(frozen=True, slots=True)
class Attribute:
    """One pair: ("cleanup.policy", "compact")."""

    name: str
    value: str


def check(attributes: tuple[Attribute, ...]) -> None:
    """Raise Invalid for too many, for one beyond its limits, or for a name that comes twice."""
    if len(attributes) > ATTRIBUTES_MAX:
        raise Invalid(f"attributes: {len(attributes)}, the limit is {ATTRIBUTES_MAX}")
    seen: set[str] = set()
    for each in attributes:
        names.name(each.name, "attributes.name")
        names.name(each.value, "attributes.value", VALUE_BYTES_MAX, empty=True)
        if each.name in seen:
            raise Invalid(f"attributes.name: {each.name!r} comes twice")
        seen.add(each.name)


def in_order(attributes: tuple[Attribute, ...]) -> tuple[Attribute, ...]:
    """By name, so that the same map is the same row."""
    return tuple(sorted(attributes, key=lambda each: each.name))
