"""Bits that flip on the disk: every one is found out or harms nothing; none is silent.

A replica's directory at rest, one flipped bit, and an opening as at start. *Detected*: it refuses,
naming what is corrupt. *Ended*: LMDB, which trusts its pages, ended the process, which speaks for
nobody then. *Harmless*: identity, log and state are what they were. *Silent*: they are not, and
nobody said so. What seems harmless is written to, and read again: a page that is free no more would
be found out then, or not. Each flip comes from a number, so one that is silent can be looked at.

    log       data.mdb of the raft log: the meta pages, and everything else
    journal   the two files of its journal, with what is on its way there and what came later
    state     data.mdb of the state
    stream    a snapshot on its way: chunks as they are received
    identity  identity.json
    current   the pointer to the state in force

python -m tests.crash.flips <folder> <first> <end>
"""

from __future__ import annotations

import logging
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from state_machines.machine import Machine
from state_machines.raft.messages import HardState
from storage import identity
from storage.errors import StorageError
from storage.identity import Directory
from storage.shelf import CURRENT, MemoryShelf
from storage.snapshot import Chunk, write_stream
from storage.state import State
from storage.stores import JOURNAL_FILES
from tests.crash import images_plan as plans
from tests.crash import recorder
from tests.crash.images_worker import scratch
from tests.storage.faults import flip

ENTRIES, LATER = 60, 20
FLUSHED = 45
META_BYTES = 2 * 4096
CHUNK_BYTES = 2_000
SILENCE_SECONDS = 60
SEED = 5

WEIGHTS = {
    "log": 8,
    "journal-0": 4,
    "journal-1": 4,
    "state": 8,
    "stream": 4,
    "identity": 1,
    "current": 1,
}
META_SHARE = 0.4
"""How many of the flips of an environment are in its two meta pages, which are a small part of it
and have no checksum of LMDB's."""


@dataclass(frozen=True, slots=True)
class Flip:
    """What came of flip `number`."""

    number: int
    where: str
    came: str  #: detected, ended, hung, harmless or silent
    said: str = ""


def make(root: Path) -> None:
    """A directory at rest: a log with entries before and behind the state's point."""
    root.mkdir(parents=True)
    plan = _plan()
    with Directory.create(
        root, plans.CLUSTER, plans.GROUP, founding=plans.FOUNDING, replica=plans.REPLICA
    ) as directory:
        stores = plans.open_small(directory)
        directory.update(status="active")
        machine = Machine("metadata", plans.GROUP, stores.state)
        entries = tuple(plan.history.entries[:ENTRIES])
        for first in range(0, ENTRIES, 5):
            term = entries[first + 4].term
            stores.log.save(None, entries[first : first + 5], HardState(term, 2, first))
            if first == FLUSHED:
                stores.journaled.begin()  # nobody ends it
            if first < FLUSHED:
                plans.apply(machine, stores.state, plan.history, first + 5)
                stores.state.flush()
        stores.log.compact(plan.history.point(10))
        # The last thing that was saved is a vote: to forget it is to vote twice.
        stores.log.save(None, (), HardState(entries[-1].term + 1, 1, FLUSHED))
        stores.close()


def _plan() -> plans.Plan:
    plan = plans.Plan(SEED, 4)
    while len(plan.history.entries) < ENTRIES + LATER:
        plan.agree()
    return plan


def go_on(root: Path, plan: plans.Plan) -> Any:
    """What a replica does next, and all that opening the directory tells then."""
    history = plan.history
    found = identity.find(root, plans.CLUSTER, plans.GROUP)
    with Directory.open(found[0].path, plans.CLUSTER, plans.GROUP) as directory:
        stores = plans.open_small(directory)
        try:
            machine = Machine("metadata", plans.GROUP, stores.state)
            term = stores.loaded.hard_state.term
            for first in range(ENTRIES, ENTRIES + LATER, 5):
                entries = tuple(history.entries[first : first + 5])
                stores.log.save(None, entries, HardState(term, 1, first))
                plans.apply(machine, stores.state, history, first)
                stores.state.flush()
                stores.log.compact(history.point(first - 20))
        finally:
            stores.close()
    return truth(root)


def truth(root: Path) -> Any:
    """All that opening the directory tells."""
    found = identity.find(root, plans.CLUSTER, plans.GROUP)
    if len(found) != 1:
        return f"{len(found)} directories"
    with Directory.open(found[0].path, plans.CLUSTER, plans.GROUP) as directory:
        stores = plans.open_small(directory)
        try:
            who = replace(directory.identity, boot=0)
            return who, found[0].identity.boot, stores.loaded, plans.digest(stores.state)
        finally:
            stores.close()


