"""Bugs of the transport between replicas."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

MODULE: Final = "actors.transport"

TRANSPORT: Final[tuple[Mutant, ...]] = (
    Mutant(
        "what-a-link-had-not-taken-when-it-ended-is-not-called",
        "liveness",
        MODULE,
        "            if not self._posted(seat, _filled(rest, ENVELOPE_BYTES_MAX)):\n"
        "                return False\n",
        "            if not self._posted(seat, _filled(rest, ENVELOPE_BYTES_MAX)):\n"
        "                return True\n",
    ),
    Mutant(
        "an-answer-is-given-to-a-call-that-has-ended",
        "law 12",
        MODULE,
        "            if not future.done():\n                future.set_result(self._encoder",
        "            if future:\n                future.set_result(self._encoder",
    ),
    Mutant(
        "calls-are-as-large-as-what-goes-by-a-link",
        "law 14",
        MODULE,
        "_filled(lane.waiting, INLINE_BYTES_MAX)",
        "_filled(lane.waiting, ENVELOPE_BYTES_MAX)",
    ),
    Mutant(
        "a-snapshot-is-taken-from-an-envelope",
        "law 14",
        MODULE,
        "        if InstallSnapshot in kinds:\n",
        "        if InstallSnapshot in envelope.messages:\n",
    ),
    Mutant(
        "what-comes-with-a-reply-has-no-answer",
        "liveness",
        MODULE,
        "        return 0 if kinds <= _REPLIES else envelope.sender\n",
        "        return 0 if kinds & _REPLIES else envelope.sender\n",
    ),
    Mutant(
        "who-sits-nowhere-any-more-is-called-there",
        "liveness",
        MODULE,
        "self._book = {peer: seat for peer, seat in self._book.items() if seat in self._seats}",
        "self._book = dict(self._book)",
    ),
    Mutant(
        "a-leader-that-has-stepped-down-is-watched-on",
        "liveness",
        MODULE,
        "            if not leads:\n                return\n",
        "            if not leads:\n                continue\n",
    ),
    Mutant(
        "a-leader-that-leads-again-is-not-watched",
        "liveness",
        MODULE,
        "        if leader == now and (task is None or not task.done()):\n",
        "        if leader == now:\n",
    ),
    Mutant(
        "heartbeats-that-were-answered-take-room-for-ever",
        "law 15",
        MODULE,
        "            lane.beats -= 1\n",
        "            lane.beats -= 0\n",
    ),
    Mutant(
        "answers-that-nobody-reads-have-no-limit",
        "design 6",
        "actors.direct.listener",
        "self._transport.get_write_buffer_size() > UNREAD_BYTES_MAX:",
        "self._transport.get_write_buffer_size() > 1 << 40:",
    ),
    Mutant(
        "long-polls-of-who-is-gone-keep-their-places",
        "liveness",
        "actors.direct.listener",
        "        for each in self._polls:\n",
        "        for each in ():\n",
    ),
    Mutant(
        "a-look-after-a-lost-process-waits-for-whoever-took-it",
        "law 13",
        "actors.direct.links",
        "                except (ConnectionError, TimeoutError):\n",
        "                except ConnectionError:\n",
    ),
    Mutant(
        "who-waits-for-a-silent-machine-is-told-after-looks-at-it",
        "law 13",
        "actors.direct.links",
        "            if not self._closed and not lost.silent:\n",
        "            if not self._closed:\n",
    ),
    Mutant(
        "every-empty-answer-is-told-of-as-a-strangers",
        "design 5.5",
        "actors.transport",
        "        if answer:\n            try:\n",
        "        if answer is not None:\n            try:\n",
    ),
    Mutant(
        "a-machine-that-fell-silent-is-called-by-ray",
        "law 13",
        "actors.calls",
        "        if self._links.silent(seat):\n",
        "        if seat in self._seats:\n",
    ),
)
