"""Users: created once, changed and deleted in batches, and never with a password in them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metaray.passwords import hash_password, verify_password
from state_machines import op
from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, MQTT_STRING_BYTES_MAX
from state_machines.mqtt.user import (
    VERIFIER_BYTES_MAX,
    CreateUsers,
    DeleteUsers,
    GetUser,
    ListUsers,
    NewUser,
    UpdateUsers,
    User,
    UserChange,
)
from state_machines.slots import SLOTS, SlotMap, SlotRange
from tests.entities.group import Group
from tests.machine.alone import NOW_MS

VERIFIER = "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA"
OTHER = "$argon2id$v=19$m=65536,t=3,p=4$c2FsdA$aGFzaA"


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def new(*names: str) -> CreateUsers:
    return CreateUsers(items=tuple(NewUser(username=each, verifier=VERIFIER) for each in names))


def codes(outcomes: object) -> list[str]:
    return [each.code for each in outcomes]  # type: ignore[attr-defined]


def test_a_user_is_created_once(group: Group) -> None:
    """Reference defect 7: who creates last does not overwrite who was first."""
    assert codes(group.run(new("ann", "bob", "ann"))) == ["OK", "OK", "ALREADY_EXISTS"]
    group.later(1)
    again = CreateUsers(items=(NewUser(username="ann", verifier=OTHER, superuser=True),))
    (outcome,) = group.run(again)
    assert (outcome.code, "username" in outcome.detail) == ("ALREADY_EXISTS", True)
    assert group.ask(GetUser(username="ann")) == User(
        "default", "ann", VERIFIER, False, NOW_MS, NOW_MS
    )


def test_what_is_not_named_stays(group: Group) -> None:
    group.run(new("ann"))
    group.later(1)
    changes = (
        UserChange(username="ann", superuser=True),
        UserChange(username="nobody", superuser=True),
    )
    assert codes(group.run(UpdateUsers(items=changes))) == ["OK", "NOT_FOUND"]
    group.later(1)
    group.run(UpdateUsers(items=(UserChange(username="ann", verifier=OTHER),)))
    assert group.ask(GetUser(username="ann")) == User(
        "default", "ann", OTHER, True, NOW_MS, NOW_MS + 2_000
    )
    assert group.ask(GetUser(username="nobody")) is None


def test_users_are_deleted_each_for_itself(group: Group) -> None:
    group.run(new("ann", "bob"))
    assert codes(group.run(DeleteUsers(usernames=("ann", "nobody", "ann")))) == [
        "OK",
        "NOT_FOUND",
        "NOT_FOUND",
    ]
    assert group.ask(GetUser(username="ann")) is None
    assert group.ask(GetUser(username="bob")) is not None


def test_a_users_tenant_is_in_its_key(group: Group) -> None:
    """Reference defect 13: what one tenant calls its own is not another's."""
    group.run(new("ann"))
    assert codes(group.run(replace(new("ann"), tenant="other"))) == ["OK"]
    group.run(DeleteUsers(tenant="other", usernames=("ann",)))
    assert group.ask(GetUser(username="ann")) is not None
    assert group.ask(GetUser(tenant="other", username="ann")) is None


def test_lists_are_by_name_in_pages_and_show_no_verifier(group: Group) -> None:
    group.run(new("b", "a/1", "a/2", "é"))
    first = group.ask(ListUsers(limit=3))
    rest = group.ask(ListUsers(limit=3, after=first.next))
    found = (*first.users, *rest.users)
    assert [each.username for each in found] == ["a/1", "a/2", "b", "é"]
    assert {each.verifier for each in found} == {""}
    assert [each.username for each in group.ask(ListUsers(starts="a/")).users] == ["a/1", "a/2"]


def test_a_batch_over_two_groups_is_answered_in_the_order_asked() -> None:
    half = SLOTS // 2
    two = SlotMap(
        1, {"mqtt": (SlotRange(0, half - 1, "mqtt-0"), SlotRange(half, SLOTS - 1, "mqtt-1"))}
    )
    groups = {name: Group("mqtt") for name in two.groups("mqtt")}
    groups["mqtt-0"].run(new("c"))
    groups["mqtt-1"].run(new("c"))
    command = new(*"abcdef")
    routed = two.route(command)
    assert len(routed) == 2
    replies = [groups[name].run(part) for name, part in routed]
    joined = op.join(command, [part for _, part in routed], replies)
    assert codes(joined) == ["OK", "OK", "ALREADY_EXISTS", "OK", "OK", "OK"]


