"""Sessions that end with more than one command may take away: over at once, taken by pulses."""

from __future__ import annotations

import pytest

from state_machines.batch import OK
from state_machines.budgets import BYTES_TAKEN_MAX
from state_machines.errors import Fenced, QuotaExceeded
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import SetRetained
from state_machines.mqtt.session import (
    CloseSession,
    CountSessions,
    DeleteSessions,
    GetSession,
    ListSessions,
    OpenSession,
    SessionItem,
)
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.mqtt.session_duty import CloseHeldSessions, HeldSession, ListHeldSessions
from state_machines.mqtt.sessions import SessionTally
from state_machines.mqtt.share_group import JoinShareGroups, RemoveShareBroker, ShareJoin
from state_machines.mqtt.subscription import (
    LONG_BYTES,
    LONG_MAX,
    DeleteSubscriptions,
    PutSubscriptions,
    TopicFilter,
)
from state_machines.mqtt.will import SetWill
from state_machines.quota import GroupQuota, SetQuotas
from tests.entities.group import Group
from tests.machine.derived import check

CLIENTS = ("a", "b", "c", "d")
FILTERS = 1_000
LONG = 60_000  #: bytes of a filter


@pytest.fixture
def group() -> Group:
    return Group("mqtt")


def opened(group: Group, expiry_s: int = 0) -> dict[str, int]:
    """Four sessions: two of them are as much as one command takes away."""
    filters = tuple([TopicFilter(filter=f"t/{number}") for number in range(FILTERS)])
    epochs = {}
    for each in CLIENTS:
        epoch = group.run(OpenSession(client_id=each, broker="b", expiry_s=expiry_s)).epoch
        group.run(PutSubscriptions(client_id=each, epoch=epoch, filters=filters))
        epochs[each] = epoch
    return epochs


@pytest.mark.parametrize("way", ["held", "lost", "delete"])
def test_what_ends_with_sessions_is_bounded_and_they_are_over_all_the_same(
    group: Group, way: str
) -> None:
    epochs = opened(group)
    if way == "held":
        held = tuple([HeldSession(client_id=each, epoch=epochs[each]) for each in CLIENTS])
        outcomes = group.run(CloseHeldSessions(controller_epoch=1, items=held))
        assert [each.code for each in outcomes] == [OK] * 4
    elif way == "lost":
        lost = tuple([LostSession(client_id=each, epoch=epochs[each]) for each in CLIENTS])
        assert [each.code for each in group.run(CloseSessions(items=lost))] == [OK] * 4
    else:
        assert group.run(DeleteSessions(client_ids=CLIENTS)) == 4
    assert group.rows("mqtt.subscription") == 2 * FILTERS
    over = group.ask(GetSession(client_id="c"))
    assert (over.connected, over.expires_ms) == (False, group.now_ms)
    late = (TopicFilter(filter="late"),)
    with group.refuses(Fenced):
        group.run(PutSubscriptions(client_id="c", epoch=epochs["c"], filters=late))
    assert not group.run(OpenSession(client_id="c", broker="b2", expiry_s=60)).present
    assert group.rows("mqtt.subscription") == FILTERS, "those of d wait for a pulse"
    check("mqtt", group.store)
    while group.run(Pulse(controller_epoch=1)).next_due_ms:
        pass
    assert group.rows("mqtt.subscription") == group.rows("mqtt.due") == 0
    check("mqtt", group.store)


@pytest.mark.parametrize("hangs", ["subscriptions", "memberships"])
def test_what_hangs_on_sessions_counts_by_its_bytes(group: Group, hangs: str) -> None:
    """A filter may have 65 535 bytes: of fewer rows than a command may take away."""
    clients = [f"c{number}" for number in range(6)]
    table = "mqtt.subscription" if hangs == "subscriptions" else "mqtt.share_member"
    times = 1 if hangs == "subscriptions" else 3  # a membership is told in three rows
    count = BYTES_TAKEN_MAX // (2 * times * LONG) + 1  #: of each: those of two are too much
    filters = [f"{number:03}{'x' * LONG}" for number in range(count)]
    for client_id in clients:
        epoch = group.run(OpenSession(client_id=client_id, broker="b")).epoch
        for start in range(0, count, 30):
            some = filters[start : start + 30]
            if hangs == "subscriptions":
                asked = tuple([TopicFilter(filter=each) for each in some])
                group.run(PutSubscriptions(client_id=client_id, epoch=epoch, filters=asked))
            else:
                joins = [ShareJoin(name="g", client_id=client_id, filter=each) for each in some]
                group.run(JoinShareGroups(broker="b", items=tuple(joins)))
    assert group.run(DeleteSessions(client_ids=tuple(clients))) == 6
    assert group.rows(table) == 4 * count
    assert group.run(Pulse(controller_epoch=1)).sessions == 2
    assert group.run(Pulse(controller_epoch=1)).sessions == 2
    assert group.rows(table) == 0
    check("mqtt", group.store)


