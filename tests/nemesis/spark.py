"""What is done to the pipeline while the service is under load: to Spark's processes, to the node
they run on, to the replica that an export reads.

Whatever comes of the job, it must come of it in time: a report that is right, or one line with a
typed error, and never a hanging process. What the service's clients saw meanwhile is judged like
any other history, and their latencies are told beside those of the calm before (`run.Episode`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil
import ray
from ray._private import state  # the public look at actors needs the dashboard

from metaray.local.processes import marked
from metaray.where import ADDRESS_VARIABLE
from tests.nemesis.faults import RETURN_SECONDS, Fault, KillNode, gone
from tests.nemesis.load import ROOT
from tests.nemesis.world import GROUPS, World, wait_for

SPARK_SECONDS: Final = 600.0  #: for a job on a machine however busy
EXECUTOR: Final = "raydp-executor-"
MASTER: Final = "RAY_APP_MASTER"
EXPORTS: Final = 3  #: that must have been whole after the fault


def spark_actors() -> list[str]:
    """The names of Spark's actors: its application master and its executors."""
    return [
        each for each in ray.util.list_named_actors() if each == MASTER or each.startswith(EXECUTOR)
    ]


def spark_processes() -> dict[str, psutil.Process]:
    """The same, by name, that have a process: a name is given before there is one."""
    found = {}
    for actor in state.actors(actor_state_name="ALIVE").values():
        if actor["Name"] == MASTER or actor["Name"].startswith(EXECUTOR):
            with contextlib.suppress(psutil.NoSuchProcess):
                found[actor["Name"]] = psutil.Process(actor["Pid"])
    return found


def java_processes(world: World) -> list[psutil.Process]:
    """Spark's Java processes on the cluster's nodes."""
    homes = {str(node.data) for node in world.cluster.nodes}
    return [each for each in marked(world.cluster.mark, homes) if each.name() == "java"]


@dataclass
class Beside(Fault):
    """A process of the pipeline that works while the cluster is hurt, and what it said."""

    command: ClassVar[str] = "report"

    def begin(self, *words: str) -> None:
        """Start it."""
        self.log = self.world.cluster.data / "logs" / f"{self.command}.log"
        with self.log.open("wb") as output:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "tests.nemesis", self.command, *words],
                cwd=ROOT,
                env={
                    **os.environ,
                    **self.world.cluster.environment(),
                    ADDRESS_VARIABLE: self.world.cluster.address,
                },
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def said(self) -> str:
        """What it has printed."""
        return self.log.read_text(errors="replace")

    def end(self, seconds: float) -> str:
        """Wait for its end: in time, right or with a typed error, and told in one line."""
        try:
            status = self.running.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it hangs:\n{self.said()[-3_000:]}") from None
        finally:
            self.abandon()
        said = self.said()
        assert status in (0, 2), f"it ended with status {status}:\n{said[-3_000:]}"
        # A raylet that dies says its last words here too, indented.
        return [line for line in said.splitlines() if line[:1].strip()][-1]

    def abandon(self) -> None:
        """Nothing of it stays."""
        if self.running.poll() is None:
            self.running.kill()
            self.running.wait()

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


@dataclass
class SparkBeside(Beside):
    """A report by RayDP on the same nodes while everything goes on."""

    name: ClassVar[str] = "a Spark job beside"

    def inject(self) -> None:
        self.begin(str(self.world.cluster.data / "report"))

    def seen(self) -> str:
        def machines() -> list[psutil.Process]:
            ended = self.running.poll()
            assert ended in (None, 0), f"the report failed:\n{self.said()[-3_000:]}"
            return java_processes(self.world)

        try:
            javas = wait_for(machines, "Spark's Java processes run", SPARK_SECONDS)
            told = self.end(SPARK_SECONDS)
        finally:
            self.abandon()
        assert told == "raydp", f"Spark did not run on the cluster:\n{self.said()[-3_000:]}"
        return f"the report is made, Spark ran on the cluster ({len(javas)} Java processes seen)"


@dataclass
class HurtSpark(Beside):
    """A report by Spark on the cluster, hurt once its actors are there."""

    def inject(self) -> None:
        assert not spark_actors(), "a Spark of an earlier fault is still there"
        self.begin(str(self.world.cluster.data / "report"))

    def hurt(self, actors: Mapping[str, psutil.Process]) -> str:
        """Do it; the evidence. Here nothing: the node that goes is hurt elsewhere."""
        return f"{len(actors)} actors of Spark"

    def _at_work(self) -> Mapping[str, psutil.Process]:
        assert self.running.poll() is None, f"the report ended:\n{self.said()[-3_000:]}"
        found = spark_processes()
        return found if MASTER in found and any(map(_is_executor, found)) else {}

    def seen(self) -> str:
        try:
            actors = wait_for(self._at_work, "Spark's actors are there", SPARK_SECONDS)
            evidence = self.hurt(actors)
            told = self.end(SPARK_SECONDS)
        finally:
            self.abandon()
        return f"{evidence}; the report: {told}"

    def healed(self) -> None:
        wait_for(lambda: not spark_actors(), "nothing is left of Spark", RETURN_SECONDS)


