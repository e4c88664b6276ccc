"""How a command ends that somebody ends, by Ctrl-C or by SIGTERM: without a stack on the terminal.

While it is loaded there is nothing to undo, and once it has said what it had to say all is done:
then a signal ends the process at once. In between it is raised where the command is, so that a
backup that was begun is removed and nodes that were started are ended.

Ray puts handlers of its own in place when a process joins, which print the stack of its C++ code:
whoever joins does it within `joining`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Final, NoReturn

SIGNALLED: Final = 128  #: and the signal's number: the status of a command that a signal has ended
ENDING: Final = (signal.SIGINT, signal.SIGTERM)
OVER: Final = signal.SIGUSR1  #: what a thread that waits for them is told the end by


def at_once() -> None:
    """From now on a signal ends the process, without a word."""
    _handle(signal.SIG_DFL, signal.SIG_DFL)


def by_raising() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, and SIGTERM raises SystemExit."""
    _handle(signal.default_int_handler, _raise)


@contextlib.contextmanager
def joining() -> Iterator[None]:
    """Meanwhile a signal ends the process at once, whatever handlers others put in place, for there
    is nothing to undo yet; afterwards it is raised.

    No thread that begins meanwhile is ever given one, but for one of ours that waits for them.
    Those that were there before (some modules bring one) may be, and then Ray's handler runs.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard = {each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*heard, OVER})
    waiting = threading.Thread(target=_wait, args=(heard,), name="metaray-signals", daemon=True)
    waiting.start()
    try:
        yield
    finally:
        assert waiting.ident is not None, "it was started"
        signal.pthread_kill(waiting.ident, OVER)
        waiting.join()
        by_raising()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(heard: set[signal.Signals]) -> None:
    number = signal.sigwait({*heard, OVER})
    if number == OVER:
        return
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        sys.stdout.flush()
    os._exit(SIGNALLED + number)


def _handle(interrupt: signal._HANDLER, terminate: signal._HANDLER) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # which alone is given signals
    for number, handler in zip(ENDING, (interrupt, terminate), strict=True):
        if signal.getsignal(number) != signal.SIG_IGN:  # whoever began it wants it left alone
            signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(SIGNALLED + number)
