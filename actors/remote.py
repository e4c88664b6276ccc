"""Where plain classes become Ray actors: names, options, lifetimes. The only user of `ray.remote`.

Everything lives detached in one fixed namespace, so that any driver finds it and no driver's end
takes it along. Names: `metadata-0/1` for the seat of a replica, `controller-7` for the controller
of the metadata leader's term 7 (the name of an actor on a dead node stays taken until Ray has
marked the node dead, so a new term never waits for an old name), `cache-<node id>` for the cache of
a node.

Seats restart for ever; who they are after that is decided by the directory they find (`seat.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any

import ray
from ray._private.ray_constants import LOG_PREFIX_ACTOR_NAME
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from actors import autogroup, slices
from actors.caller import Caller
from actors.calls import (
    LinkedCalls,
    LinkedGroups,
    named_actors,
    outcomes,
    service,
    start_again_if_up,
)
from actors.clock import SystemClock
from actors.controller import Controller
from actors.cpu_latency import CpuLatency
from actors.direct.listener import Listener, Service
from actors.direct.secret import Endpoint
from actors.exporter import Exporter
from actors.garbage import Garbage
from actors.job_service import RayJobs
from actors.metrics import CacheMetrics, DutyMetrics, Metrics
from actors.node_cache import NodeCache
from actors.ray_env import DATA_VARIABLE, NAMESPACE, links_allowed
from actors.seat import Seat
from actors.seat_names import LEARNERS_FOLDER
from actors.seat_spec import SeatSpec
from actors.wanted import of_kind
from state_machines.errors import Conflict, Stopped
from storage.home import DiskHome

KEEPER_SECONDS = 5.0  #: how often the metadata leader looks whether its controller is there
RETRY_SECONDS = 1.0  #: and again after Ray did not answer
ANSWER_SECONDS = 5.0  #: for the controller to answer
SILENT_LOOKS = 3  #: in a row without an answer, of a controller that has begun: it hangs
ASK_SECONDS = 30.0  #: for an answer of nodes, whose workers may have to start first
METRICS_SECONDS = 1.0  #: how often the gauges are set
GROUPS_SECONDS = 30.0  #: how often a cache looks for groups that are new
SEAT_CONCURRENCY = 10_000  #: calls that one seat works on at once
EXPORTER_NICE = 10  #: of it and its autogroup
CONTROLLER_PREFIX = "controller-"
CACHE_PREFIX = "cache-"
START = "start"  #: the actor that stands for a start that is under way
START_SECONDS = 10.0  #: until its name is free again
POLL_SECONDS = 0.05  #: between two looks whether it is
HISTORY = "history-exporter"  #: the actor that exports the operation history
ANALYTICS = "analytics"  #: the resource of nodes that are there for readers of many rows
ANALYTICS_SHARE = 0.001  #: of it for an actor: it is there to be near, not to be alone
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

log = logging.getLogger(__name__)


def _options(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_task_retries": 0,
    }


class SeatActor(Seat):
    """A seat in its actor: it starts itself, because Ray restarts it without asking anyone."""

    async def __init__(self, spec: SeatSpec) -> None:  # type: ignore[misc]  # Ray awaits it
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        voter_of_metadata = spec.kind == "metadata" and not spec.learner
        autogroup.begin(spec.settings.metadata_nice if voter_of_metadata else 0)
        slices.shorten(spec.settings.metadata_slice_us if voter_of_metadata else 0)
        data = os.environ.get(DATA_VARIABLE, "")
        self._keeper: ControllerKeeper | None = None
        self._endpoint: Endpoint | None = None
        self._garbage: Garbage | None = None
        self._cpu_latency = CpuLatency(spec.settings.cpu_latency_us)
        super().__init__(
            spec,
            home=DiskHome(Path(data) / LEARNERS_FOLDER if spec.learner else Path(data)),
            calls=LinkedCalls(),
            clock=SystemClock(),
            rng=SystemRandom(),
            leadership=self._on_leadership,
        )
        if spec.keeps_controller:
            self._keeper = ControllerKeeper(spec)
        if not data:
            self._fault = f"{DATA_VARIABLE} is not set on this node; set it before `ray start`"
            return
        self._metrics = Metrics(spec.group, spec.seat)
        self._gauge()
        await self._listen()
        await self.start()
        self._garbage = Garbage(SystemRandom())

    async def _listen(self) -> None:
        """Offer the direct transport on this node's address, as others reach it."""
        if not links_allowed():
            return
        listener = Listener(service(self))
        try:
            self._endpoint = await listener.open(self.spec.seat, ray.util.get_node_ip_address())
        except OSError as error:
            log.warning("%s: no direct transport, actor calls only: %s", self.spec.seat, error)

    def endpoint(self) -> Endpoint | None:
        """Where this process listens, None if it does not, and the secret that opens it."""
        return self._endpoint

    def _gauge(self) -> None:
        if self.replica is not None:
            self._metrics.set(self.replica)
        if self._garbage is not None:
            self._garbage.collect()
        self._cpu_latency.look(time.monotonic(), time.process_time())
        asyncio.get_running_loop().call_later(METRICS_SECONDS, self._gauge)

    def node(self) -> str:
        """The Ray node this seat's actor runs on (hex id)."""
        return str(ray.get_runtime_context().get_node_id())

    def process(self) -> int:
        """The process id of this seat's actor, for operators and fault tests."""
        return os.getpid()

    def _on_leadership(self, term: int, leads: bool) -> None:
        # Ray takes an actor's name for its logs from such lines; it asks for `repr` only once.
        for stream in (sys.stdout, sys.stderr):
            print(f"{LOG_PREFIX_ACTOR_NAME}{self!r}", file=stream, flush=True)
        if self._keeper is not None:
            self._keeper.leadership(term if leads else 0)


