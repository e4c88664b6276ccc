"""A call that many share: what it says for all of them, and how each gets its own out of the reply.

What follows one of its class goes as a run with it (`state_machines/runs.py`), so that a thousand
callers who write a key each are one command of columns.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from state_machines import columnar, op, runs
from state_machines.errors import (
    BY_CODE,
    Invalid,
    MetarayError,
    NotLeader,
    Overflow,
    Overloaded,
    QuotaExceeded,
    Rejected,
    Unknown,
    WrongShard,
)
from state_machines.limits import CALL_ITEMS_MAX, REQUEST_BYTES_MAX
from state_machines.wire import api_pb2 as api

if TYPE_CHECKING:
    from actors.attempts import Attempt

ROOM_BYTES: Final = REQUEST_BYTES_MAX * 3 // 4  #: for the operations of one call
ITEM_BYTES: Final = -(-ROOM_BYTES // CALL_ITEMS_MAX)  #: of it an item takes at least


@dataclass(slots=True)
class Waiting:
    """An operation that waits for its result."""

    operation: Any
    body: bytes  #: empty for one that may go in a run
    result: asyncio.Future[Any]
    deadline: float
    named: bool = False  #: whether its caller has named the group
    min_revision: int = 0  #: a stale query's: from which one on

    @property
    def tenant(self) -> str:
        """Whose operation it is; empty: of no tenant, or of several."""
        return tenant_of(self.operation)

    @property
    def gone(self) -> bool:
        """Whether its caller has been told."""
        return self.result.done()


@dataclass(slots=True)
class Reached:
    """Up to which revision a group has come, by what it has answered to this process."""

    revision: int = 0
    #: are called when it has become later
    told: list[Callable[[], None]] = field(default_factory=list)

    def heard(self, revision: int) -> None:
        """A reply says this one."""
        if revision > self.revision:
            self.revision = revision
            for tell in self.told:
                tell()


@dataclass(slots=True)
class Trace:
    """What the attempts at one proposal or query came to."""

    command: bool
    attempts: int = 0
    unproposed: int = 0  #: of these: a seat has said that it put nothing of it into its log


@dataclass(slots=True, eq=False)
class UnderWay:
    """A batch that is being carried out."""

    batch: list[Waiting]
    commands: list[api.Command] = field(default_factory=list)
    deadline: float = 0.0  #: the latest of theirs
    first: Attempt | None = None  #: its first attempt, while that is waited for
    made: Any = None  #: how it is sent: its lane's own
    trace: Trace | None = None  #: None until something may have been sent
    task: asyncio.Task[None] | None = None  #: once it has begun, for a first attempt in vain
    gone: int = 0  #: at the front of its batch: whose callers wait no more, as far as was looked


def tenant_of(operation: Any) -> str:
    """Whose an operation is that nobody has checked yet: only a name is one."""
    tenant = getattr(operation, "tenant", "")
    return tenant if type(tenant) is str else ""


def gone(batch: list[Waiting]) -> bool:
    """Whether some have left a batch, whose callers have been told: it is without them now."""
    left = [each for each in batch if not each.result.done()]
    some = len(left) < len(batch)
    batch[:] = left
    return some


def commands_of(batch: list[Waiting]) -> tuple[list[api.Command], list[Waiting]]:
    """What a batch says, in order; what follows one of its class goes as a run with it.

    Those that are not valid are told so and leave the batch; and so do those at its end for whom
    there is no room in a request, who are returned.
    """
    if len(batch) == 1:
        return _alone(batch), []
    made: list[api.Command] = []
    valid: list[Waiting] = []
    room = ROOM_BYTES
    rest: list[Waiting] = []
    groups = [(kind, list(some)) for kind, some in itertools.groupby(batch, _kind)]
    for place, (kind, every) in enumerate(groups):
        same, run = every, _run_of(every)
        size = _weight_of(same) if run is None or op.heavy(kind) else _weight_of_run(run)
        if size > room:
            same, rest = _fitting(every, room, alone=not made)
            rest += [each for _, later in groups[place + 1 :] for each in later]
            run, size = _run_of(same), _weight_of(same)
        body = _body_of(run)
        if body is None and runs.swept(kind):
            same = [each for each in same if _valid(each)]
            body = _body_of(_run_of(same))
        if body is not None:
            made.append(api.Command(tag=op.TAGS[kind], body=body, count=len(same)))
        else:
            made += map(_said, same)
        valid += same
        room -= size
        if rest:
            break
    batch[:] = valid
    return made, rest


def _alone(batch: list[Waiting]) -> list[api.Command]:
    """The same of a batch of one: what a caller waits for who is alone."""
    one = batch[0]
    if not runs.swept(_kind(one)) or _valid(one):
        said = _said(one)
        if not _too_heavy(one, len(said.body)):
            return [said]
    batch.clear()
    return []


def _said(waiting: Waiting) -> api.Command:
    """What it says by itself."""
    operation = waiting.operation
    return api.Command(tag=op.tag(operation), body=waiting.body or op.encode(operation))


def _run_of(same: Sequence[Waiting]) -> runs.Run | None:
    """Their run, unchecked; None if they make none."""
    if len(same) <= 1 or not columnar.flat(_kind(same[0])):
        return None
    return runs.of([each.operation for each in same])


def _body_of(run: runs.Run | None) -> bytes | None:
    """The body of a run; None if there is none, or one of its operations is not valid."""
    if run is None:
        return None
    try:
        return runs.sweep(run) if runs.swept(run.kind) else runs.body_of(run)
    except Invalid:
        return None


def _weight_of(some: Sequence[Waiting]) -> int:
    """What they take of a call's room: bytes at most, and many small items as if they were more."""
    return sum([max(_size(each), ITEM_BYTES * _items(each)) for each in some])


