"""Stale queries of one process for one group, which any replica answers from what it has applied.

They have lanes of their own, so that reads which want different things share calls with their like,
however they come. Those that want a revision wait at a replica until it is applied there. As long
as the group is not known to have reached it that may take for ever: such a call takes no place of
others, and ends with the last of its callers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from actors.attempts import First
from actors.query_lane import QueryLane
from actors.queue_lane import CALL_MAX
from actors.shared_call import UnderWay, Waiting

AWAITING_MAX: Final = 64  #: calls under way of one lane, each for a revision of its own


class StaleLane(QueryLane):
    """From no revision on: such a read waits for nothing, also where a replica is cut off."""

    stale = True


class ReachedLane(StaleLane):
    """From revisions on that the group has reached: what they share goes by the latest of these."""

    def _revision_of(self, call: UnderWay) -> int:
        return max([each.min_revision for each in call.batch])


class AwaitingLane(ReachedLane):
    """From revisions on that the group is not known to have reached."""

    in_flight_max = AWAITING_MAX

    def _take(self) -> list[Waiting]:
        """Those that want what the first of them wants; or else, once that is reached, all whose
        revisions are. The others stay in their order."""
        waiting, reached = self._waiting, self._reached.revision
        taken: list[Waiting] = []
        left: deque[Waiting] = deque()
        for each in waiting:
            if each.gone:
                continue
            head = taken[0].min_revision if taken else each.min_revision
            alike = each.min_revision == head or max(each.min_revision, head) <= reached
            (taken if alike else left).append(each)
        waiting.clear()
        waiting.extend(left)
        self._crowd.fill(waiting, CALL_MAX)
        return taken

    def gave_up(self) -> None:
        """A caller waits no more."""
        super().gave_up()
        self._end_unwanted()

    def _let_go(self) -> None:
        super()._let_go()
        self._end_unwanted()

    def _end_unwanted(self) -> None:
        """A query does nothing, so nobody misses one that nobody waits for."""
        for call in tuple(self._under_way):
            if not _wanted(call):
                if call.first is not None:
                    call.first.answer.cancel()
                elif call.task is not None:
                    call.task.cancel()

    def _start(self, call: UnderWay, first: First | None) -> None:
        if _wanted(call):
            super()._start(call, first)
        else:
            self._left(call)


def _wanted(call: UnderWay) -> bool:
    return not all(each.gone for each in call.batch)