class ControllerActor(Controller):
    """The controller in its actor."""

    async def __init__(self, epoch: int, spec: SeatSpec) -> None:  # type: ignore[misc]
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        groups = LinkedGroups()
        # An actor whose constructor raises is dead for good: Ray restarts it no more. A control
        # service that is slow just now is asked again by the duties.
        with contextlib.suppress(Stopped, ray.exceptions.RayError):
            await groups.refresh()
        super().__init__(
            epoch=epoch,
            caller=Caller(groups, timeout_ms=5_000, rng=SystemRandom()),
            groups=groups,
            calls=LinkedCalls(),
            settings=spec.settings,
            clock=SystemClock(),
            node=ray.get_runtime_context().get_node_id(),
            jobs=RayJobs(),
            expected=spec.groups,
        )
        self._metrics = DutyMetrics()
        self._gauge()
        self.start()

    def process(self) -> int:
        """The process id, for operators and fault tests."""
        return os.getpid()

    def _gauge(self) -> None:
        self._metrics.set(self.status()["duties"])
        asyncio.get_running_loop().call_later(METRICS_SECONDS, self._gauge)


class CacheActor(NodeCache):
    """The cache of a node in its actor. It starts over empty with each process, so it is not
    restarted: whoever misses it makes the next one."""

    async def __init__(self) -> None:  # type: ignore[misc]  # Ray awaits it
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        self._named = LinkedGroups()
        super().__init__(
            Caller(self._named, rng=SystemRandom()),
            lambda kind: of_kind(self._named.groups(), kind),
        )
        await self._look_for_groups()
        self._looking = asyncio.get_running_loop().create_task(self._keep_looking())
        self._node = str(ray.get_runtime_context().get_node_id())
        self._endpoint: Endpoint | None = None
        self._metrics = CacheMetrics(self._node)
        self._gauge()
        if links_allowed():
            calls = {"read": self.read, "watch": self.watch}
            listener = Listener(Service(calls=calls, posts={}, polls=frozenset({"watch"})))
            try:
                self._endpoint = await listener.open(
                    f"{CACHE_PREFIX}{self._node}", ray.util.get_node_ip_address()
                )
            except OSError as error:
                log.warning("cache: no direct transport, actor calls only: %s", error)

    async def _look_for_groups(self) -> None:
        with contextlib.suppress(Stopped, ray.exceptions.RayError):
            await self._named.refresh()

    async def _keep_looking(self) -> None:
        """There may be a group more; there is no event for it."""
        while True:
            await asyncio.sleep(GROUPS_SECONDS if self._named.groups() else METRICS_SECONDS)
            await self._look_for_groups()

    def endpoint(self) -> Endpoint | None:
        """Where this process listens, None if it does not, and the secret that opens it."""
        return self._endpoint

    def _gauge(self) -> None:
        self.drop_idle()
        self._metrics.set(self.status())
        asyncio.get_running_loop().call_later(METRICS_SECONDS, self._gauge)

    def node(self) -> str:
        """The Ray node it serves (hex id)."""
        return self._node

    def process(self) -> int:
        """The process id, for operators and fault tests."""
        return os.getpid()


class ExporterActor(Exporter):
    """An exporter in its actor, which gives way to the replicas of its node."""

    def __init__(self) -> None:
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT)
        os.nice(EXPORTER_NICE)  # where there are no autogroups
        autogroup.begin(EXPORTER_NICE)
        super().__init__(SystemClock())


