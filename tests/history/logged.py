"""What the replicas' logs say of a history: the two must tell one story.

    logs = [read_log(path) for path in directories]     # of replicas that have stopped
    commands = commands_in(agreed(logs))
    problems = compare(operations, commands, asked, begin=...)
    replay.check(placed(operations, commands, asked), model, reads=...)

Every acknowledged write is in the log, at the index that its reply gave; every command in the log
was asked for, and no more often than that: what failed for certain is not in there. `placed` gives
each write the place where it was found, also one whose outcome nobody was told.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from state_machines import op, runs
from state_machines.clients import RegisterClient
from state_machines.machine import Machine
from state_machines.raft.messages import Entry, EntryKind
from state_machines.tables import Table
from state_machines.wire import api_pb2 as api
from storage.log import RaftLog
from storage.memory import MemoryKeyValue
from storage.stores import open_log_engine
from tests.history.operation import Operation
from tests.history.watch import Event, event

Asked = Callable[[Operation], Any]
"""The command that an operation asked for, None for one that asked for none."""

What = tuple[str, bytes]
"""A command as it travels: tag and body."""


@dataclass(frozen=True, slots=True)
class Log:
    """One replica's log: the entries after `base`, of which those up to `commit` are committed."""

    base: int
    commit: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the log: the `place`-th, from 1, of all in its entry."""

    index: int
    place: int
    client: int
    sequence: int
    tag: str
    body: bytes

    @property
    def what(self) -> What:
        """What was asked for."""
        return self.tag, self.body


def read_log(directory: Path) -> Log:
    """The log in the data directory of a replica that has stopped. The directory stays as it is:
    opening a log repairs what a crash may leave, so this opens a copy."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "log"
        shutil.copytree(directory / "log", copy)
        log = RaftLog(open_log_engine(copy))
        try:
            loaded = log.load()
        finally:
            log.close()
    return Log(loaded.snapshot.index, loaded.hard_state.commit, loaded.entries)


def agreed(logs: Sequence[Log]) -> list[Entry]:
    """What is committed, from all that have it. AssertionError where two differ about it.

    How far a replica knew of it is a hint that lags; beyond all hints counts what a majority has.
    A replica that was removed may have kept what its group then overwrote: its hint ends before.
    """
    found: dict[int, Entry] = {}
    had: Counter[Entry] = Counter()
    for log in logs:
        had.update(log.entries)
        for entry in log.entries:
            if entry.index <= log.commit:
                other = found.setdefault(entry.index, entry)
                assert other == entry, f"two entries are committed at {entry.index}"
    known = max((log.commit for log in logs), default=0)
    for entry, count in had.items():
        if entry.index > known and 2 * count > len(logs):
            found[entry.index] = entry
    return [found[index] for index in sorted(found)]


def commands_in(entries: Iterable[Entry]) -> list[Command]:
    """The commands of some entries as they are applied: of a retried proposal only the first."""
    found: list[Command] = []
    known: set[tuple[int, int]] = set()
    for entry in entries:
        if entry.kind is not EntryKind.NORMAL or not entry.data:
            continue
        place = 0
        for proposal in api.Batch.FromString(entry.data).proposals:
            who = (proposal.client, proposal.sequence)
            repeated = proposal.client != 0 and who in known
            known.add(who)
            for each in proposal.commands:
                for body in _bodies(each):
                    place += 1
                    if not repeated and each.tag != op.TAGS[RegisterClient]:
                        found.append(Command(entry.index, place, *who, each.tag, body))
    return found


def _bodies(command: api.Command) -> list[bytes]:
    """The body of each operation on its own."""
    if not command.count:
        return [command.body]
    return [op.encode(each) for each in runs.operations_of(op.COMMANDS, command)]


