"""Plans for consumer offsets: whose silence is to end, and what the groups are to keep.

    SilentGroups       -> plan_offset_expiry -> ExpireOffsets
    GetHistorySettings -> plan_history       -> ConfigureHistory

Both questions are answered from one row of a Raft group, so a step costs nothing while there is
nothing to do. Which consumer groups are silent is decided again where the command is applied.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from state_machines.offset.history import HistorySettings

EXPIRY_LIMIT = 1_000  #: offsets and groups that one command forgets


@dataclass(frozen=True, slots=True)
class ExpireGroups:
    """Tell a Raft group to forget consumer groups that were silent for the retention."""

    group: str
    retention_ms: int
    limit: int = EXPIRY_LIMIT


@dataclass(frozen=True, slots=True)
class KeepHistory:
    """Tell a Raft group what to keep of the offsets before."""

    group: str
    step_ms: int
    rows: int
    age_ms: int


def plan_offset_expiry(silent: Mapping[str, bool], retention_ms: int) -> list[ExpireGroups]:
    """One command for each Raft group that has something to forget; 0 keeps for ever."""
    if not retention_ms:
        return []
    return [ExpireGroups(group, retention_ms) for group in sorted(silent) if silent[group]]


def plan_history(
    known: Mapping[str, HistorySettings], step_ms: int, rows: int, age_ms: int
) -> list[KeepHistory]:
    """One command for each Raft group that keeps something else than it should."""
    return [
        KeepHistory(group, step_ms, rows, age_ms)
        for group, each in sorted(known.items())
        if (each.step_ms, each.rows, each.age_ms) != (step_ms, rows, age_ms)
    ]
