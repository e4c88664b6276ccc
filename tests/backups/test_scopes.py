"""One tenant, one group, one topic: what is asked for comes back, and nothing else moves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metaray.restoring import RestoreReport, Scope, restore
from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.metadata.kv import KV, DeleteKv, GetKv, PutKv
from state_machines.metadata.tenant import (
    CreateTenants,
    GetTenant,
    ListTenants,
    NewTenant,
    TenantChange,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.metadata.topic import (
    TOPIC_CONFIGS,
    DeleteTopicConfigs,
    FinishTopicConfigs,
    TopicName,
    TopicRef,
)
from state_machines.mqtt.restore import RestoreMqtt
from state_machines.mqtt.session import CloseSession, DeleteSessions, OpenSession
from state_machines.mqtt.sessions import SESSIONS, TALLIES
from state_machines.mqtt.subscription import SUBSCRIPTIONS
from state_machines.mqtt.topic import CreateTopics
from state_machines.mqtt.will import WILLS
from state_machines.offset.group import DeleteGroup
from state_machines.offset.history import HISTORY
from state_machines.offset.offset import CommitOffsets, FetchOffsets, OffsetCommit
from state_machines.offset.restore import RestoreOffsets
from state_machines.offset.rows import GROUPS, OFFSETS
from state_machines.op import Stamp
from state_machines.purge import tables_of
from state_machines.removal import remove
from state_machines.restoring import GRACE_S, RESTORERS
from state_machines.tables import TABLES, Tables
from tests.backups import world
from tests.backups.settled import later, settle
from tests.backups.world import LATEST, TAKEN_MS, Cluster
from tests.machine import derived

GROUPS_A_KIND = 2


def now_ms() -> int:
    return TAKEN_MS


def run(cluster: Cluster, cut: Path, scope: Scope, **terms: Any) -> RestoreReport:
    return restore(cluster, cut, scope, now_ms=now_ms, **terms)


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Two tenants that have everything, and a cut of it in `tmp_path / "cut"`."""
    made = Cluster(GROUPS_A_KIND)
    for tenant in ("acme", "zeta"):
        settle(made, tenant)
    world.write(made, tmp_path / "cut")
    return made


def stored(cluster: Cluster, tenant: str) -> dict[str, dict[bytes, bytes]]:
    """Every stored row of a tenant, byte by byte."""
    found: dict[str, dict[bytes, bytes]] = {}
    for name, member in cluster.members.items():
        for table in TABLES.values():
            for key, value in member.store.dump().get(table.name, {}).items():
                row = table.decode(value)[0]
                if tenant in (getattr(row, "tenant", ""), getattr(row, "scope", "")[7:]):
                    found.setdefault(f"{name} {table.name}", {})[key] = value
    return found


def purge(cluster: Cluster, tenant: str) -> None:
    """Every row of a tenant goes, as if nobody had meant it."""
    for member in cluster.members.values():
        member.index += 1
        db = Tables(member.store, member.index)
        for table in tables_of(member.kind):
            prefix = f"tenant/{tenant}" if table.key[0] == "scope" else tenant
            for key in [table.key_of(row) for _, row, _ in db.scan(table, prefix)]:
                remove(db, Stamp(member.index, member.now_ms), table, key)


def truth(cluster: Cluster, tenant: str) -> dict[str, list[Any]]:
    return {
        name: [
            known.comparable(row)
            for row in cluster.rows(known.table)
            if known.tenant(row) == tenant
        ]
        for name, known in RESTORERS.items()
    }


def check(cluster: Cluster) -> None:
    for name, member in cluster.members.items():
        kind = name.rpartition("-")[0]
        derived.check(kind, member.store)


