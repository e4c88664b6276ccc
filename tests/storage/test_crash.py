"""Real processes on a real disk: killed, out of space, and reading back flipped bits."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from random import Random

import pytest

from state_machines.raft.messages import HardState
from storage.disk import DiskEngine
from storage.errors import CorruptLog, CorruptRecord
from storage.identity import Directory
from storage.log import RaftLog
from storage.shelf import DiskShelf
from storage.state import State
from storage.stores import open_stores
from tests.storage import child
from tests.storage.faults import entry, flip, point

BIT_TRIALS = 60


@pytest.mark.parametrize("seed", range(3))
def test_what_was_promised_survives_kill_9(tmp_path: Path, seed: int) -> None:
    """Every index the writer said is in the log, and the state is a sum that counts each entry
    once: rows and applied index never part."""
    rng = Random(seed)
    path = tmp_path / "a disk"
    with Directory.create(path, "c", "metadata-0") as directory:
        home = directory.path
    said = 0
    for _ in range(3):
        process = child.start("write", home)
        assert process.stdout is not None
        resumed = int(process.stdout.readline())
        assert resumed >= said
        said = max(said, resumed)
        for _ in range(rng.randrange(1, 250)):
            said = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().split()  # what was in the pipe was said, too
        process.communicate(timeout=30)
        said = max([said, *map(int, rest)])
        with Directory.open(home, "c", "metadata-0") as directory:
            stores = open_stores(directory)
            loaded, applied = stores.loaded, stores.state.applied.index
            last = loaded.snapshot.index + len(loaded.entries)
            assert said <= last <= said + 1
            assert loaded.entries == tuple(
                entry(n) for n in range(loaded.snapshot.index + 1, last + 1)
            )
            assert loaded.snapshot.index <= applied <= last
            # The writer counts on from the flushed sum without replaying, so keep it in step.
            for n in range(applied + 1, last + 1):
                total = int(stores.state.get("t", ("sum",)) or 0) + n
                stores.state.put("t", ("sum",), b"%d" % total)
                stores.state.put("t", ("row", n % 50), b"%d" % n)
                stores.state.set_applied(point(n))
            assert int(stores.state.get("t", ("sum",)) or 0) == last * (last + 1) // 2
            for n in range(max(1, last - 49), last + 1):
                assert stores.state.get("t", ("row", n % 50)) == b"%d" % n
            stores.state.flush()
            stores.close()


def test_a_commit_that_fails_for_want_of_space_is_final_and_loses_nothing(tmp_path: Path) -> None:
    process = child.start("fill", tmp_path / "e")
    output, _ = process.communicate(timeout=60)
    failed, latched, acked = output.splitlines()
    assert "a transaction failed" in failed
    assert "has to exit" in failed
    assert latched == "latched"
    engine = DiskEngine(tmp_path / "e")  # the next process
    rows = list(engine.scan("t"))
    assert rows == [(b"%06d" % n, bytes(3000)) for n in range(int(acked))]
    engine.write([("t", b"more", b"1")])
    engine.close()


def test_readers_that_were_killed_leave_no_trace(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    engine.write([("t", b"a", b"1")])
    for _ in range(3):
        process = child.start("view", tmp_path / "e")
        assert process.wait(30) == -signal.SIGKILL
        process.communicate()
        assert str(process.pid) in engine._env.readers()
    engine.close()
    engine = DiskEngine(tmp_path / "e")
    assert {line.split()[0] for line in engine._env.readers().splitlines()[1:]} <= {
        str(os.getpid())
    }
    engine.close()


def damaged(path: Path, rng: Random, values: list[bytes]) -> Path:
    """A copy of an environment with one flipped bit inside one of the stored values."""
    copy = path.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    content = (copy / "data.mdb").read_bytes()
    value = rng.choice(values)
    assert value in content
    # Everywhere: a page that was split keeps stale copies in its unused part.
    changed = content.replace(value, flip(value, rng.randrange(len(value) * 8)))
    (copy / "data.mdb").write_bytes(changed)
    return copy


def test_flipped_bits_of_the_log_on_disk_are_never_read_back(tmp_path: Path) -> None:
    rng = Random(3)
    engine = DiskEngine(tmp_path / "e")
    log = RaftLog(engine)
    log.load()
    entries = [entry(n, data=rng.randbytes(rng.choice([30, 300, 6000]))) for n in range(1, 60)]
    log.save(None, entries, HardState(1, 1, 0))
    engine.close()
    for _ in range(60):
        copy = damaged(tmp_path / "e", rng, [each.data for each in entries])
        engine = DiskEngine(copy)
        with pytest.raises((CorruptRecord, CorruptLog)) as caught:
            RaftLog(engine).load()
        assert "entries" in str(caught.value)
        engine.close()


def test_flipped_bits_of_the_state_on_disk_are_never_served(tmp_path: Path) -> None:
    rng = Random(4)
    shelf = DiskShelf(tmp_path / "state", tmp_path / "staging")
    state = State(shelf)
    rows = {n: rng.randbytes(rng.choice([30, 300, 6000])) for n in range(60)}
    for n, value in rows.items():
        state.put("t", ("row", n), value)
    state.set_applied(point(1))
    state.flush()
    state.close()
    for _ in range(60):
        copy = damaged(tmp_path / "state" / "1", rng, list(rows.values()))
        (tmp_path / "damaged").mkdir(exist_ok=True)
        shutil.rmtree(tmp_path / "damaged")
        (tmp_path / "damaged").mkdir()
        shutil.copy(tmp_path / "state" / "CURRENT", tmp_path / "damaged" / "CURRENT")
        copy.rename(tmp_path / "damaged" / "1")
        state = State(DiskShelf(tmp_path / "damaged", tmp_path / "staging"))
        found: list[str] = []
        for n, value in rows.items():
            try:
                assert state.get("t", ("row", n)) == value
            except CorruptRecord as error:
                found.append(error.table)
        assert found == ["t"]
        with pytest.raises(CorruptRecord):
            state.verify()
        state.close()


def test_a_flipped_bit_anywhere_in_the_file_is_never_a_wrong_answer(tmp_path: Path) -> None:
    """Keys, pages and LMDB's own records included. LMDB trusts its pages, so some flips end the
    process; that is found out, too."""
    state = State(DiskShelf(tmp_path / "state", tmp_path / "staging"))
    for n in range(child.BITS_ROWS):
        state.put("t", ("row", n), child.bits_row(n))
    state.set_applied(point(1))
    state.flush()
    state.close()
    seeds = [str(seed) for seed in range(BIT_TRIALS)]
    outcomes: list[str] = []
    while seeds:
        process = child.start("bits", tmp_path, " ".join(seeds))
        lines = process.communicate(timeout=120)[0].split()
        outcomes += lines[1::2]
        done = len(lines[1::2])
        if process.returncode:
            assert process.returncode < 0, f"seed {seeds[done]} raised what is not ours"
            outcomes.append("killed")
            done += 1
        seeds = seeds[done:]
    assert len(outcomes) == BIT_TRIALS
    assert "WRONG" not in outcomes
    assert outcomes.count("CorruptRecord") > BIT_TRIALS // 10