def run(folder: Path, first: int, end: int) -> Iterator[Flip]:
    """Flips [first, end), in processes that may die of them."""
    at = first
    while at < end:
        with subprocess.Popen(
            [sys.executable, "-m", "tests.crash.flips", str(folder), str(at), str(end)],
            cwd=recorder.ROOT,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            assert child.stdout is not None
            where = ""
            for line in child.stdout:
                word, _, rest = line.strip().partition(" ")
                if word == "at":
                    where = rest
                else:
                    yield Flip(at, where, word, rest)
                    at, where = at + 1, ""
        if where:
            came = "hung" if child.returncode == -signal.SIGALRM else "ended"
            assert child.returncode < 0, f"flip {at} of {where}: exit {child.returncode}"
            yield Flip(at, where, came, f"signal {-child.returncode}")
            at += 1
        else:
            assert child.returncode == 0, f"before flip {at}: exit {child.returncode}"


class _Trials:
    """Flips one bit after the other, in this process."""

    def __init__(self, folder: Path, work: Path) -> None:
        self._pristine, self._copy = folder, work / "copy"
        home = identity.find(folder, None, plans.GROUP)[0].path.relative_to(folder)
        self._files = {
            "log": home / "log" / "data.mdb",
            **{name: home / "log" / name for name in JOURNAL_FILES},
            "state": home / "state" / "1" / "data.mdb",
            "identity": home / "identity.json",
            "current": home / "state" / CURRENT,
        }
        self._plan = _plan()
        self._truth = truth(self._fresh())
        # Opened once more than the trial's, which looked at it before.
        truth(self._fresh())
        self._later = go_on(self._copy, self._plan)
        self._chunks = _stream(self._fresh())
        self._received = _receive(self._chunks)

    def trial(self, number: int) -> Iterator[str]:
        rng = Random(f"flip {number}")
        (where,) = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))
        if where == "stream":
            yield from self._stream(rng)
            return
        root = self._fresh()
        file = root / self._files[where]
        content = file.read_bytes()
        part = len(content)
        if where in ("log", "state") and rng.random() < META_SHARE:
            part = META_BYTES
        bit = rng.randrange(8 * part)
        if part == META_BYTES:  # most of a meta page is empty
            bit = 8 * (rng.randrange(2) * 4096 + rng.randrange(160)) + rng.randrange(8)
        yield f"at {where} byte {bit // 8} bit {bit % 8}"
        file.write_bytes(flip(content, bit))
        try:
            found = truth(root)
            if found != self._truth:
                yield f"silent {_differs(found, self._truth)}"
                return
        except StorageError as error:
            yield f"detected {type(error).__name__}"
            return
        try:
            found = go_on(root, self._plan)
        except (StorageError, AssertionError) as error:
            yield f"detected later, {type(error).__name__}"
            return
        yield "harmless" if found == self._later else f"silent later {_differs(found, self._later)}"

    def _stream(self, rng: Random) -> Iterator[str]:
        number = rng.randrange(len(self._chunks))
        chunk = self._chunks[number]
        bit = rng.randrange(8 * len(chunk.data))
        yield f"at stream chunk {number} byte {bit // 8} bit {bit % 8}"
        data = flip(chunk.data, bit)
        # On its way the chunk keeps its checksum; at the sender, before it, it gets another.
        crc = chunk.crc if rng.random() < 0.5 else crc32(data)
        chunks = list(self._chunks)
        chunks[number] = replace(chunk, data=data, crc=crc)
        try:
            found = _receive(chunks)
        except StorageError as error:
            yield f"detected {type(error).__name__}"
            return
        yield "harmless" if found == self._received else "silent another state was received"

    def _fresh(self) -> Path:
        shutil.rmtree(self._copy, ignore_errors=True)
        shutil.copytree(self._pristine, self._copy)
        return self._copy


def _stream(root: Path) -> list[Chunk]:
    found = identity.find(root, plans.CLUSTER, plans.GROUP)
    with Directory.open(found[0].path, plans.CLUSTER, plans.GROUP) as directory:
        stores = plans.open_small(directory)
        try:
            with stores.state.view() as view:
                return list(write_stream(view, CHUNK_BYTES))
        finally:
            stores.close()


def _receive(chunks: list[Chunk]) -> bytes:
    state = State(MemoryShelf(), founding=plans.FOUNDING)
    staging = state.stage()
    for chunk in chunks:
        staging.add(chunk)
    state.install(staging, staging.finish())
    return plans.digest(state)


def _differs(found: Any, wanted: Any) -> str:
    names = ("identity", "boot", "log", "state")
    return " ".join(
        name for name, one, other in zip(names, found, wanted, strict=True) if one != other
    )


def main(folder: str, first: str, end: str) -> None:
    """Say of each flip where it is, and then what came of it."""
    logging.getLogger("metaray.storage").setLevel(logging.ERROR)
    with scratch() as work:
        trials = _Trials(Path(folder), Path(work))
        for number in range(int(first), int(end)):
            signal.alarm(SILENCE_SECONDS)  # a page that points to itself
            for line in trials.trial(number):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
        signal.alarm(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
