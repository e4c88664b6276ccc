"""The broker process: ready, stopped in order, and the ends that are not."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from metaray.integrations.amqtt.__main__ import (
    NAME_TAKEN,
    START_FAILED,
    configuration,
    log_format,
    main,
    serve,
)
from state_machines.metadata.node import GetNode, RegisterNode
from tests.integrations.harness import InProcess, Service


def settings(service: Service, port: int) -> dict[str, Any]:
    def caller() -> InProcess:
        return InProcess(service, timeout_ms=2_000, rng=Random(1))

    return configuration(
        host="127.0.0.1",
        port=port,
        session_expiry_s=60,
        name="b1",
        caller=caller,
        timeout_s=2,
        heartbeat_s=0.05,
    )


async def until_ready(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    async with asyncio.timeout(10):
        while said != "ready\n":
            await asyncio.sleep(0.005)
            said += capsys.readouterr().out


async def until_registered(caller: InProcess) -> None:
    async with asyncio.timeout(10):
        # Rows have no events to wait for.
        while await caller.call(GetNode(node_id="b1")) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def test_it_says_ready_and_stops_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    async def run() -> tuple[int, bool]:
        service = Service()
        asker = InProcess(service, timeout_ms=2_000, rng=Random(2))
        serving = asyncio.create_task(serve(settings(service, 0)))
        await until_ready(capsys)
        assert (await asker.call(GetNode(node_id="b1"))).roles == ("mqtt",), "it keeps no segments"
        os.kill(os.getpid(), signal.SIGTERM)
        status = await serving
        left = await asker.call(GetNode(node_id="b1"))
        await asker.aclose()
        return status, left is None

    assert asyncio.run(run()) == (0, True)
    assert capsys.readouterr().out == ""


def test_it_ends_when_another_takes_its_name() -> None:
    async def run() -> int:
        service = Service()
        asker = InProcess(service, timeout_ms=2_000, rng=Random(2))
        serving = asyncio.create_task(serve(settings(service, 0)))
        await until_registered(asker)
        await asker.call(RegisterNode(node_id="b1"))
        status = await serving
        await asker.aclose()
        return status

    assert asyncio.run(run()) == NAME_TAKEN


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert asyncio.run(serve(settings(Service(), port))) == START_FAILED
    assert "address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["b1", "50% %s", "%(message)s", "Брокер ☃ {x} $y", "b" * 200])
def test_its_log_has_the_name_in_front_as_it_is(name: str) -> None:
    record = logging.LogRecord("amqtt", logging.WARNING, "", 0, "%d clients", (3,), None)
    said = logging.Formatter(log_format(name)).format(record)
    assert said == f"{name} WARNING amqtt: 3 clients"


def test_without_a_cluster_it_says_what_to_do(tmp_path: Path) -> None:
    environment = {key: val for key, val in os.environ.items() if key != "METARAY_ADDRESS"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, "-m", "metaray.integrations.amqtt", "--name", "b1", "--port", "0"]
    ended = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == START_FAILED
    assert "metaray up --local 3" in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--will-delay", "inf", "--will-delay"),
        ("--will-delay", "nan", "--will-delay"),
        ("--timeout", "0", "timeout_s: 0.0"),
        ("--timeout", "nan", "timeout_s: nan"),
        ("--session-expiry", "5000000000", "session_expiry_s: 5000000000"),
        ("--tenant", "", "tenant: empty"),
        ("--log-level", "chatty", "--log-level"),
    ],
)
def test_an_option_that_cannot_be_is_named_before_anything_is_joined(
    option: str, value: str, named: str
) -> None:
    app = typer.Typer()
    app.command()(main)
    ended = CliRunner().invoke(app, ["--name", "b1", "--port", "0", option, value])
    assert ended.exit_code == 2
    assert isinstance(ended.exception, SystemExit), "no traceback"
    assert named in ended.output
