"""Who waits in a blocking client while another thread closes it. Without Ray."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from metaray import exporting
from metaray.client import BlockingClient
from state_machines.errors import Unknown
from tests.actors.scripted import HANG, Script

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
