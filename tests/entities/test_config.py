"""Settings: known ones only, within their ranges, and the nearest scope wins."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from state_machines import settings
from state_machines.errors import Conflict, Invalid, NotFound
from state_machines.metadata.config import (
    KEYS_MAX,
    Config,
    ConfigName,
    ConfigValue,
    DeleteConfigs,
    GetConfig,
    InForce,
    LargestConfig,
    ListConfigs,
    ListSettings,
    ResolveConfigs,
    SetConfigs,
)
from state_machines.metadata.segments import SEGMENTS_MAX
from state_machines.metadata.tenant import CreateTenants, DeleteTenants, NewTenant, TenantName
from state_machines.settings import SETTINGS, fits, in_force
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

DAY_MS = 86_400_000


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def put(group: Group, **fields: Any) -> Any:
    (outcome,) = group.run(SetConfigs(items=(ConfigValue(**fields),)))
    return outcome


def now(group: Group, key: str, tenant: str = "") -> int | str | None:
    (found,) = group.ask(ResolveConfigs(tenant=tenant, keys=(key,)))
    assert isinstance(found, InForce)
    return found.text if found.number is None else found.number


def test_the_nearest_scope_wins(group: Group) -> None:
    key = "offset_retention_ms"
    assert now(group, key) == now(group, key, "acme") == 7 * DAY_MS
    put(group, key=key, number=DAY_MS)
    assert now(group, key) == now(group, key, "acme") == DAY_MS
    put(group, scope="tenant/acme", key=key, number=2 * DAY_MS)
    assert now(group, key) == now(group, key, "zeta") == DAY_MS
    assert now(group, key, "acme") == 2 * DAY_MS
    deletion = DeleteConfigs(items=(ConfigName(scope="tenant/acme", key=key), ConfigName(key=key)))
    assert [each.ok for each in group.run(deletion)] == [True, True]
    assert now(group, key, "acme") == 7 * DAY_MS


def test_a_text_is_one_of_its_choices(group: Group) -> None:
    assert now(group, "rebalance") == "on"
    assert put(group, key="rebalance", text="off").ok
    assert now(group, "rebalance") == "off"


def test_the_value_in_force_is_a_pure_function_of_what_was_set() -> None:
    retention, rebalance = SETTINGS["offset_retention_ms"], SETTINGS["rebalance"]
    assert in_force(retention, None, None) == retention.default
    assert in_force(retention, None, DAY_MS) == DAY_MS
    assert in_force(retention, 2 * DAY_MS, DAY_MS) == 2 * DAY_MS
    assert in_force(rebalance, None, None) == "on"
    assert in_force(rebalance, "off", None) == "on", "not a tenant's to set"
    assert in_force(rebalance, None, "off") == "off"


def test_a_value_that_does_not_fit_any_more_is_passed_over() -> None:
    """A newer version may know tighter limits than those under which a row was stored."""
    retention, rebalance = SETTINGS["offset_retention_ms"], SETTINGS["rebalance"]
    assert in_force(retention, retention.low - 1, DAY_MS) == DAY_MS
    assert in_force(retention, None, retention.high + 1) == retention.default
    assert in_force(retention, "1 day", None) == retention.default
    assert in_force(rebalance, None, "sometimes") == "on"


def test_every_setting_has_a_unit_a_range_and_a_default_within_it(group: Group) -> None:
    listed = group.ask(ListSettings())
    assert [each.name for each in listed] == sorted(SETTINGS)
    for each in listed:
        assert each.description.endswith(".")
        default = each.default_choice if each.choices else each.default
        assert fits(each, default)
        if not each.choices:
            assert each.unit
            assert (each.unit not in ("ms", "s")) or each.name.endswith(f"_{each.unit}")
    assert SETTINGS["connector_timeout_ms"].default == 30_000
    assert len(group.ask(ResolveConfigs())) == len(SETTINGS)


def test_the_docs_have_every_setting_as_it_is(request: pytest.FixtureRequest) -> None:
    """Their table ends the page; `pytest --rewrite` writes it down."""
    docs = Path(__file__).parents[2] / "docs" / "tenants.md"
    rows = []
    for name, each in sorted(SETTINGS.items()):
        limits = ", ".join(each.choices) or f"{each.low} to {each.high}"
        default = each.default_choice or each.default
        tenant = "yes" if each.per_tenant else "no"
        rows.append(f"| `{name}` | {default} | {limits} | {tenant} | {each.description} |\n")
    text, head, table = docs.read_text(encoding="utf-8").rpartition("|---|---|---|---|---|\n")
    if request.config.getoption("--rewrite"):
        docs.write_text(text + head + "".join(rows), encoding="utf-8")
        return
    assert table == "".join(rows), "a setting has changed: write it down with pytest --rewrite"


def test_a_value_is_set_at_the_revision_that_was_seen(group: Group) -> None:
    made = put(group, key="heartbeat_timeout_ms", number=5_000, expected_revision=0)
    assert made.ok
    assert group.ask(GetConfig(key="heartbeat_timeout_ms")) == Config(
        "cluster", "heartbeat_timeout_ms", 5_000, None, made.revision, NOW_MS
    )
    with pytest.raises(Conflict, match=f"^expected_revision: 0, .* is at {made.revision}$"):
        put(group, key="heartbeat_timeout_ms", number=6_000, expected_revision=0).or_raise()
    newer = put(group, key="heartbeat_timeout_ms", number=6_000, expected_revision=made.revision)
    assert newer.revision > made.revision
    late = ConfigName(key="heartbeat_timeout_ms", expected_revision=made.revision)
    assert group.run(DeleteConfigs(items=(late,)))[0].code == "CONFLICT"
    right = ConfigName(key="heartbeat_timeout_ms", expected_revision=newer.revision)
    assert group.run(DeleteConfigs(items=(right,)))[0].ok
    assert group.ask(GetConfig(key="heartbeat_timeout_ms")) is None
    with pytest.raises(NotFound, match=r"^key: 'heartbeat_timeout_ms' is not set in 'cluster'"):
        group.run(DeleteConfigs(items=(ConfigName(key="heartbeat_timeout_ms"),)))[0].or_raise()


def test_what_is_refused_of_a_batch_keeps_nobody_else_from_happening(group: Group) -> None:
    items = (
        ConfigValue(key="heartbeat_timeout_ms", number=5_000, expected_revision=9),
        ConfigValue(key="rebalance", text="off"),
    )
    assert [each.code for each in group.run(SetConfigs(items=items))] == ["CONFLICT", "OK"]
    assert now(group, "heartbeat_timeout_ms") == 30_000


def test_a_setting_that_is_not_known_any_more_can_be_taken_back(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(group, key="rebalance", text="off")
    monkeypatch.delitem(SETTINGS, "rebalance")
    assert group.run(DeleteConfigs(items=(ConfigName(key="rebalance"),)))[0].ok


def test_nothing_is_set_for_a_tenant_that_is_being_deleted(group: Group) -> None:
    group.run(CreateTenants(items=(NewTenant(name="acme"),)))
    value = {"scope": "tenant/acme", "key": "topic_queues_default", "number": 1}
    assert put(group, **value).ok
    group.run(DeleteTenants(items=(TenantName(name="acme"),)))
    with pytest.raises(NotFound, match=r"^scope: tenant 'acme' is being deleted"):
        put(group, **value).or_raise()
    assert put(group, **{**value, "scope": "tenant/nobody"}).ok, "a tenant need not be recorded"


def test_the_list_is_by_scope_and_setting_in_pages(group: Group) -> None:
    for scope in ("tenant/b", "tenant/a", "cluster"):
        for key in ("session_expiry_max_s", "offset_retention_ms"):
            assert put(group, scope=scope, key=key, number=DAY_MS).ok
    pages = [group.ask(ListConfigs(limit=4))]
    pages.append(group.ask(ListConfigs(limit=4, after=pages[0].next)))
    found = [(each.scope, each.key) for page in pages for each in page.configs]
    assert found == [
        (scope, key)
        for scope in ("cluster", "tenant/a", "tenant/b")
        for key in ("offset_retention_ms", "session_expiry_max_s")
    ]
    assert [each.scope for each in group.ask(ListConfigs(scope="tenant/a")).configs] == [
        *("tenant/a", "tenant/a")
    ]


def test_the_largest_is_of_all_scopes_and_of_what_holds(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "topic_queues_default"
    largest = LargestConfig(key=key)
    assert group.ask(largest) is None
    put(group, key="offset_history_ms", number=DAY_MS)
    put(group, key=key, number=2)
    put(group, scope="tenant/acme", key=key, number=7)
    put(group, scope="tenant/b", key=key, number=5)
    assert group.ask(largest) == 7
    monkeypatch.setitem(SETTINGS, key, replace(SETTINGS[key], high=6))
    assert group.ask(largest) == 5, "what is out of its range by now holds nowhere"


def test_no_more_moves_can_be_set_than_one_command_takes() -> None:
    """Ten thousand could be, and a thousand were moved."""
    assert SETTINGS["rebalance_moves_max"].high == SEGMENTS_MAX


def test_a_setting_is_declared_once_with_a_default_in_its_range() -> None:
    with pytest.raises(AssertionError, match="declared twice"):
        settings.setting("rebalance", "s", 0, 1, 0, description="again")
    with pytest.raises(AssertionError, match="out of its range"):
        settings.setting("never_ms", "ms", 5, 9, 4, description="wrong")
    assert "never_ms" not in SETTINGS


def _set(**fields: Any) -> SetConfigs:
    return SetConfigs(
        items=(ConfigValue(**{"key": "heartbeat_timeout_ms", "number": 5_000, **fields}),)
    )


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (SetConfigs(items=()), "items"),
        (_set(scope=""), "scope"),
        (_set(scope="node/a"), "scope"),
        (_set(scope="tenant/", key="offset_retention_ms"), "scope"),
        (_set(scope="tenant/" + "t" * 257, key="offset_retention_ms"), "scope"),
        (_set(scope="tenant/acme"), "scope"),
        (_set(scope="tenant/acme", key="offset_history_ms"), "scope"),
        (_set(key=""), "key"),
        (_set(key="no_such_setting"), "key"),
        (_set(number=999), "number"),
        (_set(number=3_600_001), "number"),
        (_set(number=None), "number"),
        (_set(text="5000"), "number"),
        (_set(key="rebalance", number=None, text="sometimes"), "text"),
        (_set(key="rebalance", number=None), "text"),
        (_set(key="rebalance", text="off"), "text"),
        (_set(expected_revision=-1), "expected_revision"),
        (DeleteConfigs(items=()), "items"),
        (DeleteConfigs(items=(ConfigName(key=""),)), "key"),
        (DeleteConfigs(items=(ConfigName(scope="x", key="a"),)), "scope"),
        (DeleteConfigs(items=(ConfigName(key="a", expected_revision=-1),)), "expected_revision"),
        (GetConfig(scope="x", key="a"), "scope"),
        (GetConfig(key=""), "key"),
        (ListConfigs(scope="x"), "scope"),
        (LargestConfig(key=""), "key"),
        (LargestConfig(key="no_such_setting"), "key"),
        (LargestConfig(key="rebalance"), "key"),
        (ResolveConfigs(tenant="t" * 257), "tenant"),
        (ResolveConfigs(keys=("no_such_setting",)), "key"),
        (ResolveConfigs(keys=("rebalance",) * (KEYS_MAX + 1)), "keys"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    put(group, key="heartbeat_timeout_ms", number=7_000)
    group.beyond(operation, field)


def test_a_refusal_says_the_range() -> None:
    with pytest.raises(
        Invalid, match=r"^number: heartbeat_timeout_ms is 1, the range is 1000 to 36000"
    ):
        _set(number=1).validate()
