"""Whom the exporter asks: replicas that answer, and have what it wants. In virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from metaray.history import running
from metaray.history.source import (
    MISS_SECONDS,
    PAGER_BEHIND_MAX,
    STATUS_SECONDS,
    WAIT_MS,
    Page,
    Source,
)
from state_machines.errors import NoQuorum
from tests.actors.virtual_time import in_virtual_time

GROUP = "o-0"


@dataclass
class Replica:
    """What one says of itself, and whether it says anything."""

    number: int
    role: str = "follower"
    applied: int = 10
    first_index: int = 1
    last_index: int = 10
    hangs: bool = False
    held: list[int] = field(default_factory=list)

    def status(self) -> dict[str, Any]:
        return {
            "role": self.role,
            "replica": self.number,
            "first_index": self.first_index,
            "last_index": max(self.last_index, self.applied),
            "applied": self.applied,
            "commit": self.applied,
            "term": 1,
            "voters": [1, 2, 3],
            "outgoing": [],
            "learners": [4],
            "configuration_index": 1,
        }

    async def committed(
        self, exporter: str, first: int, bytes_max: int, wait_ms: int, exported: int
    ) -> dict[str, Any]:
        if first > self.applied:
            await asyncio.sleep(wait_ms / 1_000)
        has = self.first_index <= first <= self.applied
        return {
            "leads": self.role == "leader",
            "first_index": self.first_index,
            "commit": self.applied,
            "entries": [b"entry"] if has else [],
        }

    def hold_log(self, exporter: str, exported: int) -> int:
        self.held.append(exported)
        return self.applied


@dataclass
class Replicas:
    """The ports of a source, over replicas of one group."""

    by_seat: dict[str, Replica]

    async def call(self, seat: str, method: str, *args: Any) -> Any:
        replica = self.by_seat[seat]
        if replica.hangs:
            await asyncio.sleep(3_600)
        said = getattr(replica, method)(*args)
        return await said if isinstance(said, Awaitable) else said

    def groups(self) -> Sequence[str]:
        return (GROUP,)

    def seats(self, group: str) -> Sequence[str]:
        return [seat for seat in self.by_seat if "learner" not in seat]

    def learners(self, group: str) -> Sequence[str]:
        return [seat for seat in self.by_seat if "learner" in seat]

    async def refresh(self) -> None:
        """There is nothing to look up."""


def three() -> Replicas:
    return Replicas({"o-0/0": Replica(1, "leader"), "o-0/1": Replica(2), "o-0/2": Replica(3)})


def source_of(replicas: Replicas) -> Source:
    return Source(replicas, replicas, Path("/out"))


def now() -> float:
    return asyncio.get_running_loop().time()


@in_virtual_time
async def test_who_answers_and_gets_no_further_is_left() -> None:
    replicas = three()
    source = source_of(replicas)
    assert (await source.page(GROUP, 10, 9)).seat == "o-0/1"
    replicas.by_seat["o-0/0"].applied = replicas.by_seat["o-0/2"].applied = 20
    began = now()
    pages = [await source.page(GROUP, 11, 10)]
    while not pages[-1].entries and len(pages) < 10:
        pages.append(await source.page(GROUP, 11, 10))
    assert pages[-1].seat == "o-0/2"
    assert {each.commit for each in pages[1:]} == {20}, "the lag is seen before"
    assert now() - began < 3 * WAIT_MS / 1_000


@in_virtual_time
async def test_a_group_that_is_quiet_is_asked_for_no_status() -> None:
    replicas = three()
    source = source_of(replicas)
    await source.page(GROUP, 11, 10)
    for each in replicas.by_seat.values():
        each.status = None  # type: ignore[method-assign, assignment]
    pages = [await source.page(GROUP, 11, 10) for _ in range(20)]
    assert {(each.seat, each.commit, len(each.entries)) for each in pages} == {("o-0/1", 10, 0)}


@in_virtual_time
async def test_who_lacks_the_entry_or_is_far_behind_is_not_chosen() -> None:
    replicas = three()
    replicas.by_seat["o-0/1"].applied = 9
    assert (await source_of(replicas).page(GROUP, 10, 9)).seat == "o-0/2"
    replicas.by_seat["o-0/0"].applied = 11 + PAGER_BEHIND_MAX
    replicas.by_seat["o-0/2"].applied = 10
    waited = await source_of(replicas).page(GROUP, 12 + PAGER_BEHIND_MAX, 9)
    assert waited.seat == "o-0/0", "rather the leader than one that is not there for long"
    replicas.by_seat["o-0/2"].applied = 11
    assert (await source_of(replicas).page(GROUP, 12 + PAGER_BEHIND_MAX, 9)).seat == "o-0/2"


@in_virtual_time
async def test_a_learner_is_asked_first_and_told_like_the_others() -> None:
    replicas = three()
    learner = replicas.by_seat["o-0/learner-0"] = Replica(4, "learner")
    source = source_of(replicas)
    assert (await source.page(GROUP, 10, 9)).seat == "o-0/learner-0"
    await source.hold(GROUP, 9)
    learner.hangs = True
    with pytest.raises(NoQuorum, match="o-0/learner-0 has no page for us"):
        await source.page(GROUP, 10, 9)
    assert (await source.page(GROUP, 10, 9)).seat == "o-0/1"
    learner.hangs = False
    await asyncio.sleep(STATUS_SECONDS)
    await source.hold(GROUP, 10)
    assert learner.held[-1] == 10
    await source.close()


@in_virtual_time
async def test_one_that_hangs_delays_no_page() -> None:
    replicas = three()
    source = source_of(replicas)
    await source.page(GROUP, 1, 0)
    replicas.by_seat["o-0/2"].hangs = True
    began, pages = now(), list[Page]()
    while now() < began + 60:
        pages.append(await source.page(GROUP, 2, 1))
        assert pages[-1].entries
        await asyncio.sleep(0.5)
    assert len(pages) == 120
    assert len(replicas.by_seat["o-0/0"].held) > 5, "the others are told all the same"
    await source.close()
    assert now() <= began + 60 + STATUS_SECONDS


@in_virtual_time
async def test_a_gap_waits_for_who_has_the_entry_and_has_not_applied_it() -> None:
    replicas = three()
    replicas.by_seat["o-0/0"].first_index = replicas.by_seat["o-0/2"].first_index = 8
    slow = replicas.by_seat["o-0/1"]
    slow.applied, slow.last_index = 4, 5
    source = source_of(replicas)
    began = now()
    with pytest.raises(NoQuorum, match="entry 5 is gone, unless o-0/1 still has it"):
        await source.page(GROUP, 5, 4)
    slow.applied = 5
    page = await source.page(GROUP, 5, 4)
    assert (page.seat, page.entries) == ("o-0/1", [b"entry"])
    page = await source.page(GROUP, 6, 5)
    while page.first_index == 1 and now() < began + MISS_SECONDS:
        page = await source.page(GROUP, 6, 5)
    assert (page.seat, page.first_index) == ("o-0/2", 8), "nobody has it, nor may have it"
    assert now() < began + MISS_SECONDS


@in_virtual_time
async def test_how_far_a_group_is_says_its_leader_or_a_majority() -> None:
    replicas = three()
    leader, one, other = replicas.by_seat.values()
    leader.applied = 20
    assert await source_of(replicas).commits(GROUP) == 20
    one.hangs = other.hangs = True
    assert await source_of(replicas).commits(GROUP) == 20
    leader.role = "follower"
    with pytest.raises(NoQuorum, match="o-0: neither a leader nor a majority"):
        await source_of(replicas).commits(GROUP)
    one.hangs = False
    assert await source_of(replicas).commits(GROUP) == 20
    replicas.by_seat = {}
    with pytest.raises(NoQuorum, match="o-0: neither a leader nor a majority"):
        await source_of(replicas).commits(GROUP)


def test_of_a_group_that_does_not_answer_no_lag_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def commits(source: Source, group: str) -> int:
        if group == "o-1":
            raise NoQuorum("o-1: nobody answers")
        return 7

    async def groups(source: Source) -> Sequence[str]:
        return ()

    monkeypatch.setattr(Source, "commits", commits)
    monkeypatch.setattr(Source, "groups", groups)
    assert asyncio.run(running._commits(Path("/out"), ["o-0", "o-1"])) == {"o-0": 7}
