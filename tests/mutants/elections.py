"""Bugs of elections: who may lead, who may ask, and who has to give way."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "state_machines.raft.core"
STATE: Final = "state_machines.raft.state"

ELECTIONS: Final = (
    Mutant(
        "a-higher-term-in-a-reply-is-ignored",
        "law 11",
        CORE,
        "                pass  # a term that somebody would like to begin; nobody is in it\n",
        "                pass\n"
        "            case AppendReply() | HeartbeatReply() | VoteReply():\n"
        "                return False\n",
    ),
    Mutant(
        "a-follower-forgets-whom-it-voted-for",
        "law 3",
        CORE,
        "            self._vote = sender\n",
        "",
    ),
    Mutant(
        "votes-go-to-shorter-logs",
        "Raft 5.4.1",
        CORE,
        "granted = free and theirs >= mine",
        "granted = free",
    ),
    Mutant(
        "logs-are-compared-by-length-alone",
        "Raft 5.4.1",
        CORE,
        "granted = free and theirs >= mine",
        "granted = free and theirs[1] >= mine[1]",
    ),
    Mutant(
        "nobody-asks-before-an-election",
        "law 11",
        CORE,
        "            case role if self._elapsed >= self._timeout:\n"
        "                if self._electable():\n"
        "                    self._campaign(pre=self._config.pre_vote)",
        "            case role if self._elapsed >= self._timeout:\n"
        "                if self._electable():\n"
        "                    self._campaign(pre=False)",
    ),
    Mutant(
        "a-leader-that-hears-nobody-goes-on",
        "law 11",
        CORE,
        "if config.check_quorum and not self._hears_quorum(leader):",
        "if config.check_quorum and self._hears_quorum(leader) is None:",
    ),
    Mutant(
        "followers-of-a-live-leader-grant-votes",
        "law 11",
        CORE,
        "return self._config.check_quorum or (message.pre and following)",
        "return False",
    ),
    Mutant(
        "an-answer-to-a-pre-vote-counts-as-a-vote",
        "law 11",
        CORE,
        "case Candidate(votes=votes) as role if not message.pre:",
        "case Candidate(votes=votes) as role:",
    ),
    Mutant(
        "a-pre-vote-for-an-earlier-candidacy-counts",
        "law 11",
        CORE,
        "if message.granted and message.term != self._term + 1:",
        "if message.granted and message.term > self._term + 1:",
    ),
    Mutant(
        "asking-for-a-pre-vote-raises-the-term",
        "law 11",
        CORE,
        "case RequestVote(pre=True) | VoteReply(pre=True, granted=True):",
        "case VoteReply(pre=True, granted=True):",
    ),
    Mutant(
        "an-old-leader-is-not-told-of-the-term",
        "law 11",
        CORE,
        "self._send(AppendReply(self.id, message.sender, self._term, 0, rejected=True))",
        "pass",
    ),
    Mutant(
        "in-a-tie-nobody-goes-first",
        "liveness",
        CORE,
        "granted = granted and sender > self.id",
        "granted = False",
    ),
    Mutant(
        "half-of-the-votes-is-enough",
        "Raft 5.2",
        "state_machines.raft.quorum",
        "return count // 2 + 1",
        "return (count + 1) // 2",
    ),
    Mutant(
        "every-election-timeout-is-the-same",
        "liveness",
        STATE,
        "return self._rng.randrange(config.election_ticks_min, config.election_ticks_max)",
        "return config.election_ticks_min",
    ),
    Mutant(
        "a-learner-stands-for-election",
        "Raft 6",
        STATE,
        "return configuration.has_vote(self.id)",
        "return self.id in configuration.members",
    ),
    Mutant(
        "a-learner-goes-on-naming-a-leader-it-does-not-hear",
        "liveness",
        CORE,
        "role.leader = 0  # Who cannot stand",
        "pass  # Who cannot stand",
    ),
    Mutant(
        "votes-of-those-without-a-vote-count",
        "Raft 6",
        "state_machines.raft.quorum",
        "granted = sum(votes.get(voter, False) for voter in voters)",
        "granted = sum(votes.values())",
    ),
    Mutant(
        "a-candidate-does-not-yield-to-a-leader-of-its-term",
        "Raft 5.2",
        CORE,
        "case PreCandidate() | Candidate():\n"
        "                self._become_follower(self._term, leader)",
        "case PreCandidate() | Candidate():\n                pass",
    ),
    Mutant(
        "a-replica-that-is-installing-stands-for-election",
        "law 6",
        STATE,
        "return self._may_vote(configuration) and not log.installing and self._term < TERM_MAX",
        "return self._may_vote(configuration) and self._term < TERM_MAX",
    ),
    Mutant(
        "a-message-for-another-replica-is-taken",
        "law 12",
        CORE,
        "if message.receiver != self.id or message.sender == self.id",
        "if message.sender == self.id",
    ),
    Mutant(
        "a-vote-that-is-lost-is-not-asked-for-again",
        "Raft 5.1",
        CORE,
        "if self._elapsed % self._config.heartbeat_ticks == 0:",
        "if self._elapsed < 0:",
    ),
    Mutant(
        "who-has-answered-is-asked-for-his-vote-again",
        "law 18",
        CORE,
        "configuration.outgoing} - role.votes.keys()):",
        "configuration.outgoing} - {self.id}):",
    ),
    Mutant(
        "votes-are-asked-for-again-before-the-first-request-has-left",
        "law 18",
        CORE,
        "as role if self._saved.term == self._term:",
        "as role:",
    ),
)
