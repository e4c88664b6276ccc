"""What was promised is there whatever the power failure has left of the writes that were not
synced; and a store that breaks one law is found out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash import images_worker, recorder
from tests.crash.images_broken import BROKEN

SEED = 1
IMAGES = 150
BROKEN_IMAGES = 60


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = recorder.build(tmp_path_factory.mktemp("shim"))
    if built is None:
        pytest.skip(recorder.NO_COMPILER)
    return built


def test_whatever_a_power_failure_leaves_keeps_every_promise(shim: Path, tmp_path: Path) -> None:
    record = images_worker.record_life(shim, tmp_path / "life", SEED)
    verdicts = list(images_worker.check_life(record, SEED, images=IMAGES))
    assert len(verdicts) == IMAGES
    assert [each for each in verdicts if each.wrong] == []


@pytest.mark.parametrize("broken", sorted(BROKEN))
def test_a_store_that_breaks_a_law_is_found_out(shim: Path, tmp_path: Path, broken: str) -> None:
    record = images_worker.record_life(shim, tmp_path / "life", SEED, broken=broken)
    verdicts = images_worker.check_life(record, SEED, images=BROKEN_IMAGES)
    assert any(each.wrong for each in verdicts), BROKEN[broken].why
