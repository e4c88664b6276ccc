"""The end of the service's own exporter, and when a start is one, as slow as Ray may be with it."""

from __future__ import annotations

from typing import Any

import pytest

from actors import calls, remote
from actors.config import RaftSettings
from metaray.history import running
from state_machines.errors import Stopped


class SlowRay:
    """Ray as a busy one answers: a killed actor keeps its name for some looks more."""

    def __init__(self, looks: int) -> None:
        self.left = looks
        self.told: list[str] = []
        self.killed = False

    def named(self) -> set[str]:
        if self.killed:
            self.left -= 1
        return {"metadata-0/0", remote.HISTORY} if self.left >= 0 else {"metadata-0/0"}

    def call(self, names: list[str], method: str, *, seconds: float) -> dict[str, Any]:
        assert seconds > 0
        assert not self.killed, "it is told to stop first, so that what it gathered is on the disk"
        self.told.append(method)
        said = {"path": "/shared/history"} if method == "status" else None
        return dict.fromkeys(names, said)

    def kill(self, name: str) -> None:
        assert name == remote.HISTORY
        self.killed = True


def slow(monkeypatch: pytest.MonkeyPatch, looks: int) -> SlowRay:
    ray = SlowRay(looks)
    monkeypatch.setattr(calls, "named_actors", ray.named)
    monkeypatch.setattr(calls, "each_call", ray.call)
    monkeypatch.setattr(remote, "kill", ray.kill)
    monkeypatch.setattr(running, "POLL_SECONDS", 0.0)
    return ray


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_when_it_has_stopped_its_name_is_free(monkeypatch: pytest.MonkeyPatch, looks: int) -> None:
    """It was not: `ray.kill` returns before the name is taken back, and a start that followed
    (`get_if_exists`) was handed the dying actor."""
    ray = slow(monkeypatch, looks)
    assert running.stop()
    assert ray.told == ["stop"]
    assert ray.killed
    assert remote.HISTORY not in ray.named()
    assert not running.stop()


@pytest.mark.parametrize(
    ("path", "told"),
    [("/shared/history/", ["status"]), ("/shared/other", ["status", "stop"])],
)
def test_a_start_ends_only_one_that_exports_elsewhere(
    path: str, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = slow(monkeypatch, 0)
    monkeypatch.setattr(remote, "create_history", lambda *_: None)
    running.start(path, RaftSettings())
    assert ray.told == told


def test_one_that_stays_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    slow(monkeypatch, 1_000_000_000)
    monkeypatch.setattr(running, "GONE_SECONDS", 0.0)
    with pytest.raises(Stopped, match="the exporter is still there"):
        running.stop()
