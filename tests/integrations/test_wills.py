"""Wills: after their delay, once, and only if the client neither said goodbye nor came back."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from metaray.demo.mqtt_member import Address
from metaray.integrations.amqtt import wills as saying
from metaray.integrations.amqtt.store import Filter, Opened
from state_machines.errors import Unavailable, Unknown
from state_machines.metadata.node import ExpireNodes
from state_machines.mqtt.properties import PublishProperties
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.retained import GetRetained
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.will import Outbox, PendingOutbox, SetWill
from state_machines.slots import SLOTS, slot_of
from tests.integrations.harness import WILL_DELAY_S, Client, House

WILL = ("wills/ann", b"ann is gone")


def watch(house: House, *brokers: str) -> list[Client]:
    watchers = []
    for name in brokers:
        watcher = house.client(f"watcher of {name}", house.start(name))
        watcher.subscribe("wills/#", f"mark/{name}")
        watchers.append(watcher)
    return watchers


def wills(house: House, *watchers: Client) -> list[tuple[str, bytes]]:
    """What has come, once nothing is on its way any more."""
    house.until_outbox_is_empty()
    return said(*watchers)


def said(*watchers: Client) -> list[tuple[str, bytes]]:
    """What has come of what was published by now."""
    for watcher in watchers:
        mark = f"mark/{watcher.broker.name}"
        count = len(watcher.payloads(mark)) + 1
        watcher.publish(mark, b"")
        watcher.until_count(mark, count)
    found = [(each.topic, each.payload) for watcher in watchers for each in watcher.received]
    return [each for each in found if each[0].startswith("wills")]


def test_a_will_comes_once_after_its_delay(house: House) -> None:
    first, second = watch(house, "b1", "b2")
    ann = house.client("ann", first.broker, will=WILL)
    ann.drop()
    house.until_closed("ann")
    house.later(WILL_DELAY_S - 1)
    assert wills(house, first, second) == []
    house.later(1)
    assert wills(house, first, second) == [WILL]
    house.later(WILL_DELAY_S)
    assert wills(house, first, second) == [WILL]


def test_no_will_after_a_goodbye(house: House) -> None:
    (watcher,) = watch(house, "b1")
    house.client("ann", watcher.broker, will=WILL).leave()
    house.until_closed("ann")
    house.later(10 * WILL_DELAY_S)
    assert wills(house, watcher) == []


def test_no_will_for_a_client_that_is_back_in_time_wherever(house: House) -> None:
    first, second = watch(house, "b1", "b2")
    house.client("ann", first.broker, will=WILL).drop()
    house.until_closed("ann")
    house.later(WILL_DELAY_S - 1)
    house.client("ann", second.broker)
    house.later(10 * WILL_DELAY_S)
    assert wills(house, first, second) == []


def test_no_will_for_a_client_that_was_taken_over(house: House) -> None:
    first, second = watch(house, "b1", "b2")
    ann = house.client("ann", first.broker, will=WILL)
    house.client("ann", second.broker, will=WILL)
    ann.until_lost()
    house.later(10 * WILL_DELAY_S)
    assert wills(house, first, second) == []


def test_the_delay_goes_by_client_id(house: House) -> None:
    broker = house.start("b1", will_delays={"ann*": 5, "*": 50})
    watcher = house.client("watcher", broker)
    watcher.subscribe("wills/#", "mark/b1")
    for name in ("ann", "bob"):
        house.client(name, broker, will=(f"wills/{name}", b"gone")).drop()
        house.until_closed(name)
    house.later(5)
    assert wills(house, watcher) == [("wills/ann", b"gone")]
    house.later(45)
    assert wills(house, watcher) == [("wills/ann", b"gone"), ("wills/bob", b"gone")]


def test_the_will_of_a_clean_session_does_not_wait(house: House) -> None:
    """A will waits for its delay or the end of its session, whichever is first."""
    (watcher,) = watch(house, "b1")
    house.client("ann", watcher.broker, will=WILL, persistent=False).drop()
    house.until_closed("ann")
    house.later(0)
    assert wills(house, watcher) == [WILL]


def retaining(house: House, name: str, broker: Address, payload: bytes) -> Client:
    """A connected client with a will that is to be retained."""
    client = house.stranger(name, broker)
    client.client.will_set(f"wills/{name}", payload, qos=1, retain=True)
    client.connect()
    client.until(lambda: client.connects, "CONNACK")
    return client


def test_a_retained_will_is_retained(house: House) -> None:
    (watcher,) = watch(house, "b1")
    retaining(house, "ann", watcher.broker, WILL[1]).drop()
    house.until_closed("ann")
    house.later(WILL_DELAY_S)
    assert wills(house, watcher) == [WILL]
    house.stop("b1")
    fresh = house.client("fresh", house.start("b1"))
    fresh.subscribe("wills/+")
    fresh.until_received(WILL)


def test_what_a_client_has_retained_since_its_will_fired_stays(house: House) -> None:
    """With no delay it fires when the connection is lost, or taken over; it is said later."""
    first, second = house.start("b1", outbox_s=60, will_delay_s=0), house.start("b2")
    watcher = house.client("watcher of b2", second)
    watcher.subscribe("wills/#", "mark/b2")

    def connect() -> Client:
        ann = retaining(house, "ann", first, WILL[1])
        ann.publish(WILL[0], b"here", retain=True)
        return ann

    def retained() -> bytes:
        assert (
            house.plugin("b2").context.retained_messages[WILL[0]].data
            == house.call(GetRetained(topic=WILL[0])).payload
        )
        return bytes(house.call(GetRetained(topic=WILL[0])).payload)

    connect()
    house.later(10)
    ann = connect()
    house.later(10)  # the other broker takes it
    assert wills(house, watcher).count(WILL) == 1
    assert retained() == b"here"
    ann.drop()
    house.until_closed("ann")
    house.later(10)
    assert wills(house, watcher).count(WILL) == 2
    assert retained() == WILL[1]


def test_a_retained_will_of_another_protocol_keeps_what_its_client_said_of_it(
    house: House,
) -> None:
    """A broker that speaks MQTT 5 set it; this one, which does not, publishes it."""
    said = PublishProperties(content_type="text/plain", response_topic="to/ann")
    (watcher,) = watch(house, "b1")
    opened = house.call(OpenSession(client_id="ann", broker="elsewhere"))
    house.call(
        SetWill(
            client_id="ann",
            epoch=opened.epoch,
            topic=WILL[0],
            payload=WILL[1],
            retain=True,
            expiry_s=60,
            properties=said,
        )
    )
    house.call(CloseSession(client_id="ann", epoch=opened.epoch))
    house.later(20)
    assert wills(house, watcher) == [WILL]
    kept = house.call(GetRetained(topic=WILL[0]))
    assert kept.properties == said
    assert kept.expires_ms == house.service.now_ms + 40_000


def test_the_will_of_a_client_whose_broker_was_killed_comes_after_its_restart(house: House) -> None:
    ann = house.client("ann", house.start("b1"), will=WILL)
    house.abandon("b1")
    ann.until_lost()
    assert house.call(GetSession(client_id="ann")).connected  # nobody told the service
    (watcher,) = watch(house, "b1")
    house.until_closed("ann")
    house.later(WILL_DELAY_S)
    assert wills(house, watcher) == [WILL]


def test_no_will_for_a_client_that_is_back_soon_after_its_broker_was_killed(house: House) -> None:
    ann = house.client("ann", house.start("b1"), will=WILL)
    house.abandon("b1")
    ann.until_lost()
    broker = house.start("b1", restart_grace_s=60)
    watcher = house.client("watcher", broker)
    watcher.subscribe("wills/#", "mark/b1")
    house.client("ann", broker, will=WILL)
    house.later(10 * WILL_DELAY_S)
    assert wills(house, watcher) == []


def test_a_will_whose_acknowledgement_was_lost_is_not_said_again(house: House) -> None:
    (watcher,) = watch(house, "b1")
    store = house.plugin("b1")._store
    assert store is not None
    acknowledge, lost = store.ack_wills, threading.Event()

    async def lose(group: str, claimed: Sequence[Outbox]) -> None:
        lost.set()
        store.ack_wills = acknowledge  # type: ignore[method-assign]
        raise Unknown("the answer was lost")

    store.ack_wills = lose  # type: ignore[method-assign]
    house.client("ann", watcher.broker, will=WILL).drop()
    house.until_closed("ann")
    house.later(WILL_DELAY_S)
    house.until(lost.is_set)
    house.later(10)  # the claim runs out
    assert wills(house, watcher) == [WILL]


def test_a_group_that_does_not_answer_holds_up_no_wills_of_others(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.split()
    house.patience_s = 60.0
    watcher = house.client("bob", house.start("b1"))
    watcher.subscribe("wills/#")
    house.client("ann", watcher.broker, will=WILL).drop()
    house.until_closed("ann")
    answers, hung, query = asyncio.Event(), threading.Event(), house.service.query

    async def hang(seat: str, request: bytes) -> bytes:
        if seat.startswith("mqtt-0"):
            hung.set()
            await answers.wait()
        return await query(seat, request)

    with monkeypatch.context() as patched:
        patched.setattr(house.service, "query", hang)
        house.until(hung.is_set)
        house.service.now_ms += WILL_DELAY_S * 1_000
        house.call(Pulse(controller_epoch=1), "mqtt-1")
        try:
            watcher.until_received(WILL)
        finally:
            house._loop.call_soon_threadsafe(answers.set)


def hinder(house: House, fails: bool) -> Callable[[], None]:
    """Keep ann's will from being retained by broker b1 until what this returns is called."""
    store = house.plugin("b1")._store
    assert store is not None
    retain = store.retain_will

    async def hindered(will: Outbox) -> None:
        if will.client_id == "ann":
            if fails:
                raise Unavailable("no leader just now")
            await asyncio.Event().wait()
        await retain(will)

    store.retain_will = hindered  # type: ignore[method-assign]
    return lambda: setattr(store, "retain_will", retain)


