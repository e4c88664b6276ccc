"""Exports of a cluster that goes on writing: whole, of one moment a group, or a typed refusal."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

from jobs.cut import Manifest, check, read_manifest
from jobs.errors import OutputFailed
from metaray import BlockingClient, connect_sync, cuts
from metaray.cuts import Cut
from metaray.exporting import Progress
from state_machines.errors import Invalid, NoQuorum, NotFound
from state_machines.mqtt.session import SaveSessions, SessionItem
from state_machines.offset.offset import OffsetCommit
from tests.door.seats import ask, follower, leader, wait_for, wait_until_whole

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

TABLE = "offset.offset"
SESSIONS = "mqtt.session"
PAIRS = 200


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with connect_sync() as client:
        yield client


def commit_pairs(client: BlockingClient, tenant: str, number: int) -> None:
    """One command that writes two rows of each consumer group: all of them, or none."""
    client.commit_offsets(
        [
            OffsetCommit(group=f"g{pair:03}", topic=topic, partition=0, offset=number)
            for pair in range(PAIRS)
            for topic in ("a", "b")
        ],
        tenant=tenant,
    )


def open_sessions(client: BlockingClient, tenant: str, number: int) -> None:
    """One command that says the same of all sessions."""
    client.call(
        SaveSessions(
            tenant=tenant,
            sessions=tuple(
                SessionItem(client_id=f"c{each:03}", broker=f"b{number}", expiry_s=60)
                for each in range(PAIRS)
            ),
        )
    )


@contextmanager
def written_on(tenant: str) -> Iterator[list[int]]:
    """Both kinds are written to all the time. What was acknowledged last is in the list."""
    ended, written = threading.Event(), [1]

    def write() -> None:
        with connect_sync() as writer:
            while not ended.is_set():
                commit_pairs(writer, tenant, written[0] + 1)
                open_sessions(writer, tenant, written[0] + 1)
                written[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        ended.set()
        thread.join(60)
    assert not thread.is_alive()


def rows_of(out: Path, manifest: Manifest, table: str, tenant: str) -> list[dict[str, Any]]:
    found = []
    for each in manifest.files:
        if each.table == table:
            rows = pq.read_table(out / each.path).to_pylist()
            assert len(rows) == each.rows
            found += [row for row in rows if row["tenant"] == tenant]
    return found


def is_one_moment(out: Path, manifest: Manifest, tenant: str) -> tuple[int, int]:
    """Each group is as it was after some command, whole. Returns which."""
    offsets = rows_of(out, manifest, TABLE, tenant)
    assert [(row["group"], row["topic"]) for row in offsets] == [
        (f"g{pair:03}", topic) for pair in range(PAIRS) for topic in ("a", "b")
    ]
    [number] = {row["offset"] for row in offsets}
    [revision] = {row["revision"] for row in offsets}
    assert revision <= manifest.cut["offset-0"]
    sessions = rows_of(out, manifest, SESSIONS, tenant)
    assert [row["client_id"] for row in sessions] == [f"c{each:03}" for each in range(PAIRS)]
    [broker] = {row["broker"] for row in sessions}
    assert max(row["revision"] for row in sessions) <= manifest.cut["mqtt-0"]
    return number, int(broker[1:])


def test_every_export_is_one_moment_while_writers_go_on(
    client: BlockingClient, tenant: str, tmp_path: Path
) -> None:
    """From copies, and from views."""
    commit_pairs(client, tenant, 1)
    open_sessions(client, tenant, 1)
    told: list[Progress] = []
    with written_on(tenant) as written:
        for turn, view_bytes in enumerate((0, 1 << 40)):
            acknowledged, out = written[0], tmp_path / str(turn)
            manifest = client.export(out, view_bytes=view_bytes, progress=told.append)
            numbers = is_one_moment(out, manifest, tenant)
            assert all(acknowledged <= each <= written[0] + 1 for each in numbers)
            assert read_manifest(out) == manifest
            check(out, manifest)
    assert set(manifest.cut) == set(client.groups())
    assert set(manifest.tables()) >= {TABLE, SESSIONS, "metadata.tenant", "group.quota"}
    last = told[-1]
    assert last.groups_done == last.groups == len(manifest.cut)
    assert last.rows == last.rows_total == sum(each.rows for each in manifest.files)
    assert last.bytes == sum(each.bytes for each in manifest.files)


def test_what_is_asked_for_is_in_it_and_no_more(
    client: BlockingClient, tenant: str, tmp_path: Path
) -> None:
    commit_pairs(client, tenant, 7)
    revision, leads = leader("offset-0")["commit"], leader("offset-0")["seat"]
    for source in ("leader", leads, "follower"):
        out = tmp_path / source.replace("/", "-")
        manifest = client.export(
            out, tables=[TABLE], source=source, groups=["offset-0"],
            min_index={"offset-0": revision},
        )  # fmt: skip
        assert manifest.tables() == (TABLE,)
        assert manifest.cut["offset-0"] >= revision
        assert {row["offset"] for row in rows_of(out, manifest, TABLE, tenant)} == {7}
    refs = client.export_refs(tables=[TABLE, "group.quota"], groups=["offset-0"])
    assert refs.cut["offset-0"] >= revision
    blocks = ray.get(list(refs.tables[TABLE]))
    rows = [row for row in pa.concat_tables(blocks).to_pylist() if row["tenant"] == tenant]
    assert len(rows) == 2 * PAIRS
    assert set(refs.tables) == {TABLE, "group.quota"}


@pytest.mark.long
def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    client: BlockingClient, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(NotFound, match="there is no group 'offset-77'"):
        client.export(out, groups=["offset-77"])
    with pytest.raises(NotFound, match=r"there is no table 'no\.such'"):
        client.export(out, tables=["no.such"])
    with pytest.raises(Invalid, match="none of the groups has one"):
        client.export(out, groups=["mqtt-0"], tables=[TABLE])
    with pytest.raises(Invalid, match="from: offset-0/1 is a replica of offset-0"):
        client.export(out, groups=["mqtt-0"], source="offset-0/1")
    with pytest.raises(NotFound, match="from: mqtt-0 has no 'learner'"):
        client.export(out, groups=["mqtt-0"], source="learner")
    with pytest.raises(NoQuorum, match="has not applied 9000000 yet"):
        client.export(out, groups=["mqtt-0"], min_index={"mqtt-0": 9_000_000})
    assert not out.exists()
    out.mkdir()
    (out / "mine").touch()
    with pytest.raises(OutputFailed, match="is not empty"):
        client.export(out)
    with pytest.raises(OutputFailed, match="not a directory"):
        client.export(out / "mine")
    assert [each.name for each in out.iterdir()] == ["mine"]


def test_a_replica_that_dies_on_the_way_is_replaced_and_nothing_is_mixed(
    client: BlockingClient, tenant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First the replica that a view is of, then the exporter of a copy."""
    wait_until_whole("offset-0")
    commit_pairs(client, tenant, 1)
    killed: list[str] = []
    pages = Cut.pages

    def slowly(cut: Cut, table: str, rows: int = 0) -> Iterator[bytes]:
        for number, page in enumerate(pages(cut, table, 50)):
            if table == TABLE and number == 2 and not killed:
                killed.append(cut.seat)
                if cut.exporter is not None:
                    ray.kill(cut.exporter)
                else:
                    os.kill(ask(cut.seat, "process"), signal.SIGKILL)
                commit_pairs(client, tenant, 2)
            yield page

    monkeypatch.setattr(Cut, "pages", slowly)
    for turn, view_bytes in enumerate((1 << 40, 0)):
        commit_pairs(client, tenant, 1)
        killed.clear()
        out, told = tmp_path / str(turn), list[Progress]()
        manifest = client.export(
            out, groups=["offset-0"], tables=[TABLE], view_bytes=view_bytes, progress=told.append
        )
        assert killed
        assert told[-1].begun_anew == 1
        assert told[-1].rows == told[-1].rows_total == manifest.rows(TABLE)
        rows = rows_of(out, manifest, TABLE, tenant)
        assert len(rows) == 2 * PAIRS
        assert {row["offset"] for row in rows} == {2}  # of the later cut alone
        check(out, manifest)
        wait_until_whole("offset-0")


def test_a_copy_that_nobody_reads_any_more_is_removed(
    client: BlockingClient, tenant: str, service: Any
) -> None:
    commit_pairs(client, tenant, 1)
    seat = follower("offset-0")
    cut = cuts.take("offset-0", (TABLE,), source=seat, view_bytes=0)
    copies = list(Path(service.data).rglob(f"copies/{cut.name}"))
    assert len(copies) == 1
    assert [each.name for each in copies[0].iterdir()] == ["LOCK"]  # the rest has no name any more
    cut.close()
    with pytest.raises(NotFound):
        next(cut.pages(TABLE))
    wait_for(lambda: not copies[0].exists(), "nothing is left of the copy")
