"""JSON that is kept as the text it came as: checked, bounded, and never turned into numbers.

The parser is told to leave numbers as text, so there are no floats and no endless integers, and
nesting is counted before it runs, so that whether a text is refused never depends on how deep the
stack of a replica happens to be (law 7).
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from state_machines import names
from state_machines.errors import Invalid

JSON_DEPTH_MAX: Final = 32

# A text is passed over in one go, also one that never ends: no character is looked at twice.
_TOKENS: Final = re.compile(r'"(?:[^"\\]|\\.|\\\Z)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)
_OPENING: Final = frozenset("[{")


def check_object(text: str, field: str, limit: int) -> None:
    """Raise Invalid unless this is a JSON object (RFC 8259) of at most `limit` bytes."""
    names.name(text, field, limit)
    if _depth(text) > JSON_DEPTH_MAX:
        raise Invalid(f"{field}: nested deeper than {JSON_DEPTH_MAX}")
    try:
        found = json.loads(
            text,
            parse_float=str,
            parse_int=str,
            parse_constant=_no_constant,
            object_pairs_hook=_object,
        )
    except ValueError:
        raise Invalid(f"{field}: not JSON, or a name comes twice in it") from None
    if type(found) is not dict:
        raise Invalid(f"{field}: a JSON object is wanted")


def _depth(text: str) -> int:
    depth = deepest = 0
    for token in _TOKENS.findall(text):
        if token[0] != '"':
            depth += 1 if token in _OPENING else -1
            deepest = max(deepest, depth)
    return deepest


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name comes twice")
    return found
