"""`python -m tests.history`: a verdict that can be read, and a long run that can be stopped."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.history import linearizable, validation
from tests.history.__main__ import app
from tests.history.operation import write
from tests.history.servers import SERVERS, history
from tests.history.spoil import stale
from tests.proof import record

QUICK = ["--short", "600", "--ruined", "2", "--machine", "1", "--watches", "2", "--replicas", "0"]


def said(*arguments: str | Path) -> tuple[int, str]:
    found = CliRunner().invoke(app, [str(each) for each in arguments])
    return found.exit_code, found.output


def test_a_recorded_history_gets_a_verdict(tmp_path: Path) -> None:
    operations = history(SERVERS["register"](), Random(3), count=60, keys=("a", "b"))
    write(tmp_path / "fine.history", operations)
    status, text = said("check", tmp_path / "fine.history", "--model", "register")
    assert status == 0
    assert "linearizable: 60 operations, 2 keys" in text
    wrong = stale("register", operations, Random(3))
    assert wrong is not None
    write(tmp_path / "wrong.history", wrong)
    status, text = said("check", tmp_path / "wrong.history", "--model", "register")
    assert status == 1
    assert "not linearizable" in text
    assert "one of these would have to come next" in text
    assert said("check", tmp_path / "fine.history", "--model", "none")[0] == 2


def test_the_long_run_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    path = tmp_path / "history.json"
    done: list[int] = []
    real = linearizable.check

    def stops(*arguments: Any, **more: Any) -> Any:
        done.append(1)
        if len(done) == 300:
            raise KeyboardInterrupt
        return real(*arguments, **more)

    monkeypatch.setattr(validation, "check", stops)
    assert said(*QUICK)[0] == 130
    before = json.loads(path.read_bytes())
    assert not before["finished"]
    assert 0 < before["done"] < 300
    status, text = said(*QUICK)
    assert status == 0, text
    after = json.loads(path.read_bytes())
    assert after["finished"]
    assert after["figures"]["histories"] == 600
    assert after["figures"]["long_histories"] == after["figures"]["replayed"] + 2
    calls = len(done)
    assert said(*QUICK)[0] == 0
    assert len(done) == calls, "nothing is done twice"
