"""What a backup from outside may not say: it is refused by name, and nothing was proposed."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs.cut import read_manifest
from jobs.errors import BadCut
from metaray import backups
from metaray.restoring import Scope, restore
from state_machines.errors import Invalid, MetarayError
from tests.backups import world
from tests.backups.settled import settle
from tests.backups.world import TAKEN_MS, Cluster


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup that each test has a copy of."""
    made = Cluster()
    settle(made, "acme")
    directory = tmp_path_factory.mktemp("whole") / "cut"
    world.write(made, directory)
    return directory


@pytest.fixture
def cut(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "cut"))


def refuses(cut: Path, error: type[MetarayError], says: str) -> None:
    """By `verify` and by `restore`, before anything is proposed."""
    with pytest.raises(error, match=says):
        backups.verify(cut)
    cluster = Cluster()
    with pytest.raises(error, match=says):
        restore(cluster, cut, Scope(tenant="acme"), now_ms=lambda: TAKEN_MS)
    assert cluster.asked == []


def test_a_backup_that_is_whole_is_told_table_by_table(cut: Path) -> None:
    found = backups.verify(cut)
    rows = {each.table: each.rows for each in found.tables}
    assert rows["offset.offset"] == 12
    reasons = {each.table: each.left_out for each in found.tables}
    assert reasons["offset.offset"] == ""
    assert reasons["mqtt.due"] == "made from what is due"
    assert reasons["group.clock"] == backups.GROUPS_OWN


@pytest.mark.parametrize("kept", ["metadata-0", "offset-0"])
def test_a_cut_of_some_groups_removes_nothing_of_the_others(kept: str, tmp_path: Path) -> None:
    """Whether it has the slot map of its cluster or goes by the live one."""
    kind = kept.rpartition("-")[0]
    cluster = Cluster(2)
    settle(cluster, "acme")
    manifest = world.write(cluster, tmp_path / "cut")
    assert backups.verify(tmp_path / "cut").missing == ()
    some = dataclasses.replace(
        manifest,
        files=[each for each in manifest.files if each.group == kept],
        cut={kept: manifest.cut[kept]},
    )
    some.write(tmp_path / "cut")
    assert backups.verify(tmp_path / "cut").missing
    cluster.asked.clear()
    for dry_run in (True, False):
        with pytest.raises(BadCut, match=rf"partial, without {kind}-1,.*--only-missing"):
            restore(cluster, tmp_path / "cut", Scope(), dry_run=dry_run, now_ms=lambda: TAKEN_MS)
    assert cluster.asked == []
    done = restore(cluster, tmp_path / "cut", Scope(), replace=False, now_ms=lambda: TAKEN_MS)
    assert done.ok
    assert done.missing


@pytest.mark.parametrize("kind", ["offset", "mqtt"])
def test_a_backup_that_lacks_a_whole_kind_is_partial(kind: str, tmp_path: Path) -> None:
    """It has no table of the kind then, and what is wanted is not what it has."""
    cluster = Cluster()
    settle(cluster, "acme")
    cut = tmp_path / "cut"
    manifest = world.write(cluster, cut)
    dataclasses.replace(
        manifest,
        files=[each for each in manifest.files if each.group != f"{kind}-0"],
        cut={name: each for name, each in manifest.cut.items() if name != f"{kind}-0"},
    ).write(cut)
    cluster.asked.clear()
    with pytest.raises(BadCut, match=rf"partial, without {kind}-0, .*--only-missing"):
        restore(cluster, cut, Scope(), now_ms=lambda: TAKEN_MS)
    assert cluster.asked == []
    done = restore(cluster, cut, Scope(), replace=False, now_ms=lambda: TAKEN_MS)
    assert done.missing == (f"{kind}-0",)
    other = {"offset": Scope(tenant="acme", topic="t"), "mqtt": Scope(tenant="acme")}[kind]
    with pytest.raises(BadCut, match="partial"):
        restore(cluster, cut, other, now_ms=lambda: TAKEN_MS)


