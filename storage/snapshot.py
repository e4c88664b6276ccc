"""A snapshot: the whole state at one index, as a stream of small checksummed chunks.

    for chunk in write_stream(view): send(chunk)            # the leader's side, from a read view
    staging = state.stage(); staging.add(chunk) ...         # the receiver's side, in any pace
    staging.finish(); state.install(staging, meta)          # verified whole, then put in force

The stream is a header (format, and the point: index, term, configuration), then each table's name
and its rows in key order, then the number of rows. It says nothing of LMDB, so an environment's
pages never travel. Each chunk has a CRC-32; the last one carries the number of rows and the SHA-256
of all data. Checksums of rows do not travel: they are checked as the rows are read, and made anew
as they are stored.

    header  "metaray1" | u32 size | SnapshotMeta
    table   "T" | u8 size | name
    row     "R" | u16 key size | u32 value size | key | value
    end     "E" | u64 rows

Nothing is believed before it is checked: chunks in order, sizes within limits before anything is
gathered, tables and keys strictly ascending, and at the end count and digest. Only then may
`State.install` switch to it. A chunk that arrives twice is ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from struct import Struct
from typing import Protocol

from isal.isal_zlib import crc32

from state_machines.raft.messages import SnapshotMeta
from state_machines.wire.codec import WireError, decode_meta
from storage import keys, records
from storage.disk import TABLES
from storage.engine import CRC_BYTES, ENGINE_VALUE_BYTES, Change
from storage.errors import BadSnapshot
from storage.records import sealed
from storage.shelf import Shelf

CHUNK_BYTES = 60 << 10
"""Data per chunk, so that a whole message stays below 64 KiB (law 14)."""

META_BYTES = 64 << 10
"""The longest header: a configuration of thousands of replicas."""

STAGE_ROWS = 4000
STAGE_BYTES = 2 << 20
"""A staging transaction holds about so much."""

ROW_VALUE_BYTES = ENGINE_VALUE_BYTES - CRC_BYTES
"""The longest value of a row: it is stored with its checksum."""

STATE = "@state"
"""The table of the state's own records. Tables of rows may not begin with `@`."""
APPLIED = b"applied"
INSTALLED = b"installed"

_MAGIC = b"metaray1"
_HEADER = Struct(">8sI")
_ROW = Struct(">cHI")
_TABLE = Struct(">cB")
_END = Struct(">cQ")
_NAME = re.compile(rb"[A-Za-z][\w.-]{0,63}")
"""Of a table. LMDB ends a name at a NUL, so that two names could be one table."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the stream; the fields are those of `SnapshotChunk` in `proto/raft.proto`."""

    number: int  #: 0, 1, 2, ...
    data: bytes
    crc: int  #: CRC-32 of data
    last: bool = False
    records: int = 0  #: in the last chunk: how many rows the stream had
    digest: bytes = b""  #: in the last chunk: SHA-256 of all data


class Source(Protocol):
    """What a snapshot is made of: `state.StateView`."""

    @property
    def applied(self) -> SnapshotMeta:
        """The point the rows are of."""
        ...

    def tables(self) -> tuple[str, ...]:
        """The names of the tables, sorted."""
        ...

    def rows(self, table: str) -> Iterator[tuple[bytes, bytes]]:
        """Encoded key and value of every row of a table, in key order."""
        ...


