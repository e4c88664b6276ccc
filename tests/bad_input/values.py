"""Values that no field wants, and frames that no sender sends: what every area draws from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from typing import Any, Final

NUMBERS: Final = (
    *(0, 1, -1, 2, 255, 256, 65_535, 65_536),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**62 + 1, 2**63 - 1, 2**63, 2**64 - 1),
    *(-(2**31), -(2**63)),
)
HUGE: Final = (2**64, -(2**63) - 1, 10**30, 10**400, 10**5_000)
FLOATS: Final = (0.0, 1.5, -1.0, math.nan, math.inf, -math.inf, 1e308)

TEXTS: Final = (
    *("", " ", "a", "\0", "a\0b", "\n", "a\nb", "\r\n", "a\x1b[2Jb", "\x07", "\x7f", "\x85"),
    *("\u202eabc", "\u200f", "\u2028", "\ufeff", "e\u0301", "\u00e9", "\U0001f600", "\uffff"),
    *("..", "../../etc/passwd", "/", "//", "a/b", "$share", "$share/g", "$share/g/", "$SYS/x"),
    *("#", "+", "a/#/b", "a+", "@state", "group.clock", "%s%n", "{0}", "[red]x[/]", "';--"),
    "WARNING:root:forged",
    "a\nmetadata-0/0: stopped: forged",
)
TWINS: Final = ("e\u0301", "\u00e9")  #: decomposed and composed: the same to read, two keys
SIZES: Final = (
    *(63, 64, 65, 95, 96, 97, 255, 256, 257, 399, 400, 401, 479, 480, 481, 511, 512),
    *(4_095, 4_096, 4_097, 65_534, 65_535, 65_536, 131_071, 131_073),
)
NOT_UTF8: Final = (
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"\xed\xbf\xbf",
    b"a\x80",
    b"\xf5\x80\x80\x80",
)
SURROGATES: Final = ("\ud800", "a\udfff", "\udc80b")


def cuts(frame: bytes) -> Iterator[bytes]:
    """The frame cut at every offset."""
    for size in range(len(frame)):
        yield frame[:size]


def flipped(frame: bytes, bit: int) -> bytes:
    """The frame with one bit the other way round."""
    changed = bytearray(frame)
    changed[bit >> 3] ^= 1 << (bit & 7)
    return bytes(changed)


def mangled(rng: Random, frame: bytes) -> bytes:
    """The frame after some accident."""
    place = rng.randrange(len(frame) + 1)
    more = rng.randbytes(rng.choice((1, 2, 8, 64)))
    match rng.randrange(8):
        case 0:
            return frame[:place] + more + frame[place:]
        case 1:
            return frame[:place] + more + frame[place + len(more) :]
        case 2:
            return frame[:place] + frame[place + rng.randrange(1, 9) :]
        case 3:
            return frame + frame
        case 4:
            return frame + frame[:place]
        case 5:
            other = rng.randrange(len(frame) + 1)
            return frame[: min(place, other)] + frame[max(place, other) :] + frame[:place]
        case 6:
            changed = bytearray(frame)
            for _ in range(rng.randrange(1, 6)):
                if changed:
                    changed[rng.randrange(len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF))
            return bytes(changed)
        case _:
            return frame[:place] + bytes(rng.randrange(200)) + frame[place:]


def noise(rng: Random) -> bytes:
    """Bytes of any kind; most are few."""
    return rng.randbytes(rng.randrange(rng.choice((8, 64, 512, 4_096, 65_537))))


def nested(depth: int) -> Any:
    """A list in a list, so many times."""
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


def varint(value: int) -> bytes:
    """As protobuf has it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def delimited(field: int, data: bytes, claims: int | None = None) -> bytes:
    """A length-delimited protobuf field; `claims` is the length that it says it has."""
    return varint(field << 3 | 2) + varint(len(data) if claims is None else claims) + data


def text(rng: Random) -> str:
    """Odd, long, or both."""
    if rng.random() < 0.5:
        return rng.choice(TEXTS)
    return rng.choice(("a", "\u00e9", "\U0001f600", "/", "a/")) * (rng.choice(SIZES) // 2)


def number(rng: Random) -> int:
    """At, beside or far beyond some limit."""
    return rng.choice(NUMBERS) + rng.choice((0, 0, 0, 1, -1))


def anything(rng: Random, depth: int = 3) -> Any:
    """Any value that msgpack can say."""
    choices = 9 if depth else 6
    match rng.randrange(choices):
        case 0:
            return text(rng)
        case 1:
            return max(-(2**63), min(2**64 - 1, number(rng)))
        case 2:
            return rng.choice((None, True, False))
        case 3:
            return rng.choice(FLOATS)
        case 4 | 5:
            return rng.randbytes(rng.randrange(40))
        case 6:
            return [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {text(rng)[:50]: anything(rng, depth - 1) for _ in range(rng.randrange(4))}
