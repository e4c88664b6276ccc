"""Real replicas under trouble: what clients and watchers are told is what every log says.

Storage, machine, core, transport and client engine are the product's; only the wires are ours, and
they are bad ones (`tests/actors/wires.py`). Clients meet at a few keys and two watchers listen,
while a leader is killed, the next one is cut off, and a follower freezes. Then four witnesses are
heard: the search over the history, the logs of all replicas, the replay of the history by that log,
and the watchers. All must tell one story, and each has to notice when something is taken out of it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, Final

from actors.caller import Caller
from actors.seat import Seat
from actors.wanted import Wanted
from state_machines import fence, op
from state_machines.errors import Compacted, MetarayError, Rejected, SessionExpired
from state_machines.metadata.kv import KV
from state_machines.metadata.slot_map import GetSlots
from state_machines.mqtt.sessions import SESSIONS
from state_machines.offset.offset import OFFSETS
from state_machines.tables import Table
from state_machines.wire import api_pb2 as api
from tests.actors.wires import QUICK, Group, Wires, eventually
from tests.history import linearizable, replay, watch
from tests.history.commands import KINDS, request, told
from tests.history.logged import agreed, changes_in, commands_in, compare, placed, read_log
from tests.history.models import MODELS
from tests.history.operation import Recorder, is_refusal, refusal
from tests.history.servers import SERVERS, Server
from tests.history.validation import KEYS, ONE, asked_of

CLIENTS: Final = 4
CALLS: Final = 40
WATCHERS: Final = 2
TIMEOUT_MS: Final = 1_000  #: of a call: some end without an answer
SLOT_MAP: Final = op.tag(GetSlots())
FRESH: Final = 10_000  #: values of one client, and the next one's begin

WATCHED: Final[dict[str, tuple[Table[Any], str]]] = {
    "register": (KV, "value"),
    "offset": (OFFSETS, "offset"),
    "session": (SESSIONS, "epoch"),
    "fence": (fence.EPOCHS, "epoch"),
}
"""What a model changes, and the field that tells one change from another."""


@dataclass(slots=True)
class Noting:
    """The wires of one who makes one call at a time, noting which revision its reply gave.

    Beside it his caller may ask for the slot map, where nothing is heard of a group.
    """

    wires: Wires
    revision: int = 0

    def seats(self, group: str) -> Sequence[str]:
        """See `Groups`."""
        return self.wires.seats(group)

    async def propose(self, seat: str, request: bytes) -> bytes:
        """See `Groups`."""
        return self._note(await self.wires.propose(seat, request))

    async def query(self, seat: str, request: bytes) -> bytes:
        """See `Groups`."""
        reply = await self.wires.query(seat, request)
        asked = api.QueryRequest.FromString(request).queries
        return reply if [each.tag for each in asked] == [SLOT_MAP] else self._note(reply)

    async def watch(self, seat: str, request: bytes) -> bytes:
        """See `Groups`."""
        return await self.wires.watch(seat, request)

    async def refresh(self) -> None:
        """See `Groups`."""
        await self.wires.refresh()

    def _note(self, reply: bytes) -> bytes:
        self.revision = api.Reply.FromString(reply).revision
        return reply


class Client:
    """One who asks for this and that, at the same keys as the others."""

    def __init__(self, name: str, group: Group, recorder: Recorder, number: int, seed: int) -> None:
        self.luck = Random(f"{seed} {number}")
        self.asked = 0  #: calls so far
        self.answered = 0  #: of them
        self._wires = Noting(group.wires)
        self.caller = Caller(self._wires, timeout_ms=TIMEOUT_MS, rng=self.luck)
        self._group = group.name
        self._model = name
        self._name = f"c{number}"
        self._recorder = recorder
        self._server = SERVERS[name]()  # only to draw from: it knows what this client was told
        self._server.drawn = number * FRESH

    async def run(self) -> None:
        """All its calls."""
        for _ in range(CALLS):
            await self.ask()

    async def ask(self) -> None:
        """One call."""
        self.asked += 1
        key = self.luck.choice(ONE.get(self._model, KEYS))
        kind, input = self._server.draw(self.luck, key)
        ticket = self._recorder.invoke(self._name, kind, key, input)
        try:
            reply = await self.caller.call(request(self._model, kind, key, input))
            output = told(self._model, kind, reply)
        except SessionExpired:
            self._recorder.unknown(ticket)
            return
        except Rejected as error:
            output = refusal(error.code)
        except MetarayError as error:
            self._recorder.raised(ticket, error)
            return
        self._recorder.ok(ticket, output, group=self._group, index=self._wires.revision)
        self.answered += 1
        _learn(self._server, kind, key, input, output)


def _learn(server: Server, kind: str, key: str, input: Any, output: Any) -> None:
    """What the next question may expect: the revision or epoch just seen."""
    match kind:
        case "get" if output is not None and not is_refusal(output):
            server.rows[key] = output if len(output) == 2 else (*output[:4], frozenset())
        case "open" if not is_refusal(output):
            server.rows[key] = (input[0], output[0], True, input[1], frozenset())
        case "act":
            server.rows[key] = max(server.rows.get(key, 0), input)


class Watcher:
    """Polls for ever, and keeps what it was told. Where it is refused it begins anew.

    Every other one is content with any replica.
    """

    def __init__(self, name: str, group: Group, seed: int) -> None:
        self.caller = Caller(group.wires, timeout_ms=TIMEOUT_MS, rng=Random(seed))
        self.chains: list[list[watch.Delivery | watch.Compaction]] = [[]]
        self.upto = 0
        self._group = group.name
        self._stale = bool(seed % 2)
        self._table, self._value = WATCHED[name]

    async def run(self) -> None:
        """Until it is cancelled."""
        wanted = Wanted.of_table(self._table.name)
        while True:
            try:
                reply = await self.caller.poll(self._group, wanted, self.upto, stale=self._stale)
            except Compacted:
                self.chains[-1].append(watch.Compaction(self.upto))
                self.chains.append([])
                self.upto = (await self.caller.watch(self._group, (), None)).revision
            except MetarayError:
                continue  # nobody leads: the caller has waited, and asks again
            else:
                heard = watch.delivery(self.upto, reply, self._table, self._value)
                self.chains[-1].append(heard)
                self.upto = reply.revision


def _asked(clients: Sequence[Client], calls: int) -> bool:
    """Whether they have made so many calls."""
    return sum(each.asked for each in clients) >= calls


async def _kill(group: Group, leader: Seat) -> None:
    """The leader's process ends, and begins again over its directory."""
    await group.crash(leader.spec.seat)
    await group.sit(leader.spec.seat)


