"""`Raft`: one replica of one group, as a machine without I/O. Its theory is in the package's essay.

Everything that happens comes in through a few methods (`tick`, `step`, `propose`, `change`, `read`,
`transfer`), and everything to be done goes out in `Ready`. Nothing is sent, saved or applied here.
"""

from __future__ import annotations

from collections.abc import Iterable

from state_machines.errors import Conflict, Invalid, NotLeader, Overloaded, Transferring
from state_machines.raft.confchange import Change, enter, leave
from state_machines.raft.config import TERM_JUMP_MAX, TERM_MAX
from state_machines.raft.log import size_of
from state_machines.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    Ready,
    RequestVote,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
)
from state_machines.raft.progress import Progress, ProgressState
from state_machines.raft.quorum import Outcome, agreed_index, has_quorum, tally
from state_machines.raft.roles import Candidate, Follower, Leader, PreCandidate, Transfer
from state_machines.raft.state import RaftState


class Raft(RaftState):
    """One replica. Not thread-safe: one task owns it, and calls `ready` after it was given work."""

    # Time.

    def tick(self) -> None:
        """One unit of time has passed."""
        self._elapsed += 1
        match self._role:
            case Leader() as leader:
                self._tick_leader(leader)
            case role if self._elapsed >= self._timeout:
                if self._electable():
                    self._campaign(pre=self._config.pre_vote)
                elif isinstance(role, Follower):
                    role.leader = 0  # Who cannot stand must not point at the dead either.
            case PreCandidate() | Candidate() as role if self._saved.term == self._term:
                if self._elapsed % self._config.heartbeat_ticks == 0:
                    self._ask_for_votes(role)  # Again: what was asked or said may be lost (5.1).
            case Candidate():
                self._elapsed = 0  # Its own vote is not on disk, so nobody has been asked yet.
            case _:
                pass

    def _tick_leader(self, leader: Leader) -> None:
        config = self._config
        if self._elapsed >= config.election_ticks_min:
            self._elapsed = 0
            if self._log.configuration_index <= self._log.commit:
                # Those who are out have had time to hear of it: they know, and will not ask for
                # votes. From here on they are sent nothing more.
                self._match_progress(leader, next_index=self._log.last_index + 1)
            if heir := self._outrun_by(leader):
                self.transfer(heir)
            if config.check_quorum and not self._hears_quorum(leader):
                self._become_follower(self._term, 0)
                return
        if leader.transfer is not None:
            leader.transfer.elapsed += 1
            if leader.transfer.elapsed >= config.election_ticks_min:
                # The target is dead or cut off. Nobody else could serve, so this replica goes on.
                leader.transfer = None
                self._finish_change(leader)
        leader.heartbeat_elapsed += 1
        if leader.heartbeat_elapsed >= config.heartbeat_ticks:
            leader.heartbeat_elapsed = 0
            for peer, progress in leader.progress.items():
                progress.nudge = True
                self._send_heartbeat(leader, peer, progress)
            self._hand_over(leader)  # Again, in case the first word was lost.
        else:
            self._tell_commit(leader)
            self._ask_the_silent(leader)

    def _hears_quorum(self, leader: Leader) -> bool:
        present = {self.id}
        for peer, progress in leader.progress.items():
            if progress.active:
                present.add(peer)
            progress.active = False
        return has_quorum(self._log.configuration, present)

    # Requests.

    def propose(self, data: bytes) -> int:
        """Append an entry with this data; returns its index. It commits when `Ready` hands it out.

        Raises `NotLeader`, `Transferring` during a transfer, and `Overloaded` beyond
        `max_uncommitted_bytes`. A different entry may end up at the index if leadership is lost.
        """
        leader = self._serving()
        entry = Entry(self._term, self._log.last_index + 1, data)
        limit = self._config.max_uncommitted_bytes
        if leader.uncommitted_bytes and leader.uncommitted_bytes + size_of(entry) > limit:
            raise Overloaded(
                f"max_uncommitted_bytes: {leader.uncommitted_bytes} of {limit} are uncommitted"
            )
        self._append(leader, entry)
        return entry.index

    def change(self, change: Change) -> int:
        """Change the membership; returns the index of the first entry it takes.

        The new configuration is in force at once. It is complete when it is committed and no longer
        joint. Raises `NotLeader`, `Transferring`, `Invalid` for a change that makes no sense and
        `Conflict` for one that has to wait. One change at a time, and none before the leader has
        committed an entry of its term: else two leaders' changes could pass each other.
        """
        leader = self._serving()
        if self._log.commit < leader.noop_index:
            raise Conflict("the leader has not committed an entry of its own term yet")
        if self._log.configuration_index > self._log.commit:
            raise Conflict("another membership change is under way")

        def caught_up(learner: int) -> bool:
            progress = leader.progress[learner]
            gap = self._log.commit - progress.match_index
            replicating = progress.state is ProgressState.REPLICATE
            return replicating and gap <= self._config.promotion_gap_entries

        return self._append_configuration(leader, enter(self._log.configuration, change, caught_up))

    def read(self, context: int) -> None:
        """Ask when a read that arrives now is safe: a later `Ready` names this context.

        Raises `NotLeader`, `Transferring` and `Overloaded`. If leadership is lost first the read is
        forgotten; the shell sees that the term or the role has changed, and fails it.
        """
        reads = self._serving().reads
        if len(reads.waiting) >= self._config.max_waiting_reads:
            raise Overloaded(f"max_waiting_reads: {len(reads.waiting)} reads are waiting")
        reads.waiting.append(context)

    def transfer(self, target: int) -> None:
        """Hand leadership to a voter (thesis 3.10). Nothing else is served until it has it.

        Raises `NotLeader`, `Transferring` if that is under way already, and `Invalid`.
        """
        leader = self._serving()
        if target == self.id:
            raise Invalid(f"target: {target} is the leader already")
        if target not in self._log.configuration.voters:
            raise Invalid(f"target: {target} is not a voter")
        leader.transfer = Transfer(target)
        self._hand_over(leader)

    def campaign(self) -> None:
        """Try to be elected now, because the leader is known to be gone. Safe at any time."""
        if self._electable() and not isinstance(self._role, Candidate | Leader):
            self._campaign(pre=self._config.pre_vote)

    def unreachable(self, peer: int) -> None:
        """The connection to this peer broke, and what was on its way may be lost."""
        match self._role:
            case Leader(progress=progress) as leader if peer in progress:
                if progress[peer].state is ProgressState.REPLICATE:
                    progress[peer].probe()
                leader.reads.broken(peer)
                self._ask_the_silent(leader)
            case Follower(leader=leader) as follower if leader == peer:
                # Others that have noticed too may now ask for this replica's vote.
                follower.leader = 0
            case _:
                pass

    def snapshot_sent(self, peer: int) -> None:
        """The shell of this peer has the whole snapshot. This, or `snapshot_failed`, follows every
        `Ready.snapshot_to`: should the peer die before it has installed it, it is asked again."""
        self._snapshot_ended(peer, arrived=True)

    def snapshot_failed(self, peer: int) -> None:
        """The snapshot for this peer did not arrive. Another one is asked for when it answers."""
        self._snapshot_ended(peer, arrived=False)

    def _snapshot_ended(self, peer: int, *, arrived: bool) -> None:
        progress = self.progress.get(peer)
        if progress is not None and progress.state is ProgressState.SNAPSHOT:
            progress.snapshot_ended(arrived=arrived)

    def compact(self, index: int) -> None:
        """Forget the entries up to `index`, which must have been handed out as committed."""
        self._log.compact(index)

    def _serving(self) -> Leader:
        """The role of a leader that takes requests."""
        if not isinstance(self._role, Leader):
            leader = self.leader
            raise NotLeader("this replica does not lead", str(leader) if leader else "")
        if self._role.transfer is not None:
            raise Transferring(f"leadership is going to replica {self._role.transfer.target}")
        if self._removed():
            raise Transferring("the leader has been removed and steps down")
        return self._role

    # Messages.

    def step(self, message: Message) -> None:
        """Take one message. It may be late, repeated, out of order, or for somebody else."""
        if message.receiver != self.id or message.sender == self.id or message.term > TERM_MAX:
            return
        if message.term > self._term + TERM_JUMP_MAX:
            return
        if message.term != self._term and not self._settle_term(message):
            return
        match message:
            case AppendReply():
                if isinstance(self._role, Leader):
                    self._on_append_reply(self._role, message)
            case Append():
                self._follow(message.sender)
                self._on_append(message)
            case HeartbeatReply():
                if isinstance(self._role, Leader):
                    self._on_heartbeat_reply(self._role, message)
            case Heartbeat():
                self._follow(message.sender)
                self._log.commit = max(self._log.commit, min(message.commit, self.last_index))
                self._send(HeartbeatReply(self.id, message.sender, self._term, message.round))
            case RequestVote():
                self._on_request_vote(message)
            case VoteReply():
                self._on_vote_reply(message)
            case TimeoutNow():
                if isinstance(self._role, Follower) and self._electable():
                    self._campaign(pre=False, transfer=True)
            case InstallSnapshot():
                self._follow(message.sender)
                self._on_install_snapshot(message)
            case _:
                raise AssertionError(f"no such message: {message}")

    def _settle_term(self, message: Message) -> bool:
        """Deal with a message of another term; whether there is more to do with it."""
        if message.term < self._term:
            match message:
                case RequestVote(pre=pre):
                    self._send(VoteReply(self.id, message.sender, self._term, False, pre))
                case Append() | Heartbeat() | InstallSnapshot():
                    # This replica may be stuck in a term of its own, because the others ignore its
                    # calls while they hear this old leader. Our term makes it step down.
                    self._send(AppendReply(self.id, message.sender, self._term, 0, rejected=True))
                case _:
                    pass  # late
            return False
        match message:
            case RequestVote(transfer=False) if self._in_lease(message):
                # A leader is there. Whoever cannot hear it must not unseat it (thesis 4.2.3).
                if message.pre:
                    self._send(VoteReply(self.id, message.sender, self._term, False, pre=True))
                return False
            case RequestVote(pre=True) | VoteReply(pre=True, granted=True):
                pass  # a term that somebody would like to begin; nobody is in it
            case Append() | Heartbeat() | InstallSnapshot():
                self._become_follower(message.term, message.sender)
            case _:
                self._become_follower(message.term, 0)
        return True

    def _in_lease(self, message: RequestVote) -> bool:
        """Whether this replica refuses because it hears a leader, or is one that a quorum hears."""
        if self.leader == 0 or self._elapsed >= self._config.election_ticks_min:
            return False
        following = isinstance(self._role, Follower)
        return self._config.check_quorum or (message.pre and following)

    def _follow(self, leader: int) -> None:
        """A leader of this term has spoken."""
        match self._role:
            case Follower() as follower if follower.leader in (0, leader):
                follower.leader = leader
                self._elapsed = 0
            case PreCandidate() | Candidate():
                self._become_follower(self._term, leader)
            case _:
                raise AssertionError(f"two leaders in term {self._term}: {self.leader}, {leader}")

    # Elections (5.2, 5.4.1; pre-vote: thesis 9.6).

    def _become_follower(self, term: int, leader: int) -> None:
        assert term >= self._term, f"the term went back: {self._term} -> {term}"
        if term > self._term:
            self._term = term
            self._vote = 0
        # A follower that learns of a new term but of no leader goes on waiting: a candidate that
        # cannot win must not put off those that can.
        if leader or not isinstance(self._role, Follower):
            self._elapsed = 0
            self._timeout = self._draw_timeout()
        self._role = Follower(leader)
        self._snapshot_to.clear()  # Streams are a leader's, of its term.

    def _campaign(self, *, pre: bool, transfer: bool = False) -> None:
        self._elapsed = 0
        self._timeout = self._draw_timeout()
        role: PreCandidate | Candidate = PreCandidate({self.id: True})
        if not pre:
            self._term += 1
            self._vote = self.id
            role = Candidate({self.id: True}, transfer)
        self._role = role
        self._ask_for_votes(role)
        self._count_votes(role)

    def _ask_for_votes(self, role: PreCandidate | Candidate) -> None:
        """Ask the voters that have not answered."""
        configuration = self._log.configuration
        for peer in sorted({*configuration.voters, *configuration.outgoing} - role.votes.keys()):
            self._ask_for_vote(role, peer)

    def _ask_for_vote(self, role: PreCandidate | Candidate, peer: int) -> None:
        term, last_index, last_term = self._term, self._log.last_index, self._log.last_term
        match role:
            case PreCandidate():
                request = RequestVote(self.id, peer, term + 1, last_index, last_term, pre=True)
                self._messages.append(request)  # It claims nothing about this replica's state.
            case Candidate(transfer=transfer):
                # Waits for the save: its own vote is in the new term, and must not be given twice.
                request = RequestVote(self.id, peer, term, last_index, last_term, transfer=transfer)
                self._send(request)

    def _on_request_vote(self, message: RequestVote) -> None:
        sender, mine = message.sender, (self._log.last_term, self._log.last_index)
        theirs = (message.last_term, message.last_index)
        free = (
            self._vote == sender
            or (self._vote == 0 and self.leader == 0)
            or message.term > self._term  # only asked, by a pre-vote: for a term yet to begin
        )
        granted = free and theirs >= mine
        if message.pre:
            if isinstance(role := self._role, PreCandidate):
                if theirs == mine:
                    # Both have seen the leader go and neither is ahead. Were both granted, both
                    # would stand and split the votes, so the one with the larger id goes first.
                    granted = granted and sender > self.id
                if not granted:
                    # It may have refused before it had seen so itself: ask again.
                    self._ask_for_vote(role, sender)
            term = message.term if granted else self._term
            reply = VoteReply(self.id, sender, term, granted, pre=True)
            if granted:
                self._messages.append(reply)  # It binds nobody.
            else:
                self._send(reply)
        elif granted:
            assert self._vote in (0, sender), f"a second vote in term {self._term}"
            self._vote = sender
            self._elapsed = 0
            # A vote that is not on disk can be given twice.
            self._promises.append(VoteReply(self.id, sender, self._term, True))
        else:
            self._send(VoteReply(self.id, sender, self._term, False))

    def _on_vote_reply(self, message: VoteReply) -> None:
        match self._role:
            case PreCandidate(votes=votes) as role if message.pre:
                if message.granted and message.term != self._term + 1:
                    return  # for a term it no longer seeks
                votes[message.sender] = message.granted or votes.get(message.sender, False)
                self._count_votes(role)
            case Candidate(votes=votes) as role if not message.pre:
                votes.setdefault(message.sender, message.granted)
                self._count_votes(role)
            case _:
                pass  # late

    def _count_votes(self, role: PreCandidate | Candidate) -> None:
        match tally(self._log.configuration, role.votes), role:
            case Outcome.WON, PreCandidate():
                self._campaign(pre=False)
            case Outcome.WON, Candidate():
                self._become_leader()
            case Outcome.LOST, _:
                self._become_follower(self._term, 0)
            case _:
                pass

    def _become_leader(self) -> None:
        log = self._log
        noop = log.last_index + 1
        leader = Leader(noop_index=noop)
        leader.uncommitted_bytes = log.bytes_between(log.commit + 1, log.last_index)
        self._role = leader
        self._elapsed = 0
        self._match_progress(leader, next_index=noop)
        # Entries of older terms commit only beneath one of its own (5.4.2), so it makes one.
        self._append(leader, Entry(self._term, noop))

    # Replication, the leader's side (5.3).

    def _append(self, leader: Leader, entry: Entry) -> None:
        self._log.extend((entry,))
        leader.uncommitted_bytes += size_of(entry)

    def _append_configuration(self, leader: Leader, configuration: Configuration) -> int:
        index = self._log.last_index + 1
        kind = EntryKind.CONFIGURATION
        self._append(leader, Entry(self._term, index, b"", kind, configuration))
        self._match_progress(leader, next_index=index, keep=leader.progress)
        return index

    def _match_progress(self, leader: Leader, next_index: int, keep: Iterable[int] = ()) -> None:
        """Have a progress for every other member and those to `keep`, and for nobody else."""
        leader.progress = {
            peer: leader.progress.get(peer) or Progress(next_index)
            for peer in sorted({*self._log.configuration.members, *keep} - {self.id})
        }

    def _send_entries(self, peer: int, progress: Progress) -> None:
        """Send what this peer lacks, as far as it may be sent now."""
        config, last_index = self._config, self._log.last_index
        while progress.next_index <= last_index and not progress.paused(
            config.max_inflight_appends, config.max_inflight_bytes
        ):
            if not self._send_append(peer, progress):
                return

    def _send_append(self, peer: int, progress: Progress, *, empty: bool = False) -> bool:
        log = self._log
        prev_index = progress.next_index - 1
        prev_term = log.term(prev_index)
        if prev_term is None:
            assert prev_index < log.offset, f"{prev_index} is beyond the log"
            # The log no longer has it. A peer that is down would only waste a snapshot.
            if progress.active:
                progress.snapshot(log.offset, log.offset_term)
                self._snapshot_to.append(peer)
            return False
        entries: tuple[Entry, ...] = ()
        if not empty:
            entries, size = log.batch(progress.next_index, self._config.max_append_bytes)
            progress.sent(entries[-1].index, size)
        known = prev_index + len(entries)
        progress.commit_told = max(progress.commit_told, min(log.commit, known))
        self._send(Append(self.id, peer, self._term, prev_index, prev_term, log.commit, entries))
        return True

    def _send_heartbeat(self, leader: Leader, peer: int, progress: Progress) -> None:
        # Never beyond what it surely has: the rest of its log may be another leader's.
        commit = min(progress.match_index, self._log.commit)
        progress.commit_told = max(progress.commit_told, commit)
        round_number = leader.reads.round_number
        self._send(Heartbeat(self.id, peer, self._term, commit, round_number))

    def _tell_commit(self, leader: Leader) -> None:
        commit = self._log.commit
        for peer, progress in leader.progress.items():
            if progress.commit_told < min(commit, progress.match_index):
                self._send_heartbeat(leader, peer, progress)

    def _on_append_reply(self, leader: Leader, message: AppendReply) -> None:
        progress = leader.progress.get(message.sender)
        if progress is None:
            return  # no longer a member
        progress.active = True
        log, match_index = self._log, message.match_index
        if message.rejected:
            hint, _ = log.last_agreeing(message.conflict_index, message.conflict_term)
            progress.rejected(match_index, hint)
            return
        assert match_index <= log.last_index, f"{message.sender} has {match_index}, beyond the log"
        news = progress.accepted(match_index)
        match progress.state:
            case ProgressState.PROBE if match_index == progress.match_index:
                progress.replicate()
            case ProgressState.SNAPSHOT if match_index >= progress.snapshot_index:
                progress.replicate()
            case _:
                pass
        if news:
            if match_index > log.commit:
                self._advance_commit(leader)
            self._hand_over(leader, only=message.sender)

    def _on_heartbeat_reply(self, leader: Leader, message: HeartbeatReply) -> None:
        progress = leader.progress.get(message.sender)
        if progress is None:
            return
        progress.active = True
        leader.reads.acknowledge(message.sender, message.round)
        if not progress.nudge:
            return
        progress.nudge = False
        # Once a heartbeat: should the last append or its answer be lost, this finds out.
        match progress.state:
            case ProgressState.SNAPSHOT:
                # It cannot be refused once the snapshot is in, and the answer says that it is.
                index, term = progress.snapshot_index, progress.snapshot_term
                commit = self._log.commit
                self._send(Append(self.id, message.sender, self._term, index, term, commit))
            case ProgressState.PROBE:
                progress.probing = False
                if progress.next_index > self._log.last_index:
                    self._send_append(message.sender, progress, empty=True)
            case ProgressState.REPLICATE if progress.match_index < self._log.last_index:
                self._send_append(message.sender, progress, empty=True)
            case _:
                pass

    def _advance_commit(self, leader: Leader) -> None:
        log = self._log
        agreed = agreed_index(log.configuration, self._matches(leader).__getitem__)
        # Only its own term's entries commit by counting; older ones commit beneath them (5.4.2).
        if agreed <= log.commit or log.term(agreed) != self._term:
            return
        leader.uncommitted_bytes -= log.bytes_between(log.commit + 1, agreed)
        log.commit = agreed
        self._finish_change(leader)

    def _finish_change(self, leader: Leader) -> None:
        """Take the next step of a membership change whose last one is committed."""
        log, configuration = self._log, self._log.configuration
        if not configuration.outgoing and self.id in configuration.voters:
            return  # None is under way, as mostly.
        if log.commit < max(log.configuration_index, leader.noop_index):
            return
        if configuration.outgoing:
            if leader.transfer is None:  # The target has to have the whole log.
                self._append_configuration(leader, leave(configuration))
            return
        if self._removed():
            self._tell_commit(leader)
            matches = self._matches(leader)
            # It has everything: who is removed takes nothing more that would have to follow.
            heir = max(configuration.voters, key=lambda voter: (matches[voter], voter))
            self._send(TimeoutNow(self.id, heir, self._term))
            self._become_follower(self._term, 0)

    def _hand_over(self, leader: Leader, only: int = 0) -> None:
        """Tell the target of a transfer to stand for election, once it has everything."""
        if leader.transfer is None or only not in (0, leader.transfer.target):
            return
        target = leader.transfer.target
        if leader.progress[target].match_index == self._log.last_index:
            self._send(TimeoutNow(self.id, target, self._term))

    def _serve_reads(self, leader: Leader) -> None:
        """Finish the read round that a quorum has answered, and begin the next."""
        reads, configuration = leader.reads, self._log.configuration
        if reads.round is not None and has_quorum(configuration, reads.round.acks):
            self._reads += reads.finish(configuration)
        # Before it has committed in its own term it does not know what is committed.
        if reads.round is None and reads.waiting and self._log.commit >= leader.noop_index:
            self._rounds += 1
            asked = reads.begin(self._rounds, self._log.commit, self.id, configuration)
            if has_quorum(configuration, (self.id,)):
                self._reads += reads.finish(configuration)
                return
            for peer in asked:
                self._send_heartbeat(leader, peer, leader.progress[peer])

    def _ask_the_silent(self, leader: Leader) -> None:
        """Ask all who have not replied to the read round under way: those asked may never."""
        if leader.reads.round is not None:
            for peer in leader.reads.silent(self._log.configuration):
                self._send_heartbeat(leader, peer, leader.progress[peer])

    # Replication, the follower's side (5.3).

    def _on_append(self, message: Append) -> None:
        log, entries = self._log, message.entries
        prev_index, prev_term = message.prev_index, message.prev_term
        match_index = prev_index + len(entries)
        assert not entries or entries[-1].index == match_index, f"not contiguous: {message}"
        if match_index <= log.commit:
            # A late one. Every leader has what is committed, so the logs agree up to there.
            self._acknowledge(message.sender, log.commit)
            return
        if prev_index < log.commit:
            entries = entries[log.commit - prev_index :]
            prev_index, prev_term = log.commit, log.term(log.commit) or 0
        if log.term(prev_index) != prev_term:
            conflict_index, conflict_term = log.last_agreeing(prev_index, prev_term)
            self._send(
                AppendReply(
                    self.id,
                    message.sender,
                    self._term,
                    message.prev_index,
                    True,
                    conflict_index,
                    conflict_term,
                )
            )
            return
        if prev_index != log.last_index:
            known = 0
            while known < len(entries) and log.term(entries[known].index) == entries[known].term:
                known += 1
            entries = entries[known:]
            if entries:
                log.truncate(entries[0].index - 1)  # nothing, if they follow the last one
        if entries:
            log.extend(entries)
        log.commit = max(log.commit, min(message.commit, match_index))
        self._acknowledge(message.sender, match_index)

    def _acknowledge(self, leader: int, match_index: int) -> None:
        """Accept an append, as soon as what it claims is durable."""
        reply = AppendReply(self.id, leader, self._term, match_index)
        if match_index <= self._log.durable:
            self._send(reply)
        else:
            self._promises.append(reply)

    def _on_install_snapshot(self, message: InstallSnapshot) -> None:
        log, meta = self._log, message.meta
        if meta.index <= log.commit:
            self._acknowledge(message.sender, log.commit)
            return
        if log.term(meta.index) == meta.term:
            # The entries are all here, and a snapshot holds only what is committed.
            log.commit = meta.index
        else:
            log.restore(meta)
        self._acknowledge(message.sender, meta.index)

    # What is to be done.

    def ready(self) -> Ready | None:
        """What is to be done now, or None. Call it after every batch of inputs, `advance` too.

        While one save is under way no other is handed out; everything else is. Asked again before
        anything has happened, it says None.
        """
        log, role = self._log, self._role
        if isinstance(role, Leader):
            for peer, progress in role.progress.items():
                if progress.next_index <= log.last_index:
                    self._send_entries(peer, progress)
            if self._config.eager_commit:
                self._tell_commit(role)
            if role.reads.round is not None or role.reads.waiting:
                self._serve_reads(role)
        snapshot: SnapshotMeta | None = None
        entries: tuple[Entry, ...] = ()
        hard_state: HardState | None = None
        promises: tuple[Message, ...] = ()
        if self._saving is None:
            moved = self._term != self._saved.term or self._vote != self._saved.vote
            if moved or log.unsaved:
                snapshot, entries = log.take_unsaved()
                # The commit index is a hint: it rides along and is never worth a save of its own.
                hard_state = HardState(self._term, self._vote, log.commit)
                promises = tuple(self._promises)
            else:
                self._messages += self._promises  # Everything they claim is durable.
            self._promises.clear()
        committed = log.take_committed() if log.applied < log.commit else ()
        saves = hard_state is not None
        if not (saves or committed or self._messages or self._reads or self._snapshot_to):
            return None
        ready = Ready(
            tuple(self._messages),
            snapshot,
            entries,
            hard_state,
            promises,
            committed,
            tuple(self._reads),
            tuple(self._snapshot_to),
        )
        self._messages.clear()
        self._reads.clear()
        self._snapshot_to.clear()
        if saves:
            self._saving = ready
        return ready

    def advance(self, ready: Ready) -> None:
        """The save part of this `Ready` is durable: its promises may leave. No-op without one."""
        if ready is not self._saving:
            assert not ready.must_save, "this is not the save under way"
            return
        self._saving = None
        if ready.hard_state is not None:
            self._saved = ready.hard_state
        self._log.saved()
        if isinstance(self._role, Leader) and self._log.durable > self._log.commit:
            self._advance_commit(self._role)