class ControllerKeeper:
    """Keeps the controller of the metadata leader's term alive on the leader's own node.

    Ray starts one again whose process has ended, but nothing tells of a process that hangs, and
    then nobody looks after brokers, timers and leases. So it is asked for an answer at each look.
    """

    def __init__(self, spec: SeatSpec) -> None:
        self._spec = spec
        self._term = 0
        self._led = 0  # the last term in which it led
        self._silent_looks = 0
        self._told = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def leadership(self, term: int) -> None:
        """This seat's metadata replica leads in `term`, or (0) does not."""
        self._term = term
        self._led = term or self._led
        self._told.set()
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        """Make it so: at most one controller of ours, of the term in force. While it leads it looks
        again, because nothing tells of a controller that is gone."""
        done = -1
        while self._term or done:
            self._told.clear()
            term, seconds = self._term, KEEPER_SECONDS
            try:
                await asyncio.to_thread(self._settle, term, self._led)
                done = term
            except Exception:  # Ray's control service may be away; there is no event for it
                log.exception("%s: controller of term %d", self._spec.seat, term)
                seconds = RETRY_SECONDS
            if self._term or done:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._told.wait(), seconds)

    def _settle(self, term: int, led: int) -> None:
        own = f"{CONTROLLER_PREFIX}{term}"
        names = named_actors()
        for name in sorted(names):
            if not name.startswith(CONTROLLER_PREFIX) or name == own:
                continue
            if int(name.removeprefix(CONTROLLER_PREFIX)) <= led:  # a newer leader's stays
                kill(name)
        if term and own not in names:
            create_controller(term, self._spec)
            self._silent_looks = 0
            log.info("%s: made %s on its node", self._spec.seat, own)
        elif term:
            self._look_after(own)

    def _look_after(self, own: str) -> None:
        """Have it started again if it hangs; one that begins may take its time."""
        self._silent_looks = 0 if answers(own, ANSWER_SECONDS) else self._silent_looks + 1
        if self._silent_looks >= SILENT_LOOKS:
            self._silent_looks = 0
            if start_again_if_up(own):
                log.warning("%s: %s does not answer, it is started again", self._spec.seat, own)


# -- making and ending -------------------------------------------------------------------------


def create_seat(spec: SeatSpec, group: PlacementGroup, bundle: int, cpus: float) -> Any:
    """Make the actor of one seat inside its bundle. Returns its handle; it starts by itself."""
    return (
        ray.remote(SeatActor)
        .options(
            **_options(spec.seat),
            num_cpus=cpus,
            max_concurrency=SEAT_CONCURRENCY,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=bundle
            ),
        )
        .remote(spec)
    )


def create_controller(epoch: int, spec: SeatSpec) -> None:
    """Make the controller of a term on this process's node, for good or until it is killed."""
    node = str(ray.get_runtime_context().get_node_id())
    ray.remote(ControllerActor).options(
        **_options(f"{CONTROLLER_PREFIX}{epoch}"),
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote(epoch, spec)


def node_cache() -> str:
    """The name of the cache of this process's node; it is made if there is none."""
    node = str(ray.get_runtime_context().get_node_id())
    name = f"{CACHE_PREFIX}{node}"
    ray.remote(CacheActor).options(
        **{**_options(name), "max_restarts": 0},
        get_if_exists=True,
        num_cpus=0,
        max_concurrency=SEAT_CONCURRENCY,
        scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
    ).remote()
    return name


def ask_nodes(nodes: Sequence[str], question: Callable[..., Any], *args: Any) -> dict[str, Any]:
    """What a plain function returns on each of these nodes (hex ids), or why it did not."""
    asked = {
        node: ray.remote(question)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote(*args)
        for node in nodes
    }
    return outcomes(asked, ASK_SECONDS)


def create_exporter(node: str) -> Any:
    """Make an exporter on a node (hex id). It has no name and ends with the process that asks."""
    return (
        ray.remote(ExporterActor)
        .options(
            num_cpus=0,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        .remote()
    )


def end_exporter(handle: Any) -> None:
    """End it, and with it what it has open."""
    ray.kill(handle, no_restart=True)


def create_history(kind: type[Any], *given: Any) -> Any:
    """Make the exporter of the operation history, a plain class of a floor above, unless it is
    there. On a node for analytics if a living one is. Returns its handle; it starts by itself."""
    nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
    near = any(ANALYTICS in each for each in nodes)
    return (
        ray.remote(kind)
        .options(
            **_options(HISTORY),
            get_if_exists=True,
            num_cpus=0,
            resources={ANALYTICS: ANALYTICS_SHARE} if near else {},
        )
        .remote(*given)
    )


class StartActor:
    """Stands for a start that is under way, by its name alone."""


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """One start at a time on a Ray cluster: two take each other's places for left over.

    Raises Conflict while another one is under way. It is this process's actor, so it ends with it.
    """
    try:
        guard = (
            ray.remote(StartActor)
            .options(name=START, namespace=NAMESPACE, num_cpus=0, max_task_retries=0)
            .remote()
        )
    except ValueError:
        raise Conflict(
            "another start is under way on this Ray cluster; wait for it to end, then start again"
        ) from None
    try:
        yield
    finally:
        ray.kill(guard, no_restart=True)
        deadline = time.monotonic() + START_SECONDS
        while START in named_actors() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def answers(name: str, seconds: float) -> bool:
    """Whether an actor that can say where it stands does so in time."""
    try:
        ray.get(ray.get_actor(name, namespace=NAMESPACE).node.remote(), timeout=seconds)
    except (ValueError, ray.exceptions.RayError):
        return False
    return True


def kill(name: str) -> None:
    """End a named actor for good; harmless when there is none."""
    try:
        handle = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return
    ray.kill(handle, no_restart=True)
