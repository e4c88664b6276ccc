"""The demo's MQTT brokers: real amqtt processes with our plugin, started, killed and ended."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from state_machines.errors import Stopped

READY_SECONDS = 60.0  #: until a broker listens: it joins Ray and loads its sessions first
END_SECONDS = 20.0  #: a clean stop, before it is killed


@dataclass(slots=True)
class Broker:
    """One broker process."""

    name: str
    port: int
    address: str
    will_delay_s: float
    log: Path
    process: subprocess.Popen[bytes] | None = None
    _log_file: IO[bytes] | None = field(default=None)

    def start(self) -> float:
        """Start it and wait until it listens. Returns the seconds it took."""
        begun = time.monotonic()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._log_file = self.log.open("ab")
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "metaray.integrations.amqtt",
                "--name",
                self.name,
                "--port",
                str(self.port),
                "--address",
                self.address,
                "--will-delay",
                str(self.will_delay_s),
            ],
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            stdin=subprocess.DEVNULL,
            env=dict(os.environ),
        )
        self._await_ready()
        return time.monotonic() - begun

    def _await_ready(self) -> None:
        assert self.process is not None, "started above"
        assert self.process.stdout is not None, "a pipe was asked for"
        deadline = time.monotonic() + READY_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                if not selector.select(left):
                    break
                line = self.process.stdout.readline()
                if b"ready" in line:
                    return
                if not line:
                    break
        self.kill()
        raise Stopped(f"broker {self.name} did not get ready; its log: {self.log}")

    def kill(self) -> None:
        """End it without warning."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self._reap(END_SECONDS)

    def stop(self) -> None:
        """Ask it to end, and make it if it does not."""
        if self.process is None or self.process.poll() is not None:
            self._close_files()
            return
        self.process.terminate()
        try:
            self._reap(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def _reap(self, seconds: float) -> None:
        assert self.process is not None, "there is a process"
        self.process.wait(seconds)
        self._close_files()

    def _close_files(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None


def free_port() -> int:
    """A port of the loopback that nobody has just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
