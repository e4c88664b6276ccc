"""Whose groups could be heard: nobody is silent who spoke to a group that did not answer.

    with hearing.of(group, late_ms):
        now_ms = await context.now_ms(group)
    back_ms = hearing.back_ms(group, now_ms)

A call that fails says that the group is away, and so does one that is answered late: a caller tries
again until its deadline, and what is answered then was asked before the group had a leader again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

LATE_PART = 4  #: of the time after which somebody is silent: an answer that takes it is late


class Hearing:
    """Since when groups answer again, as far as one duty of one controller has seen."""

    def __init__(self) -> None:
        self._away: set[str] = set()  # groups that did not answer, or late, when asked last
        self._back_ms: dict[str, int] = {}  # by their time

    @contextmanager
    def of(self, group: str, late_ms: int) -> Iterator[None]:
        """What is asked of a group in here. From `late_ms` on it was away, as if it had failed."""
        loop = asyncio.get_running_loop()
        begun = loop.time()
        answered = False
        try:
            yield
            answered = (loop.time() - begun) * 1_000 < late_ms
        finally:
            if not answered:
                self._away.add(group)

    def back_ms(self, group: str, now_ms: int) -> int:
        """Since when a group answers again that was away, 0 if it never was. It has just answered,
        last of all that it is `now_ms`."""
        if group in self._away:
            self._away.discard(group)
            self._back_ms[group] = now_ms
        return self._back_ms.get(group, 0)
