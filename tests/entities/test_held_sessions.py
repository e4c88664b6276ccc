"""Sessions by broker, and how those of a broker that is gone are closed."""

from __future__ import annotations

from typing import Any

import pytest

from state_machines.batch import OK
from state_machines.errors import Fenced, Invalid, NotFound
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.session_duty import CloseHeldSessions, HeldSession, ListHeldSessions
from state_machines.mqtt.will import GetWill, PendingOutbox, SetWill
from tests.entities.group import Group, rows_but_books
from tests.machine.alone import NOW_MS


def opened(group: Group, client_id: str, broker: str, tenant: str = "default") -> int:
    epoch: int = group.run(
        OpenSession(tenant=tenant, client_id=client_id, broker=broker, expiry_s=60)
    ).epoch
    return epoch


def fleet() -> Group:
    """Ten sessions in turns of b1, b2 and b3; b1's first has lost its connection."""
    group = Group("mqtt")
    for number in range(10):
        epoch = opened(
            group, f"c{number}", f"b{number % 3 + 1}", "acme" if number > 6 else "default"
        )
        if number == 0:
            group.run(CloseSession(client_id="c0", epoch=epoch))
    return group


def listed(group: Group, **asked: Any) -> list[str]:
    found, after = [], b""
    while True:
        page = group.ask(ListHeldSessions(after=after, **asked))
        found += [each.client_id for each in page.sessions]
        after = page.next
        if not after:
            return found


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 10, 11])
def test_those_of_the_brokers_asked_for_are_found_page_by_page(limit: int) -> None:
    group = fleet()
    assert sorted(listed(group, brokers=("b1",), limit=limit)) == ["c0", "c3", "c6", "c9"]
    connected = listed(group, brokers=("b1", "b3"), connected=True, limit=limit)
    assert sorted(connected) == ["c2", "c3", "c5", "c6", "c8", "c9"]
    assert listed(group, tenant="acme", brokers=("b1", "b2"), limit=limit) == ["c7", "c9"]
    assert listed(group, brokers=("b4",), limit=limit) == []


def test_a_page_is_of_what_was_looked_at() -> None:
    page = fleet().ask(ListHeldSessions(tenant="default", brokers=("b3",), limit=2))
    assert (page.sessions, bool(page.next)) == ((), True)


def test_a_page_is_of_so_many_bytes_that_were_looked_at() -> None:
    """A client id may have 65 535 bytes, also of sessions that nobody asked for."""
    group, count = Group("mqtt"), 40
    for number in range(count):
        opened(group, f"{number:02}{'c' * 60_000}", "b1")
    looked, after = 0, b""
    while looked == 0 or after:
        page = group.ask(ListHeldSessions(brokers=("b2",), after=after))
        looked, after = looked + 1, page.next
        assert page.sessions == ()
    assert looked == 3, "of 2.4 MB"


def test_what_a_broker_held_expires_and_says_its_will() -> None:
    group = Group("mqtt")
    lasting, ending = opened(group, "lasting", "b1"), opened(group, "ending", "b1")
    group.run(SetWill(client_id="lasting", epoch=lasting, topic="t", payload=b"", delay_s=5))
    group.run(SetWill(client_id="ending", epoch=ending, topic="t", payload=b""))
    items = tuple(
        HeldSession(client_id=name, epoch=epoch)
        for name, epoch in (("lasting", lasting), ("ending", ending))
    )
    outcomes = group.run(CloseHeldSessions(controller_epoch=1, items=items))
    assert [each.code for each in outcomes] == [OK, OK]
    session = group.ask(GetSession(client_id="lasting"))
    assert (session.connected, session.expires_ms) == (False, NOW_MS + 60_000)
    assert group.ask(GetWill(client_id="lasting")).due_ms == NOW_MS + 5_000
    assert group.ask(PendingOutbox()).waiting, "a will without a delay is said at once"


def test_who_has_moved_on_stays_where_he_is() -> None:
    group = Group("mqtt")
    epochs = {name: opened(group, name, "b1") for name in ("stays", "moves", "ends")}
    opened(group, "moves", "b2")
    items = [HeldSession(client_id=name, epoch=epoch) for name, epoch in epochs.items()]
    items.append(HeldSession(tenant="acme", client_id="stays", epoch=epochs["stays"]))
    outcomes = group.run(CloseHeldSessions(controller_epoch=1, items=tuple(items)))
    codes = [each.code for each in outcomes]
    assert codes == [OK, Fenced.code, OK, NotFound.code]
    assert group.ask(GetSession(client_id="moves")).connected
    assert not group.ask(GetSession(client_id="stays")).connected


def test_a_controller_that_was_replaced_closes_nothing() -> None:
    group = Group("mqtt")
    item = HeldSession(client_id="c", epoch=opened(group, "c", "b1"))
    group.run(CloseHeldSessions(controller_epoch=5, items=(HeldSession(client_id="x", epoch=1),)))
    before = rows_but_books(group.store)
    with pytest.raises(Fenced, match="controller_epoch: 4, in force is 5"):
        group.run(CloseHeldSessions(controller_epoch=4, items=(item,)))
    assert rows_but_books(group.store) == before


@pytest.mark.parametrize(
    ("operation", "field"),
    [
        (ListHeldSessions(brokers=()), "brokers"),
        (ListHeldSessions(brokers=("",)), "broker"),
        (ListHeldSessions(brokers=("b",), limit=0), "limit"),
        (ListHeldSessions(brokers=("b",), limit=PAGE_ROWS_MAX + 1), "limit"),
        (ListHeldSessions(brokers=("b",), tenant="t" * 300), "tenant"),
        (CloseHeldSessions(controller_epoch=0, items=()), "controller_epoch"),
        (CloseHeldSessions(controller_epoch=1, items=()), "items"),
        (
            CloseHeldSessions(controller_epoch=1, items=(HeldSession(client_id="", epoch=1),)),
            "client_id",
        ),
    ],
)
def test_what_is_out_of_its_limits_is_refused_by_name(operation: Any, field: str) -> None:
    with pytest.raises(Invalid, match=field):
        operation.validate()
