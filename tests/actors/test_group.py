"""A group of three real seats: writes, reads, failover, restart, snapshot, a lost disk."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from actors.pending import refusal
from state_machines.errors import Conflict, Invalid, NoQuorum, NotLeader, Rejected, Unknown
from state_machines.metadata.kv import GetKv, PutKv, RangeKv
from state_machines.raft.confchange import Change
from state_machines.wire import api_pb2 as api
from tests.actors.wires import Group, Wires, eventually, in_loop, running


@pytest.fixture(params=["calls", "links"], autouse=True)
def carrier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything here holds over links too."""
    monkeypatch.setattr(Wires, "links", request.param == "links")


@in_loop
async def test_write_then_read(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        revision = await caller.call(PutKv(key="a/b", value=b"1"))
        leader = await group.leader()
        assert repr(leader) == f"{leader.spec.seat} {leader.hello()['replica']:016x} leader"
        entry = await caller.call(GetKv(key="a/b"))
        assert (entry.value, entry.revision) == (b"1", revision)


@in_loop
async def test_a_thousand_waiting_callers_share_calls(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="first", value=b""))
        leader = await group.leader()
        assert leader.replica is not None
        before = leader.replica.counters.proposals
        await asyncio.gather(*(caller.call(PutKv(key=f"k{n}", value=b"v")) for n in range(1000)))
        assert leader.replica.counters.proposals - before <= 10
        page = await caller.call(RangeKv(prefix="k", limit=2000))
        assert len(page.entries) == 1000


@in_loop
async def test_a_refusal_reaches_its_caller_only(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (_, caller):
        first = await caller.call(PutKv(key="k", value=b"1"))
        results = await asyncio.gather(
            caller.call(PutKv(key="k", value=b"2", expected_revision=first + 1000)),
            caller.call(PutKv(key="other", value=b"3")),
            return_exceptions=True,
        )
        assert isinstance(results[0], Conflict)
        assert isinstance(results[1], int)
        assert (await caller.call(GetKv(key="k"))).value == b"1"


@in_loop
async def test_the_leader_dies_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        for number in range(30):
            await caller.call(PutKv(key=f"k{number:02}", value=b"v"))
        leader = await group.leader()
        await group.crash(leader.spec.seat)
        await caller.call(PutKv(key="after", value=b"v"))
        back = await group.sit(leader.spec.seat)
        page = await caller.call(RangeKv())
        assert len(page.entries) == 31
        now = await group.leader()
        assert now.replica is not None
        applied = now.replica.status()["applied"]
        await eventually(lambda: back.replica and back.replica.status()["applied"] >= applied)


@in_loop
async def test_a_frozen_leader_is_replaced_and_its_reads_fail(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"old"))
        leader = await group.leader()
        seat = leader.spec.seat
        for other in group.seat_names:
            group.wires.cut |= {(seat, other), (other, seat)}
        group.wires.frozen.add(seat)
        await caller.call(PutKv(key="k", value=b"new"))
        # Cut off, the old leader steps down; until then it cannot confirm a read round.
        assert leader.replica is not None
        request = api.QueryRequest(group="metadata-0", timeout_ms=2_000)
        request.queries.add(tag="metadata.kv.get", body=b"\x81\xa3key\xa1k")
        reply = api.Reply.FromString(await leader.query(request.SerializeToString()))
        assert reply.code in (api.NOT_LEADER, api.UNKNOWN)
        assert reply.results == []


@in_loop
async def test_everything_stops_and_comes_back(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        for number in range(40):
            await caller.call(PutKv(key=f"k{number:02}", value=b"v"))
        for seat in group.seat_names:
            await group.crash(seat)
        for seat in group.seat_names:
            await group.sit(seat)
        page = await caller.call(RangeKv())
        assert len(page.entries) == 40


@in_loop
async def test_a_replica_that_was_away_too_long_gets_a_snapshot(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="gone", value=b"v"))
        leader = await group.leader()
        away = group.followers()[0].spec.seat
        await group.crash(away)
        for number in range(120):
            await caller.call(PutKv(key=f"k{number:03}", value=b"v"))
        assert leader.replica is not None
        core = leader.replica.core
        await eventually(lambda: core.first_index > 30)
        back = await group.sit(away)
        await eventually(
            lambda: back.replica and back.replica.status()["applied"] >= core.commit,
        )
        assert back.replica is not None
        assert back.replica.core.first_index > 30  # its log begins where the snapshot ended
        assert leader.replica.snapshots.sent == 1
        reply = await caller.call(RangeKv(limit=1000), stale=True, min_revision=core.commit)
        assert len(reply.entries) == 121


