"""What a busy replica asks of the processors, and for how long."""

from __future__ import annotations

import logging
import os
import struct
from pathlib import Path

import pytest

from actors.cpu_latency import BUSY_SHARE, CpuLatency

BUSY = BUSY_SHARE + 0.01
QUIET = BUSY_SHARE - 0.01


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """In the place of the kernel's."""
    made = tmp_path / "cpu_dma_latency"
    made.touch()
    return made


def _held(file: Path) -> bool:
    mine = Path("/proc/self/fd")
    return file in [each.readlink() for each in mine.iterdir() if each.is_symlink()]


def test_it_asks_while_the_process_is_busy(file: Path) -> None:
    latency = CpuLatency(7, file)
    latency.look(100.0, 3.0)  # what was before it began counts as the rest does
    assert not _held(file)
    latency.look(101.0, 3.0 + QUIET)
    assert not _held(file)
    latency.look(102.0, 3.0 + QUIET + BUSY)
    assert _held(file)
    latency.look(104.0, 3.0 + QUIET + 3 * BUSY)  # a look that comes late is of a longer while
    assert _held(file)
    assert file.read_bytes() == struct.pack("=i", 7)
    latency.look(105.0, 3.0 + 2 * QUIET + 3 * BUSY)
    assert not _held(file)


def test_it_asks_again_when_it_is_busy_again(file: Path) -> None:
    latency = CpuLatency(0, file)
    for each in range(1, 4):
        latency.look(2.0 * each - 1, each)
        assert _held(file)
        latency.look(2.0 * each, each)
        assert not _held(file)


def test_below_0_it_never_asks(file: Path) -> None:
    CpuLatency(-1, file).look(1.0, 1.0)
    assert not _held(file)
    assert file.read_bytes() == b""


def test_who_may_not_ask_goes_on_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    latency = CpuLatency(0, tmp_path / "not there")
    with caplog.at_level(logging.INFO):
        latency.look(1.0, 1.0)
        latency.look(2.0, 2.0)
        latency.look(3.0, 2.0)
    assert [each.message.partition(":")[0] for each in caplog.records] == [
        "processors may sleep between calls, which makes them slower"
    ]


def test_a_kernel_that_refuses_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    full = Path("/dev/full")  # takes no byte
    latency = CpuLatency(0, full)
    before = len(os.listdir("/proc/self/fd"))
    with caplog.at_level(logging.INFO):
        latency.look(1.0, 1.0)
        latency.look(2.0, 2.0)
    assert len(caplog.records) == 1
    assert not _held(full)
    assert len(os.listdir("/proc/self/fd")) == before
