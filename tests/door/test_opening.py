"""Clients that are opened twice, by two at once, when they are closed, or in a fork. No Ray."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import metaray.client
from metaray.client import BlockingClient, Client
from state_machines.errors import NoQuorum, Unknown
from tests.actors.scripted import HANG, Call, Script
from tests.actors.virtual_time import in_virtual_time, settled
from tests.door.test_blocking import SECONDS, waiting


class Groups(Script):
    """`calls.LinkedGroups`, with nothing to close."""

    async def close(self) -> None:
        """There are no links."""


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """What every client of this process finds."""
    script = Groups()

    async def at_once(function: Callable[..., None], *_: object) -> None:
        """Virtual time has no threads."""

    monkeypatch.setattr(metaray.client, "LinkedGroups", lambda: script)
    monkeypatch.setattr(metaray.client, "join_cluster", lambda *_: None)
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    return script


@in_virtual_time
async def opened_twice_and_closed(script: Script, *, together: bool) -> None:
    script.faults = [lambda call: None if call.registers else HANG]
    client = Client()
    if together:
        await asyncio.gather(client.open(), client.open())
    else:
        await client.open()
    caller = client._caller
    writing = asyncio.ensure_future(client.put("k", b"v"))
    await settled()
    await client.open()
    assert client._caller is caller
    await client.aclose()
    with pytest.raises(Unknown, match="the client was closed"):
        await writing


@pytest.mark.parametrize("together", [False, True])
def test_whoever_waits_in_a_client_that_was_opened_twice_is_told_that_it_is_closed(
    script: Groups, together: bool
) -> None:
    opened_twice_and_closed(script, together=together)


@in_virtual_time
async def opened_by_two(script: Groups) -> None:
    begun = 0
    both = asyncio.Event()

    async def refresh() -> None:
        nonlocal begun
        begun += 1
        if begun == 2:
            both.set()
        await both.wait()

    script.refresh = refresh  # type: ignore[method-assign]
    client = Client()
    callers = []

    async def open_() -> None:
        await client.open()
        callers.append(client._caller)

    await asyncio.gather(open_(), open_())
    assert callers[0] is callers[1] is not None
    await client.aclose()


@in_virtual_time
async def closed_by_one_who_is_cancelled(script: Groups, turns: int) -> None:
    closed = 0

    async def close() -> None:
        nonlocal closed
        closed += 1

    script.close = close  # type: ignore[method-assign]
    script.faults = [lambda call: None if call.registers else HANG]
    client = Client()
    await client.open()
    both = [asyncio.ensure_future(each) for each in (client.put("k", b"v"), client.get("k"))]
    await settled()
    closing = asyncio.ensure_future(client.aclose())
    for _ in range(turns):
        await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait((closing,))
    await settled()
    told = await asyncio.gather(*both, return_exceptions=True)
    assert [type(each) for each in told] == [Unknown, NoQuorum]
    assert closed == 1


@pytest.mark.parametrize("turns", range(1, 6))
def test_a_close_that_is_cancelled_ends_everything_all_the_same(script: Groups, turns: int) -> None:
    closed_by_one_who_is_cancelled(script, turns)


def test_two_who_open_a_client_at_once_have_the_same(script: Groups) -> None:
    opened_by_two(script)


def test_a_blocking_client_that_is_open_may_be_opened_again(script: Groups) -> None:
    sent = threading.Event()

    def hangs(_: Call) -> Any:
        sent.set()
        return HANG

    client = BlockingClient()
    with client:
        client.put("a", b"1")
        client.open()
        client.put("a", b"2")
        script.faults = [hangs]
        writer, told = waiting(lambda: client.put("a", b"3"))
        assert sent.wait(SECONDS)
    writer.join(SECONDS)
    assert told[0].detail == "metadata-0: the client was closed"
    for act in (client.open, lambda: client.put("a", b"")):
        with pytest.raises(RuntimeError, match="the client is closed"):
            act()
    client.close()


def test_a_blocking_client_that_cannot_be_opened_again_stays_open(
    script: Groups, monkeypatch: pytest.MonkeyPatch
) -> None:
    def join(*_: object) -> None:
        raise NoQuorum("no cluster runs")

    with BlockingClient() as client:
        monkeypatch.setattr(metaray.client, "join_cluster", join)
        with pytest.raises(NoQuorum, match="no cluster runs"):
            client.open()
        client.put("a", b"1")
    never = BlockingClient()
    with pytest.raises(NoQuorum, match="no cluster runs"):
        never.open()
    with pytest.raises(RuntimeError, match="the client is closed"):
        never.open()


def said_in_a_fork(*acts: Callable[[], object]) -> list[str]:
    """What each of these raises in a forked process, empty for nothing."""
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        for act in acts:
            try:
                act()
                line = ""
            except BaseException as error:  # noqa: BLE001 - it is told
                line = repr(error)
            os.write(says, f"{line}\n".encode())
        os._exit(0)
    os.close(says)
    with os.fdopen(said) as lines:
        told = lines.read().splitlines()
    os.waitpid(child, 0)
    return told


@pytest.mark.timeout(SECONDS)
def test_a_forked_process_is_told_that_a_client_is_not_its_own(script: Groups) -> None:
    with BlockingClient() as client:
        client.put("a", b"1")
        told = said_in_a_fork(
            lambda: client.put("a", b""),
            client.open,
            client.close,
            lambda: asyncio.run(client._client.open()),
        )
        ending = told.pop(2)
        assert ending == "", "there is nothing of its own to end"
        assert len(told) == 3
        for each in told:
            assert each.startswith("RuntimeError('the client is of process ")
            assert "connect anew" in each
        client.put("a", b"2")


@pytest.mark.timeout(SECONDS)
def test_nor_does_it_speak_over_the_links_of_an_async_one(script: Groups) -> None:
    """The process that was forked would take the answers for its own."""

    async def calls() -> None:
        async with Client() as client:
            await client.put("a", b"1")

            async def read() -> None:
                async with asyncio.timeout(SECONDS):
                    await client.get("a")

            def in_a_loop(act: Callable[[], Coroutine[Any, Any, object]]) -> object:
                asyncio.events._set_running_loop(None)  # in the other process it runs on
                return asyncio.run(act())

            told = said_in_a_fork(lambda: in_a_loop(read), lambda: in_a_loop(client.aclose))
            assert len(told) == 2
            assert told[0].startswith("RuntimeError('the client is of process ")
            assert told[1] == ""
            await client.put("a", b"2")

    asyncio.run(calls())
