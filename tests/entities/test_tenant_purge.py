"""Purging: all of a tenant goes, whatever tables there are, in bounded steps, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.errors import Conflict, Fenced
from state_machines.keyvalue import Part
from state_machines.metadata.config import ConfigValue, SetConfigs
from state_machines.metadata.kv import PutKv
from state_machines.metadata.subscription_group import (
    CreateSubscriptionGroups,
    NewSubscriptionGroup,
)
from state_machines.metadata.tenant_purge import PurgeMetadata
from state_machines.metadata.topic import CreateTopicConfigs, NewTopic
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import ListRetained, SetRetained
from state_machines.mqtt.session import CloseSession, CountSessions, ListSessions, OpenSession
from state_machines.mqtt.subscription import ListSubscriptions, PutSubscriptions, TopicFilter
from state_machines.mqtt.tenant_purge import PurgeMqtt
from state_machines.mqtt.topic import CreateTopics
from state_machines.mqtt.will import PendingOutbox, SetWill
from state_machines.offset.group import ListGroups
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.offset.tenant_purge import PurgeOffsets
from state_machines.op import Stamp
from state_machines.purge import PURGE_MAX, WITH_OTHERS, Purged, tables_of
from state_machines.quota import (
    DropQuotas,
    GetUsage,
    GroupQuota,
    ListQuotas,
    QuotaVersion,
    SetQuotas,
)
from state_machines.removal import REMOVERS, remove, remover
from state_machines.tables import TABLES, Table, Tables
from storage.memory import MemoryKeyValue
from tests.entities.group import Group, rows_but_books

PURGES: dict[str, Any] = {"metadata": PurgeMetadata, "mqtt": PurgeMqtt, "offset": PurgeOffsets}
FILTERS = 6


def session(group: Group, tenant: str, client_id: str, *, connected: bool) -> None:
    opened = group.run(OpenSession(tenant=tenant, client_id=client_id, broker="b", expiry_s=60))
    group.run(
        SetWill(
            tenant=tenant,
            client_id=client_id,
            epoch=opened.epoch,
            topic="gone",
            payload=b"x",
            delay_s=30,
        )
    )
    filters = tuple([TopicFilter(filter=f"f/{number}") for number in range(FILTERS)])
    group.run(
        PutSubscriptions(tenant=tenant, client_id=client_id, epoch=opened.epoch, filters=filters)
    )
    if not connected:
        group.run(CloseSession(tenant=tenant, client_id=client_id, epoch=opened.epoch))


def lived_in(kind: str, *tenants: str) -> Group:
    """A group in which these tenants have something of everything."""
    group = Group(kind)
    for tenant in tenants:
        if kind == "metadata":
            topic = NewTopic(name="t", protocol="kafka")
            member = NewSubscriptionGroup(group="g", protocol="kafka")
            value = ConfigValue(scope=f"tenant/{tenant}", key="topic_queues_default", number=5)
            group.run(CreateTopicConfigs(tenant=tenant, items=(topic,)))
            group.run(CreateSubscriptionGroups(tenant=tenant, items=(member,)))
            group.run(SetConfigs(items=(value,)))
            for key in "abc":
                group.run(PutKv(tenant=tenant, key=key, value=b"1"))
        elif kind == "mqtt":
            session(group, tenant, "c1", connected=True)
            session(group, tenant, "c2", connected=False)
            group.run(CreateTopics(tenant=tenant, names=("t", "u")))
            group.run(SetRetained(tenant=tenant, topic="r", payload=b"1", expiry_s=90))
            group.run(SetRetained(tenant=tenant, topic="s", payload=b"1"))
        else:
            commits = [
                OffsetCommit(group=f"g{number % 3}", topic="t", partition=number, offset=1)
                for number in range(9)
            ]
            group.run(CommitOffsets.of(commits, tenant))
    return group


def close(group: Group, tenant: str = "acme") -> None:
    row = GroupQuota(tenant, 1, closed=True)
    assert group.run(SetQuotas(controller_epoch=1, items=(row,)))[0].ok


def purge(group: Group, limit: int = 1_000, epoch: int = 1) -> Purged:
    command = PURGES[group.kind](controller_epoch=epoch, tenant="acme", limit=limit)
    made = group.run(command)
    assert isinstance(made, Purged)
    return made


def of_entities(group: Group) -> dict[str, dict[bytes, bytes]]:
    """Rows without revisions' books, and without those that say which log index a row has."""
    books = ("group.controller", "group.quota", "group.quota_book")
    return {name: rows for name, rows in rows_but_books(group.store).items() if name not in books}


