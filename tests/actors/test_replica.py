"""A replica's laws, broken on purpose: a disk that stalls, fails or lies, a lead that goes away."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from actors.seat import Seat
from state_machines import op
from state_machines.errors import Stopped
from state_machines.metadata.kv import GetKv, PutKv, RangeKv
from state_machines.offset.offset import CommitOffsets, FetchOffsets
from state_machines.raft.messages import AppendReply, Configuration, Entry, Message
from state_machines.wire import api_pb2 as api
from storage.disk import DiskEngine
from tests.actors.wires import QUICK, Group, eventually, in_loop, running


@asynccontextmanager
async def stalled(*seats: Seat) -> AsyncIterator[None]:
    """The storage threads of these seats do nothing, as over a disk that hangs."""
    gate = threading.Event()
    entered = [threading.Event() for _ in seats]

    def hang(mine: threading.Event) -> None:
        mine.set()
        gate.wait(30)

    waiting = []
    for seat, mine in zip(seats, entered, strict=True):
        assert seat.replica is not None
        waiting.append(
            asyncio.ensure_future(seat.replica.storage.run(functools.partial(hang, mine)))
        )
    await eventually(lambda: all(each.is_set() for each in entered))
    try:
        yield
    finally:
        gate.set()
        await asyncio.gather(*waiting)


def status(seat: Seat) -> dict[str, Any]:
    assert seat.replica is not None
    return seat.replica.status()


def has_applied(seat: Seat, index: int) -> bool:
    return bool(status(seat)["applied"] >= index)


async def time_passes(seat: Seat, ticks: int) -> None:
    """Wait until this replica's core was told of so many ticks."""
    assert seat.replica is not None
    core, seen, plain = seat.replica.core, 0, seat.replica.core.tick

    def counted() -> None:
        nonlocal seen
        seen += 1
        plain()

    core.tick = counted  # type: ignore[method-assign]
    try:
        await eventually(lambda: seen >= ticks)
    finally:
        core.tick = plain  # type: ignore[method-assign]


def put_request(key: str, client: int, sequence: int, timeout_ms: int = 20_000) -> bytes:
    command = PutKv(key=key, value=b"v")
    return api.ProposeRequest(
        group="metadata-0",
        timeout_ms=timeout_ms,
        proposal=api.Proposal(
            client=client,
            sequence=sequence,
            commands=[api.Command(tag=op.tag(command), body=op.encode(command))],
        ),
    ).SerializeToString()


def get_request(key: str, **fields: Any) -> bytes:
    command = op.encode(GetKv(key=key))
    return api.QueryRequest(
        group="metadata-0",
        queries=[api.Command(tag=op.tag(GetKv(key=key)), body=command)],
        **fields,
    ).SerializeToString()


async def register(seat: Seat) -> int:
    request = api.ProposeRequest(
        group="metadata-0",
        timeout_ms=20_000,
        proposal=api.Proposal(
            sequence=9, commands=[api.Command(tag=op.REGISTER_TAG, body=b"\x80")]
        ),
    )
    return api.Reply.FromString(await seat.propose(request.SerializeToString())).client


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


# -- the disk -----------------------------------------------------------------------------------


