"""A call that fails ends the process before it can promise anything more, and nothing is lost."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.replica import FAILED_COMMIT_EXIT
from state_machines.metadata.kv import PutKv
from storage.disk import DiskEngine
from storage.errors import StorageFailed
from tests.actors.wires import QUICK, Group, running
from tests.crash import disk_faults, recorder
from tests.crash.images_broken import UNSTOPPED

SEAT = ("meta:20:EIO", "meta:21:short", "meta:18:ENOSPC", "fdatasync:10:EIO")
STORES = (
    *("fdatasync:20:EIO", "meta:19:short", "meta:30:short", "writev:12:EIO", "fsyncdir:25:EIO"),
    *("fsync:6:EIO", "rename:9:ENOSPC", "ftruncate:4:ENOSPC"),
)


class Ended(BaseException):
    """Instead of the end of this process."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = recorder.build(tmp_path_factory.mktemp("shim"))
    if built is None:
        pytest.skip(recorder.NO_COMPILER)
    return built


@pytest.mark.parametrize("fault", SEAT)
def test_a_seat_that_serves_ends_with_70_and_the_next_has_every_write_that_was_answered(
    shim: Path, tmp_path: Path, fault: str
) -> None:
    trial = disk_faults.seat_trial(shim, tmp_path / "seat", fault, again=fault == SEAT[0])
    assert trial == disk_faults.Trial("seat", fault, True, "exit 70", "")


@pytest.mark.parametrize("broken", sorted(UNSTOPPED))
def test_a_replica_that_outlives_a_failed_commit_is_found_out(
    shim: Path, tmp_path: Path, broken: str
) -> None:
    trial = disk_faults.seat_trial(shim, tmp_path / "seat", SEAT[0], broken=broken)
    assert trial.reached
    assert trial.wrong, UNSTOPPED[broken].why


@pytest.mark.parametrize("fault", STORES)
def test_whatever_call_fails_what_was_promised_is_there(
    shim: Path, tmp_path: Path, fault: str
) -> None:
    trial = disk_faults.stores_trial(shim, tmp_path / "stores", fault)
    assert trial.reached
    assert trial.wrong == ""


@pytest.mark.parametrize("what", ["close", "cut"])
def test_a_caller_does_not_outlive_a_commit_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The last flush of a clean stop, and the flush before a cut, are commits like any other."""

    def fail(*_: Any) -> None:
        raise StorageFailed("the disk", "it is gone")

    def end(status: int) -> None:
        raise Ended(status)

    async def main() -> None:
        settings = replace(QUICK, flush_interval_ms=60_000)  # nobody else flushes
        async with running(Group(tmp_path, replicas=1, settings=settings)) as (group, caller):
            await caller.call(PutKv(key="a", value=b"1"))
            (seat,) = group.wires.living.values()
            assert seat.replica is not None
            with monkeypatch.context() as patch:
                patch.setattr(DiskEngine, "write_slices", fail)
                patch.setattr(os, "_exit", end)
                with pytest.raises(Ended, match=str(FAILED_COMMIT_EXIT)):
                    await getattr(seat.replica, what)()
            await group.crash(seat.spec.seat)

    asyncio.run(main())
