"""Whom a client asks beside the leader, so that reads need no round of its own (`vouching.py`).

Always the same voter as long as it vouches in time. When it does not, the leader is asked for a
round of its own, the next seat is the partner, and for `LEFT_SECONDS` there is none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from state_machines.wire import api_pb2 as api

VOUCH_SECONDS: Final = 0.02  #: waited for it, from when the leader has answered
LEFT_SECONDS: Final = 0.5


class Partner:
    """The partner of one lane's reads."""

    def __init__(self, group: str, turn: int) -> None:
        #: what it is asked: an encoded `api.QueryRequest`
        self.request = api.QueryRequest(group=group, vouch=True).SerializeToString()
        self._turn = turn
        self._from = 0.0  # when there is one again

    def choose(self, seats: Sequence[str], leader: str, now: float) -> str:
        """A seat that is not the leader's; empty for none. `now` in seconds."""
        if now < self._from or leader not in seats or len(seats) == 1:
            return ""
        others = [each for each in seats if each != leader]
        return others[self._turn % len(others)]

    def has_vouched(self, reply: api.Reply, vouch: asyncio.Future[bytes]) -> bool:
        """Whether it has made the leader's answer good by now."""
        if not reply.partners or not vouch.done() or vouch.cancelled() or vouch.exception():
            return False
        try:
            said = api.Reply.FromString(vouch.result())
        except DecodeError:
            return False
        return said.replica in reply.partners and said.term <= reply.term

    async def vouches(self, reply: api.Reply, vouch: asyncio.Future[bytes]) -> bool:
        """Whether it makes the leader's answer good."""
        if reply.partners:
            if not vouch.done():
                await asyncio.wait((vouch,), timeout=VOUCH_SECONDS)
            if self.has_vouched(reply, vouch):
                return True
        now = asyncio.get_running_loop().time()
        if reply.partners and now >= self._from:  # else another call has said so already
            self._turn += 1
        self._from = now + LEFT_SECONDS
        return not reply.partners
