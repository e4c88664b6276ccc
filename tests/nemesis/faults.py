"""What is done to the cluster. Each fault is injected, seen to have happened, and healed.

A run counts only if every fault it planned was *seen*: the process gone, the process stopped, the
leader another one, the control process's port closed. `seen` waits for the evidence and says it in
words; a fault that cannot show itself fails the run, because it would have proved nothing.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import psutil
import ray

from actors import calls, placement
from metaray.local.processes import kill, marked
from tests.nemesis.world import GROUPS, World, head_family, start_head, wait_for

DETECTION_SECONDS = 60.0  #: until a death that Ray tells, or an election, must have been seen
RETURN_SECONDS = 180.0  #: until what was killed must be back, on a machine however busy


def gone(process: psutil.Process) -> bool:
    """Whether this very process has ended; a zombie has."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@dataclass
class Fault(ABC):
    """One fault. A class may be used once."""

    name: ClassVar[str]
    heals_itself: ClassVar[bool] = False  #: recovery is counted from the fault, not from `heal`
    world: World
    rng: Random
    group: str = "offset-0"
    hold: float = 0.0  #: seconds between the evidence and the healing, under load

    @abstractmethod
    def inject(self) -> None:
        """Do it."""

    @abstractmethod
    def seen(self) -> str:
        """The evidence that it happened. Raises Late."""

    def heal(self) -> None:  # noqa: B027 - most faults come back by themselves
        """Undo what does not come back by itself."""

    def healed(self) -> None:  # noqa: B027 - the groups being whole is often all
        """What must hold once all groups are whole again."""

    def hurts(self) -> tuple[str, ...]:
        """The groups it hits."""
        return (self.group,)


@dataclass
class KillFollower(Fault):
    """kill -9 of a follower's process: Ray restarts it over its directory."""

    name: ClassVar[str] = "kill -9 of a follower"
    heals_itself: ClassVar[bool] = True

    def victim(self) -> dict[str, Any]:
        return self.world.follower(self.group)

    def inject(self) -> None:
        self.before = self.victim()
        self.process = self.world.process(self.before["seat"])
        self.process.kill()

    def seen(self) -> str:
        wait_for(lambda: gone(self.process), f"process {self.process.pid} is gone")
        return f"{self.before['seat']}: process {self.process.pid} is gone"

    def healed(self) -> None:
        after = self.world.ask(self.before["seat"], "status")
        assert after["replica"] == self.before["replica"], "it came back as somebody else"
        assert after["boot"] > self.before["boot"], "it never started again"


@dataclass
class KillLeader(KillFollower):
    """kill -9 of the leader's process."""

    name: ClassVar[str] = "kill -9 of the leader"

    def victim(self) -> dict[str, Any]:
        return self.world.must_lead(self.group)

    def seen(self) -> str:
        said = super().seen()
        new = wait_for(
            lambda: _newer(self.world, self.group, self.before["term"]),
            f"{self.group} has a leader of a later term",
            DETECTION_SECONDS,
        )
        return f"{said}; {new['seat']} leads in term {new['term']} after {self.before['term']}"


def another_node(world: World, seat: str, group: str) -> int:
    """The node of a seat, or else of another of its group: not the head, and not the one that this
    process has joined, with which it would go."""
    spared = {0, world.own_node()}
    nodes = map(world.node_of, [seat, *world.seats(group)])
    return next(index for index in nodes if index not in spared)


def _newer(world: World, group: str, term: int) -> dict[str, Any] | None:
    leads = world.leader(group)
    return leads if leads is not None and leads["term"] > term else None


@dataclass
class FreezeLeader(Fault):
    """SIGSTOP of the leader's process for `seconds`, then SIGCONT."""

    name: ClassVar[str] = "SIGSTOP of the leader"
    seconds: float = 2.0

    def inject(self) -> None:
        self.before = self.world.must_lead(self.group)
        self.process = self.world.process(self.before["seat"])
        self.process.suspend()
        self.stopped = time.monotonic()

    def seen(self) -> str:
        wait_for(lambda: self.process.status() == psutil.STATUS_STOPPED, "the process is stopped")
        said = f"{self.before['seat']}: process {self.process.pid} is in state T"
        time.sleep(max(0.0, self.stopped + self.seconds - time.monotonic()))
        if self.seconds > 5:  # longer than the longest election timeout, and an election
            new = wait_for(
                lambda: _newer(self.world, self.group, self.before["term"]),
                f"{self.group} has a leader of a later term",
                DETECTION_SECONDS,
            )
            said += f"; {new['seat']} leads in term {new['term']}"
        return said

    def heal(self) -> None:
        self.process.resume()

    def healed(self) -> None:
        assert not gone(self.process), "a process that was only stopped has ended"