@pytest.mark.parametrize("way", ["lost", "held"])
def test_wills_of_sessions_that_last_count_by_their_bytes(group: Group, way: str) -> None:
    """What is too much is due at once: a pulse sends it, or whoever opens the session."""
    clients = [f"c{number}" for number in range(7)]
    epochs = [group.run(OpenSession(client_id=x, broker="b", expiry_s=60)).epoch for x in clients]
    for client_id, epoch in zip(clients, epochs, strict=True):
        payload = bytes(VALUE_BYTES_MAX)
        group.run(SetWill(client_id=client_id, epoch=epoch, topic=client_id, payload=payload))
    those = zip(clients, epochs, strict=True)
    if way == "lost":
        group.run(CloseSessions(items=tuple([LostSession(client_id=x, epoch=n) for x, n in those])))
    else:
        held = tuple([HeldSession(client_id=x, epoch=n) for x, n in those])
        group.run(CloseHeldSessions(controller_epoch=1, items=held))
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (4, 3)
    assert not any(group.ask(GetSession(client_id=each)).connected for each in clients)
    check("mqtt", group.store)
    assert group.run(OpenSession(client_id="c6", broker="b2", expiry_s=60)).present
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (5, 2)
    assert group.run(Pulse(controller_epoch=1)).wills == 2
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (7, 0)
    check("mqtt", group.store)


@pytest.mark.parametrize("opens", ["one", "batch"])
@pytest.mark.parametrize("expiry_s", [0, 60])
def test_one_that_was_ended_is_none_of_its_tenants_any_more(
    group: Group, expiry_s: int, opens: str
) -> None:
    """Its rows wait for a pulse; its place is free, and nobody is told of it."""
    opened(group, expiry_s)
    quota = GroupQuota("default", 1, sessions=4)
    group.run(SetQuotas(controller_epoch=1, items=(quota,)))
    assert group.run(DeleteSessions(client_ids=CLIENTS)) == 4
    assert group.rows("mqtt.session") == 2
    assert group.ask(CountSessions()) == SessionTally("default", 0, 0)
    assert group.ask(ListSessions()).sessions == ()
    assert group.ask(ListHeldSessions(brokers=("b",))).sessions == ()
    check("mqtt", group.store)

    def open_all(*client_ids: str) -> None:
        if opens == "one":
            for each in client_ids:
                group.run(OpenSession(client_id=each, broker="b2", expiry_s=60))
        else:
            items = [SessionItem(client_id=each, broker="b2", expiry_s=60) for each in client_ids]
            group.run(OpenSessions.of(items))

    open_all("c", "e", "f")
    assert group.ask(CountSessions()).sessions == 3
    check("mqtt", group.store)
    open_all("g")
    with group.refuses(QuotaExceeded, "sessions: 5 of tenant 'default', the limit"):
        open_all("d")
    assert group.run(DeleteSessions(client_ids=("d",))) == 0, "it was told of before"
    assert group.rows("mqtt.session") == 4
    open_all("c")
    assert group.ask(CountSessions()) == SessionTally("default", 4, 4)
    check("mqtt", group.store)
    while group.run(Pulse(controller_epoch=1)).next_due_ms:
        pass
    assert group.ask(CountSessions()) == SessionTally("default", 4, 4)
    assert group.rows("mqtt.subscription") == 0
    check("mqtt", group.store)


def test_one_that_was_ended_and_has_nothing_left_is_opened_anew(group: Group) -> None:
    """Also where a batch writes it at once."""
    opened(group)
    group.run(DeleteSessions(client_ids=CLIENTS))
    over = group.ask(GetSession(client_id="d"))
    filters = tuple([f"t/{number}" for number in range(FILTERS)])
    group.run(DeleteSubscriptions(client_id="d", epoch=over.epoch, filters=filters))
    assert not group.run(OpenSession(client_id="d", broker="b2")).present
    assert group.ask(CountSessions()) == SessionTally("default", 1, 1)
    check("mqtt", group.store)


