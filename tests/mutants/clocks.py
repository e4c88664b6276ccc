"""Bugs of a group's time, whatever the clocks of its nodes say."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CLOCKS: Final = (
    Mutant(
        "a-clock-that-leaps-takes-its-group-along",
        "law 7",
        "actors.stamps",
        "return min(max(slow, self._clock.now_ms()), fast), now",
        "return max(slow, self._clock.now_ms()), now",
    ),
    Mutant(
        "a-clock-that-is-set-back-stops-its-group",
        "law 7",
        "actors.stamps",
        "return min(max(slow, self._clock.now_ms()), fast), now",
        "return min(self._clock.now_ms(), fast), now",
    ),
    Mutant(
        "what-was-in-the-log-at-the-start-tells-the-time",
        "law 7",
        "actors.stamps",
        "if leads or index <= self._found:",
        "if leads:",
    ),
    Mutant(
        "the-next-leader-goes-by-its-own-clock",
        "law 7",
        "actors.stamps",
        "ms = float(reached_ms)",
        "ms = max(ms, reached_ms)",
    ),
    Mutant(
        "stamps-lose-what-is-less-than-a-millisecond",
        "law 7",
        "actors.stamps",
        "        self._last = ms, now\n",
        "        self._last = int(ms), now\n",
    ),
    Mutant(
        "a-leader-stamps-with-the-wall-clock",
        "law 7",
        "actors.replica",
        "batch_of(self.stamps.take(), [",
        "batch_of(self._clock.now_ms(), [",
    ),
    Mutant(
        "brokers-are-silent-by-the-controllers-clock",
        "law 7",
        "actors.duties.liveness",
        "plan_liveness(nodes, now_ms,",
        "plan_liveness(nodes, context.clock.now_ms(),",
    ),
)
