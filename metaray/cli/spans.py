"""Spans of time and moments as people write them: `90s`, `10 min`, `2h`, `2026-01-31T12:00`."""

from __future__ import annotations

import contextlib
import re
from datetime import UTC, datetime
from typing import Final

from state_machines.errors import Invalid

_UNITS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_MS: Final = re.compile(r"\d{1,16}", re.ASCII)
_SPAN: Final = re.compile(r"(\d{1,11})\s*([a-z]+)", re.ASCII)  # so many days are ms of 64 bits


def parse_span(text: str, field: str) -> int:
    """Milliseconds of `10m`, `90 s`, `2h`, `1d`. Raises Invalid, for nothing at all (`0s`) too:
    where a span may be left out, 0 is how an operation says that it was."""
    match = _SPAN.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS or not int(match[1]):
        units = ", ".join(_UNITS)
        raise Invalid(f"{field}: a positive number with {units} is wanted, not {text[:80]!r}")
    return int(match[1]) * _UNITS[match[2]]


def moment(text: str, field: str, now_ms: int) -> int:
    """Unix milliseconds of `10m` (that long ago), of a time of day and date in UTC, or of a number
    of milliseconds. Raises Invalid."""
    text = text.strip()
    if _MS.fullmatch(text):
        return int(text)
    with contextlib.suppress(Invalid):
        return now_ms - parse_span(text, field)
    try:
        said = datetime.fromisoformat(text)
    except ValueError:
        raise Invalid(
            f"{field}: 10m, 2026-01-31T12:00 or milliseconds are wanted, not {text[:80]!r}"
        ) from None
    return int((said if said.tzinfo else said.replace(tzinfo=UTC)).timestamp() * 1_000)
