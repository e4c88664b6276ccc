"""Short slices: whose work is little need not wait for the end of a long turn.

Linux gives every task a slice, 0.7 to 2.8 ms by default, and of those that want a processor the one
whose slice would end first has it next (EEVDF; sched(7), sched_setattr(2)). A task with a tenth of
the usual slice has the same share of the time, in more and shorter turns, and has it sooner after
it woke up. That is what voters of metadata groups want beside a saturated neighbour: a write makes
half a dozen processes wait for a processor, each for a few microseconds of work. What it costs is
more changes between tasks while they compete.

Anybody may ask it of his own threads, since Linux 6.12; older kernels take no notice. The C library
has no name for the call before glibc 2.41, so it is made by its number, where that is known.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Final

SCHED_SETATTR: Final = {"x86_64": 314, "aarch64": 274}
"""The number of the call, by machine."""

TASKS: Final = Path("/proc/self/task")

log = logging.getLogger(__name__)


class _SchedAttr(ctypes.Structure):
    """`struct sched_attr`, as of its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),  # of tasks of the usual policy: the slice
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def shorten(slice_us: int) -> None:
    """Give the threads of this process, and those that they begin, slices of so many microseconds
    (100 to 100 000). 0: leave them as they are.

    Threads of another policy than the usual one are left alone. Where it cannot be done nothing is
    lost but speed.
    """
    if not slice_us:
        return
    number = SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        log.info("slices stay as they are: the number of sched_setattr is not known here")
        return
    call = ctypes.CDLL(None, use_errno=True).syscall
    done: set[int] = set()
    while new := {int(each) for each in os.listdir(TASKS)} - done:  # some begin meanwhile
        for thread in new:
            try:
                _set_slice(functools.partial(call, number), thread, slice_us)
            except ProcessLookupError:
                continue  # some end meanwhile
            except OSError as error:
                log.info("slices stay as they are: %s", error)
                return
        done |= new


def _set_slice(call: Callable[..., int], thread: int, slice_us: int) -> None:
    """Raises OSError."""
    if os.sched_getscheduler(thread) != os.SCHED_OTHER:
        return
    wanted = _SchedAttr(
        size=ctypes.sizeof(_SchedAttr),
        policy=os.SCHED_OTHER,
        nice=os.getpriority(os.PRIO_PROCESS, thread),
        runtime_ns=slice_us * 1_000,
    )
    if call(thread, ctypes.byref(wanted), 0):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
