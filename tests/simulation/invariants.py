"""What must hold after every event of a simulated run, whatever the weather.

The monitor sees each replica three ways: what it is (its core, after every step of its process),
what is on its disk (every save, once it is durable), and what it says (every message, as it
leaves). The first replica to apply an entry decides what applying it comes to; all others, in all
their lives, must come to the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from actors.admission import PROPOSALS, READS, URGENT_MAX
from actors.pending import READS_MAX
from actors.replica import Replica
from actors.seat_names import is_learner
from actors.transport import BUFFER_MAX, CALLS_MAX
from state_machines.changes import Changes
from state_machines.machine import Admitted, Applied
from state_machines.raft import Raft
from state_machines.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    EntryKind,
    HardState,
    Message,
    RequestVote,
    SnapshotMeta,
    VoteReply,
)
from state_machines.raft.progress import ProgressState
from state_machines.raft.quorum import has_quorum
from state_machines.raft.roles import Follower, Leader
from state_machines.wire import api_pb2 as api
from storage.stores import Stores
from tests.simulation.disk import Room

WALK_EVERY = 64  #: steps of a replica between two walks over its whole log


class Violation(Exception):
    """Something that must always hold did not."""


@dataclass(slots=True)
class Durable:
    """What a replica's disk holds, as its finished saves said."""

    base: int = 0
    terms: dict[int, int] = field(default_factory=dict)
    last: int = 0
    hard_state: HardState = field(default_factory=HardState)

    def has(self, index: int, term: int) -> bool:
        return index <= self.base or self.terms.get(index) == term


@dataclass(slots=True)
class Member:
    """One replica id, over all its lives."""

    seat: str
    group: str
    durable: Durable = field(default_factory=Durable)
    term: int = 0
    vote: int = 0
    lives: int = 0
    # Of the life it is in:
    commit: int = 0
    applied: int = 0
    last: int = 0
    shape: tuple[Any, ...] = ()
    steps: int = 0
    configurations: set[Configuration] = field(default_factory=set)  #: one of these is in force


@dataclass(slots=True)
class Outcome:
    """What applying one entry came to, wherever it was applied."""

    term: int
    digest: int
    replies: list[Applied]
    changes: list[Any]


@dataclass(slots=True)
class GroupFacts:
    """What is known for ever of one group."""

    leaders: dict[int, int] = field(default_factory=dict)  #: term -> replica
    committed: dict[int, tuple[int, int]] = field(default_factory=dict)  #: index -> (term, in term)
    entries: dict[tuple[int, int], int] = field(default_factory=dict)  #: (index, term) -> checksum
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    effects: dict[tuple[int, int], int] = field(default_factory=dict)  #: (client, seq) -> index
    leading: dict[int, int] = field(default_factory=dict)  #: term -> its leader's last index
    acknowledged: int = 0  #: the highest revision that a client was told
    commit: int = 0


