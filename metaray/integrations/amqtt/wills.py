"""Wills that have fired: out of an outbox of metaray, to whoever has subscribed here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from metaray.integrations.amqtt.store import LEASE_MS, Store
from state_machines.errors import Unknown
from state_machines.mqtt.will import Outbox

CLAIMED: Final = 100  #: wills claimed from an outbox at once
SAY_SECONDS: Final = LEASE_MS / 2_000  #: for them; what is left of the claim is to acknowledge them

Key = tuple[str, int, str, int]
"""What a will is known by: group, number, client, time."""


class Wills:
    """Publishes what the outboxes hold, then acknowledges it: once, unless we die in between."""

    def __init__(
        self,
        refresh: Callable[[str], Coroutine[Any, Any, None]],
        broadcast: Callable[[str, bytes, int], Coroutine[Any, Any, None]],
    ) -> None:
        self._refresh = refresh  #: brings what the broker knows to be retained up to date
        self._broadcast = broadcast
        self._said: set[Key] = set()  #: published and not yet acknowledged

    async def publish(self, store: Store, group: str) -> None:
        """Publish what the outbox of a group holds.

        All that was claimed is said at the same time, so that one whose topic is in a group that
        does not answer holds up no other; it is claimed again. So is a will whose acknowledgement
        failed: it is not said again.
        """
        while await store.has_wills(group):
            until = asyncio.get_running_loop().time() + SAY_SECONDS
            claimed = await store.claim_wills(group, CLAIMED)
            if not claimed:
                return  # other brokers are at it, or we were, and our claim has yet to run out
            wills = {
                (group, each.outbox_id, each.client_id, each.fired_ms): each for each in claimed
            }
            try:
                outcomes = await asyncio.gather(
                    *(self._say(store, key, will, until) for key, will in wills.items()),
                    return_exceptions=True,
                )
            finally:
                said = [will for key, will in wills.items() if key in self._said]
                if said:
                    await store.ack_wills(group, said)
                    self._said.difference_update(wills)
            for outcome in outcomes:
                if outcome is not None:
                    raise outcome

    async def _say(self, store: Store, key: Key, will: Outbox, until: float) -> None:
        """Publish a will, unless it takes until another broker may claim it."""
        if key in self._said or asyncio.get_running_loop().time() >= until:
            return
        if will.retain:
            try:
                async with asyncio.timeout_at(until):
                    await store.retain_will(will)
                    await self._refresh(will.topic)
            except TimeoutError:
                raise Unknown(f"a will was not retained within {SAY_SECONDS} s") from None
        await self._broadcast(will.topic, will.payload, will.qos)
        self._said.add(key)
