"""The plan for leases: what is due, one command a group, and since when a group answers again."""

from __future__ import annotations

from actors.planners.leases import EXPIRED_AT_ONCE, EndLeases, GroupLeases, plan_leases
from state_machines import lease

GRACE = 10_000
NOW = 1_000_000


def test_a_group_whose_lease_is_due_gets_one_command() -> None:
    seen = [
        GroupLeases("metadata-0", NOW),
        GroupLeases("mqtt-0", NOW + 1),
        GroupLeases("mqtt-1", 0),
        GroupLeases("offset-0", 5),
    ]
    assert plan_leases(seen, NOW, GRACE) == [
        EndLeases("metadata-0", EXPIRED_AT_ONCE, GRACE),
        EndLeases("offset-0", EXPIRED_AT_ONCE, GRACE),
    ]


def test_of_one_that_was_away_it_is_told_since_when_it_is_back() -> None:
    """The group gives the grace: it knows which of its leases has had it."""
    for back_ms in (NOW - GRACE + 1, NOW - GRACE):
        assert plan_leases([GroupLeases("mqtt-0", 5, back_ms)], NOW, GRACE) == [
            EndLeases("mqtt-0", EXPIRED_AT_ONCE, GRACE, back_ms=back_ms)
        ]


def test_what_is_planned_is_within_the_limits_of_the_command() -> None:
    lease.ExpireLeases(
        controller_epoch=1, limit=EXPIRED_AT_ONCE, grace_ms=GRACE, back_ms=NOW
    ).validate()
