"""What is refused, how the client learns of it, and that nothing changed."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
from typing import Any
from unittest.mock import Mock

import pytest
from amqtt.broker import Broker
from amqtt.errors import PluginInitError

from metaray.integrations.amqtt.__main__ import configuration
from metaray.integrations.amqtt.store import Filter, Opened
from state_machines.errors import Unavailable, Unknown
from state_machines.metadata.node import GetNode
from state_machines.mqtt.auto_subscribe import AutoSubscribeItem, PutAutoSubscribe
from state_machines.mqtt.retained import ListRetained
from state_machines.mqtt.session import GetSession
from state_machines.mqtt.subscription import ListSubscriptions
from state_machines.mqtt.will import PendingOutbox
from tests.integrations.harness import DEADLINE_S, MQTT, House

SERVER_UNAVAILABLE = "Server unavailable"


def test_nobody_connects_while_the_service_is_down_and_again_after(house: House) -> None:
    house.patience_s = 0.5
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.subscribe("to/ann")
    house.service.down = True
    bob = house.stranger("bob", broker)
    bob.connect()
    bob.until(lambda: bob.reasons, "CONNACK")
    assert bob.reasons == [SERVER_UNAVAILABLE]
    bob.until_lost()
    assert not ann.lost  # who is connected stays so
    assert ann.subscribe("more") == [False]
    house.service.down = False
    bob.connect()
    bob.until(lambda: bob.connects, "CONNACK")
    assert ann.subscribe("more") == [True]
    filters = house.call(ListSubscriptions(client_id="ann")).subscriptions
    assert [each.filter for each in filters] == ["more", "to/ann"]


def test_a_broker_that_starts_without_the_service_lets_clients_in_when_it_answers(
    house: House,
) -> None:
    house.client("ann", house.start("b1")).subscribe("to/ann")
    house.stop("b1")
    house.patience_s = 0.5
    house.service.down = True
    broker = house.start("b1", loaded=False)
    ann = house.stranger("ann", broker)
    ann.connect()
    ann.until(lambda: ann.reasons, "CONNACK")
    assert ann.reasons == [SERVER_UNAVAILABLE]
    ann.until_lost()
    house.service.down = False
    house.until(lambda: not house.plugin("b1").refusing)
    ann.connect()
    ann.until(lambda: ann.connects, "CONNACK")
    assert ann.session_present


def test_a_session_is_closed_once_the_service_answers_again(house: House) -> None:
    house.patience_s = 0.5
    broker = house.start("b1")
    ann = house.client("ann", broker)
    house.service.down = True
    ann.drop()
    house.until(lambda: not house.plugin("b1").seams.live)
    house.service.down = False
    house.until_closed("ann")


def test_a_session_whose_subscriptions_cannot_be_read_is_closed_again(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.subscribe("to/ann")
    ann.leave()
    house.until_closed("ann")
    store = house.plugin("b1")._store
    assert store is not None

    async def lose(client_id: str) -> tuple[Filter, ...]:
        raise Unavailable("no leader just now")

    store.filters = lose  # type: ignore[method-assign]
    again = house.stranger("ann", broker)
    again.connect()
    again.until(lambda: again.reasons, "CONNACK")
    house.until_closed("ann")
    assert house.call(GetSession(client_id="ann")).expires_ms


def test_a_session_that_was_opened_though_nobody_was_told_is_closed_again(house: House) -> None:
    broker = house.start("b1")
    store = house.plugin("b1")._store
    assert store is not None
    opens = store.open_session

    async def lose(*asked: Any, **_: Any) -> Opened:
        await opens(*asked)
        store.open_session = opens  # type: ignore[method-assign]
        raise Unknown("the answer was lost")

    store.open_session = lose  # type: ignore[method-assign]
    ann = house.stranger("ann", broker)
    ann.connect()
    ann.until(lambda: ann.reasons, "CONNACK")
    house.until_closed("ann")
    ann.until_lost()
    ann.connect()
    ann.until(lambda: ann.connects, "CONNACK")
    house.until(lambda: not house.plugin("b1")._in_doubt)
    assert ann.subscribe("to/ann") == [True]


def test_a_session_stays_in_doubt_while_its_last_connection_is_here(house: House) -> None:
    """The answer to an opening that takes it over may have been given up before it was done."""
    broker = house.start("b1")
    store = house.plugin("b1")._store
    assert store is not None
    opens = store.open_session
    asked: list[tuple[Any, ...]] = []

    async def later(*opening: Any, **_: Any) -> Opened:
        store.open_session = opens  # type: ignore[method-assign]
        asked.append(opening)
        raise Unknown("no answer in time")

    ann = house.client("ann", broker)
    store.open_session = later  # type: ignore[method-assign]
    again = house.stranger("ann", broker)
    again.connect()
    again.until(lambda: again.reasons, "CONNACK")
    plugin = house.plugin("b1")
    house.run(plugin._close_what_is_in_doubt())
    assert "ann" in plugin.seams.live
    house.run(opens(*asked[0]))  # it arrives after all
    ann.until_lost()
    house.until_closed("ann")


def test_a_retained_message_is_acknowledged_only_when_it_is_kept(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.subscribe("a")
    house.hold()
    ann.client.publish("a", b"1", qos=1, retain=True)
    ann.client.publish("a", b"2", qos=1)
    house.until(lambda: house.service.waiting)
    assert ann.acknowledged == 0
    assert ann.received == []
    house.release()
    ann.until(lambda: ann.acknowledged == 2, "PUBACK")
    ann.until_received(("a", b"1"), ("a", b"2"))
    assert ann.payloads("a") == [b"1", b"2"]


def test_a_retained_message_survives_its_publishers_hurry(house: House) -> None:
    """QoS 0 and gone: there is no acknowledgement to wait for, but it was said."""
    broker = house.start("b1")
    listener = house.client("listener", broker)
    listener.subscribe("a")
    ann = house.client("ann", broker)
    house.hold()
    ann.client.publish("a", b"1", qos=0, retain=True)
    ann.leave()
    house.until(lambda: house.service.waiting)
    house.release()
    listener.until_received(("a", b"1"))
    assert [each.topic for each in house.call(ListRetained()).messages] == ["a"]


def test_what_is_sent_behind_a_retained_message_is_not_retained(house: House) -> None:
    """It waits for its turn, and for nothing else."""
    broker = house.start("b1")
    listener = house.client("listener", broker)
    listener.subscribe("#")
    ann = house.client("ann", broker)
    pending = house.plugin("b1").seams.live["ann"]._pending
    house.hold()
    ann.client.publish("kept", b"1", qos=1, retain=True)
    ann.client.publish("said", b"2", qos=1)
    house.until(lambda: len(pending) == 2)
    house.release()
    listener.until_received(("kept", b"1"), ("said", b"2"))
    assert [each.payload for each in listener.received] == [b"1", b"2"]
    assert [each.topic for each in house.call(ListRetained()).messages] == ["kept"]


def test_a_retained_message_that_is_not_kept_ends_the_connection(house: House) -> None:
    house.patience_s = 0.5
    broker = house.start("b1")
    ann = house.client("ann", broker)
    house.service.down = True
    ann.client.publish("a", b"1", qos=1, retain=True)
    ann.until_lost()
    assert ann.acknowledged == 0
    house.service.down = False
    ann.connect()  # paho sends again what was not acknowledged
    ann.until(lambda: ann.acknowledged, "PUBACK")
    assert [each.topic for each in house.call(ListRetained()).messages] == ["a"]


def test_an_oversized_retained_message_ends_the_connection(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.client.publish("a", bytes((1 << 20) + 1), qos=0, retain=True)
    ann.until_lost()
    assert house.call(ListRetained()).messages == ()


def test_a_topic_of_the_server_ends_the_connection(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.client.publish("$mine/own", b"1", qos=0, retain=True)
    ann.until_lost()
    assert house.call(ListRetained()).messages == ()
    house.until_closed("ann")


def test_a_wildcard_in_a_topic_is_neither_kept_nor_acknowledged(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    connection = ann.client.socket()
    assert connection is not None
    connection.sendall(b"\x33\x07\x00\x03a/#\x00\x09")  # paho itself refuses to send it
    ann.leave()
    house.until_closed("ann")
    assert ann.acknowledged == 0
    assert house.call(ListRetained()).messages == ()


@pytest.mark.parametrize("acl", [False, True])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize(
    "topic_filter",
    ["a/#/b", "a+/b", "$share/x", "$share//a", "", "a\0b", "$share/g/x"],
    ids=["# inside", "+ inside", "no filter", "no share", "empty", "NUL", "shared"],
)
def test_a_filter_that_cannot_be_is_refused(
    house: House, topic_filter: str, persistent: bool, acl: bool
) -> None:
    """Nor can a shared one: it would be granted, and nothing ever come."""
    broker = house.start("b1", acl=acl, acl_default="allow")
    ann = house.client("ann", broker, persistent=persistent)
    name = topic_filter.encode()
    body = b"\x00\x63" + len(name).to_bytes(2, "big") + name + b"\x01"
    connection = ann.client.socket()
    assert connection is not None
    connection.sendall(b"\x82" + bytes([len(body)]) + body)  # paho itself refuses to send it
    ann.until(lambda: ann.subscribed, "SUBACK")
    assert ann.subscribed == [False]
    assert house.call(ListSubscriptions(client_id="ann")).subscriptions == ()
    assert not house.plugin("b1").context.subscriptions.get(topic_filter)


@pytest.mark.parametrize("acl", [False, True])
@pytest.mark.parametrize("topic", [b"wills/#", b"$share/#", b"$SYS/broker/version"])
def test_a_will_that_cannot_be_refuses_the_connection(
    house: House, topic: bytes, acl: bool
) -> None:
    broker = house.start("b1", acl=acl, acl_default="allow")
    ann = house.stranger("ann", broker)
    ann.client._will_topic = topic  # paho itself refuses it
    ann.client._will = True
    ann.connect()
    ann.until(lambda: ann.reasons, "CONNACK")
    ann.until_lost()
    house.until(lambda: house.call(GetSession(client_id="ann")) is None)


def test_a_connection_that_something_went_wrong_with_is_closed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = house.start("b1")

    async def fail(*_: object) -> Opened:
        raise RuntimeError("a mistake of ours")

    monkeypatch.setattr(house.plugin("b1"), "opening", fail)
    with socket.create_connection(("127.0.0.1", broker.port)) as peer:
        peer.settimeout(DEADLINE_S)
        peer.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03ann")
        assert peer.recv(4) == b""


@pytest.mark.parametrize("begun", [b"", b"\x10\x0f\x00\x04MQ"], ids=["nothing", "a part"])
def test_who_has_not_sent_a_connect_is_let_go_when_the_broker_stops(
    house: House, begun: bytes
) -> None:
    broker = house.start("b1")
    with socket.create_connection(("127.0.0.1", broker.port)) as peer:
        peer.settimeout(DEADLINE_S)
        peer.sendall(begun)
        house.until(lambda: house.plugin("b1").seams._connecting)
        house.stop("b1")
        assert peer.recv(64) == b""


@pytest.mark.parametrize("session_expiry", [b"", b"\x11\x00\x00\x0e\x10"], ids=["none", "an hour"])
def test_a_client_of_another_protocol_is_told_so_at_once(
    house: House, session_expiry: bytes
) -> None:
    """MQTT-3.1.2-2. What MQTT 5 has in its CONNECT more reads like a name that is yet to come."""
    broker = house.start("b1")
    said = b"\x00\x04MQTT\x05\x02\x00\x3c" + bytes([len(session_expiry)]) + session_expiry
    said += b"\x00\x03ann"
    with socket.create_connection(("127.0.0.1", broker.port)) as peer:
        peer.settimeout(DEADLINE_S)
        peer.sendall(b"\x10" + bytes([len(said)]) + said)
        assert peer.recv(64) == b"\x20\x02\x00\x01"
        assert peer.recv(64) == b"", "and the connection ends"
    assert house.call(GetSession(client_id="ann")) is None
    assert house.client("ann", broker).connects


def test_a_client_that_did_not_wait_has_nothing_done_for_it(house: House) -> None:
    """Its CONNECT would take the session over from a connection that came later."""
    house.patience_s = DEADLINE_S
    broker = house.start("b1", will_delay_s=0)
    watcher = house.client("watcher", broker)
    watcher.subscribe("wills/#", "mark")
    seams, store = house.plugin("b1").seams, house.plugin("b1")._store
    assert store is not None
    opens = Mock(wraps=store.open_session)
    store.open_session = opens  # type: ignore[method-assign]
    connect = _connect(clean=True)
    house.hold()
    for count in range(3):
        with socket.create_connection(("127.0.0.1", broker.port)) as early:
            early.sendall(connect)
            house.until(functools.partial(lambda count: len(seams.serving) == count, 2 + count))
    with socket.create_connection(("127.0.0.1", broker.port)) as ann:
        ann.settimeout(DEADLINE_S)
        ann.sendall(connect)
        house.until(lambda: len(seams.serving) == 5)
        house.release()
        assert ann.recv(4) == b"\x20\x02\x00\x00"
        house.until(lambda: len(seams.serving) == 2)
        house.until_outbox_is_empty()
        watcher.publish("mark", b"")
        watcher.until_received(("mark", b""))
        assert [each.topic for each in watcher.received] == ["mark"]
        assert house.call(GetSession(client_id="ann")).connected
        assert opens.call_count == 2, "that of the first was under way"


def test_a_client_that_is_gone_when_its_lasting_session_is_opened_leaves_its_will(
    house: House,
) -> None:
    """Opening has made the one before void."""
    house.patience_s = DEADLINE_S
    broker = house.start("b1", will_delay_s=0)
    watcher = house.client("watcher", broker)
    watcher.subscribe("wills/#")
    serving = house.plugin("b1").seams.serving
    house.hold()
    with socket.create_connection(("127.0.0.1", broker.port)) as early:
        early.sendall(_connect(clean=False))
        house.until(lambda: len(serving) == 2)
    house.release()
    watcher.until_received(("wills/ann", b"gone"))
    house.until(lambda: len(serving) == 1)
    assert not house.call(GetSession(client_id="ann")).connected


def _connect(*, clean: bool) -> bytes:
    """ann's CONNECT, with a will."""
    body = b"\x00\x04MQTT\x04" + (b"\x06" if clean else b"\x04") + b"\x00\x3c"
    for each in (b"ann", b"wills/ann", b"gone"):
        body += len(each).to_bytes(2, "big") + each
    return b"\x10" + bytes([len(body)]) + body


