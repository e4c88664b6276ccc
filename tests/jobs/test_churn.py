"""Which commands open, close and delete sessions: all of them are told in churn."""

from __future__ import annotations

import state_machines.machine  # noqa: F401 - registers every entity
from jobs.churn import CLOSING, DELETING, OPENING
from state_machines import op


def test_every_command_about_sessions_is_told() -> None:
    told = {*OPENING, *CLOSING, *DELETING}
    assert told == {tag for tag in op.COMMANDS if tag.startswith("mqtt.session.")}