@in_loop
async def test_a_stalled_disk_does_not_stop_heartbeats(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        seats = list(group.wires.living.values())
        before = [status(seat)["term"] for seat in seats]
        async with stalled(*seats):
            write = asyncio.create_task(caller.call(PutKv(key="during", value=b"v")))
            await time_passes(leader, 5 * QUICK.election_timeout_max_ms // QUICK.tick_ms)
            assert not write.done()
            assert [status(seat)["term"] for seat in seats] == before
            assert status(leader)["role"] == "leader"
        await write
        assert (await group.leader()) is leader


@in_loop
async def test_a_promise_does_not_wait_for_the_apply_of_the_entry_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An append carries the commit of the entry before: both are due in one turn. A disk that is
    busy may hide it once, so some writes are made."""
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        follower = next(seat for seat in group.wires.living.values() if seat is not leader)
        assert follower.replica is not None
        transport, machine = follower.replica.transport, follower.replica._machine
        promised, overtaken = [0], []
        send, applied = transport.send, machine.apply

        def sends(messages: Iterable[Message]) -> None:
            nonlocal promised
            some = list(messages)
            promised += [each.match_index for each in some if isinstance(each, AppendReply)]
            send(some)

        def applies(entry: Entry, *known: Any) -> Any:
            overtaken.append(promised[-1] > entry.index)
            return applied(entry, *known)

        monkeypatch.setattr(transport, "send", sends)
        monkeypatch.setattr(machine, "apply", applies)
        for _ in range(100):
            await caller.call(PutKv(key="k", value=b"v"))
            if any(overtaken):
                break
        assert any(overtaken)


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


@in_loop
async def test_a_leader_counts_itself_only_when_its_own_disk_has_it(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        async with stalled(leader):
            write = asyncio.create_task(caller.call(PutKv(key="promised", value=b"v")))
            await time_passes(leader, 30)
            assert not write.done()
            assert status(leader)["commit"] < status(leader)["last_index"]
        await write


@in_loop
async def test_no_majority_of_disks_is_no_answer(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        async with stalled(*group.followers()):
            write = asyncio.create_task(caller.call(PutKv(key="promised", value=b"v")))
            await time_passes(leader, 30)
            assert not write.done()
            assert status(leader)["commit"] < status(leader)["last_index"]
        await write


@in_loop
async def test_two_disks_of_three_are_enough(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        async with stalled(group.followers()[0]):
            await caller.call(PutKv(key="promised", value=b"v"))


FAILING = """
import asyncio, sys
from pathlib import Path
from state_machines.metadata.kv import PutKv
from tests.actors.wires import Group, running

async def main():
    async with running(Group(Path(sys.argv[1]), replicas=1)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        print("acknowledged", flush=True)
        {fault}
        for number in range(500):
            await caller.call(PutKv(key=f"k{{number}}", value=b"v" * 100_000))
            print("acknowledged", flush=True)
        print("went on", flush=True)

asyncio.run(main())
"""
FULL = """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        (path,) = Path(sys.argv[1]).rglob("log/data.mdb")
        size = path.stat().st_blocks * 512
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
"""
BROKEN = """
        from storage.errors import StorageFailed
        def fail(*_):
            raise StorageFailed("log", "fdatasync: Input/output error")
        group.wires.living["metadata-0/0"].replica.stores.log.save = fail
"""


@pytest.mark.parametrize("fault", [FULL, BROKEN], ids=["the file may not grow", "fsync fails"])
def test_a_failed_commit_ends_the_process(fault: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    ended = subprocess.run(
        [sys.executable, "-c", FAILING.format(fault=fault), str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 70, ended.stderr[-2_000:]
    assert "went on" not in ended.stdout
    acknowledged = ended.stdout.count("acknowledged")

    @in_loop
    async def reopened() -> None:
        group = Group(tmp_path, replicas=1)
        caller = Caller(group.wires, timeout_ms=20_000, rng=Random(1))
        try:
            await group.sit("metadata-0/0")
            page = await caller.call(RangeKv(limit=1_000))
            assert len(page.entries) >= min(acknowledged, 2)
            assert len(page.entries) >= acknowledged
        finally:
            await caller.close()
            await group.close()

    reopened()


def test_it_does_not_start_without_assertions(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-O", "-c", FAILING.format(fault=""), str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode not in (0, 70)
    assert "-O" in ended.stderr
    assert ended.stdout == ""


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
async def test_a_record_that_lies_stops_its_replica_alone(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        for number in range(20):
            await caller.call(PutKv(key=f"k{number:02}", value=b"right"))
        leader = await group.leader()
        liar = group.followers()[0]
        name = liar.spec.seat
        await eventually(lambda: status(liar)["flushed"] == status(leader)["commit"])
        # What the last flush wrote is still in memory; after one more the disk has to be asked.
        await caller.call(PutKv(key="later", value=b"right"))
        await eventually(lambda: status(liar)["flushed"] == status(leader)["commit"])
        replica = liar.replica
        assert replica is not None
        corrupt(replica.stores.state.engine)
        for _ in range(3):
            reply = api.Reply.FromString(
                await liar.query(get_request("k07", stale=True, timeout_ms=5_000))
            )
            assert reply.code == api.STOPPED
            assert "k07" in reply.detail or "metadata.kv" in reply.detail
            assert b"right" not in reply.SerializeToString()
        assert status(liar)["role"] == "stopped"
        assert liar.hello()["status"] == "stopped"
        assert "metadata.kv" in liar.hello()["fault"]
        reply = api.Reply.FromString(await liar.propose(put_request("x", 1, 1)))
        assert reply.code == api.STOPPED
        with pytest.raises(Stopped):
            await liar.export_open(("metadata.node",))
        await caller.call(PutKv(key="after", value=b"v"))
        assert (await caller.call(GetKv(key="k07"))).value == b"right"
        await group.crash(name)
        back = await group.sit(name)  # it lies at the next start as well
        assert back.hello()["status"] == "stopped"
        assert "metadata.kv" in back.hello()["fault"]


def corrupt(engine: Any) -> None:
    """Flip a bit in the stored value of k07, below every checksum."""
    assert isinstance(engine, DiskEngine)
    for key, value in list(engine.scan("metadata.kv")):
        if b"k07" in key:
            place = value.index(b"right")
            flipped = value[:place] + b"wrong" + value[place + 5 :]
            engine.write([("metadata.kv", key, flipped)])
            return
    raise AssertionError("no such row")


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
        late = await follower.query(
            get_request("k", stale=True, min_revision=later, timeout_ms=100)
        )
        assert api.Reply.FromString(late).code == api.UNKNOWN
        assert not waits.done()
        group.wires.cut.clear()
        reply = api.Reply.FromString(await waits)
        assert b"new" in reply.results[0].body
        assert reply.revision >= later


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
