"""Rows named from outside: a table by its name, a row by its key as msgpack.

Commands that take any row (`transaction.py`, `lease.py`) name it like this. What `unpack` returns
has the shape of the table's keys, so the store below can be asked for it: a key that the store
could not encode would stop a replica.
"""

from __future__ import annotations

import typing
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from state_machines import names, packing
from state_machines.errors import Invalid
from state_machines.keyvalue import Part
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.tables import TABLES, Table

KEY_BYTES_MAX: Final = 2 * MQTT_STRING_BYTES_MAX  #: of a key as msgpack
LEAD_PART_BYTES: Final = 96  #: what a part before the last takes of a stored key, at most
LEAD_BYTES_MAX: Final = 416  #: all of these together, each with its length (`storage/keys.py`)
LENGTH_BYTES: Final = 2
INTEGER_BYTES: Final = 8


def pack(parts: Sequence[Part]) -> bytes:
    """A key as it is named. The same key gives the same bytes."""
    return packing.pack_columns(list(parts))


def table_of(name: str, field: str) -> Table[Any]:
    """The table of that name. Raises Invalid."""
    table = TABLES.get(name)
    if table is None:
        raise Invalid(f"{field}: {name[:80]!r} is none of the {len(TABLES)} tables")
    return table


def unpack(table: Table[Any], data: bytes, field: str) -> tuple[Part, ...]:
    """The key of a row of this table. Raises Invalid naming the field."""
    parts = packing.load(data, field, KEY_BYTES_MAX)
    kinds = _kinds(table.name)
    if type(parts) is not list or tuple(map(type, parts)) != kinds:
        wanted = ", ".join(each.__name__ for each in kinds)
        raise Invalid(f"{field}: ({wanted}) is wanted, as {table.name} has it")
    for part in parts:
        if type(part) is int:
            packing.decoder(int)(part, field)
        elif type(part) is str:
            names.name(part, field, MQTT_STRING_BYTES_MAX, empty=True)
    if len(parts) == 1 and not parts[0] and type(parts[0]) is not int:
        raise Invalid(f"{field}: empty")
    if sum(map(_lead_bytes, parts[:-1])) > LEAD_BYTES_MAX:
        raise Invalid(f"{field}: its leading parts take more than {LEAD_BYTES_MAX} bytes")
    return tuple(parts)


@cache
def _kinds(name: str) -> tuple[type, ...]:
    """The types of the parts of a table's key."""
    table = TABLES[name]
    hints = typing.get_type_hints(table.row)
    return tuple([hints[each] for each in table.key])


def _lead_bytes(part: Part) -> int:
    if type(part) is int:
        return INTEGER_BYTES
    size = len(part.encode()) if type(part) is str else len(bytes(typing.cast(bytes, part)))
    return LENGTH_BYTES + min(size, LEAD_PART_BYTES)