@pytest.mark.parametrize(
    "verifier",
    [
        "secret",
        "$ecret",
        "$money$money",
        "",
        "scrypt$ln=14$salt$hash",
        "$scrypt$$salt$hash",
        "$scrypt$salt$a pass phrase",
        "$scrypt$sält$hash",
        "$scrypt$salt$" + "x" * VERIFIER_BYTES_MAX,
    ],
)
def test_what_may_be_a_password_is_no_verifier(group: Group, verifier: str) -> None:
    group.run(new("ann"))
    group.beyond(CreateUsers(items=(NewUser(username="b", verifier=verifier),)), "verifier")
    group.beyond(UpdateUsers(items=(UserChange(username="ann", verifier=verifier),)), "verifier")


def test_limits(group: Group) -> None:
    long = "x" * (MQTT_STRING_BYTES_MAX + 1)
    group.beyond(new(long), "username")
    group.beyond(new(""), "username")
    group.beyond(new(), "items")
    group.beyond(replace(new("a"), tenant=""), "tenant")
    group.beyond(UpdateUsers(items=()), "items")
    group.beyond(UpdateUsers(items=(UserChange(username=long),)), "username")
    group.beyond(DeleteUsers(usernames=()), "usernames")
    group.beyond(DeleteUsers(usernames=("a\0",)), "usernames")
    group.beyond(GetUser(username=""), "username")
    group.beyond(ListUsers(starts=long), "starts")
    assert codes(group.run(new("x" * MQTT_STRING_BYTES_MAX))) == ["OK"]
    assert len(new(*["a"] * BATCH_ITEMS_MAX).items) == BATCH_ITEMS_MAX


# -- passwords, at the door -----------------------------------------------------------------------


def test_a_password_is_known_by_its_verifier_alone(group: Group) -> None:
    verifier, again = hash_password("sécret"), hash_password("sécret")
    assert verifier != again, "each has a salt of its own"
    assert "cret" not in verifier
    assert verify_password(verifier, "sécret")
    assert verify_password(again, "sécret".encode())
    assert not verify_password(verifier, "secret")
    assert not verify_password(verifier, "")
    assert codes(group.run(CreateUsers(items=(NewUser(username="ann", verifier=verifier),)))) == [
        "OK"
    ]


def test_a_password_beyond_its_limit_is_no_password() -> None:
    long = "x" * 65_536
    with pytest.raises(Invalid, match=r"^password: "):
        hash_password(long)
    with pytest.raises(Invalid, match=r"^password: "):
        hash_password("\ud800")
    assert not verify_password(hash_password("x"), long)


@pytest.mark.parametrize(
    "verifier",
    [
        "",
        "secret",
        OTHER,
        "$scrypt$ln=14,r=8$c2FsdA$aGFzaA",
        "$scrypt$ln=14,r=8,p=1,x=1$c2FsdA$aGFzaA",
        "$scrypt$ln=x,r=8,p=1$c2FsdA$aGFzaA",
        "$scrypt$ln=14,r=8,p=1$c2F*dA$aGFzaA",
        "$scrypt$ln=14,r=8,p=1$c2FsdA$aGFzaA",
        "$scrypt$ln=24,r=8,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=14,r=8,p=99$c2FsdA$" + "A" * 43,
        "$scrypt$ln=1,r=1,p=99999$c2FsdA$" + "A" * 43,
        "$scrypt$ln=16,r=1,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=0,r=8,p=1$c2FsdA$" + "A" * 43,
        "$scrypt$ln=14,r=8,p=1$$" + "A" * 43,
    ],
)
def test_a_verifier_that_costs_too_much_or_is_none_is_refused(verifier: str) -> None:
    with pytest.raises(Invalid, match=r"^verifier: "):
        verify_password(verifier, "secret")
