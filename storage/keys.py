"""The key layout: how tuples of parts become bytes. Nothing else in the tree encodes a key.

    ("acme", 7, "a/b")  ->  00 04 "acme" | 80 00 00 00 00 00 00 07 | "a/b"

- An integer is 8 bytes, big-endian, with the sign bit flipped, so that bytes sort as numbers.
- A string (UTF-8) or bytes part before the last place has its length in front, two bytes. So a `/`
  in an MQTT name, or any other byte, is harmless: nothing is a separator.
- The last part is raw, so that the rows under one prefix sort by name and a scan by the beginning
  of a name is one range.

A key has at most `KEY_BYTES`, because LMDB 0.9 ends at 511. What is longer is cut and hashed: a
leading part of `PART_BYTES` or more keeps its first bytes and ends in its SHA-256, exactly
`PART_BYTES` in all; the last part does the same with the room that is left. A part that was not
hashed is always shorter than that, so no name can be made up that meets another's hash. The row
keeps the whole name.

The keys of one table all have the same shape (number and types of parts); within one shape two
different tuples never meet. The raft log's keys are entry indexes, `entry_key`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import sha256
from operator import add
from struct import Struct
from typing import Any

from state_machines.keyvalue import KeptKeys, Part
from storage.errors import BadKey

KEY_BYTES = 480
"""The longest key, of LMDB's 511 (design, section 6)."""

PART_BYTES = 96
"""A leading part of this many bytes or more is cut and hashed."""

DIGEST_BYTES = 32
"""What SHA-256 takes of a hashed part."""

LEAD_BYTES = KEY_BYTES - 2 * DIGEST_BYTES
"""The most that all leading parts may take, so that the last part has room for its hash."""

LEADS_KEPT = 8192
"""So many encoded beginnings are remembered: a tenant's, a topic's. Not those with a part that is
cut and hashed, which may be a client id of 65 535 bytes."""

_SIGN = 1 << 63
_UNSIGNED = Struct(">Q")
_LENGTH = [n.to_bytes(2, "big") for n in range(PART_BYTES + 1)]


def encode(key: tuple[Part, ...]) -> bytes:
    """The bytes of a whole key. Raises `BadKey` if it is empty or of a type that has no bytes."""
    if len(key) == 1 and type(key[0]) is str:
        return _named(key[0])
    if not key:
        raise BadKey("a key has at least one part")
    try:
        lead = _lead(*key[:-1])
    except _NotKept:
        lead = b"".join(map(_leading, key[:-1]))
    return _ending(lead, key[-1])


def _ending(lead: bytes, last: Part) -> bytes:
    room = KEY_BYTES - len(lead)
    if type(last) is str:
        raw = last.encode()
    elif type(last) is int:
        raw = _integer(last)
    elif type(last) is bytes:
        raw = last
    else:
        raise BadKey(f"a key part is a str, an int or bytes, not {type(last).__name__}")
    if room < KEY_BYTES - LEAD_BYTES:
        raise BadKey(f"leading parts take {len(lead)} bytes; the limit is {LEAD_BYTES}")
    if len(raw) >= room:
        raw = raw[: room - DIGEST_BYTES] + sha256(raw).digest()
    if not lead and not raw:
        raise BadKey("a key of one empty part has no bytes")
    return lead + raw


@lru_cache(maxsize=LEADS_KEPT)
def _named(name: str) -> bytes:
    """A key that is one name: those of the rows that a group has of itself are asked for with
    each entry."""
    return _ending(b"", name)


def encode_many(keys: Sequence[tuple[Part, ...]]) -> list[bytes]:
    """The bytes of each of many keys of one shape, mostly at the speed of C. Raises `BadKey`."""
    if not keys or len(keys[0]) < 2:
        return [encode(each) for each in keys]
    *leading, last = zip(*keys, strict=True)
    try:
        if all(type(each[0]) is str and len(set(each)) == 1 for each in leading):  # of one tenant
            leads = [_lead(*keys[0][:-1])] * len(keys)
        else:
            leads = list(map(_lead, *leading))
    except _NotKept:
        return [encode(each) for each in keys]
    raw = _uncut(last)
    longest = max(map(len, leads))
    if longest > LEAD_BYTES or raw is None or longest + max(map(len, raw)) >= KEY_BYTES:
        return [encode(each) for each in keys]
    return list(map(add, leads, raw))


