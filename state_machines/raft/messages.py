"""What the core is told and what it says: entries, messages, and `Ready`.

Every type is frozen: a message cannot be edited after it was sent. Ids are replica ids (positive
64-bit integers, 0 means nobody); an index of 0 is "before the first entry".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class EntryKind(IntEnum):
    """What an entry's data is."""

    NORMAL = 0  #: a batch of commands, or empty: the no-op of a new leader
    CONFIGURATION = 1  #: an encoded `Configuration`


MEMBERS_MAX = 64
"""Voters of a configuration, and learners: an entry that names more cannot be read."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """Who votes and who only listens. Joint while `outgoing` is not empty (Raft, section 6).

    Every tuple is sorted and has no duplicates. A replica in `outgoing` but not in `voters` is on
    its way out; one in `learners` gets entries and has no vote.
    """

    voters: tuple[int, ...] = ()
    outgoing: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    @property
    def joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)

    def has_vote(self, replica: int) -> bool:
        """Whether it has a vote: in either half, if there are two."""
        return replica in self.voters or replica in self.outgoing

    @property
    def members(self) -> tuple[int, ...]:
        """Everyone who gets entries, sorted."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))


@dataclass(frozen=True, slots=True)
class Entry:
    """One record of a group's log. `configuration` is set exactly when kind is CONFIGURATION."""

    term: int
    index: int
    data: bytes = b""
    kind: EntryKind = EntryKind.NORMAL
    configuration: Configuration | None = None


@dataclass(frozen=True, slots=True)
class HardState:
    """What must survive a crash beside the entries. `commit` is a hint, never relied on."""

    term: int = 0
    vote: int = 0
    commit: int = 0


@dataclass(frozen=True, slots=True)
class SnapshotMeta:
    """The state at one index: everything up to and including `index` is in it."""

    index: int
    term: int
    configuration: Configuration


@dataclass(frozen=True, slots=True)
class Message:
    """One message between two replicas, in the sender's term (for pre-votes: the term it seeks)."""

    sender: int
    receiver: int
    term: int


@dataclass(frozen=True, slots=True)
class RequestVote(Message):
    """A candidate asks for a vote (5.2), or with `pre` whether it would get one (thesis 9.6)."""

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False  #: the leader asked for it (thesis 3.10): leases do not refuse


@dataclass(frozen=True, slots=True)
class VoteReply(Message):
    """The answer to `RequestVote`."""

    granted: bool
    pre: bool = False


@dataclass(frozen=True, slots=True)
class Append(Message):
    """Entries that follow (prev_index, prev_term), and how far the leader has committed (5.3)."""

    prev_index: int
    prev_term: int
    commit: int
    entries: tuple[Entry, ...] = ()


@dataclass(frozen=True, slots=True)
class AppendReply(Message):
    """Accepted: the log agrees up to `match_index`. Rejected: `match_index` is the refused
    prev_index, and the conflict pair is the last position that may still agree (5.3)."""

    match_index: int
    rejected: bool = False
    conflict_index: int = 0
    conflict_term: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat(Message):
    """The leader is here. `round` identifies a read round and is never used twice (6.4)."""

    commit: int
    round: int = 0


@dataclass(frozen=True, slots=True)
class HeartbeatReply(Message):
    """Echoes the round it answers."""

    round: int = 0


@dataclass(frozen=True, slots=True)
class TimeoutNow(Message):
    """Leader transfer: start an election at once (thesis 3.10)."""


@dataclass(frozen=True, slots=True)
class InstallSnapshot(Message):
    """A whole snapshot has been received and verified by the shell; may it be installed?"""

    meta: SnapshotMeta


@dataclass(frozen=True, slots=True)
class ReadState:
    """The read with this context is safe once the state has applied `index` (thesis 6.4)."""

    context: int
    index: int


@dataclass(frozen=True, slots=True)
class Ready:
    """One turn's worth of work for the shell. The order of the fields is the law.

    1. `messages` promise nothing and may leave at once (a leader's appends leave while it saves).
    2. `snapshot`, then `entries` (which replace whatever the log holds from their first index on)
       and `hard_state` are saved in one synced transaction.
    3. `promises` (votes, answers to appends) leave only after that save.
    4. `committed` is applied in order. It never reaches past what this replica has saved.
    5. `reads` may be answered once their index is applied.
    6. `snapshot_to`: these peers need what the log no longer has; stream them the state.

    While one save is under way (between `ready()` that handed it out and `advance`), further
    calls of `ready()` hand out everything but a save and its promises.
    """

    messages: tuple[Message, ...] = ()
    snapshot: SnapshotMeta | None = None
    entries: tuple[Entry, ...] = ()
    hard_state: HardState | None = None
    promises: tuple[Message, ...] = ()
    committed: tuple[Entry, ...] = ()
    reads: tuple[ReadState, ...] = ()
    snapshot_to: tuple[int, ...] = ()

    @property
    def must_save(self) -> bool:
        """Whether `advance` has to follow."""
        return (
            self.snapshot is not None or bool(self.entries) or self.hard_state is not None
        ) or bool(self.promises)
