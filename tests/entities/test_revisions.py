"""A revision never stands for two states of what is at one key, though it went in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from state_machines import row_key
from state_machines.errors import Conflict
from state_machines.metadata.config import (
    CONFIGS,
    ConfigName,
    ConfigValue,
    DeleteConfigs,
    GetConfig,
    SetConfigs,
)
from state_machines.metadata.restore import RemoveMetadata
from state_machines.metadata.schedule import DeleteSchedule, GetSchedule, PutSchedule
from state_machines.metadata.subscription_group import (
    CreateSubscriptionGroups,
    DeleteSubscriptionGroups,
    GetSubscriptionGroup,
    NewSubscriptionGroup,
    SubscriptionGroupName,
)
from state_machines.metadata.tenant import TENANTS, CreateTenants, GetTenant, NewTenant
from state_machines.metadata.topic import (
    TOPIC_CONFIGS,
    CreateTopicConfigs,
    GetTopicConfig,
    NewTopic,
)
from tests.entities.group import Group

KEY = "session_expiry_max_s"


def setting(number: int, expected: int | None = None) -> SetConfigs:
    return SetConfigs(items=(ConfigValue(key=KEY, number=number, expected_revision=expected),))


OF_ENTITIES: dict[str, tuple[Any, Any, Callable[[Group], Any]]] = {
    "config": (
        setting(1),
        DeleteConfigs(items=(ConfigName(key=KEY),)),
        lambda group: group.ask(GetConfig(key=KEY)),
    ),
    "subscription_group": (
        CreateSubscriptionGroups(items=(NewSubscriptionGroup(group="g", protocol="kafka"),)),
        DeleteSubscriptionGroups(items=(SubscriptionGroupName(group="g"),)),
        lambda group: group.ask(GetSubscriptionGroup(group="g")),
    ),
    "topic": (
        CreateTopicConfigs(items=(NewTopic(name="t", protocol="kafka"),)),
        RemoveMetadata(table=TOPIC_CONFIGS.name, keys=(row_key.pack(("default", "t")),)),
        lambda group: group.ask(GetTopicConfig(name="t")),
    ),
    "schedule": (
        PutSchedule(name="s", job="lag", every_ms=3_600_000, out="/o"),
        DeleteSchedule(name="s"),
        lambda group: group.ask(GetSchedule(name="s")),
    ),
    "tenant": (
        CreateTenants(items=(NewTenant(name="a"),)),
        RemoveMetadata(table=TENANTS.name, keys=(row_key.pack(("a",)),)),
        lambda group: group.ask(GetTenant(name="a")),
    ),
}


@pytest.mark.parametrize("entity", OF_ENTITIES)
def test_what_is_made_again_in_one_entry_has_another_revision(entity: str) -> None:
    make, remove, found = OF_ENTITIES[entity]
    group = Group("metadata")
    seen = []
    for again in (make, remove, make), (remove, make), (remove, make, remove, make):
        group.together(*again)
        seen.append(found(group).revision)
    assert seen == sorted(set(seen))
    first = Group("metadata")
    first.together(make)
    assert seen[0] > found(first).revision, "of the first that was made in that entry"


@pytest.mark.parametrize(
    "remove",
    [
        DeleteConfigs(items=(ConfigName(key=KEY),)),
        RemoveMetadata(table=CONFIGS.name, keys=(row_key.pack(("cluster", KEY)),)),
    ],
)
def test_revisions_that_ran_ahead_of_the_log_do_not_come_again(remove: Any) -> None:
    group = Group("metadata")
    group.together(*[setting(number) for number in range(1, 6)])
    ahead = group.ask(GetConfig(key=KEY)).revision
    assert ahead > group.index
    group.run(remove)
    for number in range(10):
        (outcome,) = group.run(setting(100 + number))
        assert outcome.revision > ahead
        assert group.run(setting(7, ahead))[0].code == Conflict.code