def encoded(keys: tuple[tuple[Part, ...], ...]) -> list[bytes]:
    """`encode_many`, once for keys that are kept."""
    if type(keys) is not KeptKeys:
        return encode_many(keys)
    if keys.form is None:
        keys.form = encode_many(keys)
    form: list[bytes] = keys.form
    return form


def _uncut(last: Any) -> list[bytes] | None:
    """The last parts of many keys; None if they have to be looked at one by one."""
    kinds = set(map(type, last))
    if kinds == {str}:
        return list(map(str.encode, last))
    if kinds != {int}:
        return None
    least, most = min(last), max(last)
    if least < -_SIGN or most >= _SIGN:
        return None
    if least >= 0 and most < len(_SMALL):
        return list(map(_SMALL.__getitem__, last))
    return list(map(_UNSIGNED.pack, map(_SIGN.__add__, last)))


def bounds(
    prefix: tuple[Part, ...], starts: str = "", after: bytes = b"", upto: int | None = None
) -> tuple[bytes, bytes | None]:
    """The range [first, end) of encoded keys that a scan covers; end None: to the table's end."""
    lead = b"".join(map(_leading, prefix))
    if len(lead) > LEAD_BYTES:
        raise BadKey(f"leading parts take {len(lead)} bytes; the limit is {LEAD_BYTES}")
    first = lead
    if starts:
        # Only these bytes of a long name are certain to be in its key.
        first = lead + starts.encode()[: KEY_BYTES - len(lead) - DIGEST_BYTES]
        end = successor(first)
    elif upto is not None:
        end = successor(lead + _integer(upto))
    else:
        end = successor(lead)
    if after >= first:
        # No key is as long as KEY_BYTES + 1, so what follows in a longer token decides nothing.
        first = (after + b"\0")[: KEY_BYTES + 1]
    return first, end


def successor(prefix: bytes) -> bytes | None:
    """The first bytes behind everything that begins with `prefix`; None if there is no such."""
    cut = prefix.rstrip(b"\xff")
    return cut[:-1] + bytes((cut[-1] + 1,)) if cut else None


def entry_key(index: int) -> bytes:
    """The key of a raft log entry. Indexes are positive, so unsigned order is theirs."""
    return index.to_bytes(8, "big")


def entry_index(key: bytes) -> int:
    """The index that `entry_key` encoded."""
    return int.from_bytes(key, "big")


class _NotKept(Exception):
    """A beginning with a long part: the cache, which keeps no exception, would keep all of it."""


@lru_cache(maxsize=LEADS_KEPT, typed=True)  # typed: True is not 1, though it equals it
def _lead(*parts: Part) -> bytes:
    """All parts but the last: what the keys of neighbours have in common."""
    for each in parts:
        if isinstance(each, str | bytes) and len(each) >= PART_BYTES:
            raise _NotKept
    return b"".join(map(_leading, parts))


def _leading(part: Part) -> bytes:
    """One part that is not the last."""
    if type(part) is int:
        return _integer(part)
    if type(part) is str:
        raw = part.encode()
    elif type(part) is bytes:
        raw = part
    else:
        raise BadKey(f"a key part is a str, an int or bytes, not {type(part).__name__}")
    if len(raw) >= PART_BYTES:
        raw = raw[: PART_BYTES - DIGEST_BYTES] + sha256(raw).digest()
    return _LENGTH[len(raw)] + raw


def _integer(value: int) -> bytes:
    try:
        return (value + _SIGN).to_bytes(8, "big")
    except OverflowError:
        raise BadKey(f"{value} does not fit 64 bits with a sign") from None


_SMALL = [_integer(number) for number in range(1_024)]  # the numbers of most partitions
