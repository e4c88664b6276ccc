"""A broker of the reconnect storm: its clients all come back at the same moment (`storm.py`).

It registers, says that it is ready, and at a word opens every session with a call of its own, as
its clients' CONNECTs would; meanwhile it sends heartbeats. Then it says that all are back, and at
another word what came of it: when each session was back, with which epoch, and how many heartbeats
were late or failed. That is long, and who reads it could not measure anything meanwhile.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import uvloop

from bench.other import leave, say
from metaray.client import Client, connect
from state_machines.errors import MetarayError, Overloaded
from state_machines.metadata.node import HeartbeatNode, RegisterNode
from state_machines.mqtt.session import OpenSession

TIMEOUT_MS: Final = 120_000  #: of a call: a session that is not back by then is lost
HEARTBEAT_SECONDS: Final = 1.0
ACCEPTED: Final = 100  #: connections that a broker accepts in one turn of its loop


@dataclass(slots=True)
class Heartbeats:
    """A broker's heartbeats. Missed: refused, or not answered before the next one was due."""

    client: Client
    node_id: str
    sent: int = 0
    missed: int = 0
    longest_ms: float = 0.0
    _task: asyncio.Task[None] | None = field(default=None)

    async def begin(self) -> None:
        """Register, then beat until `end`."""
        node = await self.client.call(RegisterNode(node_id=self.node_id))
        self._task = asyncio.create_task(self._beat(node.epoch))

    async def _beat(self, epoch: int) -> None:
        due = time.monotonic()
        while True:
            self.sent += 1
            refused = False
            try:
                await self.client.call(HeartbeatNode(node_id=self.node_id, epoch=epoch))
            except MetarayError:
                refused = True
            finally:  # `end` may come before the answer, and one that waits for it is late, too
                took = time.monotonic() - due
                self.longest_ms = max(self.longest_ms, took * 1_000)
                self.missed += refused or took > HEARTBEAT_SECONDS
            due += HEARTBEAT_SECONDS * max(1, -(-took // HEARTBEAT_SECONDS))
            await asyncio.sleep(due - time.monotonic())

    async def end(self) -> None:
        """Beat no more. Raises what no heartbeat should have raised."""
        if self._task is not None:
            self._task.cancel()
            try:
                await self._task
            except asyncio.CancelledError:
                return


@dataclass(slots=True)
class Returned:
    """Sessions of one tenant that came back."""

    client: Client
    tenant: str
    broker: str
    expiry_s: int
    took: list[float] = field(default_factory=list)  #: seconds, of each
    epochs: dict[str, int] = field(default_factory=dict)
    refused: int = 0  #: by this process itself: too many waited
    last: float = 0.0

    async def open(self, client_id: str, since: float) -> None:
        """Open a session, however often it takes, as a client that is refused connects again."""
        operation = OpenSession(
            tenant=self.tenant,
            client_id=client_id,
            broker=self.broker,
            expiry_s=self.expiry_s,
        )
        while True:
            try:
                opened = await self.client.call(operation)
            except Overloaded as error:
                self.refused += 1
                await asyncio.sleep(error.retry_after_ms / 1_000)
                continue
            self.last = time.monotonic()
            self.took.append(self.last - since)
            self.epochs[client_id] = opened.epoch
            return


async def broker(
    address: str | None,
    data: Path | None,
    node_id: str,
    tenant: str,
    expiry_s: int,
    client_ids: list[str],
) -> None:
    """One broker: ready, storm, back, report."""
    async with connect(address, data=data, timeout_ms=TIMEOUT_MS) as client:
        beats = Heartbeats(client, node_id)
        await beats.begin()
        back = Returned(client, tenant, node_id, expiry_s)
        gc.collect()
        gc.freeze()
        gc.disable()  # by itself Python would look at all that wait, and heartbeats would wait too
        say({"ready": True})
        await asyncio.to_thread(sys.stdin.readline)
        begun = time.monotonic()
        opening: list[asyncio.Task[None]] = []
        for each in client_ids:
            opening.append(asyncio.create_task(back.open(each, begun)))
            if len(opening) % ACCEPTED == 0:
                await asyncio.sleep(0)
        told = []
        for task in opening:  # `gather` would hold the loop for seconds before the first is back
            try:
                await task
            except MetarayError as error:
                told.append(error)
        await beats.end()
        say({"back": True})
        await asyncio.to_thread(sys.stdin.readline)
        say(
            {
                "begun": begun,
                "last": back.last,
                "took": back.took,
                "epochs": back.epochs,
                "overloaded": client.overloaded,
                "errors": len(told),
                "error": repr(told[0]) if told else "",
                "heartbeats": beats.sent,
                "heartbeats_missed": beats.missed,
                "heartbeat_longest_ms": beats.longest_ms,
            }
        )


def main() -> None:
    """`python -m bench.storm_broker ADDRESS DATA NODE TENANT EXPIRY_S FIRST STEP END`."""
    address, data, node_id, tenant, *numbers = sys.argv[1:9]
    expiry_s, first, step, end = map(int, numbers)
    client_ids = [f"s-{each}" for each in range(first, end, step)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(
            broker(
                address or None,
                Path(data) if data else None,
                node_id,
                tenant,
                expiry_s,
                client_ids,
            )
        )
        leave()


if __name__ == "__main__":
    main()
