"""A call that many share: what it says for all of them, and how each gets its own out of the reply.

What follows one of its class goes as a run with it (`state_machines/runs.py`), so that a thousand
callers who write a key each are one command of columns.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from state_machines import op, runs
from state_machines.errors import (
    BY_CODE,
    Invalid,
    MetarayError,
    NotLeader,
    Overflow,
    Overloaded,
    Rejected,
    Unknown,
    WrongShard,
)
from state_machines.wire import api_pb2 as api


@dataclass(slots=True)
class Waiting:
    """An operation that waits for its result."""

    operation: Any
    body: bytes  #: empty for one that may go in a run
    size: int
    result: asyncio.Future[Any]
    deadline: float
    terms: tuple[bool, int]  #: stale or not, and from which revision on: a query's
    trace: Trace | None = None  # None until it goes with a batch


@dataclass(slots=True)
class Trace:
    """What the attempts at one proposal or query came to."""

    command: bool
    attempts: int = 0


def gone(batch: list[Waiting], trace: Trace) -> bool:
    """Whether some of a batch left it, whose callers have been told. The others share its trace
    from now on."""
    left = [each for each in batch if not each.result.done()]
    for each in left:
        each.trace = trace
    some = len(left) < len(batch)
    batch[:] = left
    return some


def commands_of(batch: list[Waiting]) -> list[api.Command]:
    """What a batch says, in order; what follows one of its class goes as a run with it.

    Those that are not valid are told so and leave the batch.
    """
    if len(batch) == 1:
        return _alone(batch)
    made: list[api.Command] = []
    valid: list[Waiting] = []
    for kind, some in itertools.groupby(batch, _kind):
        same = list(some)
        body = _run_of(kind, same)
        if body is None and runs.swept(kind):
            same = [each for each in same if _valid(each)]
            body = _run_of(kind, same)
        if body is not None:
            made.append(api.Command(tag=op.TAGS[kind], body=body, count=len(same)))
        else:
            made += map(_said, same)
        valid += same
    batch[:] = valid
    return made


def _alone(batch: list[Waiting]) -> list[api.Command]:
    """The same of a batch of one: what a caller waits for who is alone."""
    kind: Any = _kind(batch[0])
    if runs.swept(kind) and not _valid(batch[0]):
        batch.clear()
    return [_said(each) for each in batch]


def _said(waiting: Waiting) -> api.Command:
    """What it says by itself."""
    operation = waiting.operation
    return api.Command(tag=op.tag(operation), body=waiting.body or op.encode(operation))


def _run_of(kind: type, same: Sequence[Waiting]) -> bytes | None:
    """The body of their run; None if they make none, or one of them is not valid."""
    if len(same) <= 1 or not runs.flat(kind):
        return None
    operations = [each.operation for each in same]
    try:
        return runs.sweep(operations) if runs.swept(kind) else runs.pack(operations)
    except Invalid:
        return None


def _valid(waiting: Waiting) -> bool:
    """Whether an operation that nobody has checked yet is valid. If not, its caller is told why."""
    try:
        op.validate(waiting.operation)
    except Invalid as error:
        fail(waiting, error)
        return False
    return True


def _kind(waiting: Waiting) -> type:
    return type(waiting.operation)


def resolve(
    batch: Sequence[Waiting],
    commands: Sequence[api.Command],
    reply: api.Reply,
    again: type | None = None,
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
        answers = _answers(some, command, result, reply)
        for waiting, answer in zip(some, answers, strict=True):
            if not isinstance(answer, MetarayError):
                if not waiting.result.done():
                    # failpoint: client.resolving
                    waiting.result.set_result(answer)
            elif type(answer) is again and waiting is not batch[0]:
                untold.append(waiting)
            else:
                fail(waiting, answer)
    return untold


def _answers(
    some: Sequence[Waiting], command: api.Command, result: api.Result, reply: api.Reply
) -> list[Any]:
    """To each of a command's operations its typed reply, or the error that came instead."""
    count = len(some)
    if result.code != api.OK:
        return [_error(result.code, result.detail, reply) for _ in some]
    operation = some[0].operation
    refused: dict[int, api.Refusal] = {}
    try:
        if not command.count:
            return [op.decode_reply(operation, result.body)]
        refused = {each.place: each for each in result.refusals}
        found = runs.unpack_replies(type(operation), count - len(refused), result.body)
    except Rejected as unread:
        said = f"its result cannot be read: {unread.detail}"
        found = [Unknown(said) for _ in some]
    if refused:
        lost = Unknown("its result is missing: the refusals do not fit the run")
        given = iter(found)
        found = [
            next(given, lost) if each is None else _error(each.code, each.detail, reply)
            for each in map(refused.get, range(count))
        ]
    return found


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