async def _cut_off(group: Group, leader: Seat) -> None:
    """The leader hears no other replica until one of them leads; clients still reach it."""
    mine = leader.spec.seat
    others = [seat for seat in group.seat_names if seat != mine]
    group.wires.cut |= {(mine, each) for each in others} | {(each, mine) for each in others}
    seats = [group.wires.living[each] for each in others]
    await eventually(lambda: any(x.replica is not None and x.replica.leads for x in seats))
    group.wires.cut.clear()


async def _freeze(group: Group, leader: Seat) -> None:
    """Another replica no longer answers anybody."""
    frozen = next(each for each in group.seat_names if each != leader.spec.seat)
    group.wires.frozen.add(frozen)


async def story(name: str, group: Group, recorder: Recorder, seed: int) -> list[Watcher]:
    """Founded, and calm in the end. Between: bad wires, and each quarter something is hurt."""
    watchers = [Watcher(name, group, seed + number) for number in range(WATCHERS)]
    clients = [Client(name, group, recorder, number, seed) for number in range(CLIENTS)]
    await group.found()
    await group.leader()
    group.wires.trouble = Random(seed)
    watching = [asyncio.create_task(each.run()) for each in watchers]
    asking = [asyncio.create_task(each.run()) for each in clients]
    for quarter, hurt in enumerate((_kill, _cut_off, _freeze), 1):
        part = CLIENTS * CALLS * quarter // 4
        await eventually(partial(_asked, clients, part))
        await hurt(group, await group.leader())
    await asyncio.gather(*asking)
    group.wires.frozen.clear()
    group.wires.trouble = None
    last = (await watchers[0].caller.watch(group.name, (), None)).revision
    await eventually(lambda: all(each.upto >= last for each in watchers))
    for task in watching:
        task.cancel()
    await asyncio.gather(*watching, return_exceptions=True)
    for caller in [each.caller for each in watchers] + [each.caller for each in clients]:
        await caller.close()
    return watchers


def told_the_same(name: str, seed: int, folder: Path) -> Counter[str]:
    """One story, and what its witnesses say."""
    recorder = Recorder()

    async def run() -> list[Watcher]:
        settings = replace(QUICK, log_keep_entries=FRESH)  # no log is cut short
        group = Group(folder, name=f"{KINDS[name]}-0", settings=settings, rng=Random(seed))
        try:
            return await story(name, group, recorder, seed)
        finally:
            await group.close()

    watchers = asyncio.run(run())
    operations = recorder.operations()
    chains = [chain for each in watchers for chain in each.chains]
    logs = [read_log(path.parent) for path in sorted(folder.glob("*/*/*/log"))]
    assert [log.base for log in logs] == [0] * len(logs)
    entries = agreed(logs)
    commands, asked = commands_in(entries), asked_of(name)
    committed = changes_in(entries, KINDS[name], *WATCHED[name])

    searched = linearizable.check(operations, MODELS[name])
    assert searched.legal, f"{name}, seed {seed}: {searched}"
    contradictions = compare(operations, commands, asked)
    assert contradictions == [], f"{name}, seed {seed}: {contradictions}"
    found = placed(operations, commands, asked, group=f"{KINDS[name]}-0")
    replayed = replay.check(found, MODELS[name], reads=SERVERS[name]().reads)
    assert replayed.legal, f"{name}, seed {seed}: {replayed}"
    assert replayed.left == []
    breaches = watch.check(chains, committed)
    assert breaches == [], f"{name}, seed {seed}: {breaches}"

    # And each of the witnesses would have noticed.
    write = next(each for each in operations if asked(each) is not None and not each.unknown)
    command = asked(write)
    what = (op.tag(command), op.encode(command))
    assert compare([each for each in operations if asked(each) != command], commands, asked)
    assert compare(operations, [each for each in commands if each.what != what], asked)
    assert watch.check(chains, committed[:-1])
    return Counter(
        replicas_stories=1,
        replicas_operations=len(operations),
        replicas_unknown=sum(each.unknown for each in operations),
        replicas_commands=len(commands),
        replicas_watch_events=sum(len(getattr(x, "events", ())) for each in chains for x in each),
    )


def replica_stories(name: str, seeds: Iterable[int]) -> Counter[str]:
    """A story for each seed."""
    figures: Counter[str] = Counter()
    for seed in seeds:
        with TemporaryDirectory() as folder:
            figures += told_the_same(name, seed, Path(folder))
    return figures
