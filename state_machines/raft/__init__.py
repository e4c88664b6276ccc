"""Raft: several replicas agree on one log, and go on agreeing while some are down.

A *group* of replicas keeps a log of entries (`messages.Entry`). Whatever is *committed* is on a
majority and will never change, so every replica that applies the committed entries in order arrives
at the same state. This package is the agreement alone. It has no clock, no disk, no network and no
luck of its own: a shell feeds a `Raft` and does what it says. "Section 5.x" means the Raft paper
(Ongaro and Ousterhout, 2014), "thesis" Ongaro's dissertation.

How it is driven
----------------
`tick()` says that time has passed and `step(message)` that a message came. `propose(data)`,
`change(...)`, `read(context)` and `transfer(target)` are requests to a leader. After a batch of
these, `ready()` hands out one frozen `Ready`, whose fields stand in the order in which they are to
be done, and `advance(ready)` reports that its save is durable:

    while (ready := raft.ready()) is not None:
        send(ready.messages)                       # promise nothing
        save(ready.snapshot, ready.entries, ready.hard_state)
        raft.advance(ready)
        send(ready.promises)                       # a crash can no longer take them back
        apply(ready.committed)
        ...

A shell that saves on another thread calls `advance` later. Until then `ready()` hands out no second
save, but all the rest, so a slow disk stops neither heartbeats nor reads, and whatever arrives
meanwhile shares the next save.

Terms and elections
-------------------
Time is divided into *terms*, numbered upwards, with at most one leader each. A replica follows the
highest term it has seen in any message, answers included. A `Follower` that hears no leader for a
random time (between `election_ticks_min` and `_max`) becomes a `PreCandidate`: it asks the others
with `RequestVote(pre=True)` whether they would vote for it, and leaves its term as it is. A quorum
of consents makes it a `Candidate`: it raises the term, votes for itself, and asks in earnest. A
replica gives one vote a term, on disk before it is spoken, to a log at least as up to date as its
own (5.4.1): so the winner, a `Leader`, has everything that is committed.

The pre-vote keeps a replica that was cut off from raising the term and unseating a leader that the
others are content with. For the same reason a follower that hears a leader refuses to vote at all,
and a leader that hears no majority for an election timeout steps down (`check_quorum`). A replica
that got into a higher term nevertheless is not left alone there: it answers the old leader with its
own term, which ends that leadership, and the next one has them both. When a leader's process dies
the shell knows at once and calls `unreachable` and `campaign`; then all followers ask together, and
of those with equal logs the one with the largest id gets the consent of the others.

Replication
-----------
A new leader appends an empty entry, the no-op: it may count replicas only for entries of its own
term (5.4.2), and everything older commits beneath that. It sends each peer the entries it lacks in
`Append`, with the position before them; a follower whose log does not have that position refuses,
and says where the logs may still agree (`AppendReply.conflict_index`), so a whole term is skipped
at a time. `progress` keeps what is known of each peer: it *probes* with one append at a time until
one is accepted, then *replicates* without waiting for answers, within bounds. A peer that needs
what the log no longer has appears in `Ready.snapshot_to`; the shell streams it the state and the
other shell steps `InstallSnapshot`, which is answered like an append. `snapshot_sent` or
`snapshot_failed` reports the end of the stream. A follower that disagrees with the leader drops its
own entries, which cannot be committed ones: an assertion says so.

An entry is committed once a quorum has it on disk; the leader counts itself by its own disk too
(`Raft.durable_index`). If that hangs while a quorum goes on it hands over (thesis 3.10). Followers
learn the commit index from later appends and heartbeats. Entries are handed out in
`Ready.committed` once they are committed *and* durable here.

Reads
-----
A read must see every write that was acknowledged before. The leader remembers its commit index,
proves by a round of heartbeats that it still leads, and answers `ReadState(context, index)`: once
the state has applied `index` the read is safe (`reads`). One round serves all reads that arrived
before it began, and asks no more replicas than a quorum needs, unless they are silent.

Membership
----------
A `Configuration` is an entry, and in force from its append, even before it is committed; should
the entry be truncated, the one before is in force again. Voters change by joint consensus
(`confchange`, section 6): first an entry with old and new voters, where both majorities must agree,
then, without anybody asking for it, one with the new ones. New members are learners first. A leader
that has removed itself leads until the last entry is committed, names an heir, and steps down.

Where things are
----------------
`messages` what is said, `config` the settings, `log` the entries and how far each thing has got,
`quorum` majorities, `progress` one peer, `confchange` membership, `reads` read rounds, `roles` what
each role knows, `state` what every replica knows, `core` the rules: the file to read.

What is left out
----------------
- *Lease reads.* A leader could answer reads without a round while its lease lasts, if clocks may be
  trusted. Here every read asks a quorum; a group with one voter is its own.
- *Reads and proposals at followers.* They raise `NotLeader` with the leader's id.
- *Priorities, witnesses, quiescence.* All voters are equal, all keep the log, all leaders beat.
- *Snapshot transport.* The core says who needs one and whether one may be installed.
- *Exactly-once.* An entry proposed twice is applied twice; `state_machines.clients` sees to it.
- *Byzantine peers.* A message is believed if its form is right (the codec sees to that), except
  that a term beyond `TERM_MAX` is dropped.
"""

from state_machines.raft.confchange import Change
from state_machines.raft.config import TERM_MAX, RaftConfig, Rng
from state_machines.raft.core import Raft
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
    ReadState,
    Ready,
    RequestVote,
    SnapshotMeta,
    TimeoutNow,
    VoteReply,
)
from state_machines.raft.progress import Progress, ProgressState
from state_machines.raft.roles import Candidate, Follower, Leader, PreCandidate, Role

__all__ = [
    "TERM_MAX",
    "Append",
    "AppendReply",
    "Candidate",
    "Change",
    "Configuration",
    "Entry",
    "EntryKind",
    "Follower",
    "HardState",
    "Heartbeat",
    "HeartbeatReply",
    "InstallSnapshot",
    "Leader",
    "Message",
    "PreCandidate",
    "Progress",
    "ProgressState",
    "Raft",
    "RaftConfig",
    "ReadState",
    "Ready",
    "RequestVote",
    "Rng",
    "Role",
    "SnapshotMeta",
    "TimeoutNow",
    "VoteReply",
]
