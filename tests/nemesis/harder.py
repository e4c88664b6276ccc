"""Faults that take more than one thing: two at once, a client, a wire that fails.

The last two need a cluster of their own, whose processes were started with Ray's own ways to make
trouble (`WIRES`); there the fault is that time goes by.
"""

from __future__ import annotations

import itertools
import json
import time
from dataclasses import dataclass, field
from typing import ClassVar, Final

import ray
from ray.util.placement_group import get_placement_group, remove_placement_group

from actors.config import ClusterConfig
from actors.ray_env import DIRECT_VARIABLE, NAMESPACE
from metaray.overview import overview
from metaray.service import start_service
from tests.nemesis.faults import (
    DETECTION_SECONDS,
    Fault,
    KillGcs,
    KillLeader,
    gone,
    log_lines,
)
from tests.nemesis.load import Load
from tests.nemesis.world import GROUPS, wait_for

PUSH_TASK: Final = "CoreWorkerService.grpc_client.PushTask"
WIRES: Final = {
    "RAY_testing_rpc_failure": json.dumps(
        {
            PUSH_TASK: {
                "num_failures": -1,
                "req_failure_prob": 3,
                "resp_failure_prob": 3,
                "in_flight_failure_prob": 2,
            }
        }
    ),
    "RAY_testing_asio_delay_us": "CoreWorkerService.grpc_server.PushTask=0:8000",
    DIRECT_VARIABLE: "off",
}
"""Everything goes by actor calls. Of every hundred three are lost before, three after they were
carried out, and two lose their answer on the way; each waits for up to 8 ms before it is taken up,
so calls overtake."""

INJECTED: Final = "Inject RPC "


@dataclass
class KillLeaderWithoutGcs(KillLeader):
    """The leader dies while Ray's control process is away: nobody is restarted until it is back."""

    name: ClassVar[str] = "kill -9 of the leader while the GCS is away"
    heals_itself: ClassVar[bool] = False
    hold: float = 5.0

    def inject(self) -> None:
        self.gcs = KillGcs(self.world, self.rng)
        self.gcs.inject()
        self.gcs.seen()
        super().inject()

    def seen(self) -> str:
        said = super().seen()
        assert gone(self.gcs.process)
        return f"without gcs_server {self.gcs.process.pid}: {said}"

    def heal(self) -> None:
        self.gcs.heal()


@dataclass
class KillClient(Fault):
    """kill -9 of a client process with calls under way; another takes its place."""

    name: ClassVar[str] = "kill -9 of a client"
    load: Load | None = None

    def inject(self) -> None:
        assert self.load is not None, "whose clients?"
        self.victim = self.load.kill_one()

    def seen(self) -> str:
        assert self.victim.returncode == -9
        return f"client process {self.victim.pid} ended by signal 9"

    def heal(self) -> None:
        assert self.load is not None, "checked above"
        self.load.start()
        self.load.wait_until_ready()

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


@dataclass
class RemovePlacement(Fault):
    """A group's placement group is removed, and all its actors with it: status says so, and
    `metaray up` makes it again over the same directories (R6)."""

    name: ClassVar[str] = "removal of a placement group"
    hold: float = 0.0

    def inject(self) -> None:
        known = self.world.statuses(self.group)
        self.before = {each["replica"] for each in known.values()}
        self.processes = [self.world.process(seat) for seat in known]
        remove_placement_group(get_placement_group(self.group))

    def seen(self) -> str:
        wait_for(lambda: all(map(gone, self.processes)), "its actors' processes are gone")

        def reported() -> list[str]:
            return [
                each
                for each in overview()["alarms"]
                if each.startswith(f"{self.group}:") and "placement" in each
            ]

        [alarm] = wait_for(reported, "status reports the group", DETECTION_SECONDS)
        return f"{len(self.processes)} processes are gone; status: {alarm}"

    def heal(self) -> None:
        for _ in start_service(ClusterConfig()):
            pass
        self.world.meet()

    def healed(self) -> None:
        after = {each["replica"] for each in self.world.statuses(self.group).values()}
        assert after == self.before, "a replica came back as somebody else"


@dataclass
class DriverExit(Fault):
    """The driver that made everything ends, as after every `metaray up`: nothing ends with it."""

    name: ClassVar[str] = "exit of the driver that made the groups"
    hold: float = 3.0

    def inject(self) -> None:
        self.job = ray.get_runtime_context().get_job_id()
        self.before = self._processes()
        ray.shutdown()

    def _processes(self) -> dict[str, int]:
        return {
            seat: int(self.world.ask(seat, "process"))
            for group in GROUPS
            for seat in self.world.seats(group)
        }

    def seen(self) -> str:
        assert not ray.is_initialized()
        return f"job {self.job} has ended"

    def heal(self) -> None:
        self.world.reconnect()

    def healed(self) -> None:
        [dead] = [each["IsDead"] for each in ray.state.jobs() if each["JobID"] == self.job]
        assert dead, "Ray does not know that the driver has ended"
        assert self._processes() == self.before, "an actor ended or began with the driver"

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


@dataclass
class FailingCalls(Fault):
    """Time goes by while actor calls and their answers are lost at random (R10)."""

    name: ClassVar[str] = "lost actor calls and answers"
    hold: float = 10.0
    before: int = field(default=0)

    def inject(self) -> None:
        self.before = log_lines(self.world, INJECTED)

    def seen(self) -> str:
        more = wait_for(
            lambda: log_lines(self.world, INJECTED) - self.before, "calls fail", DETECTION_SECONDS
        )
        return f"{more} calls have failed at once, {self.before} before"

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


@dataclass
class OvertakingCalls(Fault):
    """Time goes by while actor calls overtake each other, more than they do by themselves (R12)."""

    name: ClassVar[str] = "actor calls that overtake each other"
    hold: float = 5.0

    def inject(self) -> None:
        """The wires have been doing it since the cluster started."""

    def seen(self) -> str:
        inversions, calls = overtaken(400)
        assert inversions, "no call overtook another"
        return f"{inversions} of {calls} calls of one caller were overtaken"

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


def overtaken(calls: int) -> tuple[int, int]:
    """How many of so many calls of an async actor came in after one that was sent later."""

    class Arrivals:
        def __init__(self) -> None:
            self.numbers: list[int] = []

        async def note(self, number: int) -> None:
            self.numbers.append(number)

        async def all(self) -> list[int]:
            return self.numbers

    actor = (
        ray.remote(Arrivals)
        .options(num_cpus=0, namespace=NAMESPACE, max_concurrency=1_000, max_task_retries=0)
        .remote()
    )
    refs = [actor.note.remote(number) for number in range(calls)]
    done, _ = ray.wait(refs, num_returns=len(refs), timeout=DETECTION_SECONDS)
    numbers: list[int] = []
    deadline = time.monotonic() + DETECTION_SECONDS
    while not numbers and time.monotonic() < deadline:
        try:
            numbers = ray.get(actor.all.remote(), timeout=DETECTION_SECONDS)
        except ray.exceptions.RayError:
            continue  # this call, too, may be one of those that are lost
    ray.kill(actor)
    assert done
    return sum(a > b for a, b in itertools.pairwise(numbers)), len(numbers)
