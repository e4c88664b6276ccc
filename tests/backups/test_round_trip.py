"""What was written down comes back: every table, every kind, any number of groups."""

from __future__ import annotations

import dataclasses
import threading
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from jobs.cut import Manifest
from metaray import backups
from metaray.restore_index import Index
from metaray.restoring import BATCH_ROWS, WINDOW, Scope, restore
from state_machines import packing
from state_machines.batch import OK, Outcome
from state_machines.lease import ATTACHMENTS
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.metadata.kv import KV, PutKv
from state_machines.metadata.node import EPOCHS, NodeEpoch
from state_machines.metadata.restore import RemoveMetadata, RestoreMetadata
from state_machines.metadata.timestamp import COUNT_MAX, TakeTimestamps
from state_machines.mqtt.retained import RETAINED
from state_machines.restoring import LEFT_OUT, RESTORERS
from state_machines.tables import TABLES
from tests.backups import world
from tests.backups.settled import settle
from tests.backups.world import TAKEN_MS, Cluster
from tests.machine import derived
from tests.machine.operations import KINDS

SEEDS = range(2)


def now_ms() -> int:
    return TAKEN_MS


def test_every_table_says_whether_it_comes_back() -> None:
    kinds = {name for name, table in TABLES.items() if table.kind in KINDS}
    assert not kinds - set(RESTORERS) - set(LEFT_OUT)
    assert not set(RESTORERS) & set(LEFT_OUT)
    assert all(backups.why_left_out(name) for name in TABLES if name not in RESTORERS)


@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_truth_comes_back_into_an_empty_cluster(seed: int, groups: int, tmp_path: Path) -> None:
    was = world.fleet(seed)
    manifest = world.write(was, tmp_path / "cut")
    now = Cluster(groups)
    done = restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    assert [(each.table, each.refusals) for each in done.tables if each.refused] == []
    assert done.ok
    with Index() as index:
        leased = backups.Leased(tmp_path / "cut", manifest, index)
        for known in RESTORERS.values():
            wanted = Counter(
                known.comparable(row)
                for row, revision in backups.rows(tmp_path / "cut", manifest, known)
                if not 0 < known.ends_ms(row) <= TAKEN_MS and not leased.has(known, row, revision)
            )
            found = Counter(map(known.comparable, now.rows(known.table)))
            if known.local:
                wanted = Counter(dict.fromkeys(wanted, groups))
            assert found == wanted, known.table.name
            floors = {known.table.key_of(row): known.floor(row) for row in was.rows(known.table)}
            for row in now.rows(known.table):
                assert known.floor(row) >= floors[known.table.key_of(row)]
    for name, member in now.members.items():
        derived.check(name.rpartition("-")[0], member.store)


def test_several_groups_come_back_into_fewer(tmp_path: Path) -> None:
    was, now = Cluster(3), Cluster()
    for tenant in ("acme", "umbrella"):
        settle(was, tenant)
    world.write(was, tmp_path / "cut")
    assert restore(now, tmp_path / "cut", Scope(), now_ms=now_ms).ok
    for kind in KINDS:
        derived.check(kind, now.members[f"{kind}-0"].store)


def test_rows_that_lived_on_leases_take_no_memory(tmp_path: Path) -> None:
    count = 10_000
    rows = [(ATTACHMENTS.row(KV.name, b"k%d" % each, 1, each, each), 1) for each in range(count)]
    file = world.write_file(tmp_path, ATTACHMENTS.name, "metadata-0", rows)
    manifest = Manifest(cluster="c", taken_ms=1, cut={"metadata-0": 1}, files=[file], schema="")
    with Index() as index:
        tracemalloc.start()
        try:
            leased = backups.Leased(tmp_path, manifest, index)
            kept, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert kept < 20 * count
        assert not leased.has(RESTORERS[KV.name], KV.row("t", "k1", b"", 1), 1)


def test_groups_of_a_few_wide_rows_are_never_read_together(tmp_path: Path) -> None:
    """Ten thousand retained messages may be of a mebibyte each."""
    rows = [(RETAINED.row("t", f"t/{each}", b"x", 0, 1, 0), 1) for each in range(6)]
    file = world.write_file(tmp_path, RETAINED.name, "mqtt-0", rows)
    pq.write_table(world.arrow(RETAINED.row, rows), tmp_path / file.path, row_group_size=2)
    file = dataclasses.replace(file, **world.told(tmp_path / file.path))
    made = Manifest(cluster="c", taken_ms=1, cut={"mqtt-0": 1}, files=[file], schema="")
    made.write(tmp_path)
    read: list[int] = []
    backups.verify(tmp_path, progress=read.append)
    assert read == [2, 4, 6]


def test_doing_it_again_changes_nothing(tmp_path: Path) -> None:
    world.write(world.fleet(), tmp_path / "cut")
    now = Cluster()
    restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    now.asked.clear()
    again = restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    assert again.ok
    assert {each.table for each in now.asked} <= {"mqtt.outbox_counter"}
    assert sum(each.done for each in again.tables) == 0


