"""A leader's clock leaps ahead by six hours, for two minutes: nobody who is heard is expired, and
who falls silent then, or afterwards, is found in the usual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import pytest

from actors.caller import Caller
from actors.config import RaftSettings
from actors.stamps import FASTEST, SLOWEST, Stamps
from state_machines.lease import GetLease, GrantLeases, KeepLeases, LeaseRequest
from state_machines.limits import CLIENTS_MAX
from state_machines.metadata.node import HeartbeatNode, ListNodes, RegisterNode
from state_machines.metadata.node_event import EXPIRED, ListNodeEvents
from state_machines.mqtt.session import CloseSession, GetSession, OpenSession
from tests.simulation.plan import Plan
from tests.simulation.wills import quiet
from tests.simulation.world import Clock, World

GROUPS: Final = ("metadata-0", "mqtt-0")
BROKERS: Final = ("stays", "dies in the leap", "dies afterwards")
LEAP_MS: Final = 6 * 3_600_000
LEAP_SECONDS: Final = 120.0
BEAT_SECONDS: Final = 10.0  #: three in a timeout
TIMEOUT_SECONDS: Final = 30.0
SLACK_SECONDS: Final = 6.0  #: the controller's look, and calls
EXPIRY_S: Final = 7_200  #: of a session without a client; less than the leap, more than the test


class Story:
    """The brokers of a world, each until it is told to stop, and one who keeps a lease alive."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.silent: set[str] = set()
        self.process, self.caller = world.client("operator")
        self.lease_id = 0
        self.tasks = [world.loop.start(self.process, self._keep())]
        for name in BROKERS:
            process, caller = world.client(name)
            self.tasks.append(world.loop.start(process, self._beat(caller, name)))

    async def _keep(self) -> None:
        item = LeaseRequest(owner="o", ttl_ms=int(TIMEOUT_SECONDS * 1_000))
        [grant] = await self.caller.call(GrantLeases(items=(item,)), group="mqtt-0")
        self.lease_id = grant.lease_id
        while True:
            await self.caller.call(KeepLeases(items=(self.lease_id,)), group="mqtt-0")
            await asyncio.sleep(BEAT_SECONDS)

    async def _beat(self, caller: Caller, name: str) -> None:
        row = RegisterNode(node_id=name, addresses=(), roles=(), start_ms=1)
        epoch = (await caller.call(row)).epoch
        while name not in self.silent:
            await caller.call(HeartbeatNode(node_id=name, epoch=epoch))
            await asyncio.sleep(BEAT_SECONDS)

    def call(self, operation: Any, group: str = "") -> Any:
        """One call, from outside of the loop."""
        task = self.world.loop.start(self.process, self.caller.call(operation, group=group))
        assert self.world.loop.run(task.done, self.world.loop.now + 60.0), operation
        return task.result()

    def expired(self) -> set[str]:
        """The brokers that ever were, also those that came back with their next heartbeat."""
        events = self.call(ListNodeEvents()).events
        return {each.node_id for each in events if each.what == EXPIRED}

    def until(self, seen: Callable[[], bool], limit: float) -> float:
        """How long it took."""
        began = self.world.loop.now
        while not seen():
            assert self.world.loop.now - began < limit, "it took too long"
            self.live(0.5)
        return self.world.loop.now - began

    def live(self, seconds: float) -> None:
        self.world.loop.run(lambda: False, self.world.loop.now + seconds)

    def leaders(self) -> list[str]:
        found = [self.world.leader(group) for group in GROUPS]
        return [each[0] for each in found if each is not None]

    def clocks(self) -> list[Clock]:
        """Of the hosts that lead."""
        return [self.world.clocks[each] for each in {s.rpartition("/")[2] for s in self.leaders()}]


def played(seed: int, *, another_leads: bool) -> None:
    plan = Plan(
        seed=seed,
        replicas=3,
        spares=0,
        groups=GROUPS,
        clients=0,
        links=False,
        remembered=CLIENTS_MAX,
        settings=RaftSettings(heartbeat_timeout_ms=int(TIMEOUT_SECONDS * 1_000)),
        faults=(),
    )
    with quiet():
        world = World(plan)
        try:
            world.found()
            _play(world, another_leads=another_leads)
        finally:
            world.end()


def _play(world: World, *, another_leads: bool) -> None:
    story = Story(world)
    story.until(lambda: len(story.call(ListNodes()).nodes) == len(BROKERS), 30.0)
    epoch = story.call(OpenSession(client_id="c", broker="stays", expiry_s=EXPIRY_S)).epoch
    story.call(CloseSession(client_id="c", epoch=epoch))
    story.live(TIMEOUT_SECONDS)

    def all_is_well() -> None:
        assert story.expired() <= story.silent, "who is heard was expired"
        lease = story.call(GetLease(lease_id=story.lease_id), "mqtt-0")
        assert lease is not None, "the lease of one who is heard has ended"
        assert story.call(GetSession(client_id="c")) is not None, "a session has ended"
        assert sum(task.done() for task in story.tasks) == len(story.silent)

    right = list(world.clocks.values())
    for clock in story.clocks():
        clock.jump_ms += LEAP_MS
    ends = world.loop.now + LEAP_SECONDS
    story.live(BEAT_SECONDS)
    all_is_well()
    story.silent.add("dies in the leap")
    took = story.until(lambda: "dies in the leap" in story.expired(), 2 * TIMEOUT_SECONDS)
    least = TIMEOUT_SECONDS / FASTEST - BEAT_SECONDS
    assert least <= took <= TIMEOUT_SECONDS + SLACK_SECONDS
    while world.loop.now < ends:
        all_is_well()
        story.live(BEAT_SECONDS)
    if another_leads:
        for seat in story.leaders():
            world.kill(seat)
        story.until(lambda: len(story.leaders()) == len(GROUPS), 30.0)
    else:
        for clock in right:
            clock.jump_ms = 0
    story.live(BEAT_SECONDS)
    all_is_well()
    story.silent.add("dies afterwards")
    took = story.until(lambda: "dies afterwards" in story.expired(), 3 * TIMEOUT_SECONDS)
    assert took <= TIMEOUT_SECONDS / SLOWEST + SLACK_SECONDS
    all_is_well()


@pytest.mark.parametrize("another_leads", [False, True])
def test_nobody_who_is_heard_is_expired_and_who_falls_silent_is_found(another_leads: bool) -> None:
    played(1, another_leads=another_leads)


def test_stamps_that_are_the_wall_clock_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Stamps, "_now", lambda self: (float(self._clock.now_ms()), self._clock.uptime())
    )
    with pytest.raises(AssertionError, match="who is heard"):
        played(1, another_leads=False)
