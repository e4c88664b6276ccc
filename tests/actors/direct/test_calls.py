"""What goes by a link and what by an actor call, over real sockets."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from ray.exceptions import RpcError

from actors import calls as ray_calls
from actors.calls import LinkedCalls, LinkedGroups, service
from actors.direct.links import LinkLost, Links
from actors.direct.listener import CALLS_MAX, Listener
from actors.direct.secret import Endpoint
from metaray import client as door
from state_machines.errors import Stopped
from state_machines.metadata.kv import KV
from state_machines.wire import api_pb2 as api
from tests.actors.at_seat import get_request, status
from tests.actors.direct.wire import HOST, Served
from tests.actors.wires import Group, eventually, in_loop, running

SEATS = tuple(f"metadata-0/{number}" for number in range(3))


class Handles:
    """Actor calls: answered with a word, and noted."""

    def __init__(self, endpoints: dict[str, Endpoint]) -> None:
        self.endpoints = endpoints
        self.called: list[tuple[str, str]] = []

    async def call(self, seat: str, method: str, *args: Any) -> Any:
        self.called.append((seat, method))
        return self.endpoints.get(seat) if method == "endpoint" else b"by an actor call"


async def listening(service: Any) -> tuple[list[Listener], dict[str, Endpoint]]:
    listeners = [Listener(service) for _ in SEATS]
    opened = [await each.open(seat, HOST) for each, seat in zip(listeners, SEATS, strict=True)]
    return listeners, {each.seat: each for each in opened}


@in_loop
async def test_a_client_has_links_to_all_seats_of_a_group_it_talks_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """When the leader dies nobody has to be asked where the others listen."""
    served = Served().service()
    listeners, endpoints = await listening(
        type(served)(calls={"propose": served.calls["echo"]}, posts={})
    )
    groups = LinkedGroups()
    handles = Handles(endpoints)
    monkeypatch.setattr(groups, "_handles", handles)
    groups._seats = {"metadata-0": SEATS, "offset-0": ("offset-0/0",)}
    assert await groups.propose(SEATS[1], b"x") == b"by an actor call", "before the link is up"
    await eventually(lambda: groups._links.up() == list(SEATS))
    assert await groups.propose(SEATS[2], b"x") == b"x"
    assert {seat for seat, _ in handles.called} == set(SEATS), "not of groups it has no use for"
    await groups.close()
    for each in listeners:
        await each.close()


@in_loop
async def test_a_client_calls_no_machine_that_has_just_fallen_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By Ray it would wait, while the others have a leader by now."""
    groups = LinkedGroups()
    handles = Handles({})
    monkeypatch.setattr(groups, "_handles", handles)
    groups._seats = {"metadata-0": SEATS}
    silent = {SEATS[0]}
    monkeypatch.setattr(groups._links, "silent", lambda seat: seat in silent)
    with pytest.raises(LinkLost, match="metadata-0/0: its machine is not heard"):
        await groups.propose(SEATS[0], b"x")
    assert await groups.propose(SEATS[1], b"x") == b"by an actor call"
    silent.clear()
    assert await groups.propose(SEATS[0], b"x") == b"by an actor call"
    await groups.close()


@in_loop
async def test_a_client_that_is_opened_again_has_links_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listeners, endpoints = await listening(Served().service())
    monkeypatch.setattr(ray_calls, "Handles", lambda: Handles(endpoints))
    monkeypatch.setattr(ray_calls, "named_actors", lambda: set(SEATS))
    monkeypatch.setattr(door, "join_cluster", lambda *_: None)
    client = door.connect()
    for _ in range(2):
        async with client:
            assert client.seats("metadata-0") == SEATS
            await eventually(lambda: client._groups.linked(SEATS[0]), seconds=5)
    for each in listeners:
        await each.close()


@in_loop
async def test_names_that_ray_does_not_tell_are_those_that_were_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who looks for groups that are new goes on with those that it has (`watching.Joining`)."""
    monkeypatch.setattr(ray_calls, "named_actors", lambda: set(SEATS))
    groups = LinkedGroups()
    await groups.refresh()

    def away() -> set[str]:
        raise RpcError("the control service is away")

    monkeypatch.setattr(ray_calls, "named_actors", away)
    with pytest.raises(Stopped, match="the control service is away"):
        await groups.refresh()
    assert groups.seats("metadata-0") == SEATS


@in_loop
async def test_a_seat_that_does_not_listen_is_called_by_actor_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = LinkedCalls()
    handles = Handles({})
    monkeypatch.setattr(calls, "_handles", handles)
    assert not calls.post(SEATS[0], b"x")
    await eventually(lambda: (SEATS[0], "endpoint") in handles.called)
    assert not calls.linked(SEATS[0])
    assert await calls.deliver(SEATS[0], b"x") == b"by an actor call"
    assert await calls.chunk(SEATS[0], b"x")
    assert await calls.attend(SEATS[0], 7)
    assert [method for _, method in handles.called if method != "endpoint"] == [
        "deliver",
        "chunk",
        "attend",
    ]
    await calls.close()


@in_loop
async def test_however_much_a_process_watches_its_other_calls_to_the_seat_are_answered(
    tmp_path: Path,
) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, _):
        seat = await group.leader()
        listener = Listener(service(seat))
        endpoint = await listener.open(seat.spec.seat, HOST)

        async def ask(_: str) -> Endpoint:
            return endpoint

        links = Links(ask, Random(5))
        link = await eventually(lambda: links.get(seat.spec.seat))
        request = api.WatchRequest(
            group="metadata-0",
            tables=[KV.name],
            from_revision=status(seat)["applied"],
            timeout_ms=60_000,
        )
        watches = [link.call("watch", request.SerializeToString()) for _ in range(CALLS_MAX + 10)]
        answer = await asyncio.wait_for(link.call("query", get_request("k")), 5)
        assert api.Reply.FromString(answer).code == api.OK
        assert not any(each.done() for each in watches)
        await links.close()
        await listener.close()


@in_loop
async def test_a_control_service_that_hangs_takes_one_thread_for_a_name_however_often_it_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The others are needed: for passwords, for snapshots."""
    answer, asked = threading.Event(), 0

    def get_actor(name: str, namespace: str) -> str:
        nonlocal asked
        asked += 1
        answer.wait(30)
        return f"the handle of {name}"

    monkeypatch.setattr("ray.get_actor", get_actor)
    monkeypatch.setattr(ray_calls, "LOOKUP_SECONDS", 0.01)
    handles = ray_calls.Handles()
    try:
        for _ in range(3):
            with pytest.raises(Stopped, match="does not answer"):
                await handles.get(SEATS[0])
        monkeypatch.setattr(ray_calls, "LOOKUP_SECONDS", 30)
        waiting = [asyncio.ensure_future(handles.get(SEATS[0])) for _ in range(20)]
        await asyncio.sleep(0)
        waiting.pop().cancel()
    finally:
        answer.set()
    assert {await each for each in waiting} == {f"the handle of {SEATS[0]}"}
    assert asked == 1
    assert await handles.get(SEATS[1]) == f"the handle of {SEATS[1]}"
    assert asked == 2
