"""The broker's retained messages, as amqtt holds them: what a new subscription is answered from."""

from __future__ import annotations

from amqtt.broker import RetainedApplicationMessage

from metaray.integrations.amqtt.store import Store


class RetainedMemory:
    """amqtt's dictionary of retained messages by topic, kept like metaray's rows.

    Loaded when the broker starts. Other brokers retain messages, too, so it is brought up to date
    for the topics that a new subscription may match.
    """

    def __init__(self, messages: dict[str, RetainedApplicationMessage]) -> None:
        self._messages = messages

    def put(self, topic: str, payload: bytes, qos: int) -> None:
        """Set a message; an empty one is none."""
        if payload:
            self._messages[topic] = RetainedApplicationMessage(None, topic, payload, qos)
        else:
            self._messages.pop(topic, None)

    async def load(self, store: Store, starts: str = "") -> None:
        """Bring all topics that start like this up to date. `$` topics are the broker's own."""
        found: set[str] = set()
        async for rows in store.retained(starts):
            for row in rows:
                self.put(row.topic, row.payload, row.qos)
                found.add(row.topic)
        for topic in tuple(self._messages):
            if topic.startswith(starts) and not topic.startswith("$") and topic not in found:
                del self._messages[topic]

    async def refresh(self, store: Store, topic_filter: str) -> None:
        """Bring what may match up to date: one topic, or all that start like the filter."""
        levels = topic_filter.split("/")
        wild = next((at for at, each in enumerate(levels) if each in ("+", "#")), None)
        if wild is None:
            row = await store.retained_at(topic_filter)
            if row is not None or not topic_filter.startswith("$"):
                self.put(topic_filter, row.payload if row else b"", row.qos if row else 0)
            return
        starts = "/".join(levels[:wild])  # "a/#" matches "a", too
        if wild and levels[wild] == "+":
            starts += "/"
        await self.load(store, starts)
