"""The journal alone: what was appended is read, what was torn is dropped, damage is told."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CorruptLog, CorruptRecord
from storage.journal import DATA_BYTES, SECTOR_BYTES, DiskFile, File, Journal, MemoryFile
from tests.storage.faults import flip

Files = tuple[MemoryFile, MemoryFile]
GROW_BYTES = 4 * SECTOR_BYTES


def made() -> Files:
    return MemoryFile(), MemoryFile()


def opened(files: tuple[File, File], done: int = 0) -> tuple[Journal, list[bytes]]:
    journal = Journal("a journal", files, grow_bytes=GROW_BYTES)
    older, newer = journal.read(done)
    return journal, [record.data for record in (*older, *newer)]


def filled(files: Files, *records: bytes) -> Journal:
    journal, _ = opened(files)
    for each in records:
        journal.append(each)
    return journal


def sectors(file: MemoryFile) -> list[bytes]:
    return [bytes(file.content[at : at + 512]) for at in range(0, len(file.content), 512)]


SIZES = (0, 1, DATA_BYTES - 1, DATA_BYTES, DATA_BYTES + 1, 5 * DATA_BYTES, 5 * DATA_BYTES + 7)


@pytest.fixture(params=["memory", "disk"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], tuple[File, File]]:
    """The same two files again, as another process opens them."""
    if request.param == "memory":
        files = made()
        return lambda: files
    return lambda: (DiskFile(tmp_path / "0"), DiskFile(tmp_path / "1"))


def test_what_was_appended_is_read_in_order_by_every_later_process(
    reopen: Callable[[], tuple[File, File]],
) -> None:
    wanted: list[bytes] = []
    for life in range(4):
        files = reopen()
        journal, found = opened(files)
        assert found == wanted
        for size in SIZES:
            record = bytes((life,)) * size
            assert journal.append(record) == len(wanted) + 1
            wanted.append(record)
        journal.close()
        journal.close()


def test_both_files_are_read_and_nothing_that_was_carried_elsewhere() -> None:
    files = made()
    journal = filled(files, b"1", b"2")
    journal.turn(1 << 20)
    journal.append(b"3")
    journal, older, newer = Journal("j", files), *Journal("j", files).read(0)
    assert [[each.data for each in some] for some in (older, newer)] == [[b"1", b"2"], [b"3"]]
    older, newer = journal.read(2)
    assert [[each.data for each in some] for some in (older, newer)] == [[], [b"3"]]
    journal.append(b"4")
    journal.turn(1 << 20)  # the first two are elsewhere
    journal.append(b"5")
    older, newer = Journal("j", files).read(2)
    assert [[each.data for each in some] for some in (older, newer)] == [[b"3", b"4"], [b"5"]]


def test_a_file_grows_ahead_and_is_cut_when_it_is_used_anew() -> None:
    files = made()
    journal = filled(files, b"1")
    assert len(files[0].content) == GROW_BYTES
    journal.append(bytes(20 * SECTOR_BYTES))
    assert len(files[0].content) == 6 * GROW_BYTES
    journal.turn(2 * GROW_BYTES)
    journal.append(b"3")
    journal.turn(2 * GROW_BYTES)
    assert len(files[0].content) == 2 * GROW_BYTES
    journal.append(b"4")
    assert opened(files, 2)[1] == [b"3", b"4"]
    journal.append(bytes(2 * GROW_BYTES))  # beyond the cut it grows again
    assert len(files[0].content) == 3 * GROW_BYTES


def test_a_record_is_written_as_it_is_said_above() -> None:
    files = made()
    filled(files, b"x" * DATA_BYTES)
    head, data = struct.pack("<QIII", 1, 1, DATA_BYTES, 0), b"x" * DATA_BYTES
    assert files[0].content[:SECTOR_BYTES] == head + struct.pack("<I", crc32(head + data)) + data
    assert not any(files[0].content[SECTOR_BYTES:])


def test_who_goes_on_writes_right_behind_the_last_record_and_over_older_ones() -> None:
    files = made()
    journal = filled(files, b"1", b"2", b"3")
    for record in (b"4", b"5"):
        journal.turn(1 << 20)
        journal.append(record)
    journal, found = opened(files, 4)  # after record 5 there are 2 and 3
    assert (found, journal.size) == ([b"5"], SECTOR_BYTES)


def test_a_torn_record_is_dropped_whichever_of_its_sectors_are_missing() -> None:
    before, torn = b"before", b"x" * (3 * DATA_BYTES)
    for there in range(8):
        files = made()
        filled(files, before)
        kept = sectors(files[0])
        filled(files, torn)
        for place in range(3):
            if not there >> place & 1:
                at = (1 + place) * SECTOR_BYTES
                blank = kept[1 + place] if 1 + place < len(kept) else bytes(SECTOR_BYTES)
                files[0].content[at : at + SECTOR_BYTES] = blank
        journal, found = opened(files)
        assert found == ([before, torn] if there == 7 else [before])
        journal.append(b"after")
        assert opened(files)[1] == [*found, b"after"]


def test_what_is_left_of_a_torn_record_is_never_a_part_of_the_one_that_has_its_number() -> None:
    files = made()
    filled(files, b"before", b"old" * 300)
    first, second = sectors(files[0])[1:3]
    files[0].content[SECTOR_BYTES : 2 * SECTOR_BYTES] = bytes(SECTOR_BYTES)  # torn
    filled(files, b"new" * 300)  # of the same length, at the same place, with the same number
    assert opened(files)[1] == [b"before", b"new" * 300]
    files[0].content[2 * SECTOR_BYTES : 3 * SECTOR_BYTES] = second  # torn as well
    assert opened(files)[1] == [b"before"]
    files[0].content[SECTOR_BYTES : 2 * SECTOR_BYTES] = first
    assert opened(files)[1] == [b"before", b"old" * 300]


def test_what_is_left_of_a_torn_record_in_the_other_file_is_of_another_life() -> None:
    files = made()
    filled(files, b"before")
    journal, _ = opened(files)
    journal.turn(1 << 20)
    journal.append(b"old" * 300)
    second = sectors(files[1])[1]
    files[1].content[:SECTOR_BYTES] = bytes(SECTOR_BYTES)  # torn
    journal, _ = opened(files)
    journal.turn(1 << 20)
    journal.append(b"new" * 300)  # of the same length, at the same place, with the same number
    files[1].content[SECTOR_BYTES : 2 * SECTOR_BYTES] = second  # torn as well
    assert opened(files)[1] == [b"before"]


@pytest.mark.parametrize("carried", [False, True])
def test_every_flipped_bit_is_found_out(carried: bool) -> None:
    files = made()
    journal = filled(files, b"one", b"two" * 300)
    journal.turn(1 << 20)
    journal.append(b"three")
    whole = bytes(files[0].content), bytes(files[1].content)
    for place, content in enumerate(whole):
        for bit in range(0, 8 * len(content), 37):
            files[place].content[:] = flip(content, bit)
            with pytest.raises(
                CorruptRecord, match=f"sector {bit // 4096} of table .journal {place}."
            ):
                opened(files, 2 if carried else 0)
        files[place].content[:] = content
    assert opened(files)[1] == [b"one", b"two" * 300, b"three"]


def test_a_record_that_is_missing_before_a_later_one_is_damage() -> None:
    files = made()
    filled(files, b"1", b"2", b"3")
    whole = bytes(files[0].content)
    files[0].content[SECTOR_BYTES : 2 * SECTOR_BYTES] = bytes(SECTOR_BYTES)
    with pytest.raises(CorruptLog, match="ends at record 1, but has parts of record 3"):
        opened(files)
    files[0].content[:] = whole
    files[0].content[: 2 * SECTOR_BYTES] = bytes(2 * SECTOR_BYTES)
    with pytest.raises(CorruptLog, match="ends at record 0, but has parts of record 3"):
        opened(files)


def test_a_file_that_is_lost_is_damage() -> None:
    files = made()
    journal = filled(files, b"1", b"2")
    journal.turn(1 << 20)
    journal.append(b"3")
    with pytest.raises(CorruptLog, match="record 3 of its journal follows record 0"):
        opened((MemoryFile(), files[1]))
    assert opened(files)[1] == [b"1", b"2", b"3"]


def test_an_end_that_is_no_whole_sector_is_none() -> None:
    files = made()
    filled(files, b"1")
    files[0].content += b"half of a sector that was never written whole"
    journal, found = opened(files)
    assert found == [b"1"]
    for number in range(9):
        journal.append(b"%d" % number)
    assert opened(files)[1] == [b"1", *(b"%d" % number for number in range(9))]


def test_a_write_that_is_cut_short_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.pwrite
    file = DiskFile(tmp_path / "0")
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: whole(handle, data[:-1], at))
    with pytest.raises(OSError, match="511 of 512 bytes") as told:
        file.write(0, bytes(512))
    assert told.value.errno == errno.EIO
    file.close()


def test_what_a_write_that_is_cut_short_has_left_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls that fail once, "meta:short": half of three sectors."""
    files = DiskFile(tmp_path / "0"), DiskFile(tmp_path / "1")
    journal, _ = opened(files)
    journal.append(b"1")
    whole = os.pwrite

    def half(handle: int, data: bytes, at: int) -> int:
        return whole(handle, data[: len(data) // 2], at)

    for size in (1, 3, 5):
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", half)
            with pytest.raises(OSError, match="bytes were written"):
                journal.append(b"2" * size * DATA_BYTES)
        journal, found = opened(files)
        assert found == [b"1"]
    journal.append(b"2")
    assert opened(files)[1] == [b"1", b"2"]
    journal.close()


class _UncutFile(MemoryFile):
    """A crash has taken back that it was cut: nobody has synced that."""

    def cut(self, size: int) -> None:
        """Lost."""


@pytest.mark.parametrize("lost", [False, True])
@pytest.mark.parametrize("grow_bytes", [SECTOR_BYTES, 1_000, 1_500, 2_000])
def test_no_sector_is_cut_or_half_written_over(lost: bool, grow_bytes: int) -> None:
    """Crash images, life 4: files that grew by 6 000 bytes, and a cut that was lost."""
    files = (_UncutFile(), _UncutFile()) if lost else made()
    journal = Journal("a journal", files, grow_bytes=grow_bytes)
    journal.read(0)
    journal.append(bytes(range(256)) * 40)
    journal.turn(grow_bytes)
    journal.append(b"2")
    journal.turn(grow_bytes)
    for number in range(3, 8):
        journal.append(b"%d" % number)
        files[0].content.extend(bytes(-len(files[0].content) % SECTOR_BYTES))  # as it grows next
        assert opened(files, 2)[1] == [b"%d" % each for each in range(3, number + 1)]


def test_each_write_to_a_file_is_synced(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "0")
    with (Path("/proc/self/fdinfo") / str(file._handle)).open() as told:
        (flags,) = [int(line.split()[1], 8) for line in told if line.startswith("flags")]
    assert flags & os.O_DSYNC
    assert (tmp_path / "0").stat().st_mode & 0o777 == 0o600
    file.close()


class _Torn(Exception):
    """The power is gone."""


class _TearingFile(MemoryFile):
    """Of the write under way when the power fails, these sectors are there."""

    def __init__(self) -> None:
        super().__init__()
        self.keeps: list[bool] | None = None

    def write(self, at: int, data: bytes) -> None:
        if self.keeps is None:
            super().write(at, data)
            return
        keeps, self.keeps = self.keeps, None
        for place in range(len(data) // SECTOR_BYTES):
            if keeps[place % len(keeps)]:
                begin = place * SECTOR_BYTES
                super().write(at + begin, data[begin : begin + SECTOR_BYTES])
        raise _Torn


APPEND = st.tuples(st.just("append"), st.integers(0, 4 * DATA_BYTES))
TEAR = st.tuples(
    st.integers(0, 4 * DATA_BYTES), st.lists(st.booleans(), min_size=1, max_size=5)
).map(lambda each: ("tear", *each))
STEPS = st.lists(APPEND | TEAR | st.tuples(st.sampled_from(("turn", "carried", "open"))))


@settings(max_examples=300)
@given(STEPS)
def test_a_journal_holds_what_was_appended_whatever_crashes_leave(
    steps: list[tuple[object, ...]],
) -> None:
    """`held`: what is to be found. A torn record may be there, whole, or not."""
    files = _TearingFile(), _TearingFile()
    journal, _ = opened(files)
    held: list[bytes] = []
    done = turned = 0  # carried elsewhere; the last one before the turn, if not carried yet
    for count, (what, *rest) in enumerate(steps):
        if what == "append":
            record = bytes((count % 256,)) * int(str(rest[0]))
            journal.append(record)
            held.append(record)
        elif what == "turn" and not turned and len(held) > done:
            journal.turn(GROW_BYTES)
            turned = len(held)
        elif what == "carried" and turned:
            done, turned = turned, 0
        elif what in ("tear", "open"):
            may = held
            if what == "tear":
                record = bytes((count % 256,)) * int(str(rest[0]))
                for file in files:
                    file.keeps = list(rest[1])  # type: ignore[call-overload]
                with pytest.raises(_Torn):
                    journal.append(record)
                for file in files:
                    file.keeps = None
                may = [*held, record]
            journal = Journal("a journal", files, grow_bytes=GROW_BYTES)
            older, newer = journal.read(done)
            found = [record.data for record in (*older, *newer)]
            assert found in (held[done:], may[done:])
            held = held[:done] + found
            turned = older[-1].number if older else 0
    assert opened(files, done)[1] == held[done:]
