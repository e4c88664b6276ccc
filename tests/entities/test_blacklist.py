"""The blacklist: whom it bars, until when, and that what has ended goes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from state_machines import op
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.mqtt.blacklist import (
    DESCRIPTION_BYTES_MAX,
    PATTERNS_MAX,
    BarItem,
    BarKey,
    Barred,
    CheckBlacklist,
    DeleteBlacklist,
    GetBarred,
    ListBlacklist,
    PutBlacklist,
    is_blocked,
)
from state_machines.mqtt.pulse import NextDue, Pulse
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def bar(
    group: Group, kind: str, resource: str, seconds: int = 0, tenant: str = "default"
) -> list[str]:
    end_ms = group.now_ms + seconds * 1_000 if seconds else 0
    item = BarItem(type=kind, resource=resource, name="why", end_ms=end_ms)
    return codes(group.run(PutBlacklist(tenant=tenant, items=(item,))))


def free(group: Group, kind: str, resource: str, tenant: str = "default") -> list[str]:
    item = BarKey(type=kind, resource=resource)
    return codes(group.run(DeleteBlacklist(tenant=tenant, items=(item,))))


def codes(outcomes: Sequence[object]) -> list[str]:
    return [each.code for each in outcomes]  # type: ignore[attr-defined]


def barred(group: Group, client_id: str = "c1", user: str = "ann", ip: str = "10.0.0.1") -> bool:
    found = group.ask(CheckBlacklist(client_id=client_id, user=user, ip=ip))
    rows = group.ask(ListBlacklist()).entries
    assert (found is not None) is is_blocked(rows, client_id, user, ip, group.now_ms)
    return found is not None


@pytest.mark.parametrize(
    ("kind", "resource", "others"),
    [
        ("client_id", "c1", ("c2", "C1", "c11")),
        ("user", "ann", ("bob", "ann2")),
        ("ip", "10.0.0.1", ("10.0.0.2",)),
        ("client_id_pattern", "c?", ("d1", "c")),
        ("client_id_pattern", "*1", ("c2",)),
        ("user_pattern", "a*n", ("bob",)),
        ("cidr", "10.0.0.0/24", ("10.0.1.1", "::1")),
    ],
)
def test_whom_an_entry_bars(
    group: Group, kind: str, resource: str, others: tuple[str, ...]
) -> None:
    assert not barred(group)
    assert bar(group, kind, resource) == ["OK"]
    assert barred(group)
    for other in others:
        match kind:
            case "user" | "user_pattern":
                assert not barred(group, user=other)
            case "ip" | "cidr":
                assert not barred(group, ip=other)
            case _:
                assert not barred(group, client_id=other)
    assert free(group, kind, resource) == ["OK"]
    assert not barred(group)
    assert free(group, kind, resource) == ["NOT_FOUND"]
    assert group.rows("mqtt.rule_tally") == group.rows("mqtt.blacklist") == 0


def test_who_has_no_user_is_barred_by_no_user_s_entry(group: Group) -> None:
    bar(group, "user_pattern", "*")
    assert not barred(group, user="")
    assert barred(group, user="bob")


def test_an_address_has_many_spellings(group: Group) -> None:
    bar(group, "ip", "2001:DB8:0::1")
    assert barred(group, ip="2001:db8::1")
    assert group.ask(GetBarred(type="ip", resource="2001:db8:0:0::1")).resource == "2001:db8::1"
    bar(group, "ip", "::ffff:192.0.2.9")
    assert barred(group, ip="192.0.2.9")
    assert barred(group, ip="::ffff:192.0.2.9")
    assert free(group, "ip", "192.0.2.9") == ["OK"]


def test_a_client_of_a_link_is_barred_by_its_address(group: Group) -> None:
    """A server hears of such a client by its address and the link (RFC 4007, 11)."""
    bar(group, "ip", "fe80::1")
    assert barred(group, ip="fe80::1%eth0")
    assert not barred(group, ip="fe80::2%eth0")
    bar(group, "ip", "fe80::3%eth0")
    assert barred(group, ip="fe80::3%eth0")


def test_an_entry_ends_by_the_group_s_time(group: Group) -> None:
    bar(group, "client_id", "c1", seconds=10)
    group.now_ms += 9_999
    assert barred(group)
    group.now_ms += 1
    assert not barred(group), "though no pulse has come"
    assert group.ask(GetBarred(type="client_id", resource="c1")) is None
    assert group.rows("mqtt.blacklist") == 1


def test_a_pulse_removes_what_has_ended(group: Group) -> None:
    for number in range(1, 4):
        bar(group, "client_id", f"c/{number}", seconds=number)
    bar(group, "user_pattern", "u*", seconds=2)
    bar(group, "ip", "10.0.0.1")
    assert group.ask(NextDue()) == NOW_MS + 1_000
    group.later(2)
    reply = group.run(Pulse(controller_epoch=1))
    assert (reply.blacklist, reply.sessions, reply.next_due_ms) == (3, 0, NOW_MS + 3_000)
    left = group.ask(ListBlacklist()).entries
    assert [each.resource for each in left] == ["10.0.0.1", "c/3"]
    assert group.rows("mqtt.blacklist") == 2
    assert group.rows("mqtt.due") == 1
    assert group.rows("mqtt.rule_tally") == 0
    group.later(1)
    assert group.run(Pulse(controller_epoch=1, limit=1)).blacklist == 1
    assert group.ask(NextDue()) == 0


def test_an_entry_that_was_put_anew_does_not_end_with_the_old_one(group: Group) -> None:
    bar(group, "client_id", "c1", seconds=5)
    bar(group, "client_id", "c1", seconds=50)
    assert group.rows("mqtt.due") == 1
    group.later(5)
    assert group.run(Pulse(controller_epoch=1)).blacklist == 0
    assert barred(group)
    bar(group, "client_id", "c1")
    assert group.rows("mqtt.due") == 0
    assert group.ask(GetBarred(type="client_id", resource="c1")) == Barred(
        "default", "client_id", "c1", "why", 0, "", NOW_MS + 5_000
    )


def test_one_that_is_over_is_refused_and_the_others_go_on(group: Group) -> None:
    items = [
        BarItem(type="client_id", resource=each, name="why", end_ms=end_ms)
        for each, end_ms in (("a", NOW_MS), ("b", NOW_MS + 1), ("c", 1))
    ]
    assert codes(group.run(PutBlacklist(items=tuple(items)))) == ["INVALID", "OK", "INVALID"]
    assert group.rows("mqtt.blacklist") == 1


def test_timers_of_two_tenants_do_not_cancel_each_other(group: Group) -> None:
    """Reference defect 13: a timer known by a client id alone is any tenant's."""
    for tenant in ("default", "other"):
        bar(group, "client_id", "c1", seconds=5, tenant=tenant)
        opened = group.run(OpenSession(tenant=tenant, client_id="c1", broker="b1", expiry_s=5))
        group.run(CloseSession(tenant=tenant, client_id="c1", epoch=opened.epoch))
    assert free(group, "client_id", "c1", tenant="other") == ["OK"]
    group.run(OpenSession(tenant="other", client_id="c1", broker="b1", expiry_s=5))
    assert barred(group)
    group.later(5)
    reply = group.run(Pulse(controller_epoch=1))
    assert (reply.blacklist, reply.sessions) == (1, 1)
    assert group.ask(GetSession(client_id="c1")) is None
    assert group.ask(GetSession(tenant="other", client_id="c1")) is not None
    assert not barred(group)


