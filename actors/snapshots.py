"""Snapshots between replicas: the state streamed to a peer that needs what the log no longer has.

The sender takes a view of its state (flushed, at one index) and sends it chunk by chunk, each an
answered call, so a slow receiver slows the sender and nothing else. The receiver stages the chunks
beside the state in force and, once the stream is whole and verified, asks the core: only if the
core wants it does the next save switch to it (law 6). A stream that breaks anywhere is thrown away
and begun anew; there is at most one a peer, and one being received. What its peer will need after
it is held (`committed.Holds`).

A chunk travels as the CRC-32 of its message (4 bytes, highest first) and the message: who sends it,
in which term, is believed as little as the data, whatever carries it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from google.protobuf.message import DecodeError
from isal.isal_zlib import crc32

from actors.storage_thread import StorageThread
from actors.transport import Transport
from actors.upkeep import Upkeep
from state_machines.errors import Invalid
from state_machines.raft import TERM_MAX
from state_machines.raft.messages import InstallSnapshot, SnapshotMeta
from state_machines.wire import codec, raft_pb2
from storage import records
from storage.errors import BadSnapshot, CorruptRecord, StorageError, StorageFailed
from storage.snapshot import Chunk, Staging, write_stream
from storage.state import State

CHUNK_MESSAGE_BYTES_MAX = 128 * 1024  #: a whole sealed chunk; refused before it is decoded
SEAL_BYTES = 4

log = logging.getLogger(__name__)


class SnapshotSender:
    """Streams this replica's state to peers, one stream each."""

    def __init__(
        self,
        *,
        cluster: str,
        group: str,
        replica: int,
        transport: Transport,
        upkeep: Upkeep,
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._replica = replica
        self._transport = transport
        self._upkeep = upkeep
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self.sent = 0  #: whole streams that a peer took

    def start(self, peer: int, term: int, ended: Callable[[int, bool], None]) -> None:
        """Begin a stream to the peer, unless one is under way; `ended(peer, whole)` at its end."""
        if peer in self._tasks:
            return

        async def work() -> None:
            whole = False
            try:
                whole = await self._stream(peer, term)
            except (CorruptRecord, StorageFailed) as error:
                # Laws 16 and 17: it cannot read its rows, or not flush them.
                self._upkeep.failed(error)
            except StorageError as error:
                log.warning("%s: snapshot for %x: %s", self._group, peer, error)
            finally:
                self._tasks.pop(peer, None)
                if not whole:
                    self._upkeep.holds.broken(peer)
            self.sent += whole
            # failpoint: snapshot.ended
            ended(peer, whole)

        # failpoint: snapshot.started
        self._upkeep.holds.stream(peer)
        self._tasks[peer] = asyncio.get_running_loop().create_task(work())

    async def _stream(self, peer: int, term: int) -> bool:
        view = await self._upkeep.view()
        try:
            # failpoint: snapshot.viewed
            meta = raft_pb2.SnapshotMeta.FromString(records.meta_to(view.applied))
            chunks = write_stream(view)
            while (chunk := await asyncio.to_thread(_next, chunks)) is not None:
                message = raft_pb2.SnapshotChunk(
                    cluster=self._cluster,
                    group=self._group,
                    sender=self._replica,
                    receiver=peer,
                    term=term,
                    meta=meta,
                    number=chunk.number,
                    data=chunk.data,
                    crc=chunk.crc,
                    last=chunk.last,
                    records=chunk.records,
                    digest=chunk.digest,
                )
                # failpoint: snapshot.before_chunk
                if not await self._transport.chunk(peer, sealed(message)):
                    return False
            # failpoint: snapshot.sent
            return True
        finally:
            # failpoint: snapshot.before_closing
            view.close()

    def close(self) -> None:
        """Give up every stream."""
        for task in self._tasks.values():
            task.cancel()


def sealed(message: raft_pb2.SnapshotChunk) -> bytes:
    """A chunk as it travels."""
    data = message.SerializeToString()
    return crc32(data).to_bytes(SEAL_BYTES, "big") + data


def _next(chunks: Iterator[Chunk]) -> Chunk | None:
    return next(chunks, None)


def _discarded(_: None) -> None:
    """Nothing waits for it."""


class SnapshotReceiver:
    """Takes one stream at a time, and holds it verified until the core has decided."""

    def __init__(
        self, *, cluster: str, group: str, replica: int, storage: StorageThread, state: State
    ) -> None:
        self._cluster = cluster
        self._group = group
        self._replica = replica
        self._storage = storage
        self._state = state
        self._stream: tuple[int, int] = (0, 0)  # (sender, term) of the stream being received
        self._staging: Staging | None = None
        self._verified: tuple[SnapshotMeta, Staging] | None = None
        self.holds = False  #: whether a verified snapshot waits for the core's decision
        self._lock = asyncio.Lock()

    async def take(self, data: bytes, term: int) -> tuple[bool, InstallSnapshot | None]:
        """Take one sealed chunk. Whether it was taken, and the question for the core at the end.

        Raises Invalid for what is not a chunk for this replica.
        """
        message = self._parse(data)
        async with self._lock:
            if message.term < term or self._verified is not None:
                return False, None
            if message.number == 0:
                # failpoint: receive.before_staging
                self._staging = await self._storage.run(self._state.stage)
                # failpoint: receive.staging
                self._stream = (message.sender, message.term)
            if self._staging is None or self._stream != (message.sender, message.term):
                return False, None
            chunk = Chunk(
                message.number,
                message.data,
                message.crc,
                message.last,
                message.records,
                message.digest,
            )
            return await self._add(self._staging, chunk, message)

    async def _add(
        self, staging: Staging, chunk: Chunk, message: raft_pb2.SnapshotChunk
    ) -> tuple[bool, InstallSnapshot | None]:
        def job() -> SnapshotMeta | None:
            # failpoint: receive.before_chunk
            staging.add(chunk)
            # failpoint: receive.after_chunk
            meta = staging.finish() if chunk.last else None
            if meta is not None and meta.term > message.term:
                raise BadSnapshot(f"a snapshot of term {meta.term} came in term {message.term}")
            return meta

        try:
            meta = await self._storage.run(job)
        except BadSnapshot as error:
            log.warning("%s: snapshot from %x: %s", self._group, message.sender, error)
            await self._storage.run(staging.discard)
            self._staging = None
            return False, None
        if meta is None:
            return True, None
        self._staging, self._verified, self.holds = None, (meta, staging), True
        # failpoint: receive.verified
        return True, InstallSnapshot(message.sender, self._replica, message.term, meta)

    def claim(self, meta: SnapshotMeta) -> Staging:
        """The verified snapshot that the core wants installed."""
        assert self._verified is not None, "the core wants a snapshot that was not received"
        found, staging = self._verified
        assert found == meta, f"the core wants {meta}, received was {found}"
        return staging

    def release(self) -> None:
        """The core has installed or refused it; another one may come, and nothing is left of it."""
        assert self._verified is not None, "there is something to release"
        (_, staging), self._verified, self.holds = self._verified, None, False
        # failpoint: receive.released
        self._storage.hand(staging.discard, _discarded, self._left)

    def _left(self, error: BaseException) -> None:
        log.warning("%s: a snapshot that was not wanted is left over: %s", self._group, error)

    def _parse(self, data: bytes) -> raft_pb2.SnapshotChunk:
        if not isinstance(data, bytes):
            raise Invalid(f"chunk: bytes are wanted, not {type(data).__name__}")
        if len(data) > CHUNK_MESSAGE_BYTES_MAX:
            raise Invalid(f"chunk: {len(data)} bytes, the limit is {CHUNK_MESSAGE_BYTES_MAX}")
        if crc32(data[SEAL_BYTES:]) != int.from_bytes(data[:SEAL_BYTES], "big"):
            raise Invalid("chunk: fails its checksum")
        try:
            message = raft_pb2.SnapshotChunk.FromString(data[SEAL_BYTES:])
        except DecodeError:
            raise Invalid("chunk: not an encoded SnapshotChunk") from None
        if message.sender == self._replica or not 0 < message.sender <= codec.ID_MAX:
            raise Invalid(f"chunk: sender is {message.sender}")
        if message.term > TERM_MAX:
            raise Invalid(f"chunk: term is {message.term}, the limit is {TERM_MAX}")
        for name, wanted in (
            ("cluster", self._cluster),
            ("group", self._group),
            ("receiver", self._replica),
        ):
            if getattr(message, name) != wanted:
                shown = str(getattr(message, name))[:80]
                raise Invalid(f"chunk: {name} is {shown!r}, not {wanted!r}")
        return message
