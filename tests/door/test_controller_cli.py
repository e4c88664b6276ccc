"""`metaray controller`: what it prints of the duties, and what it refuses to pause."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from actors import calls
from actors.duties import DUTIES
from metaray.cli import controller
from metaray.cli.app import app
from metaray.cli.spans import parse_span
from state_machines.errors import Invalid

COLUMNS = 80
SECONDS = 30.0


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(COLUMNS)})


def duty(**changes: Any) -> dict[str, Any]:
    return {
        "does": "Something.",
        "setting": "timer_check_ms",
        "every_ms": 5_400_000,
        "runs": 3,
        "actions": 1_000_000,
        "last_actions": 10_000,
        "last_run_ms": 1_699_996_466_000,
        "last_seconds": 0.25,
        "last_error": "",
        "running_seconds": 0.0,
        "under_way": [],
        "alarms": [],
        "numbers": {},
        "paused": None,
        **changes,
    }


SAID: dict[str, Any] = {
    "name": "controller-7",
    "epoch": 7,
    "node": "3",
    "fenced": "",
    "now_ms": 1_700_000_065_000,
    "duties": {
        "timers": duty(under_way=["tenant 'a' is being deleted: purge, 7 rows gone"]),
        "repair": duty(last_error="NoQuorum: [red]nobody\n"),
        "segment_leaders": duty(runs=0),
        "liveness": duty(paused={"until_ms": 0, "by": "ann@ops", "reason": "a [new] disk"}),
        "tenants": duty(paused={"until_ms": 1_700_000_900_000, "by": "", "reason": ""}),
    },
}


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the controllers say of themselves."""
    said = [SAID]
    monkeypatch.setattr(controller, "join_cluster", lambda *_: None)
    monkeypatch.setattr(controller, "controllers", lambda: said)
    return said


@pytest.mark.usefixtures("says")
def test_the_table_fits_a_terminal_and_says_what_was_done() -> None:
    lines = run("controller").stdout.splitlines()
    assert max(map(len, lines[:10])) <= COLUMNS
    row = {line.split()[0]: line.split() for line in lines if line.strip()}
    assert " ".join(row["timers"][1:]) == "1 h 30 min 59 min 59 s 250 ms 3 1000000 10000"
    assert "never" in row["segment_leaders"]
    said = "\n".join(lines)
    assert "liveness is paused until it is resumed, by ann@ops: a [new] disk" in said
    assert "tenants is paused until 2023-11-14 22:28:20 UTC" in lines
    assert "timers: tenant 'a' is being deleted: purge, 7 rows gone" in said
    assert "repair: NoQuorum: [red]nobody\\n" in said
    states = {line.split()[0]: line.split()[-1] for line in lines[3:8]}
    assert (states["repair"], states["liveness"]) == ("error", "paused")


def test_json_is_whole(says: list[dict[str, Any]]) -> None:
    assert json.loads(run("controller", "--json").stdout) == says


def test_one_that_does_not_answer_is_shown(says: list[dict[str, Any]]) -> None:
    says[:] = [{"name": "controller-7", "error": "it is [gone]"}]
    assert "controller-7: silent it is [gone]" in run("controller").stdout


def test_no_controller_is_said_in_one_line(says: list[dict[str, Any]]) -> None:
    says.clear()
    result = run("controller")
    assert result.exit_code == 2
    assert "there is none" in result.stderr


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_only_duties_that_there_are_can_be_paused(command: str) -> None:
    result = run("controller", command, "livness")
    assert result.exit_code == 2
    known = ", ".join(each.name for each in DUTIES)
    assert result.stderr == f"Invalid: duty: 'livness' is none of {known}\n"


@pytest.mark.parametrize(
    ("text", "span_ms"),
    [
        ("250ms", 250),
        ("90s", 90_000),
        ("10m", 600_000),
        ("10 min", 600_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
    ],
)
def test_spans(text: str, span_ms: int) -> None:
    assert parse_span(text, "for") == span_ms


@pytest.mark.parametrize(
    "text",
    ["10", "m", "-1s", "1.5h", "1w", "\u0661s", "1" * 12 + "d", "1 s s", "", "0s"],
)
def test_what_is_no_span_is_refused_by_the_name_of_its_field(text: str) -> None:
    with pytest.raises(Invalid, match=r"^keep: "):
        parse_span(text, "keep")


@pytest.mark.parametrize("span", ["0s", "", "10"])
def test_a_pause_for_no_time_is_refused_and_not_one_for_ever(span: str) -> None:
    result = run("controller", "pause", "repair", "--for", span)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Invalid: for: a positive number with ms, s, ")


@pytest.mark.ray
@pytest.mark.usefixtures("service")
def test_a_duty_is_paused_and_resumed_on_a_running_service() -> None:
    def paused() -> Any:
        (said,) = json.loads(run("controller", "--json").stdout)
        return said["duties"]["timers"]["paused"]

    def wait_for(wanted: bool) -> None:
        deadline = time.monotonic() + SECONDS
        while (paused() is not None) is not wanted:
            assert time.monotonic() < deadline, calls.named_actors()
            time.sleep(0.2)  # the controller reads its orders once a second

    try:
        result = run("controller", "pause", "timers", "--for", "10m", "--reason", "a test")
        assert result.stdout.startswith("timers is paused until 2"), result.output
        wait_for(True)
        assert "timers is paused until" in run("controller").stdout
    finally:
        said = run("controller", "resume", "timers").stdout
    assert said == "timers runs again\n"
    assert run("controller", "resume", "timers").stdout == "timers was not paused\n"
    wait_for(False)
