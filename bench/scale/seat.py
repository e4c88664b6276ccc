"""One replica in a process of its own, told by lines on stdin what to do, saying on stdout what
came of it; both are JSON. `python -m bench.scale.seat <directory>`."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, Literal

import uvloop

from actors import remote
from actors.caller import error_of
from actors.clock import SystemClock
from actors.config import RaftSettings
from actors.seat import Seat
from actors.seat_spec import SeatSpec
from state_machines import op
from state_machines.errors import BY_CODE, Stopped
from state_machines.mqtt.session import CountSessions, SaveSessions, SessionItem
from state_machines.mqtt.topic import CreateTopics, DeleteTopics
from state_machines.raft.messages import Configuration
from state_machines.wire import api_pb2 as api
from storage.home import DiskHome

GROUP: Final = "mqtt-0"
BATCH: Final = 1_000  #: sessions or topics that are made, and sessions that are changed, at once
SESSIONS_IN_FLIGHT: Final = 8
TOPICS_IN_FLIGHT: Final = 64
TIMEOUT_MS: Final = 120_000
POLL_SECONDS: Final = 0.02
EMPTY: Final = b"\x80"
SPREAD: Final = 0x9E3779B1
"""Odd, so that it makes of each number below 2^32 another one: ids come in no order."""

Kind = Literal["sessions", "topics"]


def client_id(number: int) -> str:
    """The id of this session."""
    return f"device-{number * SPREAD % 2**32:08x}"


def topic(number: int) -> str:
    """The name of this topic."""
    return f"plant/{number * SPREAD % 2**32:08x}/state"


def save(numbers: Sequence[int]) -> SaveSessions:
    """Open these sessions, or take them over."""
    return SaveSessions(
        sessions=tuple(
            [SessionItem(client_id=client_id(n), broker="broker-1", expiry_s=3600) for n in numbers]
        )
    )


class NoPeers:
    """The transport's calls of a group of one."""

    def post(self, seat: str, envelope: bytes) -> bool:
        """See `transport.Calls`."""
        return False

    def linked(self, seat: str) -> bool:
        """See `transport.Calls`."""
        return False

    async def deliver(self, seat: str, envelope: bytes) -> bytes:
        """See `transport.Calls`."""
        raise ConnectionError(seat)

    async def chunk(self, seat: str, chunk: bytes) -> bool:
        """See `transport.Calls`."""
        raise ConnectionError(seat)

    async def attend(self, seat: str, replica: int) -> bool:
        """See `transport.Calls`."""
        raise ConnectionError(seat)

    def expect(self, seat: str) -> None:
        """See `transport.Calls`."""

    async def hello(self, seat: str, replica: int, at: str) -> dict[str, Any]:
        """See `transport.Calls`."""
        raise ConnectionError(seat)

    def died(self, error: BaseException) -> bool:
        """See `transport.Calls`."""
        return False


class Client:
    """One client of the group, with one proposal under way."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._id = 0
        self._sequence = 0

    async def register(self) -> None:
        """Get an id."""
        proposal = api.Proposal(sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY)])
        self._id = (await self.propose(self._request(proposal))).client

    def encoded(self, *commands: Any) -> bytes:
        """The client's next request."""
        self._sequence += 1
        return self._request(
            api.Proposal(
                client=self._id,
                sequence=self._sequence,
                acked=self._sequence - 1,
                commands=[api.Command(tag=op.tag(each), body=op.encode(each)) for each in commands],
            )
        )

    def _request(self, proposal: api.Proposal) -> bytes:
        request = api.ProposeRequest(group=GROUP, proposal=proposal, timeout_ms=TIMEOUT_MS)
        return request.SerializeToString()

    async def propose(self, request: bytes) -> api.Reply:
        """Propose it. Raises what a result or the whole was refused with."""
        reply = api.Reply.FromString(await self._seat.propose(request))
        if reply.code != api.OK:
            raise error_of(reply)
        for result in reply.results:
            if result.code != api.OK:
                raise BY_CODE[api.Code.Name(result.code)](result.detail)
        return reply


