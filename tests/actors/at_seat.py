"""What tests do with one seat of a group: see how it stands, hold its disk, call it by hand."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from actors.seat import Seat
from state_machines.clients import RegisterClient
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.wire import api_pb2 as api
from tests.actors.wires import eventually
from tests.machine.alone import wire


@asynccontextmanager
async def stalled(*seats: Seat) -> AsyncIterator[None]:
    """The storage threads of these seats do nothing, as over a disk that hangs."""
    gate = threading.Event()
    entered = [threading.Event() for _ in seats]

    def hang(mine: threading.Event) -> None:
        mine.set()
        gate.wait(30)

    waiting = []
    for seat, mine in zip(seats, entered, strict=True):
        assert seat.replica is not None
        waiting.append(
            asyncio.ensure_future(seat.replica.storage.run(functools.partial(hang, mine)))
        )
    await eventually(lambda: all(each.is_set() for each in entered))
    try:
        yield
    finally:
        gate.set()
        await asyncio.gather(*waiting)


def status(seat: Seat) -> dict[str, Any]:
    assert seat.replica is not None
    return seat.replica.status()


def has_applied(seat: Seat, index: int) -> bool:
    return bool(status(seat)["applied"] >= index)


async def time_passes(seat: Seat, ticks: int) -> None:
    """Wait until this replica's core was told of so many ticks."""
    assert seat.replica is not None
    core, seen, plain = seat.replica.core, 0, seat.replica.core.tick

    def counted() -> None:
        nonlocal seen
        seen += 1
        plain()

    core.tick = counted  # type: ignore[method-assign]
    try:
        await eventually(lambda: seen >= ticks)
    finally:
        core.tick = plain  # type: ignore[method-assign]


def put_request(key: str, client: int, sequence: int, timeout_ms: int = 20_000) -> bytes:
    commands = [wire(PutKv(key=key, value=b"v"))]
    proposal = api.Proposal(client=client, sequence=sequence, commands=commands)
    return _proposing(proposal, timeout_ms)


def get_request(key: str, **fields: Any) -> bytes:
    queries = [wire(GetKv(key=key))]
    return api.QueryRequest(group="metadata-0", queries=queries, **fields).SerializeToString()


async def register(seat: Seat) -> int:
    proposal = api.Proposal(sequence=9, commands=[wire(RegisterClient())])
    return api.Reply.FromString(await seat.propose(_proposing(proposal, 20_000))).client


def _proposing(proposal: api.Proposal, timeout_ms: int) -> bytes:
    return api.ProposeRequest(
        group="metadata-0", timeout_ms=timeout_ms, proposal=proposal
    ).SerializeToString()
