"""Bugs of commit: taking for agreed what is not."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "state_machines.raft.core"
QUORUM: Final = "state_machines.raft.quorum"

COMMIT: Final = (
    Mutant(
        "entries-of-older-terms-commit-by-counting",
        "Raft 5.4.2",
        CORE,
        "if agreed <= log.commit or log.term(agreed) != self._term:",
        "if agreed <= log.commit:",
    ),
    Mutant(
        "two-of-five-commit",
        "Raft 5.3",
        QUORUM,
        "return ascending[len(voters) - majority(len(voters))]",
        "return ascending[max(len(voters) - 2, 0)]",
    ),
    Mutant(
        "half-of-an-even-group-commits",
        "Raft 5.3",
        QUORUM,
        "return ascending[len(voters) - majority(len(voters))]",
        "return ascending[len(voters) // 2]",
    ),
    Mutant(
        "heartbeats-commit-what-may-not-match",
        "Raft 5.3",
        CORE,
        "commit = min(progress.match_index, self._log.commit)",
        "commit = self._log.commit",
    ),
    Mutant(
        "an-append-commits-what-it-did-not-carry",
        "Raft 5.3",
        CORE,
        "log.commit = max(log.commit, min(message.commit, match_index))",
        "log.commit = max(log.commit, min(message.commit, log.last_index))",
    ),
    Mutant(
        "a-late-heartbeat-takes-the-commit-back",
        "law 12",
        CORE,
        "self._log.commit = max(self._log.commit, min(message.commit, self.last_index))",
        "self._log.commit = min(message.commit, self.last_index)",
    ),
    Mutant(
        "a-new-leader-makes-no-entry-of-its-own",
        "Raft 5.4.2",
        CORE,
        "        self._append(leader, Entry(self._term, noop))",
        "        leader.noop_index = log.last_index",
    ),
    Mutant(
        "a-stale-reply-of-an-earlier-term-counts",
        "law 12",
        CORE,
        "                case _:\n                    pass  # late\n            return False",
        "                case _:\n                    pass\n"
        "            return isinstance(message, AppendReply) and not message.rejected",
    ),
    Mutant(
        "match-index-goes-back",
        "law 12",
        "state_machines.raft.progress",
        "        if match_index <= self.match_index:\n            return False\n"
        "        self.match_index = match_index\n",
        "        if match_index == self.match_index:\n            return False\n"
        "        self.match_index = match_index\n",
    ),
    Mutant(
        "a-rejection-counts-as-an-acceptance",
        "Raft 5.3",
        CORE,
        "            progress.rejected(match_index, hint)\n            return\n",
        "            progress.rejected(match_index, hint)\n",
    ),
)
