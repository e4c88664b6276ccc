"""Peers are started, loaded, restarted and ended, whatever happens; first with made-up ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors import java
from bench.compare import kill_leader
from bench.peers import PEERS, PeerFailed, driver, servers
from bench.peers.servers import Role, Server, Servers
from bench.rows import Load

SERVE = "import sys, signal; open(sys.argv[1], 'w').close(); signal.pause()"


def test_peers_have_the_machines_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours would give theirs a ninth of a share."""
    theirs = tmp_path / "java"
    theirs.write_text("")
    theirs.chmod(0o755)
    monkeypatch.setenv("PATH", f"{java.HOME / 'bin'}:{tmp_path}:/bin")
    monkeypatch.setenv("METARAY_JAVA", "/elsewhere")
    assert servers.program("java") == str(theirs)
    assert servers.environment({"more": "1"}) == {
        **{name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ},
        "PATH": f"{tmp_path}:/bin",
        "more": "1",
    }


class MadeUp(Servers):
    """Serves once its process has said so by a file; the server of the lowest number leads."""

    name = "made-up"
    packages = ("made-up-server",)
    programs = ()
    files = ()
    ports = 2
    program = SERVE

    @classmethod
    def versions(cls) -> dict[str, str]:
        return {}

    @classmethod
    def build(cls) -> list[str]:
        return []

    def command(self, server: Server) -> list[str]:
        up = server.home / "up"
        up.unlink(missing_ok=True)
        return [sys.executable, "-c", self.program, str(up)]

    def role(self, server: Server) -> Role | None:
        if not (server.home / "up").exists():
            return None
        return "leader" if server.number == 1 else "follower"


class Ends(MadeUp):
    program = "import sys; sys.exit('no disk')"


def gone(pid: int) -> bool:
    """It was waited for, so nothing has its id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def ids(running: Servers) -> list[int]:
    return [each.process.pid for each in running.servers if each.process is not None]


def test_three_are_started_on_ports_of_their_own_and_ended(tmp_path: Path) -> None:
    with MadeUp(tmp_path) as running:
        started = ids(running)
        ports = [port for each in running.servers for port in each.ports]
        assert len(started) == 3
        assert len(set(ports)) == 6
        assert running.leader().number == 1
        assert not any(gone(pid) for pid in started)
    assert all(gone(pid) for pid in started)
    assert not list(tmp_path.iterdir()), "nothing is left on the disk"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_they_are_ended_whatever_ends_the_block(error: type[BaseException], tmp_path: Path) -> None:
    started: list[int] = []

    def block() -> None:
        with MadeUp(tmp_path) as running:
            started.extend(ids(running))
            raise error

    with pytest.raises(error):
        block()
    assert len(started) == 3
    assert all(gone(pid) for pid in started)


def test_they_die_with_a_process_that_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys, signal, pathlib\n"
        "from tests.bench.test_peers import MadeUp, ids\n"
        "with MadeUp(pathlib.Path(sys.argv[1])) as running:\n"
        "    print(*ids(running), flush=True)\n"
        "    signal.pause()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    ) as parent:
        assert parent.stdout is not None
        started = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(signal.SIGKILL)
        parent.wait(10)
    assert len(started) == 3
    deadline = time.monotonic() + 10
    while not all(gone(pid) or _zombie(pid) for pid in started):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_one_that_was_killed_is_started_again(tmp_path: Path) -> None:
    with MadeUp(tmp_path) as running:
        before = ids(running)
        os.kill(before[0], signal.SIGKILL)
        process = running.servers[0].process
        assert process is not None
        process.wait(10)
        running.start_missing()
        after = ids(running)
        assert after[0] != before[0]
        assert after[1:] == before[1:]
    assert all(gone(pid) for pid in after)


def test_one_that_does_not_start_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(PeerFailed, match=r"made-up \d ended: no disk"), Ends(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_one_that_never_serves_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "WHOLE_SECONDS", 0.2)
    monkeypatch.setattr(MadeUp, "program", "import signal; signal.pause()")
    with pytest.raises(PeerFailed, match="made-up was not whole within"), MadeUp(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_lines_are_read_as_they_come(tmp_path: Path) -> None:
    says = 'import sys; print(\'{"a": 1}\\n{"a": 2}\', flush=True); print(sys.argv[1:])'
    with (
        MadeUp(tmp_path) as running,
        driver.running([sys.executable, "-c", says], running, ["put:1:1.0"]) as line,
    ):
        assert [line(10), line(10)] == [{"a": 1}, {"a": 2}]


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ("import sys; sys.exit('no session')", "made-up cannot be loaded: no session"),
        ("import signal; signal.pause()", "made-up is still loaded after its time"),
    ],
)
def test_a_load_that_ends_early_or_not_at_all_is_an_error(
    says: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "SLACK_SECONDS", 0.0)
    seconds = 10.0 if "exit" in says else 0.1
    with (
        MadeUp(tmp_path) as running,
        pytest.raises(PeerFailed, match=word),
        driver.running([sys.executable, "-c", says], running, []) as line,
    ):
        line(seconds)


def test_what_loads_a_peer_is_built_once_and_again_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "load.txt"
    made: list[Path] = []

    def command(target: Path) -> list[str]:
        made.append(target)
        return [sys.executable, "-c", "import sys, shutil; shutil.copy(*sys.argv[1:])"] + [
            str(path) for path in (source, target)
        ]

    source.write_text("one")
    first = driver.build(source, command)
    assert first == driver.build(source, command)
    source.write_text("two")
    second = driver.build(source, command)
    assert (first.read_text(), second.read_text(), len(made)) == ("one", "two", 2)
    source.write_text("three")
    with pytest.raises(PeerFailed, match=r"load\.txt cannot be built: wrong"):
        driver.build(source, lambda _: [sys.executable, "-c", "import sys; sys.exit('wrong')"])


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_real_peer_is_loaded_and_loses_its_leader(name: str, tmp_path: Path) -> None:
    peer = PEERS[name]
    if peer.missing():
        pytest.skip(f"{name} is not installed: {', '.join(peer.missing())}")
    assert all(peer.versions().values())
    loads = [Load("put", 3), Load("commit", 2, 1_000), Load("read", 3), Load("local-read", 1)]
    program = peer.build()
    with peer(tmp_path) as running:
        words = [each.word(0.5) for each in loads]
        with driver.running(program, running, words) as line:
            for each in loads:
                told = line(0.5)
                assert told["errors"] == 0, each
                assert 0 < told["p50_ms"] <= told["p99_ms"], each
                assert told["ops_per_s"] == told["calls"] * max(1, each.batch) / 0.5, each
        before = ids(running)
        found = kill_leader(running, program, Load("failover", 5), everyone=True)
        assert 0 < found["first_ms"] <= found["all_ms"] <= 60_000
        assert found["figure"] == found["all_ms"]
        assert sum(not each.runs for each in running.servers) == 1, "one was killed"
        running.start_missing()
        after = ids(running)
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
    assert all(gone(pid) for pid in before + after)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_a_load_that_is_none_is_refused(name: str, tmp_path: Path) -> None:
    peer = PEERS[name]
    if peer.missing():
        pytest.skip(f"{name} is not installed: {', '.join(peer.missing())}")
    for word in ("mow:1:1", "put:0:1", "put:1", "commit:8:1", "failover:1:1:0"):
        ran = subprocess.run(
            [*peer.build(), "127.0.0.1:1", word],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ran.returncode != 0
        assert not ran.stdout
        assert word in ran.stderr