def die(house: House, broker: Address, *names: str) -> None:
    """The retained wills of these clients fire."""
    for name in names:
        retaining(house, name, broker, b"gone").drop()
        house.until_closed(name)
    house.later(WILL_DELAY_S)


def waiting(house: House) -> int:
    return int(house.call(PendingOutbox(), "mqtt-0").waiting)


@pytest.mark.parametrize("fails", [True, False])
def test_a_will_that_cannot_be_retained_holds_up_no_other(
    house: House, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(saying, "SAY_SECONDS", 0.3)
    (watcher,) = watch(house, "b1")
    restore = hinder(house, fails)
    die(house, watcher.broker, "ann", "cid")
    house.until(lambda: waiting(house) == 1)
    assert said(watcher) == [("wills/cid", b"gone")]
    restore()
    house.later(10)  # the claim runs out
    assert wills(house, watcher) == [("wills/cid", b"gone"), ("wills/ann", b"gone")]


def test_wills_that_were_said_are_acknowledged_by_a_broker_that_stops(house: House) -> None:
    (watcher,) = watch(house, "b1")
    hinder(house, fails=False)
    die(house, watcher.broker, "ann", "cid")
    watcher.until_count("wills/cid", 1)
    assert waiting(house) == 2
    house.stop("b1")
    assert waiting(house) == 1


def test_a_will_is_not_said_when_its_claim_may_be_over(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    (watcher,) = watch(house, "b1")
    store = house.plugin("b1")._store
    assert store is not None
    claim, claimed = store.claim_wills, list[int]()

    async def spy(group: str, limit: int) -> tuple[Outbox, ...]:
        found = await claim(group, limit)
        claimed.append(len(found))
        return found

    store.claim_wills = spy  # type: ignore[method-assign]
    with monkeypatch.context() as patched:
        patched.setattr(saying, "SAY_SECONDS", 0)
        house.client("ann", watcher.broker, will=WILL).drop()
        house.until_closed("ann")
        house.later(WILL_DELAY_S)
        house.until(lambda: 0 in claimed)  # what was claimed before that is done with
        assert sum(claimed) == 1
        assert said(watcher) == []
    house.later(10)
    assert wills(house, watcher) == [WILL]


@pytest.mark.parametrize("where", ["before", "after", "unknown", "clean"])
def test_a_connection_that_is_refused_leaves_its_client_a_will(house: House, where: str) -> None:
    """Whatever failed: the session's opening, reading its filters, or its answer was lost."""
    (watcher,) = watch(house, "b1")
    house.client("ann", watcher.broker, will=WILL).drop()
    house.until_closed("ann")
    store = house.plugin("b1")._store
    assert store is not None
    opens, again = store.open_session, (WILL[0], b"ann is gone again")

    async def fail(*asked: Any, **_: Any) -> Opened:
        store.open_session = opens  # type: ignore[method-assign]
        if where == "before":
            raise Unavailable("no leader just now")
        opened = await opens(*asked)
        if where != "after":
            raise Unknown("the answer was lost")
        return opened

    async def unread(client_id: str) -> tuple[Filter, ...]:
        raise Unavailable("no leader just now")

    store.open_session = fail  # type: ignore[method-assign]
    store.filters = unread  # type: ignore[method-assign]
    ann = house.stranger("ann", watcher.broker, will=again, persistent=where != "clean")
    ann.connect()
    ann.until(lambda: ann.reasons, "CONNACK")
    house.until_closed("ann")
    house.later(WILL_DELAY_S)
    # A clean session ends the one before, with its will; it has not begun for its client itself.
    assert wills(house, watcher) == [WILL if where in ("before", "clean") else again]


def test_wills_of_all_groups_come_and_each_is_acknowledged_in_its_own(house: House) -> None:
    """Their outboxes give the same numbers."""
    house.split()
    (watcher,) = watch(house, "b1")
    names = ["bob", "ann"]
    assert [slot_of(("default", name)) < SLOTS // 2 for name in names] == [True, False]
    for name in names:
        house.client(name, watcher.broker, will=(f"wills/{name}", b"gone")).drop()
        house.until_closed(name)
    house.later(WILL_DELAY_S)
    assert sorted(wills(house, watcher)) == [("wills/ann", b"gone"), ("wills/bob", b"gone")]


def test_a_client_that_falls_silent_is_given_up(house: House) -> None:
    """It neither closes its socket nor answers: after 1.5 times its keep alive its will counts."""
    (watcher,) = watch(house, "b1")
    name, topic, payload = b"ann", WILL[0].encode(), WILL[1]
    body = b"\x00\x04MQTT\x04\x0e\x00\x01"  # a will at QoS 1, clean session, keep alive of a second
    for each in (name, topic, payload):
        body += len(each).to_bytes(2, "big") + each
    with socket.create_connection(("127.0.0.1", watcher.broker.port)) as peer:
        peer.settimeout(10)
        peer.sendall(b"\x10" + bytes([len(body)]) + body)
        assert peer.recv(4) == b"\x20\x02\x00\x00"
        assert peer.recv(4) == b""
    house.until_closed("ann")
    house.later(0)
    assert wills(house, watcher) == [WILL]


def test_a_client_without_a_keep_alive_is_never_given_up(house: House) -> None:
    """Nor where the broker's settings give all others some more time (MQTT 3.1.1, 3.1.2.10)."""
    broker = house.start("b1")
    house.brokers["b1"].config.timeout_disconnect_delay = 5
    with socket.create_connection(("127.0.0.1", broker.port)) as peer:
        peer.settimeout(10)
        peer.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03ann")
        assert peer.recv(4) == b"\x20\x02\x00\x00"
        assert house.plugin("b1").context.get_session("ann").keep_alive == 0


def test_a_will_waits_for_a_broker(house: House) -> None:
    (watcher,) = watch(house, "b1")
    house.client("ann", watcher.broker, will=WILL).drop()
    house.until_closed("ann")
    house.stop("b1")
    house.later(WILL_DELAY_S)
    watcher.lost = True
    broker = house.start("b1", port=watcher.broker.port)
    again = house.client("watcher of b1", broker)
    again.until_received(WILL)
    house.until_outbox_is_empty()
    assert again.payloads(WILL[0]) == [WILL[1]]


def refuse_sessions(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """The groups that have sessions carry out nothing."""
    propose = house.service.propose

    async def refuse(seat: str, request: bytes) -> bytes:
        if seat.startswith("mqtt-"):
            raise ConnectionError("no leader just now")
        return await propose(seat, request)

    monkeypatch.setattr(house.service, "propose", refuse)


@pytest.mark.parametrize("killed", [True, False])
def test_the_will_of_a_client_whose_broker_is_gone_comes_from_another(
    house: House, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Also of one that stopped in order, but could not close its sessions in time."""
    house.patience_s = 0.5
    ann = house.client("ann", house.start("b1"), will=WILL)
    (watcher,) = watch(house, "b2")
    if killed:
        house.abandon("b1")
    else:
        with monkeypatch.context() as patched:
            refuse_sessions(house, patched)
            house.stop("b1")
    ann.until_lost()
    expire = ExpireNodes(controller_epoch=1, timeout_ms=30_000)
    assert house.call(expire) == ()
    house.service.now_ms += 30_001
    house.beat("b2")
    assert house.call(expire) == ("b1",)
    assert house.close_held() == 1
    house.later(WILL_DELAY_S)
    house.later(2)  # wills of others are taken once their own broker had time to
    assert wills(house, watcher) == [WILL]
