"""A real group and real clients over real sockets, on wires that are treated badly one way at a
time: what clients are told is linearizable, is what every log says, and the group serves again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from actors.caller import Caller
from actors.direct import links
from state_machines import op
from state_machines.metadata.kv import PutKv
from tests.actors.at_seat import has_applied, status
from tests.actors.direct.wire import Wire
from tests.actors.direct.wired import CLIENTS, Wired, WiredGroup
from tests.actors.wires import QUICK, eventually
from tests.history import linearizable
from tests.history.logged import agreed, commands_in, compare, read_log
from tests.history.models import MODELS
from tests.history.operation import Recorder
from tests.history.replicas import Client
from tests.history.validation import KEYS, asked_of

SEED = 3
CALLERS = 4
CALLS = 15  #: answers to each of them, before a fault and after it
DAMAGES = 12  #: pieces that are treated badly
SHARE = 0.03  #: of all pieces
PIECE_BYTES_MAX = 400  #: few frames come whole
LATE_SECONDS = 0.01
BULK = "bulk"  #: a key that only fills buffers
BULK_BYTES = 512 << 10


@dataclass(slots=True)
class Story:
    """A group, and callers who ask all the time."""

    group: WiredGroup
    leader: str
    recorder: Recorder = field(default_factory=Recorder)
    callers: list[Client] = field(default_factory=list)
    over: bool = False

    @property
    def wired(self) -> Wired:
        return self.group.wired

    async def ask(self, caller: Client) -> None:
        """Until the story is over."""
        while not self.over:
            await caller.ask()

    async def answered(self, calls: int = CALLS) -> None:
        """Wait until each caller was answered so often from now on."""
        wanted = [(each, each.answered + calls) for each in self.callers]
        await eventually(lambda: all(each.answered >= count for each, count in wanted))

    async def another_leads(self) -> None:
        """Wait until the leader is one that did not lead when the story began."""

        def leads() -> bool:
            return any(
                seat.replica is not None and seat.replica.leads
                for name, seat in self.wired.living.items()
                if name != self.leader
            )

        await eventually(leads)

    async def alike(self) -> None:
        """Wait until every replica has applied what is committed now."""
        seats = self.wired.living.values()
        commit = max(status(each)["commit"] for each in seats)
        await eventually(lambda: all(has_applied(each, commit) for each in seats))


Fault = Callable[[Story], Awaitable[None]]
"""Hurts the wires, and returns once that was felt."""


def damage(treat: Callable[[Wire, Random, bytes], list[bytes]]) -> Fault:
    """Some pieces on all wires are treated so."""

    async def hurt(story: Story) -> None:
        luck, done = story.wired.luck, 0

        def piece(wire: Wire, data: bytes) -> list[bytes]:
            nonlocal done
            if luck.random() >= SHARE:
                return [data]
            done += 1
            return treat(wire, luck, data)

        before = story.wired.connections
        for wire in story.wired.laid.values():
            wire.pieces_max = PIECE_BYTES_MAX
            wire.there = wire.back = partial(piece, wire)
        await eventually(lambda: done >= DAMAGES and story.wired.connections > before)

    return hurt


def broken(wire: Wire, luck: Random, data: bytes) -> list[bytes]:
    """The connection ends in the middle of it."""
    asyncio.get_running_loop().call_soon(wire.cut)
    return [data[: len(data) // 2]]


def flipped(wire: Wire, luck: Random, data: bytes) -> list[bytes]:
    """One bit of it changes."""
    changed = bytearray(data)
    changed[luck.randrange(len(changed))] ^= 1 << luck.randrange(8)
    return [bytes(changed)]


def doubled(wire: Wire, luck: Random, data: bytes) -> list[bytes]:
    """It comes twice."""
    return [data, data]


def swapped(wire: Wire, luck: Random, data: bytes) -> list[bytes]:
    """Its second half comes first."""
    half = len(data) // 2
    return [data[half:], data[:half]]


def missing(wire: Wire, luck: Random, data: bytes) -> list[bytes]:
    """It never comes, and what follows does."""
    return []


async def late(story: Story) -> None:
    """Bytes come late and a few at a time."""
    for wire in story.wired.laid.values():
        wire.delay, wire.pieces_max = LATE_SECONDS, PIECE_BYTES_MAX
    await story.answered()


async def half_open(story: Story) -> None:
    """Nothing that the leader says or is told comes through, and its connections stay."""
    for wire in story.wired.wires_of(story.leader):
        wire.there = wire.back = lambda data: []
    await story.another_leads()
    await story.answered(1)
    story.wired.heal()
    for wire in story.wired.wires_of(story.leader):
        wire.cut()  # as the kernel does in the end


async def cut_off(story: Story) -> None:
    """The leader has no connection to other replicas, and gets none; callers reach it."""
    for (source, seat), wire in story.wired.laid.items():
        if story.leader in (source, seat) and source != CLIENTS:
            wire.down = True
            wire.cut()
    await story.another_leads()
    await story.answered(1)


async def slow_reader(story: Story) -> None:
    """One follower does not read what the leader sends, until no more is kept for it."""
    transport = story.wired.living[story.leader]._transport
    assert transport is not None
    follower = next(each for each in story.wired.living if each != story.leader)
    story.wired.laid[story.leader, follower].reads.clear()
    bulk = PutKv(key=BULK, value=bytes(BULK_BYTES))
    # Not one of the callers': what they note of a reply is theirs while they call one at a time.
    filler = Caller(story.wired, rng=story.wired.luck)
    try:
        async with asyncio.timeout(20):
            while not transport.dropped:
                await filler.call(bulk)
    finally:
        await filler.close()
    await story.answered()


FAULTS: dict[str, Fault] = {
    "broken": damage(broken),
    "flipped": damage(flipped),
    "doubled": damage(doubled),
    "swapped": damage(swapped),
    "missing": damage(missing),
    "late": late,
    "half-open": half_open,
    "cut off": cut_off,
    "slow reader": slow_reader,
}


async def tell(group: WiredGroup, hurt: Fault) -> Recorder:
    """Calm, hurt, calm again."""
    story = Story(group, await group.begin())
    story.callers = [
        Client("register", group, story.recorder, number, SEED) for number in range(CALLERS)
    ]
    try:
        async with asyncio.TaskGroup() as asking:
            for each in story.callers:
                asking.create_task(story.ask(each))
            await story.answered()
            await hurt(story)
            story.wired.heal()
            await story.answered()
            await eventually(lambda: story.wired.linked)
            await story.alike()
            story.over = True
    finally:
        for each in story.callers:
            await each.caller.close()
    return story.recorder


@pytest.mark.parametrize("fault", FAULTS)
def test_a_group_over_bad_wires(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "BUFFER_BYTES_MAX", 256 << 10)
    settings = replace(QUICK, log_keep_entries=1_000_000)  # no log is cut short

    async def run() -> Recorder:
        group = WiredGroup(tmp_path, settings=settings, rng=Random(SEED), wires=Wired(SEED))
        try:
            return await tell(group, FAULTS[fault])
        finally:
            await group.close()

    operations = asyncio.run(run()).operations()
    verdict = linearizable.check(operations, MODELS["register"])
    assert verdict.legal, str(verdict)
    logs = [read_log(path.parent) for path in tmp_path.glob("*/*/*/log")]
    assert len(logs) == 3
    filling = op.tag(PutKv(key=BULK, value=b""))
    commands = [
        each
        for each in commands_in(agreed(logs))
        if each.tag != filling or op.decode(op.COMMANDS, *each.what).key in KEYS
    ]
    assert compare(operations, commands, asked_of("register")) == []
