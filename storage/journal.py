"""The journal: records that are durable with one flush of the disk, and what a crash leaves.

    journal = Journal("where", files)
    older, newer = journal.read(done)  # at start: what was appended after record number `done`
    number = journal.append(b"...")    # durable on return
    journal.turn(keep)                 # go on in the other file, from its beginning

Two files, used in turns: while the records of one are carried elsewhere, the other one grows. Every
record has a number, one more than the record before it; so a file is used anew without being
emptied, and what was in it before has lower numbers.

A file consists of sectors of 512 bytes, which disks write whole or not at all:

    number | life | bytes of the record | place of the sector in it | CRC-32 | 488 bytes of it

so each sector says by itself whether it is sound, and of which record. A record was torn by a crash
if some of its sectors are older ones, or blank; it is dropped, for nobody was told that it is
durable. Its number is given again, by another process in a later *life* of the journal, so that
what is left of it can never be taken for a part of the new one.

A sector that is neither sound nor blank is damage, wherever it is: a flipped bit in the last record
would otherwise look like a torn one, and a promise would be forgotten (law 16). Records are written
one at a time, so only the last can be torn: whatever is missing before a later one is damage, too.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple, Protocol

from isal.isal_zlib import crc32

from storage.errors import CorruptLog, CorruptRecord

SECTOR_BYTES: Final = 512
GROW_BYTES: Final = 256 << 10
"""A file grows by so much at a time, in zeros: writing within it changes nothing but its data, for
which one flush of the disk is enough."""

_HEAD: Final = Struct("<QIII")
_CRC: Final = Struct("<I")
_HEAD_BYTES: Final = _HEAD.size + _CRC.size
DATA_BYTES: Final = SECTOR_BYTES - _HEAD_BYTES
BLANK: Final = bytes(SECTOR_BYTES)


class File(Protocol):
    """One file of a journal."""

    def read(self) -> bytes:
        """All of it, as it will be after a power failure, too. Raises OSError."""
        ...

    def write(self, at: int, data: bytes) -> None:
        """Write there; durable on return, with the size of the file. Raises OSError."""
        ...

    def cut(self, size: int) -> None:
        """Let go of what is behind `size`, now or never. Raises OSError."""
        ...

    def close(self) -> None:
        """Close it. Closing twice is fine."""
        ...


class Record(NamedTuple):
    """A record and its number."""

    number: int
    data: bytes


class _Sector(NamedTuple):
    """A sound sector; `number` 0 is a blank one."""

    number: int
    life: int
    size: int
    place: int
    data: bytes


_NOTHING: Final = _Sector(0, 0, 0, 0, b"")


class Journal:
    """Records in two files. Call `read` once before anything else; used on one thread."""

    def __init__(
        self, where: str, files: tuple[File, File], *, grow_bytes: int = GROW_BYTES
    ) -> None:
        self.where = where
        self._grow = _whole(grow_bytes)
        #: how full the file in use is: where the next record goes
        self.size = 0
        #: the number of the last record
        self.last = 0
        self._life = 1
        self._files = files
        self._rooms = [0, 0]  # the bytes of each file that are there already
        self._used = 0  # the place of the file in use

    def read(self, done: int) -> tuple[list[Record], list[Record]]:
        """The records after number `done`, in order: those of the other file, which has to be free
        before the next `turn`, and those of the file in use.

        Raises `CorruptRecord` for a sector that is damaged, `CorruptLog` where records are missing,
        OSError where a file cannot be read.
        """
        files = [self._sectors(place, file.read()) for place, file in enumerate(self._files)]
        self._rooms = [len(sectors) * SECTOR_BYTES for sectors in files]
        found: list[list[Record]] = []
        ends: list[int] = []
        for sectors in files:
            records, end = _records(sectors)
            found.append([each for each in records if each.number > done])
            ends.append(end * SECTOR_BYTES)
        self._used = 1 if found[1] > found[0] else 0  # by the number of the first
        older, newer = found[1 - self._used], found[self._used]
        self.size = ends[self._used] if newer else 0
        self.last = done
        for record in (*older, *newer):
            if record.number != self.last + 1:
                why = f"record {record.number} of its journal follows record {self.last}"
                raise CorruptLog(self.where, why)
            self.last = record.number
        newest = max((each.number for sectors in files for each in sectors), default=0)
        if newest > self.last + 1:  # one is written at a time, so one at most is torn
            why = f"its journal ends at record {self.last}, but has parts of record {newest}"
            raise CorruptLog(self.where, why)
        self._life = 1 + max((each.life for sectors in files for each in sectors), default=0)
        return older, newer

    def append(self, data: bytes) -> int:
        """Add a record, durable on return; its number. After an OSError nobody knows what is on the
        disk, and nothing may be appended any more."""
        number = self.last + 1
        sectors = _sectors_of(number, self._life, data)
        end = self.size + len(sectors)
        room = self._rooms[self._used]
        if end > room:
            room = -(-end // self._grow) * self._grow
            sectors = sectors.ljust(room - self.size, b"\0")
        self._files[self._used].write(self.size, sectors)
        self._rooms[self._used] = room
        self.last, self.size = number, end
        return number

    def turn(self, keep: int) -> None:
        """Go on at the beginning of the other file, whose records nobody needs any more; of its
        room keep `keep` bytes, or a few more: a sector that is cut, or half written over where the
        cut is lost in a crash, would look like damage."""
        keep = _whole(keep)
        self._used = 1 - self._used
        self.size = 0
        if self._rooms[self._used] > keep:
            self._files[self._used].cut(keep)
            self._rooms[self._used] = keep

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def _sectors(self, place: int, content: bytes) -> list[_Sector]:
        sectors = []
        for at in range(0, len(content) - SECTOR_BYTES + 1, SECTOR_BYTES):
            raw = content[at : at + SECTOR_BYTES]
            if raw == BLANK:
                sectors.append(_NOTHING)
                continue
            head, data = raw[: _HEAD.size], raw[_HEAD_BYTES:]
            (stored,) = _CRC.unpack_from(raw, _HEAD.size)
            computed = crc32(data, crc32(head))
            if stored != computed:
                why = f"its checksum is {stored:08x}, its bytes give {computed:08x}"
                raise CorruptRecord(
                    self.where, f"journal {place}", f"sector {at // SECTOR_BYTES}", why
                )
            number, life, size, part = _HEAD.unpack(head)
            sectors.append(_Sector(number, life, size, part, data))
        return sectors


def _whole(size: int) -> int:
    """So many bytes in whole sectors."""
    return -(-size // SECTOR_BYTES) * SECTOR_BYTES


def _count(size: int) -> int:
    """How many sectors a record of so many bytes has."""
    return max(1, -(-size // DATA_BYTES))


def _sectors_of(number: int, life: int, data: bytes) -> bytes:
    """A record as it is written."""
    size, count = len(data), _count(len(data))
    data = data.ljust(count * DATA_BYTES, b"\0")
    parts: list[bytes] = []
    for place in range(count):
        head = _HEAD.pack(number, life, size, place)
        part = data[place * DATA_BYTES : (place + 1) * DATA_BYTES]
        parts += (head, _CRC.pack(crc32(part, crc32(head))), part)
    return b"".join(parts)


def _records(sectors: Sequence[_Sector]) -> tuple[list[Record], int]:
    """The whole records from the beginning of a file on, each following the one before, and how
    many sectors they have."""
    found: list[Record] = []
    at = 0
    while at < len(sectors):
        first = sectors[at]
        count = _count(first.size)
        some = sectors[at : at + count]
        wanted = [(*first[:3], place) for place in range(count)]
        follows = not found or first.number == found[-1].number + 1
        if not first.number or not follows or [each[:4] for each in some] != wanted:
            break
        found.append(Record(first.number, b"".join([each.data for each in some])[: first.size]))
        at += count
    return found, at


class DiskFile:
    """A file on the disk. What is written goes through O_DSYNC: one call, one flush."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_DSYNC | os.O_CLOEXEC, 0o600)
        self._open = True

    def read(self) -> bytes:
        """See `File`. What a process that was killed has left in the page cache is synced first."""
        os.fsync(self._handle)
        size = os.fstat(self._handle).st_size
        parts = []
        at = 0
        while at < size and (part := os.pread(self._handle, size - at, at)):
            parts.append(part)
            at += len(part)
        return b"".join(parts)

    def write(self, at: int, data: bytes) -> None:
        """See `File`."""
        written = os.pwrite(self._handle, data, at)
        if written != len(data):
            # It may end within a sector, which would look like damage: what is there of it goes.
            os.ftruncate(self._handle, at)
            os.fsync(self._handle)
            raise OSError(errno.EIO, f"{written} of {len(data)} bytes were written")

    def cut(self, size: int) -> None:
        """See `File`."""
        os.ftruncate(self._handle, size)

    def close(self) -> None:
        """See `File`."""
        if self._open:
            self._open = False
            os.close(self._handle)


class MemoryFile:
    """The twin in memory: the object is the file, and outlives who writes to it."""

    def __init__(self) -> None:
        self.content = bytearray()

    def read(self) -> bytes:
        """See `File`."""
        return bytes(self.content)

    def write(self, at: int, data: bytes) -> None:
        """See `File`."""
        self.content.extend(bytes(max(0, at - len(self.content))))
        self.content[at : at + len(data)] = data

    def cut(self, size: int) -> None:
        """See `File`."""
        del self.content[size:]

    def close(self) -> None:
        """See `File`."""
