"""Whatever a setting may be set to, the command that it goes into takes it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

import actors.duties
from state_machines import op
from state_machines.lease import ExpireLeases
from state_machines.metadata.leadership import ChangeLeaders, LeaderChange
from state_machines.metadata.node import ExpireNodes
from state_machines.mqtt.connector_duty import ExpireConnectors
from state_machines.mqtt.connector_queries import SilentConnectors
from state_machines.offset.activity import ExpireOffsets, SilentGroups
from state_machines.offset.history import ConfigureHistory
from state_machines.settings import SETTINGS


def _leader(number: int) -> LeaderChange:
    return LeaderChange(shard="s", sequence=number, uid=1, leader_epoch=1, leader="b")


FED: Final[Mapping[str, Callable[[int], tuple[Any, ...]]]] = {
    "heartbeat_timeout_ms": lambda value: (ExpireNodes(controller_epoch=1, timeout_ms=value),),
    "connector_timeout_ms": lambda value: (
        ExpireConnectors(controller_epoch=1, timeout_ms=value),
        SilentConnectors(timeout_ms=value),
    ),
    "offset_retention_ms": lambda value: (
        ExpireOffsets(controller_epoch=1, retention_ms=value),
        SilentGroups(retention_ms=value),
    ),
    "offset_history_ms": lambda value: (
        ConfigureHistory(controller_epoch=1, step_ms=60_000, rows=1, age_ms=value or 1),
    ),
    "lease_grace_ms": lambda value: (ExpireLeases(controller_epoch=1, grace_ms=value),),
    "rebalance_moves_max": lambda value: (
        ChangeLeaders(controller_epoch=1, items=tuple(map(_leader, range(value)))),
    ),
}
"""What duties make of a number. A history of no time is told as one of no rows."""

each_end = pytest.mark.parametrize("end", ["low", "high"])


@pytest.mark.parametrize("name", FED)
@each_end
def test_its_ends_are_within_the_limits_of_what_it_goes_into(name: str, end: str) -> None:
    for operation in FED[name](getattr(SETTINGS[name], end)):
        op.validate(operation)


def test_every_number_that_a_duty_looks_up_is_among_these() -> None:
    sources = Path(actors.duties.__file__).parent.glob("*.py")
    found = {each for path in sources for each in re.findall(r'number\("(\w+)"', path.read_text())}
    assert found == {*FED}