def test_more_goes_than_one_command_may_take(tmp_path: Path) -> None:
    was, now = Cluster(), Cluster()
    was.call(PutKv(key="kept", value=b""))
    world.write(was, tmp_path / "cut")
    for number in range(10):
        now.call(PutKv(key=f"k{number}", value=bytes(VALUE_BYTES_MAX)))
    now.asked.clear()
    report = restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    assert report.ok
    assert [each.key for each in now.rows(KV)] == ["kept"]
    assert [len(each.keys) for each in now.asked if isinstance(each, RemoveMetadata)] == [10, 6, 2]


class Forgetful(Cluster):
    """Its groups say that they have restored the epochs of nodes, and have not."""

    def call(self, operation: Any, /, *, group: str = "") -> Any:
        if isinstance(operation, RestoreMetadata) and operation.table == EPOCHS.name:
            return (Outcome(OK, "", 1),) * len(operation.rows)
        return super().call(operation, group=group)


def test_a_number_that_is_still_too_low_is_told(tmp_path: Path) -> None:
    """All else is equal, so the checksums are."""
    was, now = Cluster(), Forgetful()
    for cluster, epoch in ((was, 7), (now, 3)):
        row = packing.pack(NodeEpoch("n", epoch))
        cluster.members["metadata-0"].run(RestoreMetadata(table=EPOCHS.name, rows=(row,)))
    world.write(was, tmp_path / "cut")
    done = restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    (told,) = [each for each in done.tables if each.table == EPOCHS.name]
    assert (told.backup, told.same) == (told.live, False)
    assert not done.ok


def test_timestamps_go_on_above_those_of_the_backup(tmp_path: Path) -> None:
    """Also where the clock is not later, and never below those that the cluster has given."""
    was, now = Cluster(), Cluster()
    first = was.call(TakeTimestamps(count=COUNT_MAX))
    world.write(was, tmp_path / "cut")
    assert now.call(TakeTimestamps()) == first
    assert restore(now, tmp_path / "cut", Scope(), now_ms=now_ms).ok
    assert now.call(TakeTimestamps(count=9)) == first + COUNT_MAX
    assert restore(now, tmp_path / "cut", Scope(), now_ms=now_ms).ok
    assert now.call(TakeTimestamps()) == first + COUNT_MAX + 9


def test_a_settled_tenant_has_every_table_and_all_of_it_comes_back(tmp_path: Path) -> None:
    was = Cluster()
    settle(was, "acme")
    empty = sorted(name for name, known in RESTORERS.items() if not was.rows(known.table))
    assert empty == ["metadata.duty_pause", "mqtt.outbox_counter"]
    world.write(was, tmp_path / "cut")
    now = Cluster()
    done = restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    assert done.ok
    for kind in KINDS:
        derived.check(kind, was.members[f"{kind}-0"].store)
        derived.check(kind, now.members[f"{kind}-0"].store)


class Watched(Cluster):
    """Sees which commands are under way at once. The first waits for another one to come."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way: list[str] = []
        self.together: set[tuple[str, ...]] = set()
        self.refusal = ""
        self._met = threading.Event()

    def call(self, operation: Any, /, *, group: str = "") -> Any:
        if not isinstance(operation, RestoreMetadata):
            return super().call(operation, group=group)
        self.under_way.append(operation.table)
        self.together.add(tuple(self.under_way))
        try:
            if len(self.under_way) > 1:
                self._met.set()
            elif operation.table == KV.name:
                assert self._met.wait(30), "nothing comes beside the first command"
            if self.refusal == operation.table:
                self.refusal = ""
                raise ConnectionError("the client is gone")
            return super().call(operation, group=group)
        finally:
            self.under_way.remove(operation.table)


def _many_pairs(directory: Path) -> None:
    was = Cluster()
    for number in range(BATCH_ROWS * (WINDOW + 2)):
        was.call(PutKv(key=f"k{number}", value=b"v"))
    was.call(RestoreMetadata(table=EPOCHS.name, rows=(packing.pack(NodeEpoch("n", 7)),)))
    world.write(was, directory)


def test_commands_of_one_table_are_under_way_together(tmp_path: Path) -> None:
    _many_pairs(tmp_path / "cut")
    now = Watched()
    assert restore(now, tmp_path / "cut", Scope(), now_ms=now_ms).ok
    assert {len(set(tables)) for tables in now.together} == {1}, "each table after the other"
    assert max(map(len, now.together)) <= WINDOW


def test_none_is_under_way_when_a_restore_has_failed(tmp_path: Path) -> None:
    _many_pairs(tmp_path / "cut")
    now = Watched()
    now.refusal = KV.name
    with pytest.raises(ConnectionError):
        restore(now, tmp_path / "cut", Scope(), now_ms=now_ms)
    assert now.under_way == []
    assert restore(now, tmp_path / "cut", Scope(), now_ms=now_ms).ok
