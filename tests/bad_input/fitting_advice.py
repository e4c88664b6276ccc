"""Bodies of advice, whose fields have to fit each other."""

from __future__ import annotations

from typing import Any, Final

from state_machines.metadata.advice import NewAdvice

FITTING: Final[dict[str, dict[str, Any]]] = {
    "metadata.advice.list": {"state": "proposed"},
    "metadata.advice.settle": {"was": "applying", "state": "applied"},
}

ITEMS: Final[dict[Any, dict[str, Any]]] = {
    NewAdvice: {
        "id": "a",
        "kind": "quota",
        "target": "a",
        "limit": "offset_commits_per_s",
        "number": 1,
        "reason": "a",
        "evidence": "{}",
        "predicted": "{}",
        "expires_ms": 1,
    },
}
