"""The programs that load a peer: built once, run on a row, read line by line.

A program is built into the user's cache, under a name that says which source it was made of. It is
given the servers' addresses and workloads, and prints one line of JSON for each as it is over.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.peers.servers import PeerFailed, Servers, end, environment, spawn, tail

SOURCES: Final = Path(__file__).parent / "load"
BUILD_SECONDS: Final = 900.0  #: etcd's client is large, and compiled with all it needs
SLACK_SECONDS: Final = 90.0  #: for a workload beyond its own time: to connect, prepare and end
READ_BYTES: Final = 65_536


def cache() -> Path:
    """Where built programs are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "metaray" / "peers"


def build(
    source: Path,
    command: Callable[[Path], Sequence[str]],
    settings: Mapping[str, str] | None = None,
) -> Path:
    """What `command` makes of the source, made once; the command is told where to put it."""
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    built = cache() / f"{source.stem}-{digest}"
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent, prefix="making-") as making:
        target = Path(making) / built.name
        try:
            ran = subprocess.run(
                command(target),
                env=environment(settings),
                cwd=making,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerFailed(f"{source.name} was not built within {BUILD_SECONDS:.0f} s") from error
        if ran.returncode != 0:
            raise PeerFailed(f"{source.name} cannot be built: {ran.stdout[-2_000:]}")
        try:
            target.rename(built)
        except OSError:
            if not built.exists():  # by somebody who was quicker
                raise
    return built


@contextmanager
def running(
    load: Sequence[str], servers: Servers, words: Sequence[str]
) -> Iterator[Callable[[float], dict[str, float]]]:
    """The program at work; each call waits for its next line, so many seconds and some more."""
    addresses = ",".join(server.address for server in servers.servers)
    log = servers.home / "load.log"
    process = spawn([*load, addresses, *words], log, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.fileno()
    unread = b""

    def line(seconds: float) -> dict[str, float]:
        nonlocal unread
        deadline = time.monotonic() + seconds + SLACK_SECONDS
        while b"\n" not in unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([output], [], [], left)[0]:
                raise PeerFailed(f"{servers.name} is still loaded after its time: {tail(log)}")
            more = os.read(output, READ_BYTES)
            if not more:
                raise PeerFailed(f"{servers.name} cannot be loaded: {tail(log)}")
            unread += more
        first, _, unread = unread.partition(b"\n")
        told: dict[str, float] = json.loads(first)
        return told

    try:
        yield line
    finally:
        end(process)
        process.stdout.close()