@dataclass
class KillNode(Fault):
    """A node dies with all it carries, and returns over its data (R5, R21)."""

    name: ClassVar[str] = "loss and return of a node"
    hold: float = 4.0

    def inject(self) -> None:
        self.index = another_node(self.world, self.world.must_lead(self.group)["seat"], self.group)
        self.before = {
            each["seat"]: each["replica"]
            for group in GROUPS
            for each in self.world.statuses(group).values()
        }
        self.id = self._living()
        assert self.id
        self.world.kill_node(self.index)

    def _living(self) -> str:
        name = self.world.cluster.nodes[self.index].name
        alive = [
            each["NodeID"]
            for each in ray.nodes()
            if each["Alive"] and each["NodeName"].endswith(f"/{name}")
        ]
        return str(alive[0]) if alive else ""

    def seen(self) -> str:
        node = self.world.cluster.nodes[self.index]
        assert not node.alive
        wait_for(lambda: not self._living(), f"Ray knows {node.name} dead", DETECTION_SECONDS)

        def alarming() -> dict[str, str]:
            states = placement.states()
            waiting = {g: s for g, s in states.items() if s in placement.ALARMING}
            return waiting if len(waiting) == len(GROUPS) else {}

        states = wait_for(alarming, "the placement groups lack a node", DETECTION_SECONDS)
        for group in GROUPS:  # two of three serve, without anyone's help
            self.world.must_lead(group)
        return f"{node.name} is dead; placement {sorted(set(states.values()))}; two of three lead"

    def heal(self) -> None:
        self.world.start_node(self.index)

    def healed(self) -> None:
        after = {
            each["seat"]: each["replica"]
            for group in GROUPS
            for each in self.world.statuses(group).values()
        }
        assert after == self.before, "a replica came back as somebody else"
        wait_for(
            lambda: set(placement.states().values()) == {placement.READY}, "all bundles have nodes"
        )
        assert self._living() != self.id, "Ray gave the returned node its old id"

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


