"""What is set for a cluster is what its replicas go by: each setting, with another value."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.config import RaftSettings
from actors.watches import History
from state_machines.changes import Changes
from state_machines.metadata.kv import PutKv
from state_machines.wire import api_pb2 as api
from storage.home import DiskHome
from tests.actors.alone import Alone, code
from tests.actors.virtual_time import in_virtual_time, settled
from tests.actors.wires import Group, in_loop, running
from tests.machine.alone import wire

QUICK = RaftSettings(slow_write_ms=70, write_timeout_ms=400)


async def saved_late(replica: Alone, seconds: float) -> None:
    """A write whose save takes so long."""
    replica.disk.stuck = True
    write = replica.proposes()
    await asyncio.sleep(seconds)
    replica.disk.release()
    await settled()
    assert code(write) == api.OK


@in_virtual_time
async def test_a_write_is_slow_from_the_threshold_on() -> None:
    replica = await Alone.leading(settings=QUICK)
    await saved_late(replica, 0.06)
    assert replica.replica.writes.slow == 0
    await saved_late(replica, 0.08)
    assert replica.replica.writes.slow == 1


@pytest.mark.parametrize(
    ("asked_ms", "waits"), [(0, 0.4), (100, 0.1), (9_000, 0.4)], ids=["none", "less", "more"]
)
@in_virtual_time
async def test_a_call_has_its_own_deadline_or_that_of_writes(asked_ms: int, waits: float) -> None:
    replica = await Alone.leading(settings=QUICK)
    replica.disk.stuck = True
    write = replica.proposes(timeout_ms=asked_ms)
    await asyncio.sleep(waits - 0.01)
    assert not write.done()
    await asyncio.sleep(0.02)
    assert code(write) == api.UNKNOWN


class Batching:
    """A leader whose entries wait a tenth of a second for company, and have three calls at most."""

    def __init__(self, replica: Alone, client: int) -> None:
        self.replica, self._client, self._sequence = replica, client, 0

    @classmethod
    async def leading(cls) -> Batching:
        settings = RaftSettings(batch_linger_ms=100, batch_max=3)
        replica = await Alone.leading(settings=settings)
        registered = replica.proposes()
        await settled()
        return cls(replica, api.Reply.FromString(registered.result()).client)

    def put(self) -> asyncio.Task[bytes]:
        self._sequence += 1
        command = wire(PutKv(key="k", value=b""))
        return self.replica.proposes(command, client=self._client, sequence=self._sequence)

    @property
    def entries(self) -> int:
        return self.replica.replica.core.last_index


@in_virtual_time
async def test_an_entry_waits_for_company_as_long_as_it_is_to() -> None:
    leader = await Batching.leading()
    before, first = leader.entries, leader.put()
    await asyncio.sleep(0.09)
    second = leader.put()
    await settled()
    assert leader.entries == before
    await asyncio.sleep(0.02)
    assert [code(first), code(second)] == [api.OK, api.OK]
    assert leader.entries == before + 1


@in_virtual_time
async def test_an_entry_has_so_many_calls_at_most_and_then_waits_for_nobody() -> None:
    leader = await Batching.leading()
    before, calls = leader.entries, [leader.put() for _ in range(7)]
    await settled()
    assert leader.entries == before + 2
    assert [code(each) for each in calls[:6]] == [api.OK] * 6
    await asyncio.sleep(0.11)
    assert code(calls[6]) == api.OK
    assert leader.entries == before + 3


@in_loop
async def test_stores_are_opened_as_it_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[dict[str, Any]] = []
    stores = DiskHome.stores

    def noted(home: DiskHome, *args: Any, **more: Any) -> Any:
        given.append(more)
        return stores(home, *args, **more)

    monkeypatch.setattr(DiskHome, "stores", noted)
    sizes = {"flush_bytes": 1 << 20, "journal_bytes": 8 << 10, "map_bytes": 16 << 20}
    group = Group(tmp_path, replicas=1, settings=RaftSettings(**sizes, hot_bytes=3 << 20))
    async with running(group):
        assert given == [sizes]
        replica = group.wires.living["metadata-0/0"].replica
        assert replica is not None
        assert replica.stores.state.hot.limit_bytes == 3 << 20


@in_virtual_time
async def test_a_tick_is_as_long_as_it_is_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    replica = await Alone.leading(settings=RaftSettings(tick_ms=20))
    ticks: list[None] = []
    monkeypatch.setattr(replica.replica.core, "tick", lambda: ticks.append(None))
    replica.replica.start()
    await asyncio.sleep(1.01)
    assert 45 <= len(ticks) <= 50
    replica.replica.abandon()


def test_what_is_kept_for_watches_takes_the_bytes_that_it_may() -> None:
    history = History(0, RaftSettings(history_bytes=64 << 10))
    for revision in range(1, 101):
        history.add(revision, Changes.of([("metadata.kv", ("t", "k"), bytes(1 << 10))]))
    assert 48 << 10 < history.bytes <= 64 << 10
    assert history.floor > 0
