"""Rows of a backup where they are applied: whoever sends them, what only grows is never lowered,
and nothing is left of what was there instead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from metaray.restoring import PUTS
from state_machines import packing, row_key
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.metadata.config import (
    CONFIGS,
    Config,
    ConfigName,
    ConfigValue,
    DeleteConfigs,
    ResolveConfigs,
    SetConfigs,
)
from state_machines.metadata.kv import KV, GetKv, Kv, PutKv
from state_machines.metadata.node import EPOCHS, NodeEpoch
from state_machines.metadata.restore import RemoveMetadata
from state_machines.metadata.schedule import SCHEDULES, BeginRun, GetSchedule, PutSchedule
from state_machines.metadata.schema import (
    DeleteSchemaVersions,
    PutSchemas,
    SchemaNumber,
    SchemaPut,
)
from state_machines.metadata.schema_queries import GetSchemaVersion
from state_machines.metadata.schemas import SCHEMAS, VERSIONS
from state_machines.metadata.segment import DeleteSegments, FinishSegments
from state_machines.metadata.segments import (
    PREPARE_DELETE,
    SEGMENTS,
    UNAVAILABLE,
    remove_segment,
)
from state_machines.metadata.shard import DeleteShards, SweepShards
from state_machines.metadata.shards import SHARDS
from state_machines.metadata.topic import TOPIC_CONFIGS, CreateTopicConfigs, NewTopic
from state_machines.offset.activity import ACTIVITY
from state_machines.offset.group import FenceGroup
from state_machines.offset.history import HISTORY, HISTORY_STEP_MS, OffsetsAt
from state_machines.offset.offset import OFFSETS, CommitOffsets, FetchOffsets, OffsetCommit
from state_machines.offset.restore import RemoveOffsets
from state_machines.offset.rows import (
    BUCKET_MS,
    DYING,
    GROUPS,
    LIVE,
    NOT_KNOWN,
    StoredOffset,
)
from state_machines.offset.rows import Group as Consumers
from state_machines.tables import Table, Tables
from tests.entities.engine import Engine, check_index, outcome
from tests.entities.group import Group
from tests.machine import derived


def restored(group: Group, table: Table[Any], row: Any, *, over: bool = True) -> bool:
    """Whether the row that was sent has changed anything."""
    sent = PUTS[table.kind](table=table.name, rows=(packing.pack(row),), replace=over)
    (outcome,) = group.run(sent)
    return bool(outcome.or_raise().revision)


def stored(group: Group, table: Table[Any]) -> Any:
    (row,) = [table.decode(value)[0] for _, value in group.store.scan(table.name, ())]
    return row


def test_an_epoch_is_never_lowered() -> None:
    group = Group("metadata")
    assert restored(group, EPOCHS, NodeEpoch("n1", 9))
    assert not restored(group, EPOCHS, NodeEpoch("n1", 4))
    assert stored(group, EPOCHS) == NodeEpoch("n1", 9)
    assert restored(group, EPOCHS, NodeEpoch("n1", 10))


@pytest.mark.parametrize(
    ("scope", "key"), [("cluster", "watch_history_ms"), ("tenant/acme", "offset_history_ms")]
)
def test_a_setting_that_is_not_taken_any_more_comes_back_and_holds_nowhere(
    scope: str, key: str
) -> None:
    group = Group("metadata")
    with group.refuses(Invalid):
        group.run(SetConfigs(items=(ConfigValue(scope=scope, key=key, number=5),)))
    before = group.ask(ResolveConfigs(tenant="acme"))
    assert restored(group, CONFIGS, Config(scope, key, 5, None, 1, 0))
    assert stored(group, CONFIGS).number == 5
    assert group.ask(ResolveConfigs(tenant="acme")) == before
    assert group.run(DeleteConfigs(items=(ConfigName(scope=scope, key=key),)))[0].ok


def test_the_queues_that_a_topic_once_had_are_never_fewer() -> None:
    group = Group("metadata")
    topic = NewTopic(name="t", protocol="kafka", read_queues=5, write_queues=5)
    group.run(CreateTopicConfigs(items=(topic,)))
    own = stored(group, TOPIC_CONFIGS)
    then = replace(own, read_queues=1, write_queues=1, queues_high=1)
    assert restored(group, TOPIC_CONFIGS, then)
    now = stored(group, TOPIC_CONFIGS)
    assert (now.read_queues, now.queues_high, now.topic_id) == (1, 5, own.topic_id)


def put_version(group: Group, version: int) -> bool:
    item = SchemaPut(name="o", type="json", text=f"text {version}", expected_version=version - 1)
    return bool(group.run(PutSchemas(items=(item,)))[0].ok)


def test_a_version_that_is_put_after_a_restore_has_a_number_of_its_own() -> None:
    """Above those of the backup, and above those that were given since, which records may bear."""
    group = Group("metadata")
    assert put_version(group, 1)
    schema, version = stored(group, SCHEMAS), stored(group, VERSIONS)
    assert put_version(group, 2)
    second = row_key.pack(("default", "o", 2))
    assert group.run(RemoveMetadata(table=VERSIONS.name, keys=(second,)))[0].ok
    assert not restored(group, SCHEMAS, schema)
    assert stored(group, SCHEMAS).version == 2
    assert group.ask(GetSchemaVersion(name="o")).version == 1
    newest = DeleteSchemaVersions(items=(SchemaNumber("o", 1),))
    assert group.run(newest)[0].code == "CONFLICT"
    assert not put_version(group, 2)
    assert put_version(group, 3)
    assert restored(group, VERSIONS, replace(version, version=7))
    assert not put_version(group, 4)
    assert put_version(group, 8)


def test_a_segment_comes_back_above_its_own_epochs_and_those_of_the_backup() -> None:
    group = Engine("n1")
    group.shard("s")
    own = stored(group, SEGMENTS)
    assert restored(group, SEGMENTS, replace(own, leader_epoch=50, segment_epoch=70, start_ms=1))
    now = stored(group, SEGMENTS)
    assert (now.leader_epoch, now.segment_epoch, now.status) == (51, 71, UNAVAILABLE)
    assert restored(group, SEGMENTS, replace(own, start_ms=2))
    now = stored(group, SEGMENTS)
    assert (now.leader_epoch, now.segment_epoch, now.leader) == (52, 72, "")


def test_a_segment_that_comes_back_is_kept_as_its_shard_is() -> None:
    group = Engine("n1", "n2", "n3")
    group.shard("s", "n1", "n2", "n3", min_isr=2)
    old = replace(group.segment(), start_ms=1, min_isr=1, copies=0)  # a release that said neither
    assert restored(group, SEGMENTS, old)
    assert (group.segment().min_isr, group.segment().copies) == (2, 3)
    check_index(group.store)


def grown() -> Engine:
    """Of its segments 0 has gone, 1 is on its way out, 2 is sealed and 3 is written."""
    group = Engine("n1")
    group.shard("s")
    for sequence in range(3):
        assert group.roll(10 * sequence + 10, sequence=sequence).ok
        assert group.seal(sequence).ok
    for sequence in range(2):
        assert outcome(group.run(DeleteSegments(items=(group.name(sequence),)))).ok
    group.deleted("n1")
    assert group.run(FinishSegments(controller_epoch=1, items=(group.name(),))) == (True,)
    return group


@pytest.mark.parametrize("over", [True, False])
@pytest.mark.parametrize(
    ("like", "sequence", "says"),
    [
        (2, 0, "0, of 2 to 3"),
        (2, 4, "4, of 2 to 3"),
        (1, 4, "4, of 0 to 3"),
    ],
)
def test_a_segment_that_the_shard_cannot_have_does_not_come_back(
    like: int, sequence: int, says: str, over: bool
) -> None:
    """Nobody would ever delete it, or the next one would take its place."""
    group = grown()
    row = replace(group.segment(like), sequence=sequence)
    with group.refuses(Conflict, f"^sequence: {says}$"):
        restored(group, SEGMENTS, row, over=over)


def test_a_segment_that_the_shard_has_or_is_to_delete_comes_back() -> None:
    group = grown()
    for sequence, status in ((2, UNAVAILABLE), (1, PREPARE_DELETE)):
        row = group.segment(sequence)
        remove_segment(Tables(group.store, group.index), row)
        assert restored(group, SEGMENTS, row, over=False)
        assert group.segment(sequence).status == status
    check_index(group.store)
    assert restored(group, SEGMENTS, replace(row, sequence=0))
    assert group.deleted("n1").ok
    assert group.run(FinishSegments(controller_epoch=1, items=(group.name(),))) == (True,)


def test_a_shard_that_is_being_deleted_takes_no_segment_that_is_not() -> None:
    """Told to go were those that it had: it would never go itself."""
    group = grown()
    sealed, leaving = group.segment(2), group.segment(1)
    remove_segment(Tables(group.store, group.index), leaving)
    group.run(DeleteShards(names=("s",)))
    group.run(SweepShards(controller_epoch=1))
    for sequence in (2, 3):
        group.deleted("n1", sequence)
    assert group.run(FinishSegments(controller_epoch=1, items=(group.name(2),))) == (True,)
    with group.refuses(Conflict, "^sequence: 2, of 4 to 3$"):
        restored(group, SEGMENTS, sealed, over=False)
    assert restored(group, SEGMENTS, leaving, over=False)
    group.deleted("n1", 1)
    names = (group.name(1), group.name(3))
    assert group.run(FinishSegments(controller_epoch=1, items=names)) == (True, True)
    assert group.rows(SHARDS.name) == 0


def test_a_shard_that_is_swept_before_its_segments_come_back_goes() -> None:
    """Its segments are refused from then on: it would be empty for ever, and its name taken."""
    group = Engine("n1")
    group.shard("s")
    group.run(DeleteShards(names=("s",)))
    shard, segment = stored(group, SHARDS), group.segment()
    remove_segment(Tables(group.store, group.index), segment)
    group.store.delete(SHARDS.name, SHARDS.key_of(shard))
    assert restored(group, SHARDS, shard)
    group.run(SweepShards(controller_epoch=1))
    assert group.rows(SHARDS.name) == 0
    with group.refuses(NotFound, "^shard: 's' is not there$"):
        restored(group, SEGMENTS, segment)
    group.shard("s")


def test_what_is_there_stays_where_only_what_is_missing_is_wanted() -> None:
    group = Group("metadata")
    group.run(PutKv(key="a", value=b"mine"))
    assert not restored(group, KV, Kv("default", "a", b"of then", 1), over=False)
    assert group.ask(GetKv(key="a")).value == b"mine"
    assert restored(group, KV, Kv("default", "b", b"of then", 1), over=False)


def test_a_run_that_is_under_way_goes_on_though_its_schedule_is_restored() -> None:
    group = Group("metadata")
    was = group.run(PutSchedule(name="h", job="lag", every_ms=3_600_000, out="/then"))
    group.run(PutSchedule(name="h", job="lag", every_ms=3_600_000, out="/now"))
    begun = group.run(BeginRun(controller_epoch=1, name="h", due_ms=was.next_ms, run="r1"))
    assert restored(group, SCHEDULES, was)
    now = group.ask(GetSchedule(name="h"))
    assert (now.out, now.run, now.runs) == ("/then", "r1", 1)
    assert (now.begun_ms, now.next_ms) == (begun.begun_ms, begun.next_ms)


def test_a_group_that_somebody_commits_for_while_its_offsets_are_removed_stays() -> None:
    """Or its offsets would take further commits, and nobody could fetch them."""
    group = Group("offset")
    consumers = row_key.pack(("default", "g"))
    group.run(CommitOffsets.of([OffsetCommit("g", "t", 0, 1)]))
    offset = row_key.pack(("default", "g", "t", 0))
    for commits in (True, False):
        group.run(RemoveOffsets(table=OFFSETS.name, keys=(offset,)))
        if commits:
            group.run(CommitOffsets.of([OffsetCommit("g", "t", 0, 2)]))
        (outcome,) = group.run(RemoveOffsets(table=GROUPS.name, keys=(consumers,)))
        assert outcome.code == ("CONFLICT" if commits else "OK")
        found = group.ask(FetchOffsets(group="g"))
        assert [each.offset for each in found] == ([2] if commits else [])


def restored_offset(group: Group, tenant: str = "acme", **fields: Any) -> bool:
    """An offset of a moment ago, of group `g`, comes back."""
    row = StoredOffset(tenant, "g", "t", 0, 1_000, "", 5, 1, group.now_ms - 1_000, -1, 0, 0, 0)
    return restored(group, OFFSETS, replace(row, **fields))


@pytest.mark.parametrize("tenant", ["acme", "copy"])
def test_an_offset_that_comes_back_without_its_group_is_shown_and_commits_are(tenant: str) -> None:
    """As with one topic of a backup. The next commit, of the same hour, does not ask for it."""
    group = Group("offset")
    group.now_ms += BUCKET_MS * 2 // 3 - group.now_ms % BUCKET_MS
    assert restored_offset(group, tenant)
    (offset,) = group.ask(FetchOffsets(tenant=tenant, group="g"))
    assert offset.offset == 1_000
    group.later(5)
    group.run(CommitOffsets.of([OffsetCommit("g", "t", 0, 2_000)], tenant=tenant))
    (offset,) = group.ask(FetchOffsets(tenant=tenant, group="g"))
    assert (offset.offset, offset.commits) == (2_000, 6)
    assert restored_offset(group, tenant, partition=1)
    assert restored_offset(group, tenant, partition=1, offset=7)
    made = stored(group, GROUPS)
    assert (made.partitions, made.created_ms) == (2, NOT_KNOWN)
    derived.check("offset", group.store)
    group.later(BUCKET_MS // 1_000)
    group.run(CommitOffsets.of([OffsetCommit("g", "t", 0, 3_000)], tenant=tenant))
    assert stored(group, GROUPS).created_ms == group.now_ms


def test_a_group_is_made_of_all_offsets_that_have_none() -> None:
    """Those of older versions, and those that a damage has left."""
    group = Group("offset")
    for partition in range(3):
        restored_offset(group, partition=partition)
    db = Tables(group.store, group.index)
    db.delete(GROUPS, "acme", "g")
    db.delete(ACTIVITY, *ACTIVITY.key_of(stored(group, ACTIVITY)))
    assert restored_offset(group, partition=1, offset=7)
    assert stored(group, GROUPS).partitions == 3
    derived.check("offset", group.store)


@pytest.mark.parametrize("state", [LIVE, DYING])
def test_a_group_comes_back_the_same_when_offsets_of_it_were_there_before(state: str) -> None:
    row = Consumers("acme", "g", 7, 1, 5, "m", 1, state)
    came = []
    for before in (True, False):
        group = Group("offset")
        if before:
            restored_offset(group)
        assert restored(group, GROUPS, row)
        if not before:
            restored_offset(group)
        assert not restored(group, GROUPS, row), "it is as the backup says"
        derived.check("offset", group.store)
        made = stored(group, GROUPS)
        assert (made.partitions, made.created_ms, made.state) == (1, 1, state)
        assert made.generation > row.generation
        came.append(replace(made, generation=0))
    assert came[0] == came[1]


def test_who_fenced_a_group_of_which_offsets_came_back_keeps_it() -> None:
    group = Group("offset")
    restored_offset(group)
    held = group.run(FenceGroup(tenant="acme", group="g"))
    assert restored(group, GROUPS, Consumers("acme", "g", 7, 1, 5, "m", 1))
    assert (stored(group, GROUPS).generation, stored(group, GROUPS).created_ms) == (held, 1)


def test_of_an_offsets_history_only_the_backups_is_left() -> None:
    group = Group("offset")
    for offset in range(6):
        commit = OffsetCommit(group="g", topic="t", partition=0, offset=offset)
        group.run(CommitOffsets.of([commit]))
        group.later(HISTORY_STEP_MS // 1_000)
        if offset == 2:
            then, then_ms = stored(group, OFFSETS), group.now_ms
    assert group.rows(HISTORY.name) == 5
    assert restored(group, OFFSETS, then)
    assert group.rows(HISTORY.name) == then.kept_next - then.kept_first == 2
    (found,) = group.ask(OffsetsAt(group="g", at_ms=then_ms)).offsets
    assert (found.offset, found.exact) == (2, True)
