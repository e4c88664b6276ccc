"""Threads with short slices, as the kernel tells them of a process that has asked for them."""

from __future__ import annotations

import pytest

from tests.kernel import run_apart, takes_slices

PROGRAM = """
import logging, os, threading
from actors import slices
from tests.kernel import slices_ns

logging.basicConfig(level=logging.INFO)
over = threading.Event()
threading.Thread(target=over.wait).start()
before = slices_ns()
{before}
slices.shorten({slice_us})
threading.Thread(target=over.wait).start()
print(len(before), slices_ns() == 3 * before[:1], slices_ns(), {more})
over.set()
"""


def _said(slice_us: int, *, before: str = "", more: str = "''") -> tuple[str, str]:
    return run_apart(PROGRAM.format(before=before, slice_us=slice_us, more=more))


pytestmark = pytest.mark.skipif(
    not takes_slices(), reason="this kernel takes no slices, or does not tell them"
)


def test_threads_that_are_and_those_that_come_have_them() -> None:
    assert _said(250) == ("2 False [250000, 250000, 250000]", "")


def test_threads_that_come_and_go_meanwhile_keep_no_other_from_them() -> None:
    """One has ended since it was listed, and one began after that."""
    before = """
real, calls = os.listdir, []
def listed(path):
    calls.append(path)
    found = [*real(path), "4194303"]
    if len(calls) == 1:
        threading.Thread(target=over.wait).start()
    return found
os.listdir = listed
"""
    said, told = _said(250, before=before)
    assert said == f"2 False {[250_000] * 4}"
    assert told == ""


def test_0_leaves_them_as_they_are() -> None:
    said, told = _said(0)
    assert said.startswith("2 True ")
    assert told == ""


def test_nice_values_and_other_policies_stay() -> None:
    before = "os.nice(3); os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"
    more = "os.nice(0), os.sched_getscheduler(0) == os.SCHED_BATCH"
    said, _ = _said(250, before=before, more=more)
    assert said.endswith(" 3 True")
    assert said.count("250000") == 1  # the other thread, whose policy is the usual one
    said, _ = _said(250, before="os.nice(3)", more="os.nice(0)")
    assert said == "2 False [250000, 250000, 250000] 3"


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("slices.SCHED_SETATTR.clear()", "the number of sched_setattr is not known here"),
        ("slices.SCHED_SETATTR[os.uname().machine] = 9999", "[Errno 38] Function not implemented"),
    ],
)
def test_where_it_cannot_be_done_that_is_told(before: str, why: str) -> None:
    said, told = _said(250, before=before)
    assert said.startswith("2 True ")
    assert f"slices stay as they are: {why}" in told