@pytest.mark.parametrize("asked", ["open_session", "subscribe"])
def test_a_connection_that_is_made_while_the_broker_stops_is_refused_and_closed(
    house: House, asked: str
) -> None:
    """Also one that waits for what it is subscribed to without asking."""
    house.call(PutAutoSubscribe(items=(AutoSubscribeItem(name="own", filter="to/%c"),)))
    broker = house.start("b1", auto_subscribe=True, will_delay_s=0)
    plugin = house.plugin("b1")
    store: Any = plugin._store
    carry_out, done, going_on = getattr(store, asked), threading.Event(), asyncio.Event()

    async def slowly(*args: Any) -> Any:
        reply = await carry_out(*args)
        done.set()
        await going_on.wait()
        return reply

    setattr(store, asked, slowly)
    ann = house.stranger("ann", broker, will=("wills/ann", b"gone"))
    ann.connect()
    house.until(done.is_set)
    running = house.brokers["b1"]
    stopping = house.stopping("b1")
    house.until(lambda: running.transitions.state == "stopping")  # all that it knew has ended
    assert house.call(GetNode(node_id="b1")).online
    house.run(_set(going_on))
    stopping.result(DEADLINE_S)
    ann.until_lost()
    assert not ann.connects
    assert not house.call(GetSession(client_id="ann")).connected
    assert [house.call(PendingOutbox(), each).waiting for each in MQTT] == [0, 0]
    assert house.call(GetNode(node_id="b1")) is None


async def _set(event: asyncio.Event) -> None:
    event.set()


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", ""),
        ("name", "n" * 257),
        ("tenant", ""),
        ("tenant", "t" * 257),
        ("listen", "l" * 257),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("timeout_s", float("inf")),
        ("heartbeat_s", float("nan")),
        ("restart_grace_s", float("nan")),
        ("restart_grace_s", -1),
        ("page", -1),
        ("page", 10_001),
        ("session_expiry_s", 2**32),
        ("will_delay_s", -1),
        ("will_delay_s", 2**32),
        ("will_delays", {"a": -1}),
        ("will_delays", {"a": 2**32}),
        ("acl_default", "maybe"),
    ],
)
def test_a_setting_that_cannot_be_is_named(setting: str, value: object) -> None:
    settings: dict[str, Any] = {"name": "b1", "session_expiry_s": 60, setting: value}

    async def build() -> None:
        with pytest.raises(PluginInitError, match=setting):
            Broker(configuration(host="127.0.0.1", port=0, **settings))

    asyncio.run(build())
