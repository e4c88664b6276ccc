"""How a command ends that somebody ends, by Ctrl-C or by SIGTERM: without a stack on the terminal.

While it is loaded there is nothing to undo, and once it has said what it had to say all is done:
then a signal ends the process at once. In between it is raised where the command is, so that a
backup that was begun is removed and nodes that were started are ended.

Ray puts handlers of its own in place when a process joins, which print the stack of its C++ code:
whoever joins calls `by_raising` afterwards.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Final, NoReturn

SIGNALLED: Final = 128  #: and the signal's number: the status of a command that a signal has ended


def at_once() -> None:
    """From now on a signal ends the process, without a word."""
    _handle(signal.SIG_DFL, signal.SIG_DFL)


def by_raising() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, and SIGTERM raises SystemExit."""
    _handle(signal.default_int_handler, _raise)


def _handle(interrupt: signal._HANDLER, terminate: signal._HANDLER) -> None:
    if threading.current_thread() is not threading.main_thread():
        return  # which alone is given signals
    for number, handler in ((signal.SIGINT, interrupt), (signal.SIGTERM, terminate)):
        if signal.getsignal(number) != signal.SIG_IGN:  # whoever began it wants it left alone
            signal.signal(number, handler)


def _raise(number: int, _: FrameType | None) -> NoReturn:
    raise SystemExit(SIGNALLED + number)
