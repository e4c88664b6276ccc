"""What one replica knows and what it is about to say: the state beneath the rules of `core`.

Messages go to one of two lists. `_promises` is for those that lean on what a crash could still take
away: a vote, an acknowledged append, anything said in a term that is not yet saved. They are handed
out with the save that covers them and leave after it. `_messages` is for the rest: they leave at
once, so that a leader's appends travel while it saves the same entries, and heartbeats never wait
for a disk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from state_machines.raft.config import TERM_MAX, RaftConfig, Rng
from state_machines.raft.log import Log
from state_machines.raft.messages import (
    AppendReply,
    Configuration,
    Entry,
    HardState,
    HeartbeatReply,
    Message,
    ReadState,
    Ready,
    SnapshotMeta,
)
from state_machines.raft.progress import Progress
from state_machines.raft.roles import Candidate, Follower, Leader, PreCandidate, Role


class Promises(list[Message]):
    """What waits for a save. Peers ask again and again while it hangs, so what is said twice is
    kept once."""

    def append(self, message: Message) -> None:
        """Say this too, and no more what it says again."""
        self[:] = [each for each in self if not _says_again(message, each)]
        super().append(message)


def _says_again(message: Message, earlier: Message) -> bool:
    """Whether nobody misses the earlier one who gets this one."""
    match message, earlier:
        case HeartbeatReply() as now, HeartbeatReply() as then:
            more = now.round >= then.round
        case AppendReply(rejected=False) as now, AppendReply(rejected=False) as then:
            more = now.match_index >= then.match_index
        case _:
            return message == earlier
    return more and (message.receiver, message.term) == (earlier.receiver, earlier.term)


class RaftState:
    """Term, vote, role and log, what is said of them, and what waits to be handed out."""

    def __init__(
        self,
        *,
        id: int,
        config: RaftConfig,
        rng: Rng,
        snapshot: SnapshotMeta,
        entries: Sequence[Entry] = (),
        hard_state: HardState = HardState(),  # noqa: B008 - frozen
        applied: int | None = None,
    ) -> None:
        """Start from what is durable.

        `snapshot` is the point where the log begins: index 0, term 0 and the founding configuration
        for a new group, the empty configuration for a replica that is to join. `entries` follow it.
        `applied` is how far the state machine has durably applied; what is committed after it is
        handed out again. The commit index in `hard_state` is a hint and may be behind that.
        """
        assert id > 0, f"a replica id is positive: {id}"
        applied = snapshot.index if applied is None else applied
        self.id = id
        self._config = config
        self._rng = rng
        self._log = Log(snapshot, entries, max(hard_state.commit, applied))
        assert snapshot.index <= applied, f"applied {applied} is before the log's {snapshot.index}"
        assert applied <= self._log.last_index, f"applied {applied} is beyond the log"
        self._log.applied = applied
        assert hard_state.term >= self._log.last_term, "the log is of a later term than the replica"
        self._term = hard_state.term
        self._vote = hard_state.vote
        self._saved = hard_state
        self._role: Role = Follower()
        self._elapsed = 0
        self._timeout = self._draw_timeout()
        self._rounds = 0  # the number of the latest read round; never goes back
        self._messages: list[Message] = []
        self._promises = Promises()
        self._reads: list[ReadState] = []
        self._snapshot_to: list[int] = []
        self._saving: Ready | None = None

    # What it knows.

    @property
    def term(self) -> int:
        """The latest term it has seen."""
        return self._term

    @property
    def vote(self) -> int:
        """Whom it voted for in this term, 0 for nobody."""
        return self._vote

    @property
    def role(self) -> Role:
        """What it is in this term, with what only that role knows."""
        return self._role

    @property
    def votes(self) -> bool:
        """Whether the configuration in force has a vote for it: a learner has none."""
        return self._may_vote(self._log.configuration)

    @property
    def leader(self) -> int:
        """This term's leader, 0 while it is not known."""
        role = self._role
        if isinstance(role, Follower):
            return role.leader
        return self.id if isinstance(role, Leader) else 0

    @property
    def standing(self) -> tuple[int, int]:
        """Term and leader."""
        return self._term, self.leader

    @property
    def commit(self) -> int:
        """How far it knows the log to be agreed on."""
        return self._log.commit

    @property
    def applied_handed(self) -> int:
        """How far committed entries have been handed out to be applied."""
        return self._log.applied

    @property
    def first_index(self) -> int:
        """The oldest entry in memory, or the next one when there is none."""
        return self._log.first_index

    @property
    def last_index(self) -> int:
        """The newest entry, saved or not."""
        return self._log.last_index

    @property
    def last_term(self) -> int:
        """The term of the newest entry."""
        return self._log.last_term

    @property
    def installing(self) -> bool:
        """Whether a snapshot that was accepted waits for its save."""
        return self._log.installing

    @property
    def durable_index(self) -> int:
        """How far finished saves cover the log as it is; 0 while a snapshot waits for its save."""
        return self._log.durable

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: that of the latest configuration entry, committed or not."""
        return self._log.configuration

    @property
    def configuration_index(self) -> int:
        """Where the configuration in force stands in the log."""
        return self._log.configuration_index

    @property
    def progress(self) -> Mapping[int, Progress]:
        """A leader's view of every other member, by id; empty for everyone else."""
        return self._role.progress if isinstance(self._role, Leader) else {}

    def kept(self, first: int, last: int) -> tuple[Entry, ...]:
        """The entries from `first` to `last`, none if the first is no longer in memory."""
        if first < self._log.first_index:
            return ()
        return self._log.between(first, min(last, self._log.last_index))

    def behind(self, last: int, bytes_max: int) -> int:
        """The index such that the entries in memory after it, up to `last`, have so many bytes at
        most; the one before the oldest entry if all have."""
        return self._log.behind(last, bytes_max)

    def bytes_between(self, first: int, last: int) -> int:
        """What the entries first..last take, which are in memory."""
        return self._log.bytes_between(first, last)

    def committed(self, first: int, bytes_max: int) -> tuple[Entry, ...]:
        """Entries from `first` on that were handed out to be applied: at least one, and no more
        than fit in `bytes_max`."""
        log = self._log
        assert log.offset < first <= log.applied, f"{first} is not in ({log.offset}, {log.applied}]"
        entries, _ = log.batch(first, bytes_max)
        return entries[: log.applied - first + 1]

    def snapshot_meta(self, index: int) -> SnapshotMeta:
        """What a snapshot of the state at `index` (in the log, or its snapshot point) says."""
        return self._log.meta(index)

    def _electable(self) -> bool:
        """Whether it may stand for election.

        While a change is joint the old voters may be needed to lead out of it. Even a replica that
        its own log has removed may be, as long as it does not know that entry to be committed: it
        can be the only one with it, and others refuse their votes to shorter logs (thesis 4.2.2).
        """
        log = self._log
        configuration = log.configuration
        if log.configuration_index > log.commit and not self._may_vote(configuration):
            configuration = log.configuration_before
        return self._may_vote(configuration) and not log.installing and self._term < TERM_MAX

    def _may_vote(self, configuration: Configuration) -> bool:
        return configuration.has_vote(self.id)

    def _removed(self) -> bool:
        """Whether the configuration in force has no vote for this replica, and will not again."""
        configuration = self._log.configuration
        return not configuration.outgoing and self.id not in configuration.voters

    def _matches(self, leader: Leader) -> dict[int, int]:
        """How far the log of each member, this leader included, surely agrees with its own."""
        matches = {peer: progress.match_index for peer, progress in leader.progress.items()}
        matches[self.id] = self._log.durable  # What it has not saved it could still lose.
        return matches

    def _outrun_by(self, leader: Leader) -> int:
        """Asked once in an election timeout: who should lead instead, 0 for nobody.

        If this replica has saved nothing since it was asked before, and a quorum had more even
        then, its disk hangs: no entry is begun, and no read that is behind the last one answered,
        until it is back. The others need it for neither.
        """
        log, before = self._log, leader.outrun_at
        leader.outrun_at = log.durable if log.durable < log.commit else -1
        if leader.outrun_at != before or before < 0 or leader.transfer or self._removed():
            return 0
        able = [
            (progress.match_index, peer)
            for peer, progress in leader.progress.items()
            if progress.active and peer in log.configuration.voters
        ]
        return max(able, default=(0, 0))[1]

    def _draw_timeout(self) -> int:
        config = self._config
        return self._rng.randrange(config.election_ticks_min, config.election_ticks_max)

    def _send(self, message: Message) -> None:
        """Send at once, unless a crash could take this replica back to an older term."""
        if message.term > self._saved.term:
            self._promises.append(message)
        else:
            self._messages.append(message)

    def check(self) -> None:
        """Assert all that must hold between calls. Walks the whole log: for tests."""
        log = self._log
        log.check()
        assert self._saved.term <= self._term, "the disk is ahead of memory"
        assert log.last_term <= self._term, f"an entry of term {log.last_term} in {self._term}"
        match self._role:
            case Leader() as leader:
                assert self._vote == self.id, "a leader has voted for itself"
                others = {*log.configuration.members} - {self.id}
                assert leader.progress.keys() >= others, "progress is kept of every member"
                assert list(leader.progress) == sorted(leader.progress), "in order"
                size = log.bytes_between(log.commit + 1, log.last_index)
                assert leader.uncommitted_bytes == size, f"{leader.uncommitted_bytes} != {size}"
                assert not log.installing, "a leader has its whole log"
                for progress in leader.progress.values():
                    assert progress.match_index < progress.next_index, f"{progress}"
                    assert progress.next_index <= log.last_index + 1, f"{progress}"
                    assert progress.inflight <= self._config.max_inflight_appends, f"{progress}"
            case PreCandidate() | Candidate():
                assert self._role.votes.get(self.id), "a candidate is for itself"
            case Follower(leader=known):
                assert known != self.id, "nobody follows itself"
