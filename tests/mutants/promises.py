"""Bugs of promising: saying what a crash can still take away, or forgetting what was said."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "state_machines.raft.core"
STATE: Final = "state_machines.raft.state"
LOG: Final = "state_machines.raft.log"

PROMISES: Final = (
    Mutant(
        "a-vote-leaves-before-it-is-saved",
        "law 3",
        CORE,
        "self._promises.append(VoteReply(self.id, sender, self._term, True))",
        "self._messages.append(VoteReply(self.id, sender, self._term, True))",
    ),
    Mutant(
        "a-vote-alone-is-never-saved",
        "law 3",
        CORE,
        "moved = self._term != self._saved.term or self._vote != self._saved.vote",
        "moved = self._term != self._saved.term",
    ),
    Mutant(
        "a-restart-forgets-the-vote",
        "law 3",
        STATE,
        "self._vote = hard_state.vote",
        "self._vote = 0",
    ),
    Mutant(
        "a-restart-forgets-the-term",
        "law 3",
        STATE,
        "self._term = hard_state.term",
        "self._term = self._log.last_term",
    ),
    Mutant(
        "a-candidate-asks-before-its-own-vote-is-saved",
        "law 3",
        CORE,
        "                self._send(request)\n",
        "                self._messages.append(request)\n",
    ),
    Mutant(
        "a-message-of-a-new-term-leaves-before-the-term-is-saved",
        "law 3",
        STATE,
        "if message.term > self._saved.term:",
        "if message.term > TERM_MAX:",
    ),
    Mutant(
        "an-append-is-acknowledged-before-it-is-saved",
        "law 3",
        CORE,
        "        if match_index <= self._log.durable:\n            self._send(reply)",
        "        if match_index <= self._log.last_index:\n            self._send(reply)",
    ),
    Mutant(
        "a-leader-counts-itself-before-its-own-save",
        "law 4",
        STATE,
        "self._log.durable  # What it has not saved it could still lose.",
        "self._log.last_index",
    ),
    Mutant(
        "a-save-counts-for-entries-that-replaced-what-it-saved",
        "law 3",
        LOG,
        "        self._saving = min(self._saving, last)\n",
        "",
    ),
    Mutant(
        "an-entry-is-applied-before-it-is-saved-here",
        "law 3",
        LOG,
        "upto = min(self.commit, self.durable)",
        "upto = self.commit",
    ),
    Mutant(
        "a-restart-takes-its-whole-log-for-committed",
        "Raft 5.3",
        LOG,
        "self.commit = max(min(commit, self.last_index), snapshot.index)",
        "self.commit = self.last_index",
    ),
    Mutant(
        "a-replica-sends-its-promises-with-its-messages",
        "law 3",
        "actors.replica",
        "        if ready.messages:\n            self.transport.send(ready.messages)",
        "        if ready.messages or ready.promises:\n"
        "            self.transport.send((*ready.messages, *ready.promises))",
    ),
    Mutant(
        "the-term-is-saved-after-the-entries-in-a-commit-of-its-own",
        "law 3",
        "storage.log",
        "        self.engine.write(changes)\n",
        "        late = [change for change in changes if change[1] == HARD_STATE]\n"
        "        self.engine.write([change for change in changes if change not in late])\n"
        "        self.engine.write(late)\n",
    ),
    Mutant(
        "a-snapshot-lets-a-later-promise-go",
        "law 3",
        "storage.log",
        "            term=max(old.term, flushed.term)",
        "            term=flushed.term",
    ),
)