def test_a_cut_of_some_tables_lacks_no_group(cut: Path) -> None:
    manifest = read_manifest(cut)
    files = [each for each in manifest.files if each.table == "offset.offset"]
    dataclasses.replace(manifest, files=files).write(cut)
    assert backups.verify(cut).missing == ()


@pytest.mark.parametrize("place", [4, 100, -9])
def test_a_flipped_byte(cut: Path, place: int) -> None:
    path = cut / "offset.offset" / "offset-0-00000.parquet"
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    refuses(cut, BadCut, "offset.offset/offset-0-00000.parquet: .* not what the manifest says")


def test_a_file_that_is_gone_and_a_cut_that_was_not_finished(cut: Path) -> None:
    (cut / "offset.group" / "offset-0-00000.parquet").unlink()
    refuses(cut, BadCut, "offset.group/offset-0-00000.parquet: No such file")
    (cut / "manifest.json").unlink()
    refuses(cut, BadCut, "no manifest.json")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"taken_ms": 10**18}, "taken_ms: a number from 0 to 253402300799999 is wanted, not 1000"),
        ({"taken_ms": "x"}, "taken_ms: a number .* not 'x'"),
        ({"cluster": None}, "cluster: text .* not None"),
        ({"cut": []}, r"cut: an object is wanted, not \[\]"),
        ({"cut": {"offset-0": True}}, "cut: offset-0: a number .* not True"),
        ({"versions": {"python": 3}}, "versions: python: text .* not 3"),
        ({"files": 3}, "files: a list is wanted"),
        ({"path": 1}, "files: path: text .* not 1"),
        ({"path": "a/\0"}, r"files: path: text .* not 'a/\\x00'"),
        ({"path": "a/\ud800"}, r"files: path: text .* not 'a/\\ud800'"),
        ({"rows": -1}, "files: rows: a number from 0 to 9223372036854775807 is wanted, not -1"),
    ],
)
def test_a_manifest_with_a_field_that_is_none(cut: Path, said: dict[str, Any], says: str) -> None:
    manifest = json.loads((cut / "manifest.json").read_text())
    changed = manifest if said.keys() <= manifest.keys() else manifest["files"][0]
    changed.update(said)
    (cut / "manifest.json").write_text(json.dumps(manifest))
    refuses(cut, BadCut, f"manifest.json: .*{says}")


def test_a_manifest_that_is_nested_without_end_and_a_path_that_leads_to_itself(cut: Path) -> None:
    manifest = read_manifest(cut)
    (cut / "manifest.json").write_text('{"format": 1, "files": ' + "[" * 100_000)
    refuses(cut, BadCut, "manifest.json: maximum recursion depth")
    (cut / "loop").symlink_to("loop")
    looped = dataclasses.replace(manifest.files[0], path="loop/x")
    dataclasses.replace(manifest, files=[looped]).write(cut)
    refuses(cut, BadCut, "loop/x: ")


def test_a_table_without_a_file_of_a_group_is_not_one_without_rows(tmp_path: Path) -> None:
    was = Cluster(2)
    for tenant in ("acme", "umbrella"):
        settle(was, tenant)
    manifest = world.write(was, tmp_path / "cut")
    for lost in ("metadata.kv", "mqtt.session", "offset.offset"):
        files = [each for each in manifest.files if (each.table, each.group[-2:]) != (lost, "-1")]
        dataclasses.replace(manifest, files=files).write(tmp_path / "cut")
        kind = lost.partition(".")[0]
        refuses(tmp_path / "cut", BadCut, f"files: {lost} has none of {kind}-1, which was cut")


@pytest.mark.timeout(30)
def test_what_is_no_file_is_not_waited_for(cut: Path) -> None:
    """An archive may hold pipes, and links to devices."""
    (file,) = [each for each in read_manifest(cut).files if each.table == "mqtt.user"]
    (cut / file.path).unlink()
    os.mkfifo(cut / file.path)
    refuses(cut, BadCut, "mqtt.user/mqtt-0-00000.parquet: not a regular file")
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        (cut / "manifest.json").unlink()
        make(cut / "manifest.json")
        refuses(cut, BadCut, "manifest.json: .*not a regular file")


