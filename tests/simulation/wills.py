"""A will's life, with its leader killed at any step of it (design 5.8).

Five clients connect with a will and lose their connection in five ways; two brokers claim what has
fired, publish it and acknowledge it. One run kills the leader of `mqtt-0` at its k-th happening (a
tick, a message, a job of a disk), sometimes the controller and the metadata leader with it, and
whoever was killed comes back a while later. Whatever k is:

- a will that is to be sent has one outbox id, and is published;
- never before `min(delay, expiry)` has passed since its connection was lost (MQTT 5, 3.1.3.2.2);
- never if its client came back in time or said goodbye, nor after that.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from actors.caller import Caller
from actors.config import RaftSettings
from state_machines.errors import MetarayError
from state_machines.limits import CLIENTS_MAX
from state_machines.mqtt.pulse import NextDue
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from state_machines.mqtt.will import AckOutbox, ClaimOutbox, Outbox, PendingOutbox, SetWill
from tests.simulation.plan import Plan
from tests.simulation.world import WALL_MS, World

GROUPS: Final = ("metadata-0", "mqtt-0")
BROKERS: Final = ("near", "far")
STORY_SECONDS: Final = 120.0  #: virtual; far more than two elections and every delay
AWAY_SECONDS: Final = 0.7  #: until who was killed is started again
BACK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Life:
    """How one client fares. Seconds, as MQTT has them."""

    client: str
    delay_s: int
    expiry_s: int
    graceful: bool = False
    comes_back: bool = False

    @property
    def silent(self) -> bool:
        """Whether its will is not to be sent."""
        return self.graceful or self.comes_back


LIVES: Final = (
    Life("delayed", delay_s=2, expiry_s=60),
    Life("expired", delay_s=60, expiry_s=2),
    Life("at once", delay_s=0, expiry_s=60),
    Life("back", delay_s=9, expiry_s=60, comes_back=True),
    Life("goodbye", delay_s=1, expiry_s=60, graceful=True),
)


@dataclass(slots=True)
class Published:
    """A will that a broker has sent, and when by the wall clock."""

    row: Outbox
    at_ms: int


@dataclass(slots=True)
class Story:
    """What came of a run."""

    happenings: int = 0  #: from the first client on
    killed: tuple[str, ...] = ()
    published: list[Published] = field(default_factory=list)
    lost_ms: dict[str, int] = field(default_factory=dict)  #: earliest end of its connection
    back_ms: int = 0  #: when it was connected again, by the group's time


class Stage(World):
    """A world in which somebody is killed at a happening."""

    def __init__(self, plan: Plan, story: Story, kill_at: int, *, controller: bool) -> None:
        self._story = story
        self._kill_at = kill_at
        self._controller = controller
        self._begun = 0
        super().__init__(plan)

    def begin(self) -> None:
        """Happenings count from here."""
        self._begun = self.happenings

    def event(self, kind: str, who: str, what: Any) -> None:
        super().event(kind, who, what)
        if self._begun:
            self._story.happenings = self.happenings - self._begun
            if self._story.happenings == self._kill_at:
                self.at(0.0, self._strike)

    def _strike(self) -> None:
        groups = GROUPS if self._controller else GROUPS[1:]
        leaders = [found[0] for group in groups if (found := self.leader(group)) is not None]
        doomed = leaders + [each.name for each in self.controllers.values() if self._controller]
        self._story.killed = tuple(doomed)
        for name in doomed:
            self.kill(name)
        for name in leaders:
            self.at(AWAY_SECONDS, lambda seat=name: self.start_seat(seat))

    @property
    def now_ms(self) -> int:
        """The wall clock that all hosts share here."""
        return WALL_MS + int(self.loop.now * 1_000)


def play(seed: int, kill_at: int = 0, *, controller: bool = False) -> Story:
    """One run; `kill_at` 0 kills nobody. Raises AssertionError for a promise that was broken."""
    plan = Plan(
        seed=seed,
        replicas=3,
        spares=0,
        groups=GROUPS,
        clients=0,
        links=seed % 2 == 0,
        remembered=CLIENTS_MAX,
        settings=RaftSettings(timer_check_ms=200, heartbeat_check_ms=3_000, flush_interval_ms=500),
        faults=(),
    )
    story = Story()
    with quiet():
        stage = Stage(plan, story, kill_at, controller=controller)
        try:
            _play(stage, story)
        finally:
            stage.end()
    judge(story)
    return story


def stories(count: int, first: int = 0) -> Iterator[tuple[int, int, bool]]:
    """Seed, happening to kill at, and whether the controller dies too: `count` of them, evenly over
    a whole life."""
    for number in range(first, count):
        yield number, 1 + number * shortest() // count, number % 3 == 2


@cache
def shortest() -> int:
    """How many happenings a life has at least."""
    return min(play(seed).happenings for seed in (0, 1))


def _play(stage: Stage, story: Story) -> None:
    stage.found()

    def led() -> bool:
        return all(stage.leader(group) is not None for group in GROUPS) and bool(stage.controllers)

    assert stage.loop.run(led, stage.loop.now + STORY_SECONDS), "the groups have no leaders"
    process, caller = stage.client("clients")
    stage.begin()
    lives = [stage.loop.start(process, _live(stage, story, caller, each)) for each in LIVES]
    for name in BROKERS:
        broker, calls = stage.client(name)
        stage.loop.start(broker, _publish(stage, story, calls, name))
    deadline = stage.loop.now + STORY_SECONDS
    assert stage.loop.run(lambda: all(each.done() for each in lives), deadline), "clients wait"
    for each in lives:
        each.result()
    last = stage.loop.start(process, _nothing_left(stage, caller))
    assert stage.loop.run(last.done, deadline), "wills or timers are left"
    last.result()


async def _insist(caller: Caller, asked: Any) -> Any:
    """Ask until there is an answer; the commands here may be repeated."""
    while True:
        try:
            return await caller.call(asked)
        except MetarayError as error:
            if error.code in ("UNKNOWN", "NO_QUORUM"):
                continue
            raise


async def _live(stage: Stage, story: Story, caller: Caller, life: Life) -> None:
    client = life.client
    connect = OpenSession(client_id=client, broker=BROKERS[0], expiry_s=life.expiry_s)
    epoch = (await _insist(caller, connect)).epoch
    await _insist(
        caller,
        SetWill(
            client_id=client,
            epoch=epoch,
            topic=f"gone/{client}",
            payload=client.encode(),
            delay_s=life.delay_s,
        ),
    )
    story.lost_ms[client] = stage.now_ms
    lost = CloseSession(client_id=client, epoch=epoch, graceful=life.graceful)
    await _insist(caller, lost)
    if life.comes_back:
        await asyncio.sleep(BACK_SECONDS)
        await _insist(caller, connect)
        session = await _insist(caller, GetSession(client_id=client))
        story.back_ms = session.connected_ms


async def _publish(stage: Stage, story: Story, caller: Caller, name: str) -> None:
    while True:
        claim = ClaimOutbox(broker=name, lease_ms=3_000, grace_ms=1_500)
        for row in await _insist(caller, claim):
            story.published.append(Published(row, stage.now_ms))
            await _insist(caller, AckOutbox(broker=name, ids=(row.outbox_id,)))
        await asyncio.sleep(0.3)


async def _nothing_left(stage: Stage, caller: Caller) -> None:
    """Until every timer that can still matter has fired and everything is acknowledged."""
    last_ms = max(
        story_ms + (min(life.delay_s, life.expiry_s) + 3) * 1_000
        for life in LIVES
        if (story_ms := stage._story.lost_ms[life.client])
    )
    while True:
        pending = await _insist(caller, PendingOutbox())
        due = await _insist(caller, NextDue())
        if stage.now_ms > last_ms and not pending.waiting and not 0 < due <= stage.now_ms:
            return
        await asyncio.sleep(0.2)


def judge(story: Story) -> None:
    """Raise AssertionError unless every will was treated as its life says."""
    sent: defaultdict[str, list[Published]] = defaultdict(list)
    for each in story.published:
        sent[each.row.client_id].append(each)
    for life in LIVES:
        found = sent[life.client]
        ids = {each.row.outbox_id for each in found}
        due_ms = story.lost_ms[life.client] + min(life.delay_s, life.expiry_s) * 1_000
        early = [each for each in found if min(each.at_ms, each.row.fired_ms) < due_ms]
        assert not early, f"{life.client}: sent before {due_ms}: {early}"
        if not life.silent:
            assert len(ids) == 1, f"{life.client}: outbox ids {sorted(ids)}, one is right"
        elif life.graceful or story.back_ms < due_ms:
            assert not found, f"{life.client}: sent though it should not be: {found}"


@contextmanager
def quiet() -> Iterator[None]:
    """As `run.run` does it: no log, and no collection that would act in the middle."""
    level, collecting = logging.root.manager.disable, gc.isenabled()
    logging.disable(max(level, logging.CRITICAL))
    gc.disable()
    try:
        yield
    finally:
        logging.disable(level)
        if collecting:
            gc.enable()
