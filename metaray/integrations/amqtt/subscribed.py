"""The broker's subscriptions, known by client as well.

amqtt has one dictionary, by filter, and walks through all of it for what one client has. A broker
of thousands of sessions would do that at each CONNECT, and for each session it restores. So what
is set or removed goes through here, and each client's filters are remembered.
"""

from __future__ import annotations

from collections.abc import Sequence

from amqtt.broker import Broker
from amqtt.session import Session

from metaray.integrations.amqtt.store import Filter

Entry = tuple[Session, int]
"""A session that is subscribed, and its QoS."""


class Subscribed:
    """Who is subscribed to what: at most one entry a client and filter."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._filters: dict[str, set[str]] = {}  #: by client; none that is missing

    def entry(self, topic_filter: str, session: Session) -> Entry | None:
        """A session's subscription."""
        entries: list[Entry] = self._broker.subscriptions.get(topic_filter, [])
        return next((each for each in entries if each[0] is session), None)

    def set(self, topic_filter: str, client_id: str, entry: Entry | None) -> None:
        """Make this the client's subscription, None for none."""
        subscriptions = self._broker.subscriptions
        if topic_filter in self._filters.get(client_id, ()):
            entries = subscriptions.get(topic_filter, [])
            others = [each for each in entries if each[0].client_id != client_id]
            if others:
                subscriptions[topic_filter] = others
            else:
                subscriptions.pop(topic_filter, None)
            filters = self._filters[client_id]
            filters.remove(topic_filter)
            if not filters:
                del self._filters[client_id]
        if entry is not None:
            subscriptions.setdefault(topic_filter, []).append(entry)
            self.was_set(topic_filter, client_id)

    def was_set(self, topic_filter: str, client_id: str) -> None:
        """amqtt has set it itself."""
        self._filters.setdefault(client_id, set()).add(topic_filter)

    def restore(self, session: Session, filters: Sequence[Filter]) -> None:
        """Make these, and no others, the subscriptions of the client. Atomic: it never waits.

        What was authorised once is not asked again here: the user is not there to be asked.
        """
        self.forget(session.client_id)
        for each in filters:
            self.set(each.topic_filter, session.client_id, (session, each.qos))

    def forget(self, client_id: str) -> None:
        """Drop every subscription of the client."""
        for topic_filter in tuple(self._filters.get(client_id, ())):
            self.set(topic_filter, client_id, None)

    async def forget_session(self, session: Session) -> None:
        """Drop those of one session: its client may have come back, and have another."""
        for topic_filter in tuple(self._filters.get(session.client_id, ())):
            if self.entry(topic_filter, session) is not None:
                self.set(topic_filter, session.client_id, None)
