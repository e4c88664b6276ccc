"""A number that only grows and that not every reply tells: a revision, an epoch.

A client that was not answered has perhaps made a new number that nobody has seen. Of such a number
it is known that it is at least one more than the last, at most one less than the next, and not one
of those that others expected in vain. That is enough to refuse whatever could not have been.
"""

from __future__ import annotations

from typing import Final

Growing = tuple[int, bool, tuple[int, ...]]
"""The least it can be, whether it is exactly that, and what above the least it is not, sorted."""

NONE_YET: Final[Growing] = (0, True, ())


def give(before: Growing, number: object) -> Growing | None:
    """The next number is this one; None if it is not beyond the last."""
    if not isinstance(number, int) or number <= before[0]:
        return None
    return number, True, ()


def follow(before: Growing) -> Growing:
    """The next number was given, and is not known."""
    return before[0] + 1, False, ()


def equal(this: Growing, number: object) -> Growing | None:
    """It is this number; None if it cannot be."""
    least, exact, others = this
    if not isinstance(number, int):
        return None
    if number == least:
        return number, True, ()
    return None if exact or number < least or number in others else (number, True, ())


def differ(this: Growing, number: int) -> Growing | None:
    """It is another number; None if it cannot be."""
    least, exact, others = this
    if exact or number < least:
        return None if number == least else this
    if number != least:
        return least, False, tuple(sorted({*others, number}))
    least += 1
    while least in others:
        least += 1
    return least, False, tuple([each for each in others if each > least])
