"""What a seed has in store: the size of the cluster, its settings, and a list of faults.

Swarm testing (Groce and others, 2012): each run draws a few kinds of fault and leaves the others
out, because kinds hide each other. A fault is data and names its targets by role, so that a list
from which some were struck still makes sense; that is what minimising a failure does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from actors.answers import ROWS_MAX
from actors.config import RaftSettings
from actors.seat_names import kind_of
from state_machines.limits import CLIENTS_MAX

SAFETY_SECONDS = 5.0  #: of trouble, before the group has to get well again

NETWORK = (
    "drop",
    "lost answers",
    "duplicate",
    "delay",
    "partition",
    "one-way partition",
    "bridge",
    "clog",
    "isolate leader",
    "isolate minority",
    "ghosts",
    "corrupt chunks",
    "links reset",
    "links half-open",
    "slow readers",
)
PROCESSES = (
    "crash",
    "crash leader",
    "crash in recovery",
    "crash all",
    "crash in a job",
    "host down",
    "pause",
    "pause leader",
    "stutter",
    "client crash",
    "controller crash",
    "controller pause",
)
DISKS = ("slow disk", "disk full", "sync error", "bit flip", "wipe")
TIME = ("clock rate", "clock jump")
OPERATORS = ("grow", "replace", "shrink", "transfer", "campaign")
LOAD = ("burst", "quiet")
GROUP_DOWN = "group down"  #: only where a kind has two
KINDS = NETWORK + PROCESSES + DISKS + TIME + OPERATORS + LOAD


@dataclass(frozen=True, slots=True)
class Fault:
    """Trouble of one kind. `seed` draws its targets and its strength."""

    kind: str
    at: float
    seconds: float
    seed: int

    def __str__(self) -> str:
        return f"{self.at:7.3f} s  {self.kind}, for {self.seconds:.3f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    replicas: int
    spares: int
    groups: tuple[str, ...]
    clients: int
    links: bool  #: the direct transport, or actor calls only
    remembered: int  #: clients that a group remembers; one more and it forgets the oldest
    settings: RaftSettings
    faults: tuple[Fault, ...]
    learners: int = 0  #: of each group; a seed draws none
    settled: bool = False  #: kinds with two groups have given out their slots before trouble
    single_rows: int = ROWS_MAX  #: at a storage thread at a time; other reads wait for their turn

    @property
    def pair(self) -> tuple[str, ...]:
        """The groups of the kind that has two; a seed draws none."""
        return tuple(each for each in self.groups if f"{kind_of(each)}-1" in self.groups)


def draw(seed: int) -> Plan:
    """The plan of a seed."""
    rng = Random(f"plan {seed}")
    groups = rng.choice(
        (("metadata-0",),) * 4
        + (
            ("metadata-0", "offset-0"),
            ("metadata-0", "mqtt-0"),
            ("metadata-0", "offset-0", "mqtt-0"),
        )
    )
    replicas = rng.choice((1, 3, 3, 3, 3, 5)) if len(groups) == 1 else 3
    kinds = rng.sample(KINDS, rng.randrange(3, 9))
    faults = []
    for _ in range(rng.randrange(3, 12)):
        kind = rng.choice(kinds)
        at = rng.random() * (SAFETY_SECONDS - 1.0) + 0.5
        seconds = 0.05 * (80 ** rng.random())  # 50 ms to 4 s, short ones as likely as long ones
        faults.append(Fault(kind, round(at, 3), round(seconds, 3), rng.randrange(2**32)))
    faults.sort(key=lambda fault: fault.at)
    return Plan(
        seed=seed,
        replicas=replicas,
        spares=rng.choice((0, 1, 2)) if replicas > 1 else rng.choice((0, 2)),
        groups=groups,
        clients=rng.randrange(1, 4),
        links=rng.random() < 0.75,
        remembered=rng.choice((2, 4, CLIENTS_MAX, CLIENTS_MAX, CLIENTS_MAX)),
        settings=RaftSettings(
            tick_ms=50,
            heartbeat_interval_ms=rng.choice((200, 250, 350)),
            election_timeout_min_ms=rng.choice((800, 1_500)),
            election_timeout_max_ms=rng.choice((1_600, 3_000)),
            write_timeout_ms=8_000,
            flush_interval_ms=rng.choice((200, 500, 1_000, 3_000)),
            log_keep_entries=rng.choice((1, 3, 10, 50, 2_000)),
            batch_linger_ms=rng.choice((0, 0, 0, 20)),
            batch_max=rng.choice((1, 3, 1_000)),
            order_check_ms=2_500,
            heartbeat_check_ms=3_000,
            timer_check_ms=2_000,
            repair_check_ms=1_500,
            journal_bytes=rng.choice((4, 16, 256)) << 10,
        ),
        faults=tuple(faults),
        single_rows=Random(f"rows {seed}").choice((1, 1, 2, ROWS_MAX)),
    )


def doubled(plan: Plan) -> Plan:
    """The same trouble for a kind that has two groups, and now and then all of one of them dies. In
    one seed of three the trouble begins before their slots are given out."""
    rng = Random(f"groups {plan.seed}")
    kind = rng.choice(("offset", "mqtt", "metadata"))
    groups = tuple(dict.fromkeys(("metadata-0", f"{kind}-0", f"{kind}-1")))
    down = [
        Fault(GROUP_DOWN, round(0.5 + 4.0 * rng.random(), 3), 0.2 + 2.0 * rng.random(), number)
        for number in range(rng.randrange(3))
    ]
    return replace(
        plan,
        groups=groups,
        replicas=min(plan.replicas, 3),
        settled=rng.random() < 2 / 3,
        faults=tuple(sorted((*plan.faults, *down), key=lambda fault: fault.at)),
    )
