"""Three servers of a peer: started, waited for, asked who leads, and ended.

They live as long as a `with` block. Each is a child of this process, so its id is its own until we
have waited for it, and whatever ends the block ends exactly these processes. Should this process be
killed outright, the system kills them (`setpriv --pdeathsig`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Literal, Self

from actors import java
from metaray.local.start import free_port
from state_machines.errors import MetarayError

HOST: Final = "127.0.0.1"
COUNT: Final = 3
WHOLE_SECONDS: Final = 60.0  #: for all servers to serve, after a start or after one was killed
ASK_SECONDS: Final = 1.0
END_SECONDS: Final = 15.0
VERSION_SECONDS: Final = 20.0
POLL_SECONDS: Final = 0.05
LAST_CHARACTERS: Final = 1_500  #: of a log, shown in an error
TIED: Final = "setpriv"

BATCH_MAX: Final = 10_000  #: operations; etcd takes 128 in a transaction by default
REQUEST_BYTES_MAX: Final = 16 << 20  #: etcd takes 1.5 MiB by default, ZooKeeper 1 MiB

Role = Literal["leader", "follower"]


class NotInstalled(MetarayError):
    """A program or library that a peer needs is not on this machine."""

    code = "NOT_INSTALLED"


class PeerFailed(MetarayError):
    """A peer, or the program that loads it, did not start or did not go on."""

    code = "PEER_FAILED"


def program(name: str) -> str:
    """The full path of a program."""
    found = shutil.which(name, path=java.others(os.environ.get("PATH", os.defpath)))
    if found is None:
        raise NotInstalled(f"{name} is not on PATH")
    return found


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """For a peer's processes: settings for Ray, Spark, Java or etcd in ours are not for them."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    if "PATH" in kept:  # nor is ours a Java for them: it would have a small share of the processor
        kept["PATH"] = java.others(kept["PATH"])
    return kept | dict(more or {})


def spawn(
    command: Sequence[str], log: Path, *, stdout: int | None = None
) -> subprocess.Popen[bytes]:
    """Start a process whose errors, and output unless `stdout` says else, go to a log."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [program(TIED), "--pdeathsig", "KILL", "--", *command],
            stdin=subprocess.DEVNULL,
            stdout=output if stdout is None else stdout,
            stderr=output,
            env=environment(),
            start_new_session=True,  # so Ctrl-C reaches us alone, and we end it
        )


def end(*processes: subprocess.Popen[bytes]) -> None:
    """Kill processes of ours and wait for them. What they promised is on their disks."""
    for each in processes:
        each.kill()
    for each in processes:
        each.wait(END_SECONDS)


def tail(log: Path) -> str:
    """The end of a log, if there is one."""
    return log.read_text(errors="replace")[-LAST_CHARACTERS:] if log.exists() else ""


def says(command: Sequence[str]) -> str:
    """What a program says of its version."""
    ran = subprocess.run(
        command,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=VERSION_SECONDS,
        check=False,
    )
    return ran.stdout.strip().partition("\n")[0]


@dataclass(slots=True)
class Server:
    """One of the three."""

    number: int  #: from 1
    home: Path
    ports: tuple[int, ...]  #: the one for clients comes first
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where clients find it."""
        return f"{HOST}:{self.ports[0]}"

    @property
    def log(self) -> Path:
        """What it says."""
        return self.home.with_suffix(".log")

    @property
    def runs(self) -> bool:
        """Whether its process does."""
        return self.process is not None and self.process.poll() is None


class Servers(ABC):
    """Three servers with empty directories beneath `folder`."""

    name: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]  #: Debian's, that bring all it needs
    programs: ClassVar[tuple[str, ...]]
    files: ClassVar[tuple[Path, ...]]
    ports: ClassVar[int]  #: that each server listens on

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._home: Path | None = None
        self.servers: list[Server] = []

    @classmethod
    def missing(cls) -> list[str]:
        """What it needs and this machine does not have."""
        programs = [name for name in (TIED, *cls.programs) if shutil.which(name) is None]
        return programs + [str(path) for path in cls.files if not path.exists()]

    @classmethod
    @abstractmethod
    def versions(cls) -> dict[str, str]:
        """Of itself and of what it runs on."""

    @classmethod
    @abstractmethod
    def build(cls) -> list[str]:
        """The command of its load program, built if it was not."""

    @abstractmethod
    def command(self, server: Server) -> list[str]:
        """How a server is started; its directory exists."""

    @abstractmethod
    def role(self, server: Server) -> Role | None:
        """What a server says it is; None while it does not serve."""

    def __enter__(self) -> Self:
        self._home = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=self._folder))
        try:
            taken: list[int] = []
            for number in range(1, COUNT + 1):
                server = Server(number, self._home / f"{number}", self._free(taken))
                server.home.mkdir()
                self.servers.append(server)
            self.start_missing()
        except BaseException:  # an interrupt, too, leaves nothing behind
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _free(self, taken: list[int]) -> tuple[int, ...]:
        mine = len(taken)
        for _ in range(self.ports):
            taken.append(free_port(*taken))
        return tuple(taken[mine:])

    def _end(self) -> None:
        end(*(each.process for each in self.servers if each.process is not None))
        self.servers = []
        if self._home is not None:
            shutil.rmtree(self._home)

    @property
    def home(self) -> Path:
        """Where everything of it lies."""
        assert self._home is not None, f"{self.name} was not started"
        return self._home

    def start_missing(self) -> None:
        """Start every server that does not run, with the data it has, and wait for all."""
        for server in self.servers:
            if not server.runs:
                server.process = spawn(self.command(server), server.log)
        deadline = time.monotonic() + WHOLE_SECONDS
        while (roles := [self.role(server) for server in self.servers]).count("leader") != 1 or (
            None in roles
        ):
            for server in self.servers:
                if not server.runs:
                    raise PeerFailed(f"{self.name} {server.number} ended: {tail(server.log)}")
            if time.monotonic() > deadline:
                logs = " ".join(tail(server.log) for server in self.servers)
                raise PeerFailed(
                    f"{self.name} was not whole within {WHOLE_SECONDS:.0f} s: {roles} {logs}"
                )
            time.sleep(POLL_SECONDS)

    def leader(self) -> Server:
        """Who leads; all servers run."""
        for server in self.servers:
            if self.role(server) == "leader":
                return server
        raise PeerFailed(f"{self.name} has lost its leader, and nobody killed it")
