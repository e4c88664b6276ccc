"""Whose groups could be heard: nobody is silent who spoke to a group that did not answer.

    with hearing.of(group, late_ms):
        now_ms = await context.now_ms(group)
    back_ms = hearing.back_ms(group, now_ms)
    silence_ms = hearing.silence_ms(group, timeout_ms)

A call that fails says that the group is away, and so does one that is answered late: a caller tries
again until its deadline, and what is answered then was asked before the group had a leader again.
It was away since it answered last, for all that is known. Only of one that is late every time the
time between two answers counts as heard, or nobody would ever be silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

LATE_PART = 4  #: of the time after which somebody is silent: an answer that takes it is late


@dataclass(slots=True)
class _Heard:
    """What is known of a group, in seconds of the loop."""

    answered: float | None = None  #: when it answered last
    late: bool = False  #: it did when it was asked last, and late
    missed: bool = False  #: it did not
    away: bool = False  #: one or the other since somebody asked since when it is back
    back_ms: int = 0  #: by its time
    absences: list[tuple[float, float]] = field(default_factory=list)


class Hearing:
    """Since when groups answer again, as far as one duty of one controller has seen."""

    def __init__(self) -> None:
        self._groups: dict[str, _Heard] = {}

    @contextmanager
    def of(self, group: str, late_ms: int) -> Iterator[None]:
        """What is asked of a group in here. From `late_ms` on it was away, as if it had failed."""
        heard = self._groups.setdefault(group, _Heard())
        time = asyncio.get_running_loop().time
        begun = time()
        answered = False
        try:
            yield
            answered = True
        finally:
            now = time()
            late = (now - begun) * 1_000 >= late_ms
            away = late or not answered
            if away or heard.missed:
                since = begun if heard.late or heard.answered is None else heard.answered
                while heard.absences and heard.absences[-1][0] >= since:
                    heard.absences.pop()  # it is the same one
                heard.absences.append((since, now))
            heard.away = heard.away or away
            heard.late, heard.missed = late and answered, not answered
            if answered:
                heard.answered = now

    def back_ms(self, group: str, now_ms: int) -> int:
        """Since when a group answers again that was away, 0 if it never was. It has just answered,
        last of all that it is `now_ms`."""
        heard = self._groups[group]
        if heard.away:
            heard.away = False
            heard.back_ms = now_ms
        return heard.back_ms

    def silence_ms(self, group: str, timeout_ms: int) -> int:
        """How long somebody has said nothing by now who could have been heard for the timeout: that
        and the absences since. However often the group is away, this comes to an end."""
        heard = self._groups[group]
        now = since = asyncio.get_running_loop().time()
        left = timeout_ms / 1_000
        for place in reversed(range(len(heard.absences))):
            begun, ended = heard.absences[place]
            if since - ended >= left:
                del heard.absences[: place + 1]  # nobody is silent by what was before
                break
            left -= max(0.0, since - ended)
            since = min(since, begun)
        return round((now - since + left) * 1_000)
