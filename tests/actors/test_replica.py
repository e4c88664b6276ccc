"""A replica's laws, broken on purpose: a core that is wrong, a lead or a call that is lost."""

from __future__ import annotations

import asyncio
import functools
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from state_machines.errors import Stopped
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.offset.offset import CommitOffsets, FetchOffsets
from state_machines.raft.messages import Configuration
from state_machines.wire import api_pb2 as api
from tests.actors.at_seat import (
    get_request,
    has_applied,
    put_request,
    register,
    stalled,
    status,
    time_passes,
)
from tests.actors.wires import Group, eventually, in_loop, running

# -- the core -----------------------------------------------------------------------------------


@pytest.mark.parametrize("called", ["tick", "unreachable", "step", "snapshot_sent"])
@in_loop
async def test_a_core_that_finds_itself_wrong_stops_the_replica(
    tmp_path: Path, called: str
) -> None:
    """From wherever it was called (law 8): a replica whose core is half done must not go on."""
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        replica = leader.replica
        assert replica is not None
        peer = next(iter(replica.core.progress))

        def wrong(*_: Any) -> None:
            raise AssertionError("this cannot be")

        setattr(replica.core, called, wrong)
        if called == "unreachable":
            replica.peer_died(peer)
        elif called == "snapshot_sent":
            replica._snapshot_ended(peer, True)
        await eventually(lambda: replica.role == "stopped")
        assert "this cannot be" in replica.stopped_because
        with pytest.raises(Stopped, match="this cannot be"):
            replica.transfer(peer)
        await caller.call(PutKv(key="k", value=b"w"))  # of those that are left


@in_loop
async def test_a_surprise_after_an_apply_stops_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know what it left half done; the write itself is applied once, elsewhere."""
    async with running(Group(tmp_path)) as (group, caller):
        before = await caller.call(PutKv(key="k", value=b"1"))
        leader = await group.leader()
        assert leader.replica is not None

        def surprise(*_: Any) -> None:
            raise AssertionError("that cannot be")

        monkeypatch.setattr(leader.replica.history, "applied", surprise)
        after = await caller.call(PutKv(key="k", value=b"2", expected_revision=before))
        assert after > before
        await eventually(lambda: status(leader)["role"] == "stopped")
        assert "that cannot be" in status(leader)["stopped"]
        assert (await caller.call(GetKv(key="k"))).value == b"2"


@in_loop
async def test_writes_of_a_group_of_one_do_not_wait_for_a_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own save commits them. When the loop had waited for that, nobody looked again: there were
    26 a second."""
    # The loop waits for each save: on a busy machine it gave up on all of them, and saw nothing.
    monkeypatch.setattr("actors.storage_thread.PATIENCE_SECONDS", 5.0)
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await caller.call(PutKv(key="k", value=b""))
        leader = await group.leader()
        assert leader.replica is not None
        leader.replica.ticker.stop()
        for number in range(3):
            await caller.call(PutKv(key=f"k{number}", value=b""), timeout_ms=5_000)


# -- the lead -----------------------------------------------------------------------------------


@in_loop
async def test_reads_and_writes_of_a_lead_that_is_lost_are_refused(tmp_path: Path) -> None:
    """Reference defect 8: whoever was asked answered from what he had."""
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        client = await register(leader)
        seat = leader.spec.seat
        for other in group.seat_names:
            group.wires.cut |= {(seat, other), (other, seat)}
        waiting = [
            asyncio.ensure_future(leader.query(get_request("k", timeout_ms=20_000))),
            asyncio.ensure_future(leader.propose(put_request("lost", client, 1))),
        ]
        answers = [api.Reply.FromString(each) for each in await asyncio.gather(*waiting)]
        assert [each.code for each in answers] == [api.NOT_LEADER] * 2
        assert status(leader)["queue"] == status(leader)["reads"] == 0
        group.wires.cut.clear()
        assert await caller.call(GetKv(key="lost")) is None


