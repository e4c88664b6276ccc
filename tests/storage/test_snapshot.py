from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from random import Random
from zlib import crc32

import pytest

from state_machines.raft.messages import Configuration, HardState, SnapshotMeta
from storage import records
from storage.disk import TABLES
from storage.errors import BadSnapshot, CorruptRecord, SnapshotRefused, StorageFailed, ViewLost
from storage.log import RaftLog
from storage.shelf import DiskShelf, MemoryShelf
from storage.snapshot import CHUNK_BYTES, Chunk, Staging, write_stream
from storage.state import State
from tests.storage import child
from tests.storage.faults import Disk, entry, flip, point

META = point(30, 3)


def source(rows: int = 50) -> State:
    """A state of two tables at index 30, term 3."""
    state = State(MemoryShelf())
    for n in range(rows):
        state.put("offset.offset", ("acme", f"group-{n:03}"), b"row %d" % n * 20)
        state.put("mqtt.session", ("acme", n), b"")
    state.put("gone", ("x",), b"1")
    state.set_applied(point(29, 3))
    state.flush()
    state.delete("gone", ("x",))
    state.set_applied(META)
    return state


def stream(state: State, chunk_bytes: int = CHUNK_BYTES) -> list[Chunk]:
    with state.view() as view:
        return list(write_stream(view, chunk_bytes))


def content(state: State) -> dict[str, list[tuple[bytes, bytes]]]:
    with state.view() as view:
        return {table: rows for table in view.tables() if (rows := list(view.rows(table)))}


def receive(state: State, chunks: list[Chunk]) -> Staging:
    staging = state.stage()
    for chunk in chunks:
        staging.add(chunk)
    staging.finish()
    return staging


def older(disk: Disk) -> State:
    """A state at index 10 with rows that the snapshot does not have."""
    state = State(disk.shelf())
    state.put("offset.offset", ("acme", "group-000"), b"old")
    state.put("offset.offset", ("acme", "old"), b"old")
    state.put("only.old", ("a",), b"old")
    state.set_applied(point(9))
    state.flush()
    state.put("offset.offset", ("acme", "layer"), b"old")
    state.set_applied(point(10))
    return state


@pytest.mark.parametrize("chunk_bytes", [16, 100, 1000, CHUNK_BYTES])
def test_a_snapshot_replaces_the_whole_state(disk: Disk, chunk_bytes: int) -> None:
    """Reference defect 3: rows that are not in the snapshot came back, and caches stayed."""
    chunks = stream(source(), chunk_bytes)
    state = older(disk)
    state.install(receive(state, chunks), META)
    assert state.verified, "every row was looked at when it came"
    for _ in range(2):
        assert state.applied == state.flushed == META
        assert state.installed
        assert content(state) == content(source())
        assert state.get("offset.offset", ("acme", "old")) is None
        assert state.get("offset.offset", ("acme", "layer")) is None
        assert state.get("only.old", ("a",)) is None
        assert list(state.scan("only.old")) == []
        state = State(disk.shelf())
    state.put("t", ("more",), b"1")
    state.set_applied(point(31, 3))
    state.flush()
    state = State(disk.shelf())
    assert not state.installed
    assert state.get("t", ("more",)) == b"1"


def test_the_stream_is_small_numbered_and_sealed() -> None:
    state = source()
    state.put("big", ("one",), bytes(range(256)) * 1000)
    state.set_applied(META)
    chunks = stream(state)
    assert len(chunks) > 4
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert all(0 < len(chunk.data) <= CHUNK_BYTES for chunk in chunks)
    assert all(crc32(chunk.data) == chunk.crc for chunk in chunks)
    assert [chunk.last for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1].records == 101
    assert chunks[-1].digest == sha256(b"".join(chunk.data for chunk in chunks)).digest()
    assert chunks == stream(state)  # the same state gives the same bytes
    assert len(stream(state, sum(len(chunk.data) for chunk in chunks))) == 1
    other = State(MemoryShelf())
    other.install(receive(other, chunks), META)
    assert stream(other) == chunks


