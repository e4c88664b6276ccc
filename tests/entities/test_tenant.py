"""Tenants: recorded once, changed at a revision, and deleted only by those steps, in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines.errors import AlreadyExists, Conflict, Fenced, Invalid, NotFound
from state_machines.metadata.tenant import (
    DESCRIPTION_BYTES_MAX,
    AdvanceTenant,
    CreateTenants,
    DeleteTenants,
    GetTenant,
    ListTenants,
    NewTenant,
    RemoveTenant,
    Tenant,
    TenantChange,
    TenantName,
    TenantQuotas,
    UpdateTenants,
)
from state_machines.quota import LIMIT_MAX
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def create(group: Group, *tenants: str) -> tuple[Any, ...]:
    items = tuple([NewTenant(name=name) for name in tenants])
    made: tuple[Any, ...] = group.run(CreateTenants(items=items))
    return made


def get(group: Group, name: str) -> Tenant:
    found = group.ask(GetTenant(name=name))
    assert isinstance(found, Tenant)
    return found


def advance(tenant: Tenant, step: str, purged: int = 0, epoch: int = 1) -> AdvanceTenant:
    return AdvanceTenant(
        controller_epoch=epoch, name=tenant.name, revision=tenant.revision, step=step, purged=purged
    )


def marked(group: Group, name: str = "acme") -> Tenant:
    create(group, name)
    group.run(DeleteTenants(items=(TenantName(name=name),)))
    return get(group, name)


def test_a_tenant_is_a_row_with_the_time_of_the_group(group: Group) -> None:
    """Reference defect 5: a creation time that each replica stamps by its own clock."""
    quotas = TenantQuotas(topics=3, sessions=5, session_opens_per_s=7, offset_commits_per_s=9)
    item = NewTenant(name="acme", description="tools", quotas=quotas)
    (outcome,) = group.run(CreateTenants(items=(item,)))
    assert outcome.ok
    assert get(group, "acme") == Tenant(
        "acme", "tools", "active", quotas, outcome.revision, NOW_MS, NOW_MS, "", 0
    )
    assert group.ask(GetTenant(name="zeta")) is None


def test_of_two_creations_at_once_one_wins(group: Group) -> None:
    """Reference defect 7: a check before the log lets both of them through."""
    first, second = NewTenant(name="acme", description="1"), NewTenant(name="acme", description="2")
    replies = group.together(CreateTenants(items=(first, second)), CreateTenants(items=(second,)))
    assert [[each.code for each in reply] for reply in replies] == [
        ["OK", "ALREADY_EXISTS"],
        ["ALREADY_EXISTS"],
    ]
    assert get(group, "acme").description == "1"


def test_a_change_to_nobody_is_a_refusal_and_the_group_goes_on(group: Group) -> None:
    """Reference defect 6: an update of a tenant that is not there kills every replica."""
    change = TenantChange(name="acme", description="x")
    (outcome,) = group.run(UpdateTenants(items=(change,)))
    with pytest.raises(NotFound, match=r"^name: tenant 'acme' is not recorded"):
        outcome.or_raise()
    assert [each.ok for each in create(group, "acme")] == [True]


def test_default_is_always_there(group: Group) -> None:
    virtual = get(group, "default")
    assert (virtual.state, virtual.quotas, virtual.revision) == ("active", TenantQuotas(), 0)
    assert group.ask(ListTenants()).tenants == (virtual,)
    assert group.ask(ListTenants(starts="e")).tenants == ()
    with pytest.raises(AlreadyExists):
        create(group, "default")[0].or_raise()
    create(group, "acme", "zeta")
    assert [each.name for each in group.ask(ListTenants()).tenants] == ["acme", "default", "zeta"]
    change = TenantChange(name="default", quotas=TenantQuotas(topics=9))
    (outcome,) = group.run(UpdateTenants(items=(change,)))
    assert get(group, "default") == replace(
        virtual,
        quotas=TenantQuotas(topics=9),
        revision=outcome.revision,
        created_ms=NOW_MS,
        updated_ms=NOW_MS,
    )


def test_default_cannot_be_deleted(group: Group) -> None:
    group.beyond(DeleteTenants(items=(TenantName(name="acme"), TenantName(name="default"))), "name")


def test_a_change_is_made_at_the_revision_that_was_seen(group: Group) -> None:
    (made,) = create(group, "acme")
    group.later(1)
    change = TenantChange(name="acme", description="new", expected_revision=made.revision)
    (changed,) = group.run(UpdateTenants(items=(change,)))
    assert changed.revision > made.revision
    found = get(group, "acme")
    assert (found.description, found.revision) == ("new", changed.revision)
    assert (found.created_ms, found.updated_ms) == (NOW_MS, NOW_MS + 1_000)
    (late,) = group.run(UpdateTenants(items=(replace(change, description="late"),)))
    with pytest.raises(Conflict, match=f"^expected_revision: {made.revision}, the tenant is at"):
        late.or_raise()
    deletion = TenantName(name="acme", expected_revision=made.revision)
    (refused,) = group.run(DeleteTenants(items=(deletion,)))
    assert refused.code == "CONFLICT"
    assert get(group, "acme") == found


def test_changes_of_one_entry_have_their_own_revisions(group: Group) -> None:
    """Nobody replaces what he has not seen, though it was written in the entry he knows."""
    create(group, "acme")
    first, second = group.together(
        UpdateTenants(items=(TenantChange(name="acme", description="1"),)),
        UpdateTenants(items=(TenantChange(name="acme", description="2"),)),
    )
    assert second[0].revision == first[0].revision + 1 == get(group, "acme").revision
    late = TenantChange(name="acme", description="3", expected_revision=first[0].revision)
    (outcome,) = group.run(UpdateTenants(items=(late,)))
    assert outcome.code == "CONFLICT"


def test_deleting_marks_and_can_be_said_again(group: Group) -> None:
    (made,) = create(group, "acme")
    first, again = group.run(
        DeleteTenants(items=(TenantName(name="acme"), TenantName(name="acme")))
    )
    assert first == again
    found = get(group, "acme")
    assert (found.state, found.step, found.purged) == ("deleting", "closing", 0)
    assert found.revision == first.revision > made.revision
    assert create(group, "acme")[0].code == "ALREADY_EXISTS"
    change = TenantChange(name="acme", description="x")
    assert group.run(UpdateTenants(items=(change,)))[0].code == "CONFLICT"
    assert group.run(DeleteTenants(items=(TenantName(name="nobody"),)))[0].code == "NOT_FOUND"


def test_a_deletion_goes_on_and_never_back(group: Group) -> None:
    tenant = marked(group)
    with group.refuses(Conflict, "is at 'closing'"):
        group.run(RemoveTenant(controller_epoch=1, name="acme", revision=tenant.revision))
    group.run(advance(tenant, "purging", 5))
    group.run(advance(tenant, "closing", 3))
    found = get(group, "acme")
    assert (found.step, found.purged) == ("purging", 5)
    assert found.revision == tenant.revision, "how far it is changes no quota"
    remove = RemoveTenant(controller_epoch=1, name="acme", revision=tenant.revision)
    assert group.run(remove) is True
    assert group.run(remove) is False
    assert group.ask(GetTenant(name="acme")) is None
    assert [each.name for each in group.ask(ListTenants()).tenants] == ["default"]


def test_the_steps_of_an_earlier_deletion_are_not_taken_for_this_one(group: Group) -> None:
    old = marked(group)
    group.run(advance(old, "purging"))
    group.run(RemoveTenant(controller_epoch=1, name="acme", revision=old.revision))
    with group.refuses(NotFound):
        group.run(advance(old, "purging"))
    create(group, "acme")
    with group.refuses(Conflict, "is active"):
        group.run(advance(old, "purging"))
    with group.refuses(Conflict, "is active"):
        group.run(RemoveTenant(controller_epoch=1, name="acme", revision=old.revision))
    group.run(DeleteTenants(items=(TenantName(name="acme"),)))
    with group.refuses(Conflict, f"revision: {old.revision}, the tenant is at"):
        group.run(advance(old, "purging"))
    with group.refuses(Conflict, f"revision: {old.revision}, the tenant is at"):
        group.run(RemoveTenant(controller_epoch=1, name="acme", revision=old.revision))


def test_an_old_controller_is_fenced(group: Group) -> None:
    """Reference defect 15: two controllers may live at once; the older one decides nothing."""
    tenant = marked(group)
    group.run(advance(tenant, "purging", epoch=7))
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(advance(tenant, "purging", 1, epoch=6))
    with group.refuses(Fenced, "controller_epoch: 6, in force is 7"):
        group.run(RemoveTenant(controller_epoch=6, name="acme", revision=tenant.revision))


def test_the_list_is_by_name_in_pages(group: Group) -> None:
    create(group, "b", "a", "ab", "é")
    first = group.ask(ListTenants(limit=3))
    rest = group.ask(ListTenants(limit=3, after=first.next))
    assert [each.name for each in (*first.tenants, *rest.tenants)] == [
        *("a", "ab", "b", "default", "é")
    ]
    assert [each.name for each in group.ask(ListTenants(starts="a")).tenants] == ["a", "ab"]
    with pytest.raises(Invalid, match=r"^limit: 0"):
        group.ask(ListTenants(limit=0))


@pytest.mark.parametrize("others", [(), ("a", "b"), ("x", "y"), ("a", "b", "defau", "x", "é")])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("starts", ["", "d", "defau", "default", "defaults", "x"])
def test_default_has_its_place_whether_it_is_recorded_or_not(
    group: Group, others: tuple[str, ...], recorded: bool, starts: str
) -> None:
    """Pages of any size have each tenant once."""
    if others:
        create(group, *others)
    if recorded:
        change = TenantChange(name="default", description="ours")
        group.run(UpdateTenants(items=(change,)))
    wanted = [each for each in sorted((*others, "default")) if each.startswith(starts)]
    for limit in range(1, len(others) + 3):
        found, after = list[str](), b""
        while True:
            page = group.ask(ListTenants(starts=starts, limit=limit, after=after))
            assert len(page.tenants) <= limit
            found += [each.name for each in page.tenants]
            after = page.next
            if not after:
                break
        assert found == wanted, limit


def _new(**fields: Any) -> CreateTenants:
    return CreateTenants(items=(NewTenant(**{"name": "a", **fields}),))


def _change(**fields: Any) -> UpdateTenants:
    return UpdateTenants(items=(TenantChange(**{"name": "a", **fields}),))


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (CreateTenants(items=()), "items"),
        (_new(name=""), "name"),
        (_new(name="n" * 257), "name"),
        (_new(description="d" * (DESCRIPTION_BYTES_MAX + 1)), "description"),
        (_new(quotas=TenantQuotas(topics=-1)), "quotas.topics"),
        (_new(quotas=TenantQuotas(sessions=LIMIT_MAX + 1)), "quotas.sessions"),
        (UpdateTenants(items=()), "items"),
        (_change(name="a\0"), "name"),
        (_change(description="d" * (DESCRIPTION_BYTES_MAX + 1)), "description"),
        (_change(quotas=TenantQuotas(session_opens_per_s=-1)), "quotas.session_opens_per_s"),
        (_change(quotas=TenantQuotas(offset_commits_per_s=-1)), "quotas.offset_commits_per_s"),
        (_change(expected_revision=-1), "expected_revision"),
        (DeleteTenants(items=()), "items"),
        (DeleteTenants(items=(TenantName(name=""),)), "name"),
        (DeleteTenants(items=(TenantName(name="a", expected_revision=-1),)), "expected_revision"),
        (
            AdvanceTenant(controller_epoch=0, name="a", revision=1, step="purging", purged=0),
            "controller_epoch",
        ),
        (AdvanceTenant(controller_epoch=1, name="", revision=1, step="purging", purged=0), "name"),
        (
            AdvanceTenant(controller_epoch=1, name="a", revision=-1, step="purging", purged=0),
            "revision",
        ),
        (AdvanceTenant(controller_epoch=1, name="a", revision=1, step="gone", purged=0), "step"),
        (AdvanceTenant(controller_epoch=1, name="a", revision=1, step="", purged=0), "step"),
        (
            AdvanceTenant(controller_epoch=1, name="a", revision=1, step="purging", purged=-1),
            "purged",
        ),
        (RemoveTenant(controller_epoch=0, name="a", revision=1), "controller_epoch"),
        (RemoveTenant(controller_epoch=1, name="", revision=1), "name"),
        (RemoveTenant(controller_epoch=1, name="a", revision=-1), "revision"),
        (GetTenant(name=""), "name"),
        (ListTenants(starts="s" * 257), "starts"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    create(group, "a")
    group.beyond(operation, field)
