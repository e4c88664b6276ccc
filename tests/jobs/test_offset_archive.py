"""The archive of past offsets answers as the service did, long after the service has forgotten."""

from __future__ import annotations

import hashlib
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from actors import columns
from jobs import offset_archive
from jobs.cut import CutFile, Manifest
from jobs.errors import BadCut, BadHistory, OutputFailed
from jobs.history import PAST
from jobs.session import Session
from metaray.alone import alone
from metaray.history import offsets
from state_machines.errors import Compacted, Conflict, Invalid
from state_machines.offset.history import ConfigureHistory, OffsetAt, OffsetsAt
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.offset.reset import DeleteOffsets, OffsetName
from state_machines.tables import TABLES, Tables
from tests.entities.group import Group

pytestmark = pytest.mark.spark

HOUR = 3_600


class Service:
    """A group that keeps little of the past, and cuts of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.group = Group("offset")
        self.group.run(ConfigureHistory(controller_epoch=1, step_ms=10_000, rows=6))
        self.cuts = 0

    def commit(self, group: str, partition: int, offset: int) -> None:
        commit = OffsetCommit(
            group=group, topic=f"t{partition % 2}", partition=partition, offset=offset
        )
        self.group.run(CommitOffsets.of([commit]))

    def delete(self, group: str, partition: int) -> None:
        name = OffsetName(group, f"t{partition % 2}", partition)
        self.group.run(DeleteOffsets(items=(name,)))

    def cut(self, cluster: str = "c", without: str = "", of: str = "offset-0") -> Path:
        """All that the archive needs, as a cut on disk."""
        self.cuts += 1
        directory = self.root / f"cut-{self.cuts}"
        files = []
        for table in offsets.TABLES:
            if table == without:
                continue
            found = [
                (row, revision)
                for _, row, revision in Tables(self.group.store, 0).scan(TABLES[table])
            ]
            path = directory / table / f"{of}-00000.parquet"
            path.parent.mkdir(parents=True)
            kind = TABLES[table].row
            batch = columns.batch(
                kind, [row for row, _ in found], [revision for _, revision in found]
            )
            with pq.ParquetWriter(path, batch.schema) as writer:
                writer.write_batch(batch)
            data = path.read_bytes()
            files.append(
                CutFile(
                    path=f"{table}/{path.name}",
                    table=table,
                    group=of,
                    rows=len(found),
                    bytes=len(data),
                    sha256=hashlib.sha256(data).hexdigest(),
                )
            )
        Manifest(
            cluster=cluster,
            taken_ms=self.group.now_ms,
            cut={of: self.group.index},
            files=files,
            schema="",
        ).write(directory)
        return directory

    # As a client: what `offsets.offsets_at` asks first.

    def offsets_at(
        self, group: str, at_ms: int, *, tenant: str = "default"
    ) -> tuple[OffsetAt, ...]:
        found: tuple[OffsetAt, ...] = self.group.ask(
            OffsetsAt(tenant=tenant, group=group, at_ms=at_ms, limit=1_000)
        ).offsets
        return found


@pytest.mark.long
def test_it_answers_as_the_service_did_then(tmp_path: Path, session: Session) -> None:
    luck, service, archive = Random(3), Service(tmp_path), tmp_path / "archive"
    said: dict[tuple[str, int], tuple[OffsetAt, ...]] = {}
    since = service.group.now_ms
    rows = 0
    for _ in range(3):
        for _ in range(50):
            service.group.later(luck.choice((1, 4, 11, 60)))
            group = luck.choice(("g", "h"))
            if luck.random() < 0.04:
                service.commit(group, 0, 1)
                service.delete(group, 0)
            else:
                service.commit(group, luck.randrange(4), luck.randrange(10**6))
        for at_ms in [luck.randrange(since, service.group.now_ms + 1) for _ in range(60)]:
            for group in ("g", "h"):
                try:
                    said[group, at_ms] = service.offsets_at(group, at_ms)
                except Compacted:
                    continue
        since = service.group.now_ms
        rows += offsets.add_cut(session, archive, service.cut()).rows
        service.group.later(25 * HOUR)
    told = pq.ParquetDataset(offset_archive.past_files(archive)).read().to_pylist()
    keys = [(x["group"], x["topic"], x["partition"], x["commit_ms"]) for x in told]
    assert len(keys) == len(set(keys)) == rows > 40
    assert len(list(archive.glob("day=*"))) >= 3
    forgotten = compared = 0
    for (group, at_ms), then in said.items():
        found = offset_archive.offsets_at(archive, "default", group, at_ms)
        places = {(each.topic, each.partition) for each in then}
        assert tuple(x for x in found if (x.topic, x.partition) in places) == then
        more = [each for each in found if (each.topic, each.partition) not in places]
        assert not [each for each in more if each.exact], "deleted before the next run saw it"
        compared += len(then)
        try:
            service.offsets_at(group, at_ms)
        except Compacted:
            forgotten += 1
            assert offsets.offsets_at(service, group, at_ms, tenant="default", history=archive)
            with pytest.raises(Compacted):
                offsets.offsets_at(service, group, at_ms, tenant="default")
    assert (forgotten > 20, compared > 200) == (True, True)


def test_what_was_deleted_is_still_known_for_before(tmp_path: Path, session: Session) -> None:
    service, archive = Service(tmp_path), tmp_path / "archive"
    service.commit("g", 0, 7)
    service.commit("g", 1, 8)
    then = service.group.now_ms
    before = service.offsets_at("g", then)
    offsets.add_cut(session, archive, service.cut())
    service.group.later(60)
    service.delete("g", 0)
    service.group.later(60)
    service.commit("g", 1, 9)
    offsets.add_cut(session, archive, service.cut())
    now = service.group.now_ms
    assert [each.partition for each in service.offsets_at("g", then)] == [1]
    assert offsets.offsets_at(service, "g", then, tenant="default", history=archive) == before
    latest = offsets.offsets_at(service, "g", now, tenant="default", history=archive)
    assert [(each.partition, each.offset) for each in latest] == [(1, 9)], "it is gone by now"
    assert offset_archive.offsets_at(archive, "default", "nobody", now) == ()
    assert offset_archive.offsets_at(archive, "other", "g", now) == ()
    with pytest.raises(Compacted, match="the archive ends at"):
        offset_archive.offsets_at(archive, "default", "g", now + 1)


def test_what_was_kept_counts_before_what_was_taken_for_gone(
    tmp_path: Path, session: Session
) -> None:
    service, archive = Service(tmp_path), tmp_path / "archive"
    service.commit("g", 0, 7)
    then = service.group.now_ms
    seen_ms = offsets.add_cut(session, archive, service.cut()).seen_ms
    # As a cut of other groups alone was taken: of what it had not, nothing was there any more.
    current = archive / offset_archive.opened(archive).current
    (row,) = pq.read_table(current).to_pylist()
    told = {"until_ms": then + 1, "gone_ms": then + 1, "number": None, "day": "2026-01-01"}
    gone = pa.RecordBatch.from_pylist([{**row, **told}], schema=PAST)
    offset_archive.add(archive, "c", seen_ms, [gone], current, groups=["offset-0"])
    service.group.later(60)
    later = service.group.now_ms
    service.commit("g", 0, 8)
    assert offsets.add_cut(session, archive, service.cut()).rows == 1
    for at_ms in (then, later - 1):
        found = offset_archive.offsets_at(archive, "default", "g", at_ms)
        assert found == service.offsets_at("g", at_ms)
        assert [(each.offset, each.exact) for each in found] == [(7, True)]
    assert offsets.add_cut(session, archive, service.cut()).rows == 0


def test_a_run_reads_of_the_archive_no_days_before_what_it_may_find(
    tmp_path: Path, session: Session
) -> None:
    service, archive = Service(tmp_path), tmp_path / "archive"
    for turn in range(3):
        service.commit("g", 0, turn)
        service.group.later(11)
    assert offsets.add_cut(session, archive, service.cut()).rows == 2
    old = offset_archive.past_files(archive)
    service.group.later(40 * HOUR)
    service.commit("g", 0, 99)
    offsets.add_cut(session, archive, service.cut())
    service.group.later(40 * HOUR)
    service.commit("g", 0, 100)
    for path in old:
        path.write_bytes(b"not looked at")
    assert offsets.add_cut(session, archive, service.cut()).rows == 1
    told = [path for path in offset_archive.past_files(archive) if path not in old]
    assert [row["offset"] for row in pq.ParquetDataset(told).read().to_pylist()] == [2, 99]


def test_a_run_that_was_killed_is_finished_by_the_next(
    tmp_path: Path, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, archive = Service(tmp_path), tmp_path / "archive"
    for turn in range(6):
        service.group.later(11)
        service.commit("g", 0, turn)
    first = service.cut()
    with monkeypatch.context() as patch:
        patch.setattr(offset_archive, "_name", _killed)
        with pytest.raises(KeyboardInterrupt):
            offsets.add_cut(session, archive, first)
    with monkeypatch.context() as full:
        full.setattr(offset_archive, "sync_file", _full)
        with pytest.raises(OutputFailed, match="No space left"):
            offsets.add_cut(session, archive, first)
    with pytest.raises(BadHistory, match="no archive"):
        offset_archive.opened(archive)
    service.group.later(11)
    service.commit("g", 0, 99)
    offsets.add_cut(session, archive, service.cut())
    told = pq.ParquetDataset(offset_archive.past_files(archive)).read().to_pylist()
    assert sorted(row["offset"] for row in told) == [0, 1, 2, 3, 4, 5]
    assert offsets.add_cut(session, archive, service.cut()).rows == 0, "the same again adds nothing"
    assert len(list(archive.glob("current-*"))) == 1


def _killed(*_: Any) -> None:
    raise KeyboardInterrupt


def _full(_: Path) -> None:
    raise OSError(28, "No space left on device")


def test_a_cut_that_does_not_fit_is_refused_and_nothing_changes(
    tmp_path: Path, session: Session
) -> None:
    service, archive = Service(tmp_path), tmp_path / "archive"
    service.commit("g", 0, 1)
    old = service.cut()
    service.group.later(60)
    service.commit("g", 0, 2)
    offsets.add_cut(session, archive, service.cut())
    before = offset_archive.opened(archive), offset_archive.past_files(archive)
    torn = service.cut()
    (torn / "group.clock" / "offset-0-00000.parquet").write_bytes(b"PAR1")
    for cut, error, says in (
        (old, Invalid, "has seen"),
        (service.cut(without="group.clock"), Invalid, r"group\.clock"),
        (service.cut(cluster="other"), BadHistory, "of cluster 'c'"),
        (torn, BadCut, "not what the manifest says"),
        (service.cut(of="offset-1"), Invalid, "has nothing of offset-0"),
    ):
        with pytest.raises(error, match=says):
            offsets.add_cut(session, archive, cut)
        assert (offset_archive.opened(archive), offset_archive.past_files(archive)) == before
    with alone(archive), pytest.raises(Conflict, match="another run"):
        offsets.archive(archive, address=None)
    (archive / offset_archive.ARCHIVE).write_text("[]")
    with pytest.raises(BadHistory):
        offset_archive.offsets_at(archive, "default", "g", 1)
