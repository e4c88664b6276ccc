"""The demo when it does not go well. No cluster is started."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import pytest
from rich.console import Console

from metaray import local
from metaray.client import Client
from metaray.demo import run as demo
from metaray.demo.offsets import Consumers
from metaray.local import DataInUse, LocalCluster, LocalNode
from metaray.local.processes import Started
from metaray.local.state import write_state
from state_machines.errors import NoQuorum
from state_machines.offset.offset import CommitReply, OffsetCommit


def run_that_fails(tmp_path: Path) -> None:
    """A run that raises, and says so wherever it says how it went."""
    shown, file = StringIO(), tmp_path / "summary.json"
    console = Console(file=shown, width=100)
    try:
        demo.run(tmp_path, tmp_path / "out", keep=False, console=console, json_file=file)
    finally:
        assert not json.loads(file.read_text())["ok"]
        assert "1 failed" in shown.getvalue()


def test_a_run_that_is_interrupted_is_none_that_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "_story", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_that_fails(tmp_path)


def test_a_cluster_that_runs_already_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "600"]) as head:
        process = Started.now(head.pid)
        node = LocalNode(name="node-0", data=tmp_path / "n", log=tmp_path / "l", process=process)
        write_state(
            LocalCluster(
                data=tmp_path,
                mark="metaray-0000000c",
                temporary=tmp_path / "metaray-0000000c",
                token_path=tmp_path / "token",
                address="127.0.0.1:1",
                nodes=(node,) * demo.NODES,
            )
        )
        try:
            with pytest.raises(DataInUse, match=r"already runs on \S+ at 127\.0\.0\.1:1"):
                run_that_fails(tmp_path)
            assert local.find(tmp_path) is not None
        finally:
            head.kill()


class Refusing(Client):
    """No commit of this client finds a leader."""

    async def delete_group(self, group: str, *, tenant: str = "default") -> int:
        return 0

    async def commit_offsets(
        self, commits: Sequence[OffsetCommit], *, tenant: str = "default"
    ) -> CommitReply:
        raise NoQuorum("no leader")


def test_who_waits_for_commits_is_told_why_there_are_none() -> None:
    async def commit() -> None:
        consumers = Consumers(Random(1))
        committing = asyncio.create_task(consumers.run(Refusing(), 10, asyncio.Event()))
        async with asyncio.timeout(10):
            await consumers.reached(1, committing)

    with pytest.raises(NoQuorum, match="no leader"):
        asyncio.run(commit())