@dataclass
class KillGcs(Fault):
    """Ray's control process (GCS) is killed, and executed again over its tables (R22)."""

    name: ClassVar[str] = "loss and return of the GCS"
    hold: float = 10.0

    def inject(self) -> None:
        self.terms = self.world.terms()
        self.process = self.world.head_process("gcs_server")
        self.command, self.environment = self.process.cmdline(), self.process.environ()
        self.home = self.process.cwd()
        self.process.kill()

    def seen(self) -> str:
        wait_for(lambda: gone(self.process), "the process is gone")
        wait_for(lambda: not answers(self.world.cluster.address), "nobody listens at its port")
        return f"gcs_server {self.process.pid} is gone, {self.world.cluster.address} is closed"

    def heal(self) -> None:
        log = self.world.cluster.data / "logs" / "gcs_server.again.log"
        with log.open("ab") as output:
            self.again = subprocess.Popen(
                self.command,
                env=self.environment,
                cwd=self.home,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        wait_for(lambda: answers(self.world.cluster.address), "it listens again", RETURN_SECONDS)
        wait_for_control()

    def healed(self) -> None:
        elections = {
            group: (self.terms[group], term)
            for group, term in self.world.terms().items()
            if term != self.terms[group]
        }
        assert not elections, f"groups elected although only the GCS was away: {elections}"
        assert len([each for each in ray.nodes() if each["Alive"]]) == len(self.world.cluster.nodes)

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


def answers(address: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
        return True
    return False


def wait_for_control() -> None:
    """Ray's control process knows the names of the seats again."""
    wait_for(
        lambda: any(name.startswith(GROUPS[0]) for name in calls.named_actors()),
        "Ray knows its actors again",
        RETURN_SECONDS,
    )


@dataclass
class KillHead(KillGcs):
    """The head goes as a whole, GCS, raylet and all, and is started again on its port."""

    name: ClassVar[str] = "loss and return of the head"

    def inject(self) -> None:
        self.terms = self.world.terms()
        self.process = self.world.head_process("gcs_server")
        self.family = head_family(self.world.cluster)
        assert not kill(self.family), "processes of the head do not end"

    def seen(self) -> str:
        said = super().seen()
        assert all(gone(each) for each in self.family)
        return f"{said}; {len(self.family)} processes of the head are gone"

    def heal(self) -> None:
        port = int(self.world.cluster.address.rpartition(":")[2])
        (self.world.cluster.temporary / "ray_current_cluster").unlink(missing_ok=True)
        self.world.cluster = start_head(self.world.cluster, port)
        self.world.reconnect()


@dataclass
class WipeReplica(Fault):
    """A replica's directory is removed and its process killed: repair brings a new member."""

    name: ClassVar[str] = "loss of a replica's disk"
    heals_itself: ClassVar[bool] = True

    def inject(self) -> None:
        self.before = self.world.follower(self.group)
        self.path = self.world.directory(self.group, self.before["replica"])
        self.process = self.world.process(self.before["seat"])
        shutil.rmtree(self.path)
        self.process.kill()

    def seen(self) -> str:
        wait_for(lambda: gone(self.process), "the process is gone")

        def replaced() -> int:
            known = self.world.statuses(self.group).get(self.before["seat"])
            return int(known["replica"]) if known else 0

        new = wait_for(replaced, "the vacant seat was given a replica", RETURN_SECONDS)
        assert new != self.before["replica"], "it speaks as the one that is lost"
        return f"{self.before['seat']}: {self.before['replica']:x} is lost, {new:x} takes its seat"

    def healed(self) -> None:
        voters = self.world.must_lead(self.group)["voters"]
        assert self.before["replica"] not in voters
        assert not self.path.exists()


@dataclass
class TransferLeader(Fault):
    """The leadership is handed to another voter."""

    name: ClassVar[str] = "transfer of the leadership"
    heals_itself: ClassVar[bool] = True

    def inject(self) -> None:
        self.before = self.world.must_lead(self.group)
        self.target = self.world.follower(self.group)
        self.world.ask(self.before["seat"], "transfer", self.target["replica"])

    def seen(self) -> str:
        def handed() -> dict[str, Any] | None:
            leads = _newer(self.world, self.group, self.before["term"])
            return leads

        new = wait_for(handed, "a later term has a leader", DETECTION_SECONDS)
        # A target that is late loses the election to the timeout of another: that is no fault.
        to = "the target" if new["seat"] == self.target["seat"] else "another"
        return f"{self.before['seat']} handed over, {new['seat']} ({to}) leads"


@dataclass
class KillController(Fault):
    """kill -9 of the controller: Ray restarts it beside the metadata leader."""

    name: ClassVar[str] = "kill -9 of the controller"
    heals_itself: ClassVar[bool] = True
    group: str = "metadata-0"

    def standing(self) -> psutil.Process | None:
        """The process of the only controller that there is."""
        homes = {str(node.data) for node in self.world.cluster.nodes}
        found = [
            each
            for each in marked(self.world.cluster.mark, homes)
            if "".join(each.cmdline()[:1]).startswith("ray::ControllerActor")
        ]
        return found[0] if len(found) == 1 else None

    def inject(self) -> None:
        self.process = wait_for(self.standing, "there is one controller")
        self.process.kill()

    def seen(self) -> str:
        wait_for(lambda: gone(self.process), "the process is gone")
        return f"controller process {self.process.pid} is gone"

    def heal(self) -> None:
        def works() -> bool:
            term = self.world.must_lead("metadata-0")["term"]
            name = f"controller-{term}"
            if name not in calls.named_actors():
                return False
            status = calls.each_call([name], "status", seconds=2.0)[name]
            return isinstance(status, dict) and all(
                duty["runs"] and not duty["last_error"] for duty in status["duties"].values()
            )

        wait_for(works, "the leader's controller does all its duties", RETURN_SECONDS)


@dataclass
class FreezeController(KillController):
    """SIGSTOP of the controller, for good: its keeper has Ray start it again."""

    name: ClassVar[str] = "SIGSTOP of the controller"

    def inject(self) -> None:
        self.process = wait_for(self.standing, "there is one controller")
        self.process.suspend()

    def seen(self) -> str:
        wait_for(lambda: self.process.status() == psutil.STATUS_STOPPED, "the process is stopped")
        return f"controller process {self.process.pid} is in state T"

    def healed(self) -> None:
        assert gone(self.process), "the process that hangs is still there"


@dataclass
class FreezeSeat(KillFollower):
    """SIGSTOP of a follower's process, for good: the controller has Ray start it again."""

    name: ClassVar[str] = "SIGSTOP of a follower"

    def inject(self) -> None:
        self.before = self.victim()
        self.process = self.world.process(self.before["seat"])
        self.process.suspend()

    def heal(self) -> None:
        wait_for(lambda: gone(self.process), "the process that hangs was ended", RETURN_SECONDS)


@dataclass
class FreezeNode(Fault):
    """SIGSTOP of a raylet: Ray takes the node for dead while its replicas live on (R2)."""

    name: ClassVar[str] = "SIGSTOP of a raylet"

    def inject(self) -> None:
        self.index = another_node(self.world, self.world.follower(self.group)["seat"], self.group)
        node = self.world.cluster.nodes[self.index]
        root = psutil.Process(node.pid)
        [self.process] = [each for each in root.children(recursive=True) if each.name() == "raylet"]
        self.process.suspend()

    def seen(self) -> str:
        wait_for(lambda: self.process.status() == psutil.STATUS_STOPPED, "the raylet is stopped")
        name = self.world.cluster.nodes[self.index].name

        def dead() -> bool:
            return not [
                each
                for each in ray.nodes()
                if each["Alive"] and each["NodeName"].endswith(f"/{name}")
            ]

        wait_for(dead, f"Ray takes {name} for dead", DETECTION_SECONDS)
        return f"raylet {self.process.pid} of {name} is in state T, Ray takes the node for dead"

    def heal(self) -> None:
        self.process.resume()
        node = self.world.cluster.nodes[self.index]
        wait_for(
            lambda: not node.alive, "a raylet that was given up ends itself", DETECTION_SECONDS
        )
        self.world.kill_node(self.index)
        self.world.start_node(self.index)

    def hurts(self) -> tuple[str, ...]:
        return GROUPS


def log_lines(world: World, words: str) -> int:
    """How many lines of Ray's logs say so."""
    logs: Path = world.cluster.temporary / "session_latest" / "logs"
    count = 0
    for path in logs.rglob("*"):
        if path.is_file() and not path.is_symlink():
            count += path.read_bytes().count(words.encode())
    return count