def test_a_state_without_rows_travels(disk: Disk) -> None:
    empty = State(MemoryShelf())
    empty.set_applied(META)
    state = older(disk)
    state.install(receive(state, stream(empty)), META)
    assert content(state) == {}
    assert State(disk.shelf()).applied == META


def test_a_snapshot_not_newer_than_the_state_is_refused(disk: Disk) -> None:
    chunks = stream(source())
    for index in (30, 31):
        state = older(disk)
        state.set_applied(point(index, 3))
        before = content(state)
        with pytest.raises(SnapshotRefused, match=f"applied {index}"):
            state.install(receive(state, chunks), META)
        assert content(state) == before
        disk.close()
        disk = Disk(disk.path and disk.path / str(index))


def test_only_what_was_verified_and_asked_for_is_installed(disk: Disk) -> None:
    chunks = stream(source(), 100)
    state = older(disk)
    before = content(state)
    for wrong in (point(31, 3), point(30, 2), SnapshotMeta(30, 3, Configuration((9,)))):
        with pytest.raises(BadSnapshot, match="another point"):
            state.install(receive(state, chunks), wrong)
    staging = state.stage()
    for chunk in chunks:
        staging.add(chunk)
    with pytest.raises(BadSnapshot, match="not verified"):
        state.install(staging, META)
    first = receive(state, chunks)
    second = state.stage()  # another leader's stream began meanwhile
    with pytest.raises(BadSnapshot, match="not verified"):
        state.install(first, META)
    with pytest.raises(BadSnapshot, match="taken this one's place"):
        first.add(chunks[0])
    with pytest.raises(BadSnapshot, match="taken this one's place"):
        first.finish()
    for chunk in chunks:
        second.add(chunk)
    assert second.finish() == META
    assert content(state) == before
    state.install(second, META)
    assert content(state) == content(source())


def test_the_state_is_used_while_a_snapshot_arrives(disk: Disk) -> None:
    state = older(disk)
    staging = state.stage()
    for n, chunk in enumerate(stream(source(), 50)):
        staging.add(chunk)
        state.put("t", (n,), b"meanwhile")
        state.set_applied(point(11, 1))
        if n % 20 == 0:
            state.flush()
    staging.finish()
    assert state.get("t", (0,)) == b"meanwhile"
    state.install(staging, META)
    assert state.get("t", (0,)) is None


def test_a_view_of_the_old_state_is_lost(disk: Disk) -> None:
    state = older(disk)
    view = state.view()
    state.install(receive(state, stream(source())), META)
    with pytest.raises(ViewLost):
        view.get("only.old", ("a",))
    view.close()


def test_a_corrupt_row_does_not_travel() -> None:
    state = source()
    key, value = next(state.engine.scan("offset.offset"))
    state.flush()
    state.engine.write([("offset.offset", key, flip(value, 40))])
    with pytest.raises(CorruptRecord, match=r"offset\.offset"):
        stream(state)


# Streams that cannot be trusted.


def reason(chunks: list[Chunk]) -> str:
    """Why the chunks are not a snapshot."""
    staging = Staging(MemoryShelf())
    with pytest.raises(BadSnapshot) as caught:
        _take(staging, chunks)
    assert not staging.ready
    return str(caught.value)


def refused(chunks: list[Chunk]) -> str:
    """Why the chunks are not a snapshot; the state is as it was, and goes on."""
    state = older(Disk(None))
    before = content(state)
    staging = state.stage()
    with pytest.raises(BadSnapshot) as caught:
        _take(staging, chunks)
    assert not staging.ready
    with pytest.raises(BadSnapshot):
        state.install(staging, META)
    assert content(state) == before
    assert state.applied == point(10)
    whole = stream(source())
    state.install(receive(state, whole), META)
    assert content(state) == content(source())
    return str(caught.value)


