"""A live cluster is backed up, loses a tenant and gets it back, while another one is written."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobs.cut import read_manifest
from metaray import BlockingClient, backups, connect_sync
from metaray.restoring import Scope, restore
from state_machines.errors import Fenced
from state_machines.metadata.kv import KV
from state_machines.metadata.restore import RemoveMetadata
from state_machines.mqtt.session import CloseSession, DeleteSessions, GetSession, OpenSession
from state_machines.mqtt.subscription import ListSubscriptions, PutSubscriptions, TopicFilter
from state_machines.offset.offset import OffsetCommit
from state_machines.row_key import pack

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

CLIENTS = 20
PARTITIONS = 50


@pytest.fixture
def client() -> Iterator[BlockingClient]:
    with connect_sync() as client:
        yield client


def fill(client: BlockingClient, tenant: str) -> dict[str, int]:
    """Pairs, offsets, and sessions with subscriptions; the sessions' epochs."""
    epochs = {}
    client.put("a", b"1", tenant=tenant)
    client.put("b", b"2", tenant=tenant)
    commits = [OffsetCommit("g", "t", each, each * 7) for each in range(PARTITIONS)]
    client.commit_offsets(commits, tenant=tenant)
    for number in range(CLIENTS):
        name = f"c{number}"
        opened = client.call(
            OpenSession(tenant=tenant, client_id=name, broker="b1", expiry_s=3_600)
        )
        epochs[name] = opened.epoch
        filters = (TopicFilter(filter="a/#"), TopicFilter(filter=f"b/{number}"))
        client.call(
            PutSubscriptions(tenant=tenant, client_id=name, epoch=opened.epoch, filters=filters)
        )
    return epochs


def lose(client: BlockingClient, tenant: str) -> None:
    client.delete("a", tenant=tenant)
    client.put("b", b"spoilt", tenant=tenant)
    client.put("new", b"new", tenant=tenant)
    client.delete_group("g", tenant=tenant)
    client.call(
        DeleteSessions(tenant=tenant, client_ids=tuple(f"c{each}" for each in range(CLIENTS)))
    )


def test_a_tenant_comes_back_into_a_live_cluster(
    client: BlockingClient, tenant: str, tmp_path: Path
) -> None:
    other = f"{tenant}-other"
    epochs, theirs = fill(client, tenant), fill(client, other)
    offsets = client.fetch_offsets("g", tenant=tenant)
    told: list[tuple[int, int, int]] = []
    verdict = backups.backup(tmp_path / "backup", progress=lambda *now: told.append(now))
    assert verdict.manifest == read_manifest(tmp_path / "backup")
    assert set(verdict.manifest.cut) == {"metadata-0", "mqtt-0", "offset-0"}
    assert told[-1][2] == sum(each.rows for each in verdict.tables)
    lose(client, tenant)
    revision = client.put("mark", b"", tenant=other)

    ended, written = threading.Event(), [0]

    def write() -> None:
        with connect_sync() as writer:
            while not ended.is_set():
                written[0] += 1
                writer.put("n", str(written[0]).encode(), tenant=other)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        done = restore(client, tmp_path / "backup", Scope(tenant=tenant))
    finally:
        ended.set()
        thread.join()
    assert done.ok, [each for each in done.tables if each.refused or each.same is False]
    assert client.fetch_offsets("g", tenant=tenant) == offsets
    pairs = client.list_keys(tenant=tenant).entries
    assert [(each.key, each.value) for each in pairs] == [("a", b"1"), ("b", b"2")]
    assert all(each.revision > revision for each in pairs)
    for name, epoch in epochs.items():
        session = client.call(GetSession(tenant=tenant, client_id=name))
        assert session is not None
        assert session.epoch > epoch
        assert (session.connected, session.subscriptions) == (False, 2)
        page = client.call(ListSubscriptions(tenant=tenant, client_id=name))
        assert len(page.subscriptions) == 2
    with pytest.raises(Fenced):
        client.call(CloseSession(tenant=tenant, client_id="c0", epoch=epochs["c0"]))
    assert written[0] > 0
    kept = client.get("n", tenant=other)
    assert kept is not None
    assert kept.value == str(written[0]).encode()
    for name, epoch in theirs.items():
        session = client.call(GetSession(tenant=other, client_id=name))
        assert session is not None
        assert session.epoch == epoch

    gone = RemoveMetadata(table=KV.name, keys=(pack((tenant, "a")),))
    client.call(gone)
    dry = restore(client, tmp_path / "backup", Scope(tenant=tenant), dry_run=True)
    assert sum(each.add + each.change + each.remove for each in dry.tables) == 1
    assert restore(client, tmp_path / "backup", Scope(tenant=tenant)).ok
