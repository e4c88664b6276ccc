"""What a broker finds when it begins, and what it lets go of when its clients have moved."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from amqtt.session import Session as AmqttSession

from metaray.integrations.amqtt.store import Filter, Store
from metaray.integrations.amqtt.subscribed import Subscribed
from state_machines.metadata.node import ExpireNodes, GetNode, RegisterNode
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.sessions import Session
from state_machines.mqtt.subscription import PutSubscriptions, TopicFilter
from state_machines.slots import SLOTS, slot_of
from tests.integrations.harness import DEADLINE_S, House

WILL = ("wills/ann", b"ann is gone")


class Gate:
    """Holds back what a broker reads of its sessions."""

    def __init__(
        self, house: House, monkeypatch: pytest.MonkeyPatch, *, unread: bool = False
    ) -> None:
        self._house = house
        self._open = asyncio.Event()
        self.waiting = 0
        reads = Store.sessions

        async def later(store: Store, group: str) -> AsyncIterator[tuple[Session, ...]]:
            pages = [] if unread else [page async for page in reads(store, group)]
            self.waiting += 1
            await self._open.wait()
            for page in pages or [page async for page in reads(store, group)]:
                yield page

        monkeypatch.setattr(Store, "sessions", later)

    def open(self) -> None:
        self._house.run(_set(self._open))


def left_by_a_process_before(house: House) -> int:
    """A session that is open, with a subscription."""
    epoch: int = house.call(OpenSession(client_id="ann", broker="b1", expiry_s=3_600)).epoch
    filters = (TopicFilter(filter="to/ann", qos=1),)
    house.call(PutSubscriptions(client_id="ann", epoch=epoch, filters=filters))
    return epoch


def test_a_broker_is_heard_of_while_it_loads(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    left_by_a_process_before(house)
    gate = Gate(house, monkeypatch)
    house.start("b1", loaded=False)
    expire = ExpireNodes(controller_epoch=1, timeout_ms=30_000)
    house.call(expire)
    for _ in range(4):
        house.service.now_ms += 10_000
        house.beat("b1")
    assert house.call(expire) == ()
    assert house.close_held() == 0
    gate.open()


def test_a_broker_that_loses_its_name_while_it_begins_lets_nobody_in(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, known = Store.read_expiries, asyncio.Event()

    async def later(store: Store) -> None:
        await known.wait()
        await reads(store)

    monkeypatch.setattr(Store, "read_expiries", later)
    starting = house.starting("b1")
    house.until(lambda: house.call(GetNode(node_id="b1")))
    house.call(RegisterNode(node_id="b1"))
    plugin = house.plugin("b1")
    house.until(plugin.fenced.is_set)
    house.run(_set(known))
    starting.result(DEADLINE_S)
    assert plugin.refusing == "another broker runs under this one's name"


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.parametrize("unread", [False, True])
def test_clients_are_let_in_while_a_broker_loads_and_are_not_undone_by_it(
    house: House, monkeypatch: pytest.MonkeyPatch, unread: bool
) -> None:
    """Whether their session is read as it was left, or as they have opened it since."""
    left_by_a_process_before(house)
    gate = Gate(house, monkeypatch, unread=unread)
    broker = house.start("b1", loaded=False)
    house.until(lambda: gate.waiting)
    ann = house.client("ann", broker)  # what is being loaded knows her as left open
    assert ann.session_present
    ann.unsubscribe("to/ann")
    gate.open()
    house.until(house.plugin("b1").ready.is_set)
    house.client("teller", broker).publish("to/ann", b"1")
    ann.subscribe("mark")
    ann.publish("mark", b"2")
    ann.until_received(("mark", b"2"))
    assert ann.payloads("to/ann") == []
    house.until(lambda: not house.plugin("b1")._closings)
    assert house.call(GetSession(client_id="ann")).connected


def test_a_will_waits_until_absent_clients_are_known(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message for them is queued only once their session is restored, and nobody is in a hurry
    to say what happened while no broker was there."""
    left_by_a_process_before(house)
    teller = house.client("bob", house.start("b0", will_delay_s=0), will=("to/ann", b"gone"))
    house.stop("b0")
    teller.until_lost()
    house.later(0)
    gate = Gate(house, monkeypatch)
    broker = house.start("b1", loaded=False)
    house.until(lambda: gate.waiting)
    for _ in range(2):
        house.service.now_ms += 10_000
        house.beat("b1")
    gate.open()
    house.until_outbox_is_empty()
    house.client("ann", broker).until_received(("to/ann", b"gone"))


