"""Sessions by the thousand: saved, listed and deleted in batches; and the limits of all of it.

What one session and its will go through is in `test_session_life.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from state_machines import op, row_key
from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.mqtt.pulse import PULSE_MAX, NextDue, Pulse
from state_machines.mqtt.session import (
    CloseSession,
    CountSessions,
    DeleteSessions,
    GetSession,
    ListSessions,
    OpenSession,
    SaveSessions,
    SessionItem,
)
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.mqtt.sessions import Session, SessionTally
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.mqtt.will import (
    CLAIM_MAX,
    LEASE_MS_MAX,
    AckOutbox,
    ClaimOutbox,
    DeleteWill,
    GetWill,
    SetWill,
)
from state_machines.names import SECONDS_MAX
from state_machines.repair import RepairCount
from state_machines.slots import SLOTS, Own, SlotMap, SlotRange
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def items(*client_ids: str, broker: str = "b1", expiry_s: int = 60) -> tuple[SessionItem, ...]:
    return tuple(
        [SessionItem(client_id=each, broker=broker, expiry_s=expiry_s) for each in client_ids]
    )


def listed(group: Group, starts: str = "", limit: int = 1_000) -> list[str]:
    found: list[str] = []
    after = b""
    while True:
        page = group.ask(ListSessions(starts=starts, limit=limit, after=after))
        found += [each.client_id for each in page.sessions]
        after = page.next
        if not after:
            return found


def test_a_session_is_a_row(group: Group) -> None:
    opened = group.run(OpenSession(client_id="c", broker="b1", expiry_s=60))
    session = group.ask(GetSession(client_id="c"))
    assert session == Session(
        tenant="default",
        client_id="c",
        broker="b1",
        epoch=opened.epoch,
        connected=True,
        expiry_s=60,
        created_ms=NOW_MS,
        connected_ms=NOW_MS,
        disconnected_ms=0,
        expires_ms=0,
        subscriptions=0,
    )
    group.later(1)
    group.run(CloseSession(client_id="c", epoch=opened.epoch, expiry_s=5))
    closed = group.ask(GetSession(client_id="c"))
    assert (closed.connected, closed.expiry_s) == (False, 5)
    assert (closed.disconnected_ms, closed.expires_ms) == (NOW_MS + 1_000, NOW_MS + 6_000)
    group.later(1)
    group.run(OpenSession(client_id="c", broker="b2", expiry_s=60))
    again = group.ask(GetSession(client_id="c"))
    assert (again.broker, again.connected, again.expires_ms) == ("b2", True, 0)
    assert (again.created_ms, again.connected_ms) == (NOW_MS, NOW_MS + 2_000)
    assert group.ask(NextDue()) == 0


def test_saving_a_batch_opens_each(group: Group) -> None:
    first = group.run(SaveSessions(sessions=items("a", "b", "a")))
    assert [(each.client_id, each.present) for each in first] == [
        ("a", False),
        ("b", False),
        ("a", True),
    ]
    assert len({each.epoch for each in first}) == 3, "no two takeovers have the same epoch"
    assert group.ask(GetSession(client_id="a")).epoch == first[2].epoch
    with group.refuses(Fenced):
        group.run(CloseSession(client_id="a", epoch=first[0].epoch))
    second = group.run(SaveSessions(sessions=items("b", "c", broker="b2")))
    assert [each.present for each in second] == [True, False]
    assert second[0].epoch > first[1].epoch
    assert group.ask(CountSessions()).sessions == 3


def told(group: Group) -> dict[str, list[bool]]:
    """What watchers are told of each session: whether it is there, and then."""
    told: dict[str, list[bool]] = {}
    for table, key, row in group.machine.take_changes():
        if table == "mqtt.session":
            told.setdefault(str(key[1]), []).append(row is not None)
    return told


def a_step(what: str, session: Session, delay_s: int = 0) -> Any:
    """The command that takes a session that far."""
    named: dict[str, Any] = {"client_id": session.client_id, "epoch": session.epoch}
    match what:
        case "will":
            return SetWill(**named, topic="w", payload=b"", delay_s=delay_s)
        case "close":
            return CloseSession(**named)
        case "subscribe":
            return PutSubscriptions(**named, filters=(TopicFilter(filter="a"),))
        case _:
            share = ShareJoin(name="s", client_id=session.client_id, filter="a")
            return JoinShareGroups(broker=session.broker, items=(share,))


@pytest.mark.parametrize(("delay_s", "fired"), [(0, 1), (5, 0)])
def test_a_batch_settles_the_wills_of_those_it_opens(
    group: Group, delay_s: int, fired: int
) -> None:
    """MQTT 5, 3.1.3.2.2 and 3.1.4: a will with a delay is cancelled, one without is sent."""
    first, _ = group.run(SaveSessions(sessions=items("a", "b")))
    group.run(SetWill(client_id="a", epoch=first.epoch, topic="w", payload=b"", delay_s=delay_s))
    group.run(SaveSessions(sessions=items("b", "a", "c", broker="b2")))
    assert group.ask(GetWill(client_id="a")) is None
    assert group.rows("mqtt.outbox") == fired
    assert group.ask(CountSessions()).sessions == 3


def test_a_batch_resumes_what_outlives_its_connection_and_nothing_else(group: Group) -> None:
    for client_id, expiry_s in (("lasts", 60), ("ends", 0)):
        epoch = group.run(OpenSession(client_id=client_id, broker="b1", expiry_s=expiry_s)).epoch
        filters = (TopicFilter(filter="a"),)
        group.run(PutSubscriptions(client_id=client_id, epoch=epoch, filters=filters))
    group.later(1)
    reply = group.run(SaveSessions(sessions=items("new", "ends", "lasts", broker="b2")))
    assert [each.present for each in reply] == [False, False, True]
    assert [each.epoch for each in reply] == sorted({each.epoch for each in reply})
    assert group.rows("mqtt.subscription") == 1
    assert group.ask(CountSessions()) == SessionTally("default", 3, 3)


@pytest.mark.parametrize("hangs", ["", "subscribe", "join"])
@pytest.mark.parametrize("ends", ["clean start", "no expiry", "expired"])
def test_a_batch_begins_anew_what_has_ended_and_tells_so(
    group: Group, ends: str, hangs: str
) -> None:
    """MQTT 5, 3.1.2.4 and 3.1.2.11.2: whether or not anything ends with it."""
    expiry_s = {"clean start": 60, "no expiry": 0, "expired": 5}[ends]
    opened = group.run(SaveSessions(sessions=items("a", "b", "old", expiry_s=expiry_s)))
    for client_id in ("a", "b"):
        session = group.ask(GetSession(client_id=client_id))
        if hangs:
            group.run(a_step(hangs, session))
        if ends == "expired":
            group.run(CloseSession(client_id=client_id, epoch=session.epoch))
    group.later(6)
    group.machine.take_changes()
    again = [replace(each, clean_start=ends == "clean start") for each in items("new", "b", "a")]
    reply = group.run(SaveSessions(sessions=tuple(again)))
    assert [each.present for each in reply] == [False, False, False]
    assert min(each.epoch for each in reply) > max(each.epoch for each in opened)
    assert {each.created_ms for each in reply} == {group.now_ms}
    assert told(group) == {"new": [True], "a": [False, True], "b": [False, True]}
    for client_id in ("a", "b"):
        session = group.ask(GetSession(client_id=client_id))
        assert (session.created_ms, session.subscriptions) == (group.now_ms, 0)
        assert (session.connected, session.expires_ms) == (True, 0)
    for table in ("mqtt.subscription", "mqtt.share_member", "mqtt.due"):
        assert not group.rows(table)
    assert group.ask(CountSessions()) == SessionTally("default", 4, 4)


def test_a_session_that_begins_anew_has_no_subscription_however_wrong_its_count(
    group: Group,
) -> None:
    session = group.run(OpenSession(client_id="a", broker="b1", expiry_s=60))
    filters = (TopicFilter(filter="t"),)
    group.run(PutSubscriptions(client_id="a", epoch=session.epoch, filters=filters))
    key, seen = row_key.pack(("default", "a")), group.index
    wrong = RepairCount(table="mqtt.session", key=key, field="subscriptions", more=-1, seen=seen)
    group.run(wrong)
    assert group.ask(GetSession(client_id="a")).subscriptions == 0
    assert not group.run(OpenSession(client_id="a", broker="b2", clean_start=True)).present
    assert group.rows("mqtt.subscription") == 0


def test_a_batch_resumes_what_has_not_expired_and_stops_its_timer(group: Group) -> None:
    for each in group.run(SaveSessions(sessions=items("a", "b", expiry_s=5))):
        group.run(CloseSession(client_id=each.client_id, epoch=each.epoch))
    assert group.ask(CountSessions()) == SessionTally("default", 2, 0)
    group.later(4)
    reply = group.run(SaveSessions(sessions=items("b", "a")))
    assert [each.present for each in reply] == [True, True]
    assert group.ask(CountSessions()) == SessionTally("default", 2, 2)
    assert group.ask(NextDue()) == 0
    assert [each.created_ms for each in group.ask(ListSessions()).sessions] == [NOW_MS, NOW_MS]


def test_a_batch_over_two_groups_is_fenced_in_each_by_its_own(group: Group) -> None:
    """Reference defect 10: a batch went where its first client belonged, wherever the rest did."""
    half = SLOTS // 2
    ranges = (SlotRange(0, half - 1, "mqtt-0"), SlotRange(half, SLOTS - 1, "mqtt-1"))
    two = SlotMap(1, {"mqtt": ranges})
    groups = {each.group: Group("mqtt") for each in ranges}
    for each in ranges:
        own = Own(controller_epoch=1, group_kind="mqtt", version=1, ranges=(each,))
        groups[each.group].run(own)
    clients = [f"c{number}" for number in range(30)]
    save = SaveSessions(sessions=items(*clients))
    parts = two.route(save)
    replies = [groups[name].run(part) for name, part in parts]
    opened = op.join(save, [part for _, part in parts], replies)
    for client_id, outcome in zip(clients, opened, strict=True):
        ((owner, close),) = two.route(CloseSession(client_id=client_id, epoch=outcome.epoch))
        groups[owner].run(close)
    assert sum(each.ask(CountSessions()).sessions for each in groups.values()) == 30
    assert all(each.ask(CountSessions()).sessions for each in groups.values())


def test_deleting_takes_along_what_hangs_on_them_and_no_more(group: Group) -> None:
    """Of three tenants with a client of the same name, one loses it (reference defect 13)."""
    for tenant in ("a", "b", "default"):
        for client_id in ("c1", "c2"):
            epoch = group.run(
                OpenSession(tenant=tenant, client_id=client_id, broker="b", expiry_s=60)
            ).epoch
            names: dict[str, Any] = {"tenant": tenant, "client_id": client_id, "epoch": epoch}
            group.run(PutSubscriptions(**names, filters=(TopicFilter(filter="f"),)))
            group.run(SetWill(**names, topic="w", payload=b"1", delay_s=9))
            group.run(CloseSession(**names))
    assert group.rows("mqtt.due") == 12
    assert group.run(DeleteSessions(tenant="a", client_ids=("c1", "nobody"))) == 1
    assert group.rows("mqtt.session") == group.rows("mqtt.subscription") == 5
    assert group.rows("mqtt.will") == 5
    assert group.rows("mqtt.due") == 10
    (fired,) = group.run(ClaimOutbox(broker="b"))
    assert (fired.tenant, fired.client_id) == ("a", "c1"), "a session that ends says its will"
    group.later(9)
    assert group.run(Pulse(controller_epoch=1)).wills == 5


def test_an_outbox_id_is_never_given_again(group: Group) -> None:
    """Nor does a will fire twice (reference defect 13: it was sent by each replica)."""
    seen: list[int] = []
    for _ in range(4):
        epoch = group.run(OpenSession(client_id="c", broker="b")).epoch
        group.run(SetWill(client_id="c", epoch=epoch, topic="w", payload=b"1"))
        group.run(CloseSession(client_id="c", epoch=epoch))
        with group.refuses(NotFound):
            group.run(CloseSession(client_id="c", epoch=epoch))
        (row,) = group.run(ClaimOutbox(broker="b"))
        assert group.run(ClaimOutbox(broker="b")) == (), "it is claimed"
        seen.append(row.outbox_id)
        assert group.run(AckOutbox(broker="b", ids=(row.outbox_id, row.outbox_id))) == 1
        assert group.run(AckOutbox(broker="b", ids=(row.outbox_id,))) == 0
    assert seen == sorted(set(seen))
    assert group.rows("mqtt.outbox") == 0


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_lists_are_by_client_id_in_pages(group: Group, limit: int) -> None:
    names = ["a", "a/1", "a/2", "b", "é", "漢"]
    group.run(SaveSessions(sessions=items(*names)))
    group.run(SaveSessions(tenant="other", sessions=items("a/3")))
    assert listed(group, limit=limit) == names
    assert listed(group, "a/", limit) == ["a/1", "a/2"]


def test_a_storm_is_one_command(group: Group) -> None:
    clients = [f"c{number:05}" for number in range(2_000)]
    group.run(SaveSessions(sessions=items(*clients)))
    assert listed(group, limit=700) == clients
    for each in group.ask(ListSessions(limit=2_000)).sessions:
        group.run(CloseSession(client_id=each.client_id, epoch=each.epoch, expiry_s=1))
    group.later(1)
    pulses = [group.run(Pulse(controller_epoch=1, limit=1_500)).sessions for _ in range(3)]
    assert pulses == [1_500, 500, 0]
    assert group.rows("mqtt.session") == group.rows("mqtt.due") == 0


def test_a_pulse_is_never_long(group: Group) -> None:
    """What ends with a session counts as well: those with many filters come a few at a time."""
    for client_id in ("a", "b", "c", "d"):
        epoch = group.run(OpenSession(client_id=client_id, broker="b", expiry_s=1)).epoch
        filters = tuple([TopicFilter(filter=f"t/{number}") for number in range(50)])
        group.run(PutSubscriptions(client_id=client_id, epoch=epoch, filters=filters))
        group.run(CloseSession(client_id=client_id, epoch=epoch))
    group.later(1)
    replies = [group.run(Pulse(controller_epoch=1, limit=60)) for _ in range(3)]
    assert [each.sessions for each in replies] == [2, 2, 0]
    assert [each.next_due_ms for each in replies] == [NOW_MS + 1_000, 0, 0]
    assert group.rows("mqtt.subscription") == group.rows("mqtt.session") == 0


C: dict[str, Any] = {"client_id": "c", "epoch": 1}


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (OpenSession(client_id="", broker="b"), "client_id"),
        (OpenSession(client_id="c" * 65_536, broker="b"), "client_id"),
        (OpenSession(client_id="a\0", broker="b"), "client_id"),
        (OpenSession(client_id="c", broker=""), "broker"),
        (OpenSession(client_id="c", broker="b" * 257), "broker"),
        (OpenSession(client_id="c", broker="b", expiry_s=-1), "expiry_s"),
        (OpenSession(client_id="c", broker="b", expiry_s=SECONDS_MAX + 1), "expiry_s"),
        (OpenSession(tenant="", client_id="c", broker="b"), "tenant"),
        (SaveSessions(sessions=()), "sessions"),
        (SaveSessions(sessions=(*items("a"), *items(""))), "client_id"),
        (SaveSessions(sessions=items("a", expiry_s=2**32)), "expiry_s"),
        (SaveSessions(sessions=items("a", broker="")), "broker"),
        (CloseSession(client_id="", epoch=1), "client_id"),
        (CloseSession(**C, expiry_s=-1), "expiry_s"),
        (CloseSession(**C, expiry_s=2**32), "expiry_s"),
        (DeleteSessions(client_ids=()), "client_ids"),
        (DeleteSessions(client_ids=("c", "")), "client_id"),
        (DeleteSessions(tenant="\0", client_ids=("c",)), "tenant"),
        (GetSession(client_id=""), "client_id"),
        (ListSessions(starts="s" * 65_536), "starts"),
        (CountSessions(tenant=""), "tenant"),
        (SetWill(**C, topic="", payload=b""), "topic"),
        (SetWill(**C, topic="a/+", payload=b""), "topic"),
        (SetWill(**C, topic="t", payload=bytes((1 << 20) + 1)), "payload"),
        (SetWill(**C, topic="t", payload=b"", qos=3), "qos"),
        (SetWill(**C, topic="t", payload=b"", delay_s=-1), "delay_s"),
        (SetWill(**C, topic="t", payload=b"", delay_s=2**32), "delay_s"),
        (DeleteWill(client_id="", epoch=1), "client_id"),
        (GetWill(client_id="c", tenant=""), "tenant"),
        (ClaimOutbox(broker=""), "broker"),
        (ClaimOutbox(broker="b", tenant="t" * 257), "tenant"),
        (ClaimOutbox(broker="b", limit=0), "limit"),
        (ClaimOutbox(broker="b", limit=CLAIM_MAX + 1), "limit"),
        (ClaimOutbox(broker="b", lease_ms=0), "lease_ms"),
        (ClaimOutbox(broker="b", lease_ms=LEASE_MS_MAX + 1), "lease_ms"),
        (ClaimOutbox(broker="b", grace_ms=-1), "grace_ms"),
        (AckOutbox(broker="", ids=(1,)), "broker"),
        (AckOutbox(broker="b", ids=()), "ids"),
        (Pulse(controller_epoch=0), "controller_epoch"),
        (Pulse(controller_epoch=1, limit=0), "limit"),
        (Pulse(controller_epoch=1, limit=PULSE_MAX + 1), "limit"),
    ],
)
def test_limits(group: Group, operation: Any, field: str) -> None:
    epoch = group.run(OpenSession(client_id="c", broker="b", expiry_s=60)).epoch
    group.run(SetWill(client_id="c", epoch=epoch, topic="t", payload=b"kept"))
    group.beyond(operation, field)


@pytest.mark.parametrize(
    ("columns", "field"),
    [
        ({"client_ids": ("c" * 70_000,)}, "client_id"),
        ({"brokers": ("",)}, "broker"),
        ({"expiry_s": (-1,)}, "expiry_s"),
    ],
)
def test_limits_of_columns(group: Group, columns: dict[str, Any], field: str) -> None:
    group.beyond(OpenSessions(**{"client_ids": ("a",), "brokers": ("b",)} | columns), field)


def test_a_part_of_a_batch_has_what_its_sessions_have_in_all_columns() -> None:
    whole = OpenSessions(
        client_ids=("a", "b", "c"),
        brokers=("x", "y", "z"),
        expiry_s=(1, 2, 3),
        clean_starts=(True, False, True),
    )
    assert whole.select([0, 2]) == OpenSessions(
        client_ids=("a", "c"), brokers=("x", "z"), expiry_s=(1, 3), clean_starts=(True, True)
    )


def test_too_many_items(group: Group) -> None:
    group.run(DeleteSessions(client_ids=tuple([str(n) for n in range(BATCH_ITEMS_MAX)])))
    many = DeleteSessions(client_ids=("c",) * (BATCH_ITEMS_MAX + 1))
    with group.refuses(Invalid, r"^client_ids: 10001 items, the range is 1 to 10000"):
        op.validate(many)
    with group.refuses(Invalid, r"^body: .*10000 items a list"):
        group.machine.admit(group.proposal(many))


@pytest.mark.parametrize("kind", ["metadata", "mqtt", "offset"])
def test_every_group_has_its_fence(kind: str) -> None:
    """A controller that one group has seen the successor of is refused there (law 20)."""
    group = Group(kind)

    def own(epoch: int, version: int) -> Own:
        return Own(controller_epoch=epoch, group_kind=kind, version=version, ranges=())

    group.run(own(5, 1))
    with group.refuses(Fenced, "^controller_epoch: 4, in force is 5"):
        group.run(own(4, 2))
    group.run(own(5, 2))
    group.run(own(9, 3))
    group.run(own(10, 4))
    for old in (9, 5):
        with group.refuses(Fenced, f"^controller_epoch: {old}, in force is 10"):
            group.run(own(old, 5))


def test_a_client_twice_in_a_batch_over_two_groups_gets_two_outcomes() -> None:
    half = SLOTS // 2
    ranges = (SlotRange(0, half - 1, "mqtt-0"), SlotRange(half, SLOTS - 1, "mqtt-1"))
    two = SlotMap(1, {"mqtt": ranges})
    clients = [f"c{number % 5}" for number in range(9)]
    save = SaveSessions(sessions=items(*clients))
    parts = two.route(save)
    assert len(parts) == 2
    replies = [Group("mqtt").run(part) for _, part in parts]
    opened = op.join(save, [part for _, part in parts], replies)
    assert [each.client_id for each in opened] == clients
    assert [each.present for each in opened] == [False] * 5 + [True] * 4
