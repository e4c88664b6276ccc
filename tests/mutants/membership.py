"""Bugs of membership changes and of handing the leadership over."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "state_machines.raft.core"
LOG: Final = "state_machines.raft.log"
QUORUM: Final = "state_machines.raft.quorum"
CONFCHANGE: Final = "state_machines.raft.confchange"

MEMBERSHIP: Final = (
    Mutant(
        "a-configuration-counts-from-its-commit-on",
        "Raft 6",
        LOG,
        "return self._configurations[-1][1]",
        "return [each for at, each in self._configurations if at <= self.commit][-1]",
    ),
    Mutant(
        "a-configuration-outlives-its-truncated-entry",
        "Raft 6",
        LOG,
        "        while self.configuration_index > last:\n            self._configurations.pop()\n",
        "",
    ),
    Mutant(
        "a-second-change-begins-while-one-is-under-way",
        "Raft 6",
        CORE,
        "if self._log.configuration_index > self._log.commit:\n            raise",
        "if self._log.configuration.joint:\n            raise",
    ),
    Mutant(
        "a-change-before-the-first-commit-of-the-term",
        "thesis 4.1",
        CORE,
        "if self._log.commit < leader.noop_index:",
        "if self._log.commit < 0:",
    ),
    Mutant(
        "a-joint-configuration-commits-by-its-union",
        "Raft 6",
        QUORUM,
        "agreed = min(agreed, _majority_index(configuration.outgoing, match))",
        "both = tuple({*configuration.voters, *configuration.outgoing})\n"
        "        agreed = _majority_index(both, match)",
    ),
    Mutant(
        "a-joint-configuration-elects-without-its-old-half",
        "Raft 6",
        QUORUM,
        "halves.append(_tally(configuration.outgoing, votes))",
        "halves.append(_tally(configuration.voters, votes))",
    ),
    Mutant(
        "a-joint-configuration-reads-without-its-old-half",
        "Raft 6",
        QUORUM,
        "not configuration.outgoing or _majority_present(configuration.outgoing, present)",
        "not configuration.outgoing or _majority_present(configuration.voters, present)",
    ),
    Mutant(
        "a-learner-counts-as-a-voter",
        "Raft 6",
        QUORUM,
        "agreed = _majority_index(configuration.voters, match)",
        "agreed = _majority_index(configuration.voters + configuration.learners, match)",
    ),
    Mutant(
        "a-learner-is-promoted-before-it-has-caught-up",
        "law 1",
        CORE,
        "return replicating and gap <= self._config.promotion_gap_entries",
        "return replicating or gap >= 0",
    ),
    Mutant(
        "a-removed-leader-goes-on",
        "Raft 6",
        CORE,
        "        if self._removed():\n            self._tell_commit(leader)",
        "        if self.id == 0:\n            self._tell_commit(leader)",
    ),
    Mutant(
        "a-removed-leader-takes-requests",
        "Raft 6",
        CORE,
        "        if self._removed():\n            raise Transferring(",
        "        if self.id == 0:\n            raise Transferring(",
    ),
    Mutant(
        "a-group-stays-joint",
        "Raft 6",
        CORE,
        "if leader.transfer is None:  # The target has to have the whole log.",
        "if leader.transfer is not None:",
    ),
    Mutant(
        "voters-change-without-a-joint-configuration",
        "Raft 6",
        CONFCHANGE,
        "outgoing=old.voters if voters != old.voters else (),",
        "outgoing=(),",
    ),
    Mutant(
        "a-stranger-becomes-a-voter-at-once",
        "law 1",
        CONFCHANGE,
        "        if learner not in old.learners:\n            raise Invalid(",
        "        if learner <= 0:\n            raise Invalid(",
    ),
    Mutant(
        "a-snapshot-carries-an-old-configuration",
        "law 5",
        LOG,
        "return SnapshotMeta(index, term, self._configurations[at][1])",
        "return SnapshotMeta(index, term, self._configurations[0 * at][1])",
    ),
    Mutant(
        "reads-are-served-during-a-transfer",
        "thesis 3.10",
        CORE,
        "reads = self._serving().reads",
        "reads = (self._role if isinstance(self._role, Leader) else self._serving()).reads",
    ),
    Mutant(
        "proposals-are-taken-during-a-transfer",
        "thesis 3.10",
        CORE,
        "        leader = self._serving()\n        entry = Entry(",
        "        leader = self._role if isinstance(self._role, Leader) else self._serving()\n"
        "        entry = Entry(",
    ),
    Mutant(
        "the-target-of-a-transfer-stands-before-it-has-the-log",
        "thesis 3.10",
        CORE,
        "if leader.progress[target].match_index == self._log.last_index:",
        "if leader.progress[target].match_index >= 0:",
    ),
    Mutant(
        "a-transfer-to-a-dead-target-never-ends",
        "thesis 3.10",
        CORE,
        "if leader.transfer.elapsed >= config.election_ticks_min:",
        "if leader.transfer.elapsed < 0:",
    ),
    Mutant(
        "a-voter-that-has-no-vote-yet-is-well",
        "operations",
        "metaray.seat_roles",
        '    return replica["votes"] is False and',
        '    return replica["votes"] is None and',
    ),
    Mutant(
        "a-voter-that-is-at-no-seat-is-well",
        "operations",
        "metaray.overview",
        "    if len(lost) > unwell:",
        "    if len(lost) < unwell:",
    ),
    Mutant(
        "a-seat-without-an-actor-is-not-shown",
        "operations",
        "metaray.overview",
        '        seats.update(seat for each in named for seat in each["group_seats"])\n',
        "        seats.intersection_update(answers)\n",
    ),
    Mutant(
        "a-group-is-started-with-too-few-seats-to-elect",
        "design 5.6",
        "actors.bootstrap",
        "            if replicas <= len(founders) // 2:\n",
        "            if replicas < 0:\n",
    ),
)
