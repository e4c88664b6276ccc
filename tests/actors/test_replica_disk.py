"""A replica over a disk that stalls, fails or lies."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.caller import Caller
from actors.seat import Seat
from state_machines.errors import Stopped
from state_machines.metadata.kv import GetKv, PutKv, RangeKv
from state_machines.raft.messages import AppendReply, Entry, Message
from state_machines.wire import api_pb2 as api
from storage.disk import DiskEngine
from tests.actors.at_seat import (
    get_request,
    put_request,
    stalled,
    status,
    time_passes,
)
from tests.actors.wires import QUICK, Group, eventually, in_loop, running


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


async def nothing_is_agreed_on_over(leader: Seat, caller: Caller, *seats: Seat) -> None:
    """A write has no answer while the disks of these seats are stalled, and has one after."""
    async with stalled(*seats):
        write = asyncio.create_task(caller.call(PutKv(key="promised", value=b"v")))
        await time_passes(leader, 30)
        assert not write.done()
        assert status(leader)["commit"] < status(leader)["last_index"]
    await write


@in_loop
async def test_a_leader_counts_itself_only_when_its_own_disk_has_it(tmp_path: Path) -> None:
    async with running(Group(tmp_path, replicas=1)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        leader = await group.leader()
        await nothing_is_agreed_on_over(leader, caller, leader)


@in_loop
async def test_no_majority_of_disks_is_no_answer(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        await nothing_is_agreed_on_over(await group.leader(), caller, *group.followers())


@in_loop
async def test_two_disks_of_three_are_enough(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        async with stalled(group.followers()[0]):
            await caller.call(PutKv(key="promised", value=b"v"))


@in_loop
async def test_a_leader_whose_disk_hangs_is_replaced_and_its_readers_ask_the_next(
    tmp_path: Path,
) -> None:
    """The others have the entry on their disks: neither writes nor reads behind it wait for its."""
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="k", value=b"v"))
        old = await group.leader()
        async with stalled(old):
            write = asyncio.create_task(caller.call(PutKv(key="k", value=b"later")))
            await eventually(lambda: status(old)["commit"] > status(old)["applied"])
            read = await old.query(get_request("k", timeout_ms=20_000))
            assert api.Reply.FromString(read).code == api.NOT_LEADER
            await write
            assert (await group.leader()) is not old
            assert (await caller.call(GetKv(key="k"))).value == b"later"
            upto = status(await group.leader())["commit"]
        await eventually(lambda: status(old)["applied"] >= upto)


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
async def test_a_record_that_lies_stops_its_replica_alone(tmp_path: Path) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        for number in range(20):
            await caller.call(PutKv(key=f"k{number:02}", value=b"right"))
        leader = await group.leader()
        liar = group.followers()[0]
        name = liar.spec.seat
        await eventually(lambda: status(liar)["flushed"] == status(leader)["commit"])
        # What the last two flushes wrote is still in memory; then the disk has to be asked.
        for later in ("later", "still later"):
            await caller.call(PutKv(key=later, value=b"right"))
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
