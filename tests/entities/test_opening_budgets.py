"""What sessions that are opened or closed together leave may be large: wills, subscriptions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from state_machines import op
from state_machines.batch import OK
from state_machines.budgets import BYTES_CHANGED_MAX
from state_machines.errors import QuotaExceeded
from state_machines.keyvalue import Part
from state_machines.limits import VALUE_BYTES_MAX
from state_machines.mqtt import session, session_life
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession, SaveSessions
from state_machines.mqtt.session import SessionItem as Item
from state_machines.mqtt.session_batch import CloseSessions, LostSession
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.mqtt.session_duty import CloseHeldSessions, HeldSession
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.mqtt.will import SetWill
from state_machines.quota import GroupQuota, SetQuotas
from storage.memory import MemoryKeyValue
from tests.entities.group import Group
from tests.machine.derived import check
from tests.machine.test_runs import carried_out

FITS = BYTES_CHANGED_MAX // VALUE_BYTES_MAX  #: of the largest wills, as many as one command fires
SIZE = VALUE_BYTES_MAX // 100
CLIENTS = tuple(f"c{number:02}" for number in range(FITS + 3))
FULL = f"QUOTA_EXCEEDED {op.REPLY_FULL}"


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Group:
    """All bytes are a hundredth of what they could be."""
    for module in (session_life, session):
        monkeypatch.setattr(module, "BYTES_CHANGED_MAX", FITS * SIZE)
    return Group("mqtt")


def with_wills(group: Group, delay_s: int = 0) -> dict[str, int]:
    """Connected sessions that outlive their connections, by client; their epochs."""
    epochs = {}
    for each in CLIENTS:
        epoch = group.run(OpenSession(client_id=each, broker="b", expiry_s=60)).epoch
        will = SetWill(client_id=each, epoch=epoch, topic="t", payload=bytes(SIZE), delay_s=delay_s)
        group.run(will)
        epochs[each] = epoch
    return epochs


def opened(*clients: str, clean: bool = False) -> list[OpenSession]:
    return [
        OpenSession(client_id=each, broker="b2", expiry_s=60, clean_start=clean) for each in clients
    ]


def batches(*clients: str, clean: bool = False) -> list[Any]:
    items = tuple(
        Item(client_id=each, broker="b2", expiry_s=60, clean_start=clean) for each in clients
    )
    return [OpenSessions.of(items), SaveSessions(sessions=items)]


@pytest.mark.parametrize("limited", [False, True])
def test_a_run_opens_until_the_wills_that_it_fires_are_large(group: Group, limited: bool) -> None:
    """The rest is refused in the words by which clients ask again by themselves."""
    with_wills(group)
    if limited:
        quota = GroupQuota("default", 1, sessions=100)
        group.run(SetQuotas(controller_epoch=1, items=(quota,)))
    found = carried_out(group, opened(*CLIENTS))
    assert [each == FULL for each in found] == [False] * FITS + [True] * 3
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (FITS, 3)
    assert group.ask(GetSession(client_id=CLIENTS[-1])).broker == "b"
    assert FULL not in carried_out(group, opened(*CLIENTS))
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (len(CLIENTS), 0)
    check("mqtt", group.store)


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("kind", [0, 1])
def test_a_batch_that_fires_too_much_opens_none(group: Group, kind: int, twice: bool) -> None:
    """Also where a client comes twice: what it did for the first is taken back."""
    with_wills(group)
    again = ("new", "new") if twice else ()
    with group.refuses(QuotaExceeded, "^client_ids: "):
        group.run(batches(*again, *CLIENTS)[kind])
    for some in (CLIENTS[:10], CLIENTS[10:]):
        group.run(batches(*again, *some)[kind])
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (len(CLIENTS), 0)
    check("mqtt", group.store)


def subscribed(group: Group, filters: int) -> None:
    asked = tuple([TopicFilter(filter=f"t/{number}") for number in range(filters)])
    for each in CLIENTS:
        epoch = group.run(OpenSession(client_id=each, broker="b", expiry_s=60)).epoch
        group.run(PutSubscriptions(client_id=each, epoch=epoch, filters=asked))


def test_a_run_opens_until_what_ends_with_it_is_much(
    monkeypatch: pytest.MonkeyPatch, group: Group
) -> None:
    monkeypatch.setattr(session_life, "OPEN_ROWS_MAX", 40)
    subscribed(group, 10)
    found = carried_out(group, opened("new", *CLIENTS, clean=True))
    assert [each == FULL for each in found] == [False] * 5 + [True] * (len(CLIENTS) - 4)
    assert group.rows("mqtt.subscription") == 10 * (len(CLIENTS) - 4)
    check("mqtt", group.store)
    found = carried_out(group, opened(CLIENTS[4], CLIENTS[4], *CLIENTS[4:], clean=True))
    assert [each == FULL for each in found].index(True) == 6, "it ends a second time with nothing"
    assert FULL not in carried_out(group, opened(*CLIENTS)), "what goes on costs nothing"
    check("mqtt", group.store)


@pytest.mark.parametrize("kind", [0, 1])
def test_a_batch_that_ends_too_much_opens_none(
    monkeypatch: pytest.MonkeyPatch, group: Group, kind: int
) -> None:
    monkeypatch.setattr(session_life, "OPEN_ROWS_MAX", 40)
    monkeypatch.setattr(session_life, "OPEN_ROWS_EACH", 5)
    subscribed(group, 10)
    with group.refuses(QuotaExceeded, "^client_ids: .* of the first 10 alone"):
        group.run(batches(*CLIENTS, clean=True)[kind])
    with group.refuses(QuotaExceeded, "^client_ids: "):
        group.run(batches("new", "new", *CLIENTS, clean=True)[kind])
    group.run(batches(*CLIENTS[:4], clean=True)[kind])
    assert group.rows("mqtt.subscription") == 10 * (len(CLIENTS) - 4)
    check("mqtt", group.store)


@pytest.mark.parametrize("delay_s", [0, 5])
@pytest.mark.parametrize("way", ["run", "lost", "held", "twice"])
def test_sessions_are_closed_until_their_wills_are_large(
    group: Group, way: str, delay_s: int
) -> None:
    """Each will that waits for a pulse is written anew: with when it is due."""
    epochs = with_wills(group, delay_s)

    def close(*clients: str) -> list[str]:
        those = [(each, epochs[each]) for each in clients]
        if way == "run":
            lost = [CloseSession(client_id=each, epoch=epoch) for each, epoch in those]
            said = [OK if each is None else each for each in carried_out(group, lost)]
            return ["QUOTA_EXCEEDED" if each == FULL else each for each in said]
        if way == "held":
            held = [HeldSession(client_id=each, epoch=epoch) for each, epoch in those]
            command: Any = CloseHeldSessions(controller_epoch=1, items=tuple(held))
        else:
            items = [LostSession(client_id=each, epoch=epoch) for each, epoch in those]
            command = CloseSessions(items=tuple(items))
        return [each.code for each in group.run(command)]

    again = CLIENTS[:1] if way == "twice" else ()  # in parts
    assert close(*CLIENTS[:FITS], *again, *CLIENTS[FITS:]) == [
        *[OK] * FITS,
        *["QUOTA_EXCEEDED"] * (len(again) + 3),
    ]
    closed = [not group.ask(GetSession(client_id=each)).connected for each in CLIENTS]
    assert closed == [True] * FITS + [False] * 3
    check("mqtt", group.store)
    assert close(*CLIENTS[FITS:]) == [OK] * 3
    group.later(5)
    while group.run(Pulse(controller_epoch=1)).wills:
        pass
    assert (group.rows("mqtt.outbox"), group.rows("mqtt.will")) == (len(CLIENTS), 0)
    check("mqtt", group.store)


class Ordered(MemoryKeyValue):
    """It notes scans of subscriptions that come after some were deleted: each sorts them anew."""

    late = 0
    deleted = False

    def delete(self, table: str, key: tuple[Part, ...]) -> None:
        self.deleted |= table == "mqtt.subscription"
        super().delete(table, key)

    def scan(
        self, table: str, prefix: tuple[Part, ...] = (), **more: Any
    ) -> Iterator[tuple[bytes, bytes]]:
        self.late += self.deleted and table == "mqtt.subscription"
        return super().scan(table, prefix, **more)


def test_what_ends_with_many_sessions_is_read_before_any_of_it_goes() -> None:
    store = Ordered()
    group = Group("mqtt", store)
    subscribed(group, 2)
    group.run(batches(*CLIENTS, clean=True)[0])
    assert group.rows("mqtt.subscription") == 0
    assert (store.deleted, store.late) == (True, 0)
