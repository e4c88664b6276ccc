"""Ranges of keys at which nothing is: sorted, apart from each other, as one list of their bounds.

    gaps = []                          # [first, end, first, end, ...]
    add(gaps, b"b", b"f")              # nothing from b"b" up to b"f": the end of the gap it is in
    cut(gaps, b"d")                    # there is something at b"d": [b"b", b"d", b"d\\0", b"f"]
    end_of_gap(gaps, b"c")             # b"d"; a key that is in no gap is its own end

The place of a key among the bounds is odd when it is within a gap.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right


def add(gaps: list[bytes], first: bytes, end: bytes) -> bytes:
    """[first, end) is a gap, with all that it meets. Where the whole of it ends."""
    begin, behind = bisect_left(gaps, first), bisect_right(gaps, end)
    start = [] if begin % 2 else [first]
    if behind % 2:
        end = gaps[behind]
        gaps[begin:behind] = start
    else:
        gaps[begin:behind] = [*start, end]
    return end


def cut(gaps: list[bytes], key: bytes) -> None:
    """The key is in no gap any more."""
    if not bisect_right(gaps, key) % 2:
        return
    after = key + b"\0"
    begin, behind = bisect_left(gaps, key), bisect_right(gaps, after)
    gaps[begin:behind] = [key] * (begin % 2) + [after] * (behind % 2)


def end_of_gap(gaps: list[bytes], key: bytes) -> bytes:
    """Where the gap ends that the key is in; the key itself if it is in none."""
    place = bisect_right(gaps, key)
    return gaps[place] if place % 2 else key