def keys_of(group: Group) -> dict[str, list[bytes]]:
    return {name: sorted(rows) for name, rows in of_entities(group).items()}


@pytest.mark.parametrize("kind", sorted(PURGES))
def test_all_of_a_tenant_goes_and_nothing_of_another(kind: str) -> None:
    """Reference, 2.3: there a tenant is deleted and all that it has stays."""
    group = lived_in(kind, "zeta", "acme")
    close(group)
    first = purge(group)
    assert first.gone > 0
    assert not first.left
    assert purge(group) == Purged(0, False), "what is gone already is no error"
    assert keys_of(group) == keys_of(lived_in(kind, "zeta"))
    assert group.ask(GetUsage(tenant="acme")) == ()


@pytest.mark.parametrize("kind", sorted(PURGES))
@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_command_removes_only_so_many(kind: str, limit: int) -> None:
    group = lived_in(kind, "acme", "zeta")
    close(group)
    per_row = 8  #: what one row changes besides itself, at most: its timer, its tally, its will
    steps = gone = 0
    while True:
        before = sum(map(len, of_entities(group).values()))
        done = purge(group, limit)
        after = sum(map(len, of_entities(group).values()))
        assert before - after == done.gone <= limit + per_row
        gone += done.gone
        steps += 1
        if not done.left:
            break
        assert done.gone, "a step that leaves something has done something"
    assert steps > 1
    assert keys_of(group) == keys_of(lived_in(kind, "zeta"))


def test_wills_do_not_fire_and_timers_of_another_tenant_stay() -> None:
    """Reference defect 13: a timer whose name has no tenant is cancelled by another's."""
    group = lived_in("mqtt", "acme", "zeta")
    close(group)
    purge(group)
    assert group.ask(PendingOutbox()).waiting == 0
    assert group.ask(CountSessions(tenant="acme")).sessions == 0
    group.later(1_000)
    fired = group.run(Pulse(controller_epoch=1))
    assert (fired.wills, fired.sessions, fired.retained) == (1, 1, 1), "zeta's, each once"
    assert [each.client_id for each in group.ask(ListSessions(tenant="zeta")).sessions] == ["c1"]
    assert [each.topic for each in group.ask(ListRetained(tenant="zeta")).messages] == ["s"]


def test_what_hangs_on_a_row_goes_before_it() -> None:
    """So that no row takes others along, however many, and a step stays short."""
    group = lived_in("mqtt", "acme")
    close(group)
    purge(group, limit=2)
    page = group.ask(ListSessions(tenant="acme"))
    assert [each.client_id for each in page.sessions] == ["c1", "c2"]
    for each in page.sessions:
        found = group.ask(ListSubscriptions(tenant="acme", client_id=each.client_id))
        assert len(found.subscriptions) == each.subscriptions, "the session knows how many"
    lengths = [len(table.key) for table in tables_of("mqtt")]
    assert lengths == sorted(lengths, reverse=True)


def test_a_consumer_group_goes_with_its_last_partition() -> None:
    group = lived_in("offset", "acme")
    close(group)
    purge(group, limit=4)
    left = group.ask(ListGroups(tenant="acme")).groups
    assert sum(each.partitions for each in left) == group.rows("offset.offset") > 0
    purge(group)
    assert group.ask(ListGroups(tenant="acme")).groups == ()


def test_a_group_remembers_that_nothing_is_left() -> None:
    """So that a controller that takes over need not look again; only a new mark undoes it."""
    group = lived_in("mqtt", "acme")

    def clean() -> bool:
        (row,) = group.ask(ListQuotas()).quotas
        assert row.closed
        return bool(row.clean)

    close(group)
    assert not clean()
    purge(group, limit=1)
    assert not clean()
    purge(group)
    assert clean()
    close(group)
    assert clean(), "the same again changes nothing"
    group.run(SetQuotas(controller_epoch=1, items=(GroupQuota("acme", 2, closed=True),)))
    assert not clean()