def write_stream(view: Source, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The chunks of a snapshot of `view`, made as they are asked for: memory stays bounded by one
    row. The view must stay open until the last one was taken."""
    buffer = bytearray()
    digest = sha256()
    number = 0
    counter = _Counter()
    for piece in _pieces(view, counter):
        buffer += piece
        while len(buffer) > chunk_bytes:  # never empties it: the last chunk has data too
            data = bytes(buffer[:chunk_bytes])
            del buffer[:chunk_bytes]
            digest.update(data)
            yield Chunk(number, data, crc32(data))
            number += 1
    data = bytes(buffer)
    digest.update(data)
    # failpoint: snapshot.last_chunk
    yield Chunk(number, data, crc32(data), True, counter.rows, digest.digest())


class Staging:
    """A snapshot being received into a staged environment. Used on the storage thread."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf
        self._engine = shelf.stage()
        self._crcs: list[int] = []
        self._digest = sha256()
        self._parser = _Parser()
        self._changes: list[Change] = []
        self._bytes = 0
        self._last: Chunk | None = None
        #: the point of the snapshot, once the header has been read
        self.meta: SnapshotMeta | None = None
        self._finished = False

    @property
    def ready(self) -> bool:
        """Whether the whole snapshot is staged, verified, and was not replaced by another."""
        return self._finished and self._shelf.staged is self._engine

    def add(self, chunk: Chunk) -> None:
        """Take the next chunk. Raises `BadSnapshot`; then `discard` and ask for a new stream."""
        if self._shelf.staged is not self._engine:
            raise BadSnapshot("another snapshot has taken this one's place")
        if crc32(chunk.data) != chunk.crc:
            raise BadSnapshot(f"chunk {chunk.number} fails its checksum")
        if chunk.number < len(self._crcs):
            if self._crcs[chunk.number] != chunk.crc:
                raise BadSnapshot(f"chunk {chunk.number} came twice, with different data")
            return
        if chunk.number > len(self._crcs):
            raise BadSnapshot(f"chunk {chunk.number} came where {len(self._crcs)} belongs")
        if self._last is not None:
            raise BadSnapshot(f"chunk {chunk.number} came after the last one")
        self._crcs.append(chunk.crc)
        self._digest.update(chunk.data)
        if chunk.last:
            self._last = chunk
        for table, key, value in self._parser.feed(chunk.data):
            self._changes.append(sealed(table, key, value))
            self._bytes += len(key) + len(value)
        self.meta = self._parser.meta
        if len(self._changes) >= STAGE_ROWS or self._bytes >= STAGE_BYTES:
            self._write()

    def finish(self) -> SnapshotMeta:
        """Verify the whole. Returns its point. Raises `BadSnapshot`."""
        last = self._last
        if self._shelf.staged is not self._engine:
            raise BadSnapshot("another snapshot has taken this one's place")
        if last is None:
            raise BadSnapshot(f"the stream was cut short after {len(self._crcs)} chunks")
        rows, meta = self._parser.end()
        if rows != last.records:
            raise BadSnapshot(f"{rows} rows arrived, {last.records} were sent")
        if self._digest.digest() != last.digest:
            raise BadSnapshot("the digest of the stream is another than the sender's")
        # failpoint: stage.before_point
        # The point goes in last, so an environment without it is not a state.
        self._changes.append(sealed(STATE, APPLIED, records.meta_to(meta)))
        self._changes.append(sealed(STATE, INSTALLED, meta.index.to_bytes(8, "big")))
        self._write()
        # failpoint: stage.verified
        self._finished = True
        return meta

    def discard(self) -> None:
        """Throw away what was received; nothing happens if another staging took its place."""
        if self._shelf.staged is self._engine:
            self._shelf.discard()

    def _write(self) -> None:
        # failpoint: stage.before_write
        self._engine.write(self._changes)
        # failpoint: stage.after_write
        self._changes, self._bytes = [], 0


class _Counter:
    """How many rows were sent."""

    def __init__(self) -> None:
        self.rows = 0


def _pieces(view: Source, counter: _Counter) -> Iterator[bytes]:
    meta = records.meta_to(view.applied)
    yield _HEADER.pack(_MAGIC, len(meta)) + meta
    for table in view.tables():
        name = table.encode()
        begun = False
        for key, value in view.rows(table):
            if not begun:
                # failpoint: snapshot.table
                begun = True  # tables without rows do not travel
                yield _TABLE.pack(b"T", len(name)) + name
            counter.rows += 1
            yield _ROW.pack(b"R", len(key), len(value)) + key + value
    # failpoint: snapshot.last_row
    yield _END.pack(b"E", counter.rows)


class _Parser:
    """Takes the stream apart, whatever the chunks' borders are."""

    def __init__(self) -> None:
        self.meta: SnapshotMeta | None = None
        self._rest = bytearray()
        self._table = ""
        self._tables = 0
        self._key = b""
        self._rows = 0
        self._ended = False

    def feed(self, data: bytes) -> Iterator[tuple[str, bytes, bytes]]:
        """Rows (table, key, value) that became whole."""
        self._rest += data
        at = 0
        while (step := self._next(at)) is not None:
            at, row = step
            if row is not None:
                yield row
        del self._rest[:at]

    def end(self) -> tuple[int, SnapshotMeta]:
        """Rows and point of a stream that is complete."""
        if not self._ended or self.meta is None:
            raise BadSnapshot("the stream has no end record")
        return self._rows, self.meta

    def _next(self, at: int) -> tuple[int, tuple[str, bytes, bytes] | None] | None:
        """The record at `at`: where it ends, and its row; None if it is not whole yet."""
        rest = self._rest
        have = len(rest) - at
        if have == 0:
            return None
        if self._ended:
            raise BadSnapshot("data follows the end record")
        if self.meta is None:
            return self._header(have)
        match rest[at]:
            case 0x52:  # R
                return self._row(at, have)
            case 0x54:  # T
                return self._begin_table(at, have)
            case 0x45:  # E
                if have < _END.size:
                    return None
                count = _END.unpack_from(rest, at)[1]
                if count != self._rows:
                    raise BadSnapshot(f"{self._rows} rows in the stream, its end says {count}")
                self._ended = True
                return at + _END.size, None
            case other:
                raise BadSnapshot(f"a record of unknown kind {other}")

    def _header(self, have: int) -> tuple[int, None] | None:
        if have < _HEADER.size:
            return None
        magic, size = _HEADER.unpack_from(self._rest)
        if magic != _MAGIC:
            raise BadSnapshot(f"the stream begins with {magic!r}, not with {_MAGIC!r}")
        if size > META_BYTES:
            raise BadSnapshot(f"the header has {size} bytes; the limit is {META_BYTES}")
        if have < _HEADER.size + size:
            return None
        try:
            self.meta = decode_meta(bytes(self._rest[_HEADER.size : _HEADER.size + size]))
        except WireError as error:
            raise BadSnapshot(f"the header cannot be read: {error.detail}") from error
        return _HEADER.size + size, None

    def _begin_table(self, at: int, have: int) -> tuple[int, None] | None:
        if have < _TABLE.size:
            return None
        size = _TABLE.unpack_from(self._rest, at)[1]
        begin = at + _TABLE.size
        if have < _TABLE.size + size:
            return None
        name = bytes(self._rest[begin : begin + size])
        if not _NAME.fullmatch(name):
            raise BadSnapshot(f"{name!r} is no name of a table")
        table = name.decode()
        if not self._table < table:
            raise BadSnapshot(f"table {table!r} after {self._table!r}")
        self._tables += 1
        if self._tables >= TABLES:  # one is the state's own
            raise BadSnapshot(f"{self._tables} tables, the limit is {TABLES - 1}")
        self._table, self._key = table, b""
        return begin + size, None

    def _row(self, at: int, have: int) -> tuple[int, tuple[str, bytes, bytes]] | None:
        if have < _ROW.size:
            return None
        _, key_size, value_size = _ROW.unpack_from(self._rest, at)
        if not self._table:
            raise BadSnapshot("a row before the first table")
        if not 0 < key_size <= keys.KEY_BYTES or value_size > ROW_VALUE_BYTES:
            raise BadSnapshot(f"a row of {key_size} + {value_size} bytes is beyond the limits")
        if have < _ROW.size + key_size + value_size:
            return None
        begin = at + _ROW.size
        key = bytes(self._rest[begin : begin + key_size])
        if key <= self._key:
            raise BadSnapshot(f"row {key!r} after {self._key!r} in table {self._table!r}")
        end = begin + key_size + value_size
        self._key = key
        self._rows += 1
        return end, (self._table, key, bytes(self._rest[begin + key_size : end]))
