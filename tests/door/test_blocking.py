"""Who waits in a blocking client while it is closed, interrupted or let go. Without Ray."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from metaray import exporting
from metaray.client import BlockingClient
from state_machines.errors import Unknown
from tests.actors.scripted import HANG, Call, Script

SECONDS = 30.0  #: for what is over at once unless it waits for ever


def opened(script: Script) -> BlockingClient:
    client = BlockingClient()
    client._thread.start()

    async def open_() -> None:
        client._client._caller = Caller(script, rng=Random(1))

    client._wait(open_())
    return client


def waiting(work: Callable[[], Any]) -> tuple[threading.Thread, list[Unknown]]:
    """A thread that does this, and what it is told."""
    told: list[Unknown] = []

    def wait() -> None:
        try:
            work()
        except Unknown as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread, told


def test_whoever_waits_is_told_that_the_client_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exports, put, end = threading.Event(), threading.Event(), threading.Event()

    def export(out: Path) -> None:
        exports.set()
        end.wait(SECONDS)

    def hangs(call: Any) -> Any:
        if call.registers:
            return None
        put.set()
        return HANG

    monkeypatch.setattr(exporting, "export", export)
    client = opened(Script(faults=[hangs]))
    exporter, of_export = waiting(lambda: client.export(tmp_path))
    writer, of_put = waiting(lambda: client.put("a", b""))
    try:
        assert exports.wait(SECONDS)
        assert put.wait(SECONDS)
        client.close()
        for thread in (exporter, writer):
            thread.join(SECONDS)
            assert not thread.is_alive()
    finally:
        end.set()
    assert "the client was closed before this ended" in of_export[0].detail
    assert of_put[0].detail == "metadata-0: the client was closed"
    with pytest.raises(RuntimeError, match="the client is closed"):
        client.put("a", b"")


class Interrupted(Exception):
    """What a signal raises in the main thread."""


def test_a_write_whose_thread_was_interrupted_is_not_sent_later() -> None:
    begun, going_on = threading.Event(), asyncio.Event()

    class Slow(Script):
        async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
            if not begun.is_set():
                begun.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                await going_on.wait()
            return await Script._answer(self, call, honest)

    def interrupt(*_: object) -> None:
        raise Interrupted

    script = Slow()
    client = opened(script)
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with pytest.raises(Interrupted):
            client.put("a", b"1")
    finally:
        signal.signal(signal.SIGUSR1, before)
    client._loop.call_soon_threadsafe(going_on.set)
    client.put("b", b"2")
    client.close()
    assert [each.key for each in script.applied["metadata-0"]] == ["b"]


@pytest.mark.parametrize("handed", [True, False])
def test_nor_is_one_that_was_interrupted_as_it_was_handed_over(
    handed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    going_on = asyncio.Event()

    class Slow(Script):
        async def _answer(self, call: Call, honest: Callable[[], bytes]) -> bytes:
            await going_on.wait()
            return await Script._answer(self, call, honest)

    script = Slow()
    client = opened(script)
    begin = client._begin

    def interrupted(work: Coroutine[Any, Any, Any]) -> Future[Any]:
        if handed:
            begin(work)
        raise Interrupted

    with monkeypatch.context() as interrupting:
        interrupting.setattr(client, "_begin", interrupted)
        with pytest.raises(Interrupted):
            client.put("a", b"1")
    client._loop.call_soon_threadsafe(going_on.set)
    client.put("b", b"2")
    client.close()
    assert [each.key for each in script.applied["metadata-0"]] == ["b"]


def test_a_client_that_is_let_go_open_leaves_no_thread() -> None:
    client = opened(Script())
    client.put("a", b"1")
    thread, loop = client._thread, client._loop
    with pytest.warns(ResourceWarning, match="unclosed <metaray.client.BlockingClient"):
        del client
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert loop.is_closed()