def _take(staging: Staging, chunks: list[Chunk]) -> None:
    for chunk in chunks:
        staging.add(chunk)
    staging.finish()


def cut(data: bytes, size: int, *, rows: int = 6) -> list[Chunk]:
    """Chunks that are sound in themselves, whatever the data is."""
    parts = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    chunks = [Chunk(n, part, crc32(part)) for n, part in enumerate(parts)]
    digest = sha256(data).digest()
    chunks[-1] = replace(chunks[-1], last=True, records=rows, digest=digest)
    return chunks


def small() -> bytes:
    """The data of a snapshot of six rows."""
    return b"".join(chunk.data for chunk in stream(source(3)))


def test_the_stream_cut_at_every_byte_is_refused() -> None:
    data = small()
    state = older(Disk(None))
    state.install(receive(state, cut(data, 10)), META)  # uncut it is fine
    for end in range(len(data)):
        chunks = cut(data[:end], 64)
        assert "end record" in reason(chunks)
        chunks[-1] = replace(chunks[-1], last=False)
        assert "cut short" in reason(chunks)
        if end % 50 == 0:
            assert "end record" in refused(cut(data[:end], 64))


def test_every_flipped_byte_is_refused() -> None:
    data = small()
    whole = cut(data, 64)
    for at in range(len(data)):
        n = at // 64
        bad = replace(whole[n], data=flip(whole[n].data, (at % 64) * 8 + at % 8))
        assert "checksum" in reason([*whole[:n], bad, *whole[n + 1 :]])
        sound = replace(bad, crc=crc32(bad.data))  # damaged before the chunk was sealed
        assert reason([*whole[:n], sound, *whole[n + 1 :]])


def test_a_wrong_digest_or_count_is_refused() -> None:
    chunks = stream(source(), 500)
    assert "digest" in refused([*chunks[:-1], replace(chunks[-1], digest=bytes(32))])
    assert "digest" in refused([*chunks[:-1], replace(chunks[-1], digest=b"")])
    assert "101 were sent" in refused([*chunks[:-1], replace(chunks[-1], records=101)])


def test_missing_and_misplaced_chunks_are_refused() -> None:
    chunks = stream(source(), 500)
    for n in range(len(chunks)):
        assert refused(chunks[:n] + chunks[n + 1 :])
    swapped = [chunks[1], chunks[0], *chunks[2:]]
    assert "chunk 1 came where 0 belongs" in refused(swapped)
    assert "after 0 chunks" in refused([])


