"""A seat that says nothing for a while: whether it has much to do, or its process hangs.

The kernel acknowledges for a process that hangs, so its link stays up and nobody tells of it, while
the others of its group elect. So they are asked whether they lead, by a query without queries: who
answers that as of now has asked a majority. If one does, what was asked of the silent seat is asked
there. Where any replica may answer, the silent one is asked such a query itself: it hangs if it
does not answer that either. Otherwise it is waited for, and looked after again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from actors.within import within
from state_machines.wire import api_pb2 as api

DOUBT_SECONDS: Final = 1.0  #: without an answer, before a seat is looked after
AGAIN_SECONDS: Final = 0.5  #: from one look to the next
ASK_SECONDS: Final = 0.5  #: for the answer to such a query

Ask = Callable[[str, bytes], Awaitable[bytes]]
"""Queries a seat; may raise whatever the carrier raises."""


class Doubts:
    """Those of one lane about seats. Calls that wait for the same seat share a look."""

    def __init__(self, group: str, ask: Ask, leads: Callable[[str], None]) -> None:
        """`leads` is told of another seat that does."""
        self._group = group
        self._ask = ask
        self._leads = leads
        self._looks: dict[str, asyncio.Task[bool]] = {}

    def look(self, silent: str, others: Sequence[str], *, any_seat: bool) -> asyncio.Task[bool]:
        """Whether it is asked in vain."""
        task = self._looks.get(silent)
        if task is None:
            look = self._hangs(silent) if any_seat else self._another_leads(others)
            task = self._looks[silent] = asyncio.get_running_loop().create_task(look)
            task.add_done_callback(lambda _: self._looks.pop(silent))
        return task

    async def close(self) -> None:
        """End the looks under way."""
        looks = tuple(self._looks.values())
        for look in looks:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _hangs(self, silent: str) -> bool:
        return not await self._answers(silent, stale=True)

    async def _another_leads(self, others: Sequence[str]) -> bool:
        said = await asyncio.gather(*(self._answers(each, stale=False) for each in others))
        for seat, leads in zip(others, said, strict=True):
            if leads:
                self._leads(seat)
        return any(said)

    async def _answers(self, seat: str, *, stale: bool) -> bool:
        limit_ms = int(ASK_SECONDS * 1_000)
        asked = api.QueryRequest(group=self._group, stale=stale, timeout_ms=limit_ms)
        try:
            data = await within(self._ask(seat, asked.SerializeToString()), ASK_SECONDS)
            return api.Reply.FromString(data).code == api.OK
        except Exception:  # noqa: BLE001 - the carrier's own, too late, or no reply: no answer
            return False


async def unless_in_vain(
    answer: asyncio.Future[bytes],
    until: float,
    doubted: float,
    look: Callable[[], asyncio.Task[bool]],
) -> bytes:
    """What a seat answers until then (the loop's clock); from `doubted` on it is looked after.

    Raises TimeoutError, sooner where a look says that it is asked in vain. Nobody waits for the
    answer afterwards.
    """
    now = asyncio.get_running_loop().time
    looking: asyncio.Task[bool] | None = None
    try:
        while not answer.done():
            if looking is not None and looking.done():
                if looking.cancelled() or looking.result():
                    raise TimeoutError
                looking = None
            if now() >= until:
                raise TimeoutError
            if looking is None and now() >= doubted:
                looking, doubted = look(), now() + AGAIN_SECONDS
            waits = (answer,) if looking is None else (answer, looking)
            ends = min(until, doubted) if looking is None else until
            await asyncio.wait(waits, timeout=ends - now(), return_when=asyncio.FIRST_COMPLETED)
        if answer.cancelled():  # by its carrier: who asks is not
            raise TimeoutError
        return answer.result()
    finally:
        answer.cancel()
