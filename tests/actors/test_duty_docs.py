"""The table of duties that operators read says what the code does."""

from __future__ import annotations

import re
from pathlib import Path

from actors.duties import DUTIES, Orders
from actors.duties.duty import Duty
from jobs.words import span
from state_machines.settings import SETTINGS

PAGE = Path(__file__).parents[2] / "docs" / "operations.md"
ROW = re.compile(r"^\| `(\w+)` \| (.+?) \(`(\w+)`\) \| .+ \| (\d+) s \|$", re.M)


def test_every_duty_is_in_the_table_with_its_interval_its_setting_and_its_deadline() -> None:
    duties: list[type[Duty]] = [Orders, *DUTIES]
    wanted = [
        (
            each.name,
            span(SETTINGS[each.interval].default),
            each.interval,
            f"{each.deadline_seconds:.0f}",
        )
        for each in duties
    ]
    told = [
        (name, every.replace("60 s", "1 min"), *rest)
        for name, every, *rest in ROW.findall(PAGE.read_text())
    ]
    assert told == wanted
