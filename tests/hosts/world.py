"""Hosts on one machine, each with a network, processes, shared memory and data of its own.

    with Hosts(data) as hosts:          # Linux namespaces, so by root alone
        hosts.start()                   # the start commands of cluster.yaml, then `metaray up`
        hosts["w1"].cut()               # its cable is pulled: what is sent is lost in silence
        hosts["w1"].mend()
        hosts["w1"].end()               # no process is left on it; `begin` is its next boot

A switch in a namespace of its own connects them. Nothing leaves the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import psutil
import yaml

from tests.proof.record import ROOT

HEAD: Final = "head"
WORKERS: Final = ("w1", "w2", "w3")
BROKER: Final = "b1"
TOOLS: Final = ("ip", "unshare", "nsenter", "hostname")
NETWORK: Final = "10.77.0"
FIRST: Final = 10  #: the head's number in it
PORT: Final = 6379  #: of the head, as `cluster.yaml` has it
COMMAND_SECONDS: Final = 120.0
WAIT_SECONDS: Final = 120.0
POLL_SECONDS: Final = 0.5
INIT: Final = """
mkdir -p /tmp/ray
mount --bind "$1" /tmp/ray
mount -t tmpfs none /dev/shm
hostname "$2"
while :; do sleep 1000 & wait; done
"""
"""What each host's first process does. It stays, and waits for processes that nobody waits for."""
ASKING: Final = 'eval "$(~/metaray/.venv/bin/python -m actors.ray_env --token ~/.ray/auth_token)"'
JOINING: Final = (
    f"{ASKING} && ~/metaray/.venv/bin/ray start --address=$RAY_HEAD_IP:{PORT} "
    '--node-ip-address=$(hostname -I | cut -d" " -f1) --metrics-export-port=8090 '
    "--disable-usage-stats"
)
"""As docs/operations.md has it for the host of a broker."""


class Failed(Exception):
    """A command of a host, or what had to come true there, in words."""


def lacking() -> str:
    """What this machine lacks for hosts; empty for nothing."""
    missing = [each for each in TOOLS if shutil.which(each) is None]
    if missing:
        return f"these commands: {', '.join(missing)}"
    return "root, who alone makes namespaces" if os.geteuid() != 0 else ""


