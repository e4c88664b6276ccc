"""Watches of parts of the past: who is told what, who is woken by what, and who may answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from actors.config import RaftSettings
from actors.wanted import Part, Wanted
from actors.watches import History
from state_machines.changes import Changes
from state_machines.errors import Compacted, Invalid
from state_machines.metadata.kv import PutKv
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import Script
from tests.actors.virtual_time import in_virtual_time, settled
from tests.actors.wires import Group, eventually, running

PAIRS = Wanted.of_table("metadata.kv")


def revisions(found: list[api.Change]) -> list[int]:
    return [each.revision for each in found]


# -- what is wanted, and who is told ------------------------------------------------------------


def past(*changed: tuple[str, tuple[str, ...]], settings: RaftSettings | None = None) -> History:
    """One entry for each change, from revision 1 on."""
    history = History(0, settings)
    for revision, (table, key) in enumerate(changed, 1):
        history.add(revision, Changes.of([(table, key, b"row")]))
        history.applied(revision)
    return history


MIXED = (
    ("metadata.kv", ("a", "jobs/1")),
    ("metadata.node", ("n1",)),
    ("metadata.kv", ("b", "jobs/2")),
    ("group.owned", ("metadata",)),
    ("metadata.kv", ("a", "other")),
    ("metadata.kv_floor", ("a", "jobs/1")),
)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (Wanted.of_table("metadata.kv"), [1, 3, 5]),
        (Wanted.of_table("metadata.kv", tenant="a"), [1, 5]),
        (Wanted.of_table("metadata.kv", starts="jobs/"), [1, 3]),
        (Wanted.of_table("metadata.kv", "a", "jobs/"), [1]),
        (Wanted.of_table("metadata.node", starts="n"), [2]),
        (Wanted(("metadata.kv", "metadata.node")), [1, 2, 3, 5]),
        (Wanted(every=True), [1, 2, 3, 5, 6]),
        (Wanted(every=True, only=(Part("a"),)), [1, 5, 6]),
        (Wanted(every=True, only=(Part("b"), Part("a", "oth"))), [3, 5]),
        (Wanted(("metadata.kv",), only=(Part("nobody"),)), []),
    ],
)
def test_only_what_is_wanted_is_told_and_the_revision_says_how_far(
    wanted: Wanted, told: list[int]
) -> None:
    found, upto = past(*MIXED).after(0, wanted, 100)
    assert (revisions(found), upto) == (told, len(MIXED))


def test_a_revision_of_several_wanted_tables_comes_once_and_in_its_order() -> None:
    history = History(0)
    key = ("t", "k")
    changes = [(table, key, b"") for table in ("metadata.kv", "metadata.kv_floor") * 2]
    history.add(1, Changes.of(changes))
    history.applied(1)
    found, _ = history.after(0, Wanted(("metadata.kv_floor", "metadata.kv")), 100)
    assert [each.table for each in found] == ["metadata.kv", "metadata.kv_floor"] * 2


@pytest.mark.parametrize(
    ("request_", "error", "says"),
    [
        (api.WatchRequest(every_table=True, tables=["metadata.kv"]), Invalid, "not both"),
        (api.WatchRequest(tables=["metadata.kv"], only=[api.Part()] * 65), Invalid, "only: 65"),
        (
            api.WatchRequest(tables=["metadata.kv"], only=[api.Part(tenant="x" * 257)]),
            Invalid,
            "only.tenant: 257 bytes",
        ),
        (
            api.WatchRequest(tables=["metadata.kv"], only=[api.Part(starts="x" * 65_536)]),
            Invalid,
            "only.starts: 65536 bytes",
        ),
        (
            api.WatchRequest(tables=["metadata.node"], only=[api.Part(tenant="t")]),
            Invalid,
            "metadata.node belong to no tenant",
        ),
    ],
)
def test_wishes_without_meaning_are_refused(
    request_: api.WatchRequest, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        asyncio.run(History(0).watch(request_, 10))


def test_what_is_too_old_goes_as_time_passes_and_is_said_to_be_gone() -> None:
    history = History(0, RaftSettings(history_ms=1_000))
    history.tick(10.0)
    history.add(1, Changes.of([("metadata.kv", ("t", "k"), b"row")]))
    history.tick(10.8)
    history.add(2, Changes.of([("metadata.kv", ("t", "k"), b"row")]))
    history.applied(2)
    history.tick(11.0)
    assert revisions(history.after(0, PAIRS, 10)[0]) == [1, 2]
    history.tick(11.1)
    assert history.floor == 1
    history.tick(12.0)
    assert (history.floor, history.changes, history.bytes) == (2, 0, 0)
    with pytest.raises(Compacted):
        history.after(1, PAIRS, 10)
    assert history.after(2, PAIRS, 10) == ([], 2)


def test_nothing_is_left_of_what_went() -> None:
    """Tenants come and go: what is kept is bounded, and what it is found by goes with it."""
    history = past(
        *[("metadata.kv", (f"t{number}", "k")) for number in range(500)],
        settings=RaftSettings(history_changes=20),
    )
    assert history.changes == 20
    assert len(history._logs) == 2 + 2 * 20  # everything, the table, and both for each tenant
    assert revisions(history.after(480, PAIRS, 100)[0]) == list(range(481, 501))


@in_virtual_time
async def test_who_waits_is_woken_only_by_what_touches_it() -> None:
    history = History(0)
    looks: list[str] = []
    after = history.after

    def counted(revision: int, wanted: Wanted, limit: int) -> Any:
        looks.append(wanted.only[0].tenant)
        return after(revision, wanted, limit)

    history.after = counted  # type: ignore[method-assign]

    def watch(tenant: str) -> asyncio.Task[api.Reply]:
        request = Wanted.of_table("metadata.kv", tenant).fill(api.WatchRequest())
        return asyncio.create_task(history.watch(request, 1_000))

    first, second = watch("a"), watch("b")
    await settled()
    assert history.watchers == 2
    history.add(1, Changes.of([("metadata.kv", ("b", "k"), b"")]))
    history.applied(1)
    history.add(2, Changes.of([("metadata.node", ("n",), b"")]))
    history.applied(2)
    await settled()
    assert looks == ["a", "b", "b"]
    assert (revisions(list((await second).changes)), second.result().revision) == ([1], 2)
    assert (await first).revision == 2, "at its deadline it says how far nothing was"
    assert history.watchers == 0
    assert not history._waiting_at


@in_virtual_time
async def test_who_waits_is_not_told_that_what_passed_meanwhile_is_gone() -> None:
    history = History(0, RaftSettings(history_changes=5))
    request = Wanted.of_table("metadata.kv", "mine").fill(api.WatchRequest())
    watching = asyncio.create_task(history.watch(request, 60_000))
    await settled()
    for revision in range(1, 101):
        tenant = "mine" if revision == 100 else "other"
        history.add(revision, Changes.of([("metadata.kv", (tenant, "k"), b"")]))
        history.applied(revision)
    assert history.floor == 95
    reply = await watching
    assert (revisions(list(reply.changes)), reply.revision) == ([100], 100)


@in_virtual_time
async def test_a_mark_of_progress_is_told_as_soon_as_it_is_reached() -> None:
    history = History(0)
    begun = asyncio.get_running_loop().time()
    request = PAIRS.fill(api.WatchRequest(progress_at=3))
    watching = asyncio.create_task(history.watch(request, 60_000))
    for revision in (1, 2):
        history.add(revision, Changes.of([("metadata.node", ("n",), b"")]))
        history.applied(revision)
        await settled()
        assert not watching.done()
    history.applied(3)
    reply = await watching
    assert (reply.revision, len(reply.changes)) == (3, 0)
    assert asyncio.get_running_loop().time() == begun
    assert (await history.watch(request, 60_000)).revision == 3, "it is past already"


# -- at any replica -----------------------------------------------------------------------------


def test_followers_answer_a_stale_watch_while_they_hear_a_leader(tmp_path: Path) -> None:
    async def story() -> None:
        async with running(Group(tmp_path)) as (group, caller):
            begin = (await caller.watch("metadata-0", (), None)).revision
            revision = await caller.call(PutKv(key="k", value=b"v"))
            follower = group.followers()[0]
            request = PAIRS.fill(
                api.WatchRequest(group="metadata-0", from_revision=begin, timeout_ms=5_000)
            )
            refused = api.Reply.FromString(await follower.watch(request.SerializeToString()))
            assert refused.code == api.NOT_LEADER
            request.stale = True
            reply = api.Reply.FromString(await follower.watch(request.SerializeToString()))
            assert [each.revision for each in reply.changes] == [revision]
            request.now = True
            refused = api.Reply.FromString(await follower.watch(request.SerializeToString()))
            assert refused.code == api.NOT_LEADER, "only the leader knows how far the group is"
            request.now = False
            for seat in group.seat_names:
                if seat != follower.spec.seat:
                    await group.crash(seat)
            replica = follower.replica
            await eventually(lambda: replica is not None and replica.core.leader == 0)
            refused = api.Reply.FromString(await follower.watch(request.SerializeToString()))
            assert refused.code == api.NOT_LEADER, "it would say for ever that nothing happens"

    asyncio.run(story())


@in_virtual_time
async def test_what_a_follower_has_let_go_of_is_asked_of_the_leader() -> None:
    asked: list[bool] = []

    class OneGroup(Script):
        def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
            stale = api.WatchRequest.FromString(request).stale
            asked.append(stale)
            code = api.COMPACTED if stale or len(asked) > 2 else api.OK
            answer = asyncio.get_running_loop().create_future()
            answer.set_result(api.Reply(code=code, revision=9).SerializeToString())
            return answer

    caller = Caller(OneGroup(), rng=Random(3))
    try:
        assert (await caller.poll("metadata-0", PAIRS, 3, stale=True)).revision == 9
        assert asked == [True, False]
        with pytest.raises(Compacted):
            await caller.poll("metadata-0", PAIRS, 3, stale=True)
    finally:
        await caller.close()