def changes_in(
    entries: Iterable[Entry], kind: str, table: Table[Any], value: str = "value"
) -> list[Event]:
    """What the entries from the first one on changed in a table, as watchers are to be told of it.

    A machine of its own applies them: what a replica's log says is what its watchers must hear.
    """
    machine = Machine(kind, f"{kind}-0", MemoryKeyValue())
    found: list[Event] = []
    for entry in entries:
        if entry.kind is not EntryKind.NORMAL or not entry.data:
            continue
        machine.apply(entry)
        found += [
            event(entry.index, table, key, row or b"", value)
            for name, key, row in machine.take_changes()
            if name == table.name
        ]
    return found


def compare(
    operations: Iterable[Operation],
    commands: Sequence[Command],
    asked: Asked,
    *,
    begin: int = 0,
    tags: frozenset[str] = frozenset(),
) -> list[str]:
    """Where history and log contradict each other. `begin`: the log has only what came after it.
    `tags`: commands that others ask for too, so that more of them are in the log."""
    problems: list[str] = []
    at = Counter((each.index, each.what) for each in commands)
    ever = Counter(each.what for each in commands)
    invoked: Counter[What] = Counter()
    acknowledged: Counter[What] = Counter()
    for each in operations:
        what = _what(each, asked)
        if what is None:
            continue
        invoked[what] += 1
        if each.unknown:
            continue
        acknowledged[what] += 1
        if each.index > begin and not at[each.index, what]:
            problems.append(f"acknowledged, and not in the log at {each.index}: {each}")
        if each.index:
            at[each.index, what] -= 1
        elif not begin and acknowledged[what] > ever[what]:
            problems.append(f"acknowledged, and not in the log: {each}")
    for what, count in ever.items():
        if count > invoked[what] and what[0] not in tags:
            where = [f"{x.index}.{x.place}" for x in commands if x.what == what]
            problems.append(
                f"{what[0]} is in the log {count} times, at {', '.join(where)}, and was asked for "
                f"{invoked[what]} times: {op.decode(op.COMMANDS, *what)}"
            )
    return problems


def placed(
    operations: Iterable[Operation],
    commands: Sequence[Command],
    asked: Asked,
    *,
    group: str = "",
    begin: int = 0,
) -> list[Operation]:
    """The history with every write at its place in the log. One of unknown outcome that is not in
    a log that is whole never happened, and goes. `begin`: the log has only what came after it.

    Who asked for the very same has to know the index of the reply, or stays without a place.
    """
    there: defaultdict[What, list[Command]] = defaultdict(list)
    for command in commands:
        there[command.what].append(command)
    same: defaultdict[What, list[Operation]] = defaultdict(list)
    found: list[Operation] = []
    for each in sorted(operations, key=lambda each: each.invoked):
        what = _what(each, asked)
        if what is None:
            found.append(each)
        else:
            same[what].append(each)
    for what, alike in same.items():
        found += _match(alike, there[what], group, whole=not begin)
    return sorted(found, key=lambda each: each.invoked)


def _match(
    alike: Sequence[Operation], commands: Sequence[Command], group: str, *, whole: bool
) -> list[Operation]:
    """Operations that asked for the very same, at the places where the log has that."""
    at: defaultdict[int, list[Command]] = defaultdict(list)
    for command in commands:
        at[command.index].append(command)
    twice = {index for index, here in at.items() if len(here) > 1}
    found: list[Operation] = []
    for each in alike:
        if each.index and (here := at[each.index]):
            place = here.pop().place
            if each.index in twice:
                place = 0  # either may have been the first
            found.append(replace(each, group=each.group or group, place=place))
        elif each.index:
            found.append(each)
    others = [each for each in alike if not each.index]
    left = [command for index in sorted(at) for command in at[index]]
    if len(others) > 1 and not all(each.unknown for each in others):
        return [*found, *others]
    for each, there in zip(others, left, strict=False):
        named = replace(each, group=each.group or group, index=there.index)
        found.append(replace(named, place=0 if there.index in twice else there.place))
    rest = others[len(left) :]
    return [*found, *(each for each in rest if not (whole and each.unknown))]


def _what(operation: Operation, asked: Asked) -> What | None:
    command = asked(operation)
    return None if command is None else (op.tag(command), op.encode(command))
