"""When the kernel gives a silent connection up: both sides have to notice that the other is gone.

A machine that is cut off, or has lost its power, says nothing: what was sent to it is sent again
for a quarter of an hour, and whoever only waits to be spoken to waits for ever.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

SILENCE_MS: Final = 2_000
"""Bytes, or a question whether it lives, unacknowledged for so long. The kernel acknowledges for a
process that hangs. What is silent is the machine or the way to it, and by then the others of its
groups are electing."""
IDLE_SECONDS: Final = 2  #: until the other side is asked whether it lives
ASK_SECONDS: Final = 1  #: between two such questions


def give_up_silent(transport: asyncio.BaseTransport) -> None:
    """Have the kernel end this connection when its other side is not heard any more."""
    connected = transport.get_extra_info("socket")
    if connected is None or connected.family not in (socket.AF_INET, socket.AF_INET6):
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ASK_SECONDS)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENCE_MS)
