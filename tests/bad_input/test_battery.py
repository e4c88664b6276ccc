"""A fixed sample of the long run (`python -m tests.bad_input`), and that the battery sees."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from state_machines.errors import Invalid
from state_machines.machine import Machine
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.bad_input import battery, bodies
from tests.bad_input.area_requests import kind_of
from tests.bad_input.areas import AREAS, MEASURED_EVERY, sample
from tests.bad_input.battery import Case, Outcome, Tally, Wrong, judge, refused

SAMPLE = {
    "codec": 1_500,
    "requests": 1_200,
    "core": 400,
    "client": 400,
    "seat": 300,
    "snapshot": 300,
    "config": 400,
    "cli": 60,
}


@pytest.mark.parametrize("name", sorted(AREAS))
def test_no_input_does_what_no_input_may(name: str) -> None:
    area, tally = AREAS[name][0](), Tally()
    for number in sample(area, SAMPLE[name]):
        judge(area, number, tally, measure=number % MEASURED_EVERY == 0)
    battery.close(area)
    assert tally.finds == []
    assert tally.wrong == {}
    assert tally.cases == SAMPLE[name]
    assert tally.outcomes[Outcome.REFUSED] > SAMPLE[name] // 10, "most of it is bad"
    assert tally.outcomes[Outcome.TAKEN] > 0, "and some is not, or nobody would look further"


@pytest.mark.parametrize("tag", sorted(bodies.ALL))
def test_every_operation_has_a_valid_body_to_begin_from(tag: str) -> None:
    """And it belongs to the group that is asked, or every field of it would be refused alike."""
    kind = kind_of(tag)
    machine = Machine(kind, f"{kind}-0", MemoryKeyValue())
    machine.decode(bodies.ALL, api.Command(tag=tag, body=bodies.packed(bodies.base(tag))))


def test_a_longer_list_has_more_of_what_a_valid_body_has_there() -> None:
    spots = {spot.path: spot for spot in bodies.spots("metadata.topic.create")}
    one = bodies.base("metadata.topic.create")["items"][0]
    assert dict(bodies.edges(spots["items",]))["items 2"] == [one, one]


@dataclass
class Only:
    """An area of one case."""

    act: Callable[[], Outcome]
    name: str = "only"
    frame_bytes: int = 1 << 20
    listed: int = 1
    bomb: bool = False

    def case(self, number: int) -> Case:
        return Case("it", self.act, bomb=self.bomb)


def spin() -> Outcome:
    while True:
        continue


def crash() -> Outcome:
    raise KeyError("field")


def change() -> Outcome:
    raise Wrong("changed", "a row")


def log() -> Outcome:
    logging.getLogger("actors").warning("%s: stopped", "a\nmetadata-0/1")
    return Outcome.TAKEN


def say_nothing() -> Outcome:
    return refused(Invalid(""))


def say_two_lines() -> Outcome:
    return refused(Invalid("key: 'a\nb'"))


def say_another_field() -> Outcome:
    return refused(Invalid("key: 9 bytes, the limit is 8"), ["value"])


def say_no_limit() -> Outcome:
    return refused(Invalid("key: too long"), ["key"], limit=True)


def take_memory() -> Outcome:
    return Outcome.TAKEN if bytes(3 << 20) else Outcome.DROPPED


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        (spin, "hang"),
        (crash, "crash"),
        (change, "changed"),
        (log, "forged"),
        (say_nothing, "unnamed"),
        (say_two_lines, "forged"),
        (say_another_field, "unnamed"),
        (say_no_limit, "unnamed"),
        (take_memory, "memory"),
    ],
)
def test_the_battery_sees(
    act: Callable[[], Outcome], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(battery, "CPU_SECONDS_MAX", 0.05)
    tally = Tally()
    judge(Only(act, bomb=kind == "memory"), 0, tally)
    assert tally.wrong == {kind: 1}
    assert tally.finds[0].startswith(f"{kind}: ")
