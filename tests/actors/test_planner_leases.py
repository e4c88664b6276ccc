"""The plan for leases: what is due, one command a group, patience with a group that was away."""

from __future__ import annotations

from actors.planners.leases import EXPIRED_AT_ONCE, ExpireLeases, GroupLeases, plan_leases
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
        ExpireLeases("metadata-0", EXPIRED_AT_ONCE, GRACE),
        ExpireLeases("offset-0", EXPIRED_AT_ONCE, GRACE),
    ]


def test_one_that_was_away_is_left_alone_for_the_grace_and_then_has_had_it() -> None:
    back = NOW - GRACE + 1
    assert plan_leases([GroupLeases("mqtt-0", 5, back)], NOW, GRACE) == []
    assert plan_leases([GroupLeases("mqtt-0", 5, back)], NOW + 1, GRACE) == [
        ExpireLeases("mqtt-0", EXPIRED_AT_ONCE, 0)
    ]


def test_what_is_planned_is_within_the_limits_of_the_command() -> None:
    lease.ExpireLeases(controller_epoch=1, limit=EXPIRED_AT_ONCE, grace_ms=GRACE).validate()
