"""The clients over real Ray: typed, coalescing, refused clearly, never longer than the deadline."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest
import ray

from actors.ray_env import NAMESPACE
from metaray import BlockingClient, connect, connect_sync
from state_machines.errors import Conflict, Invalid, MetarayError, NoQuorum, NotFound, Unknown
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.metadata.kv import KEY_BYTES_MAX, GetKv, KvEntry, KvPage, PutKv
from state_machines.mqtt.session import CountSessions, OpenedSession, OpenSession
from state_machines.offset.offset import CommitReply, Offset, OffsetCommit
from state_machines.wire import api_pb2 as api
from tests.door.seats import ask, leader, seats, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

CALLS_MAX = 20  #: for a thousand puts; without sharing it would be a thousand


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with connect_sync() as client:
        yield client


def test_a_thousand_concurrent_puts_share_a_few_calls(tenant: str) -> None:
    async def run() -> int:
        async with connect() as client:
            await client.put("first", b"", tenant=tenant)  # registered, leader known
            before = ask(leader("metadata-0")["seat"], "status")["counters"]["proposals"]
            revisions = await asyncio.gather(
                *(
                    client.put(f"k{number:04}", b"%d" % number, tenant=tenant)
                    for number in range(1000)
                )
            )
            assert min(revisions) > 0
            page = await client.list_keys("k", tenant=tenant)
            assert [entry.value for entry in page.entries] == [b"%d" % n for n in range(1000)]
            after: int = ask(leader("metadata-0")["seat"], "status")["counters"]["proposals"]
            return after - int(before)

    assert asyncio.run(run()) <= CALLS_MAX


def test_replies_are_typed(client: BlockingClient, tenant: str) -> None:
    revision = client.put("a", b"1", tenant=tenant)
    assert client.get("a", tenant=tenant) == KvEntry("a", b"1", revision)
    assert client.get("b", tenant=tenant) is None
    assert client.list_keys(tenant=tenant) == KvPage((KvEntry("a", b"1", revision),), b"")
    assert client.put("a", b"2", expected_revision=revision, tenant=tenant) > revision
    client.delete("a", tenant=tenant)
    commit = OffsetCommit(group="g", topic="t", partition=3, offset=17)
    reply = client.commit_offsets([commit, commit], tenant=tenant)
    assert isinstance(reply, CommitReply)
    [offset] = client.fetch_offsets("g", tenant=tenant)
    assert isinstance(offset, Offset)
    assert (offset.topic, offset.partition, offset.offset) == ("t", 3, 17)
    assert client.fetch_offset("g", "t", 3, tenant=tenant) == offset
    assert client.fetch_offset("g", "t", 4, tenant=tenant) is None
    assert client.delete_group("g", tenant=tenant) == 1
    opened = client.call(OpenSession(tenant=tenant, client_id="c", broker="b", expiry_s=60))
    assert isinstance(opened, OpenedSession)
    assert not opened.present
    again = client.call(OpenSession(tenant=tenant, client_id="c", broker="b2", expiry_s=60))
    assert again.present
    assert again.epoch > opened.epoch
    assert client.groups() == ("metadata-0", "mqtt-0", "offset-0")


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("", b"", "key"),
        ("k" * (KEY_BYTES_MAX + 1), b"", str(KEY_BYTES_MAX)),
        ("a\udcff", b"", "key"),
        ("k", b"v" * (VALUE_BYTES_MAX + 1), str(VALUE_BYTES_MAX)),
        ("k", "text", "value"),
        (7, b"", "key"),
    ],
)
def test_bad_input_is_refused_by_field_and_changes_nothing(
    client: BlockingClient, tenant: str, key: str, value: bytes, named: str
) -> None:
    with pytest.raises(Invalid, match=named):
        client.put(key, value, tenant=tenant)
    assert client.list_keys(tenant=tenant).entries == ()


def test_a_wrong_expectation_changes_nothing(client: BlockingClient, tenant: str) -> None:
    revision = client.put("a", b"1", expected_revision=0, tenant=tenant)
    for expected in (0, revision + 1):
        with pytest.raises(Conflict, match=f"the key is at {revision}"):
            client.put("a", b"2", expected_revision=expected, tenant=tenant)
        with pytest.raises(Conflict):
            client.delete("a", expected_revision=expected, tenant=tenant)
    assert client.get("a", tenant=tenant) == KvEntry("a", b"1", revision)
    with pytest.raises(NotFound, match="'b' is not there"):
        client.delete("b", tenant=tenant)


def test_one_refused_of_many_does_not_harm_the_others(tenant: str) -> None:
    async def run() -> tuple[object, ...]:
        async with connect() as client:
            return await asyncio.gather(
                client.put("a", b"1", tenant=tenant),
                client.put("b", b"1", expected_revision=99, tenant=tenant),
                client.put("c", b"1", tenant=tenant),
                return_exceptions=True,
            )

    first, second, third = asyncio.run(run())
    assert isinstance(first, int)
    assert isinstance(second, Conflict)
    assert isinstance(third, int)


def test_a_client_that_is_not_open_says_so(tenant: str) -> None:
    with pytest.raises(RuntimeError, match="not open"):
        asyncio.run(connect().put("a", b"", tenant=tenant))
    blocking = connect_sync()
    with pytest.raises(RuntimeError, match="not open"):
        blocking.put("a", b"", tenant=tenant)
    blocking.close()
    with connect_sync() as client:
        client.put("a", b"", tenant=tenant)
    with pytest.raises(RuntimeError, match="closed"):
        client.get("a", tenant=tenant)


def test_what_is_no_operation_is_refused(client: BlockingClient) -> None:
    with pytest.raises(TypeError, match="neither a command nor a query"):
        client.call(object())  # type: ignore[call-overload]


def test_a_stale_read_waits_for_the_revision_it_is_told(
    client: BlockingClient, tenant: str
) -> None:
    for number in range(20):
        revision = client.put("a", b"%d" % number, tenant=tenant)
        found = client.call(
            GetKv(tenant=tenant, key="a"), stale=True, min_revision=revision, timeout_ms=10_000
        )
        assert found == KvEntry("a", b"%d" % number, revision)
    with pytest.raises(MetarayError) as late:
        client.call(GetKv(tenant=tenant, key="a"), stale=True, min_revision=1 << 60, timeout_ms=300)
    assert isinstance(late.value, NoQuorum | Unknown)


def test_a_frozen_leader_costs_the_deadline_and_the_outcome_is_unknown(
    client: BlockingClient, tenant: str
) -> None:
    client.put("a", b"before", tenant=tenant)
    seat = leader("metadata-0")["seat"]
    pid = ask(seat, "process")
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(Unknown, match="metadata-0: no outcome before the deadline"):
            client.call(PutKv(tenant=tenant, key="a", value=b"after"), timeout_ms=400)
        with pytest.raises(NoQuorum, match="metadata-0: no answer before the deadline"):
            client.call(GetKv(tenant=tenant, key="a"), timeout_ms=400)
    finally:
        os.kill(pid, signal.SIGCONT)
    found = client.get("a", tenant=tenant)
    assert found is not None
    assert found.value in (b"before", b"after")
    client.put("a", b"last", tenant=tenant)
    wait_for(lambda: len(seats("metadata-0")) == 3, "all seats are there")


def test_a_group_that_is_not_there_is_no_quorum_in_time(client: BlockingClient) -> None:
    async def run() -> None:
        async with connect() as other:
            assert other._caller is not None
            await other._caller.call(CountSessions(), group="mqtt-77", timeout_ms=300)

    with pytest.raises(NoQuorum, match="there is no group 'mqtt-77'"):
        asyncio.run(run())
    assert "mqtt-77" not in client.groups()


# -- the actors, called directly as the architecture guide documents them ------------------------


def reply_of(seat: str, method: str, request: object) -> api.Reply:
    actor = ray.get_actor(seat, namespace=NAMESPACE)
    answer: bytes = ray.get(getattr(actor, method).remote(request), timeout=30)
    return api.Reply.FromString(answer)


def test_any_driver_may_ask_a_seat_who_it_is() -> None:
    actor = ray.get_actor("metadata-0/1", namespace="metaray")
    hello = ray.get(actor.hello.remote(), timeout=30)
    assert hello["seat"] == "metadata-0/1"
    assert hello["status"] == "active"
    assert hello["replica"] > 0
    assert hello["fault"] == ""
    status = ray.get(actor.status.remote(), timeout=30)
    assert status["group"] == "metadata-0"
    assert len(status["voters"]) == 3
    assert status["replica"] in status["voters"]
    process = ray.get(actor.process.remote(), timeout=30)
    assert os.getsid(process) == process, "it competes for the processor as itself"


@pytest.mark.parametrize("method", ["propose", "query"])
@pytest.mark.parametrize(
    ("request_", "named"),
    [
        (b"\xff\xff\xff rubbish", "request: not an encoded"),
        ("text", "request: bytes are wanted, not str"),
        (None, "request: bytes are wanted, not NoneType"),
        (bytes(5 << 20), "request: 5242880 bytes, the limit is"),
        (api.QueryRequest(group="mqtt-77").SerializeToString(), "group: 'mqtt-77'"),
        (api.QueryRequest(group="offset-0").SerializeToString(), "does not live at metadata-0/1"),
    ],
)
def test_rubbish_is_answered_in_words(method: str, request_: object, named: str) -> None:
    reply = reply_of("metadata-0/1", method, request_)
    assert reply.code == api.INVALID
    assert named in reply.detail


def test_an_unknown_command_and_a_wrong_body_are_refused_before_the_log() -> None:
    seat = leader("metadata-0")["seat"]
    before = ask(seat, "status")["last_index"]
    for tag, body in (("no.such", b"\x80"), ("metadata.kv.put", b"\xc1"), ("", b"")):
        proposal = api.Proposal(client=1, sequence=1, commands=[api.Command(tag=tag, body=body)])
        request = api.ProposeRequest(group="metadata-0", proposal=proposal)
        reply = reply_of(seat, "propose", request.SerializeToString())
        assert reply.code == api.INVALID, reply
        query = api.QueryRequest(group="metadata-0", queries=[api.Command(tag=tag, body=body)])
        reply = reply_of(seat, "query", query.SerializeToString())
        codes = {reply.code, *(result.code for result in reply.results)}
        assert api.INVALID in codes, reply
    assert ask(seat, "status")["last_index"] == before


def test_a_follower_names_the_leader() -> None:
    leads = leader("metadata-0")["seat"]
    other = next(seat for seat in seats("metadata-0") if seat != leads)
    request = api.QueryRequest(group="metadata-0").SerializeToString()
    reply = reply_of(other, "query", request)
    assert reply.code == api.NOT_LEADER
    assert reply.leader == leads
