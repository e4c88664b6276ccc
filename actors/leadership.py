"""Gaining and losing the lead: noticed once a turn, told to the shell, awaited by followers. And by
callers: who comes to a replica that knows of no leader is told where it is as soon as there is one.
"""

from __future__ import annotations

import asyncio

from actors.hooks import Hooks
from actors.pending import hinted, refusal, refused
from actors.transport import ATTEND_SECONDS
from state_machines.errors import MetarayError, NotLeader

HELD_SECONDS = 0.1  #: at most until who asks for a leader is told that there is none
HELD_MAX = 10_000  #: callers held; the others are told at once


class Leadership:
    """What one replica knows of its own lead. Touched only from the event loop."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._changed = asyncio.Event()
        #: elections won
        self.won = 0
        #: the term in which this replica leads, 0 if it does not
        self.term = 0
        self._held: dict[asyncio.Future[bytes], NotLeader] = {}

    def notice(self, term: int, leader: str = "") -> bool:
        """This replica leads in `term` (0: it does not); the leader sits at `leader` (empty: it is
        not known). Whether an earlier lead is lost."""
        for reply in tuple(self._held) if leader else ():
            self._tell(reply, leader)
        if term == self.term:
            return False
        lost, self.term = self.term, term
        if lost:
            # failpoint: vote.lost
            self._hooks.leadership(lost, False)
        if term:
            self.won += 1
            # failpoint: vote.won
            self._hooks.leadership(term, True)
        self._changed.set()
        return bool(lost)

    async def attend(self) -> bool:
        """Wait while this replica leads, at most `ATTEND_SECONDS`; False if it does not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ATTEND_SECONDS
        while self.term and (left := deadline - loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                break
        return bool(self.term)

    def refused(self, error: MetarayError, leader: int, timeout_ms: int) -> asyncio.Future[bytes]:
        """The reply that says this error to a caller with so much time. While no leader is known
        (0), an election is mostly under way: the word to ask elsewhere waits for its end."""
        if leader or not isinstance(error, NotLeader) or len(self._held) >= HELD_MAX:
            return refused(error)
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[bytes] = loop.create_future()
        self._held[reply] = error
        seconds = min(HELD_SECONDS, timeout_ms / 2_000)
        timer = loop.call_later(seconds, self._tell, reply, "")

        def done(_: asyncio.Future[bytes]) -> None:
            timer.cancel()
            del self._held[reply]

        reply.add_done_callback(done)
        return reply

    def _tell(self, reply: asyncio.Future[bytes], leader: str) -> None:
        if not reply.done():
            error = hinted(self._held[reply], leader)
            reply.set_result(refusal(error, unproposed=True).SerializeToString())
