"""What was promised is there whatever the power failure has left of the writes that were not
synced; and a store that breaks one law is found out."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.crash import images_worker, recorder
from tests.crash.images_broken import BROKEN
from tests.crash.images_volume import Volume
from tests.crash.images_worker import Life

SEED = 1
IMAGES = 100
KILLED_IMAGES = 30
BROKEN_IMAGES = 40
SOME_BROKEN = ("kept tail", "log before state", "names not synced", "no metasync")
"""The long run has all."""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = recorder.build(tmp_path_factory.mktemp("shim"))
    if built is None:
        pytest.skip(recorder.NO_COMPILER)
    return built


def test_whatever_a_power_failure_leaves_keeps_every_promise(shim: Path, tmp_path: Path) -> None:
    life = Life(SEED)
    record = images_worker.record_life(shim, tmp_path / "life", life)
    verdicts = list(images_worker.check_life(record, life, IMAGES))
    assert len(verdicts) == IMAGES
    assert [each for each in verdicts if each.wrong] == []


@pytest.mark.parametrize("fault", ["meta:6:kill", "rename:8:kill", "rename:1:kill"])
def test_who_comes_after_a_killed_process_promises_only_what_is_durable(
    shim: Path, tmp_path: Path, fault: str
) -> None:
    """What the killed one wrote can be read from the page cache, and be lost with the power."""
    life = Life(2, fault=fault)
    record = images_worker.record_life(shim, tmp_path / "life", life)
    assert any(event.data == b"resume" for event in recorder.events(record))
    verdicts = list(images_worker.check_life(record, life, KILLED_IMAGES))
    assert [each for each in verdicts if each.wrong] == []


def test_a_save_of_a_killed_process_is_durable_before_the_next_one_speaks_of_it(
    shim: Path, tmp_path: Path
) -> None:
    """It is whole in the page cache, and not on the disk."""
    record = images_worker.record_life(shim, tmp_path / "life", Life(2, fault="meta:10:kill"))
    events = list(recorder.events(record))
    resumed = next(at for at, each in enumerate(events) if each.data == b"resume")
    said = next(at for at, each in enumerate(events) if each.data.startswith(b"said"))
    saved = events[resumed - 1]
    name = next(each.data for each in events if (each.kind, each.inode) == ("C", saved.inode))
    assert (saved.kind, saved.durable, name[-9:]) == ("W", False, b"journal-1")
    assert any((each.kind, each.inode) == ("S", saved.inode) for each in events[resumed:said])


def test_a_pointer_is_durable_before_what_it_no_longer_points_to_is_removed(
    shim: Path, tmp_path: Path
) -> None:
    """The process was killed between the rename of CURRENT and its sync. Had the next one removed
    the old state right away, a power failure could have left neither."""
    record = images_worker.record_life(shim, tmp_path / "life", Life(1, fault="rename:44:kill"))
    events = list(recorder.events(record))
    resumed = next(at for at, each in enumerate(events) if each.data == b"resume")
    assert events[resumed - 1].data.endswith(b"state/CURRENT")
    state = next(each.inode for each in events if each.kind == "D" and each.data[-6:] == b"/state")
    after = events[resumed:]
    synced = next(at for at, each in enumerate(after) if (each.kind, each.inode) == ("S", state))
    removed = next(at for at, e in enumerate(after) if e.kind == "U" and b"/state/" in e.data)
    assert synced < removed


def test_a_pointer_leads_to_an_environment_whatever_is_lost_of_its_name(
    shim: Path, tmp_path: Path
) -> None:
    """The power fails right after CURRENT was renamed. Its new name may be there, and what was
    renamed before it not, unless that was synced."""
    record = images_worker.record_life(shim, tmp_path / "life", Life(1))
    volume, switched = Volume(), 0
    for event in recorder.events(record):
        volume.feed(event)
        if event.kind != "R" or not event.data.endswith(b"/state/CURRENT"):
            continue
        path = event.data.decode().split("\n")[1]
        for luck in range(40):
            image = volume.image(Random(luck))
            number = image.files.get(path, b"1").split()[0].decode()
            if number != "1":  # which is made after CURRENT
                switched += 1
                assert path.replace("CURRENT", f"{number}/data.mdb") in image.files
    assert switched


@pytest.mark.parametrize("broken", SOME_BROKEN)
def test_a_store_that_breaks_a_law_is_found_out(shim: Path, tmp_path: Path, broken: str) -> None:
    life = Life(SEED, broken=broken)
    record = images_worker.record_life(shim, tmp_path / "life", life)
    verdicts = images_worker.check_life(record, life, BROKEN_IMAGES)
    assert any(each.wrong for each in verdicts), BROKEN[broken].why
