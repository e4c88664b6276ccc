"""What the simulated clients do, and the history it leaves.

A client has a few tasks that ask for one thing after another, and one that watches. What they ask
for and are told is recorded, and checked at the end of the run by `tests/history`.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import msgpack

from actors.caller import Caller
from state_machines.errors import Compacted, MetarayError
from state_machines.metadata.kv import KV, DeleteKv, GetKv, PutKv
from state_machines.metadata.slot_map import GetSlots
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.offset.offset import CommitOffsets, FetchOffsets, OffsetCommit
from tests.history.linearizable import check
from tests.history.models import MODELS, NEVER_S
from tests.history.operation import Recorder
from tests.simulation.invariants import GroupFacts
from tests.simulation.loop import Process
from tests.simulation.world import World

TASKS = 2  #: at once, of one client
KEYS = 3
STEPS_MAX = 300_000
WATCHED = "metadata-0"


@dataclass(slots=True)
class Load:
    """How busy the clients are just now."""

    pause: float = 0.5  #: seconds between two operations of a task, at most
    ended: bool = False


@dataclass(slots=True)
class Watch:
    """What one watcher saw: (revision, table, key, row) after `begun`, complete up to `upto`."""

    begun: int
    upto: int
    seen: list[tuple[int, str, bytes, bytes]] = field(default_factory=list)


class Workload:
    """All clients of a run."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.load = Load()
        now = world.loop
        self.recorders = {
            name: Recorder(clock=lambda: int(now.now * 1e9))
            for name in ("register", "offset", "session")
        }
        self.watches: list[Watch] = []
        self.acknowledged = 0
        self.asked = 0
        self._born = 0
        self._pair = world.plan.pair
        #: consumer groups and MQTT clients; of a pair two are on the one group, two on the other
        self._names = 4 if self._pair else 2
        self._tasks: list[tuple[Process, asyncio.Task[None]]] = []

    def start(self) -> None:
        """All clients of the plan."""
        for _ in range(self.world.plan.clients):
            self.start_client()

    def start_client(self) -> str:
        """One more client."""
        self._born += 1
        name = f"client{self._born}"
        process, caller = self.world.client(name)
        for number in range(TASKS):
            rng = self.world.rng(f"{name} {number}")
            self._start(process, self._work(f"{name}.{number}", caller, rng))
        if self._born % 2:
            self._start(process, self._watch(caller))
        return name

    def _start(self, process: Process, work: Any) -> None:
        self._tasks.append((process, self.world.loop.start(process, work)))

    @property
    def idle(self) -> bool:
        """Whether every task of every living client has ended."""
        return all(task.done() or not process.alive for process, task in self._tasks)

    # -- asking -----------------------------------------------------------------------------

    async def _work(self, name: str, caller: Caller, rng: Random) -> None:
        held: dict[str, int] = {}
        kinds: list[Any] = [self._register]
        if "offset-0" in self.world.plan.groups:
            kinds.append(self._offset)
        if "mqtt-0" in self.world.plan.groups:
            kinds.append(self._session)
        if self._pair:
            await slots_given(caller)
        while not self.load.ended:
            await asyncio.sleep(self.load.pause * rng.random() ** 2)
            if not self.load.ended:
                await rng.choice(kinds)(name, caller, rng, held)

    async def _ask(
        self, model: str, name: str, kind: str, key: str, given: Any, caller: Caller, asked: Any
    ) -> Any:
        """Ask, and record. None if it failed."""
        recorder = self.recorders[model]
        self.asked += 1
        self.world.event("ask", name, (kind, key))
        ticket = recorder.invoke(name, kind, key, given)
        try:
            reply = await caller.call(asked, stale=False)
        except MetarayError as error:
            self.world.event("refused", name, error.code)
            recorder.raised(ticket, error)
            return None
        self.acknowledged += 1
        said = _SAID[kind](reply)
        self.world.event("told", name, said)
        recorder.ok(ticket, said)
        return reply

    async def _register(self, name: str, caller: Caller, rng: Random, held: dict[str, int]) -> None:
        key = f"k{rng.randrange(KEYS)}"
        value = f"{name}-{self.asked}"
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                command = PutKv(key=key, value=value.encode())
                revision = await self._ask(
                    "register", name, "put", key, (value, None), caller, command
                )
                held[key] = revision or 0
            case 4 | 5:
                expected = held.get(key, 0)
                command = PutKv(key=key, value=value.encode(), expected_revision=expected)
                revision = await self._ask(
                    "register", name, "put", key, (value, expected), caller, command
                )
                held[key] = revision or held.get(key, 0)
            case 6:
                await self._ask("register", name, "delete", key, None, caller, DeleteKv(key=key))
            case _:
                entry = await self._ask("register", name, "get", key, None, caller, GetKv(key=key))
                held[key] = entry.revision if entry else 0

    async def _offset(self, name: str, caller: Caller, rng: Random, held: dict[str, int]) -> None:
        group = f"g{rng.randrange(self._names)}"
        if rng.random() < 0.3:
            await self._ask("offset", name, "fetch", group, None, caller, FetchOffsets(group=group))
            return
        if self._pair and rng.random() < 0.3:
            await self._commit_both(name, caller, rng)
            return
        commits = [
            OffsetCommit(
                group=group, topic="t", partition=rng.randrange(2), offset=rng.randrange(1000)
            )
            for _ in range(rng.randrange(1, 3))
        ]
        given = tuple((each.topic, each.partition, each.offset, each.metadata) for each in commits)
        command = CommitOffsets.of(commits)
        await self._ask("offset", name, "commit", group, given, caller, command)

    async def _commit_both(self, name: str, caller: Caller, rng: Random) -> None:
        """One command for two consumer groups: refused, nothing of it has happened in either."""
        groups = [f"g{number}" for number in rng.sample(range(self._names), 2)]
        commits = [
            OffsetCommit(group=each, topic="t", partition=0, offset=rng.randrange(1000))
            for each in groups
        ]
        recorder = self.recorders["offset"]
        self.asked += 1
        self.world.event("ask", name, ("commit", groups))
        tickets = [
            recorder.invoke(
                f"{name}.{each.group}", "commit", each.group, (("t", 0, each.offset, ""),)
            )
            for each in commits
        ]
        try:
            reply = await caller.call(CommitOffsets.of(commits), stale=False)
        except MetarayError as error:
            self.world.event("refused", name, error.code)
            for ticket in tickets:
                recorder.raised(ticket, error)
            return
        self.acknowledged += 1
        self.world.event("told", name, reply.committed)
        if reply.committed != len(commits):
            self.world.monitor.fail(f"{name}: {reply.committed} of {len(commits)} were committed")
        for ticket in tickets:
            recorder.ok(ticket, 1)

    async def _session(self, name: str, caller: Caller, rng: Random, held: dict[str, int]) -> None:
        client = f"c{rng.randrange(self._names)}"
        mine = held.get(client, 0)
        match rng.randrange(5):
            case 0 | 1:
                expiry = rng.choice((0, NEVER_S))
                clean = rng.random() < 0.2
                command = OpenSession(
                    client_id=client, broker=name, expiry_s=expiry, clean_start=clean
                )
                given = (name, expiry, clean)
                opened = await self._ask("session", name, "open", client, given, caller, command)
                held[client] = opened.epoch if opened else 0
            case 2 if mine:
                close = CloseSession(client_id=client, epoch=mine, graceful=True)
                await self._ask("session", name, "close", client, (mine, True, None), caller, close)
            case _:
                query = GetSession(client_id=client)
                await self._ask("session", name, "get", client, None, caller, query)

    async def _watch(self, caller: Caller) -> None:
        watch: Watch | None = None
        while not self.load.ended:
            try:
                if watch is None:
                    reply = await caller.watch(WATCHED, (), None)
                    watch = Watch(reply.revision, reply.revision)
                    self.watches.append(watch)
                reply = await caller.watch(WATCHED, (KV.name,), watch.upto)
            except Compacted:
                self.world.seen["watch compacted"] += 1
                watch = None
                continue
            except MetarayError:
                await asyncio.sleep(0.05)
                continue
            if reply.revision < watch.upto:
                self.world.monitor.fail(f"watch: the revision went back to {reply.revision}")
            for each in reply.changes:
                if each.revision <= watch.upto or each.revision > reply.revision:
                    self.world.monitor.fail(f"watch: {each.revision} after {watch.upto}")
                watch.seen.append((each.revision, each.table, each.key, each.row))
            watch.upto = reply.revision
            self.world.event("watched", WATCHED, (reply.revision, len(reply.changes)))

    # -- judging ----------------------------------------------------------------------------

    def judge(self) -> None:
        """Every history linearizable, every watch complete. Raises AssertionError."""
        for name, recorder in self.recorders.items():
            verdict = check(recorder.operations(), MODELS[name], steps_max=STEPS_MAX)
            assert verdict.legal, f"{name}: {verdict}"
        facts = self.world.monitor.facts[WATCHED]
        for watch in self.watches:
            expected = _changes(facts, watch.begun, watch.upto)
            assert watch.seen == expected, (
                f"watch from {watch.begun} to {watch.upto}: saw {watch.seen}, was {expected}"
            )


