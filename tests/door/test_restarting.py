"""Processes of seats and of the controller that an operator ends, also those that hang."""

from __future__ import annotations

import re

import psutil
import pytest

from metaray.restarting import restart
from state_machines.errors import NotFound
from tests.door.seats import ask, follower, leader, wait_until_whole
from tests.door.test_cli import refused, run

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]


def test_a_seat_that_hangs_is_another_process_afterwards() -> None:
    wait_until_whole("offset-0")
    seat = follower("offset-0")
    hangs = psutil.Process(ask(seat, "process"))
    hangs.suspend()
    result = run("restart", seat)
    assert result.exit_code == 0, result.output
    said = re.fullmatch(
        rf"✓ {seat} is process (\d+), after one that did not answer\n", result.stdout
    )
    assert said is not None, result.stdout
    assert int(said[1]) == ask(seat, "process") != hangs.pid
    assert not hangs.is_running()
    wait_until_whole("offset-0")


def test_the_controller_is_another_process_afterwards() -> None:
    wait_until_whole("metadata-0")
    name = f"controller-{leader('metadata-0')['term']}"
    done = restart(name)
    assert done.name == name
    assert done.before is not None
    assert done.before != done.now == ask(name, "process")


def test_what_is_no_seat_is_refused_by_name() -> None:
    with pytest.raises(NotFound, match=r"name: there is no 'offset-0/9'; there are .*offset-0/1"):
        restart("offset-0/9")
    assert "NotFound: name: there is no 'history-exporter'" in refused(
        "restart", "history-exporter"
    )
