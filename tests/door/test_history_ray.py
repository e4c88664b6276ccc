"""The service's own exporter on real Ray: it follows, is killed and goes on, and ends when told."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from actors import calls, remote
from actors.config import RaftSettings
from jobs import operations
from jobs.errors import BadHistory
from metaray.client import BlockingClient
from metaray.history import running
from tests.door.seats import wait_for

if TYPE_CHECKING:
    from metaray.local import LocalCluster

pytestmark = pytest.mark.ray

SECONDS = 120.0


def keys(directory: Path, tenant: str) -> list[str]:
    try:
        pages = list(operations.pages_of(directory, groups=["metadata-0"]))
    except BadHistory:
        return []
    return [
        row["subject"]
        for page in pages
        for row in page.to_pylist()
        if row["tenant"] == tenant and row["op"] == "metadata.kv.put"
    ]


def status() -> dict[str, Any] | None:
    said = calls.each_call([remote.HISTORY], "status", seconds=10.0)[remote.HISTORY]
    return said if isinstance(said, dict) else None


def test_the_services_exporter_is_killed_and_goes_on(
    service: LocalCluster, tenant: str, tmp_path: Path
) -> None:
    directory = tmp_path / "history"
    settings = replace(RaftSettings(), rotate_ms=200)
    with BlockingClient(address=service.address) as client:
        running.start(str(directory), settings)
        try:
            running.start(str(directory), settings)  # changes nothing
            for turn in range(2):
                for number in range(20):
                    client.put(f"k{turn * 20 + number:02}", b"v", tenant=tenant)
                wanted = [f"k{number:02}" for number in range(turn * 20 + 20)]
                wait_for(
                    lambda wanted=wanted: keys(directory, tenant) == wanted,  # type: ignore[misc]
                    f"turn {turn} is exported, once",
                    SECONDS,
                )
                said = wait_for(status, "it answers", SECONDS)
                assert {each["group"] for each in said["groups"]} >= {"metadata-0", "offset-0"}
                assert said["path"] == str(directory)
                if turn == 0:
                    os.kill(said["process"], signal.SIGKILL)
        finally:
            assert running.stop()
        assert remote.HISTORY not in calls.named_actors()
        client.put("last", b"v", tenant=tenant)
        lines = running.export(directory, settings, once=True, progress=lambda _: None)
    assert keys(directory, tenant) == [*(f"k{number:02}" for number in range(40)), "last"]
    told = running.told(directory, ask=True, own=True)
    assert {each["group"] for each in lines} == {each["group"] for each in told["groups"]}
    assert all(each["commit"] >= each["exported"] > 0 for each in told["groups"])
