"""Processes that tests start to be killed, to die or to be in the way.

python tests/storage/child.py <what> <path> [argument]
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

from state_machines.raft.messages import HardState
from storage.disk import DiskEngine
from storage.errors import StorageError, StorageFailed
from storage.identity import Directory
from storage.log import RaftLog
from storage.shelf import DiskShelf
from storage.snapshot import write_stream
from storage.state import State
from storage.stores import open_log_engine, open_stores
from tests.storage.faults import entry, flip, point

ROOT = Path(__file__).resolve().parents[2]


def start(what: str, *arguments: str | Path) -> subprocess.Popen[str]:
    """Start this file in another process; its output is a pipe of lines."""
    planted = os.environ.get("PYTHONPATH", "").split(os.pathsep)  # a bug comes by this way
    return subprocess.Popen(
        [sys.executable, __file__, what, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*planted, str(ROOT)])},
    )


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def hold(path: Path) -> None:
    """Hold a directory until the other side closes our input."""
    with Directory.open(path, "c", "metadata-0"):
        say("held")
        sys.stdin.read()


def write(path: Path) -> None:
    """Save and apply for ever; say each index once it is durable."""
    directory = Directory.open(path, "c", "metadata-0")
    stores = open_stores(directory, flush_bytes=3000)
    index = stores.log.last_index
    say(str(index))
    while True:
        index += 1
        stores.log.save(None, [entry(index, 1)], HardState(1, 1, index - 1))
        say(str(index))  # a promise: it must be found after the kill
        stores.state.put("t", ("row", index % 50), b"%d" % index)
        stores.state.put("t", ("sum",), b"%d" % (_sum(stores.state) + index))
        stores.state.set_applied(point(index))
        if index % 100 == 0:
            stores.log.compact(stores.state.flushed)


def _sum(state: State) -> int:
    return int(state.get("t", ("sum",)) or 0)


def install(path: Path, step: str) -> None:
    """Install a snapshot and die at a step of the switch, or just before or after it."""

    def die_at(name: str) -> None:
        if name == step:
            os.kill(os.getpid(), signal.SIGKILL)

    source = State(DiskShelf(path / "source", path / "source-staging"))
    shelf = DiskShelf(path / "state", path / "staging", step=die_at)
    state, log = State(shelf), RaftLog(open_log_engine(path / "log"))
    log.load(state.flushed, installed=state.installed)
    staging = state.stage()
    with source.view() as view:
        for chunk in write_stream(view):
            staging.add(chunk)
    die_at("received")
    meta = staging.finish()
    die_at("verified")
    state.install(staging, meta)
    die_at("installed")
    log.save(meta, (), HardState(9, 0, meta.index))
    die_at("saved")
    say("done")


def view(path: Path) -> None:
    """Die with a view open."""
    engine = DiskEngine(path)
    with engine.view():
        os.kill(os.getpid(), signal.SIGKILL)


def bits(path: Path, seeds: str) -> None:
    """Flip one bit anywhere in a state's file and read everything; once for each seed. Says what
    was found: an error of ours, `same`, or `WRONG`."""
    content = (path / "state" / "1" / "data.mdb").read_bytes()
    with_state = path / "damaged"
    for seed in seeds.split():
        shutil.rmtree(with_state, ignore_errors=True)
        shutil.copytree(path / "state", with_state)
        bit = Random(int(seed)).randrange(len(content) * 8)
        (with_state / "1" / "data.mdb").write_bytes(flip(content, bit))
        say(seed)
        say(_read_all(with_state, path / "staging"))


def _read_all(directory: Path, staging: Path) -> str:
    try:
        state = State(DiskShelf(directory, staging))
    except StorageError as error:
        return type(error).__name__
    try:
        state.verify()
        found = [state.get("t", ("row", n)) for n in range(BITS_ROWS)]
        rows = [value for _, value in state.scan("t")]
    except StorageError as error:
        return type(error).__name__
    finally:
        state.close()
    expected = [bits_row(n) for n in range(BITS_ROWS)]
    return "same" if found == rows == expected else "WRONG"


BITS_ROWS = 400


def bits_row(n: int) -> bytes:
    """The rows of the state whose bits are flipped."""
    return b"%d" % n * (n % 50)


def fill(path: Path) -> None:
    """Write until the file may not grow any more, which fails a commit for real."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    engine = DiskEngine(path)
    acked = 0
    try:
        while True:
            engine.write([("t", b"%06d" % acked, bytes(3000))])
            acked += 1
    except StorageFailed as error:
        say(f"failed: {error}")
    try:
        engine.write([("t", b"x", b"")])
    except StorageFailed:
        say("latched")
    say(str(acked))


def main(what: str, path: str, *rest: str) -> None:
    match what:
        case "hold":
            hold(Path(path))
        case "write":
            write(Path(path))
        case "install":
            install(Path(path), *rest)
        case "view":
            view(Path(path))
        case "bits":
            bits(Path(path), *rest)
        case "fill":
            fill(Path(path))
        case _:
            raise SystemExit(f"unknown: {what}")


if __name__ == "__main__":
    main(*sys.argv[1:])