def _is_executor(name: str) -> bool:
    return name.startswith(EXECUTOR)


def _killed(name: str, process: psutil.Process) -> str:
    """Kill an actor's process; the evidence. Ray may start it again."""
    ray.kill(ray.get_actor(name), no_restart=False)
    wait_for(lambda: gone(process), f"the process of {name} is gone", RETURN_SECONDS)
    return f"{name}: process {process.pid} is gone"


@dataclass
class KillExecutor(HurtSpark):
    """An executor's process dies in mid-job."""

    name: ClassVar[str] = "death of a Spark executor"

    def hurt(self, actors: Mapping[str, psutil.Process]) -> str:
        name = next(filter(_is_executor, actors))
        return _killed(name, actors[name])


@dataclass
class KillAppMaster(HurtSpark):
    """The application master, which knows Spark's executors, dies in mid-job."""

    name: ClassVar[str] = "death of Spark's application master"

    def hurt(self, actors: Mapping[str, psutil.Process]) -> str:
        return _killed(MASTER, actors[MASTER])


@dataclass
class StarveSpark(Beside):
    """A job that needs more memory than its executor has."""

    name: ClassVar[str] = "Spark out of memory"
    command: ClassVar[str] = "hog"

    def inject(self) -> None:
        self.begin(str(self.world.cluster.data / "hog"))

    def seen(self) -> str:
        try:
            told = self.end(SPARK_SECONDS)
        finally:
            self.abandon()
        assert "JobFailed" in told, f"it should not have had the memory:\n{self.said()[-3_000:]}"
        return told

    def healed(self) -> None:
        wait_for(lambda: not spark_actors(), "nothing is left of Spark", RETURN_SECONDS)


@dataclass
class LoseSparkNode(KillNode):
    """A node dies with all it carries while a report runs, and returns over its data."""

    name: ClassVar[str] = "loss of a node under a Spark job"

    def inject(self) -> None:
        self.report = HurtSpark(self.world, self.rng)
        self.report.inject()
        try:
            wait_for(self.report._at_work, "Spark's actors are there", SPARK_SECONDS)
            super().inject()
        except BaseException:
            self.report.abandon()
            raise

    def seen(self) -> str:
        try:
            evidence = super().seen()
            told = self.report.end(SPARK_SECONDS)
        finally:
            self.report.abandon()
        return f"{evidence}; the report: {told}"

    def healed(self) -> None:
        super().healed()
        self.report.healed()


@dataclass
class KillExportReplica(Beside):
    """kill -9 of the replicas that exports read, one group after another, while one export follows
    upon the other: each is whole by its manifest, or was refused by name."""

    name: ClassVar[str] = "kill -9 of replicas under an export"
    command: ClassVar[str] = "exports"

    def inject(self) -> None:
        self.out = self.world.cluster.data / "exports"
        self.begin(str(self.out))

    def _done(self) -> int:
        assert self.running.poll() is None, f"the exports ended:\n{self.said()[-3_000:]}"
        return len(_lines(self.log))

    def seen(self) -> str:
        try:
            wait_for(self._done, "a first export is done", RETURN_SECONDS)
            killed = []
            for group in GROUPS:
                process = self.world.process(self.world.follower(group)["seat"])
                process.kill()
                wait_for(lambda process=process: gone(process), "the process is gone")  # type: ignore[misc]
                killed.append(process.pid)
                there = self._done()
                wait_for(lambda there=there: self._done() > there, "the exports go on")  # type: ignore[misc]
            there = self._done()
            wait_for(lambda: self._done() >= there + EXPORTS, "and on", RETURN_SECONDS)
            assert self.running.stdin is not None, "it was started with one"
            self.running.stdin.close()
            self.end(RETURN_SECONDS)
        finally:
            self.abandon()
        lines = _lines(self.log)
        refused = [each["error"] for each in lines if "error" in each]
        whole = len(lines) - len(refused)
        assert whole, f"no export was whole: {refused}"
        return f"{len(killed)} processes are gone; {whole} exports whole, {len(refused)} refused"


def _lines(log: Path) -> list[dict[str, Any]]:
    found = []
    for line in log.read_text(errors="replace").splitlines():
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    return [each for each in found if isinstance(each, dict)]
