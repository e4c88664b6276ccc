"""What says of itself that it reads a row or two, and is answered before everything else."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING, fields
from typing import Any

import pytest

from state_machines import op
from state_machines.keyvalue import Part
from state_machines.moment import GetTime
from state_machines.op import Stamp
from state_machines.tables import Tables
from storage.memory import MemoryKeyValue
from tests.machine.alone import NOW_MS

ROWS_MAX = 2
SINGLE = [cls for cls in op.QUERIES.values() if getattr(cls, "single_row", False)]


class Counting(MemoryKeyValue):
    """Counts the rows that are looked for, and is never walked over."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0

    def get(self, table: str, key: tuple[Part, ...]) -> bytes | None:
        self.looked += 1
        return super().get(table, key)

    def scan(self, *_: Any, **__: Any) -> Iterator[tuple[bytes, bytes]]:
        raise AssertionError("it walks over rows")


def plausible(cls: Any) -> Any:
    """One with these values in the fields that have no default."""
    values = {"str": "x", "int": 1, "bytes": b"x", "bool": True}
    return cls(**{each.name: values[str(each.type)] for each in fields(cls) if needed(each)})


def needed(each: Any) -> bool:
    return each.default is MISSING


@pytest.mark.parametrize("cls", SINGLE, ids=lambda cls: op.TAGS[cls])
def test_it_looks_for_a_row_or_two_and_walks_over_none(cls: Any) -> None:
    store = Counting()
    plausible(cls).read(Tables(store, 0), Stamp(1, NOW_MS))
    least = 0 if cls is GetTime else 1  # which is in no row
    assert least <= store.looked <= ROWS_MAX


def test_each_counts_as_one() -> None:
    assert not [op.TAGS[cls] for cls in SINGLE if getattr(cls, "many", "")]


def test_what_is_got_by_its_name_is_such_a_read() -> None:
    """A topic, a retained message and others were looked for as long lists are: one at a time."""
    got = {
        tag
        for tag, cls in op.QUERIES.items()
        if tag.endswith(".get") and is_one(op.reply_type(typing.cast(Any, cls)))
    }
    assert got <= {op.TAGS[cls] for cls in SINGLE}
    assert {"metadata.topic.get", "mqtt.retained.get", "offset.get", "group.lease.get"} <= got


def is_one(hint: Any) -> bool:
    """Whether it is a row or None."""
    return typing.get_origin(hint) in (typing.Union, types.UnionType)
