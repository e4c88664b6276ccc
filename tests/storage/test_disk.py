from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from storage import filesystem, meta_pages
from storage.disk import PAGE_BYTES, READERS, READERS_KEPT, DiskEngine
from storage.engine import Engine
from storage.errors import Closed, CorruptRecord, DirectoryInUse, MapFull, StorageFailed, ViewLost
from storage.meta_pages import NUMBER_AT
from tests.storage.faults import flip
from tests.storage.suite import EngineContract, Reopen


class TestDiskEngine(EngineContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = DiskEngine(tmp_path / "a path with a space")
        yield engine
        engine.close()

    @pytest.fixture
    def small(self, tmp_path: Path) -> Iterator[Engine]:
        engine = DiskEngine(tmp_path / "small", map_bytes=128 << 10, limit_bytes=512 << 10)
        yield engine
        engine.close()

    @pytest.fixture
    def reopen(self) -> Reopen:
        def again(engine: Engine) -> Engine:
            engine.close()
            return DiskEngine(Path(engine.path))

        return again


def test_the_pages_of_a_table_are_counted(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    assert engine.leaves("t") == 0
    engine.write([("t", b"%04d" % n, bytes(1_000)) for n in range(400)])
    assert 100 <= engine.leaves("t") <= 200, "two to four rows are on a page"
    assert engine.leaves("u") == 0
    engine.write([("t", b"%04d" % n, None) for n in range(400)])
    assert engine.leaves("t") == 0
    engine.close()


def test_a_commit_is_never_less_than_durable(tmp_path: Path) -> None:
    """Reference defect 17: votes and entries were promised before they were synced."""
    engine = DiskEngine(tmp_path / "e")
    flags = engine._env.flags()
    assert flags["sync"]
    assert flags["metasync"]
    assert not flags["writemap"]
    assert not flags["map_async"]
    assert engine._env.lib_version()[:2] == (0, 9)  # the format that other tools read
    engine.close()


def test_only_the_owner_reads_the_files(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "deep" / "e")
    engine.write([("t", b"a", b"1")])
    engine.close()
    assert stat.S_IMODE((tmp_path / "deep").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "deep" / "e").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "deep" / "e" / "data.mdb").stat().st_mode) == 0o600