def test_a_chunk_that_comes_again_is_ignored_unless_it_differs(disk: Disk) -> None:
    chunks = stream(source(), 500)
    state = older(disk)
    again = [each for n, chunk in enumerate(chunks) for each in (chunk, chunk, chunks[n // 2])]
    state.install(receive(state, again), META)
    assert content(state) == content(source())
    other = Chunk(1, b"other", crc32(b"other"))
    assert "came twice" in refused([*chunks[:3], other])
    more = Chunk(len(chunks), b"more", crc32(b"more"))
    assert "after the last one" in refused([*chunks, more])


HEADER = b"metaray1"


def header(meta: SnapshotMeta = META) -> bytes:
    body = records.meta_to(meta)
    return HEADER + len(body).to_bytes(4, "big") + body


def table(name: bytes) -> bytes:
    return b"T" + bytes((len(name),)) + name


def row(key: bytes, value: bytes = b"v") -> bytes:
    return b"R" + len(key).to_bytes(2, "big") + len(value).to_bytes(4, "big") + key + value


def end(rows: int) -> bytes:
    return b"E" + rows.to_bytes(8, "big")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "end record"),
        (b"metaray2" + header()[8:] + end(0), "begins with"),
        (HEADER + b"\xff\xff\xff\xff" + b"x" * 100, "limit"),
        (HEADER + b"\0\0\0\2\xff\xff" + end(0), "header cannot be read"),
        (header(SnapshotMeta(0, 0, META.configuration)) + end(0), "meta: index 0"),
        (header(SnapshotMeta(5, 0, META.configuration)) + end(0), "term 0"),
        (header(SnapshotMeta(2**63, 3, META.configuration)) + end(0), "meta.index: "),
        (header(SnapshotMeta(5, 2**63, META.configuration)) + end(0), "meta.term: "),
        (header(SnapshotMeta(5, 1, Configuration())) + end(0), "voters: there is none"),
        (header(SnapshotMeta(5, 1, Configuration((2, 1)))) + end(0), "voters: not sorted"),
        (header() + b"Q" + end(0), "unknown kind"),
        (header() + row(b"k") + end(1), "before the first table"),
        (header() + table(b"b") + row(b"k") + table(b"a") + row(b"k") + end(2), "after 'b'"),
        (header() + table(b"a") + row(b"k") + table(b"a") + row(b"l") + end(2), "after 'a'"),
        (header() + table(b"@state") + row(b"applied") + end(1), "@state"),
        (header() + table(b"") + end(0), "b'' is no name of a table"),
        (header() + table(b"\xff") + end(0), "no name of a table"),
        (header() + table(b"a\0b") + end(0), "no name of a table"),
        (header() + table(b"x" * 65) + end(0), "x" * 65),
        (header() + table(b"a") + row(b"k") + row(b"j") + end(2), "b'j' after b'k'"),
        (header() + table(b"a") + row(b"k") + row(b"k") + end(2), "b'k' after b'k'"),
        (header() + table(b"a") + row(b"") + end(1), "beyond the limits"),
        (header() + table(b"a") + row(b"k" * 481) + end(1), "beyond the limits"),
        (header() + table(b"a") + row(b"k" * 480), "no end record"),  # as long as a key may be
        (header() + table(b"a") + b"R\0\1\xff\xff\xff\xffk", "beyond the limits"),
        (header() + table(b"a") + b"R\0\1\3\xff\xff\xfdk", "1 + 67108861 bytes is beyond"),
        (header() + table(b"a") + b"R\0\1\3\xff\xff\xfck", "no end record"),  # to be stored
        (header() + table(b"a") + row(b"k") + end(2), "its end says 2"),
        (header() + table(b"a") + row(b"k") + end(1) + b"E", "follows the end"),
        (header() + end(0) + header() + end(0), "follows the end"),
    ],
)
@pytest.mark.parametrize("size", [7, 60_000])
def test_a_stream_that_says_nonsense_is_refused(data: bytes, why: str, size: int) -> None:
    assert why in refused(cut(data, size, rows=1))


@pytest.mark.parametrize("tables", [TABLES - 1, TABLES])
def test_a_snapshot_has_no_more_tables_than_an_environment(disk: Disk, tables: int) -> None:
    """One of them is the state's own."""
    state = State(disk.shelf())
    rows = b"".join(table(b"t%03d" % number) + row(b"k") for number in range(tables))
    chunks = cut(header() + rows + end(tables), CHUNK_BYTES, rows=tables)
    if tables < TABLES:
        state.install(receive(state, chunks), META)
        assert len(content(state)) == tables
    else:
        with pytest.raises(BadSnapshot, match=f"{TABLES} tables, the limit is {TABLES - 1}"):
            receive(state, chunks)


def test_random_damage_is_never_installed() -> None:
    rng = Random(8)
    data = small()
    for _ in range(300):
        at = rng.randrange(len(data))
        damaged = data[:at] + rng.randbytes(rng.randrange(4)) + data[at + rng.randrange(4) :]
        if damaged != data:
            chunks = cut(damaged, 64)
            honest = sha256(data).digest()
            assert reason([*chunks[:-1], replace(chunks[-1], digest=honest)])


# Crashes.

STEPS = {  # where the process dies: is the new state in force?
    "received": False,
    "verified": False,
    "closed": False,
    "moved": False,
    "synced": False,
    "switched": True,
    "opened": True,
    "installed": True,
    "saved": True,
    "none": True,
}


