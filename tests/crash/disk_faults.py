"""Calls that fail: the k-th sync, write or change of a name gives EIO or ENOSPC, or half a write.

Two workloads. A *seat* alone in its group serves writes, as `disk_seat` does: whatever it has
answered was promised. And the *stores* live a plan (`images_plan.py`): also snapshots, truncation,
compaction, reopening. What has to hold, whichever call failed:

- the process ends with 70 (law 17), or refuses and says why while it is being made or opened; after
  a failed call of a commit nothing is promised any more;
- the directory opens again with all that was promised, as it was left, and also if the power fails
  then: what was not synced is lost, which is what a failed sync may mean.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from actors.replica import FAILED_COMMIT_EXIT
from state_machines.machine import Machine
from state_machines.metadata.kv import GetKv, KvEntry
from state_machines.raft.messages import EntryKind
from state_machines.wire import api_pb2 as api
from storage import identity
from storage.errors import StorageError
from storage.stores import open_stores
from tests.crash import disk_seat, images_worker, recorder
from tests.crash.images_volume import Image, Volume
from tests.crash.images_work import REFUSED
from tests.crash.images_worker import Life, Verdict
from tests.crash.recorder import Event
from tests.machine.alone import one, outcomes, wire

WRITES = 16
STEPS = 60
SEED = 3  #: of the plan: one with snapshots
GROUP = "metadata-0"
SEAT_FOLDER = "metadata-0-0"
COMMITS = frozenset({"pwrite", "writev", "meta", "fdatasync", "msync"})
"""What commits and the journal are made of: once one has failed, nothing is promised any more."""
END_IMAGES = 6

AS_BROKEN = """
import runpy, sys
from tests import rewriting
from tests.crash.images_broken import UNSTOPPED
rewriting.install(UNSTOPPED[sys.argv.pop(1)].rewrite)
runpy.run_module("tests.crash.disk_seat", run_name="__main__", alter_sys=True)
"""

WHATS = {
    **dict.fromkeys(("pwrite", "writev", "write", "meta"), ("EIO", "ENOSPC", "short")),
    **dict.fromkeys(("create", "mkdir", "rename", "ftruncate"), ("ENOSPC",)),
}


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of one fault. `reached`: the call came to pass. "" is good."""

    workload: str
    fault: str
    reached: bool
    ended: str  #: exit 70, refused, went on
    wrong: str


def calls(events: list[Event]) -> dict[str, int]:
    """How many calls of each kind a recorded run has made."""
    return dict(sorted(Counter(each.fault for each in events if each.fault).items()))


def faults(counts: dict[str, int]) -> list[str]:
    """Every call of such a run, each failing in one of its ways by turns; in an order that comes
    to every kind early."""
    found = []
    for kind, count in counts.items():
        whats = WHATS.get(kind, ("EIO",))
        found += [f"{kind}:{k}:{whats[k % len(whats)]}" for k in range(1, count + 1)]
    Random(len(found)).shuffle(found)
    return found


def seat_events(shim: Path, folder: Path) -> list[Event]:
    """The calls of a seat that nothing happens to."""
    trial = seat_trial(shim, folder, "")
    assert trial.ended == "went on", trial
    return list(recorder.events(folder / "record"))


def seat_trial(
    shim: Path, folder: Path, fault: str, *, again: bool = False, broken: str = ""
) -> Trial:
    """One run of a seat with a fault. `again`: another process serves from what is left.
    `broken`: by code that breaks law 17 (`images_broken.UNSTOPPED`)."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root, record = folder / "data" / SEAT_FOLDER, folder / "record"
    command = ["-m", "tests.crash.disk_seat"] if not broken else ["-c", AS_BROKEN, broken]
    command += [str(root.parent), str(WRITES), "0"]
    child = recorder.run(shim, command, root=root, record=record, fault=fault)
    events = list(recorder.events(record))
    ended = _ending(child.returncode)
    wrong = _ended_badly(fault, child.returncode, events, child.stderr)
    acked = _acked(events)
    if not wrong:
        wrong = check_seat(root, acked) or _after_power_failure(folder, events, acked)
    if not wrong and again:
        command = ["-m", "tests.crash.disk_seat", str(root.parent), str(WRITES), str(acked + 1)]
        child = recorder.run(shim, command, root=root)
        if child.returncode:
            wrong = f"the next process ended with {child.returncode}: {child.stderr[-500:]}"
        else:
            wrong = check_seat(root, acked + WRITES)
    reached = any(each.failed for each in events)
    return Trial("seat", fault, reached, ended, wrong)


def stores_events(shim: Path, folder: Path) -> list[Event]:
    """The calls of the plan's stores that nothing happens to."""
    record = images_worker.record_life(shim, folder, Life(SEED, STEPS))
    return list(recorder.events(record))


