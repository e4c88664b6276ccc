"""The disk of a node: whose directories are found there, and how their stores are opened."""

from __future__ import annotations

from pathlib import Path

import pytest

from state_machines.raft.messages import HardState
from storage import home
from storage.home import DiskHome
from storage.stores import Stores
from tests.storage.faults import entry, point

FLUSH, JOURNAL, MAP = 12_345, 23_552, 4 << 20


def opened(disk: DiskHome, path: Path) -> Stores:
    (found,) = disk.find("metadata-0")
    assert found.path == path
    held = disk.open(found)
    try:
        return disk.stores(held, flush_bytes=FLUSH, journal_bytes=JOURNAL, map_bytes=MAP)
    finally:
        held.close()


def test_a_directory_of_any_cluster_is_found_and_opened_as_is_asked(tmp_path: Path) -> None:
    disk = DiskHome(tmp_path)
    made = disk.create("a cluster", "metadata-0")
    assert (made.identity.cluster, made.identity.status) == ("a cluster", "founding")
    assert disk.find("metadata-0") == []  # while it is held
    made.close()
    stores = opened(disk, made.path)
    assert stores.state.flush_bytes == FLUSH
    assert stores.state.engine.stats().map_bytes == MAP
    number = 0
    while not stores.journaled.wants_checkpoint:
        stores.journaled.write([("t", b"k", bytes(900))])
        number += 1
    assert number == -(-JOURNAL // 1_024)  # two sectors each
    stores.close()


@pytest.mark.parametrize("rows", [1, 2])
def test_many_rows_are_looked_at_later(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(home, "VERIFY_ROWS", 2)
    disk = DiskHome(tmp_path)
    made = disk.create("a cluster", "metadata-0")
    made.close()
    stores = opened(disk, made.path)
    stores.log.save(None, [entry(1)], HardState(1, 0, 1))
    for number in range(rows):
        stores.state.put("t", (number,), b"1")
    stores.state.set_applied(point(1))
    stores.state.flush()
    stores.close()
    stores = opened(disk, made.path)
    assert stores.state.verified == (rows == 1)  # and the point
    stores.close()
