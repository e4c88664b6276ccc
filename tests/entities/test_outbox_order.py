"""Fired wills are claimed in the order in which they fired, on every replica the same (law 7)."""

from __future__ import annotations

from tests.entities.test_session_life import Fleet, claim, fired

WILLS = 40  #: a set of so many would have to be very lucky


def test_many_wills_are_claimed_in_the_order_in_which_they_fired() -> None:
    fleet = Fleet()
    fired(fleet, WILLS)
    assert claim(fleet, "b1") == [f"c{number}" for number in range(WILLS)]
