"""`metaray advice`: from a report's file to what the controller did, and what is refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from jobs.advice import ADVICE as ROWS
from jobs.advice import LEADERS
from metaray import advising
from metaray.cli import advice
from metaray.cli.app import app
from metaray.client import Change
from state_machines.errors import Conflict, NotFound
from state_machines.metadata.advice import (
    Advice,
    GetAdvice,
    NewAdvice,
    PutAdvice,
    UndoAdvice,
)
from state_machines.metadata.advice_duty import CarryOutAdvice
from state_machines.metadata.config import ConfigValue, SetConfigs
from state_machines.metadata.tenant import (
    CreateTenants,
    NewTenant,
    TenantChange,
    TenantQuotas,
    UpdateTenants,
)
from tests.door.in_memory import InMemory
from tests.machine.alone import NOW_MS

LATER = NOW_MS + 3_600_000
CAP = NewAdvice(
    id="cap",
    kind="quota",
    target="acme",
    limit="offset_commits_per_s",
    number=500,
    reason="acme has [90 %] of offset-0",
    evidence='{"share": 0.9}',
    start_ms=NOW_MS,
    expires_ms=LATER,
)
MOVE = NewAdvice(
    id="move",
    kind="leader",
    target="offset-0",
    source="offset-0/1",
    destination="offset-0/2",
    reason="one node has all",
    expires_ms=LATER,
)
HAND = NewAdvice(id="hand", kind="storm", target="g", reason="it storms", expires_ms=LATER)


def seat(number: int, *, leads: bool) -> dict[str, Any]:
    name = f"offset-0/{number}"
    shown = {"seat": name, "node": f"n{number}", "role": "leader" if leads else "follower"}
    return {**shown, "voters": [1, 2, 3], "seats": {n: f"offset-0/{n}" for n in (1, 2, 3)}}


GROUPS: dict[str, Any] = {
    "offset-0": {"leader": "offset-0/1", "replicas": [seat(n, leads=n == 1) for n in (1, 2, 3)]},
    "mqtt-0": {"leader": "", "replicas": []},
}


class Doing(InMemory):
    """Its watch lets a controller take one step: it carries out what was approved or is undone."""

    stuck = False

    async def watch(self, table: Any, *, from_revision: int | None) -> AsyncIterator[Change[Any]]:
        assert from_revision is not None
        yield Change(from_revision, ("other",), None)
        if self.stuck:
            raise TimeoutError  # as the deadline around it does
        super().call(CarryOutAdvice(controller_epoch=3, id="cap"))
        yield Change(from_revision + 1, ("cap",), super().call(GetAdvice(id="cap")))
        raise AssertionError("nobody waits for more")


class Async:
    """The same client, awaited."""

    def __init__(self, client: Doing) -> None:
        self._client = client

    async def __aenter__(self) -> Async:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def call(self, operation: Any) -> Any:
        return self._client.call(operation)

    def watch(self, table: Any, *, from_revision: int | None) -> AsyncIterator[Change[Any]]:
        return self._client.watch(table, from_revision=from_revision)


@pytest.fixture
def client() -> Iterator[Doing]:
    client = Doing()
    with (
        mock.patch.object(advice, "connect_sync", return_value=client),
        mock.patch.object(advice, "connect", return_value=Async(client)),
        mock.patch.object(advice, "join_cluster", return_value=None),
        mock.patch.object(advice, "overview", return_value={"groups": GROUPS}),
    ):
        yield client


def run(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["advice", *arguments], env={"COLUMNS": "100"})
    assert result.exit_code == status, result.output
    return result


def put(client: Doing, *items: NewAdvice) -> None:
    assert all(each.ok for each in client.call(PutAdvice(items=items)))


def let(client: Doing, mode: str = "approve") -> None:
    client.call(SetConfigs(items=(ConfigValue(key="advice_mode", text=mode),)))


def get(client: Doing, advice_id: str = "cap") -> Advice:
    found: Advice = client.call(GetAdvice(id=advice_id))
    return found


def written(directory: Path, *items: NewAdvice) -> Path:
    rows = [{name: asdict(each)[name] for name in ROWS.names} for each in items]
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows, schema=ROWS), directory / "advice.parquet")
    return directory


def test_the_advice_of_a_report_is_taken_once(client: Doing, tmp_path: Path) -> None:
    written(tmp_path / "hotspots", CAP, HAND)
    for path in (tmp_path, tmp_path / "hotspots", tmp_path / "hotspots" / "advice.parquet"):
        assert run("take", str(path)).stdout.splitlines() == ["cap taken", "hand taken"]
    assert (get(client).state, get(client).reason) == ("proposed", CAP.reason)
    old = NewAdvice(id="old", kind="storm", target="h", reason="r", expires_ms=1)
    result = run("take", str(written(tmp_path / "old", old)), status=2)
    assert "old INVALID expires_ms: 1, the range is" in result.stdout
    assert run("take", str(written(tmp_path / "none"))).stdout == "the report advises nothing\n"


def test_a_file_that_is_no_advice_is_refused_by_name(client: Doing, tmp_path: Path) -> None:
    assert "has no advice.parquet" in run("take", str(tmp_path), status=2).stderr
    path = tmp_path / "advice.parquet"
    path.write_bytes(b"no")
    assert "is no Parquet file of advice" in run("take", str(path), status=2).stderr
    pq.write_table(pa.table({"id": ["a"]}), path)
    assert f"{path} has no column kind" in run("take", str(path), status=2).stderr
    many = [NewAdvice(**{**asdict(HAND), "id": f"a{n}"}) for n in range(1_001)]
    assert (
        "the limit is 1000" in run("take", str(written(tmp_path / "many", *many)), status=2).stderr
    )
    assert client.asked == []


def test_a_list_says_what_may_be_done_and_what_there_is(client: Doing) -> None:
    assert run("list").stdout.splitlines() == ["advice_mode is show", "none"]
    put(client, CAP, MOVE)
    lines = run("list").stdout
    assert "acme has [90 %] of offset-0" in lines
    assert lines.index("cap") < lines.index("move"), "the newest first"
    said = json.loads(run("list", "--json").stdout)
    assert said["advice_mode"] == "show"
    assert [each["id"] for each in said["advice"]] == ["cap", "move"]
    assert json.loads(run("list", "--state", "applied", "--json").stdout)["advice"] == []
    assert "state: " in run("list", "--state", "odd", status=2).stderr


def test_one_is_shown_whole(client: Doing) -> None:
    put(client, CAP)
    shown = run("show", "cap").stdout
    assert '{"share": 0.9}' in shown
    assert "destination" not in shown, "it has none"
    assert json.loads(run("show", "cap", "--json").stdout)["number"] == 500
    assert "there is no advice 'none'" in run("show", "none", status=2).stderr


def test_decisions_say_who_and_why(client: Doing) -> None:
    put(client, CAP, HAND)
    assert run("approve", "cap", "--note", "go on").stdout == "cap approved\n"
    row = get(client)
    assert (row.state, row.note) == ("approved", "go on")
    assert "@" in row.by
    result = run("approve", "hand", "cap", status=2)
    assert "hand CONFLICT id: 'storm' is done by hand" in result.stdout
    assert result.stderr == "refused: 1 of 2\n"
    assert run("dismiss", "cap", "hand").stdout == "cap dismissed\nhand dismissed\n"


def test_a_dry_run_says_what_would_be_done_and_does_nothing(client: Doing) -> None:
    put(client, CAP, MOVE, HAND)
    assert run("apply", "cap", "--dry-run").stdout == (
        "would do: offset_commits_per_s of tenant 'acme': no limit -> 500 "
        "(the tenant is recorded for it)\n"
    )
    assert run("apply", "move", "--dry-run").stdout == (
        "would do: leadership of offset-0: offset-0/1 -> offset-0/2\n"
    )
    assert (
        "'storm' is done by hand: it storms" in run("apply", "hand", "--dry-run", status=2).stderr
    )
    low = TenantQuotas(offset_commits_per_s=100)
    client.call(CreateTenants(items=(NewTenant(name="acme", quotas=low),)))
    assert "it is 100 already" in run("apply", "cap", "--dry-run", status=2).stderr
    moved = {**GROUPS, "offset-0": {**GROUPS["offset-0"], "leader": "offset-0/3"}}
    with mock.patch.object(advice, "overview", return_value={"groups": moved}):
        said = run("apply", "move", "--dry-run", status=2).stderr
    assert "offset-0 is led by offset-0/3, not by offset-0/1 any more" in said
    assert [get(client, each).state for each in ("cap", "move", "hand")] == ["proposed"] * 3


def test_it_is_applied_and_undone(client: Doing) -> None:
    put(client, CAP)
    result = run("apply", "cap", status=2)
    assert "advice_mode: it is 'show', so the controller carries nothing out" in result.stderr
    assert get(client).state == "proposed"
    assert "cap is proposed, not applied" in run("undo", "cap", status=2).stderr
    let(client)
    assert run("apply", "cap").stdout.startswith(
        "applied: offset_commits_per_s of tenant 'acme': no limit -> 500"
    )
    assert (get(client).state, get(client).before) == ("applied", "0")
    assert "cap is applied" in run("apply", "cap", status=2).stderr
    assert run("undo", "cap", "--dry-run").stdout == (
        "would do: offset_commits_per_s of tenant 'acme': 500 -> no limit\n"
    )
    assert run("undo", "cap").stdout.startswith("undone: ")
    assert get(client).state == "undone"


def test_what_was_changed_since_is_not_undone(client: Doing) -> None:
    put(client, CAP)
    let(client)
    run("apply", "cap")
    other = TenantChange(name="acme", quotas=TenantQuotas(offset_commits_per_s=700))
    client.call(UpdateTenants(items=(other,)))
    for more in (("--dry-run",), ()):
        said = run("undo", "cap", *more, status=2).stderr
        assert "offset_commits_per_s: it is 700 now, 500 was set: changed since" in said
    (outcome,) = client.call(UndoAdvice(ids=("cap",)))
    assert outcome.code == "CONFLICT"


def test_a_controller_that_does_not_come_is_said_and_not_waited_for(client: Doing) -> None:
    put(client, CAP)
    let(client)
    client.stuck = True
    said = run("apply", "cap", "--wait", "1", status=2).stderr
    assert said.startswith("Unknown: id: cap is approved after 1 s;")


def test_the_leaders_are_written_down(client: Doing, tmp_path: Path) -> None:
    path = tmp_path / "leaders.parquet"
    assert run("leaders", str(path)).stdout.startswith("3 seats in ")
    table = pq.read_table(path)
    assert table.schema.equals(LEADERS)
    assert table.to_pylist()[1] == {
        "group": "offset-0",
        "seat": "offset-0/2",
        "node": "n2",
        "leads": False,
    }
    missing = tmp_path / "none" / "leaders.parquet"
    assert "cannot be written" in run("leaders", str(missing), status=2).stderr


def test_what_does_not_come_out_as_wanted_is_an_error(client: Doing) -> None:
    put(client, CAP)
    with pytest.raises(Conflict, match="id: cap is proposed: "):
        advising.check_carried_out(get(client), "applied")
    with pytest.raises(NotFound):
        advising.held(client, "none")
    assert advising.submit(client, []) == ()