def test_only_a_closed_tenant_is_purged() -> None:
    """Otherwise what goes comes back, and a step that comes late purges a new tenant."""
    group = lived_in("mqtt", "acme")
    with group.refuses(Conflict, "^tenant: 'acme' is not closed in this group$"):
        purge(group)
    close(group)
    purge(group, limit=1)
    group.run(DropQuotas(controller_epoch=1, items=(QuotaVersion("acme", 1),)))
    with group.refuses(Conflict):
        purge(group)


def test_an_old_controller_is_fenced() -> None:
    """Reference defect 15: two controllers may live at once; the older one decides nothing."""
    group = lived_in("offset", "acme")
    close(group)
    purge(group, limit=1, epoch=7)
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        purge(group, epoch=6)


BESIDE = {
    *("mqtt.due", "mqtt.connector_check", "mqtt.connector_place"),
    *("mqtt.share_lead", "mqtt.share_of_broker", "metadata.segment_place", "offset.activity"),
}


def test_every_table_with_rows_of_tenants_is_purged() -> None:
    """A new entity is covered from the day it exists, without anybody naming it."""
    covered = {table.name for kind in PURGES for table in tables_of(kind)}
    tenants = {
        name
        for name, table in TABLES.items()
        if "tenant" in table.key and name.split(".")[0] in PURGES
    }
    timers = {name for name in tenants if TABLES[name].key[0] != "tenant"}
    assert tenants - timers <= covered | WITH_OTHERS
    assert "metadata.config" in covered
    assert timers <= BESIDE, "timers and entries go with the rows that they belong to"


@pytest.mark.parametrize("kind", sorted(PURGES))
def test_limits(kind: str) -> None:
    group = lived_in(kind, "acme")
    make = PURGES[kind]
    for operation, field in (
        (make(controller_epoch=0, tenant="acme"), "controller_epoch"),
        (make(controller_epoch=1, tenant=""), "tenant"),
        (make(controller_epoch=1, tenant="acme", limit=0), "limit"),
        (make(controller_epoch=1, tenant="acme", limit=PURGE_MAX + 1), "limit"),
    ):
        group.beyond(operation, field)


def test_the_parts_of_a_purge_over_groups_are_one_answer() -> None:
    command = PurgeMqtt(controller_epoch=1, tenant="acme")
    assert command.join((command, command), (Purged(3, False), Purged(4, True))) == Purged(7, True)
    assert command.join((command,), (Purged(3, False),)) == Purged(3, False)


# -- removal -------------------------------------------------------------------------------------


def test_a_row_goes_in_its_entitys_way_or_is_simply_deleted() -> None:
    group = lived_in("mqtt", "acme")
    db, at = Tables(group.store, group.index + 1), Stamp(group.index + 1, group.now_ms)

    def gone(table: str, *key: Part) -> None:
        remove(db, at, TABLES[table], key)

    gone("mqtt.subscription", "acme", "c1", "f/0")
    assert group.ask(ListSessions(tenant="acme")).sessions[0].subscriptions == FILTERS - 1
    gone("mqtt.session", "acme", "c2")
    gone("mqtt.will", "acme", "c1")
    gone("mqtt.retained", "acme", "r")
    assert group.rows("mqtt.due") == 0, "every timer went with its row"
    gone("mqtt.topic", "acme", "t")
    gone("mqtt.topic", "acme", "t")
    assert [each.count for each in group.ask(GetUsage(tenant="acme"))] == [1]
    gone("mqtt.session_tally", "nobody")
    assert group.ask(PendingOutbox()).waiting == 0


def test_a_remover_is_declared_once_and_leaves_nothing() -> None:
    kept: Table[QuotaVersion] = Table("test.kept", QuotaVersion, key=("tenant",))

    def leaves_it(db: Tables, at: Stamp, row: QuotaVersion) -> None:
        assert row.version == 1

    remover(kept)(leaves_it)
    try:
        with pytest.raises(AssertionError, match="declared twice"):
            remover(kept)(leaves_it)
        db = Tables(MemoryKeyValue(), 1)
        remove(db, Stamp(1, 1), kept, ("a",))
        db.put(kept, QuotaVersion("a", 1))
        with pytest.raises(AssertionError, match="its remover left the row"):
            remove(db, Stamp(1, 1), kept, ("a",))
    finally:
        del REMOVERS["test.kept"], TABLES["test.kept"]
