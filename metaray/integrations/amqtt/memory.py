"""The broker's retained messages, as amqtt holds them: what a new subscription is answered from."""

from __future__ import annotations

from itertools import count

from amqtt.broker import RetainedApplicationMessage

from metaray.integrations.amqtt.store import Store
from state_machines.mqtt.retained import Retained


class _Read(RetainedApplicationMessage):  # type: ignore[misc]  # amqtt is not typed for us
    """A message that a reading has found, and which reading that was, by number."""

    __slots__ = ("reading",)

    def __init__(self, row: Retained, reading: int) -> None:
        super().__init__(None, row.topic, row.payload, row.qos)
        self.reading = reading


class RetainedMemory:
    """amqtt's dictionary of retained messages by topic, kept like metaray's rows.

    Loaded when the broker starts. Other brokers retain messages, too, so it is brought up to date
    for the topics that a new subscription may match. That takes a page after the other, and many
    may be at it: what clients of this broker retain or remove meanwhile is newer than what is read,
    and so is what a reading finds that began later. Else who has just subscribed would be sent what
    was there before, or nothing.
    """

    def __init__(self, messages: dict[str, RetainedApplicationMessage]) -> None:
        self._messages = messages
        self._readings = count(1)

    async def load(self, store: Store, starts: str = "") -> None:
        """Bring all topics that start like this up to date. `$` topics are the broker's own."""
        reading, before = next(self._readings), dict(self._messages)
        found: set[str] = set()
        async for rows in store.retained(starts):
            for row in rows:
                self._set(reading, row.topic, before.get(row.topic), row)
                found.add(row.topic)
        for topic in tuple(self._messages):
            if topic.startswith(starts) and not topic.startswith("$") and topic not in found:
                self._set(reading, topic, before.get(topic), None)

    async def refresh(self, store: Store, topic_filter: str) -> None:
        """Bring what may match up to date: one topic, or all that start like the filter."""
        levels = topic_filter.split("/")
        wild = next((at for at, each in enumerate(levels) if each in ("+", "#")), None)
        if wild is None:
            reading, before = next(self._readings), self._messages.get(topic_filter)
            row = await store.retained_at(topic_filter)
            if row is not None or not topic_filter.startswith("$"):
                self._set(reading, topic_filter, before, row)
            return
        starts = "/".join(levels[:wild])  # "a/#" matches "a", too
        if wild and levels[wild] == "+":
            starts += "/"
        await self.load(store, starts)

    def _set(
        self,
        reading: int,
        topic: str,
        before: RetainedApplicationMessage | None,
        row: Retained | None,
    ) -> None:
        """What a reading says of a topic, unless it has changed since by whoever knows better."""
        now = self._messages.get(topic)
        if now is not before and not (isinstance(now, _Read) and now.reading < reading):
            return
        if row is not None:
            self._messages[topic] = _Read(row, reading)
        elif now is not None:
            del self._messages[topic]
