"""Every golden script still says what it said. `pytest --rewrite` writes down what it says now."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.raft.script import Script

SCRIPTS = sorted((Path(__file__).parent / "scripts").glob("*.script"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, request: pytest.FixtureRequest) -> None:
    was, now = path.read_text(), Script().run(path)
    assert was.startswith("# "), "a script begins with its claim"
    if request.config.getoption("--rewrite"):
        path.write_text(now)
        return
    assert now == was