async def slots_given(caller: Caller) -> None:
    """Wait until the slots of a kind with several groups are given out. Before that its rows would
    be in group 0, and numbers that the log gives begin anew in another one."""
    while True:
        with suppress(MetarayError):
            if await caller.call(GetSlots()):
                return
        await asyncio.sleep(0.1)


def _changes(facts: GroupFacts, after: int, upto: int) -> list[tuple[int, str, bytes, bytes]]:
    """What a watch of the pairs should see."""
    return [
        (index, table, msgpack.packb(key), row or b"")
        for index in sorted(facts.outcomes)
        if after < index <= upto
        for table, key, row in facts.outcomes[index].changes
        if table == KV.name
    ]


def _pair(entry: Any) -> Any:
    return None if entry is None else (entry.value.decode(), entry.revision)


def _rows(offsets: Any) -> Any:
    return tuple((o.topic, o.partition, o.offset, o.metadata, o.commits) for o in offsets)


def _session_row(row: Any) -> Any:
    if row is None:
        return None
    return (row.broker, row.epoch, row.connected, row.expiry_s, row.subscriptions)


_SAID: dict[str, Any] = {
    "put": lambda revision: revision,
    "delete": lambda nothing: None,
    "get": lambda row: _pair(row) if row is None or hasattr(row, "value") else _session_row(row),
    "commit": lambda reply: reply.committed,
    "fetch": _rows,
    "open": lambda opened: (opened.epoch, opened.present),
    "close": lambda nothing: None,
}
