"""Seats are filled, replaced and given up by the controller, at the right ones."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from actors.controller import Controller
from actors.duties.duty import CALL_SECONDS
from actors.planners.repair import SILENT_LOOKS
from actors.status import leader_of
from state_machines.errors import Conflict
from state_machines.raft.confchange import Change
from tests.actors.fake_groups import (
    VACANT,
    Fakes,
    leading,
    made,
    record,
    shown,
    status,
)
from tests.actors.virtual_time import in_virtual_time


@in_virtual_time
async def test_repair_acts_at_the_right_seat() -> None:
    fakes = Fakes(statuses={"g-0/0": leading(), "g-0/1": status(2), "g-0/2": VACANT})
    controller = made(fakes)
    await controller.step()
    fakes.statuses["g-0/2"] = {**VACANT, "status": "founding", "replica": 9}
    await asyncio.sleep(5.1)
    await controller.step()
    fakes.statuses["g-0/2"] = status(9)
    await asyncio.sleep(5.1)
    await controller.step()
    assert fakes.acted == [
        ("g-0/2", "reserve", ("c",)),
        ("g-0/2", "activate", ()),
        ("g-0/0", "change", (Change(add_learners=(9,)),)),
    ]


@in_virtual_time
async def test_a_seat_that_cannot_be_repaired_keeps_no_other_group_from_it() -> None:
    seats = ["a-0/0", "a-0/1", "a-0/2"]
    fakes = Fakes(
        statuses={
            "a-0/0": leading(seat="a-0/0", group_seats=seats),
            "a-0/1": status(2, group_seats=seats),
            "a-0/2": VACANT,
            "g-0/0": leading(),
            "g-0/1": status(2),
            "g-0/2": {**VACANT, "status": "founding", "replica": 9},
        },
        fail={cast(Any, "reserve"): OSError("Read-only file system")},
    )
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == [("a-0/2", "reserve", ("c",)), ("g-0/2", "activate", ())]
    assert shown(controller, "repair")["last_error"] == "OSError: Read-only file system"


@in_virtual_time
async def test_a_seat_that_hangs_is_waited_for_no_longer_than_a_call_may_take() -> None:
    """Law 13: Ray would wait for it as long as its process is there."""
    learner = "g-0/learner-0"
    voters = {"g-0/0": leading(), "g-0/1": status(2), "g-0/2": VACANT}
    fakes = Fakes(statuses={**voters, learner: VACANT}, frozen={learner})
    controller = made(fakes)
    step = asyncio.ensure_future(controller.step())
    await asyncio.sleep(CALL_SECONDS + 0.1)
    assert ("g-0/2", "reserve", ("c",)) in fakes.acted
    step.cancel()


@in_virtual_time
async def test_repair_fills_a_learners_seat_and_tells_the_others_of_it() -> None:
    learner = "g-0/learner-0"
    seats = ["g-0/0", "g-0/1", "g-0/2", learner]
    fakes = Fakes(
        statuses={
            "g-0/0": leading(),
            "g-0/1": status(2, group_seats=seats),
            "g-0/2": status(3, group_seats=seats),
            learner: {**VACANT, "group_seats": seats},
        }
    )
    controller = made(fakes)
    await controller.step()
    fakes.statuses["g-0/0"] = leading(group_seats=seats)
    fakes.statuses[learner] = status(9, group_seats=seats, last_index=0)
    await asyncio.sleep(5.1)
    await controller.step()
    fakes.statuses[learner] = status(9, group_seats=seats, last_index=7)
    await asyncio.sleep(5.1)
    await controller.step()
    assert fakes.acted == [
        ("g-0/0", "introduce", ((learner,),)),
        (learner, "reserve", ("c",)),
        ("g-0/0", "change", (Change(add_learners=(9,)),)),
        (learner, "retire", (9, (3, 10))),
    ]


@in_virtual_time
async def test_a_seat_that_is_not_listed_has_not_answered() -> None:
    fakes = Fakes(statuses={"g-0/0": leading(voters=[1, 2, 3]), "g-0/1": status(2)})
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == []
    assert record(controller, "repair").last_error == ""


@in_virtual_time
async def test_silent_seats_and_groups_without_a_leader_wait() -> None:
    fakes = Fakes(
        statuses={
            "g-0/0": leading(),
            "g-0/1": RuntimeError("its process has ended"),
            "g-0/2": VACANT,
            "h-0/0": {**VACANT},
            "h-0/1": RuntimeError("gone"),
        }
    )
    controller = made(fakes)
    await controller.step()
    assert fakes.acted == []
    assert record(controller, "repair").last_error == ""


@in_virtual_time
async def test_a_change_that_failed_is_tried_again() -> None:
    statuses = {"g-0/0": leading(), "g-0/1": status(2), "g-0/2": status(9)}
    fakes = Fakes(
        statuses=statuses, fail={cast(Any, "change"): RuntimeError("its process has ended")}
    )
    controller = made(fakes)
    await controller.step()
    assert shown(controller, "repair")["last_error"] == "RuntimeError: its process has ended"
    fakes.fail.clear()
    await asyncio.sleep(5.1)
    await controller.step()
    assert [each[1] for each in fakes.acted] == ["change", "change"]


@in_virtual_time
async def test_a_change_that_has_to_wait_is_no_error_and_is_tried_again() -> None:
    """The leader is about another one, or the learner is behind: so it is said."""
    statuses = {"g-0/0": leading(), "g-0/1": status(2), "g-0/2": status(9)}
    fakes = Fakes(statuses=statuses, fail={cast(Any, "change"): Conflict("another change")})
    controller = made(fakes)
    await controller.step()
    said = shown(controller, "repair")
    assert (said["last_error"], said["last_actions"]) == ("", 0)
    assert said["under_way"] == ["g-0: a change of its members waits: another change"]
    fakes.fail.clear()
    await asyncio.sleep(5.1)
    await controller.step()
    said = shown(controller, "repair")
    assert (said["last_error"], said["last_actions"], said["under_way"]) == ("", 1, [])
    assert [each[1] for each in fakes.acted] == ["change", "change"]


@in_virtual_time
async def test_a_seat_that_refuses_is_an_error() -> None:
    vacant = {"g-0/0": leading(), "g-0/1": status(2), "g-0/2": VACANT}
    fakes = Fakes(statuses=vacant, fail={cast(Any, "reserve"): Conflict("it has another")})
    controller = made(fakes)
    await controller.step()
    said = shown(controller, "repair")
    assert (said["last_error"], said["under_way"]) == ("Conflict: it has another", [])


def test_the_leader_is_the_one_of_the_highest_term() -> None:
    old, new = {"role": "leader", "term": 3}, {"role": "leader", "term": 5}
    assert leader_of([None, {"role": "follower", "term": 9}]) is None
    assert leader_of([old, None, new]) is new


async def looked(controller: Controller, times: int) -> None:
    for _ in range(times):
        await controller.step()
        await asyncio.sleep(5.1)


@in_virtual_time
async def test_a_seat_that_hangs_is_started_again_once() -> None:
    fakes = Fakes(
        statuses={"g-0/0": leading(), "g-0/1": TimeoutError(), "g-0/2": status(3)},
    )
    controller = made(fakes)
    await looked(controller, SILENT_LOOKS - 1)
    assert fakes.started_again == []
    await looked(controller, SILENT_LOOKS)
    assert fakes.started_again == ["g-0/1"]
    assert record(controller, "repair").actions == 1
    assert fakes.acted == []
    await looked(controller, 1)
    assert fakes.started_again == ["g-0/1"] * 2, "it hangs again"


@in_virtual_time
@pytest.mark.parametrize("between", [status(2), RuntimeError("its process has ended")])
async def test_a_seat_that_is_slow_or_ends_does_not_hang(between: Any) -> None:
    """Ray answers for a process that has ended, and for a node that is gone."""
    fakes = Fakes(statuses={"g-0/0": leading(), "g-0/1": TimeoutError(), "g-0/2": status(3)})
    controller = made(fakes)
    for _ in range(3):
        fakes.statuses["g-0/1"] = TimeoutError()
        await looked(controller, SILENT_LOOKS - 1)
        fakes.statuses["g-0/1"] = between
        await looked(controller, 1)
    assert fakes.started_again == []


@in_virtual_time
async def test_seats_that_hang_are_started_again_one_after_another_also_without_a_leader() -> None:
    fakes = Fakes(
        statuses={
            "g-0/0": TimeoutError(),
            "g-0/1": status(2),
            "g-0/2": TimeoutError(),
            "g-0/learner-0": TimeoutError(),
        },
        beginning={"g-0/2"},
    )
    controller = made(fakes)
    await looked(controller, SILENT_LOOKS + 2)
    assert fakes.started_again == ["g-0/0", "g-0/2", "g-0/learner-0"]
    assert record(controller, "repair").actions == 2, "one of them only begins"


@in_virtual_time
async def test_a_leader_that_others_follow_does_not_hang() -> None:
    """The way from the controller to it is cut, and no other."""
    follows = {"leader_seat": "g-0/0"}
    fakes = Fakes(
        statuses={
            "g-0/0": TimeoutError(),
            "g-0/1": status(2, **follows),
            "g-0/2": status(3, **follows),
        }
    )
    controller = made(fakes)
    await looked(controller, 2 * SILENT_LOOKS)
    assert fakes.started_again == []
