"""A whole cluster of cores from one seed: a bad network, disks that lose what was not synced, and
checks after every event.

A run has two phases. In the first everything that can go wrong does, each kind of fault enabled or
not by the seed, and only safety is asked for. Then the network heals, everyone is started, and the
group has to get on: one leader, out of any joint configuration, all logs and states the same.

What is checked, and when:

- one leader a term, terms and commit indexes that never go back, one vote a term: after every event
- an entry is determined by its index and term, and so is the one before it (log matching): at saves
- what a leader commits is on the disks of a quorum: when it commits
- what is committed never changes, and every replica applies the same entries: when applied
- a new leader has everything that was committed in earlier terms: when it is elected
- no message claims what the sender's disk does not have: when the message leaves
- a read is answered at an index not below what was committed when it was asked: when answered
"""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field, replace
from zlib import crc32

from state_machines.errors import MetarayError
from state_machines.raft import (
    Append,
    AppendReply,
    Change,
    Configuration,
    Entry,
    HardState,
    InstallSnapshot,
    Leader,
    Message,
    Raft,
    RaftConfig,
    Ready,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from state_machines.raft.quorum import has_quorum

START = SnapshotMeta(0, 0, Configuration())


@dataclass
class Disk:
    """What a crash leaves."""

    snapshot: SnapshotMeta
    entries: list[Entry] = field(default_factory=list)
    hard_state: HardState = field(default_factory=HardState)
    flushed: int = 0  # how far the state machine is durable

    @property
    def last_index(self) -> int:
        return self.snapshot.index + len(self.entries)

    def has(self, index: int, term: int) -> bool:
        if index <= self.snapshot.index:
            return True
        at = index - self.snapshot.index - 1
        return at < len(self.entries) and self.entries[at].term == term

    def save(self, ready: Ready) -> None:
        if ready.snapshot is not None:
            self.snapshot = ready.snapshot
            self.entries = []
            self.flushed = ready.snapshot.index
        if ready.entries:
            keep = ready.entries[0].index - self.snapshot.index - 1
            assert 0 <= keep <= len(self.entries), "a save leaves a gap on disk"
            self.entries[keep:] = ready.entries
        if ready.hard_state is not None:
            assert ready.hard_state.term >= self.hard_state.term, "the term went back on disk"
            self.hard_state = ready.hard_state

    def compact(self, point: SnapshotMeta) -> None:
        del self.entries[: point.index - self.snapshot.index]
        self.snapshot = point


@dataclass
class Node:
    """One replica: its disk always, its core while it runs."""

    disk: Disk
    raft: Raft | None = None
    applied: int = 0
    digest: int = 0
    saving: Ready | None = None
    life: int = 0  # how often it was started
    seen: tuple[int, int, int] = (0, 0, 0)  # term, vote, commit after the last event


@dataclass(frozen=True)
class Faults:
    """Which kinds of trouble a run has, and how much of each."""

    drop: float
    duplicate: float
    delay_max: int
    save_delay_max: int
    crash: float
    partition: float
    compact: float
    change: float
    transfer: float
    pause: float
    one_way: bool

    @staticmethod
    def draw(rng: random.Random) -> Faults:
        def maybe(most: float) -> float:
            return rng.random() * most if rng.random() < 0.6 else 0.0

        return Faults(
            drop=maybe(0.3),
            duplicate=maybe(0.4),
            delay_max=rng.choice((1, 1, 3, 10, 30)),
            save_delay_max=rng.choice((0, 0, 2, 8)),
            crash=maybe(0.06),
            partition=maybe(0.06),
            compact=maybe(0.3),
            change=maybe(0.15),
            transfer=maybe(0.08),
            pause=maybe(0.3),
            one_way=rng.random() < 0.3,
        )


class Cluster:
    """`run(steps)` then `heal()`; either raises AssertionError at the first thing that is wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults.draw(self.rng)
        self.config = RaftConfig(
            heartbeat_ticks=2,
            election_ticks_min=8,
            election_ticks_max=16,
            max_append_bytes=self.rng.choice((1, 100, 400, 65536)),
            max_inflight_appends=self.rng.choice((1, 2, 8, 64)),
            max_inflight_bytes=self.rng.choice((1, 300, 1 << 20)),
            max_uncommitted_bytes=self.rng.choice((400, 1 << 20)),
            promotion_gap_entries=self.rng.choice((0, 5, 1000)),
            pre_vote=self.rng.random() < 0.85,
            check_quorum=self.rng.random() < 0.85,
            eager_commit=self.rng.random() < 0.5,
        )
        size = self.rng.choice((1, 2, 3, 3, 3, 4, 5, 5))
        founders = Configuration(voters=tuple(range(1, size + 1)))
        self.nodes: dict[int, Node] = {}
        self.now = 0
        self.events = 0
        self.queue: list[tuple[int, int, Message]] = []  # due, order, message
        self.saves: list[tuple[int, int, int, int]] = []  # due, order, node, life
        self.cut: set[tuple[int, int]] = set()  # (from, to) that is not delivered
        self.leaders: dict[int, int] = {}  # term -> leader
        self.entries: dict[tuple[int, int], tuple[bytes, object, int]] = {}
        self.committed: dict[int, tuple[int, int]] = {}  # index -> (term, term it committed in)
        self.digests: dict[int, int] = {0: 0}  # state after an index
        self.reads: dict[int, int] = {}  # context -> the least index it may be answered at
        self.counts = dict.fromkeys(("reads", "snapshots", "changes", "crashes", "transfers"), 0)
        self.proposed = 0
        for member in founders.voters:
            self.nodes[member] = Node(Disk(replace(START, configuration=founders)))
            self.start(member)

    # Life and death.

    def start(self, member: int) -> None:
        node = self.nodes[member]
        assert node.raft is None
        hard_state = node.disk.hard_state
        if self.rng.random() < 0.3:
            hard_state = replace(hard_state, commit=0)  # a hint, and never relied on
        node.life += 1
        node.applied = node.disk.flushed
        node.digest = self.digests[node.applied]
        node.raft = Raft(
            id=member,
            config=self.config,
            rng=self.rng,
            snapshot=node.disk.snapshot,
            entries=node.disk.entries,
            hard_state=hard_state,
            applied=node.applied,
        )
        node.seen = (hard_state.term, hard_state.vote, node.raft.commit)
        self.settle(member)

    def crash(self, member: int) -> None:
        node = self.nodes[member]
        node.raft = None
        node.saving = None
        self.counts["crashes"] += 1

    @property
    def up(self) -> list[int]:
        return [member for member, node in self.nodes.items() if node.raft is not None]

    def raft(self, member: int) -> Raft:
        raft = self.nodes[member].raft
        assert raft is not None
        return raft

    def leader(self) -> Raft | None:
        """The leader of the highest term, if any runs."""
        leaders = [self.raft(member) for member in self.up if self.raft(member).leader == member]
        return max(leaders, key=lambda raft: raft.term, default=None)

    # The turn of one replica, as a shell would do it.

    def settle(self, member: int) -> None:
        node, raft = self.nodes[member], self.raft(member)
        self.watch(member)
        while (ready := raft.ready()) is not None:
            assert raft.ready() is None, "more to do, though nothing happened in between"
            self.events += 1
            for message in ready.messages:
                self.post(member, message)
            for peer in ready.snapshot_to:
                self.stream(member, peer)
            if ready.must_save:
                assert node.saving is None, "two saves at once"
                node.saving = ready
                delay = self.rng.randint(0, self.faults.save_delay_max)
                if delay == 0:
                    self.finish_save(member)
                else:
                    heapq.heappush(self.saves, (self.now + delay, self.events, member, node.life))
            self.apply(member, ready)
            self.watch(member)

    def finish_save(self, member: int) -> None:
        node, raft = self.nodes[member], self.raft(member)
        ready, node.saving = node.saving, None
        assert ready is not None
        if ready.snapshot is not None:
            self.counts["snapshots"] += 1
            assert ready.snapshot.index > node.applied, "a snapshot took the state back"
            node.applied = ready.snapshot.index
            node.digest = self.digests[node.applied]
        self.check_matching(node.disk, ready)
        node.disk.save(ready)
        raft.advance(ready)
        for message in ready.promises:
            self.post(member, message)
        self.watch(member)

    def apply(self, member: int, ready: Ready) -> None:
        node = self.nodes[member]
        for entry in ready.committed:
            assert entry.index == node.applied + 1, f"{member} applies {entry.index} out of order"
            assert node.disk.has(entry.index, entry.term), f"{entry.index} is applied, not durable"
            agreed = self.committed.get(entry.index)
            assert agreed is not None, f"{member} applies {entry.index}, which no leader committed"
            assert agreed[0] == entry.term, f"{member} applies another entry {entry.index}"
            node.applied = entry.index
            node.digest = crc32(b"%d %d " % (entry.term, node.digest) + entry.data)
            assert self.digests.setdefault(entry.index, node.digest) == node.digest, "states differ"
        for read in ready.reads:
            floor = self.reads.pop(read.context)
            assert read.index >= floor, f"a stale read: at {read.index}, {floor} was committed"
            self.counts["reads"] += 1

    # The network.

    def post(self, member: int, message: Message) -> None:
        self.check_claims(member, message)
        assert message.sender == member
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        for _ in range(copies):
            if self.rng.random() >= self.faults.drop:
                delay = self.rng.randint(1, self.faults.delay_max)
                self.events += 1
                heapq.heappush(self.queue, (self.now + delay, self.events, message))

    def stream(self, member: int, peer: int) -> None:
        """What a shell does with `Ready.snapshot_to`; a stream may break, and the shell notices."""
        raft = self.raft(member)
        if self.rng.random() < self.faults.drop:
            raft.snapshot_failed(peer)
            return
        meta = raft.snapshot_meta(self.nodes[member].applied)
        delay = self.rng.randint(1, 2 * self.faults.delay_max)
        message = InstallSnapshot(member, peer, raft.term, meta)
        self.events += 1
        heapq.heappush(self.queue, (self.now + delay, self.events, message))

    def deliver(self) -> None:
        while self.queue and self.queue[0][0] <= self.now:
            message = heapq.heappop(self.queue)[2]
            node = self.nodes.get(message.receiver)
            lost = (message.sender, message.receiver) in self.cut
            if node is None or node.raft is None or lost:
                sender = self.nodes[message.sender].raft
                if isinstance(message, InstallSnapshot) and sender is not None:
                    sender.snapshot_failed(message.receiver)
                continue
            node.raft.step(message)
            self.watch(message.receiver)
            if isinstance(message, InstallSnapshot):
                sender = self.nodes[message.sender].raft
                if sender is not None:
                    sender.snapshot_sent(message.receiver)
            # Not always at once: a shell takes several messages before it asks what to do.
            if self.rng.random() < 0.7:
                self.settle(message.receiver)

    # Checks.

    def watch(self, member: int) -> None:
        """After every event at this replica."""
        node, raft = self.nodes[member], self.raft(member)
        term, vote, commit = node.seen
        assert raft.term >= term, f"{member}: the term went back, {term} -> {raft.term}"
        if raft.term == term and vote:
            assert raft.vote == vote, f"{member} voted for {vote} and {raft.vote} in term {term}"
        assert raft.commit >= commit, f"{member}: commit went back, {commit} -> {raft.commit}"
        if isinstance(raft.role, Leader):
            first = raft.term not in self.leaders
            assert self.leaders.setdefault(raft.term, member) == member, f"two lead {raft.term}"
            if first:
                self.check_complete(raft)
        # Also one that has removed itself: it steps down with its last commit.
        if raft.commit > commit and self.leaders.get(raft.term) == member:
            self.check_commit(raft, commit)
        node.seen = (raft.term, raft.vote, raft.commit)

    def check_complete(self, raft: Raft) -> None:
        """Leader completeness: it has what was committed in earlier terms."""
        for index, (term, when) in self.committed.items():
            if when < raft.term and index >= raft.first_index - 1:
                has = index <= raft.last_index and raft.snapshot_meta(index).term == term
                assert has, f"leader {raft.id} of {raft.term} lacks {index}, committed in {when}"

    def check_commit(self, raft: Raft, before: int) -> None:
        """A leader says that these are committed: then they are on the disks of a quorum."""
        last = raft.snapshot_meta(raft.commit).term
        for index in range(max(before + 1, raft.first_index), raft.commit + 1):
            term = raft.snapshot_meta(index).term
            agreed = self.committed.setdefault(index, (term, raft.term))
            assert agreed[0] == term, f"{index} was committed with term {agreed[0]}, now {term}"
        if last == raft.term:
            holders = {
                member for member, node in self.nodes.items() if node.disk.has(raft.commit, last)
            }
            # The joint configuration's majorities contain that of the one that follows it at once.
            assert has_quorum(raft.configuration, holders), (
                f"{raft.commit} is committed on {holders} of {raft.configuration}"
            )

    def check_matching(self, disk: Disk, ready: Ready) -> None:
        """Log matching: index and term determine an entry and the one before it."""
        for at, entry in enumerate(ready.entries):
            if at:
                before = ready.entries[at - 1].term
            elif ready.snapshot is not None:
                before = ready.snapshot.term
            elif entry.index == disk.snapshot.index + 1:
                before = disk.snapshot.term
            else:
                before = disk.entries[entry.index - disk.snapshot.index - 2].term
            content = (entry.data, entry.configuration, before)
            known = self.entries.setdefault((entry.index, entry.term), content)
            assert known == content, f"two entries at {entry.index} of term {entry.term}"

    def check_claims(self, member: int, message: Message) -> None:
        """No message leaves that says more than the disk."""
        disk = self.nodes[member].disk
        durable = disk.hard_state
        match message:
            case RequestVote(pre=True) | VoteReply(pre=True, granted=True):
                return
            case VoteReply(granted=True):
                fits = durable.term > message.term or durable.vote == message.receiver
                assert fits, f"{member} promises a vote it could give again"
            case RequestVote():
                fits = durable.term > message.term or durable.vote == member
                assert fits, f"{member} stands with a vote that is not on disk"
            case AppendReply(rejected=False, match_index=match_index):
                fits = durable.term > message.term or disk.last_index >= match_index
                assert fits, f"{member} has accepted {match_index}, on disk is {disk.last_index}"
            case Append(entries=entries) if entries:
                assert entries[-1].term <= message.term
            case _:
                pass
        assert durable.term >= message.term, f"{member} speaks in a term that is not on disk"

    # Trouble.

    def step(self) -> None:
        """One unit of time."""
        self.now += 1
        for member in self.up:
            if self.rng.random() >= self.faults.pause:
                self.raft(member).tick()
                self.settle(member)
        while self.saves and self.saves[0][0] <= self.now:
            _, _, member, life = heapq.heappop(self.saves)
            node = self.nodes[member]
            if node.raft is not None and node.life == life and node.saving is not None:
                self.finish_save(member)
                self.settle(member)
        self.deliver()
        if self.events % 17 == 0:
            for member in self.up:
                self.raft(member).check()

    def run(self, steps: int) -> None:
        """The bad times."""
        for _ in range(steps):
            self.step()
            self.trouble()
            self.use()

    def trouble(self) -> None:
        rng, faults = self.rng, self.faults
        if rng.random() < faults.crash and self.up:
            self.crash(rng.choice(self.up))
        down = [member for member, node in self.nodes.items() if node.raft is None]
        if down and rng.random() < 0.1:
            self.start(rng.choice(down))
        if rng.random() < faults.partition:
            self.cut.clear()
            members = list(self.nodes)
            side = {member for member in members if rng.random() < 0.5}
            for one in members:
                for other in members:
                    apart = (one in side) != (other in side)
                    if apart and (one in side or not faults.one_way):
                        self.cut.add((one, other))
        elif rng.random() < 0.05:
            self.cut.clear()
        for member in self.up:
            if rng.random() < faults.compact:
                self.compact(member)

    def compact(self, member: int) -> None:
        node, raft = self.nodes[member], self.raft(member)
        if raft.durable_index < raft.first_index - 1 or node.applied < raft.first_index:
            return
        if node.saving is not None and node.saving.snapshot is not None:
            return
        node.disk.flushed = node.applied
        index = self.rng.randint(raft.first_index, node.applied)
        node.disk.compact(raft.snapshot_meta(index))
        raft.compact(index)

    def use(self) -> None:
        """What clients and operators do. Any of it may be refused, for a reason that has a name."""
        rng = self.rng
        for member in self.up:
            raft = self.raft(member)
            if rng.random() < 0.02:
                raft.unreachable(rng.choice(list(self.nodes)))
            if rng.random() < 0.01:
                raft.campaign()
                self.settle(member)
            if raft.leader != member:
                continue
            try:
                for _ in range(rng.randint(0, 3)):
                    self.proposed += 1
                    raft.propose(b"%d" % self.proposed * rng.randint(1, 9))
                if rng.random() < 0.3:
                    context = len(self.reads) + self.events * 1000
                    self.reads[context] = max(self.committed, default=0)
                    raft.read(context)
                if rng.random() < self.faults.transfer:
                    raft.transfer(rng.choice(list(self.nodes)))
                    self.counts["transfers"] += 1
                if rng.random() < self.faults.change:
                    self.change(raft)
            except MetarayError:
                pass
            self.settle(member)

    def change(self, raft: Raft) -> None:
        rng, configuration = self.rng, raft.configuration
        add_voters: tuple[int, ...] = ()
        add_learners: tuple[int, ...] = ()
        remove: tuple[int, ...] = ()
        if configuration.learners and rng.random() < 0.7:
            add_voters = (rng.choice(configuration.learners),)
        elif len(self.nodes) < 9 and rng.random() < 0.5:
            newcomer = len(self.nodes) + 1
            self.nodes[newcomer] = Node(Disk(START))
            self.start(newcomer)
            add_learners = (newcomer,)
        if rng.random() < 0.5 and configuration.members:
            remove = (rng.choice(configuration.members),)
        raft.change(Change(add_voters, add_learners, remove))
        self.counts["changes"] += 1

    # Good times.

    def heal(self, patience: int = 4000) -> None:
        """Nothing goes wrong any more: the group has to agree on everything, and soon."""
        self.faults = replace(
            self.faults, drop=0.0, duplicate=0.0, delay_max=1, save_delay_max=0, pause=0.0
        )
        self.cut.clear()
        for member, node in self.nodes.items():
            if node.raft is None:
                self.start(member)
        fresh: tuple[int, int] | None = None  # (term, index) of an entry proposed since
        for _ in range(patience):
            self.step()
            leader = self.leader()
            if leader is None:
                continue
            if fresh is None or fresh[0] != leader.term:
                try:
                    fresh = leader.term, leader.propose(b"fresh")
                except MetarayError:
                    continue  # still handing over, or too much is uncommitted yet
                self.settle(leader.id)
            elif self.settled(fresh[1]):
                break
        else:
            raise AssertionError(f"no agreement: {self.describe()}")
        for member in self.up:
            self.raft(member).check()

    def settled(self, index: int) -> bool:
        leader = self.leader()
        if leader is None or leader.configuration.joint or leader.commit < index:
            return False
        members = [self.nodes[member] for member in leader.configuration.members]
        states = {(node.applied, node.digest) for node in members}
        return len(states) == 1 and members[0].applied == leader.last_index

    def describe(self) -> str:
        return "; ".join(
            f"{member}: {raft.role.name} term {raft.term} log {raft.first_index}..{raft.last_index}"
            f" commit {raft.commit} {raft.configuration} progress {dict(raft.progress)}"
            for member, raft in ((member, self.raft(member)) for member in self.up)
        )