def test_an_entry_s_tenant_is_in_its_key(group: Group) -> None:
    """Reference defect 13: what one tenant bars, another lets in."""
    bar(group, "client_id_pattern", "*", tenant="other")
    bar(group, "user", "ann", tenant="other")
    assert not barred(group)
    assert group.ask(CheckBlacklist(tenant="other", client_id="c1")) is not None


def test_an_entry_is_deleted_alone(group: Group) -> None:
    """Reference defect 9: deleting one does not delete all."""
    for each in ("c1", "c1/x", "c2"):
        bar(group, "client_id", each)
    free(group, "client_id", "c1")
    assert [each.resource for each in group.ask(ListBlacklist()).entries] == ["c1/x", "c2"]


def test_patterns_have_a_limit_and_exact_ones_have_none(group: Group) -> None:
    def many(kind: str, count: int) -> list[str]:
        items = [BarItem(type=kind, resource=f"x{each}*", name="n") for each in range(count)]
        return codes(group.run(PutBlacklist(items=tuple(items))))

    assert many("client_id_pattern", PATTERNS_MAX + 1) == ["OK"] * PATTERNS_MAX + ["QUOTA_EXCEEDED"]
    assert set(many("client_id", PATTERNS_MAX + 1)) == {"OK"}
    assert many("user_pattern", 1) == ["OK"]
    assert many("client_id_pattern", 1) == ["OK"], "it replaces one"
    free(group, "client_id_pattern", "x0*")
    assert bar(group, "client_id_pattern", "y*") == ["OK"]


