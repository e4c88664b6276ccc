"""What the controller does about consumer offsets."""

from __future__ import annotations

from actors.planners.offsets import ExpireGroups, KeepHistory, plan_history, plan_offset_expiry
from state_machines.offset.history import HistorySettings


def test_only_raft_groups_with_silent_consumers_are_told() -> None:
    silent = {"offset-10": True, "offset-2": False, "offset-1": True}
    assert plan_offset_expiry(silent, 5_000) == [
        ExpireGroups("offset-1", 5_000),
        ExpireGroups("offset-10", 5_000),
    ]
    assert plan_offset_expiry({"offset-0": False}, 5_000) == []


def test_a_retention_of_nothing_keeps_for_ever() -> None:
    assert plan_offset_expiry({"offset-0": True}, 0) == []


def test_settings_are_told_to_who_has_others() -> None:
    known = {
        "offset-1": HistorySettings("history", 10_000, 64, 1_000),
        "offset-0": HistorySettings("history", 10_000, 64, 2_000),
    }
    assert plan_history(known, 10_000, 64, 1_000) == [KeepHistory("offset-0", 10_000, 64, 1_000)]
    assert plan_history(known, 10_000, 32, 1_000) == [
        KeepHistory("offset-0", 10_000, 32, 1_000),
        KeepHistory("offset-1", 10_000, 32, 1_000),
    ]
