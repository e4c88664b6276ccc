"""What an export does with rows and with replicas that are lost; no cluster is needed for it."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from actors import calls, columns
from jobs.cut import Manifest, check, read_manifest
from jobs.errors import BadCut, OutputFailed
from metaray import cut_files, cuts, exporting
from metaray.cut_files import GroupFiles
from metaray.cuts import FOLLOWER_BEHIND_MAX, Cut, order, take
from metaray.exporting import Progress, chosen
from state_machines.errors import Conflict, Invalid, NoQuorum, NotFound, Stopped
from state_machines.offset.rows import Group, StoredOffset
from storage import filesystem

GROUPS = ("metadata-0", "mqtt-0", "offset-0", "offset-1")
TABLE = "offset.offset"
PAGE = 10


# -- whom to ask --------------------------------------------------------------------------------


def status(seat: str, role: str = "follower", applied: int = 100, **more: Any) -> dict[str, Any]:
    return {"seat": seat, "role": role, "applied": applied, "replica": int(seat[-1]) + 1, **more}


def test_who_has_least_to_do_is_asked_first() -> None:
    leader = status("o/0", "leader", term=3, learners=[4])
    living = {
        "o/0": leader,
        "o/1": status("o/1"),
        "o/2": status("o/2", applied=100 - FOLLOWER_BEHIND_MAX - 1),
        "o/3": status("o/3", applied=90),
    }
    assert order(living, wanted=100) == ["o/3", "o/1", "o/0", "o/2"]
    assert order(living, wanted=100, avoid=frozenset({"o/3", "o/1"})) == [
        "o/0",
        "o/3",
        "o/1",
        "o/2",
    ]
    assert order(living, source="leader", wanted=100) == ["o/0"]
    assert order(living, source="learner", wanted=100) == ["o/3"]
    assert order(living, source="follower", wanted=100) == ["o/1", "o/2"]
    assert order(living, source="o/2", wanted=100) == ["o/2"]
    assert order(living, source="o/9") == []


def test_a_role_that_says_learner_is_one_and_without_a_leader_all_are_followers() -> None:
    living = {"o/0": status("o/0"), "o/1": status("o/1", "learner"), "o/2": {"role": "vacant"}}
    assert order(living) == ["o/1", "o/0", "o/2"]


@dataclass
class Replicas:
    """Seats of one group, all of which give a cut unless they are said to refuse it."""

    living: dict[str, Any]
    refuse: tuple[str, ...] = ()
    looks: int = 0

    def each_call(
        self, seats: list[str], method: str, *args: Any, seconds: float
    ) -> dict[str, Any]:
        if method == "status":
            self.looks += 1
            return {seat: self.living[seat] for seat in seats}
        return {seat: self._opened(seat) for seat in seats}

    def _opened(self, seat: str) -> Any:
        if seat in self.refuse:
            return Stopped("it ends")
        index = self.living[seat]["applied"]
        return {"cut": "c", "index": index, "cluster": "c", "now_ms": 1, "rows": {}, "bytes": 0}


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    made = Replicas({})
    monkeypatch.setattr(calls, "named_actors", lambda: set(made.living))
    monkeypatch.setattr(calls, "each_call", made.each_call)
    for name in ("CATCH_UP_SECONDS", "ELECTION_SECONDS", "LEADER_POLL_SECONDS"):
        monkeypatch.setattr(cuts, name, 0.0)
    return made


def voter(seat: str, role: str = "follower", applied: int = 100, **more: Any) -> dict[str, Any]:
    members = {"voters": [1, 2, 3], "outgoing": [], "configuration_index": 1, "learners": []}
    return status(seat, role, applied, term=3, commit=applied, **members, **more)


def test_a_cut_has_what_its_caller_has_written(replicas: Replicas) -> None:
    replicas.living = {"o-0/0": voter("o-0/0", "leader", 40), "o-0/1": voter("o-0/1", applied=40)}
    assert take("o-0", (TABLE,), min_index=40).seat == "o-0/1"
    with pytest.raises(NoQuorum, match="o-0/0: it has not applied 41 yet"):
        take("o-0", (TABLE,), min_index=41)


def test_a_cut_has_what_was_acknowledged_however_far_behind_who_is_asked_is(
    replicas: Replicas,
) -> None:
    far = 40 + FOLLOWER_BEHIND_MAX + 1
    replicas.living = {"o-0/0": voter("o-0/0", "leader", far), "o-0/1": voter("o-0/1", applied=40)}
    replicas.refuse = ("o-0/0",)
    for terms in ({}, {"source": "o-0/1"}, {"min_index": 40}):
        with pytest.raises(NoQuorum, match=f"o-0/1: it has not applied {far} yet"):
            take("o-0", (TABLE,), **terms)


def test_a_cut_waits_for_a_leader_while_there_can_be_one(
    replicas: Replicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, quick = voter("o-0/1", applied=50), voter("o-0/2", "candidate", 150)
    replicas.living = {"o-0/0": Stopped("it died"), "o-0/1": slow, "o-0/2": quick}
    with pytest.raises(NoQuorum, match="o-0 has no leader now"):
        take("o-0", (TABLE,))
    replicas.looks = 0
    monkeypatch.setattr(cuts, "ELECTION_SECONDS", 60.0)
    monkeypatch.setattr("time.sleep", lambda seconds: quick.update(role="leader"))
    cut = take("o-0", (TABLE,))
    assert (cut.seat, cut.index, replicas.looks > 2) == ("o-0/2", 150, True)


def test_of_a_group_that_lost_its_majority_a_cut_is_what_is_left(replicas: Replicas) -> None:
    left, learner = voter("o-0/2", "candidate", 150), voter("o-0/3", "learner", 120)
    dead = {f"o-0/{number}": Stopped("its disk is lost") for number in (0, 1)}
    replicas.living = {**dead, "o-0/2": left, "o-0/3": learner}
    assert take("o-0", (TABLE,)).index == 150
    assert take("o-0", (TABLE,), source="o-0/3").index == 120, "it was asked for by its name"
    replicas.refuse = ("o-0/2",)
    assert take("o-0", (TABLE,)).index == 120
    with pytest.raises(NoQuorum, match="o-0/3: it has not applied 151 yet"):
        take("o-0", (TABLE,), min_index=151)


def test_a_table_is_read_to_its_last_page(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {b"": (b"first", b"1"), b"1": (b"second", b"2"), b"2": (b"last", b"")}
    page = SimpleNamespace(remote=lambda cut, table, after, rows: said[after])
    monkeypatch.setattr(ray, "get", lambda reply, timeout: reply)
    cut = Cut("offset-0", "offset-0/1", "c", 7, exporter=SimpleNamespace(page=page))
    assert list(cut.pages(TABLE)) == [b"first", b"second", b"last"]


def test_what_is_chosen_is_there() -> None:
    plan = chosen(GROUPS, ["offset-1", "offset-0", "metadata-0"], [TABLE, "group.quota"])
    assert plan == {
        "metadata-0": ("group.quota",),
        "offset-0": ("group.quota", TABLE),
        "offset-1": ("group.quota", TABLE),
    }
    assert chosen(GROUPS, ["mqtt-0"], [TABLE, "mqtt.session"]) == {"mqtt-0": ("mqtt.session",)}
    assert chosen(GROUPS, ["offset-0"], None)["offset-0"] == columns.exportable("offset")
    assert list(chosen(GROUPS, GROUPS, [TABLE])) == ["offset-0", "offset-1"]
    for groups, tables, source, least, what in (
        (["nope"], None, "", {}, "groups: there is no group 'nope'"),
        (["offset-0"], None, "", {"offset-9": 3}, "groups: there is no group 'offset-9'"),
        (["offset-0"], ["nope"], "", {}, "tables: there is no table 'nope'"),
        (["offset-0"], ["mqtt.session"], "", {}, "tables: none of the groups"),
        (["offset-0", "mqtt-0"], None, "mqtt-0/1", {}, "from: mqtt-0/1 is a replica of mqtt-0"),
    ):
        with pytest.raises((Invalid, NotFound), match=what):
            chosen(GROUPS, groups, tables, source, least)


# -- files --------------------------------------------------------------------------------------


def offset(number: int) -> StoredOffset:
    fields = {
        each.name: {"string": f"{number:06}", "int64": number}.get(str(each.type))
        for each in columns.schema_of(StoredOffset)
        if each.name != columns.REVISION
    }
    return StoredOffset(**fields)  # type: ignore[arg-type]


def page(first: int, count: int) -> pa.RecordBatch:
    numbers = range(first, first + count)
    return columns.batch(StoredOffset, [offset(n) for n in numbers], [n + 1 for n in numbers])


def test_files_and_row_groups_are_bounded_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cut_files, "ROW_GROUP_BYTES", 3 * page(0, PAGE).nbytes)
    monkeypatch.setattr(cut_files, "FILE_ROWS", 6 * PAGE)
    told: list[int] = []
    files = GroupFiles(tmp_path, "offset-0", told.append)
    files.begin(TABLE, columns.schema_of(StoredOffset))
    for number in range(14):
        files.add(page(number * PAGE, PAGE))
    files.end()
    files.begin("offset.group", columns.schema_of(Group))
    files.end()
    assert [(each.path, each.rows) for each in files.files] == [
        ("offset.offset/offset-0-00000.parquet", 60),
        ("offset.offset/offset-0-00001.parquet", 60),
        ("offset.offset/offset-0-00002.parquet", 20),
        ("offset.group/offset-0-00000.parquet", 0),
    ]
    assert sum(told) == sum(each.bytes for each in files.files)
    found = []
    for each in files.files[:3]:
        path = tmp_path / each.path
        assert hashlib.sha256(path.read_bytes()).hexdigest() == each.sha256
        meta = pq.read_metadata(path)
        assert max(meta.row_group(n).num_rows for n in range(meta.num_row_groups)) <= 3 * PAGE
        found += pq.read_table(path).to_pylist()
    assert found == page(0, 14 * PAGE).to_pylist()
    assert pq.read_schema(tmp_path / files.files[3].path).equals(columns.schema_of(Group))
    files.discard()
    assert [each for each in tmp_path.rglob("*") if each.is_file()] == []
    assert sum(told) == 0


def test_a_file_that_was_there_is_not_taken_for_ones_own(tmp_path: Path) -> None:
    first, second = (GroupFiles(tmp_path, "offset-0", lambda _: None) for _ in range(2))
    first.begin(TABLE, columns.schema_of(StoredOffset))
    first.end()
    with pytest.raises(FileExistsError):
        second.begin(TABLE, columns.schema_of(StoredOffset))
    second.discard()
    assert (tmp_path / first.files[0].path).exists()


# -- the whole ----------------------------------------------------------------------------------


@dataclass
class World:
    """Replicas of GROUPS, each of whose cuts has 100 rows and an index one higher than the last."""

    fails: dict[str, list[Exception]]
    taken: list[tuple[str, int, tuple[str, ...]]]
    closed: list[str]
    number: int = 0

    def take(self, group: str, tables: tuple[str, ...], **terms: Any) -> Cut:
        self.number += 1
        self.taken.append((group, self.number, tuple(terms["avoid"])))
        made = FakeCut(
            group, f"{group}/{self.number}", f"cut{self.number}", self.number, "c", self.number,
            dict.fromkeys(tables, 100),
        )  # fmt: skip
        made.world = self
        return made


class FakeCut(Cut):
    world: World

    def pages(self, table: str, rows: int = 0) -> Iterator[bytes]:
        for first in range(0, 100, PAGE):
            if first == 50 and self.world.fails.get(self.group):
                raise self.world.fails[self.group].pop(0)
            numbers = range(first, first + PAGE)
            rows_ = [offset(n) for n in numbers]
            yield columns.to_ipc(columns.batch(StoredOffset, rows_, [self.index] * PAGE))

    def close(self) -> None:
        self.world.closed.append(self.name)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World({}, [], [])
    monkeypatch.setattr(exporting, "take", made.take)
    monkeypatch.setattr(calls, "named_actors", lambda: {f"{each}/0" for each in GROUPS})
    return made


def export(out: Path, **more: Any) -> Manifest:
    return exporting.export(out, tables=[TABLE], **more)


def test_a_group_that_is_lost_is_begun_anew_and_nothing_is_mixed(
    world: World, tmp_path: Path
) -> None:
    world.fails["offset-1"] = [NotFound("cut: gone"), Stopped("its node is gone")]
    told: list[Progress] = []
    out = tmp_path / "out"
    manifest = export(out, progress=told.append)
    assert read_manifest(out) == manifest
    check(out, manifest)
    assert manifest.cluster == "c"
    assert manifest.taken_ms == max(manifest.cut.values())
    assert list(manifest.cut) == ["offset-0", "offset-1"]
    for each in manifest.files:
        found = pq.read_table(out / each.path)
        assert found["revision"].unique().to_pylist() == [manifest.cut[each.group]]
        assert found.num_rows == 100
    anew = [each for each in world.taken if each[0] == "offset-1"]
    assert [len(avoid) for _, _, avoid in anew] == [0, 1, 2]
    assert manifest.cut["offset-1"] == anew[-1][1]
    last = told[-1]
    assert (last.groups, last.groups_done, last.begun_anew) == (2, 2, 2)
    assert last.rows == last.rows_total == 200
    assert last.bytes == sum(each.bytes for each in manifest.files)
    assert set(world.closed) == {f"cut{n + 1}" for n in range(world.number)}


def test_the_directories_above_a_cut_are_durable_too(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(filesystem, "sync", synced.append)
    out = tmp_path / "backups" / "monday"
    export(out)
    assert synced == [tmp_path, tmp_path / "backups", out / TABLE, out]


def test_a_cut_is_its_owners_alone_unless_the_directory_was_there(
    world: World, tmp_path: Path
) -> None:
    """Hashes of passwords are in it."""
    out, shared = tmp_path / "backups" / "monday", tmp_path / "shared"
    shared.mkdir(0o750)
    for each in (out, shared):
        export(each)
    modes = [each.stat().st_mode & 0o777 for each in (out, out.parent, shared)]
    assert modes == [0o700, 0o777 & ~umask(), 0o750]


def umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def test_replicas_that_are_lost_again_and_again_are_given_up(world: World, tmp_path: Path) -> None:
    world.fails["offset-0"] = [Stopped("gone")] * exporting.TRIES
    out = tmp_path / "a" / "out"
    with pytest.raises(NoQuorum, match="offset-0: no replica lasted"):
        export(out)
    assert not out.exists()
    assert set(world.closed) == {f"cut{n + 1}" for n in range(world.number)}


def test_a_wrong_row_is_not_asked_for_again(world: World, tmp_path: Path) -> None:
    world.fails["offset-0"] = [Invalid("offset: None in a column that is never empty")]
    with pytest.raises(Invalid, match="never empty"):
        export(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert len([each for each in world.taken if each[0] == "offset-0"]) == 1


def test_rows_that_are_missing_are_noticed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeCut, "pages", lambda cut, table: iter([columns.to_ipc(page(0, 99))]))
    with pytest.raises(NoQuorum, match=r"99 rows of offset\.offset came, not 100"):
        export(tmp_path)


@pytest.mark.parametrize("at", [0, 3])
def test_a_full_disk_is_said_and_leaves_nothing(
    at: int, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = cut_files._Hashed.write, [0]
    lock = threading.Lock()

    def full(sink: Any, data: Any) -> int:
        with lock:
            written[0] += 1
        if written[0] > at:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(sink, data)

    monkeypatch.setattr(cut_files._Hashed, "write", full)
    out = tmp_path / "out"
    with pytest.raises(OutputFailed, match="No space left on device"):
        export(out)
    assert not out.exists()
    assert set(world.closed) == {f"cut{n + 1}" for n in range(world.number)}


@pytest.mark.parametrize("made", [False, True])
def test_a_full_disk_at_the_manifest_leaves_nothing(
    made: bool, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().name.endswith(".part"):
            raise OSError(errno.ENOSPC, "No space left on device")

    out = tmp_path if made else tmp_path / "out"
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(OutputFailed, match="No space left on device"):
            export(out)
        assert list(tmp_path.iterdir()) == []
    export(out)


@pytest.mark.parametrize("made", [False, True])
def test_what_ends_after_the_manifest_was_written_leaves_no_cut(
    made: bool, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path if made else tmp_path / "out"
    sync, discard = filesystem.sync, GroupFiles.discard

    def interrupted(directory: Path) -> None:
        if (directory / "manifest.json").exists():
            raise KeyboardInterrupt
        sync(directory)

    def discarded(files: GroupFiles) -> None:
        assert not (out / "manifest.json").exists(), "nothing says any more that it is whole"
        discard(files)

    monkeypatch.setattr(filesystem, "sync", interrupted)
    monkeypatch.setattr(GroupFiles, "discard", discarded)
    with pytest.raises(KeyboardInterrupt):
        export(out)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_used_is_refused_first(world: World, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(OutputFailed, match="is not empty"):
        export(tmp_path)
    with pytest.raises(OutputFailed, match="is not a directory"):
        export(tmp_path / "mine")
    with pytest.raises(OutputFailed, match="Not a directory"):
        export(tmp_path / "mine" / "below")
    assert [each.name for each in tmp_path.iterdir()] == ["mine"]
    assert world.taken == []


@pytest.mark.parametrize("made", [False, True])
def test_an_export_into_what_another_one_writes_is_refused_and_spoils_nothing(
    made: bool, world: World, tmp_path: Path
) -> None:
    refused: list[Conflict] = []

    def tell(_: Progress) -> None:  # while the directory is empty, and when it is not any more
        with pytest.raises(Conflict, match="another run writes to it") as error:
            export(out)
        refused.append(error.value)

    out = tmp_path if made else tmp_path / "out"
    check(out, export(out, progress=tell))
    assert len(refused) > 2 * len(GROUPS)
    assert sorted(each.name for each in out.iterdir()) == ["manifest.json", TABLE]


def test_a_cut_that_was_changed_is_no_cut(world: World, tmp_path: Path) -> None:
    manifest = export(tmp_path)
    path = tmp_path / manifest.files[0].path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(BadCut, match=path.name):
        check(tmp_path, manifest)
    check(tmp_path, manifest, "mqtt.session")
    (tmp_path / "manifest.json").unlink()
    with pytest.raises(BadCut, match="was not finished"):
        read_manifest(tmp_path)
