"""Real amqtt brokers and paho clients: sessions, subscriptions, retained messages outlive them."""

from __future__ import annotations

import socket

import pytest

from state_machines.metadata.config import ConfigValue, SetConfigs
from state_machines.mqtt.retained import GetRetained
from state_machines.mqtt.session import GetSession, OpenSession
from tests.integrations.harness import House


def test_a_session_outlives_its_broker(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    assert not ann.session_present
    assert ann.subscribe("to/ann", "all/+/x") == [True, True]
    house.stop("b1")
    ann.until_lost()

    broker = house.start("b1", broker.port)
    ann.connect()
    ann.until(lambda: len(ann.connects) == 2, "CONNACK")
    assert ann.session_present
    teller = house.client("teller", broker)
    teller.publish("to/ann", b"1")
    teller.publish("all/of/x", b"2")
    ann.until_received(("to/ann", b"1"), ("all/of/x", b"2"))


def test_a_message_for_an_absent_client_waits_for_it_also_after_a_restart(house: House) -> None:
    broker = house.start("b1")
    house.client("ann", broker).subscribe("to/ann")
    house.stop("b1")
    broker = house.start("b1")
    house.client("teller", broker).publish("to/ann", b"while you were out")
    ann = house.client("ann", broker)
    ann.until_received(("to/ann", b"while you were out"))


def test_pages_of_sessions_and_retained_messages_are_all_loaded(house: House) -> None:
    broker = house.start("b1")  # with pages of 3 rows
    everyone = [house.client(f"c{each}", broker) for each in range(8)]
    for each in everyone:
        each.subscribe(*(f"{each.name}/{topic}" for topic in range(5)))
        each.publish(f"state/{each.name}", b"here", retain=True)
    house.stop("b1")
    broker = house.start("b1")
    context = house.plugin("b1").context
    assert len(list(context.sessions)) == 8
    assert len(context.subscriptions) == 40
    assert set(context.retained_messages) == {f"state/{each.name}" for each in everyone}


def test_retained_messages_reach_new_subscribers_of_any_broker(house: House) -> None:
    first, second = house.start("b1"), house.start("b2")
    teller = house.client("teller", first)
    teller.publish("news", b"old", retain=True)
    teller.publish("news", b"new", retain=True)
    teller.publish("news/local", b"rain", retain=True)
    ann, bob = house.client("ann", second), house.client("bob", second)
    ann.subscribe("news/#")
    ann.until_received(("news", b"new"), ("news/local", b"rain"))
    assert all(each.retained for each in ann.received)
    bob.subscribe("news")
    bob.until_received(("news", b"new"))
    assert len(bob.received) == 1

    teller.publish("news", b"", retain=True)
    cid = house.client("cid", second)
    cid.subscribe("news")
    cid.subscribe("news/+")
    cid.until_received(("news/local", b"rain"))
    assert cid.payloads("news") == []


def test_a_deleted_retained_message_stays_deleted(house: House) -> None:
    broker = house.start("b1")
    teller = house.client("teller", broker)
    teller.publish("a", b"1", retain=True)
    teller.publish("b", b"2", retain=True)
    teller.publish("a", b"", retain=True)
    house.stop("b1")
    house.start("b1")
    assert set(house.plugin("b1").context.retained_messages) == {"b"}


def test_a_returning_client_is_not_sent_what_others_subscribed_to(house: House) -> None:
    broker = house.start("b1")
    bob, ann = house.client("bob", broker), house.client("ann", broker)
    bob.subscribe("news")
    ann.subscribe("to/ann")
    bob.publish("news", b"1", retain=True)
    ann.leave()
    ann.until_lost()
    ann.connect()
    ann.until(lambda: len(ann.connects) == 2, "CONNACK")
    bob.publish("to/ann", b"2")
    ann.until_received(("to/ann", b"2"))
    assert ann.payloads("news") == []


def test_unsubscribed_stays_unsubscribed(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.subscribe("a", "b")
    ann.unsubscribe("a", "never")
    house.stop("b1")
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.publish("a", b"1")
    ann.publish("b", b"2")
    ann.until_received(("b", b"2"))
    assert ann.payloads("a") == []


@pytest.mark.parametrize("leaves", [True, False])
def test_unsubscribed_elsewhere_stays_unsubscribed(house: House, leaves: bool) -> None:
    """Whether the other broker took the client over, or it had left (MQTT-3.10.4-2)."""
    first = house.start("b1", check_s=60 if leaves else 0.05)
    second = house.start("b2")
    ann = house.client("ann", first)
    ann.subscribe("a", "b")
    if leaves:
        ann.leave()
        house.until_closed("ann")
    elsewhere = house.client("ann", second)
    elsewhere.unsubscribe("a")
    if not leaves:
        house.until(lambda: not house.plugin("b1").context.subscriptions)
    elsewhere.leave()
    house.until_closed("ann")
    teller = house.client("teller", first)
    teller.publish("a", b"1")
    teller.publish("b", b"2")
    ann = house.client("ann", first)
    teller.publish("b", b"3")
    ann.until_received(("b", b"3"))
    assert ann.payloads("a") == []
    assert ann.payloads("b") == ([b"2", b"3"] if leaves else [b"3"])


def test_a_new_quality_of_service_replaces_the_old(house: House) -> None:
    broker = house.start("b1")
    ann = house.client("ann", broker)
    ann.subscribe("a", qos=0)
    ann.subscribe("a", qos=1)
    house.stop("b1")
    house.start("b1")
    assert [qos for _, qos in house.plugin("b1").context.subscriptions["a"]] == [1]


def test_a_tenants_settings_say_how_long_sessions_and_retained_messages_may_stay(
    house: House,
) -> None:
    def set_both(seconds: int) -> None:
        keys = ("session_expiry_max_s", "message_expiry_max_s")
        values = [ConfigValue(scope="tenant/default", key=key, number=seconds) for key in keys]
        house.call(SetConfigs(items=tuple(values)))

    def left_s() -> float:
        row = house.call(GetRetained(topic="state"))
        return float(row.expires_ms - house.service.now_ms) / 1_000

    set_both(30)
    broker = house.start("b1", session_expiry_s=3_600, rules_s=0.02)
    ann = house.client("ann", broker)
    ann.publish("state", b"1", retain=True)
    assert house.call(GetSession(client_id="ann")).expiry_s == 30
    assert left_s() == 30

    set_both(7_200)  # takes effect while the broker runs

    def is_kept_for_longer() -> bool:
        ann.publish("state", b"2", retain=True)
        return left_s() == 7_200

    house.until(is_kept_for_longer)
    house.client("bob", broker)
    assert house.call(GetSession(client_id="bob")).expiry_s == 3_600


def test_a_clean_session_leaves_nothing(house: House) -> None:
    broker = house.start("b1")
    house.client("ann", broker).subscribe("to/ann")
    again = house.client("ann", broker, persistent=False)
    assert not again.session_present
    again.subscribe("other")
    again.leave()
    again.until_lost()
    house.stop("b1")
    assert house.call(GetSession(client_id="ann")) is None
    broker = house.start("b1")
    assert not house.client("ann", broker).session_present
    assert not house.plugin("b1").context.subscriptions


def test_a_clean_session_is_not_resumed_by_a_connection_that_replaces_its_own(house: House) -> None:
    first, second = house.start("b1"), house.start("b2")
    clean = house.client("ann", first, persistent=False)
    clean.subscribe("to/ann")
    for broker in (first, second):
        lasting = house.client("ann", broker)
        assert lasting.session_present == (broker is second)
        clean.until_lost()
    house.client("teller", second).publish("to/ann", b"1")
    lasting.subscribe("mark")
    lasting.publish("mark", b"2")
    lasting.until_received(("mark", b"2"))
    assert lasting.payloads("to/ann") == []


def test_a_session_follows_its_client_to_another_broker(house: House) -> None:
    first, second = house.start("b1"), house.start("b2")
    ann = house.client("ann", first)
    ann.subscribe("to/ann")
    elsewhere = house.client("ann", second)
    assert elsewhere.session_present
    ann.until_lost()  # taken over: the first broker closes its connection
    house.client("teller", second).publish("to/ann", b"1")
    elsewhere.until_received(("to/ann", b"1"))
    session = house.call(GetSession(client_id="ann"))
    assert (session.broker, session.connected) == ("b2", True)


def test_a_write_after_the_takeover_is_fenced_and_closes_the_connection(house: House) -> None:
    broker = house.start("b1", check_s=60)
    ann = house.client("ann", broker)
    house.call(OpenSession(client_id="ann", broker="b2", expiry_s=60))
    assert ann.client.subscribe("late")[0] == 0
    ann.until_lost()


def test_a_second_connection_ends_the_first_and_gets_its_messages(house: House) -> None:
    broker = house.start("b1")
    first = house.client("ann", broker)
    first.subscribe("to/ann")
    second = house.client("ann", broker)
    first.until_lost()
    assert second.session_present
    house.client("teller", broker).publish("to/ann", b"1")
    second.until_received(("to/ann", b"1"))
    assert first.received == []


def test_a_broker_of_the_same_name_fences_the_first(house: House) -> None:
    first = house.start("b1")
    ann = house.client("ann", first)
    before, plugin = house.brokers["b1"], house.plugin("b1")
    house.start("b1")
    ann.until_lost()
    house.until(plugin.fenced.is_set)
    late = house.stranger("bob", first)
    late.connect()
    late.until(lambda: late.refusals, "refusal")
    house.run(before.shutdown())


def test_sessions_that_a_killed_broker_left_open_are_closed_by_the_next(house: House) -> None:
    house.call(OpenSession(client_id="ann", broker="b1", expiry_s=60))
    assert house.call(GetSession(client_id="ann")).connected
    broker = house.start("b1")
    house.until_closed("ann")
    assert house.client("ann", broker).session_present


def test_an_expired_session_is_forgotten_by_a_broker_that_still_has_it(house: House) -> None:
    broker = house.start("b1", session_expiry_s=30)
    ann = house.client("ann", broker)
    ann.subscribe("to/ann")
    ann.leave()
    house.until_closed("ann")
    house.later(31)
    assert house.call(GetSession(client_id="ann")) is None
    again = house.client("ann", broker)
    assert not again.session_present
    again.publish("to/ann", b"1")
    again.subscribe("mark")
    again.publish("mark", b"2")
    again.until_received(("mark", b"2"))
    assert again.payloads("to/ann") == []


def test_a_peer_that_says_nothing_valid_is_let_go(house: House) -> None:
    broker = house.start("b1")
    with socket.create_connection(("127.0.0.1", broker.port)) as peer:
        peer.settimeout(10)
        peer.sendall(b"\x10\x0d\x00\x04HTTP\x04\x02\x00\x3c\x00\x01a")
        assert peer.recv(64) == b""
    assert house.client("ann", broker).connects


def test_long_names_are_kept_whole(house: House) -> None:
    broker = house.start("b1")
    name, topic = "a" * 5_000, "t/" + "x" * 30_000
    ann = house.client(name, broker)
    assert ann.subscribe(topic) == [True]
    ann.publish(topic, b"1", retain=True)
    house.stop("b1")
    broker = house.start("b1")
    ann = house.client(name, broker)
    assert ann.session_present
    ann.publish(topic, b"2")
    ann.until_received((topic, b"2"))
    assert set(house.plugin("b1").context.retained_messages) == {topic}
