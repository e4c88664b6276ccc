"""A small reconnect storm on real Ray: nobody is lost, and nobody else notices."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from bench import command, storm
from metaray.cli.app import app

if TYPE_CHECKING:
    from metaray.local import LocalCluster


@pytest.mark.ray
@pytest.mark.parametrize("expiry_s", [3_600, 0])
def test_all_sessions_come_back_and_nobody_else_notices(
    service: LocalCluster, monkeypatch: pytest.MonkeyPatch, expiry_s: int
) -> None:
    monkeypatch.setattr(storm, "QUIET_SECONDS", 0.5)
    said: list[str] = []
    found = asyncio.run(storm.storm(400, 2, expiry_s, service.address, None, said.append))
    assert (found.lost, found.failed, found.leader_changes) == (0, 0, 0), found
    assert found.reconnects.calls == 400
    assert found.few.calls >= storm.FEW_SESSIONS, "each once, and again for as long as it lasts"
    assert found.puts_before.calls > 0
    assert found.puts_during.calls > 0
    assert found.canary_errors == 0
    assert found.heartbeats >= 3
    assert set(found.loop_late_ms) == {"metadata-0", "mqtt-0", "offset-0"}
    assert 0 < found.reconnects.p50_ms <= found.reconnects.p99_ms <= found.reconnects.max_ms
    assert said[-1] == "all are back; every session is looked at"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sessions", "0"], "sessions: from 1 to 10000000, not 0"),
        (["--brokers", "65"], "brokers: from 1 to 64, not 65"),
        (["--sessions", "3", "--brokers", "4"], "brokers: from 1 to 3, not 4"),
        (["--expiry", "-1"], "expiry: from 0 to 4294967295, not -1"),
    ],
)
def test_a_storm_that_cannot_be_is_refused_before_anything_starts(
    arguments: list[str], said: str
) -> None:
    assert command.storm.__name__ == "storm"
    result = CliRunner().invoke(app, ["bench", "storm", *arguments])
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
