"""What a victim writes down as it lives: one JSON list a line, appended, for the parent to judge.

A line is handed to the kernel whole before the victim does what the line speaks of (an invocation,
a promise that leaves) or before anybody hears of it (an acknowledgement). Kill -9 takes nothing
back that was handed to the kernel, so the journal of all lives of one directory is the history.

    life    number                                        a process begins
    open    group seat replica boot term vote commit base last applied      stores were opened
    vote    replica term candidate                        a vote that was about to leave
    match   replica term index                            "my log is durable up to there", as well
    entry   group index term kind data                    about to be applied, by any replica
    do      id group what key                             a client is about to ask
    ok      id result                                     it was told so
    no      id error                                      it was refused, or the outcome is unknown
    ask     read key / saw read ids                       a linearizable read of a list
    wiped   replica                                       its directory is gone
    point   name / end name                               passed a failpoint; ended there
    counts  {name: times}                                 how often a life that was spared passed
    serve   seconds                                       until the first acknowledged write
    state   group seat applied digest                     rows of a replica, at the very end
    stuck   what                                          a deadline passed, or something unforeseen
    rest                                                  the last life ended as it was to
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

_NEXT_LIFE = b'["life",'


class Journal:
    """Appends lines. Any thread may."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._file, b"\n")  # ends a line that a kill has cut short

    def __call__(self, kind: str, *what: Any) -> None:
        line = json.dumps([kind, *what], separators=(",", ":")).encode() + b"\n"
        written = os.write(self._file, line)
        assert written == len(line), "the journal's disk is full"


def read(path: Path) -> Iterator[list[Any]]:
    """All lines of a journal, in order. A kill may cut the last line of a life short, in the middle
    of one call of the system: it died before it went on to what the line speaks of."""
    lines = path.read_bytes().split(b"\n")
    for line, following in pairwise([*lines, b""]):
        try:
            if line:
                yield json.loads(line)
        except json.JSONDecodeError:
            if following and not following.startswith(_NEXT_LIFE):
                raise
