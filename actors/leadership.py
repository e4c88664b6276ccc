"""Gaining and losing the lead: noticed once a turn, told to the shell, awaited by followers."""

from __future__ import annotations

import asyncio

from actors.hooks import Hooks
from actors.transport import ATTEND_SECONDS


class Leadership:
    """What one replica knows of its own lead. Touched only from the event loop."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._changed = asyncio.Event()
        #: elections won
        self.won = 0
        #: the term in which this replica leads, 0 if it does not
        self.term = 0

    def notice(self, term: int) -> bool:
        """This replica leads in `term` (0: it does not). Whether an earlier lead is lost."""
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