def test_a_purged_tenant_comes_back_while_the_other_one_is_written(
    cluster: Cluster, tmp_path: Path
) -> None:
    wanted = truth(cluster, "acme")
    wanted["metadata.kv"] = [each for each in wanted["metadata.kv"] if each.key != "leader"]
    purge(cluster, "acme")
    assert {name.partition(" ")[2] for name in stored(cluster, "acme")} == {TALLIES.name}
    real = cluster.call
    written: list[str] = []

    def call(operation: Any, /, *, group: str = "") -> Any:
        """Somebody writes to the other tenant all the while."""
        key = f"w{len(written)}"
        real(PutKv(tenant="zeta", key=key, value=b"1"))
        written.append(key)
        return real(operation, group=group)

    before = stored(cluster, "zeta")
    cluster.call = call  # type: ignore[method-assign]
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"))
    assert done.ok
    assert {each.table: each.leased for each in done.tables if each.leased} == {"metadata.kv": 1}
    assert truth(cluster, "acme") == wanted
    after = stored(cluster, "zeta")
    for name, rows in before.items():
        assert rows.items() <= after[name].items(), name
    more = sum(len(rows) for rows in after.values()) - sum(len(rows) for rows in before.values())
    assert more == len(written) > 20
    check(cluster)


def test_what_differs_is_put_what_is_new_goes_and_what_is_equal_stays(
    cluster: Cluster, tmp_path: Path
) -> None:
    wanted = truth(cluster, "acme")
    cluster.call(PutKv(tenant="acme", key="a", value=b"other"))
    cluster.call(PutKv(tenant="acme", key="new", value=b"new"))
    cluster.call(DeleteKv(tenant="acme", key="b"))
    cluster.call(OpenSession(tenant="acme", client_id="c9", broker="b1"))
    cluster.call(DeleteSessions(tenant="acme", client_ids=("c1",)))
    cluster.call(CommitOffsets.of([OffsetCommit("g1", "t1", 0, 99)], tenant="acme"))
    dry = run(cluster, tmp_path / "cut", Scope(tenant="acme"), dry_run=True)
    counts = {each.table: (each.add, each.change, each.remove) for each in dry.tables}
    assert {name: each for name, each in counts.items() if any(each)} == {
        "metadata.kv": (1, 1, 1),
        "mqtt.session": (1, 0, 1),
        "mqtt.subscription": (2, 0, 0),
        "mqtt.will": (1, 0, 0),
        **({"mqtt.share_member": (1, 0, 0)} if any(counts["mqtt.share_member"]) else {}),
        "offset.offset": (0, 1, 0),
        "offset.history": (0, 0, 1),
    }
    revisions = {name: member.index for name, member in cluster.members.items()}
    asked = len(cluster.asked)
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"))
    assert done.ok
    assert [vars_of(each) for each in done.tables] == [vars_of(each) for each in dry.tables]
    assert truth(cluster, "acme") == wanted
    changed = {op_.table for op_ in cluster.asked[asked:]}
    assert changed == {name for name, each in counts.items() if any(each)}
    check(cluster)
    for name, member in cluster.members.items():
        for table in TABLES.values():
            for _, row, revision in Tables(member.store, LATEST).scan(table):
                if getattr(row, "tenant", "") == "acme" and revision > revisions[name]:
                    assert revision <= member.index


def vars_of(report: Any) -> tuple[int, ...]:
    return (report.add, report.change, report.remove, report.equal, report.over, report.leased)


def test_only_missing_leaves_what_is_there(cluster: Cluster, tmp_path: Path) -> None:
    cluster.call(PutKv(tenant="acme", key="a", value=b"other"))
    cluster.call(PutKv(tenant="acme", key="new", value=b"new"))
    cluster.call(DeleteKv(tenant="acme", key="b"))
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"), replace=False)
    assert done.ok
    (report,) = [each for each in done.tables if each.table == KV.name]
    assert (report.add, report.change, report.remove, report.kept) == (1, 0, 0, 1)
    found = {each.key: each.value for each in cluster.rows(KV) if each.tenant == "acme"}
    assert found == {"a": b"other", "b": b"bbbb", "new": b"new", "leader": b"leader" * 4}