@in_loop
async def test_a_read_waits_until_its_leader_has_committed_in_its_own_term(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        await group.crash("metadata-0/0")
        again = await group.sit("metadata-0/0")
        async with stalled(again):
            # It votes for itself and leads only once that is on the disk.
            read = asyncio.ensure_future(again.query(get_request("k", timeout_ms=20_000)))
            reply = api.Reply.FromString(await read)
            assert reply.code == api.NOT_LEADER
        assert again.replica is not None
        save, gate = again.replica.stores.log.save, threading.Event()

        def slow(snapshot: Any, entries: Any, hard_state: Any) -> None:
            if entries:
                gate.wait(20)
            save(snapshot, entries, hard_state)

        again.replica.stores.log.save = slow  # type: ignore[method-assign]
        await eventually(lambda: again.replica and again.replica.leads)
        read = asyncio.ensure_future(again.query(get_request("k", timeout_ms=20_000)))
        await time_passes(again, 20)
        assert not read.done()
        gate.set()
        reply = api.Reply.FromString(await read)
        assert (reply.code, len(reply.results)) == (api.OK, 1)
        assert b"v" in reply.results[0].body


@in_loop
async def test_a_transfer_moves_the_lead_and_loses_no_write(tmp_path: Path) -> None:
    group = Group(tmp_path, name="offset-0")
    async with running(group) as (_, caller):
        await commit(caller, 0)
        old = await group.leader()
        target = group.followers()[0]
        assert target.replica is not None
        writes = [asyncio.create_task(commit(caller, 0)) for _ in range(30)]
        old.transfer(target.replica.core.id)
        writes += [asyncio.create_task(commit(caller, 0)) for _ in range(30)]
        await asyncio.gather(*writes)
        await eventually(lambda: target.replica and target.replica.leads)
        assert await commits(caller, 1) == 61


@in_loop
async def test_a_stale_read_waits_for_the_revision_it_names(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        revision = await caller.call(PutKv(key="k", value=b"old"))
        follower = group.followers()[0]
        await eventually(lambda: status(follower)["applied"] >= revision)
        name = follower.spec.seat
        for other in group.seat_names:
            group.wires.cut |= {(name, other), (other, name)}
        later = await caller.call(PutKv(key="k", value=b"new"))
        old = await follower.query(get_request("k", stale=True, min_revision=revision))
        assert b"old" in api.Reply.FromString(old).results[0].body
        waits = asyncio.ensure_future(
            follower.query(get_request("k", stale=True, min_revision=later, timeout_ms=20_000))
        )
        nothing = api.QueryRequest(group="metadata-0", stale=True).SerializeToString()
        far = api.Reply.FromString(await follower.query(nothing))
        assert (far.code, far.revision) == (api.OK, revision), "how far it is, and nothing else"
        late = await follower.query(
            get_request("k", stale=True, min_revision=later, timeout_ms=100)
        )
        assert api.Reply.FromString(late).code == api.UNKNOWN
        assert not waits.done()
        group.wires.cut.clear()
        reply = api.Reply.FromString(await waits)
        assert b"new" in reply.results[0].body
        assert reply.revision >= later


@in_loop
async def test_a_watch_over_the_leader_that_has_ended_is_renewed(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        follower = next(seat for seat in group.wires.living.values() if seat is not leader)
        assert follower.replica is not None
        transport = follower.replica.transport

        def watch() -> asyncio.Task[None] | None:
            task: asyncio.Task[None] | None = transport._attending[1]  # type: ignore[attr-defined]
            return task

        await eventually(lambda: watch() is not None)
        ended = watch()
        assert ended is not None
        ended.cancel()
        await eventually(lambda: watch() is not ended)
        assert await group.leader() is leader


# -- the seat -----------------------------------------------------------------------------------


@in_loop
async def test_what_is_asked_twice_at_once_is_done_once(tmp_path: Path) -> None:
    group = Group(tmp_path, replicas=1)
    try:
        seat = await group.sit("metadata-0/0")
        ids = await asyncio.gather(*(seat.reserve("test") for _ in range(5)))
        assert len(set(ids)) == 1
        await seat.found(Configuration(voters=(ids[0],)))
        await asyncio.gather(*(seat.activate() for _ in range(5)))
        seat.campaign()
        caller = Caller(group.wires, timeout_ms=20_000, rng=Random(1))
        await caller.call(PutKv(key="k", value=b"v"))
        await caller.close()
        assert seat.hello()["boot"] == 1
    finally:
        await group.close()
    again = await group.sit("metadata-0/0")
    assert again.hello()["replica"] == ids[0]
    await group.close()


# -- the network --------------------------------------------------------------------------------


async def commit(caller: Caller, number: int) -> None:
    await caller.call(
        CommitOffsets(groups=(f"g{number}",), topics=("t",), partitions=(0,), offsets=(1,))
    )


async def commits(caller: Caller, groups: int) -> int:
    """How often each row was committed, summed: one for every acknowledged commit, no more."""
    rows = [row for n in range(groups) for row in await caller.call(FetchOffsets(group=f"g{n}"))]
    return sum(row.commits for row in rows)


@pytest.mark.parametrize("seed", [1, 2, 3])
@in_loop
async def test_doubled_late_and_lost_calls_and_crashes_count_every_commit_once(
    seed: int, tmp_path: Path
) -> None:
    group = Group(tmp_path, name="offset-0", rng=Random(seed))
    rng = Random(seed)
    async with running(group) as (_, caller):
        await commit(caller, 0)
        done = 1
        group.wires.trouble = Random(seed)

        async def consumer() -> None:
            nonlocal done
            for _ in range(25):
                await commit(caller, rng.randrange(5))
                done += 1

        def reached(part: int) -> bool:
            return done >= part

        consumers = [asyncio.create_task(consumer()) for _ in range(8)]
        for part in (50, 100):
            await eventually(functools.partial(reached, part))
            name = rng.choice(group.seat_names)
            await group.crash(name)
            await commit(caller, 0)
            done += 1
            await group.sit(name)
        await asyncio.gather(*consumers)
        group.wires.trouble = None
        assert done == 8 * 25 + 3
        assert await commits(caller, 5) == done
        assert group.wires.doubled
        assert group.wires.lost
        leader = await group.leader()
        last = status(leader)["commit"]
        for seat in group.wires.living.values():
            await eventually(functools.partial(has_applied, seat, last))
        assert {status(seat)["stopped"] for seat in group.wires.living.values()} == {""}
