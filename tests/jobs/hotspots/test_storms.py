"""What comes too often."""

from __future__ import annotations

import pytest

from jobs.hotspots import STORMS, storms
from jobs.loads import LOADS
from tests.jobs.conftest import Rows
from tests.jobs.hotspots.made import END, MINUTE, collect, load


@pytest.mark.spark
def test_storms(rows: Rows) -> None:
    known = [
        load("commits", "busy", 900, commands=300),
        load("commits", "calm", 90_000, commands=299),
        load("opens", "flappy", 24, -2, commands=24),
        load("opens", "flappy", 12, -1, commands=12),
        load("opens", "steady", 9, commands=9),
        load("session_opens_per_s", "w", 1_200, commands=2),
        load("session_opens_per_s", "v", 1_199, commands=2),
    ]
    made = storms(rows(LOADS, known), MINUTE, commits_per_s=5, flaps=10, opens_per_s=20)
    found = collect(made, STORMS, "what")
    assert [(each["what"], each["name"], each["windows"], each["commands"]) for each in found] == [
        ("commit storm", "busy", 1, 300),
        ("flapping client", "flappy", 2, 24),
        ("session churn", "w", 1, 2),
    ]
    assert (found[0]["commands_per_s"], found[2]["per_s"]) == (5.0, 20.0)
    assert (found[1]["start_ms"], found[1]["last_ms"]) == (END - 2 * MINUTE, END - MINUTE)