def test_lists_are_in_pages(group: Group) -> None:
    for each in ("b", "a", "c"):
        bar(group, "user", each)
    bar(group, "client_id", "z", seconds=1)
    first = group.ask(ListBlacklist(limit=2))
    rest = group.ask(ListBlacklist(limit=2, after=first.next))
    found = [each.resource for each in (*first.entries, *rest.entries)]
    assert found == ["a", "b", "c", "z"]
    group.later(1)
    last = group.ask(ListBlacklist(limit=2, after=first.next))
    assert [each.resource for each in last.entries] == ["c"], "one has ended"


def test_one_group_that_bars_is_enough() -> None:
    query = CheckBlacklist(client_id="c")
    row = Barred("default", "client_id", "c", "n", 0, "", 0)
    assert op.join(query, [query, query], [None, row]) == row
    assert op.join(query, [query, query], [None, None]) is None


@pytest.mark.parametrize(
    ("field", "item"),
    [
        ("type", BarItem(type="host", resource="a", name="n")),
        ("resource", BarItem(type="client_id", resource="", name="n")),
        ("resource", BarItem(type="user", resource="x" * (MQTT_STRING_BYTES_MAX + 1), name="n")),
        ("resource", BarItem(type="ip", resource="10.0.0.0/8", name="n")),
        ("resource", BarItem(type="ip", resource="here", name="n")),
        ("resource", BarItem(type="cidr", resource="10.0.0.0/40", name="n")),
        ("resource", BarItem(type="user_pattern", resource="*" * 257, name="n")),
        ("name", BarItem(type="user", resource="a", name="")),
        ("end_ms", BarItem(type="user", resource="a", name="n", end_ms=-1)),
        (
            "description",
            BarItem(
                type="user", resource="a", name="n", description="x" * (DESCRIPTION_BYTES_MAX + 1)
            ),
        ),
    ],
)
def test_limits(group: Group, field: str, item: BarItem) -> None:
    group.beyond(PutBlacklist(items=(item,)), field)


def test_limits_of_the_rest(group: Group) -> None:
    group.beyond(PutBlacklist(items=()), "items")
    group.beyond(DeleteBlacklist(items=()), "items")
    group.beyond(DeleteBlacklist(items=(BarKey(type="x", resource="a"),)), "type")
    group.beyond(GetBarred(type="ip", resource="a"), "resource")
    group.beyond(ListBlacklist(tenant=""), "tenant")
    group.beyond(CheckBlacklist(client_id=""), "client_id")
    group.beyond(CheckBlacklist(client_id="c", user="x" * 65_536), "user")
    group.beyond(CheckBlacklist(client_id="c", ip="x" * 65), "ip")