@pytest.mark.parametrize("waits", [True, False])
def test_a_broker_that_stops_before_it_knows_what_is_open_stays_registered(
    house: House, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    """Then the controller closes what is: nobody else would."""
    left_by_a_process_before(house)
    gate = Gate(house, monkeypatch)
    house.start("b1", loaded=False, restart_grace_s=60)
    if waits:
        gate.open()
        house.until(house.plugin("b1").ready.is_set)
    house.stop("b1")
    assert (house.call(GetNode(node_id="b1")) is None) == waits
    assert house.call(GetSession(client_id="ann")).connected != waits


def test_a_broker_begins_while_a_group_is_away(house: House) -> None:
    """What it had there is restored when the group is back."""
    house.split()
    assert [slot_of(("default", each)) < SLOTS // 2 for each in ("bob", "ann")] == [True, False]
    left_by_a_process_before(house)
    house.patience_s = 0.3
    house.service.away = {"mqtt-1"}
    broker = house.start("b1", loaded=False)
    house.client("bob", broker)
    house.service.away = set()
    house.until_closed("ann")
    house.until(house.plugin("b1").ready.is_set)
    house.client("bob", broker).publish("to/ann", b"1")
    house.client("ann", broker).until_received(("to/ann", b"1"))


def test_wills_come_though_a_group_is_away_when_a_broker_begins(house: House) -> None:
    house.split()
    house.patience_s = 0.3
    house.service.away = {"mqtt-1"}
    broker = house.start("b1", loaded=False, will_delay_s=0)
    watcher = house.client("bob", broker)
    watcher.subscribe(WILL[0])
    lost = next(each for each in "abcdef" if slot_of(("default", each)) < SLOTS // 2)
    house.client(lost, broker, will=WILL).drop()
    house.until_closed(lost)
    house.call(Pulse(controller_epoch=1, limit=100), "mqtt-0")
    watcher.until_received(WILL)


def test_what_one_client_has_is_found_without_looking_at_others() -> None:
    """A broker with many sessions restores each, and looks for what each client has."""
    looks = 0

    class Watched(dict[str, Any]):
        def items(self) -> Any:
            nonlocal looks
            looks += 1
            return super().items()

        def __iter__(self) -> Any:
            nonlocal looks
            looks += 1
            return super().__iter__()

    broker: Any = SimpleNamespace(subscriptions=Watched())
    subscribed = Subscribed(broker)
    sessions = []
    for name in ("ann", "bob"):
        session = AmqttSession()
        session.client_id = name
        sessions.append(session)
        subscribed.restore(session, [Filter(f"to/{name}", 1), Filter("all", 0)])
    subscribed.restore(sessions[0], [Filter("all", 1)])
    assert looks == 0
    assert dict(broker.subscriptions) == {
        "all": [(sessions[1], 0), (sessions[0], 1)],
        "to/bob": [(sessions[1], 1)],
    }
    later = AmqttSession()
    later.client_id = "bob"
    subscribed.restore(later, [Filter("all", 0)])
    asyncio.run(subscribed.forget_session(sessions[1]))
    assert dict(broker.subscriptions) == {"all": [(sessions[0], 1), (later, 0)]}
    subscribed.forget("bob")
    subscribed.forget("ann")
    assert len(broker.subscriptions) == 0
    assert not subscribed._filters


# -- what belongs to a session ends with it -------------------------------------------------------


def test_messages_of_a_session_that_has_ended_are_not_delivered_into_a_later_one(
    house: House,
) -> None:
    first, second = house.start("b1", check_s=60), house.start("b2")
    ann = house.client("ann", first)
    ann.subscribe("to/ann")
    ann.leave()
    house.until_closed("ann")
    teller = house.client("teller", first)
    teller.publish("to/ann", b"for the first session")
    house.client("ann", second, persistent=False).leave()
    house.until(lambda: house.call(GetSession(client_id="ann")) is None)
    house.later(1)
    ann = house.client("ann", second)
    assert not ann.session_present
    ann.subscribe("to/ann")
    ann.leave()
    house.until_closed("ann")
    ann = house.client("ann", first)
    assert ann.session_present
    teller.publish("to/ann", b"for the second")
    ann.until_received(("to/ann", b"for the second"))
    assert ann.payloads("to/ann") == [b"for the second"]


def test_nothing_waits_for_a_client_whose_session_is_elsewhere_or_over(house: House) -> None:
    first, second = house.start("b1"), house.start("b2")
    teller = house.client("teller", first)
    for name in ("moved", "over", "stays"):
        client = house.client(name, first)
        client.subscribe("to/all", f"to/{name}")
        client.leave()
        house.until_closed(name)
    house.client("moved", second)
    house.client("over", second, persistent=False).leave()
    sessions = house.brokers["b1"].sessions
    house.until(lambda: set(sessions) == {"teller", "stays"})
    teller.publish("to/all", b"1")
    assert set(house.plugin("b1").context.subscriptions) == {"to/all", "to/stays"}
    house.client("stays", first).until_received(("to/all", b"1"))
