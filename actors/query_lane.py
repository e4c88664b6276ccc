"""Queries of one process for one group: nothing to remember, so a retry is a new query.

What the leader answers is as of now if another seat vouches for it, who is asked at the same time
(`partner.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from random import Random

from actors.attempts import Attempt, Groups
from actors.partner import VOUCH_SECONDS, Partner
from actors.queue_lane import QueueLane
from actors.shared_call import Reached, Trace, UnderWay, resolve
from state_machines.wire import api_pb2 as api

HALVED_FROM = 32  #: queries that wait while no call is under way; a call of them costs less


class _Query:
    """How a call of queries is sent, and who was asked to vouch for the last answer."""

    __slots__ = ("_call", "_lane", "alone", "trace", "vouch")

    def __init__(self, lane: QueryLane, call: UnderWay) -> None:
        self._lane = lane
        self._call = call
        self.alone = False  # nobody vouches for it any more
        self.trace = Trace(command=False)
        self.vouch: asyncio.Future[bytes] | None = None

    def __call__(self, seat: str, timeout_ms: int) -> Awaitable[bytes]:
        """Send it."""
        self.end()  # of an attempt in vain
        lane = self._lane
        partner = "" if lane.stale or self.alone else lane.partner_beside(seat)
        answer = lane.query(seat, self._call, timeout_ms, vouched=bool(partner))
        if partner:
            self.vouch = lane.ask_to_vouch(partner)
        return answer

    def end(self) -> None:
        """Nobody waits for the vouch any more."""
        if self.vouch is not None:
            self.vouch.cancel()
            self.vouch = None


class QueryLane(QueueLane):
    """Queries, several calls under way."""

    halved_from = HALVED_FROM
    stale = False  #: any replica may answer, from what it has applied

    def __init__(
        self,
        group: str,
        groups: Groups,
        rng: Random,
        unheard: Callable[[str], None],
        reached: Reached,
    ) -> None:
        super().__init__(group, groups, rng, unheard, reached)
        self._partner = Partner(group, rng.randrange(2))

    async def close(self) -> None:
        """End the calls under way, and who was asked to vouch for them."""
        for call in self._under_way:
            if call.made is not None:
                call.made.end()
        await super().close()

    def query(
        self, seat: str, call: UnderWay, timeout_ms: int, *, vouched: bool
    ) -> Awaitable[bytes]:
        """Send what a call says to this seat, which has so long."""
        request = api.QueryRequest(
            group=self._group,
            stale=self.stale,
            min_revision=self._revision_of(call),
            timeout_ms=timeout_ms,
            queries=call.commands,
            vouched=vouched,
            columns=True,
        )
        return self._groups.query(seat, request.SerializeToString())

    def _revision_of(self, call: UnderWay) -> int:
        return 0

    def partner_beside(self, seat: str) -> str:
        """Who could vouch for what this seat says; empty for nobody."""
        if seat != self._leader:
            return ""
        return self._partner.choose(self._groups.seats(self._group), seat, self._loop.time())

    def ask_to_vouch(self, partner: str) -> asyncio.Future[bytes]:
        """Ask that seat."""
        vouch = asyncio.ensure_future(self._groups.query(partner, self._partner.request))
        vouch.add_done_callback(_looked_at)
        return vouch

    def _first(self, call: UnderWay) -> Attempt | None:
        made = call.made = _Query(self, call)
        return self._try_first(made, call.deadline, made.trace, any_seat=self.stale)

    def _answered(self, call: UnderWay, _: asyncio.Future[bytes]) -> None:
        vouch, first = call.made.vouch, call.first
        if vouch is None or vouch.done() or first is None or not first.good:
            super()._answered(call, _)
            return
        # The leader was quicker than who vouches for it, who has a moment more.
        late = self._loop.call_later(VOUCH_SECONDS, vouch.cancel)
        vouch.add_done_callback(lambda _: late.cancel())
        vouch.add_done_callback(partial(super()._answered, call))

    def _settle(self, call: UnderWay, reply: api.Reply, seat: str) -> bool:
        made: _Query = call.made
        if made.vouch is not None and not self._partner.has_vouched(reply, made.vouch):
            return False
        self._heard(seat, any_seat=self.stale)
        self._tell(call, reply)
        return True

    async def _carry_out(self, call: UnderWay, first: Attempt | None) -> None:
        made: _Query = call.made
        try:
            while True:
                reply = await self._attempts(made, call.deadline, made.trace, self.stale, first)
                if made.vouch is None or await self._partner.vouches(reply, made.vouch):
                    break
                made.alone, first = True, None
        finally:
            made.end()
        self._tell(call, reply)

    def _tell(self, call: UnderWay, reply: api.Reply) -> None:
        self._reached.heard(reply.revision)
        self._back(resolve(call.batch, call.commands, reply))


def _looked_at(vouch: asyncio.Future[bytes]) -> None:
    """Who answered first may have ended the call: nobody misses what became of this."""
    if not vouch.cancelled():
        vouch.exception()
