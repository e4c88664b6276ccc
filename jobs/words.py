"""How a value is written for people: the same on a terminal, beside a bar and on a page.

`shown` is exact as far as it matters in a listing, `short` is what fits beside a bar or into a
tile. `shorten` makes a name of any length and any letters one that can be shown: clients choose
names, and a name is neither markup nor a terminal's command.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from jobs.view import Unit

UNKNOWN: Final = "unknown"
NAME_CHARACTERS_MAX: Final = 25
COUNTS: Final = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
BYTES: Final = (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))
SPANS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def shown(value: Any, unit: Unit) -> str:
    """A value as a listing has it. None is `unknown` in every unit but text, where it is empty."""
    if value is None:
        return "" if unit == "text" else UNKNOWN
    match unit:
        case "text":
            return printable(str(value))
        case "count":
            return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
        case "rate":
            return f"{value:,.1f}"
        case "share":
            return f"{value * 100:.1f} %"
        case "moment":
            return moment(value)
        case "bytes":
            return f"{_scaled(value, BYTES)}" if abs(value) >= 1024 else f"{value:,.0f} B"
        case "duration":
            return span(value)


def short(value: Any, unit: Unit = "count") -> str:
    """A value beside a bar or in a tile: 950, 1.2 k, 34 M, 3 min 20 s, 12 %."""
    if value is None or unit in ("text", "bytes", "duration", "moment", "share"):
        return shown(value, unit)
    written = _scaled(value, COUNTS) if abs(value) >= 1_000 else _small(value)
    return f"{written}/s" if unit == "rate" else written


def moment(ms: int) -> str:
    """Unix milliseconds as UTC, to the second; as a number in a year that no calendar here has."""
    try:
        return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return f"{ms} ms"


def span(ms: float) -> str:
    """Milliseconds in their two largest units."""
    if ms == 0:
        return "0"
    if ms < 0:
        return f"-{span(-ms)}"
    for (unit, size), (lower, step) in zip(SPANS, (*SPANS[1:], ("ms", 1)), strict=True):
        if ms >= size:
            whole, rest = divmod(int(ms), size)
            rest //= step
            if unit == "s":
                return f"{ms / size:.1f} s" if whole < 10 and rest else f"{whole} s"
            return f"{whole:,} {unit} {rest} {lower}" if rest else f"{whole:,} {unit}"
    return f"{ms:.0f} ms"


def printable(text: str) -> str:
    """Text in one line in which nothing moves a cursor."""
    return "".join(c if c.isprintable() else "\N{MIDDLE DOT}" for c in text)


def shorten(name: str, characters: int = NAME_CHARACTERS_MAX) -> str:
    """A name as it fits: printable, its middle left out if it is longer than `characters`."""
    name = printable(name)
    if len(name) <= characters:
        return name
    half = (characters - 1) // 2
    return f"{name[:half]}\N{HORIZONTAL ELLIPSIS}{name[-half:]}"


def _scaled(value: float, units: tuple[tuple[str, float], ...]) -> str:
    unit, size = next((each for each in units if abs(value) >= each[1]), units[-1])
    scaled = value / size
    return f"{scaled:.1f} {unit}" if abs(scaled) < 10 else f"{scaled:,.0f} {unit}"


def _small(value: float) -> str:
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"