@in_loop
async def test_a_seat_that_lost_its_disk_is_somebody_else(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        lost = group.followers()[0]
        assert lost.replica is not None
        old = lost.replica.core.id
        seat = lost.spec.seat
        await group.crash(seat)
        shutil.rmtree(tmp_path / seat.replace("/", "-"))
        back = await group.sit(seat)
        assert back.hello()["status"] == "vacant"
        assert back.hello()["replica"] == 0
        new = await back.reserve("test")
        assert new != old
        await back.activate()
        leader.change(Change(add_learners=(new,)))
        assert leader.replica is not None
        core = leader.replica.core

        def promoted() -> bool:
            try:
                leader.change(Change(add_voters=(new,), remove=(old,)))
            except (Conflict, Rejected, NotLeader):
                return False
            return True

        await eventually(promoted)
        await eventually(lambda: core.configuration.voters and not core.configuration.joint)
        assert new in core.configuration.voters
        assert old not in core.configuration.members
        await eventually(lambda: back.replica and back.replica.status()["applied"] >= core.commit)


@in_loop
async def test_what_is_left_can_be_read_and_saved_when_a_majority_of_disks_is_gone(
    tmp_path: Path,
) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        revision = await caller.call(PutKv(key="k", value=b"v"))
        await group.leader()
        left = group.followers()[0]
        assert left.replica is not None
        await eventually(lambda: left.replica and left.replica.status()["applied"] >= revision)
        for seat in [each for each in group.seat_names if each != left.spec.seat]:
            await group.crash(seat)
            shutil.rmtree(tmp_path / seat.replace("/", "-"))
            assert (await group.sit(seat)).status()["role"] == "vacant"
        await eventually(lambda: left.replica and left.replica.core.leader == 0)

        entry = await caller.call(GetKv(key="k"), stale=True)
        assert (entry.value, entry.revision) == (b"v", revision)
        cut = await left.export_open(("metadata.kv",))
        assert (cut["index"] >= revision, cut["rows"]) == (True, {"metadata.kv": 1})
        left.export_close(cut["cut"])
        with pytest.raises(NoQuorum):
            await caller.call(GetKv(key="k"), timeout_ms=500)
        with pytest.raises((NoQuorum, Unknown)):
            await caller.call(PutKv(key="k", value=b"w"), timeout_ms=500)
        assert (await caller.call(GetKv(key="k"), stale=True)).value == b"v"


@in_loop
async def test_a_restarted_follower_knows_its_peers_before_it_needs_them(tmp_path: Path) -> None:
    """Else its first pre-vote goes nowhere, and failover takes an election timeout."""
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        seat = group.followers()[0].spec.seat
        await group.crash(seat)
        back = await group.sit(seat)
        assert back.replica is not None
        status = back.replica.status
        await eventually(lambda: all(status()["seats"].values()))
        assert sorted(status()["seats"].values()) == sorted(group.seat_names)


@in_loop
async def test_a_replica_that_is_removed_is_silent_for_ever(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        gone = group.followers()[0]
        assert gone.replica is not None
        leader.change(Change(remove=(gone.replica.core.id,)))
        await eventually(lambda: gone.replica and gone.replica.stopped_because)
        assert gone.hello()["status"] == "stopped"
        await group.crash(gone.spec.seat)
        back = await group.sit(gone.spec.seat)
        assert back.hello()["status"] == "vacant"
        assert (await caller.call(GetKv(key="k"))).value == b"v"


@in_loop
async def test_one_directory_serves_one_seat(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        first = group.wires.living["metadata-0/0"]
        second = await group.sit("metadata-0/0")
        group.wires.living["metadata-0/0"] = first
        assert second.hello()["status"] in ("vacant", "stopped")
        assert second.hello()["replica"] == 0
        assert (await caller.call(GetKv(key="k"))).value == b"v"
        await second.close()


@in_loop
async def test_groups_of_one_two_and_five(tmp_path: Path) -> None:
    for replicas in (1, 2, 5):
        root = tmp_path / str(replicas)
        async with running(Group(root, replicas=replicas)) as (_, caller):
            await caller.call(PutKv(key="k", value=b"v"))
            assert (await caller.call(GetKv(key="k"))).value == b"v"


@in_loop
async def test_rubbish_at_the_seat_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        assert leader.replica is not None
        last = leader.replica.core.last_index
        cases = (
            b"\xff\xff\xff",
            b"",
            b"x" * (5 << 20),
            api.ProposeRequest(group="elsewhere-0").SerializeToString(),
            api.ProposeRequest(
                group="metadata-0",
                proposal=api.Proposal(client=1, sequence=1, commands=[api.Command(tag="no.such")]),
            ).SerializeToString(),
            api.ProposeRequest(
                group="metadata-0",
                proposal=api.Proposal(
                    client=1,
                    sequence=1,
                    commands=[api.Command(tag="metadata.kv.put", body=b"\xc1")],
                ),
            ).SerializeToString(),
        )
        for case in cases:
            reply = api.Reply.FromString(await leader.propose(case))
            assert reply.code == api.INVALID, case[:20]
            assert reply.detail
        assert leader.replica.core.last_index == last
        for case in (b"\xff\xff\xff", b"x" * (17 << 20)):
            with pytest.raises(Invalid):
                await leader.deliver(case)
        assert leader.replica.core.last_index == last


def test_a_refusal_is_its_error_again() -> None:
    reply = refusal(NotLeader("no", "metadata-0/2"))
    assert (reply.code, reply.leader) == (api.NOT_LEADER, "metadata-0/2")
