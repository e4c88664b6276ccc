"""What the controller plans for tenants, as data; and a whole deletion, interrupted anywhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actors.planners import tenants as planner
from actors.planners.tenants import (
    Advance,
    Drop,
    Purge,
    Remove,
    Set,
    command_of,
    plan_quotas,
    plan_tenant_deletion,
    progress,
    wanted,
)
from actors.seat_names import kind_of
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.tenant import (
    CreateTenants,
    DeleteTenants,
    GetTenant,
    ListTenants,
    NewTenant,
    Tenant,
    TenantName,
    TenantQuotas,
)
from state_machines.mqtt.session import CountSessions
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.mqtt.topic import CreateTopics
from state_machines.offset.offset import CommitOffsets, OffsetCommit
from state_machines.purge import Purged
from state_machines.quota import GroupQuota, ListQuotas, QuotaVersion
from tests.entities.group import Group

QUOTAS = TenantQuotas(topics=10, sessions=7, session_opens_per_s=1)
ACTIVE = Tenant("acme", "", "active", QUOTAS, 5, 1, 1)
MARKED = replace(ACTIVE, state="deleting", step="closing", revision=6)
PURGING = replace(MARKED, step="purging")
GROUPS = {"metadata": 1, "mqtt": 2}
SEATS = ("metadata-0", "mqtt-0", "mqtt-1")

CLOSED = {
    "metadata-0": GroupQuota("acme", 6, True, 10, 7, 1, 0),
    "mqtt-0": GroupQuota("acme", 6, True, 5, 4, 1, 0),
    "mqtt-1": GroupQuota("acme", 6, True, 5, 4, 1, 0),
}
CLEAN = {group: replace(row, clean=True) for group, row in CLOSED.items()}


# -- quotas --------------------------------------------------------------------------------------


def test_a_group_gets_its_share() -> None:
    assert wanted(ACTIVE, 1) == GroupQuota("acme", 5, False, 10, 7, 1, 0)
    assert wanted(ACTIVE, 2) == GroupQuota("acme", 5, False, 5, 4, 1, 0)
    assert wanted(replace(ACTIVE, quotas=TenantQuotas()), 2) is None
    assert wanted(replace(MARKED, quotas=TenantQuotas()), 2) == GroupQuota("acme", 6, True)


def test_groups_are_brought_up_to_the_tenants() -> None:
    free = Tenant("free", "", "active", TenantQuotas(), 3, 1, 1)
    orphan = GroupQuota("orphan", 2, True)
    one, half = wanted(ACTIVE, 1), wanted(ACTIVE, 2)
    assert one is not None
    assert half is not None
    seen = {
        "metadata-0": {"acme": one},
        "mqtt-0": {"acme": one, "orphan": orphan},
        "mqtt-1": {"free": GroupQuota("free", 2, False, 1)},
    }
    assert plan_quotas([ACTIVE, free], GROUPS, seen) == [
        Set("mqtt-0", (half,)),
        Drop("mqtt-0", (QuotaVersion("orphan", 2),)),
        Set("mqtt-1", (half,)),
        Drop("mqtt-1", (QuotaVersion("free", 2),)),
    ]
    told = {group: {"acme": wanted(ACTIVE, GROUPS[kind_of(group)])} for group in SEATS}
    assert plan_quotas([ACTIVE, free], GROUPS, told) == []  # type: ignore[arg-type]


def test_a_group_that_does_not_answer_is_left_for_later_and_counts() -> None:
    assert plan_quotas([ACTIVE], GROUPS, {"mqtt-1": {}}) == [
        Set("mqtt-1", (GroupQuota("acme", 5, False, 5, 4, 1, 0),))
    ]


def test_many_quotas_go_in_commands_that_stay_small() -> None:
    many = [replace(ACTIVE, name=f"t{number:04}") for number in range(2_500)]
    actions = plan_quotas(many, GROUPS, {"metadata-0": {}})
    assert all(isinstance(each, Set) for each in actions)
    sizes = [len(each.quotas) for each in actions if isinstance(each, Set)]
    assert sizes == [1_000, 1_000, 500]


# -- a deletion ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tenant", "seen", "actions"),
    [
        (ACTIVE, dict.fromkeys(SEATS), []),
        (MARKED, dict.fromkeys(SEATS), [Set(group, (CLOSED[group],)) for group in SEATS]),
        (
            MARKED,
            {**CLOSED, "mqtt-1": replace(CLOSED["mqtt-1"], version=5)},
            [Set("mqtt-1", (CLOSED["mqtt-1"],))],
        ),
        (MARKED, {"metadata-0": CLOSED["metadata-0"]}, []),
        (MARKED, CLOSED, [Advance("acme", 6, "purging", 0)]),
        (PURGING, CLOSED, [Purge(group, "acme", 1_000) for group in SEATS]),
        (
            PURGING,
            {**CLEAN, "mqtt-0": replace(CLOSED["mqtt-0"], closed=False)},
            [Set("mqtt-0", (CLOSED["mqtt-0"],))],
        ),
        (
            PURGING,
            {**CLOSED, "mqtt-0": CLEAN["mqtt-0"]},
            [Purge(group, "acme", 1_000) for group in SEATS[::2]],
        ),
        (PURGING, {"mqtt-0": CLEAN["mqtt-0"]}, []),
        (
            PURGING,
            CLEAN,
            [Remove("acme", 6), *(Drop(group, (QuotaVersion("acme", 6),)) for group in SEATS)],
        ),
    ],
    ids=(
        *("active", "closes", "closes an old row", "waits for a group that is away", "advances"),
        *("purges", "closes again", "purges the rest", "waits to remove", "removes"),
    ),
)
def test_the_next_step(tenant: Tenant, seen: dict[str, Any], actions: list[Any]) -> None:
    assert plan_tenant_deletion(tenant, GROUPS, seen, len(SEATS)) == actions


def test_a_clean_row_is_as_it_should_be() -> None:
    assert plan_quotas([MARKED], GROUPS, {group: {"acme": CLEAN[group]} for group in SEATS}) == []


def test_progress_is_written_down_only_when_something_went() -> None:
    assert progress(PURGING, 0) == []
    assert progress(replace(PURGING, purged=4), 3) == [Advance("acme", 6, "purging", 7)]


class Cluster:
    """Real groups, and a controller's rounds over them that may end after any command."""

    def __init__(self) -> None:
        names = ("metadata-0", "mqtt-0", "mqtt-1", "offset-0")
        self.groups = {name: Group(kind_of(name)) for name in names}
        self.counts = {"metadata": 1, "mqtt": 2, "offset": 1}
        self.home = self.groups["metadata-0"]

    def seen(self) -> dict[str, dict[str, GroupQuota]]:
        return {
            name: {row.tenant: row for row in group.ask(ListQuotas()).quotas}
            for name, group in self.groups.items()
        }

    def plan(self) -> list[Any]:
        """One round of all that there is to do."""
        seen = self.seen()
        recorded = self.home.ask(ListTenants()).tenants
        actions: list[Any] = list(plan_quotas(recorded, self.counts, seen))
        for tenant in recorded:
            rows = {name: found.get(tenant.name) for name, found in seen.items()}
            actions += plan_tenant_deletion(tenant, self.counts, rows, len(self.groups))
        return actions

    def act(self, action: Any, epoch: int) -> None:
        group, command = command_of(action, epoch)
        reply = self.groups[group].run(command)
        if isinstance(reply, Purged):
            assert isinstance(action, Purge)
            tenant = self.home.ask(GetTenant(name=action.tenant))
            for each in progress(tenant, reply.gone):
                self.act(each, epoch)
        elif isinstance(reply, tuple):
            assert all(each.ok for each in reply)

    def fill(self, tenant: str) -> None:
        clients = tuple([f"c{number}" for number in range(30)])
        for name in ("mqtt-0", "mqtt-1"):
            opened = OpenSessions(tenant=tenant, client_ids=clients, brokers=("b",) * len(clients))
            self.groups[name].run(opened)
            self.groups[name].run(CreateTopics(tenant=tenant, names=("t", "u")))
        commits = [OffsetCommit(group="g", topic="t", partition=n, offset=1) for n in range(30)]
        self.groups["offset-0"].run(CommitOffsets.of(commits, tenant))
        for number in range(30):
            self.home.run(PutKv(tenant=tenant, key=f"k{number}", value=b"1"))

    def tables(self) -> dict[str, set[str]]:
        return {
            name: {
                table
                for table, rows in group.store.dump().items()
                if rows and not table.startswith("group.")
            }
            for name, group in self.groups.items()
        }


