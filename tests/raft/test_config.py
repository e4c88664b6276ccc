"""Settings that make no sense are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Invalid
from state_machines.raft import RaftConfig


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"heartbeat_ticks": 0}, "heartbeat_ticks"),
        ({"election_ticks_min": 5}, "election_ticks_min"),
        ({"election_ticks_max": 30}, "election_ticks_max"),
        ({"max_append_bytes": 0}, "max_append_bytes"),
        ({"max_inflight_appends": -1}, "max_inflight_appends"),
        ({"max_inflight_bytes": 0}, "max_inflight_bytes"),
        ({"max_uncommitted_bytes": 0}, "max_uncommitted_bytes"),
        ({"max_waiting_reads": 0}, "max_waiting_reads"),
        ({"promotion_gap_entries": -1}, "promotion_gap_entries"),
    ],
)
def test_refused(settings: dict[str, Any], named: str) -> None:
    with pytest.raises(Invalid, match=f"^{named}: "):
        RaftConfig(**settings)


def test_the_limits_are_those_of_the_design() -> None:
    config = RaftConfig()
    assert (config.max_inflight_appends, config.max_inflight_bytes) == (64, 8 << 20)
    assert (config.max_append_bytes, config.max_uncommitted_bytes) == (64 << 10, 64 << 20)
    assert config.promotion_gap_entries == 1_000


def test_the_seeds_timing_is_accepted() -> None:
    RaftConfig(heartbeat_ticks=250, election_ticks_min=299, election_ticks_max=598)
