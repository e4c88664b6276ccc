"""A few of the stories of `replicas.py`; the long run has more."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.history.replicas import CALLS, CLIENTS, WATCHERS, told_the_same


@pytest.mark.parametrize("name", ["register", "session"])
def test_what_was_told_is_what_the_logs_say(name: str, tmp_path: Path) -> None:
    figures = told_the_same(name, 5, tmp_path)
    assert figures["replicas_operations"] > CLIENTS * CALLS * 3 // 4
    assert figures["replicas_commands"] > CALLS
    assert figures["replicas_watch_events"] > WATCHERS * CALLS // 2
