"""Groups, seats and the caller in one, for a controller: what is asked is answered from lists."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from actors.caller import Caller
from actors.config import RaftSettings
from actors.controller import Controller, Record
from actors.duties.liveness import Liveness
from actors.duties.repair import Repair
from actors.duties.timers import Timers
from actors.seat_names import is_learner, learners_among
from state_machines.metadata.config import Config, ConfigPage, ListConfigs
from state_machines.metadata.duty import ListPauses, Pause
from state_machines.metadata.node import ListNodes, Node, NodePage
from state_machines.moment import GetTime
from state_machines.mqtt.pulse import NextDue, Pulse, PulseReply
from tests.actors.virtual_time import VirtualClock

SETTINGS = RaftSettings(
    heartbeat_check_ms=1_000,
    timer_check_ms=3_000,
    repair_check_ms=5_000,
    heartbeat_timeout_ms=30_000,
)


@dataclass
class Fakes:
    """The caller, the groups and the seats' methods in one."""

    nodes: list[Node] = field(default_factory=list)
    due: dict[str, list[int]] = field(default_factory=dict)
    statuses: dict[str, Any] = field(default_factory=dict)
    called: list[tuple[str, Any]] = field(default_factory=list)
    acted: list[tuple[str, str, tuple[Any, ...]]] = field(default_factory=list)
    started_again: list[str] = field(default_factory=list)
    beginning: set[str] = field(default_factory=set)  # seats whose actors Ray has begun, no more
    fail: dict[type, BaseException] = field(default_factory=dict)
    once: set[type] = field(default_factory=set)  # of these, which fail the first time only
    hang: set[type] = field(default_factory=set)
    frozen: set[str] = field(default_factory=set)  # seats
    pauses: list[Pause] = field(default_factory=list)
    configs: list[Config] = field(default_factory=list)
    answer_seconds: float = 0.0
    closed: bool = False

    async def call(self, first: Any, *rest: Any, group: str = "") -> Any:
        if isinstance(first, str):
            await asyncio.sleep(self.answer_seconds)
            if first in self.frozen:
                await asyncio.get_running_loop().create_future()
            return self.method(first, *rest)
        await asyncio.sleep(0)
        if type(first) in self.hang:
            await asyncio.get_running_loop().create_future()
        if type(first) in self.fail:
            self.called.append((group, first))
            raise self.fail.pop(type(first)) if type(first) in self.once else self.fail[type(first)]
        if isinstance(first, ListPauses):
            return tuple(self.pauses)
        if isinstance(first, ListConfigs):
            return ConfigPage(tuple(self.configs), b"")
        if isinstance(first, GetTime):
            return now_ms()
        self.called.append((group, first))
        match first:
            case ListNodes(after=after):
                at = int(after or b"0")
                following = at + 2 < len(self.nodes)
                return NodePage(
                    tuple(self.nodes[at : at + 2]), b"%d" % (at + 2) if following else b""
                )
            case NextDue():
                return self.due[group][0] if self.due.get(group) else 0
            case Pulse():
                self.due[group].pop(0)
                next_ms = self.due[group][0] if self.due[group] else 0
                return PulseReply(wills=1, sessions=0, retained=0, next_due_ms=next_ms)
        return None

    async def start_again(self, seat: str) -> bool:
        self.started_again.append(seat)
        return seat not in self.beginning

    def method(self, seat: str, method: str, *args: Any) -> Any:
        if method == "status":
            status = self.statuses[seat]
            if isinstance(status, BaseException):
                raise status
            return status
        self.acted.append((seat, method, args))
        if method in self.fail:  # type: ignore[comparison-overlap]
            raise self.fail[cast(Any, method)]
        return None

    def groups(self) -> Sequence[str]:
        return sorted({seat.rpartition("/")[0] for seat in self.statuses} | {*self.due})

    def seats(self, group: str) -> Sequence[str]:
        named = sorted(seat for seat in self.statuses if seat.startswith(f"{group}/"))
        return [seat for seat in named if not is_learner(seat)]

    def learners(self, group: str) -> Sequence[str]:
        return learners_among(seat for seat in self.statuses if seat.startswith(f"{group}/"))

    async def refresh(self) -> None:
        """They are known."""

    async def close(self) -> None:
        self.closed = True


def made(fakes: Fakes, epoch: int = 4) -> Controller:
    return Controller(
        epoch=epoch,
        caller=cast(Caller, fakes),
        groups=cast(Any, fakes),
        calls=cast(Any, fakes),
        settings=SETTINGS,
        clock=VirtualClock(),
        node="n1",
        duties=(Liveness, Timers, Repair),
    )


def record(controller: Controller, duty: str) -> Record:
    return controller.records[duty]


def runs(controller: Controller) -> dict[str, int]:
    return {name: each.runs for name, each in controller.records.items()}


def shown(controller: Controller, duty: str) -> Any:
    return controller.status()["duties"][duty]


def now_ms() -> int:
    return VirtualClock().now_ms()


def operations(fakes: Fakes) -> list[type]:
    return [type(each) for _, each in fakes.called]


def status(replica: int, role: str = "follower", **more: Any) -> dict[str, Any]:
    return {
        "status": "active",
        "replica": replica,
        "role": role,
        "term": 3,
        "cluster": "c",
        "seat": f"g-0/{replica - 1}",
        "group_seats": ["g-0/0", "g-0/1", "g-0/2"],
        **more,
    }


def leading(**more: Any) -> dict[str, Any]:
    return status(
        1,
        "leader",
        **{
            "voters": [1, 2, 3],
            "outgoing": [],
            "learners": [],
            "progress": {},
            "last_index": 10,
            "commit": 10,
            "configuration_index": 1,
            **more,
        },
    )


VACANT = {"status": "vacant", "replica": 0, "role": "vacant", "term": 0}
