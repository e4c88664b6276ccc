"""One seat over a real directory: what it finds there, and what it never opens again."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from actors.replica import Replica
from actors.seat import Seat
from state_machines.errors import Stopped
from state_machines.limits import REQUEST_BYTES_MAX
from state_machines.metadata.node import GetNode, RegisterNode
from state_machines.wire import api_pb2 as api
from storage import identity
from storage.stores import Stores
from tests.actors.wires import Group, eventually, in_loop, running


def directories(root: Path) -> list[identity.Found]:
    return [found for each in root.iterdir() for found in identity.find(each, None, "metadata-0")]


@in_loop
async def test_a_directory_whose_replica_was_removed_is_never_opened_again(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, _):
        seat = group.wires.living["metadata-0/0"]
        seat.removed()
        await seat.close()
        assert [each.identity.status for each in directories(tmp_path)] == ["retired"]
        again = await group.sit("metadata-0/0")
        assert again.status_word == "vacant"


@in_loop
async def test_a_restart_goes_on_after_what_is_flushed(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        for _ in range(5):
            await caller.call(RegisterNode(node_id="b"))
        seat = group.wires.living["metadata-0/0"]
        assert seat.replica is not None
        before = seat.replica.applied.index
        await seat.close()
        again: Seat = await group.sit("metadata-0/0")
        assert again.replica is not None
        replica = again.replica
        assert replica.core.applied_handed == before, "nothing is applied twice"
        again.campaign()
        await eventually(lambda: replica.applied.index > before or replica.stopped_because)
        assert replica.stopped_because == ""
        assert (await caller.call(GetNode(node_id="b"))).epoch == 5


@in_loop
async def test_a_seat_that_retires_can_be_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CI, tests.crash, client.answered-1-stop: the second to close them waited for ever for a
    storage thread that the first had ended."""
    closing, go_on = threading.Event(), threading.Event()
    async with running(Group(tmp_path)) as (group, _):
        await group.leader()
        follower = group.followers()[0]
        assert follower.replica is not None
        core, storage = follower.replica.core, follower.replica.storage
        close = storage.close

        def slowly() -> None:
            close()
            closing.set()
            assert go_on.wait(10)

        monkeypatch.setattr(storage, "close", slowly)
        retiring = asyncio.create_task(follower.retire(core.id, (core.term, core.last_index)))
        assert await asyncio.to_thread(closing.wait, 10)
        ending = asyncio.create_task(group.crash(follower.spec.seat))
        await eventually(lambda: follower.spec.seat not in group.wires.living)
        go_on.set()
        await asyncio.wait_for(asyncio.gather(retiring, ending), 10)
        again = await group.sit(follower.spec.seat)
        assert again.status_word == "vacant"


@in_loop
async def test_a_seat_that_was_ended_opens_nothing_any_more(tmp_path: Path) -> None:
    group = Group(tmp_path, replicas=1)
    seat = await group.sit("metadata-0/0")
    await seat.reserve("test")
    for _ in range(2):
        await asyncio.wait_for(seat.abandon(), 10)
        with pytest.raises(Stopped, match="abandoned"):
            await seat.activate()
    again = await group.sit("metadata-0/0")
    await again.activate()
    for _ in range(2):
        await asyncio.wait_for(again.close(), 10)
    with pytest.raises(Stopped, match="closed"):
        await again.reserve("test")


@in_loop
async def test_what_a_seat_has_begun_to_open_is_not_opened_again_by_the_next_who_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills of chain 1000008: a controller that was fenced let go of its `activate` while the
    storage thread opened the stores, the next controller's opened them once more."""
    group = Group(tmp_path, replicas=1)
    seat = await group.sit("metadata-0/0")
    await seat.reserve("test")
    opening, go_on, opened = threading.Event(), threading.Event(), []
    home = seat._home
    stores = home.stores

    def slowly(*args: Any, **more: Any) -> Stores:
        opening.set()
        assert go_on.wait(10)
        opened.append(stores(*args, **more))
        return opened[-1]

    monkeypatch.setattr(home, "stores", slowly)
    asked = asyncio.create_task(seat.activate())
    assert await asyncio.to_thread(opening.wait, 10)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    again = asyncio.create_task(seat.activate())
    await asyncio.sleep(0)
    go_on.set()
    await again
    assert len(opened) == 1
    assert seat.status_word == "active"
    await seat.close()


@in_loop
async def test_a_replica_that_does_not_start_stops_its_seat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a failpoint (member.before_start, raise): it answered from then on, and never
    ticked."""

    def fails(_: Replica) -> None:
        raise RuntimeError("no clock")

    group = Group(tmp_path, replicas=1)
    with monkeypatch.context() as broken:
        broken.setattr(Replica, "start", fails)
        with pytest.raises(Stopped, match="no clock"):
            await group.found()
    seat = group.wires.living["metadata-0/0"]
    assert seat.status_word == "stopped"
    assert "no clock" in seat.hello()["fault"]
    reply = api.Reply.FromString(await seat.propose(api.ProposeRequest().SerializeToString()))
    assert reply.code == api.STOPPED
    await group.crash("metadata-0/0")
    again = await group.sit("metadata-0/0")
    again.campaign()
    await group.leader()
    await again.close()


@in_loop
async def test_a_request_beyond_the_limit_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, _):
        seat = await group.leader()
        for call in (seat.propose, seat.query, seat.watch):
            reply = api.Reply.FromString(await call(bytes(REQUEST_BYTES_MAX + 1)))
            assert reply.code == api.INVALID
            assert reply.detail.startswith(f"request: {REQUEST_BYTES_MAX + 1} bytes, the limit is")


@in_loop
async def test_a_request_of_too_many_parts_is_refused_before_they_are_made(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, _):
        seat = await group.leader()
        many = b"\x12\x00" * 100_000  # a proposal without anything, again and again
        reply = api.Reply.FromString(await seat.propose(many))
        assert reply.code == api.INVALID
        assert reply.detail.startswith("request: more fields than ")


@in_loop
async def test_a_replica_that_asks_who_sits_here_says_where_it_is_itself(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, _):
        seat = group.wires.living["metadata-0/0"]
        assert seat.replica is not None
        seat.hello()  # a tool asks
        seat.hello(7, "metadata-0/2")
        assert seat.replica.transport.seat_of(7) == "metadata-0/2"
