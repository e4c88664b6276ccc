"""A call that many share: what it says for all of them, and how each gets its own out of the reply.

What follows one of its class goes as a run with it (`state_machines/runs.py`), so that a thousand
callers who write a key each are one command of columns.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from state_machines import op, runs
from state_machines.errors import (
    BY_CODE,
    MetarayError,
    NotLeader,
    Overflow,
    Overloaded,
    Rejected,
    Unknown,
    WrongShard,
)
from state_machines.wire import api_pb2 as api

MISSING: Final = Unknown("its result is missing: the refusals do not fit the run")


@dataclass(slots=True)
class Waiting:
    """An operation that waits for its result."""

    operation: Any
    body: bytes  #: empty for one that may go in a run
    size: int
    result: asyncio.Future[Any]
    deadline: float
    stale: bool
    min_revision: int
    trace: Trace | None = None  # None until it goes with a batch


@dataclass(slots=True)
class Trace:
    """What the attempts at one proposal or query came to."""

    command: bool
    attempts: int = 0


def live(batch: Sequence[Waiting], trace: Trace) -> list[Waiting]:
    """Those of a batch whose callers still wait; from now on they share its trace."""
    live = [each for each in batch if not each.result.done()]
    for each in live:
        each.trace = trace
    return live


def commands_of(batch: Sequence[Waiting]) -> list[api.Command]:
    """What a batch says, in order; what follows one of its class goes as a run with it."""
    made: list[api.Command] = []
    for kind, some in itertools.groupby(batch, _kind):
        same = list(some)
        if len(same) > 1 and runs.flat(kind):
            body = runs.pack([each.operation for each in same])
            made.append(api.Command(tag=op.TAGS[kind], body=body, count=len(same)))
        else:
            made += [
                api.Command(tag=op.TAGS[kind], body=each.body or op.encode(each.operation))
                for each in same
            ]
    return made


def _kind(waiting: Waiting) -> type:
    return type(waiting.operation)


def resolve(
    batch: Sequence[Waiting], commands: Sequence[api.Command], reply: api.Reply, again: int = -1
) -> list[Waiting]:
    """Give every operation its own result, or the call's refusal.

    Returns those that were refused with the code `again`, the first of all excepted: untold.
    """
    error: MetarayError | None = None
    if reply.code == api.SESSION_EXPIRED:
        error = Unknown(f"the outcome was forgotten: {reply.detail}")
    elif reply.code != api.OK:
        error = error_of(reply)
    elif len(reply.results) != len(commands):
        error = Unknown(f"{len(reply.results)} results came for {len(commands)} commands")
    if error is not None:
        for each in batch:
            fail(each, error)
        return []
    untold: list[Waiting] = []
    at = 0
    for command, result in zip(commands, reply.results, strict=True):
        some = batch[at : at + (command.count or 1)]
        at += len(some)
        refused = {each.place: each for each in result.refusals}
        replies = _replies(some, command, result, len(refused))
        for place, waiting in enumerate(some):
            refusal = result if result.code != api.OK else refused.get(place)
            if refusal is None:
                answer = next(replies, MISSING)
                if isinstance(answer, Unknown):
                    fail(waiting, Unknown(answer.detail))
                elif not waiting.result.done():
                    # failpoint: client.resolving
                    waiting.result.set_result(answer)
            elif refusal.code == again and waiting is not batch[0]:
                untold.append(waiting)
            else:
                fail(waiting, _error(refusal.code, refusal.detail, reply))
    return untold


def _replies(
    some: Sequence[Waiting], command: api.Command, result: api.Result, refused: int
) -> Iterator[Any]:
    """The typed replies to those that were not refused; Unknown for one that cannot be read."""
    if result.code != api.OK:
        return iter(())
    operation = some[0].operation
    try:
        if not command.count:
            return iter((op.decode_reply(operation, result.body),))
        return iter(runs.unpack_replies(type(operation), len(some) - refused, result.body))
    except Rejected as unread:
        return itertools.repeat(Unknown(f"its result cannot be read: {unread.detail}"))


def fail(waiting: Waiting, error: Exception) -> None:
    """Tell it, unless it was told already."""
    if not waiting.result.done():
        waiting.result.set_exception(error)


def error_of(reply: api.Reply) -> MetarayError:
    """The error that a refusing reply says."""
    return _error(reply.code, reply.detail, reply)


def _error(code: int, detail: str, reply: api.Reply) -> MetarayError:
    kind = BY_CODE[api.Code.Name(code)]
    if kind is NotLeader:
        return NotLeader(detail, reply.leader)
    if kind is Overloaded:
        return Overloaded(detail, reply.retry_after_ms)
    if kind is WrongShard:
        return WrongShard(detail, reply.slot_version)
    if kind is Overflow:
        return Overflow(detail, reply.revision)
    return kind(detail)
