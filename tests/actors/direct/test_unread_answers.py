"""Who does not read its answers: how much waits for it, and what it costs others."""

from __future__ import annotations

import asyncio

import pytest

from actors.direct import listener as listener_module
from actors.direct.frames import pack
from actors.direct.listener import Connection
from state_machines.wire import link_pb2 as link
from tests.actors.direct.wire import connected, greeted, hang_up, the_link
from tests.actors.wires import eventually, in_loop


def call(number: int, method: str, body: bytes) -> bytes:
    return pack(link.Frame(kind=link.CALL, call=number, method=method, body=body))


@in_loop
async def test_who_does_not_read_its_answers_is_not_heard_any_more() -> None:
    """Answers wait for it up to a limit; then its calls wait in its own buffers."""
    async with connected() as place:
        reader, writer = await greeted(place.wire.target)
        asked = call(1, "echo", bytes(256 << 10))
        for _ in range(400):
            if writer.transport.get_write_buffer_size() > 1 << 20:
                break
            writer.write(asked)
            await asyncio.sleep(0)
        await eventually(lambda: any(each._paused for each in place.listener.connections))
        heard = len(place.served.called)
        assert heard < 100
        assert await the_link(place).call("echo", b"x") == b"x", "others do not notice"
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            while len(place.served.called) < heard + 20:
                await reader.read(1 << 20)
        await hang_up(writer)


@in_loop
async def test_answers_that_nobody_reads_wait_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thousand calls that were begun may have answers of megabytes each."""
    limit = 8 << 20
    monkeypatch.setattr(listener_module, "UNREAD_BYTES_MAX", limit)
    waiting: list[int] = []
    abort = Connection.abort

    def measure(connection: Connection, why: str) -> None:
        assert "does not read" in why
        waiting.append(connection._transport.get_write_buffer_size())
        abort(connection, why)

    monkeypatch.setattr(Connection, "abort", measure)
    async with connected() as place:
        place.served.answer = bytes(1 << 20)
        _, writer = await greeted(place.wire.target)
        [_, slow] = place.listener.connections
        for number in range(60):
            writer.write(call(number, "held", b"x"))
        await eventually(lambda: len(place.served.called) == 60)
        place.served.gate.set()
        await eventually(lambda: slow not in place.listener.connections)
        [most] = waiting
        assert limit < most < limit + (2 << 20)
        assert len(await the_link(place).call("held", b"x")) == 1 << 20, "others do not notice"
        await hang_up(writer)


@in_loop
async def test_who_reads_all_the_time_has_answers_of_any_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listener_module, "UNREAD_BYTES_MAX", 2 << 20)
    async with connected() as place:
        place.served.gate.set()
        place.served.answer = bytes(1 << 20)
        for _ in range(30):
            assert len(await the_link(place).call("held", b"x")) == 1 << 20
        assert place.wire.connections == 1