def stores_trial(shim: Path, folder: Path, fault: str) -> Trial:
    """One life of the plan's stores with a fault, and images of what is left."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    root, record = folder / "data", folder / "record"
    command = [*images_worker.WORK, "live", str(root), str(SEED), str(STEPS)]
    child = recorder.run(shim, command, root=root, record=record, fault=fault)
    events = list(recorder.events(record))
    wrong = _ended_badly(fault, child.returncode, events, child.stderr)
    if not wrong:
        verdicts = images_worker.check_life(record, Life(SEED, STEPS), END_IMAGES, at_end=True)
        bad = [each for each in verdicts if each.wrong]
        wrong = _say(bad[0]) if bad else ""
    reached = any(each.failed for each in events)
    return Trial("stores", fault, reached, _ending(child.returncode), wrong)


def check_seat(root: Path, acked: int) -> str:
    """ "" if the seat's directory opens and has every write up to `acked`, or what is wrong."""
    found = identity.find(root, None, GROUP)
    if acked < 0 and not [each for each in found if each.identity.status == "active"]:
        return ""
    if len(found) != 1:
        return f"{len(found)} directories were found"
    with identity.Directory.open(found[0].path, "test", GROUP) as directory:
        try:
            stores = open_stores(directory, map_bytes=disk_seat.SETTINGS.map_bytes)
        except StorageError as error:
            return f"it does not open: {error}"
        try:
            machine = Machine("metadata", GROUP, stores.state)
            for entry in stores.loaded.entries:
                # The only voter: what it has saved is committed.
                after = entry.index > stores.state.applied.index
                if after and entry.kind is EntryKind.NORMAL and entry.data:
                    machine.apply(entry)
            for number in range(max(0, acked + 1 - disk_seat.KEYS), acked + 1):
                value = _value(machine, disk_seat.key_of(number))
                later = (disk_seat.value_of(number), disk_seat.value_of(number + disk_seat.KEYS))
                if value not in later:
                    return f"write {number} was answered and is not there: {value!r:.80}"
        finally:
            stores.close()
    return ""


def _value(machine: Machine, key: str) -> bytes | None:
    query = GetKv(key=key)
    reply: api.Reply = machine.query([wire(query)], 0)
    found = one(outcomes([query], reply))
    assert found is None or isinstance(found, KvEntry)
    return None if found is None else found.value


def _acked(events: list[Event]) -> int:
    said = [event.data.decode().split() for event in events if event.kind == "M"]
    return max((int(number) for word, number in said if word == "acked"), default=-1)


def _ended_badly(fault: str, code: int, events: list[Event], stderr: str) -> str:
    if code not in (0, FAILED_COMMIT_EXIT, REFUSED):
        return f"it ended with {code}: {stderr[-800:]}"
    failed = [at for at, event in enumerate(events) if event.failed]
    if not failed or fault.partition(":")[0] not in COMMITS:
        return ""
    made = {event.inode: event.data for event in events[: failed[0]] if event.kind == "C"}
    name = made.get(events[failed[0]].inode, b"")
    if b"/data.mdb" not in name and b"/journal-" not in name:
        return ""  # a small file: no commit
    said = [event.data.decode() for event in events[failed[0] :] if event.kind == "M"]
    promised = [each for each in said if each.split()[0] in ("acked", "done")]
    # One write may have been made durable before, by a job whose result was on its way to the loop
    # while the next job failed. Whether it was, the power failure shows.
    on_its_way = promised[:1] if promised and promised[0].startswith("acked") else []
    if promised != on_its_way:
        return f"after the failed call it promised {promised}"
    begun = any(event.data.startswith((b"acked", b"done 1")) for event in events[: failed[0]])
    if begun and code != FAILED_COMMIT_EXIT:
        return f"a commit failed and it ended with {code}: {stderr[-800:]}"
    return ""


def _ending(code: int) -> str:
    return {0: "went on", FAILED_COMMIT_EXIT: "exit 70", REFUSED: "refused"}.get(code, str(code))


def _after_power_failure(folder: Path, events: list[Event], acked: int) -> str:
    for number, image in _images(events):
        root = folder / f"image {number}"
        image.write(root)
        wrong = check_seat(root, acked)
        if wrong:
            return f"and with the power gone, image {number}: {wrong}"
        shutil.rmtree(root)
    return ""


def _images(events: list[Event]) -> Iterator[tuple[int, Image]]:
    volume = Volume()
    for event in events:
        volume.feed(event)
    for number in range(END_IMAGES):
        yield number, volume.image(Random(number))


def _say(verdict: Verdict) -> str:
    return f"with the power gone, image {verdict.number}: {verdict.wrong}"
