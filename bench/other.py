"""Another process that takes part in a benchmark, and says what it found in lines of JSON.

One client's event loop must not be what is measured, so whoever makes the load has a process of its
own, as brokers have. It runs `python -m bench.<module>`, is told to begin or to end by its input,
and ends with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, NoReturn

from metaray.client import Client

START_SECONDS: Final = 240.0  #: to join the cluster and be ready
END_SECONDS: Final = 30.0
LINE_BYTES_MAX: Final = 1 << 28


class OtherFailed(Exception):
    """The process has ended, or is silent; its own errors were printed."""


class Other:
    """The process, once it has said that it is ready."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._input = process.stdin
        self._output = process.stdout

    def begin(self) -> None:
        """Let it begin, or go on."""
        self._input.write(b"\n")

    def end(self) -> None:
        """Let it end."""
        self._input.close()

    async def said(self, seconds: float) -> dict[str, Any]:
        """Its next line. Raises OtherFailed when it ends before, or says nothing in time."""
        try:
            async with asyncio.timeout(seconds):
                while line := await self._output.readline():
                    if line.startswith(b"{"):
                        told: dict[str, Any] = json.loads(line)
                        return told
        except TimeoutError:
            raise OtherFailed(f"a process said nothing for {seconds:.0f} s") from None
        raise OtherFailed(f"a process ended with {await self._process.wait()}")

    async def over(self) -> None:
        """Wait for its end."""
        self.end()
        async with asyncio.timeout(END_SECONDS):
            await self._process.wait()


@asynccontextmanager
async def started(client: Client, module: str, *words: str) -> AsyncIterator[Other]:
    """Another process with a client of the same cluster, which has said that it is ready."""
    address, data = client.where
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", module, address or "", str(data) if data is not None else "", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=LINE_BYTES_MAX,
        start_new_session=True,  # and an autogroup of its own, as another broker's has
    )
    try:
        other = Other(process)
        await other.said(START_SECONDS)
        yield other
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def leave() -> NoReturn:
    """End such a process, which has said all: Ray may take long to let go of it."""
    sys.stdout.flush()
    os._exit(0)


def say(what: dict[str, Any]) -> None:
    """What such a process says."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()
