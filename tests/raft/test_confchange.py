"""A change that has to wait. `tests/properties/changes.py` asks what follows from any others."""

from __future__ import annotations

import pytest

from state_machines.errors import Conflict
from state_machines.raft import Change, Configuration
from state_machines.raft.confchange import enter


def test_a_joint_configuration_takes_no_change() -> None:
    with pytest.raises(Conflict):
        enter(Configuration((1, 2), (1,)), Change(remove=(2,)), lambda learner: True)