def test_a_manifest_beyond_all_measure(cut: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.cut.MANIFEST_BYTES_MAX", 1_000)
    refuses(cut, BadCut, "manifest.json: larger than 1000 bytes, the limit")


def replaced(cut: Path, table: str, page: pa.Table | bytes) -> None:
    """The file of a table is this one, and the manifest says so."""
    manifest = read_manifest(cut)
    (old,) = [each for each in manifest.files if each.table == table]
    path = cut / old.path
    if isinstance(page, bytes):
        path.write_bytes(page)
    else:
        pq.write_table(page, path)
    made = dataclasses.replace(old, **world.told(path))
    files = [each for each in manifest.files if each.table != table]
    dataclasses.replace(manifest, files=[*files, made]).write(cut)


def test_a_file_that_is_no_parquet_though_its_checksum_fits(cut: Path) -> None:
    replaced(cut, "mqtt.user", b"PAR1 is how it begins, and that is all")
    refuses(cut, BadCut, "mqtt.user/mqtt-0-00000.parquet: ")


def test_a_column_whose_name_is_no_utf_8(cut: Path) -> None:
    data = (cut / "mqtt.user" / "mqtt-0-00000.parquet").read_bytes()
    replaced(cut, "mqtt.user", data.replace(b"username", b"usern\xffme"))
    refuses(cut, BadCut, "mqtt.user/mqtt-0-00000.parquet: .*invalid start byte")


@pytest.mark.parametrize(
    ("column", "values", "says"),
    [
        ("username", pa.array([1]), "mqtt.user: username: str is wanted, not int"),
        ("username", pa.array([None], pa.string()), "mqtt.user: username: str is wanted"),
        ("superuser", pa.array(["yes"]), "mqtt.user: superuser: bool is wanted, not str"),
        ("created_ms", pa.array([0.5]), "mqtt.user: created_ms: int is wanted, not float"),
        ("revision", pa.array(["x"]), "mqtt.user: revision: int is wanted, not str"),
    ],
)
def test_a_column_of_another_type(cut: Path, column: str, values: Any, says: str) -> None:
    page = pq.read_table(cut / "mqtt.user" / "mqtt-0-00000.parquet")
    replaced(cut, "mqtt.user", page.set_column(page.schema.get_field_index(column), column, values))
    refuses(cut, Invalid, says)


def test_a_column_of_a_newer_version(cut: Path) -> None:
    page = pq.read_table(cut / "mqtt.user" / "mqtt-0-00000.parquet")
    replaced(cut, "mqtt.user", page.append_column("expires_ms", pa.array([5] * page.num_rows)))
    refuses(cut, Invalid, "mqtt.user: expires_ms: a column that this version does not know")


def test_a_column_that_is_missing_and_a_row_that_comes_twice(cut: Path) -> None:
    page = pq.read_table(cut / "mqtt.user" / "mqtt-0-00000.parquet")
    replaced(cut, "mqtt.user", pa.concat_tables([page, page]))
    manifest = read_manifest(cut)
    twice = [
        dataclasses.replace(each, rows=2) if each.table == "mqtt.user" else each
        for each in manifest.files
    ]
    dataclasses.replace(manifest, files=twice).write(cut)
    cluster = Cluster()
    with pytest.raises(Invalid, match=r"mqtt.user: \('acme', 'u'\) comes twice"):
        restore(cluster, cut, Scope(), now_ms=lambda: TAKEN_MS)
    assert cluster.asked == []
    replaced(cut, "mqtt.user", page.drop_columns(["verifier"]))
    refuses(cut, Invalid, "mqtt.user: verifier: missing")


LONG = "x" * 70_000

CRAFTED: dict[str, tuple[str, dict[str, Any], str]] = {
    "config": ("metadata.config", {"number": -5}, "number: offset_retention_ms is -5"),
    "pair": ("metadata.kv", {"key": "x" * 401}, "key: 401 bytes, the limit is 400"),
    "pair of value": ("metadata.kv", {"value": b"x" * (1 << 21)}, "value: 2097152 bytes"),
    "epoch": ("metadata.node_epoch", {"epoch": 2**63 - 1}, "epoch: 9223372036854775807, the"),
    "timestamp": ("metadata.timestamp", {"last": 2**62 + 1}, "last: 4611686018427387905, the"),
    "group": ("metadata.subscription_group", {"retry_queues": -1}, "retry_queues: -1"),
    "tenant": ("metadata.tenant", {"name": ""}, "name: empty"),
    "topic": ("metadata.topic", {"read_queues": 10_001}, "read_queues: 10001"),
    "queues": ("metadata.topic", {"queues_high": 1}, "queues_high: 1, the range is 3"),
    "state": ("metadata.topic", {"state": "odd"}, "state: 'odd', the 2 there are"),
    "schema": ("metadata.schema", {"type": "xml"}, "type: 'xml'"),
    "version": ("metadata.schema_version", {"text": "{}"}, "fingerprint: it is not"),
    "binding": ("metadata.schema_binding", {"resource": LONG}, "resource: 70000 bytes"),
    "shard": ("metadata.shard", {"first_sequence": 5}, "first_sequence: 5, the range is 0 to 1"),
    "segment": ("metadata.segment", {"replicas": ()}, "replicas: empty"),
    "isr": ("metadata.segment", {"isr": ("n7",)}, "isr: a node that is no replica"),
    "end": ("metadata.segment", {"end_offset": -7}, "end_offset: -7, the range is 0"),
    "user": ("mqtt.user", {"verifier": "secret"}, "verifier: a salted hash is wanted"),
    "acl": ("mqtt.acl", {"permission": "maybe"}, "permission: 'maybe'"),
    "auto": ("mqtt.auto_subscribe", {"qos": 3}, "qos: 3, the range is 0 to 2"),
    "rewrite": ("mqtt.rewrite", {"dest": "b/$9"}, "dest: \\$9"),
    "barred": ("mqtt.blacklist", {"type": "ip", "resource": "::0:1"}, "resource: '::0:1' is not"),
    "retained": ("mqtt.retained", {"payload": b""}, "payload: empty"),
    "filter": ("mqtt.subscription", {"filter": "a/#/b"}, "filter: # stands alone and last"),
    "identifier": ("mqtt.subscription", {"subscription_id": 1 << 28}, "subscription_id: 268435456"),
    "session": ("mqtt.session", {"expiry_s": -1}, "expiry_s: -1, the range is 0"),
    "client": ("mqtt.session", {"client_id": LONG}, "client_id: 70000 bytes, the limit is 65535"),
    "will": ("mqtt.will", {"topic": "a/+"}, "topic: a topic name has no wildcard"),
    "of session": ("mqtt.share_member", {"session_created_ms": -1}, "session_created_ms: -1"),
    "member": ("mqtt.share_member", {"name": "a/b"}, "name: a share name has no"),
    "connector": ("mqtt.connector", {"config": "[]"}, "items.config: "),
    "status": ("mqtt.connector", {"status": "odd"}, "status: 'odd', the 4 there are"),
    "partitions": ("mqtt.topic", {"partitions": 0}, "partitions: 0, the range is 1"),
    "generation": ("offset.group", {"generation": -2}, "generation: -2, the least is -1"),
    "partition": ("offset.offset", {"partition": -1}, "partitions: the range is 0"),
    "kept": ("offset.offset", {"kept_next": 5_000}, "kept_next: 5000, the range is 0 to 1026"),
    "time": ("offset.offset", {"commit_ms": -2}, "commit_ms: -2 is no time"),
    "history": ("offset.history", {"until_ms": 0}, "until_ms: 0, it begins at"),
}


@pytest.mark.parametrize("name", sorted(CRAFTED))
def test_a_row_beyond_its_limits(cut: Path, name: str) -> None:
    table, change, says = CRAFTED[name]
    world.spoil(cut, table, change)
    with pytest.raises(Invalid, match=f"^{table}: {says}"):
        backups.verify(cut)
    cluster = Cluster()
    with pytest.raises(Invalid, match=f"^{table}: {says}"):
        restore(cluster, cut, Scope(), now_ms=lambda: TAKEN_MS)
    assert cluster.asked == []
