"""Snapshot streams: what the receiver refuses, and how the sender ends in every case."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from zlib import crc32

import pytest

from actors.clock import SystemClock
from actors.committed import Holds
from actors.config import RaftSettings
from actors.snapshots import (
    CHUNK_MESSAGE_BYTES_MAX,
    SEAL_BYTES,
    SnapshotReceiver,
    SnapshotSender,
    sealed,
)
from actors.storage_thread import StorageThread
from actors.transport import Transport
from actors.upkeep import Upkeep
from state_machines.errors import Invalid
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.raft.messages import Configuration, InstallSnapshot, SnapshotMeta
from state_machines.wire import api_pb2 as api
from state_machines.wire import raft_pb2
from storage.errors import CorruptRecord
from storage.stores import MemoryDisk, Stores, memory_stores
from tests.actors.wires import Group, eventually, in_loop, running
from tests.machine.alone import wire

SENDER, RECEIVER, TERM = 1, 2, 5
VOTERS = Configuration(voters=(SENDER, RECEIVER))


@dataclass
class Peers:
    """The one method of a transport that a sender uses. Keeps what was sent."""

    chunks: list[bytes] = field(default_factory=list)
    refuse_after: int = 10**9
    gate: asyncio.Event | None = None

    async def chunk(self, peer: int, chunk: bytes) -> bool:
        if self.gate is not None:
            await self.gate.wait()
        self.chunks.append(chunk)
        return len(self.chunks) <= self.refuse_after


@dataclass
class Pair:
    """A sender over a filled state, a receiver over an empty one."""

    sender: SnapshotSender
    receiver: SnapshotReceiver
    peers: Peers
    stores: Stores
    faults: list[BaseException]
    source: Stores
    holds: Holds
    ended: list[tuple[int, bool]] = field(default_factory=list)

    async def stream(self, term: int = TERM) -> list[bytes]:
        """All chunks of one stream."""
        self.peers.chunks.clear()
        before = len(self.ended)
        self.sender.start(RECEIVER, term, lambda peer, whole: self.ended.append((peer, whole)))
        await eventually(lambda: len(self.ended) > before)
        return list(self.peers.chunks)

    async def take_all(self, chunks: list[bytes]) -> list[tuple[bool, InstallSnapshot | None]]:
        return [await self.receiver.take(each, TERM) for each in chunks]


@asynccontextmanager
async def pair(index: int = 9) -> AsyncIterator[Pair]:
    full, empty = memory_stores(founding=VOTERS), memory_stores(MemoryDisk(), founding=VOTERS)
    for number in range(400):
        full.state.put("t", ("k", number), bytes([number % 256]) * 1_000)
    full.state.set_applied(SnapshotMeta(index, 4, VOTERS))
    sending, receiving = StorageThread("sender"), StorageThread("receiver")
    peers = Peers()
    faults: list[BaseException] = []
    core = SimpleNamespace(
        first_index=1,
        applied_handed=index,
        bytes_between=lambda first, last: last - first + 1,
        progress={RECEIVER: SimpleNamespace(match_index=0)},
    )
    holds = Holds(cast(Any, core), RaftSettings(), SystemClock())
    sender = SnapshotSender(
        cluster="c",
        group="g-0",
        replica=SENDER,
        transport=cast(Transport, peers),
        upkeep=cast(
            Upkeep,
            SimpleNamespace(
                view=lambda: sending.run(full.state.view), holds=holds, failed=faults.append
            ),
        ),
    )
    receiver = SnapshotReceiver(
        cluster="c", group="g-0", replica=RECEIVER, storage=receiving, state=empty.state
    )
    try:
        yield Pair(sender, receiver, peers, empty, faults, full, holds)
    finally:
        sender.close()
        sending.close()
        receiving.close()


def opened(chunk: bytes) -> raft_pb2.SnapshotChunk:
    return raft_pb2.SnapshotChunk.FromString(chunk[SEAL_BYTES:])


def changed(chunk: bytes, **fields: Any) -> bytes:
    """With other fields, sealed as a sender does it."""
    message = opened(chunk)
    for name, value in fields.items():
        setattr(message, name, value)
    return sealed(message)


# -- the receiver -------------------------------------------------------------------------------


@in_loop
async def test_a_whole_stream_is_a_question_for_the_core_and_then_the_state() -> None:
    async with pair() as both:
        chunks = await both.stream()
        assert both.ended == [(RECEIVER, True)]
        assert len(chunks) > 5
        assert max(len(each) for each in chunks) < 64 * 1024  # law 14
        answers = await both.take_all(chunks)
        assert answers[:-1] == [(True, None)] * (len(chunks) - 1)
        meta = SnapshotMeta(9, 4, VOTERS)
        assert answers[-1] == (True, InstallSnapshot(SENDER, RECEIVER, TERM, meta))
        assert both.receiver.holds
        both.stores.state.install(both.receiver.claim(meta), meta)
        both.receiver.release()
        assert both.stores.state.applied == meta
        assert both.stores.state.get("t", ("k", 399)) == bytes([399 % 256]) * 1_000


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"receiver": 3}, "receiver"),
        ({"cluster": "another"}, "cluster"),
        ({"group": "h-0"}, "group"),
    ],
)
def test_what_is_for_somebody_else_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    @in_loop
    async def run() -> None:
        async with pair() as both:
            chunks = await both.stream()
            with pytest.raises(Invalid, match=named):
                await both.receiver.take(changed(chunks[0], **fields), TERM)
            assert (await both.take_all(chunks))[-1][1] is not None

    run()


@in_loop
async def test_what_is_no_chunk_is_refused() -> None:
    async with pair() as both:
        chunks = await both.stream()
        noise = crc32(b"\xff\xff\xff").to_bytes(SEAL_BYTES, "big") + b"\xff\xff\xff"
        for bad, why in (
            (b"\xff\xff\xff", "checksum"),
            (noise, "not an encoded"),
            (b"", "sender"),
            (b"x" * (CHUNK_MESSAGE_BYTES_MAX + 1), "limit"),
        ):
            with pytest.raises(Invalid, match=why):
                await both.receiver.take(bad, TERM)
        large = changed(chunks[0], data=b"x" * CHUNK_MESSAGE_BYTES_MAX)
        with pytest.raises(Invalid, match="limit"):
            await both.receiver.take(large, TERM)


@in_loop
async def test_a_stream_that_does_not_begin_at_the_beginning_is_not_taken() -> None:
    async with pair() as both:
        chunks = await both.stream()
        assert await both.receiver.take(chunks[1], TERM) == (False, None)
        assert await both.receiver.take(chunks[-1], TERM) == (False, None)


@in_loop
async def test_a_gap_or_a_flipped_bit_breaks_the_stream_and_a_new_one_is_taken() -> None:
    async with pair() as both:
        chunks = await both.stream()
        data = bytearray(opened(chunks[2]).data)
        data[7] ^= 1
        flipped = changed(chunks[2], data=bytes(data))
        digest = changed(chunks[-1], digest=b"\0" * 32)
        fewer = changed(chunks[-1], records=3)
        for broken in (
            [chunks[0], chunks[2]],
            [chunks[0], chunks[1], flipped],
            [*chunks[:-1], digest],
            [*chunks[:-1], fewer],
        ):
            answers = await both.take_all(broken)
            assert answers[-1] == (False, None)
            assert await both.receiver.take(chunks[1], TERM) == (False, None)  # thrown away
            assert not both.receiver.holds
        assert (await both.take_all(chunks))[-1][1] is not None


@in_loop
async def test_no_flipped_bit_of_a_chunk_is_believed_not_that_of_its_sender_either() -> None:
    """Seed 70 of the simulation: a bit of the sender of a snapshot in one chunk, which came by a
    Ray call, and the receiver stopped because its term seemed to have two leaders."""
    async with pair() as both:
        chunk = (await both.stream())[0]
        header = len(chunk) - len(opened(chunk).data)
        for bit in range(8 * header):
            flipped = bytearray(chunk)
            flipped[bit // 8] ^= 1 << bit % 8
            with pytest.raises(Invalid, match="chunk: fails its checksum"):
                await both.receiver.take(bytes(flipped), TERM)
        assert (await both.receiver.take(chunk, TERM))[0]


@in_loop
async def test_a_chunk_that_comes_twice_does_no_harm() -> None:
    async with pair() as both:
        chunks = await both.stream()
        doubled = [each for chunk in chunks[1:-1] for each in (chunk, chunk)]
        answers = await both.take_all([chunks[0], *doubled, chunks[-1]])
        assert all(taken for taken, _ in answers)
        assert answers[-1][1] is not None


@in_loop
async def test_an_older_term_and_another_sender_are_not_taken() -> None:
    async with pair() as both:
        chunks = await both.stream()
        assert await both.receiver.take(chunks[0], TERM + 1) == (False, None)
        assert (await both.receiver.take(chunks[0], TERM))[0]
        assert await both.receiver.take(changed(chunks[1], sender=7), TERM) == (False, None)
        assert await both.receiver.take(changed(chunks[1], term=TERM + 1), TERM) == (False, None)
        assert (await both.receiver.take(chunks[1], TERM))[0]


@in_loop
async def test_a_new_stream_takes_the_place_of_one_that_broke_off() -> None:
    async with pair() as both:
        chunks = await both.stream()
        await both.take_all(chunks[:3])
        newer = await both.stream(TERM + 1)
        answers = await both.take_all(newer)
        assert answers[-1][1] == InstallSnapshot(
            SENDER, RECEIVER, TERM + 1, SnapshotMeta(9, 4, VOTERS)
        )


@in_loop
async def test_while_one_is_verified_another_waits() -> None:
    async with pair() as both:
        chunks = await both.stream()
        await both.take_all(chunks)
        assert both.receiver.holds
        for chunk in chunks:
            assert await both.receiver.take(chunk, TERM) == (False, None)
        staging = both.receiver.claim(SnapshotMeta(9, 4, VOTERS))
        assert staging.ready  # nothing has touched it
        with pytest.raises(AssertionError):
            both.receiver.claim(SnapshotMeta(10, 4, VOTERS))
        both.receiver.release()
        assert (await both.take_all(chunks))[-1][1] is not None


@in_loop
async def test_of_one_that_is_not_wanted_nothing_is_left() -> None:
    """The core refuses a snapshot that its log has overtaken: else its copy stays on the disk."""
    async with pair() as both:
        await both.take_all(await both.stream())
        shelf = both.stores.state._shelf
        assert shelf.staged is not None
        both.receiver.release()
        await eventually(lambda: shelf.staged is None)


# -- the sender ---------------------------------------------------------------------------------


@in_loop
async def test_a_peer_that_refuses_ends_the_stream() -> None:
    async with pair() as both:
        both.peers.refuse_after = 2
        await both.stream()
        assert len(both.peers.chunks) == 3
        assert both.ended == [(RECEIVER, False)]
        assert both.sender.sent == 0
        assert both.holds.limit(50) is None
        both.peers.refuse_after = 10**9
        await both.stream()
        assert both.ended[-1] == (RECEIVER, True)
        assert both.sender.sent == 1
        assert both.holds.limit(50) == 0, "where the log began"


@in_loop
async def test_there_is_one_stream_a_peer() -> None:
    async with pair() as both:
        both.peers.gate = asyncio.Event()
        for _ in range(5):
            both.sender.start(RECEIVER, TERM, lambda peer, whole: both.ended.append((peer, whole)))
        both.sender.start(7, TERM, lambda peer, whole: both.ended.append((peer, whole)))
        await asyncio.sleep(0)
        both.peers.gate.set()
        await eventually(lambda: len(both.ended) == 2)
        assert sorted(both.ended) == [(RECEIVER, True), (7, True)]


@in_loop
async def test_a_peer_that_dies_in_mid_stream_is_told_to_the_core_and_served_when_back(
    tmp_path: Path,
) -> None:
    async with running(Group(tmp_path)) as (group, caller):
        await caller.call(PutKv(key="first", value=b"v"))
        leader = await group.leader()
        away = group.followers()[0].spec.seat
        await group.crash(away)
        for number in range(100):
            await caller.call(PutKv(key=f"k{number:03}", value=b"v" * 5_000))
        assert leader.replica is not None
        replica = leader.replica
        await eventually(lambda: replica.core.first_index > 30)
        failed: list[int] = []
        plain = replica.core.snapshot_failed

        def noted(peer: int) -> None:
            failed.append(peer)
            plain(peer)

        replica.core.snapshot_failed = noted  # type: ignore[method-assign]
        back = await group.sit(away)
        chunks, third = 0, asyncio.Event()
        taken = back.chunk

        async def dying(chunk: bytes) -> bool:
            nonlocal chunks
            chunks += 1
            if chunks == 3:
                third.set()
                await asyncio.Event().wait()
            return await taken(chunk)

        back.chunk = dying  # type: ignore[method-assign]
        await asyncio.wait_for(third.wait(), 20)
        await group.crash(away)
        await eventually(lambda: failed)
        assert replica.snapshots.sent == 0
        again = await group.sit(away)
        await eventually(
            lambda: again.replica and again.replica.status()["applied"] >= replica.core.commit
        )
        await eventually(lambda: replica.snapshots.sent)  # it may have been told of it since
        assert replica.snapshots.sent == 1
        assert (await group.leader()) is leader


@in_loop
async def test_who_is_streamed_a_snapshot_catches_up_with_a_group_that_is_written_to(
    tmp_path: Path,
) -> None:
    """Were the log cut while the stream is under way, as far as it is flushed, the peer would need
    the next stream when it has this one."""
    async with running(Group(tmp_path)) as (group, caller):
        leader = await group.leader()
        away = group.followers()[0].spec.seat
        await group.crash(away)

        async def write(count: int) -> None:
            for number in range(count):
                await caller.call(PutKv(key=f"k{number:03}", value=b"v" * 5_000))
            upto = leader.status()["commit"]
            await eventually(lambda: leader.status()["flushed"] >= upto)

        await write(60)
        await eventually(lambda: leader.status()["first_index"] > 1)
        back = await group.sit(away)
        taken, begun, go_on = back.chunk, asyncio.Event(), asyncio.Event()

        async def slow(chunk: bytes) -> bool:
            begun.set()
            await go_on.wait()
            return await taken(chunk)

        back.chunk = slow  # type: ignore[method-assign]
        await begun.wait()
        first = leader.status()["first_index"]
        for _ in range(3):  # each is flushed on its own, and the log looked at after it
            await write(30)
        assert leader.status()["first_index"] == first, "120 entries, where 20 to 40 are kept"
        go_on.set()
        await eventually(lambda: back.status()["applied"] >= leader.status()["commit"])
        assert leader.replica is not None
        assert leader.replica.snapshots.sent == 1
        await write(30)
        await eventually(lambda: leader.status()["first_index"] > first + 60)


@in_loop
async def test_a_sender_that_cannot_read_its_own_rows_serves_no_more() -> None:
    async with pair() as both:
        state = both.source.state
        state.flush()
        key, sealed = next(iter(state.engine.scan("t")))
        state.engine.write([("t", key, sealed[:-1] + bytes([sealed[-1] ^ 1]))])
        await both.stream()
        assert both.ended == [(RECEIVER, False)]
        assert [type(each) for each in both.faults] == [CorruptRecord]


@in_loop
async def test_reads_after_a_snapshot_are_of_the_snapshot(tmp_path: Path) -> None:
    """What a replica keeps for its reads between two entries is nothing to those after it; and who
    waits for what it brings is answered."""
    async with running(Group(tmp_path)) as (group, caller):
        first = await caller.call(PutKv(key="k", value=b""))
        leader, away = await group.leader(), group.followers()[0]

        async def revision(at_least: int = 0) -> int:
            request = api.QueryRequest(
                group="metadata-0",
                stale=True,
                min_revision=at_least,
                queries=[wire(GetKv(key="k"))],
            )
            return api.Reply.FromString(await away.query(request.SerializeToString())).revision

        await eventually(lambda: away.replica and away.replica.applied.index >= first)
        assert await revision() == first
        seat = away.spec.seat
        for other in group.seat_names:
            group.wires.cut |= {(seat, other), (other, seat)}
        for number in range(100):
            last = await caller.call(PutKv(key=f"k{number:03}", value=b"v" * 5_000))
        assert leader.replica is not None
        replica = leader.replica
        await eventually(lambda: replica.core.first_index > 30)
        assert await revision() == first
        waits = asyncio.create_task(revision(last))
        group.wires.cut.clear()
        await eventually(lambda: away.replica and away.replica.applied.index >= last)
        assert replica.snapshots.sent == 1
        assert await waits == last
        assert await revision() == last