@pytest.mark.parametrize("lives", [1, 2, 3, 5, 1_000])
def test_a_deletion_comes_to_its_end_whoever_dies_on_the_way(
    lives: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each controller lives for so many commands; the next one knows nothing but the rows."""
    monkeypatch.setattr(planner, "PURGE_LIMIT", 7)
    cluster = Cluster()
    tenants = tuple([NewTenant(name=name, quotas=QUOTAS) for name in ("acme", "zeta")])
    cluster.home.run(CreateTenants(items=tenants))
    for name in ("acme", "zeta"):
        cluster.fill(name)
    cluster.home.run(DeleteTenants(items=(TenantName(name="acme"),)))
    epoch, left, steps = 1, lives, list[tuple[str, int]]()
    for _ in range(2_000):
        actions = cluster.plan()
        if not actions:
            break
        for action in actions:
            if left == 0:
                epoch, left = epoch + 1, lives
                break
            cluster.act(action, epoch)
            left -= 1
            tenant = cluster.home.ask(GetTenant(name="acme"))
            steps += [(tenant.step, tenant.purged)] if tenant is not None else []
    assert cluster.plan() == []
    assert cluster.home.ask(GetTenant(name="acme")) is None
    assert steps == sorted(steps), "anybody can see it go on, and never back"
    assert steps[0][0] == "closing"
    assert steps[-1][1] > 2 * (30 + 2) + 30 + 30
    for name, group in cluster.groups.items():
        assert [row.tenant for row in group.ask(ListQuotas()).quotas] == ["zeta"], name
    assert cluster.groups["mqtt-1"].ask(CountSessions(tenant="zeta")).sessions == 30
    before = cluster.tables()
    again = Cluster()
    again.home.run(CreateTenants(items=tenants[1:]))
    again.fill("zeta")
    assert before == again.tables()
    cluster.home.run(PutKv(tenant="acme", key="new", value=b"1"))
    assert cluster.home.ask(GetKv(tenant="acme", key="new")) is not None, "the name is free"
