"""What a broker knows to be retained, brought up to date by several who subscribe at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import wraps
from typing import Any, NamedTuple

import pytest
from amqtt.broker import RetainedApplicationMessage

from metaray.integrations.amqtt.memory import RetainedMemory

TURNS = 20  #: of the loop: whoever can go on has


class Row(NamedTuple):
    topic: str
    payload: bytes
    qos: int = 0


class Store:
    """Answers in two pages. Each is read at once, and on its way until it is told to come."""

    def __init__(self) -> None:
        self.rows = {"a": b"1", "z": b"1"}
        self.coming: list[asyncio.Event] = []

    async def retained(self, starts: str = "") -> AsyncIterator[tuple[Row, ...]]:
        for first in (True, False):
            found = sorted(each for each in self.rows.items() if (each[0] < "m") is first)
            yield await self._comes(tuple([Row(*each) for each in found]))

    async def retained_at(self, topic: str) -> Row | None:
        found = [Row(topic, self.rows[topic])] if topic in self.rows else []
        return next(iter(await self._comes(tuple(found))), None)

    async def _comes(self, rows: tuple[Row, ...]) -> tuple[Row, ...]:
        self.coming.append(asyncio.Event())
        await self.coming[-1].wait()
        return rows


class Broker:
    """The memory and the store, and what clients retain here."""

    def __init__(self) -> None:
        self.store = Store()
        self.messages: dict[str, Any] = {}
        self.memory = RetainedMemory(self.messages)

    def retain(self, topic: str, payload: bytes) -> None:
        """As the plugin and amqtt do, one after the other."""
        if payload:
            self.store.rows[topic] = payload
            self.messages[topic] = RetainedApplicationMessage(None, topic, payload, 0)
        else:
            del self.store.rows[topic], self.messages[topic]

    async def subscribe(self, topic_filter: str = "#") -> dict[str, bytes]:
        """What a new subscription is answered with: amqtt looks without waiting."""
        store: Any = self.store
        await self.memory.refresh(store, topic_filter)
        return {topic: each.data for topic, each in self.messages.items()}

    async def begins(self, topic_filter: str = "#") -> asyncio.Task[dict[str, bytes]]:
        task = asyncio.create_task(self.subscribe(topic_filter))
        await turns()
        return task

    async def comes(self, *pages: int) -> None:
        """These arrive, by the order in which they were read."""
        for each in pages:
            self.store.coming[each].set()
            await turns()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def on_a_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        work: Any = test()
        asyncio.run(asyncio.wait_for(work, 5))

    return run


@on_a_loop
async def test_what_is_retained_before_one_subscribes_is_sent_whoever_asked_before() -> None:
    broker = Broker()
    first = await broker.begins()
    broker.retain("b", b"new")
    second = await broker.begins()
    await broker.comes(0, 1)  # the second pages of both are on their way
    await broker.comes(2)
    assert await first
    await broker.comes(3)
    assert await second == {"a": b"1", "b": b"new", "z": b"1"}


@on_a_loop
async def test_what_was_read_before_one_subscribes_is_not_sent() -> None:
    """Another broker has changed one message since and removed one."""
    broker = Broker()
    first = await broker.begins()
    broker.store.rows = {"a": b"2", "z": b"2"}
    second = await broker.begins()
    await broker.comes(1)
    broker.store.rows["b"] = b"late"
    await broker.comes(0)
    await broker.comes(2)
    assert await second == {"a": b"2", "z": b"2"}
    await broker.comes(3)
    await first


@on_a_loop
async def test_what_was_removed_before_one_subscribes_is_not_sent() -> None:
    broker = Broker()
    first = await broker.begins()
    del broker.store.rows["a"]
    second = await broker.begins()
    await broker.comes(0, 1)
    await broker.comes(2, 3)
    assert await second == {"z": b"1"}
    await first


@on_a_loop
async def test_what_is_said_here_while_others_are_asked_for_is_the_newest() -> None:
    broker = Broker()
    broker.retain("c", b"old")
    broker.retain("d", b"old")
    both = [await broker.begins("#"), await broker.begins("c")]
    broker.retain("b", b"new")
    broker.retain("c", b"new")
    broker.retain("d", b"")
    await broker.comes(1, 0, 2)
    for each in both:
        assert (await each)["c"] == b"new"
    assert await both[0] == {"a": b"1", "b": b"new", "c": b"new", "z": b"1"}


@pytest.mark.parametrize("topic_filter", ["a", "b", "$SYS/a"])
def test_one_topic_is_asked_for_alone(topic_filter: str) -> None:
    async def asked() -> dict[str, bytes]:
        broker = Broker()
        broker.messages["$SYS/a"] = RetainedApplicationMessage(None, "$SYS/a", b"ours", 0)
        task = await broker.begins(topic_filter)
        await broker.comes(0)
        return await task

    found = asyncio.run(asked())
    assert found.pop("$SYS/a") == b"ours"
    assert found == ({"a": b"1"} if topic_filter == "a" else {})
