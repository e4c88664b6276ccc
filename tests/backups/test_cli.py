"""`metaray backup verify` and `metaray restore`, over groups in memory."""

from __future__ import annotations

import json
import resource
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from metaray.cli import backup
from metaray.cli.app import app
from state_machines.metadata.kv import DeleteKv, GetKv, PutKv
from tests.backups import world
from tests.backups.world import Cluster

COLUMNS = 200


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = Cluster()
    for tenant in ("default", "acme"):
        for key in ("a", "b"):
            made.call(PutKv(tenant=tenant, key=key, value=b"1"))
    world.write(made, tmp_path / "cut")
    made.call(PutKv(tenant="acme", key="a", value=b"2"))
    made.call(DeleteKv(tenant="acme", key="b"))
    return made


def run(cluster: Cluster, *arguments: str) -> Result:
    def connect(address: str | None = None, data: Path | None = None) -> Any:
        return nullcontext(cluster)

    with mock.patch.object(backup, "connect_sync", connect):
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(COLUMNS)})


def test_a_backup_is_verified_and_told(cluster: Cluster, tmp_path: Path) -> None:
    said = run(cluster, "backup", "verify", str(tmp_path / "cut"))
    assert said.exit_code == 0
    assert "metadata.kv" in said.output
    assert "how this very group stands" in said.output
    assert "each as its checksum says" in " ".join(said.output.split())
    plain = json.loads(run(cluster, "backup", "verify", str(tmp_path / "cut"), "--json").output)
    assert {"table": "metadata.kv", "rows": 4, "left_out": ""} in plain["tables"]


def test_a_backup_without_a_group_of_its_slot_map_is_partial(tmp_path: Path) -> None:
    """Such as one that was taken before the group's replicas were made."""
    made, cut = Cluster(2), tmp_path / "cut"
    del made.members["offset-1"]
    world.write(made, cut)
    said = run(made, "backup", "verify", str(cut))
    assert said.exit_code == 1
    assert "it is partial, without offset-1" in said.output
    said = run(made, "backup", "verify", str(cut), "--json")
    assert (said.exit_code, json.loads(said.output)["missing"]) == (1, ["offset-1"])


@pytest.mark.parametrize("name", ["cut[v2]", "cut[/v2]"])
def test_a_directory_is_named_as_it_is(cluster: Cluster, tmp_path: Path, name: str) -> None:
    """Though its name looks like markup."""
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    (tmp_path / "cut").rename(place)
    said = run(cluster, "backup", "verify", str(place))
    assert said.exit_code == 0
    assert said.output.replace("\n", "").endswith(name)


def test_a_dry_run_says_what_would_be_done_and_does_nothing(
    cluster: Cluster, tmp_path: Path
) -> None:
    asked = len(cluster.asked)
    cut = str(tmp_path / "cut")
    said = run(cluster, "restore", cut, "--tenant", "acme", "--dry-run", "--json")
    assert said.exit_code == 0
    plain = json.loads(said.output)
    (pairs,) = [each for each in plain["tables"] if each["table"] == "metadata.kv"]
    assert (pairs["add"], pairs["change"], pairs["remove"], pairs["equal"]) == (1, 1, 0, 0)
    assert plain["dry_run"] is True
    assert len(cluster.asked) == asked
    assert (
        "tenant acme would be restored"
        in run(cluster, "restore", cut, "--tenant", "acme", "--dry-run").output
    )


def test_a_tenant_is_restored(cluster: Cluster, tmp_path: Path) -> None:
    said = run(cluster, "restore", str(tmp_path / "cut"), "--tenant", "acme")
    assert said.exit_code == 0, said.output
    assert "tenant acme restored" in said.output
    for key in ("a", "b"):
        entry = cluster.call(GetKv(tenant="acme", key=key))
        assert entry is not None
        assert entry.value == b"1"


def test_a_report_names_what_a_partial_backup_lacks(tmp_path: Path) -> None:
    made, cut = Cluster(2), tmp_path / "cut"
    made.call(PutKv(tenant="acme", key="a", value=b"1"))
    del made.members["offset-1"]
    world.write(made, cut)
    said = run(Cluster(), "restore", str(cut), "--only-missing")
    assert said.exit_code == 0, said.output
    assert "what the backup has of the whole cluster, without offset-1, restored" in said.output


def test_a_report_on_a_narrow_terminal_says_which_tables_it_is_of(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.COLUMNS", 80)
    for more in ("--dry-run", "--replace"):
        said = run(cluster, "restore", str(tmp_path / "cut"), "--tenant", "acme", more)
        assert said.exit_code == 0, said.output
        assert "metadata.kv " in said.output
        assert ("same" in said.output) == (more == "--replace")


def test_a_spoilt_backup_is_one_line_and_status_2(cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "cut" / "metadata.kv" / "metadata-0-00000.parquet"
    path.write_bytes(path.read_bytes()[:-1])
    asked = len(cluster.asked)
    for command in (("backup", "verify"), ("restore",)):
        said = run(cluster, *command, str(tmp_path / "cut"))
        assert said.exit_code == 2
        assert said.output.startswith("BadCut: metadata.kv/metadata-0-00000.parquet: ")
        assert said.output.count("\n") == 1
    assert len(cluster.asked) == asked


@pytest.mark.parametrize("why", ["full", "missing"])
def test_a_temporary_directory_that_cannot_be_used_is_one_line_and_status_2(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if why == "missing":
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    else:
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))  # stands for a full disk
    try:
        said = run(cluster, "restore", str(tmp_path / "cut"), "--dry-run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said.exit_code == 2
    (line,) = said.output.splitlines()
    assert line.startswith("FileNotFoundError: " if why == "missing" else "OperationalError: ")


def test_what_is_refused_is_status_1(cluster: Cluster, tmp_path: Path) -> None:
    refuse = mock.patch(
        "state_machines.metadata.restore.put_pair", side_effect=world.refusal("value: no")
    )
    with refuse:
        said = run(cluster, "restore", str(tmp_path / "cut"), "--tenant", "acme")
    assert said.exit_code == 1
    assert "metadata.kv: put: QUOTA_EXCEEDED: value: no" in said.output
    assert "it is not as the backup has it" in said.output


def test_a_backup_needs_a_place(cluster: Cluster) -> None:
    said = run(cluster, "backup")
    assert said.exit_code == 2
    assert said.output.startswith("Invalid: out: name a directory")