def test_a_watcher_sees_each_change_once_at_growing_revisions(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.call(PutKv(tenant="acme", key="a", value=b"other"))
    cluster.call(PutKv(tenant="acme", key="new", value=b"new"))
    for member in cluster.members.values():
        member.machine.take_changes()
    known: dict[tuple[Any, ...], Any] = {(each.tenant, each.key): each for each in cluster.rows(KV)}
    before = {key: each.revision for key, each in known.items()}
    run(cluster, tmp_path / "cut", Scope(tenant="acme"))
    seen: list[Any] = []
    for member in cluster.members.values():
        for name, key, value in member.machine.take_changes():
            if name == KV.name:
                seen.append(key)
                if value is None:
                    del known[key]
                    continue
                row = KV.decode(value)[0]
                assert row.revision > before[key]
                assert KV.revision_of(value) == row.revision
                known[key] = row
    assert sorted(seen) == [("acme", "a"), ("acme", "new")]
    assert known == {(each.tenant, each.key): each for each in cluster.rows(KV)}


def test_a_session_comes_back_disconnected_and_its_broker_is_fenced(
    cluster: Cluster, tmp_path: Path
) -> None:
    held = {each.client_id: each for each in cluster.rows(SESSIONS) if each.tenant == "acme"}
    cluster.call(DeleteSessions(tenant="acme", client_ids=("c1", "c2", "c3")))
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"))
    assert done.ok
    rows = {each.client_id: each for each in cluster.rows(SESSIONS) if each.tenant == "acme"}
    for client, row in rows.items():
        assert row.epoch > held[client].epoch
        assert not row.connected
    lives = {each.client_id: each.expires_ms - each.disconnected_ms for each in rows.values()}
    assert lives["c1"] == 3_600_000
    assert lives["c2"] == GRACE_S * 1_000
    assert rows["c3"].expires_ms == 0
    with pytest.raises(Fenced, match="epoch"):
        cluster.call(CloseSession(tenant="acme", client_id="c1", epoch=held["c1"].epoch))
    dues = {each.client_id: each.due_ms for each in cluster.rows(WILLS) if each.tenant == "acme"}
    assert all(each == rows["c1"].disconnected_ms + GRACE_S * 1_000 for each in dues.values())
    again = cluster.call(OpenSession(tenant="acme", client_id="c1", broker="b2", expiry_s=9))
    assert again.present
    ended = cluster.call(OpenSession(tenant="acme", client_id="c2", broker="b2", expiry_s=9))
    assert not ended.present, "its expiry is 0"
    assert (
        len([e for e in cluster.rows(SUBSCRIPTIONS) if (e.tenant, e.client_id) == ("acme", "c1")])
        == 2
    )
    check(cluster)


def test_a_live_session_that_is_equal_stays_connected(cluster: Cluster, tmp_path: Path) -> None:
    before = [each for each in cluster.rows(SESSIONS) if each.connected]
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"))
    assert done.ok
    assert [each for each in cluster.rows(SESSIONS) if each.connected] == before
    assert before


def test_one_consumer_group(cluster: Cluster, tmp_path: Path) -> None:
    fetch = FetchOffsets(tenant="acme", group="g2")
    before = cluster.call(fetch)
    (held,) = [e for e in cluster.rows(GROUPS) if (e.tenant, e.group) == ("acme", "g2")]
    other = stored(cluster, "zeta")
    for group in ("g1", "g2"):
        cluster.call(DeleteGroup(tenant="acme", group=group))
    later(cluster, 600)
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme", consumers="g2"))
    assert done.ok
    assert cluster.call(fetch) == before
    assert cluster.call(FetchOffsets(tenant="acme", group="g1")) == ()
    (group,) = [each for each in cluster.rows(GROUPS) if each.tenant == "acme"]
    assert group.generation > held.generation
    assert len([each for each in cluster.rows(HISTORY) if each.tenant == "acme"]) == 12
    stale = OffsetCommit("g2", "t1", 0, 5, generation=held.generation, member="m")
    reply = cluster.call(CommitOffsets.of([stale], tenant="acme"))
    with pytest.raises(Fenced):
        reply.or_raise()
    assert stored(cluster, "zeta") == other
    check(cluster)


def test_one_topic_of_groups_that_are_gone(cluster: Cluster, tmp_path: Path) -> None:
    wanted = truth(cluster, "acme")
    wanted["metadata.kv"] = [each for each in wanted["metadata.kv"] if each.key != "leader"]
    purge(cluster, "acme")
    later(cluster, 600)
    scope = Scope(tenant="acme", topic="t1")
    for _ in range(2):
        assert run(cluster, tmp_path / "cut", scope).ok
        for group in ("g1", "g2"):
            found = cluster.call(FetchOffsets(tenant="acme", group=group))
            assert [each.topic for each in found] == ["t1"] * 3
        check(cluster)
    assert run(cluster, tmp_path / "cut", Scope(tenant="acme")).ok
    assert truth(cluster, "acme") == wanted
    fenced = {each.group: each.fenced for each in cluster.rows(GROUPS) if each.tenant == "acme"}
    assert fenced == {"g1": False, "g2": True}
    check(cluster)


def test_one_topic_and_its_id(cluster: Cluster, tmp_path: Path) -> None:
    topics = {each.name: each for each in cluster.rows(TOPIC_CONFIGS) if each.tenant == "acme"}
    before = topics["t1"]
    for each in (before, topics["t2"]):
        cluster.call(DeleteTopicConfigs(tenant="acme", items=(TopicName(name=each.name),)))
        gone = TopicRef(name=each.name, topic_id=each.topic_id)
        cluster.call(FinishTopicConfigs(tenant="acme", items=(gone,)))
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme", topic="t1"))
    assert done.ok
    (now,) = [each for each in cluster.rows(TOPIC_CONFIGS) if each.tenant == "acme"]
    assert (now.name, now.topic_id) == ("t1", before.topic_id)
    assert now.revision > before.revision
    assert {each.table for each in done.tables if each.done} == {"metadata.topic"}
    check(cluster)


def test_partitions_never_shrink(cluster: Cluster, tmp_path: Path) -> None:
    from state_machines.mqtt.topic import TOPICS, TopicGrowth, UpdateTopics

    grown = UpdateTopics(tenant="acme", items=(TopicGrowth(name="t1", partitions=7),))
    cluster.call(grown)
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme", topic="t1"))
    assert done.ok
    (topic,) = [e for e in cluster.rows(TOPICS) if (e.tenant, e.name) == ("acme", "t1")]
    assert topic.partitions == 7


def _recorded(cluster: Cluster) -> list[str]:
    return [each.name for each in cluster.call(ListTenants()).tenants]


def test_a_tenant_comes_back_where_nobody_has_spoken_of_default(tmp_path: Path) -> None:
    """Who goes through the tenants finds it, or its quotas would be lifted."""
    was, now = Cluster(), Cluster()
    for name in ("acme", "zeta"):
        was.call(CreateTenants(items=(NewTenant(name=name, quotas=TenantQuotas(topics=1)),)))
    world.write(was, tmp_path / "cut")
    assert run(now, tmp_path / "cut", Scope(tenant="acme")).ok
    assert _recorded(now) == ["acme", "default"]


def test_default_goes_back_to_what_it_was_before_anybody_spoke_of_it(tmp_path: Path) -> None:
    now = Cluster()
    now.call(PutKv(key="k", value=b"v"))
    world.write(now, tmp_path / "cut")
    now.call(CreateTenants(items=(NewTenant(name="acme"), NewTenant(name="zeta"))))
    change = TenantChange(name="default", quotas=TenantQuotas(topics=1))
    (changed,) = now.call(UpdateTenants(items=(change,)))
    done = run(now, tmp_path / "cut", Scope(tenant="default"))
    assert done.ok
    assert sum(each.remove for each in done.tables) == 1
    assert _recorded(now) == ["acme", "default", "zeta"]
    assert now.call(GetTenant()).quotas == TenantQuotas()
    (again,) = now.call(UpdateTenants(items=(change,)))
    assert again.revision > changed.revision, "no revision stands for two states"


def test_into_another_tenant(cluster: Cluster, tmp_path: Path) -> None:
    other = stored(cluster, "acme")
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme", into="copy"))
    assert done.ok
    assert stored(cluster, "acme") == other
    ids = {(each.tenant, each.name): each.topic_id for each in cluster.rows(TOPIC_CONFIGS)}
    assert ids["copy", "t1"] != ids["acme", "t1"]
    assert cluster.call(GetKv(tenant="copy", key="a")).value == b"aaaa"
    assert len(cluster.call(FetchOffsets(tenant="copy", group="g1"))) == 6
    check(cluster)


def test_an_interrupted_restore_is_finished_by_another(cluster: Cluster, tmp_path: Path) -> None:
    wanted = truth(cluster, "acme")
    wanted["metadata.kv"] = [each for each in wanted["metadata.kv"] if each.key != "leader"]
    purge(cluster, "acme")
    for more in (1, 4, 9):
        cluster.fails_after = len(cluster.asked) + more
        with pytest.raises(ConnectionError):
            run(cluster, tmp_path / "cut", Scope(tenant="acme"))
        check(cluster)
    cluster.fails_after = -1
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"))
    assert done.ok
    assert sum(each.equal for each in done.tables) > 5
    assert truth(cluster, "acme") == wanted


@pytest.mark.parametrize(
    ("scope", "error", "says"),
    [
        (Scope(tenant="nobody"), NotFound, "scope: the backup has nothing of tenant nobody"),
        (Scope(tenant="acme", consumers="g9"), NotFound, "scope: .* tenant acme, group g9"),
        (Scope(topic="t1"), Invalid, "tenant: name the one"),
        (Scope(into="x"), Invalid, "tenant: name the one"),
        (Scope(tenant="a\0"), Invalid, "tenant: contains NUL"),
    ],
)
def test_a_scope_that_makes_no_sense(
    cluster: Cluster, tmp_path: Path, scope: Scope, error: type[Exception], says: str
) -> None:
    asked = len(cluster.asked)
    with pytest.raises(error, match=says):
        run(cluster, tmp_path / "cut", scope)
    assert len(cluster.asked) == asked


def test_a_tenant_beyond_its_quota_is_refused_row_by_row(cluster: Cluster, tmp_path: Path) -> None:
    from state_machines.quota import GroupQuota, SetQuotas

    purge(cluster, "acme")
    for number in range(GROUPS_A_KIND):
        item = GroupQuota("acme", 1 << 40, topics=1)
        cluster.call(SetQuotas(controller_epoch=9, items=(item,)), group=f"mqtt-{number}")
    cluster.call(CreateTopics(tenant="acme", names=("x", "y", "z")[:1]))
    done = run(cluster, tmp_path / "cut", Scope(tenant="acme"), replace=False)
    assert not done.ok
    (topics,) = [each for each in done.tables if each.table == "mqtt.topic"]
    assert topics.refused["QUOTA_EXCEEDED"] >= 1
    assert "put: QUOTA_EXCEEDED: topics: " in topics.refusals[0]
    assert topics.same is False


def test_the_commands_name_what_they_were_asked() -> None:
    group = Cluster().members["mqtt-0"]
    group.beyond(RestoreMqtt(table="mqtt.due", rows=(b"\x80",)), "table")
    group.beyond(RestoreMqtt(table="offset.offset", rows=(b"\x80",)), "table")
    group.beyond(RestoreMqtt(table="mqtt.topic", rows=()), "rows")
    group.beyond(RestoreMqtt(table="mqtt.topic", rows=(b"\x80",)), "tenant")
    Cluster().members["offset-0"].beyond(
        RestoreOffsets(table=OFFSETS.name, rows=(b"\x80",) * 1_001), "rows"
    )
