"""The words for what is at a seat, beside Raft's own roles, and which of them are not well.

`status` shows them and its alarms go by them; free of Ray, so that the commands can import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from actors.seat_names import is_learner

GONE: Final = "gone"  #: the seat has no actor, and Ray starts none
SILENT: Final = "silent"  #: its actor does not answer
AWAY: Final = frozenset({GONE, SILENT, "stopped", "vacant"})  #: no replica takes part there


def needs_its_vote(replica: Mapping[str, Any]) -> bool:
    """Whether a row of `status` is at a voter's seat, and no voter by its leader's word."""
    return replica["votes"] is False and not is_learner(replica["seat"])


def is_well(replica: Mapping[str, Any]) -> bool:
    """Whether a row of `status` is what its seat is for."""
    return replica["role"] not in AWAY and not needs_its_vote(replica)
