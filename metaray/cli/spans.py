"""Spans of time as people write them: `90s`, `10 min`, `2h`."""

from __future__ import annotations

import re
from typing import Final

from state_machines.errors import Invalid

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"(\d{1,12})\s*([a-z]+)", re.ASCII)
_SHOWN: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def parse_span(text: str) -> int:
    """Milliseconds of `10m`, `90 s`, `2h`, `1d`. Raises Invalid."""
    match = _SPAN.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        raise Invalid(f"for: a whole number with {', '.join(_UNITS)} is wanted, not {text[:80]!r}")
    return int(match[1]) * _UNITS[match[2]]


def shown_span(span_ms: int) -> str:
    """A span in its largest unit."""
    for unit, size in _SHOWN:
        if span_ms >= size:
            return f"{span_ms // size} {unit}"
    return f"{span_ms} ms"