def test_one_whose_time_ran_out_is_not_listed_and_counts_until_its_pulse(group: Group) -> None:
    epoch = group.run(OpenSession(client_id="a", broker="b", expiry_s=1)).epoch
    group.run(OpenSession(client_id="b", broker="b", expiry_s=1))
    group.run(CloseSession(client_id="a", epoch=epoch))
    group.later(1)
    assert [each.client_id for each in group.ask(ListSessions()).sessions] == ["b"]
    held = group.ask(ListHeldSessions(brokers=("b",))).sessions
    assert [each.client_id for each in held] == ["b"]
    assert group.ask(GetSession(client_id="a")).expires_ms == group.now_ms
    assert group.ask(CountSessions()).sessions == 2
    assert group.run(DeleteSessions(client_ids=("a", "b"))) == 1
    assert group.ask(CountSessions()).sessions == group.rows("mqtt.session") == 0
    check("mqtt", group.store)


def test_memberships_count_in_a_pulse(group: Group) -> None:
    for each in CLIENTS:
        epoch = group.run(OpenSession(client_id=each, broker="b", expiry_s=1)).epoch
        joins = tuple([ShareJoin(name=f"g{n}", client_id=each, filter="t") for n in range(10)])
        group.run(JoinShareGroups(broker="b", items=joins))
        group.run(CloseSession(client_id=each, epoch=epoch))
    group.later(1)
    ended = [group.run(Pulse(controller_epoch=1, limit=60)).sessions for _ in range(3)]
    assert ended == [2, 2, 0]


def test_a_pulse_stops_at_its_bytes(group: Group) -> None:
    for number in range(6):
        payload = bytes(VALUE_BYTES_MAX)
        group.run(SetRetained(topic=f"t/{number}", payload=payload, expiry_s=1))
    group.later(1)
    gone = [group.run(Pulse(controller_epoch=1)).retained for _ in range(3)]
    assert gone == [4, 2, 0]


def test_a_session_has_few_long_filters(group: Group) -> None:
    """It goes whole, however many bytes its subscriptions are: ten thousand of 65 KB were 650 MB.
    Long ones are among its first, so that no session has to say how many bytes it has."""

    def put(*filters: str) -> None:
        asked = tuple([TopicFilter(filter=each) for each in filters])
        group.run(PutSubscriptions(client_id="c", epoch=epoch, filters=asked))

    epoch = group.run(OpenSession(client_id="c", broker="b")).epoch
    long = [f"{number:03}{'x' * LONG_BYTES}" for number in range(LONG_MAX)]
    put(*long)
    put(*[f"t/{number}" for number in range(10)], "x" * LONG_BYTES)
    says = f"^filters: {LONG_BYTES + 1} bytes, after {LONG_MAX} of a session the limit is"
    with group.refuses(QuotaExceeded, says):
        put("one", "y" * (LONG_BYTES + 1))
    put(*long)  # they are there already
    assert group.rows("mqtt.subscription") == LONG_MAX + 11


def test_memberships_of_a_broker_that_is_gone_go_so_many_bytes_a_command(group: Group) -> None:
    count = BYTES_TAKEN_MAX // (3 * LONG) + 10
    for number in range(count):
        join = ShareJoin(name="g", client_id="c", filter=f"{number:03}{'x' * LONG}")
        group.run(JoinShareGroups(broker="b", items=(join,)))
    group.run(JoinShareGroups(broker="b2", items=(ShareJoin(name="g", client_id="d", filter="f"),)))
    remove = RemoveShareBroker(controller_epoch=1, broker="b")
    first, then = group.run(remove), group.run(remove)
    assert count - 10 <= first.members < count
    assert (first.groups, first.more) == (0, True), "it has members yet, and could be chosen again"
    assert (then.members, then.groups, then.more) == (count - first.members, 1, False)
    check("mqtt", group.store)


def test_memberships_that_are_long_end_in_part_and_the_rest_is_swept(group: Group) -> None:
    count = BYTES_TAKEN_MAX // (3 * LONG) + 10
    group.run(OpenSession(client_id="c", broker="b"))
    for number in range(count):
        join = ShareJoin(name="g", client_id="c", filter=f"{number:03}{'x' * LONG}")
        group.run(JoinShareGroups(broker="b", items=(join,)))
    group.run(DeleteSessions(client_ids=("c",)))
    assert group.rows("mqtt.session") == 0
    assert 0 < group.rows("mqtt.share_member") < 10
