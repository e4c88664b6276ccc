"""One of the stories of `replicas.py`; the long run has more, of every kind of group."""

from __future__ import annotations

from pathlib import Path

from tests.history.replicas import CALLS, WATCHERS, told_the_same


def test_what_was_told_is_what_the_logs_say(tmp_path: Path) -> None:
    figures = told_the_same("register", 5, tmp_path)
    # On a busy machine many calls find no leader in time; what is left is still a story.
    assert figures["replicas_operations"] > CALLS, figures
    assert figures["replicas_commands"] > CALLS // 2, figures
    assert figures["replicas_watch_events"] > WATCHERS * CALLS // 4, figures
