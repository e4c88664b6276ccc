"""Transactions and leases through the client's engine, over machines of two groups and no Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from random import Random
from typing import Any

import pytest

import metaray.client
from actors.caller import Caller
from metaray.transactions import KEEP_TIMEOUT_MS_MAX, Lease, LeasedRow, keep_alive, transact
from state_machines.errors import Conflict, Invalid, NoQuorum, NotFound, Unknown
from state_machines.lease import KEEP_MAX, TTL_MS_MAX, ExpireLeases
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.metadata.kv import KV, DeleteKv, GetKv, KvEntry, PutKv
from state_machines.metadata.slot_map import AssignSlots
from state_machines.mqtt.topic import TOPICS, CreateTopics, GetTopic
from state_machines.slots import SLOTS, Own, SlotRange, slot_of
from state_machines.transaction import Compare
from state_machines.wire import api_pb2 as api
from tests.actors.scripted import now
from tests.actors.virtual_time import in_virtual_time
from tests.entities.group import Group

HALVES = (
    SlotRange(0, SLOTS // 2 - 1, "metadata-0"),
    SlotRange(SLOTS // 2, SLOTS - 1, "metadata-1"),
)


class Machines:
    """`caller.Groups`: one replica a group, which leads."""

    def __init__(self) -> None:
        self.groups = {name: Group(name[:-2]) for name in ("metadata-0", "metadata-1", "mqtt-0")}
        self.asked: list[str] = []
        self.silent = ""  #: a group that does not answer
        self.slow = ""  #: a group that takes its time
        self.slow_seconds = 0.0

    def seats(self, group: str) -> Sequence[str]:
        return (group,) if group in self.groups else ()

    async def refresh(self) -> None:
        """They are all there."""

    async def propose(self, seat: str, request: bytes) -> bytes:
        group, asked = self.groups[seat], api.ProposeRequest.FromString(request)
        self.asked.append(seat)
        if seat == self.silent:
            await asyncio.get_running_loop().create_future()
        if seat == self.slow:  # whether its caller waits that long or not
            return await asyncio.shield(asyncio.create_task(self._late(group, asked)))
        return self._done(group, asked)

    async def _late(self, group: Group, asked: api.ProposeRequest) -> bytes:
        await asyncio.sleep(self.slow_seconds)
        return self._done(group, asked)

    def _done(self, group: Group, asked: api.ProposeRequest) -> bytes:
        try:
            group.machine.admit(asked.proposal)
        except Invalid as error:
            return api.Reply(code=api.INVALID, detail=error.detail).SerializeToString()
        (reply,) = group.entry(asked.proposal)
        return reply.SerializeToString()

    async def query(self, seat: str, request: bytes) -> bytes:
        group, asked = self.groups[seat], api.QueryRequest.FromString(request)
        return group.machine.query(asked.queries, group.now_ms).SerializeToString()

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        raise AssertionError(f"{seat} is not watched")


class Client:
    """The part of `metaray.Client` that the door of transactions uses."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.caller = Caller(machines, rng=Random(1))

    def call(
        self, operation: Any, /, *, timeout_ms: int = 0, group: str = ""
    ) -> Coroutine[Any, Any, Any]:
        return self.caller.call(operation, timeout_ms=timeout_ms, group=group)


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    client = Client(Machines())
    try:
        yield client
    finally:
        await client.caller.close()


