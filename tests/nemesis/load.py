"""The client processes of a run: started, one of them killed now and then, ended, and read."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from metaray import connect
from metaray.where import ADDRESS_VARIABLE
from tests.history import operation
from tests.history.operation import Operation, Recorder
from tests.nemesis.checks import FINAL
from tests.nemesis.world import World, wait_for

ROOT: Final = Path(__file__).parents[2]
END_SECONDS: Final = 90.0  #: until a process that was told to end has ended
AT_ONCE: Final = 200  #: of the final reads


class Load:
    """Some client processes over one tenant. `stop` before `history`."""

    def __init__(
        self, world: World, folder: Path, *, tenant: str, seed: int, processes: int = 2
    ) -> None:
        self.tenant = tenant
        self._cluster = world.cluster
        self._environment = world.environment
        self._folder = folder
        self._seed = seed
        self._names: list[str] = []
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for _ in range(processes):
            self.start()
        self.wait_until_ready()

    def start(self) -> str:
        """One more process; its name."""
        name = f"c{len(self._names)}"
        self._names.append(name)
        command = [sys.executable, "-m", "tests.nemesis", "client", name]
        command += ["--tenant", self.tenant, "--seed", str(self._seed)]
        command += ["--folder", str(self._folder)]
        with (self._folder / f"{name}.log").open("wb") as output:
            self._running[name] = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    **self._cluster.environment(),
                    ADDRESS_VARIABLE: self._cluster.address,
                    **self._environment,
                },
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return name

    def wait_until_ready(self) -> None:
        """All of them are at work."""

        def ready() -> bool:
            self.check()
            return all((self._folder / f"{name}.ready").exists() for name in self._running)

        wait_for(ready, "the clients are at work")

    def check(self) -> None:
        """None has ended by itself."""
        for name, process in self._running.items():
            said = (self._folder / f"{name}.log").read_text()[-2_000:]
            assert process.poll() is None, f"{name} ended with status {process.returncode}:\n{said}"

    def kill_one(self) -> subprocess.Popen[bytes]:
        """kill -9 of the oldest process."""
        victim = self._running.pop(next(iter(self._running)))
        victim.kill()
        victim.wait()
        return victim

    def stop(self) -> None:
        """Tell all to end, and wait for it."""
        for process in self._running.values():
            assert process.stdin is not None, "it was started with one"
            process.stdin.close()
        deadline = time.monotonic() + END_SECONDS
        for name, process in self._running.items():
            status = process.wait(max(0.1, deadline - time.monotonic()))
            said = (self._folder / f"{name}.log").read_text()[-2_000:]
            assert status == 0, f"{name} ended with status {status}:\n{said}"
        self._running.clear()

    def abandon(self) -> None:
        """Kill what still runs."""
        for process in self._running.values():
            process.kill()
            process.wait()

    def history(self) -> list[Operation]:
        """What all of them did, and what is there now: each key is read once more."""
        done = operation.read(*(self._folder / f"{name}.history" for name in self._names))
        with Recorder(self._folder / "end.history") as recorder:
            asyncio.run(self._read(sorted({each.key for each in done}), recorder))
        return [*done, *operation.read(self._folder / "end.history")]

    async def _read(self, keys: list[str], recorder: Recorder) -> None:
        from tests.nemesis import clients

        async def one(key: str) -> None:
            kind, read = clients.FINAL[key.partition(".")[0]]
            ticket = recorder.invoke(FINAL, kind, key)
            recorder.ok(ticket, await read(client, key, self.tenant))

        async with connect(self._cluster.address) as client:
            for first in range(0, len(keys), AT_ONCE):
                await asyncio.gather(*map(one, keys[first : first + AT_ONCE]))

    def watches(self) -> list[Path]:
        """What the watchers were told."""
        return [self._folder / f"{name}.watch" for name in self._names]

    def slowest(self) -> float:
        """The longest that any call of a process that ended by itself has taken, in seconds."""
        told = [path.read_text() for path in self._folder.glob("*.slowest")]
        return max(map(float, told), default=0.0)
