"""`metaray schedule`: what it refuses, and a run all the way through Ray's job service."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from metaray.cli.app import app
from metaray.client import connect_sync
from state_machines.metadata.schedule import ListSchedules, PutSchedule, SchedulePage
from tests.entities.group import Group

if TYPE_CHECKING:
    from metaray.local import LocalCluster

SECONDS = 120.0


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["schedule", *arguments], env={"COLUMNS": "200"})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--job", "nope", "--every", "1h"], "NotFound: job: there is no 'nope'"),
        (["--job", "lag", "--every", "soon"], "Invalid: every: a positive number with"),
        (["--job", "lag", "--every", "1h", "--timeout", "0s"], "Invalid: timeout: a positive"),
        (["--job", "lag", "--every", "1h", "--set", "a=1"], "Invalid: a: no job here has such"),
        (["--job", "lag", "--every", "1h", "--set", "a"], "Invalid: set: NAME=VALUE is wanted"),
    ],
)
def test_a_mistake_is_said_before_a_cluster_is_asked(words: list[str], said: str) -> None:
    done = run("put", "h", "--out", "r", *words)
    assert done.exit_code == 2
    assert said in done.stderr


def test_what_a_run_has_said_is_a_line_and_no_column(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of its log in a cell of a narrow table was a word a line."""
    group = Group("metadata")
    for name in ("hourly", "usage-of-all-tenants-every-day"):
        group.run(PutSchedule(name=name, job="lag", every_ms=3_600_000, out="/r"))
    (row, other) = group.ask(ListSchedules()).schedules
    log = "Job entrypoint command failed with exit code 2: " + "a line of a log " * 20
    failed = replace(row, last_run="r", last_outcome="failed", last_detail=log)
    client = mock.MagicMock()
    client.__enter__.return_value.call.return_value = SchedulePage((failed, other), b"")
    monkeypatch.setattr("metaray.cli.schedule.connect_sync", lambda *_, **__: client)
    done = CliRunner().invoke(app, ["schedule"], env={"COLUMNS": "60"})
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert f"hourly: failed: {log}" in lines
    assert "usage-of-all-tenants-every-day " in done.stdout, "a name is never cut"
    assert len(lines) < 8


def last(cluster: LocalCluster, name: str) -> dict[str, Any]:
    done = run("list", "--json", "--data", str(cluster.data))
    assert done.exit_code == 0, done.stderr
    (found,) = [each for each in json.loads(done.stdout) if each["name"] == name]
    return dict(found)


@pytest.mark.ray
@pytest.mark.long
def test_a_schedule_is_run_by_ray_and_its_end_is_shown(
    service: LocalCluster, tmp_path: Path
) -> None:
    """The job is one that this version does not know, so Ray's run of `metaray report` ends soon,
    and in the words of that command."""
    data = ("--data", str(service.data))
    done = run("put", "known", "--job", "lag", "--every", "1h", "--out", "r", "--no-enabled", *data)
    assert done.exit_code == 0, done.stderr
    assert "known: lag every 1 h, next never: it is not enabled" in done.stdout
    refused = run("run", "known", *data)
    assert (refused.exit_code, refused.stderr) == (2, "Conflict: name: 'known' is not enabled\n")
    with connect_sync(service.address, data=service.data) as client:
        client.call(
            PutSchedule(name="later", job="of-a-later-version", every_ms=3_600_000, out="/tmp/r")
        )
        deadline = time.monotonic() + SECONDS
        while not (found := last(service, "later"))["last_outcome"]:
            assert time.monotonic() < deadline, found
            time.sleep(0.5)
    assert (found["last_outcome"], found["runs"], found["run"]) == ("failed", 1, "")
    assert found["last_run"].startswith("metaray-later-")
    assert "there is no 'of-a-later-version'" in found["last_detail"]
    shown = run(*data)
    assert "failed: " in shown.stdout
    assert "not enabled" in shown.stdout
    for name in ("known", "later"):
        done = run("delete", name, *data)
        assert (done.exit_code, done.stdout) == (0, f"{name} is deleted\n")
    done = run("delete", "known", *data)
    assert (done.exit_code, done.stderr) == (2, "NotFound: name: there is no schedule 'known'\n")