def test_a_second_open_is_refused(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    with pytest.raises(DirectoryInUse, match="in use by process"):
        DiskEngine(tmp_path / "e")
    engine.close()
    DiskEngine(tmp_path / "e").close()


def test_no_environment_is_refused_readably(tmp_path: Path) -> None:
    (tmp_path / "e").mkdir()
    (tmp_path / "e" / "data.mdb").write_bytes(b"not an environment" * 1000)
    with pytest.raises(StorageFailed, match="cannot open"):
        DiskEngine(tmp_path / "e")


@pytest.mark.parametrize("where", [(DiskEngine, "_check_size"), (filesystem, "sync")])
def test_an_opening_that_fails_lets_the_environment_go(
    where: tuple[object, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: object) -> None:
        raise OSError(errno.EIO, "the disk is gone")

    DiskEngine(tmp_path / "e").close()
    with monkeypatch.context() as patch:
        patch.setattr(*where, fails)
        with pytest.raises(OSError, match="is gone") as raised:
            DiskEngine(tmp_path / "e")
    assert raised.value.errno == errno.EIO  # and its traceback keeps the engine from being freed
    DiskEngine(tmp_path / "e").close()


def test_a_closed_engine_says_so_and_not_that_it_is_corrupt(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    engine.write([("t", b"a", b"1")])
    engine.get("t", b"a")
    engine.close()
    uses: list[Callable[[], object]] = [
        lambda: engine.get("t", b"a"),
        lambda: list(engine.scan("t")),
        lambda: engine.write([("t", b"a", b"2")]),
        engine.view,
        engine.stats,
    ]
    for use in uses:
        with pytest.raises(Closed, match="closed"):
            use()


def test_too_many_views_are_refused_and_the_engine_itself_reads_on(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    rows = [(b"%d" % n, b"x") for n in range(9)]
    engine.write(("t", key, value) for key, value in rows)
    views = [engine.view() for _ in range(READERS - READERS_KEPT)]
    with pytest.raises(ViewLost, match="496 views are open; close some"):
        engine.view()
    walks = [engine.scan("t") for _ in range(9)]  # an apply may walk in a walk
    assert list(zip(*walks, strict=True)) == [(each,) * 9 for each in rows]
    assert engine.get("t", b"1") == b"x"
    assert engine.find("t", [b"2"]) == {b"2": b"x"}
    assert engine.stats().views == len(views)
    for view in views:
        view.close()
    engine.view().close()
    engine.close()


def test_the_map_grows_before_it_is_full(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e", map_bytes=256 << 10)
    for n in range(200):
        engine.write([("t", b"%05d" % n, bytes(20_000))])
        stats = engine.stats()
        assert stats.used_bytes <= 0.8 * stats.map_bytes
    assert engine.stats().map_bytes > 4 << 20
    assert sum(1 for _ in engine.scan("t")) == 200
    engine.close()
    engine = DiskEngine(tmp_path / "e", map_bytes=256 << 10)  # smaller than what is in it
    assert sum(1 for _ in engine.scan("t")) == 200
    engine.write([("t", b"more", bytes(1 << 20))])
    assert engine.get("t", b"more") == bytes(1 << 20)
    engine.close()


def test_a_map_that_was_estimated_too_small_grows_and_the_write_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DiskEngine(tmp_path / "e", map_bytes=512 << 10)
    monkeypatch.setattr(engine, "_grow_ahead", lambda need: None)
    engine.write([("t", b"a", b"1")])
    engine.write([("t", b"b", bytes(700 << 10))])
    assert engine.get("t", b"b") == bytes(700 << 10)
    assert engine.stats().map_bytes == 1 << 20
    with pytest.raises(MapFull):
        engine.write([("t", b"c", bytes(4 << 20))])  # one doubling is not enough
    assert engine.get("t", b"c") is None
    assert engine.get("t", b"a") == b"1"
    engine.close()


def test_growing_waits_for_views_as_long_as_it_can(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e", map_bytes=1 << 20)
    engine.write([("t", b"a", b"1")])
    while engine.stats().used_bytes < 0.72 * (1 << 20) and engine.stats().map_bytes == 1 << 20:
        with engine.view():  # while one is open, up to 90 %
            engine.write([("t", b"%d" % engine.stats().used_bytes, bytes(20_000))])
    assert engine.stats().map_bytes == 1 << 20
    view = engine.view()
    engine.write([("t", b"b", b"2")])
    assert view.get("t", b"a") == b"1"
    view.close()
    engine.write([("t", b"c", b"3")])
    assert engine.stats().map_bytes == 2 << 20
    engine.close()


def test_a_view_is_taken_away_when_the_map_must_grow(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e", map_bytes=512 << 10)
    engine.write(("t", b"%05d" % n, b"x") for n in range(100))
    view = engine.view()
    scan = view.scan("t")
    assert next(scan) == (b"00000", b"x")
    engine.write([("t", b"big", bytes(2 << 20))])
    with pytest.raises(ViewLost):
        view.get("t", b"00000")
    with pytest.raises(ViewLost):
        list(scan)
    assert engine.stats().views == 0
    assert engine.get("t", b"big") == bytes(2 << 20)
    engine.close()


def test_a_map_at_its_limit_leaves_the_views_open(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e", map_bytes=1 << 20, limit_bytes=1 << 20)
    engine.write([("t", b"a", b"1")])
    with engine.view() as view:
        with pytest.raises(MapFull):
            engine.write([("t", b"%03d" % each, bytes(9_000)) for each in range(200)])
        assert view.get("t", b"a") == b"1"
    engine.close()


def test_after_a_failed_commit_every_write_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = DiskEngine(tmp_path / "e")
    engine.write([("t", b"a", b"1")])
    real = engine._env

    class Failing:
        """The disk is gone at the next commit."""

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

        def begin(self, **options: Any) -> Any:
            if options.get("write"):
                raise lmdb.DiskError("mdb_txn_commit", 5)
            return real.begin(**options)

    monkeypatch.setattr(engine, "_env", Failing())
    with pytest.raises(StorageFailed, match="has to exit"):
        engine.write([("t", b"a", b"2")])
    monkeypatch.setattr(engine, "_env", real)  # the disk is back, but who knows what it holds
    with pytest.raises(StorageFailed):
        engine.write([("t", b"a", b"2")])
    assert engine.get("t", b"a") == b"1"
    engine.close()
    engine = DiskEngine(tmp_path / "e")  # what a new process does
    engine.write([("t", b"a", b"2")])
    engine.close()


def test_an_environment_removed_and_made_again_is_another_one(tmp_path: Path) -> None:
    engine = DiskEngine(tmp_path / "e")
    engine.write([("t", b"a", b"1")])
    engine.close()
    shutil.rmtree(tmp_path / "e")
    engine = DiskEngine(tmp_path / "e")
    assert engine.get("t", b"a") is None
    engine.close()


def test_an_environment_whose_making_was_cut_short_is_made_again(tmp_path: Path) -> None:
    """LMDB's first pages, written in place, could be found torn after a power failure, and the
    replica never started again (crash images of its first start show it)."""
    path = tmp_path / "e"
    path.mkdir()
    (path / "data.mdb.new").write_bytes(bytes(5000))
    (path / "data.mdb.new-lock").write_bytes(b"half a lock")
    engine = DiskEngine(path)
    engine.write([("t", b"a", b"1")])
    engine.close()
    assert sorted(each.name for each in path.iterdir()) == ["data.mdb", "lock.mdb"]


def test_a_flipped_bit_does_not_put_an_older_transaction_in_force(tmp_path: Path) -> None:
    """Of the two meta pages the one with the higher number is in force, and LMDB checks neither."""
    path = tmp_path / "e"
    engine = DiskEngine(path)
    for number in range(5):
        engine.write([("t", b"vote", b"%d" % number)])
    engine.close()
    content = (path / "data.mdb").read_bytes()
    for page in (0, 1):
        for bit in range(64):
            at = 8 * (page * PAGE_BYTES + NUMBER_AT) + bit
            (path / "data.mdb").write_bytes(flip(content, at))
            with pytest.raises((CorruptRecord, StorageFailed)):
                DiskEngine(path)
    (path / "data.mdb").write_bytes(content)
    engine = DiskEngine(path)
    assert engine.get("t", b"vote") == b"4"
    engine.close()


def with_a_free_end(path: Path) -> tuple[int, int]:
    """An environment whose last pages are free: its size, and that up to the last used page."""
    engine = DiskEngine(path)
    for table in ("kept", "gone"):
        engine.write([(table, b"%04d" % each, bytes(9_000)) for each in range(400)])
    engine.write([("gone", b"%04d" % each, None) for each in range(400)])
    for number in range(4):
        engine.write([("kept", b"last", b"%d" % number)])
    engine.close()
    size = (path / "data.mdb").stat().st_size
    free = meta_pages.free(path / "data.mdb", PAGE_BYTES)
    used = size
    while used // PAGE_BYTES - 1 in free:
        used -= PAGE_BYTES
    assert used < size
    return size, used


@pytest.mark.parametrize("part", [0.1, 0.5, 1])
def test_a_file_that_was_cut_off_is_refused_and_does_not_end_the_process(
    part: float, tmp_path: Path
) -> None:
    """A mapped page that the file does not have is a signal (SIGBUS)."""
    path = tmp_path / "e"
    size, used = with_a_free_end(path)
    left = int(used * part) - 1
    os.truncate(path / "data.mdb", left)
    with pytest.raises(CorruptRecord, match=rf"data\.mdb: .* {left} bytes, .* end at {size}"):
        DiskEngine(path)


def test_a_file_that_lacks_one_page_beside_those_that_are_free_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "e"
    size, used = with_a_free_end(path)
    os.truncate(path / "data.mdb", used)
    free = meta_pages.free(path / "data.mdb", PAGE_BYTES)
    assert set(range(used // PAGE_BYTES, size // PAGE_BYTES)) <= set(free)
    monkeypatch.setattr(meta_pages, "free", lambda *_: [each for each in free if each != max(free)])
    with pytest.raises(CorruptRecord, match=rf"data\.mdb: .* {used} bytes"):
        DiskEngine(path)


def test_a_view_that_is_opened_while_somebody_writes_is_not_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta pages change in place: they may be of a transaction that it does not see."""
    engine = DiskEngine(tmp_path / "e")
    engine.write([("t", b"a", b"1")])
    read = meta_pages.read

    def late(path: Path, size: int) -> bytes:
        engine.write([("t", b"b", b"2")])
        return read(path, size)

    monkeypatch.setattr(meta_pages, "read", late)
    with engine.view(to_copy=True) as view:
        assert view.size == 0
        with pytest.raises(ViewLost, match="opened while somebody wrote"):
            view.copy_to(tmp_path / "copy", lambda _: None)
    assert not (tmp_path / "copy").exists()
    engine.close()


def test_a_copy_has_the_pages_that_are_free_at_the_end(tmp_path: Path) -> None:
    path, copy = tmp_path / "e", tmp_path / "copy"
    size, used = with_a_free_end(path)
    os.truncate(path / "data.mdb", used)
    engine = DiskEngine(path)
    with engine.view(to_copy=True) as view:
        assert view.size == size
        view.copy_to(copy, lambda _: None)
    engine.close()
    assert copy.stat().st_size == size


def test_a_file_that_lacks_only_pages_that_are_free_is_whole(tmp_path: Path) -> None:
    """LMDB does not write a page that it has made and freed in one transaction."""
    path = tmp_path / "e"
    _, used = with_a_free_end(path)
    os.truncate(path / "data.mdb", used)
    engine = DiskEngine(path)
    assert len(list(engine.scan("kept"))) == 401
    engine.write([("gone", b"%04d" % each, bytes(9_000)) for each in range(400)])
    engine.close()
    DiskEngine(path).close()