def with_client(test: Callable[[Client], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def within() -> None:
            async with connected() as client:
                await test(client)

        asyncio.run(within())

    del run.__wrapped__  # pytest looks for its arguments there
    return run


def keys_of(half: SlotRange, count: int = 2) -> list[str]:
    some = (f"k{number}" for number in range(1_000))
    lie = (key for key in some if half.first <= slot_of(("default", key)) <= half.last)
    return [next(lie) for _ in range(count)]


@with_client
async def test_typed_in_and_typed_out(client: Client) -> None:
    free = Compare.absent(KV, "default", "leader")
    claim, look = PutKv(key="leader", value=b"b1"), GetKv(key="leader")
    first = await transact(client, compare=[free], then=[claim], otherwise=[look])
    second = await transact(client, compare=[free], then=[claim], otherwise=[look])
    assert (first.succeeded, second.succeeded) == (True, False)
    assert second.replies == (KvEntry("leader", b"b1", first.replies[0]),)


@with_client
async def test_two_who_look_and_then_create_cannot_both_win(client: Client) -> None:
    """Reference 2.9, 7: looking at one time and writing at another let both through."""
    tries = [
        transact(
            client,
            compare=[Compare.absent(TOPICS, "default", "t")],
            then=[CreateTopics(names=("t",))],
            otherwise=[GetTopic(name="t")],
        )
        for _ in range(5)
    ]
    done = await asyncio.gather(*tries)
    assert [each.succeeded for each in done].count(True) == 1
    assert set(client.machines.asked) == {"mqtt-0"}, "it found its kind by its steps"


@with_client
async def test_a_refusal_says_which_step(client: Client) -> None:
    with pytest.raises(NotFound, match=r"^then\[1\]: key: 'b' is not there$"):
        await transact(client, then=[PutKv(key="a", value=b""), DeleteKv(key="b")])
    assert await client.call(GetKv(key="a")) is None
    client.machines.asked.clear()
    with pytest.raises(Invalid, match=r"^then\[0\]: key: "):
        await transact(client, then=[PutKv(key="", value=b"")])
    assert client.machines.asked == []


@with_client
async def test_it_follows_the_slot_map_and_never_leaves_one_group(client: Client) -> None:
    (low, _), (high, higher) = keys_of(HALVES[0]), keys_of(HALVES[1])
    both = [PutKv(key=low, value=b"1"), PutKv(key=high, value=b"1")]
    await transact(client, then=both)  # one group has it all
    version = await client.call(AssignSlots(kind="metadata", expected_version=0, ranges=HALVES))
    for half in HALVES:
        own = Own(controller_epoch=1, group_kind="metadata", version=version, ranges=(half,))
        await client.call(own, group=half.group)
    client.machines.asked.clear()
    await transact(client, then=[PutKv(key=high, value=b"2"), PutKv(key=higher, value=b"2")])
    assert client.machines.asked[-1] == "metadata-1"
    assert (await client.call(GetKv(key=higher))).value == b"2"
    with pytest.raises(Invalid, match="one group is wanted"):
        await transact(client, then=both)
    assert (await client.call(GetKv(key=low))).value == b"1"


@with_client
async def test_a_lease_takes_its_keys_along(client: Client) -> None:
    group = client.machines.groups["metadata-0"]
    lease = await Lease.grant(client, "metadata-0", owner="b1", ttl_ms=9_000)
    revision = await lease.put("a", b"1")
    assert await lease.put("a", b"2", expected_revision=revision) > revision
    with pytest.raises(Conflict):
        await lease.put("a", b"3", expected_revision=revision)
    await client.call(PutKv(key="b", value=b"1"))
    await client.call(PutKv(key="c", value=b"1"))
    assert (
        await lease.attach(LeasedRow.of(KV, "default", "b"), LeasedRow.of(KV, "default", "c")) == 3
    )
    assert await lease.detach(LeasedRow.of(KV, "default", "c")) == 2
    group.later(8)
    await lease.keep()
    group.later(8)
    view = await lease.look()
    assert view is not None
    assert (view.rows, view.remaining_ms) == (2, 1_000)
    group.later(1)
    await client.call(ExpireLeases(controller_epoch=1, grace_ms=0), group="metadata-0")
    found = [await client.call(GetKv(key=key)) is not None for key in "abc"]
    assert found == [False, False, True]
    for act in (lease.keep, lease.revoke):
        with pytest.raises(NotFound):
            await act()
    with pytest.raises(NotFound, match=r"^then\[1\]: lease_id"):
        await lease.put("a", b"4")
    assert await client.call(GetKv(key="a")) is None


@with_client
async def test_who_revokes_a_lease_of_many_rows_is_told_what_is_left(client: Client) -> None:
    """One command removes so many bytes; the controller's next one removes the others."""
    lease = await Lease.grant(client, "metadata-0", owner="b1", ttl_ms=9_000)
    for number in range(5):
        await lease.put(f"k{number}", b"x" * VALUE_BYTES_MAX)
    told = await lease.revoke()
    view = await lease.look()
    assert view is not None
    assert (view.ending, view.rows) == (True, 1)
    assert told.detail == "1 rows are left"
    few = await Lease.grant(client, "metadata-0", owner="b1", ttl_ms=9_000)
    assert (await few.revoke()).detail == ""


@with_client
async def test_many_leases_are_kept_alive_in_one_command_a_group(client: Client) -> None:
    groups = ("metadata-0", "mqtt-0", "metadata-0")
    leases = [await Lease.grant(client, group, owner="b1", ttl_ms=9_000) for group in groups]
    await leases[2].revoke()
    await keep_alive(leases)  # from now on each group knows this client
    client.machines.asked.clear()
    outcomes = await keep_alive(leases)
    assert [each.code for each in outcomes] == ["OK", "OK", "NOT_FOUND"]
    assert sorted(client.machines.asked) == ["metadata-0", "mqtt-0"]
    many = await keep_alive([leases[0]] * (KEEP_MAX + 1))
    assert [each.code for each in many] == ["OK"] * (KEEP_MAX + 1)


@in_virtual_time
async def test_a_group_that_is_silent_ends_no_lease_of_another() -> None:
    """Each is told what became of it, soon enough to keep the others at a third of the time."""
    async with connected() as client:
        leases = [
            await Lease.grant(client, group, owner="b1", ttl_ms=ttl_ms)
            for group, ttl_ms in (("metadata-0", 9_000), ("mqtt-0", TTL_MS_MAX))
        ]
        client.machines.silent = "mqtt-0"
        for _ in range(3):
            begun = now()
            kept, unheard = await keep_alive(leases)
            assert now() - begun <= 3
            assert kept.code == "OK"
            assert unheard.code in ("NO_QUORUM", "UNKNOWN")
            assert unheard.detail.startswith("mqtt-0: ")
        begun = now()
        with pytest.raises((NoQuorum, Unknown)):
            await leases[1].keep()
        assert now() - begun <= KEEP_TIMEOUT_MS_MAX / 1000, "though it may live for a day"


@in_virtual_time
async def test_what_a_slow_group_is_not_heard_to_keep_it_keeps() -> None:
    """It has no more time than the shortest lease lets it have, also for those that last longer."""
    async with connected() as client:
        leases = [
            await Lease.grant(client, group, owner="b1", ttl_ms=ttl_ms)
            for group, ttl_ms in (("metadata-0", 1_000), ("mqtt-0", 60_000))
        ]
        await keep_alive(leases)  # from now on each group knows this client
        client.machines.slow, client.machines.slow_seconds = "mqtt-0", 0.4
        client.machines.groups["mqtt-0"].later(50)
        kept, unheard = await keep_alive(leases)
        assert (kept.code, unheard.code) == ("OK", "UNKNOWN")
        await asyncio.sleep(1)
        view = await leases[1].look()
        assert view is not None
        assert view.remaining_ms == 60_000
        (heard,) = await keep_alive(leases[1:])
        assert heard.code == "OK"


@with_client
async def test_the_client_itself(client: Client) -> None:
    door = metaray.client.Client()
    with pytest.raises(RuntimeError, match="is not open"):
        await door.transact(then=[GetKv(key="a")])
    door._caller = client.caller
    done = await door.transact(then=[PutKv(key="a", value=b"1"), GetKv(key="a")])
    assert done.replies[1] == KvEntry("a", b"1", done.replies[0])
    lease = await Lease.grant(door, "metadata-0", owner="b1", ttl_ms=9_000)
    await lease.attach(LeasedRow.of(KV, "default", "a"))
    await lease.revoke()
    assert await door.call(GetKv(key="a")) is None