class Monitor:
    """Judges every step. `fail` inside the product's own code is raised after the step."""

    def __init__(self) -> None:
        self.members: dict[int, Member] = {}
        self.facts: defaultdict[str, GroupFacts] = defaultdict(GroupFacts)
        self.failures: list[str] = []
        self.checks = 0
        self.elections = 0
        self.excused: set[int] = set()  #: replicas that may stop: their disk was damaged
        self.full: set[str] = set()  #: seats whose replica may stop, whichever it is: a full disk

    def fail(self, what: str) -> None:
        self.failures.append(what)

    def expect(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)

    def raise_failures(self) -> None:
        """Raise what was found."""
        if self.failures:
            raise Violation("; ".join(self.failures))

    # -- a replica begins a life ------------------------------------------------------------

    def opened(self, seat: str, room: Room, stores: Stores) -> None:
        """Its disk was read: nothing that was durable may be missing."""
        who = room.identity
        member = self.members.setdefault(who.replica, Member(seat, who.group))
        if member.seat != seat:
            self.fail(f"identity: replica {who.replica:x} of {member.seat} speaks at {seat}")
        facts, durable, loaded = self.facts[who.group], member.durable, stores.loaded
        terms = {entry.index: entry.term for entry in loaded.entries}
        found = Durable(loaded.snapshot.index, terms, 0, loaded.hard_state)
        found.last = loaded.snapshot.index + len(terms)
        for index, (term, _) in facts.committed.items():
            if durable.terms.get(index) == term and not found.has(index, term):
                self.fail(f"durability: {seat} lost entry {index} of term {term}, which it had")
        before, now = durable.hard_state, loaded.hard_state
        if now.term < before.term or (
            now.term == before.term and before.vote and now.vote != before.vote
        ):
            self.fail(f"durability: {seat} forgot {before}, it has {now}")
        member.durable = found
        log: Any = stores.log
        save = log.save

        def saved(
            snapshot: SnapshotMeta | None, entries: Sequence[Entry], state: HardState | None
        ) -> None:
            save(snapshot, entries, state)
            self._saved(member, snapshot, entries, state)

        log.save = saved

    def adopt(self, replica: Replica) -> Callable[[], bool]:
        """A seat has a replica now. Returns what is to be called after each of its steps."""
        core = replica.core
        member = self.members[core.id]
        member.lives += 1
        # A term or a vote that no save had covered went with the process; `opened` looked at those.
        member.term, member.vote = core.term, core.vote
        member.commit, member.last, member.shape = core.commit, core.last_index, ()
        member.applied = replica.stores.state.applied.index
        machine: Any = replica._machine
        apply, take_changes = machine.apply, machine.take_changes
        at: list[tuple[Entry, list[Applied]]] = []

        def applied(entry: Entry, admitted: Sequence[Admitted] = ()) -> list[Applied]:
            if core._log.commit > member.commit:  # committed and applied in one step
                self._commits(member, core, self.facts[member.group])
                member.commit = core._log.commit
            replies: list[Applied] = apply(entry, admitted)
            at.append((entry, replies))
            return replies

        def taken() -> Changes:
            changes: Changes = take_changes()
            entry, replies = at.pop()
            self._applied(member, entry, replies, list(changes))
            return changes

        machine.apply, machine.take_changes = applied, taken
        transport: Any = replica.transport
        send = transport.send

        def sent(messages: Iterable[Message]) -> None:
            messages = list(messages)
            for message in messages:
                self._said(member, core, message)
            send(messages)

        transport.send = sent
        return self.watch(member, replica)

    # -- what it is -------------------------------------------------------------------------

    def watch(self, member: Member, replica: Replica) -> Callable[[], bool]:
        """What is to be called after every step of the replica's process: it raises Violation, and
        says whether something had changed."""
        core = replica.core
        log = core._log

        def look() -> bool:
            self.checks += 1
            role = core._role
            shape = (
                core._term,
                core._vote,
                role.name,
                role.leader if type(role) is Follower else 0,
                log.commit,
                log.last_index,
                log.last_term,
                log.applied,
                log.durable,
                log.offset,
                replica.applied.index,
                replica.stopped_because,
            )
            changed = shape != member.shape
            if changed:
                member.shape = shape
                self._changed(member, replica)
            member.steps += 1
            if member.steps % WALK_EVERY == 0:
                core.check()
                self._bounded(replica)
            if self.failures:
                self.raise_failures()
            return changed

        return look

    def _changed(self, member: Member, replica: Replica) -> None:
        core = replica.core
        name, facts, log = member.seat, self.facts[member.group], core._log
        term, vote = core.term, core.vote
        if replica.stopped_because and core.id not in self.excused and name not in self.full:
            fine = ("closed", "abandoned", "removed from its group")
            self.expect(
                replica.stopped_because in fine, f"{name} stopped: {replica.stopped_because}"
            )
        if term < member.term:
            self.fail(f"term: {name} went back from {member.term} to {term}")
        if term == member.term and member.vote and vote != member.vote:
            self.fail(f"vote: {name} voted for {member.vote:x} and {vote:x} in term {term}")
        member.term, member.vote = term, vote
        member.configurations = {log.configuration, log.configuration_before}
        for voter in (*log.configuration.voters, *log.configuration.outgoing):
            seat = self.members[voter].seat if voter in self.members else ""
            self.expect(not is_learner(seat), f"learners: replica {voter:x} at {seat} has a vote")
        if log.commit < member.commit:
            self.fail(f"commit: {name} went back from {member.commit} to {log.commit}")
        if replica.applied.index < member.applied:
            self.fail(f"applied: {name} went back, {member.applied} to {replica.applied.index}")
        flushed = replica.stores.state.flushed.index
        if not log.installing and not (
            log.offset <= max(flushed, 0) and flushed <= log.commit <= log.last_index
        ):
            self.fail(f"order: {name} {log.offset} <= {flushed} <= {log.commit}")
        if log.applied > log.commit or replica.applied.index > log.commit:
            self.fail(f"order: {name} applied {replica.applied.index} of {log.commit}")
        if isinstance(core.role, Leader):
            if facts.leaders.setdefault(term, core.id) != core.id:
                self.fail(f"election safety: {name} and {facts.leaders[term]:x} lead term {term}")
            self._complete(member, core, facts)
        if log.commit > member.commit:
            self._commits(member, core, facts)
        member.commit, member.applied, member.last = (
            log.commit,
            replica.applied.index,
            log.last_index,
        )

    def _complete(self, member: Member, core: Raft, facts: GroupFacts) -> None:
        """Leader completeness: it has whatever was committed in earlier terms (5.4.3)."""
        if core.term in facts.leading:
            # It led before. A leader only appends to its log (5.3).
            if core.last_index < facts.leading[core.term]:
                self.fail(f"append-only: leader {member.seat} of {core.term} dropped entries")
            facts.leading[core.term] = core.last_index
            return
        self.elections += 1
        facts.leading[core.term] = core.last_index
        for index, (term, when) in facts.committed.items():
            if when < core.term and index >= core.first_index - 1:
                has = index <= core.last_index and core._log.term(index) == term
                if not has:
                    self.fail(
                        f"completeness: leader {member.seat} of term {core.term} lacks {index}, "
                        f"committed in term {when}"
                    )

    def _commits(self, member: Member, core: Raft, facts: GroupFacts) -> None:
        log = core._log
        for index in range(max(member.commit + 1, core.first_index), log.commit + 1):
            term = log.term(index)
            assert term is not None
            agreed = facts.committed.get(index)
            if agreed is None:
                facts.committed[index] = (term, core.term)
            elif agreed[0] != term:
                self.fail(f"agreement: {index} was committed with term {agreed[0]}, now {term}")
        if log.commit > facts.commit:
            facts.commit = log.commit
            if facts.leaders.get(core.term) == core.id and log.term(log.commit) == core.term:
                holders = {
                    replica
                    for replica, each in self.members.items()
                    if each.group == member.group and each.durable.has(log.commit, core.term)
                }
                # The joint configuration's majorities contain that of the one that follows it.
                if not has_quorum(core.configuration, holders):
                    self.fail(
                        f"quorum: {member.seat} commits {log.commit}, which is on "
                        f"{[f'{each:x}' for each in holders]} of {core.configuration}"
                    )
        pending = sum(
            1
            for entry in log.between(log.commit + 1, log.last_index)
            if entry.kind is EntryKind.CONFIGURATION
        )
        if pending > 1 and isinstance(core.role, Leader):
            self.fail(f"membership: {pending} changes under way at {member.seat}")

    def _bounded(self, replica: Any) -> None:
        """Memory: what waits has a limit everywhere."""
        waiting = len(replica.writes)
        self.expect(waiting <= PROPOSALS.calls + URGENT_MAX, "the proposal queue is over its limit")
        self.expect(len(replica.reads) <= 3 * READS_MAX, "the reads are over their limit")
        answers = replica.answers
        self.expect(answers.admission.rest.calls <= READS.calls, "the reads are over their limit")
        long = len(answers) - answers.admission.rest.calls
        self.expect(long <= READS_MAX, "the long reads are over their limit")
        for lane in replica.transport._lanes.values():
            self.expect(len(lane.waiting) <= BUFFER_MAX, "a peer's buffer is over its limit")
            self.expect(lane.calls <= CALLS_MAX, "more envelopes under way than may be")
        for progress in replica.core.progress.values():
            bounded = progress.inflight <= replica.core._config.max_inflight_appends
            self.expect(bounded, f"too many appends under way: {progress}")
            if progress.state is not ProgressState.REPLICATE:
                self.expect(progress.inflight == 0, f"appends under way while {progress.state}")

    # -- what is on its disk ----------------------------------------------------------------

    def _saved(
        self,
        member: Member,
        snapshot: SnapshotMeta | None,
        entries: Sequence[Entry],
        state: HardState | None,
    ) -> None:
        durable, facts = member.durable, self.facts[member.group]
        before: int | None = durable.terms.get(entries[0].index - 1) if entries else None
        if snapshot is not None:
            durable.base, durable.terms, durable.last = snapshot.index, {}, snapshot.index
            before = snapshot.term
        for entry in entries:
            configuration = entry.configuration
            content = crc32(
                b"%d %d %s %s"
                % (entry.kind, before or 0, entry.data, repr(configuration or "").encode())
            )
            key = (entry.index, entry.term)
            if before is not None and facts.entries.setdefault(key, content) != content:
                self.fail(f"log matching: two entries at {entry.index} of term {entry.term}")
            before = entry.term
            durable.terms[entry.index] = entry.term
        if entries:
            for index in range(entries[-1].index + 1, durable.last + 1):
                agreed = facts.committed.get(index)
                if agreed is not None and durable.terms.get(index) == agreed[0]:
                    self.fail(f"truncation: {member.seat} drops {index}, which is committed")
                durable.terms.pop(index, None)
            durable.last = entries[-1].index
        if state is not None:
            old = durable.hard_state
            if state.term < old.term or (
                state.term == old.term and old.vote and state.vote != old.vote
            ):
                self.fail(f"promise: {member.seat} saves {state} over {old}")
            durable.hard_state = state

    # -- what it says -----------------------------------------------------------------------

    def _said(self, member: Member, core: Raft, message: Message) -> None:
        """No message leaves that says more than the disk does."""
        durable, name = member.durable, member.seat
        term, vote = durable.hard_state.term, durable.hard_state.vote
        self.expect(message.sender == core.id, f"identity: {name} speaks as {message.sender:x}")
        match message:
            case RequestVote(pre=True) | VoteReply(pre=True, granted=True):
                return
            case VoteReply(granted=True):
                if term == message.term and vote != message.receiver:
                    self.fail(f"claim: {name} grants a vote in {term} that is not on its disk")
            case RequestVote():
                if term == message.term and vote != core.id:
                    self.fail(f"claim: {name} stands in {term} with a vote that is not on disk")
            case AppendReply(rejected=False, match_index=match_index):
                if term == message.term and durable.last < match_index:
                    self.fail(f"claim: {name} accepts {match_index}, on disk is {durable.last}")
            case Append(entries=entries) if entries:
                self.expect(entries[-1].term <= message.term, f"claim: {name} sends a later term")
            case _:
                pass
        if term < message.term:
            self.fail(f"claim: {name} speaks in term {message.term}, on its disk is {term}")

    # -- what it applies --------------------------------------------------------------------

    def _applied(
        self, member: Member, entry: Entry, replies: list[Applied], changes: list[Any]
    ) -> None:
        facts = self.facts[member.group]
        agreed = facts.committed.get(entry.index)
        if agreed is None or agreed[0] != entry.term:
            self.fail(f"commit: {member.seat} applies {entry.index}, which is not committed")
        told = [(each.client, each.sequence, each.reply) for each in replies]
        digest = crc32(repr((told, changes)).encode(), crc32(entry.data))
        known = facts.outcomes.get(entry.index)
        if known is None:
            facts.outcomes[entry.index] = Outcome(entry.term, digest, replies, changes)
            self._effects(facts, entry)
        elif known.digest != digest or known.term != entry.term:
            self.fail(f"state machine safety: {member.seat} applied {entry.index} otherwise")

    def _effects(self, facts: GroupFacts, entry: Entry) -> None:
        """One effect for each (client, sequence), over the whole history of the group."""
        outcome = facts.outcomes[entry.index]
        for each in outcome.replies:
            if each.client == 0:
                continue
            reply = api.Reply.FromString(each.reply)
            if reply.code != api.OK:
                continue
            first = facts.effects.setdefault((each.client, each.sequence), entry.index)
            if reply.revision != first:
                self.fail(
                    f"exactly once: client {each.client:x} sequence {each.sequence} has an effect "
                    f"at {first} and at {reply.revision}"
                )