def prepare(path: Path) -> None:
    """A source at index 30, and a state at index 9 with its log up to 12."""
    shelf = DiskShelf(path / "source", path / "source-staging")
    state = State(shelf)
    state.install(receive(state, stream(source())), META)
    state.close()
    disk = Disk(path)
    older(disk)
    log = RaftLog(disk.log())
    log.load()
    log.save(None, [entry(n) for n in range(1, 13)], HardState(1, 1, 0))
    disk.close()


@pytest.mark.parametrize("step", list(STEPS))
def test_a_kill_at_any_step_leaves_the_old_state_or_the_new(tmp_path: Path, step: str) -> None:
    path = tmp_path / "a disk"
    prepare(path)
    process = child.start("install", path, step)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == (0 if step == "none" else -signal.SIGKILL)
    assert output == ("done\n" if step == "none" else "")
    for _ in range(2):  # what the first opening repairs stays repaired
        disk = Disk(path)
        state, log = State(disk.shelf()), RaftLog(disk.log())
        loaded = log.load(state.flushed, installed=state.installed)
        if STEPS[step]:
            assert state.applied == loaded.snapshot == META
            assert content(state) == content(source())
            assert loaded.entries == ()
            assert loaded.hard_state.term == (9 if step in ("saved", "none") else 3)
        else:
            assert state.applied == point(9)
            assert set(content(state)) == {"offset.offset", "only.old"}
            assert loaded.entries == tuple(entry(n) for n in range(1, 13))
            assert loaded.hard_state == HardState(1, 1, 0)
        assert state.verify() > 0
        assert len(list((path / "state").iterdir())) == 2  # CURRENT and one environment
        assert list((path / "staging").iterdir()) == []
        disk.close()


def test_a_switch_that_fails_stops_the_process(tmp_path: Path) -> None:
    def fail(name: str) -> None:
        if name == "synced":
            raise OSError(28, "No space left on device")

    state = State(DiskShelf(tmp_path / "state", tmp_path / "staging", step=fail))
    staging = receive(state, stream(source()))
    with pytest.raises(StorageFailed, match="No space left"):
        state.install(staging, META)
    state.close()
    state = State(DiskShelf(tmp_path / "state", tmp_path / "staging"))
    assert state.applied.index == 0
    state.close()


def _cut_current(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:3])


def _remove_current(path: Path) -> None:
    path.unlink()


def _point_elsewhere(path: Path) -> None:
    path.write_bytes(b"2 %08x\n" % crc32(b"2"))


@pytest.mark.parametrize("damage", [_cut_current, _remove_current, _point_elsewhere])
def test_a_damaged_pointer_stops_the_opening(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    shelf = DiskShelf(tmp_path / "state", tmp_path / "staging")
    shelf.engine.write([("t", b"a", b"1")])
    shelf.close()
    damage(tmp_path / "state" / "CURRENT")
    with pytest.raises(CorruptRecord, match="CURRENT"):
        DiskShelf(tmp_path / "state", tmp_path / "staging")
    assert (tmp_path / "state" / "1" / "data.mdb").exists()  # nothing was swept away


def test_every_flipped_bit_of_the_pointer_is_found(tmp_path: Path) -> None:
    shelf = DiskShelf(tmp_path / "state", tmp_path / "staging")
    shelf.engine.write([("t", b"a", b"1")])
    shelf.close()
    path = tmp_path / "state" / "CURRENT"
    text = path.read_bytes()
    for bit in range(len(text) * 8):
        path.write_bytes(flip(text, bit))
        with pytest.raises(CorruptRecord, match="CURRENT"):
            DiskShelf(tmp_path / "state", tmp_path / "staging")
    path.write_bytes(text)
    shelf = DiskShelf(tmp_path / "state", tmp_path / "staging")
    assert shelf.engine.get("t", b"a") == b"1"
    shelf.close()