def _weight_of_run(run: runs.Run) -> int:
    """The same, of all that is in it."""
    return max(runs.weight_of(run.columns.values()), ITEM_BYTES * run.count)


def _size(waiting: Waiting) -> int:
    return len(waiting.body) or runs.weight(waiting.operation)


def _items(waiting: Waiting) -> int:
    if not waiting.body and not op.heavy(_kind(waiting)):  # it may go in a run: it has no parts
        return 1
    charges = op.charges(waiting.operation)
    return sum([rows for _, rows in charges if type(rows) is int])  # it may be unchecked


def _fitting(
    same: Sequence[Waiting], room: int, *, alone: bool
) -> tuple[list[Waiting], list[Waiting]]:
    """Those for whom there is room, and the rest. Who is `alone` goes, whatever it takes, unless
    that is more than a request has."""
    fitting: list[Waiting] = []
    for place, each in enumerate(same):
        size = _size(each)
        if _too_heavy(each, size):
            continue
        size = max(size, ITEM_BYTES * _items(each))
        if size > room and not (alone and not fitting):
            return fitting, list(same[place:])
        room -= size
        fitting.append(each)
    return fitting, []


def _too_heavy(waiting: Waiting, size: int) -> bool:
    """Whether it takes more than a request may. If so, its caller is told."""
    if size <= REQUEST_BYTES_MAX:
        return False
    if _valid(waiting):
        said = op.tag(waiting.operation)
        fail(waiting, Invalid(f"{said}: {size} bytes, the limit is {REQUEST_BYTES_MAX}"))
    return True


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
) -> list[Waiting]:
    """Give every operation its own result, or the call's refusal.

    Returns those for which the reply had no room beside the others, the first of all excepted, or
    the entry behind others: untold. Nothing was done for them, so they may be asked for again, also
    commands.
    """
    error: MetarayError | None = None
    if reply.code == api.SESSION_EXPIRED:
        error = Unknown(f"the outcome was forgotten: {reply.detail}")
    elif reply.code != api.OK:
        error = error_of(reply)
    elif len(reply.results) != len(commands):
        error = Unknown(f"{len(reply.results)} results came for {len(commands)} commands")
    if error is not None:
        fail_all(batch, error)
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
            elif _had_no_room(answer, first=waiting is batch[0]):
                untold.append(waiting)
            else:
                fail(waiting, answer)
    return untold


def _had_no_room(error: MetarayError, *, first: bool) -> bool:
    """Whether that is why. What else exceeds a quota does so on its own."""
    details = (op.ENTRY_FULL,) if first else (op.ENTRY_FULL, op.REPLY_FULL)
    return isinstance(error, QuotaExceeded) and error.detail in details


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


def fail_all(some: Sequence[Waiting], error: Exception) -> None:
    """Tell each of them, by an error of its own: whoever catches it may add to it, and a thread
    that raises it puts where it was on its traceback."""
    for each in some:
        fail(each, copy(error) if isinstance(error, MetarayError) else error)


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