class Replica:
    """The seat, and what is done with it."""

    def __init__(self, root: Path) -> None:
        name = f"{GROUP}/0"
        self._seat = Seat(
            SeatSpec(GROUP, name, (name,), RaftSettings()),
            home=DiskHome(root),
            calls=NoPeers(),
            clock=SystemClock(),
            rng=SystemRandom(),
            leadership=lambda term, leads: None,
        )
        self._clients: list[Client] = []

    async def open(self) -> dict[str, Any]:
        """Resume what is in the directory, or found it; serving when this returns. A group of one
        has nobody to hear from first, so it stands for election at once."""
        begun = time.perf_counter()
        await self._seat.start()
        if self._seat.status_word == "vacant":
            replica = await self._seat.reserve("scale")
            await self._seat.found(Configuration(voters=(replica,)))
            await self._seat.activate()
        opened = time.perf_counter()
        self._seat.campaign()
        await self._until(lambda: self._status()["role"] == "leader")
        count = await self.count()
        served = time.perf_counter()
        return {"open_s": opened - begun, "serving_s": served - begun} | count

    async def count(self) -> dict[str, Any]:
        """How many sessions there are, by a linearizable read."""
        query = CountSessions()
        request = api.QueryRequest(
            group=GROUP,
            timeout_ms=TIMEOUT_MS,
            queries=[api.Command(tag=op.tag(query), body=op.encode(query))],
        )
        reply = api.Reply.FromString(await self._seat.query(request.SerializeToString()))
        if reply.code != api.OK:
            raise error_of(reply)
        return {"sessions": op.decode_reply(query, reply.results[0].body).sessions}

    async def load(self, kind: Kind, first: int, end: int) -> dict[str, Any]:
        """Make these rows."""
        begun = time.perf_counter()
        batches = iter(range(first, end, BATCH))

        async def work(client: Client) -> None:
            for at in batches:
                numbers = range(at, min(at + BATCH, end))
                made: Any = (
                    save(numbers)
                    if kind == "sessions"
                    else CreateTopics(names=tuple([topic(number) for number in numbers]))
                )
                await client.propose(client.encoded(made))

        await self._by_clients(SESSIONS_IN_FLIGHT, work)
        return {"seconds": time.perf_counter() - begun}

    async def change(self, kind: Kind, rows: int, count: int, seed: int) -> dict[str, Any]:
        """Change so many rows out of `rows`, picked anew each time; what one of them takes."""
        picked = Random(seed).choices(range(rows), k=count)  # noqa: S311 - the same in every run
        flight = SESSIONS_IN_FLIGHT if kind == "sessions" else TOPICS_IN_FLIGHT
        clients = await self._registered(flight)
        requests = _requests(kind, picked, itertools.cycle(clients))
        queues = [requests[place::flight] for place in range(flight)]
        begun, used = time.perf_counter(), time.process_time()

        async def work(client: Client, queue: list[bytes]) -> None:
            for request in queue:
                await client.propose(request)

        async with asyncio.TaskGroup() as tasks:
            for client, queue in zip(clients, queues, strict=True):
                tasks.create_task(work(client, queue))
        wall, cpu = time.perf_counter() - begun, time.process_time() - used
        return {"us": wall * 1e6 / count, "cpu_us": cpu * 1e6 / count}

    async def settle(self) -> dict[str, Any]:
        """Wait until all that was applied is durable, and all rows were looked at."""
        begun = time.perf_counter()
        await self._until(lambda: self._status()["dirty_bytes"] == 0 and self._status()["verified"])
        return {"seconds": time.perf_counter() - begun}

    async def aside(self, table: str) -> dict[str, Any]:
        """Cut a table and put the state aside, as for an export."""
        begun = time.perf_counter()
        cut = await self._seat.export_open((table,))
        opened = time.perf_counter()
        path = await self._seat.export_aside(cut["cut"])
        copied = time.perf_counter()
        return {"path": path, "open_s": opened - begun, "copy_s": copied - opened} | cut

    async def close(self) -> dict[str, Any]:
        """Stop cleanly."""
        await self._seat.close()
        return {}

    def _status(self) -> dict[str, Any]:
        status = self._seat.status()
        if status["status"] == "stopped":
            raise Stopped(str(status["fault"]))
        return status

    async def _registered(self, count: int) -> list[Client]:
        while len(self._clients) < count:
            client = Client(self._seat)
            await client.register()
            self._clients.append(client)
        return self._clients[:count]

    async def _by_clients(self, count: int, work: Callable[[Client], Awaitable[None]]) -> None:
        clients = await self._registered(count)
        await asyncio.gather(*(work(client) for client in clients))

    async def _until(self, look: Callable[[], bool]) -> None:
        while not look():  # noqa: ASYNC110 - what it looks at sets no event
            await asyncio.sleep(POLL_SECONDS)


def _requests(kind: Kind, picked: Sequence[int], clients: Iterator[Client]) -> list[bytes]:
    """Encoded beforehand, the n-th by the n-th client: what is measured is the replica."""
    if kind == "sessions":
        batches = [picked[at : at + BATCH] for at in range(0, len(picked), BATCH)]
        return [
            client.encoded(save(numbers)) for client, numbers in zip(clients, batches, strict=False)
        ]
    return [
        client.encoded(DeleteTopics(names=(topic(n),)), CreateTopics(names=(topic(n),)))
        for client, n in zip(clients, picked, strict=False)
    ]


async def serve(root: Path) -> None:
    """Do what each line says."""
    replica = Replica(root)
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        method = getattr(replica, asked.pop("do"))
        sys.stdout.write(json.dumps(await method(**asked)) + "\n")
        sys.stdout.flush()


def main() -> None:
    """The process."""
    assert remote, "what an actor's process imports is in memory here, too"
    logging.basicConfig(level=logging.WARNING)
    sys.stdout.write(json.dumps({"imported_s": time.process_time()}) + "\n")
    sys.stdout.flush()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
