"""What a replica knows because of its role, and only while it has it.

A field that makes sense in one role alone lives here and not in the core: there is no progress to
look at in a follower, and no leader to follow in a candidate.

    Follower --silence--> PreCandidate --a quorum would--> Candidate --a quorum does--> Leader
    any role --higher term, or a leader of this term--> Follower
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from state_machines.raft.progress import Progress
from state_machines.raft.reads import Reads


@dataclass(slots=True)
class Follower:
    """Appends what the leader sends. Also what learners and removed replicas are."""

    name: ClassVar[str] = "follower"
    leader: int = 0  #: 0 while this term's leader has not been heard


@dataclass(slots=True)
class PreCandidate:
    """Asks who would vote for it in the next term, and stays in its own meanwhile."""

    name: ClassVar[str] = "pre-candidate"
    votes: dict[int, bool] = field(default_factory=dict)


@dataclass(slots=True)
class Candidate:
    """Has voted for itself in a new term, and asks for the votes of the others."""

    name: ClassVar[str] = "candidate"
    votes: dict[int, bool] = field(default_factory=dict)
    transfer: bool = False  #: whether the leader has asked it to stand (thesis 3.10)


@dataclass(slots=True)
class Transfer:
    """Leadership on its way to `target`; given up after an election timeout."""

    target: int
    elapsed: int = 0


@dataclass(slots=True)
class Leader:
    """Owns the log of its term. `noop_index` is its first entry: until that is committed it knows
    neither what is committed nor which configuration is, so reads and changes wait for it."""

    name: ClassVar[str] = "leader"
    noop_index: int
    progress: dict[int, Progress] = field(default_factory=dict)  #: of every other member, sorted
    reads: Reads = field(default_factory=Reads)
    uncommitted_bytes: int = 0
    heartbeat_elapsed: int = 0
    transfer: Transfer | None = None
    outrun_at: int = -1  #: its durable index at the last look, if less than what was committed


Role: TypeAlias = Follower | PreCandidate | Candidate | Leader