def wait_for(condition: Callable[[], Any], what: str, seconds: float = WAIT_SECONDS) -> Any:
    """Its value, once it is true. Raises Failed, saying what did not come true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {seconds:.0f} s: {what}")
        time.sleep(POLL_SECONDS)
    return value


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise Failed(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Host:
    """One of them. Its home is `data`/NAME/home, which outlives its processes."""

    def __init__(self, name: str, number: int, mark: str, data: Path) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.home = data / name / "home"
        self._temporary = data / name / "tmp"
        self._space = f"{mark}-{name}"
        self._switch = f"{mark}-switch"
        self._first: psutil.Process | None = None

    def wire(self) -> None:
        """Connect it with the switch."""
        _ip("netns", "add", self._space)
        ends = ("link", "add", "eth0", "netns", self._space, "type", "veth")
        _ip(*ends, "peer", "name", self.name, "netns", self._switch)
        _ip("-n", self._switch, "link", "set", self.name, "master", "switch", "up")
        _ip("-n", self._space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        for each in ("eth0", "lo"):
            _ip("-n", self._space, "link", "set", each, "up")

    def begin(self) -> None:
        """Boot it: its data is there, and nothing runs."""
        shutil.rmtree(self._temporary, ignore_errors=True)  # Ray's: it is as after a boot
        for each in (self._temporary, self.home):
            each.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (self.home / "metaray").symlink_to(ROOT)
        spaces = ["--mount", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
        first = ["bash", "-c", INIT, "-", str(self._temporary), self.name]
        started = subprocess.Popen(
            ["ip", "netns", "exec", self._space, "unshare", *spaces, *first],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._unshare = started
        [self._first] = wait_for(psutil.Process(started.pid).children, f"{self.name} begins", 20)
        wait_for(lambda: self.run("hostname") == self.name, f"{self.name} has its name", 20)

    def end(self) -> None:
        """End all its processes at once."""
        if self._first is not None:
            self._first.kill()
            self._unshare.wait(20)
            self._first = None

    def unwire(self) -> None:
        """Take its network away."""
        with contextlib.suppress(Failed):
            _ip("netns", "del", self._space)

    def cut(self) -> None:
        """Pull its cable."""
        _ip("-n", self._switch, "link", "set", self.name, "down")

    def mend(self) -> None:
        """Plug it in again."""
        _ip("-n", self._switch, "link", "set", self.name, "up")

    def command(self, script: str) -> list[str]:
        """What runs this there, by its shell."""
        assert self._first is not None, f"{self.name} runs"
        path = os.environ["PATH"]
        known = [f"HOME={self.home}", f"PATH={path}", f"RAY_HEAD_IP={NETWORK}.{FIRST}", "USER=root"]
        enter = ["nsenter", "--target", str(self._first.pid), "--all", "env", "-i", *known]
        return [*enter, "bash", "-c", f"cd ~ && {script}"]

    def run(self, script: str, seconds: float = COMMAND_SECONDS) -> str:
        """What it prints. Raises Failed with its last words."""
        done = subprocess.run(
            self.command(script), capture_output=True, text=True, timeout=seconds, check=False
        )
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-1_000:]
            raise Failed(f"{self.name}: {script[:80]} ended with {done.returncode}: {said}")
        return done.stdout.strip()

    def asks(self, script: str, seconds: float = COMMAND_SECONDS) -> str:
        """The same, in the environment of who asks the cluster."""
        return self.run(f"{ASKING} && {script}", seconds)


class Hosts:
    """A head, three workers and the host of a broker."""

    def __init__(self, data: Path) -> None:
        self.mark = f"mr{os.urandom(2).hex()}"
        names = (HEAD, *WORKERS, BROKER)
        self._hosts = {
            name: Host(name, FIRST + number, self.mark, data) for number, name in enumerate(names)
        }
        said = yaml.safe_load((ROOT / "cluster.yaml").read_text())
        *_, self._head_start = said["head_start_ray_commands"]
        *_, self._worker_start = said["worker_start_ray_commands"]

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def __enter__(self) -> Self:
        try:
            _ip("netns", "add", f"{self.mark}-switch")
            _ip("-n", f"{self.mark}-switch", "link", "add", "switch", "type", "bridge")
            _ip("-n", f"{self.mark}-switch", "link", "set", "switch", "up")
            for each in self._hosts.values():
                each.wire()
                each.begin()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for each in self._hosts.values():
            each.end()
            each.unwire()
        with contextlib.suppress(Failed):
            _ip("netns", "del", f"{self.mark}-switch")

    def start(self) -> None:
        """Start Ray on all, and the service."""
        head = self[HEAD]
        head.run(
            "mkdir -p ~/.ray && umask 077 && ~/metaray/.venv/bin/ray get-auth-token --generate"
        )
        # Without the launcher there is no autoscaler.
        head.run(self._head_start.replace("--autoscaling-config=~/ray_bootstrap_config.yaml", ""))
        for name in (*WORKERS, BROKER):
            (self[name].home / ".ray").mkdir()
            shutil.copy(head.home / ".ray" / "auth_token", self[name].home / ".ray")
            self.join(name)
        head.asks(
            "~/metaray/.venv/bin/metaray up --address auto --config ~/metaray/cluster.yaml", 240
        )

    def join(self, name: str) -> None:
        """Start Ray on a host that is no head."""
        self[name].run(self._worker_start if name in WORKERS else JOINING)

    def status(self) -> dict[str, Any]:
        """What `metaray status` says on the head."""
        said = self[HEAD].asks("~/metaray/.venv/bin/metaray status --address auto --json")
        seen: dict[str, Any] = json.loads(said)
        return seen

    def whole(self) -> bool:
        """Whether there is no alarm."""
        return not self.status()["alarms"]

    def leads(self, group: str) -> str:
        """The host of the group's leader."""
        seen = self.status()
        said = seen["groups"][group]
        [node] = [each["node"] for each in said["replicas"] if each["seat"] == said["leader"]]
        [address] = [each["address"] for each in seen["nodes"] if each["node"] == node]
        [name] = [name for name, each in self._hosts.items() if each.address == address]
        return name


def writer(host: Host, seconds: float) -> subprocess.Popen[str]:
    """Begin to write there for so long (`tests.hosts.writer`). It says when it does."""
    python = f'"{sys.executable}"'
    script = (
        f'{ASKING} && cd "{ROOT}" && {python} -m tests.hosts.writer $RAY_HEAD_IP:{PORT} {seconds}'
    )
    made = subprocess.Popen(
        host.command(script), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert made.stdout is not None
    for line in made.stdout:
        if line == "writing\n":
            return made
    raise Failed(f"{host.name}: the writers did not begin")
