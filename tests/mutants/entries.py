"""Bugs of replication: entries that are lost, overwritten, taken unseen, or sent without end."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

CORE: Final = "state_machines.raft.core"
LOG: Final = "state_machines.raft.log"
PROGRESS: Final = "state_machines.raft.progress"

ENTRIES: Final = (
    Mutant(
        "a-stale-append-truncates-what-follows-it",
        "law 12",
        CORE,
        "            while known < len(entries) and log.term(entries[known].index) == "
        "entries[known].term:\n                known += 1\n",
        "",
    ),
    Mutant(
        "entries-are-taken-without-looking-at-the-one-before",
        "Raft 5.3",
        CORE,
        "if log.term(prev_index) != prev_term:",
        "if log.term(prev_index) is None:",
    ),
    Mutant(
        "a-conflict-is-not-truncated",
        "Raft 5.3",
        CORE,
        "while known < len(entries) and log.term(entries[known].index) == entries[known].term:",
        "while known < len(entries) and log.term(entries[known].index) is not None:",
    ),
    Mutant(
        "appends-on-their-way-have-no-limit",
        "design 6",
        PROGRESS,
        "return len(self._inflight) >= appends_max or self.inflight_bytes >= bytes_max",
        "return False",
    ),
    Mutant(
        "bytes-on-their-way-have-no-limit",
        "design 6",
        PROGRESS,
        "return len(self._inflight) >= appends_max or self.inflight_bytes >= bytes_max",
        "return len(self._inflight) >= appends_max",
    ),
    Mutant(
        "a-leader-alone-takes-proposals-without-limit",
        "design 6",
        CORE,
        "if leader.uncommitted_bytes and leader.uncommitted_bytes + size_of(entry) > limit:",
        "if leader.uncommitted_bytes < 0:",
    ),
    Mutant(
        "a-lost-append-is-not-sent-again",
        "law 12",
        CORE,
        "case ProgressState.REPLICATE if progress.match_index < self._log.last_index:",
        "case ProgressState.REPLICATE if progress.match_index > self._log.last_index:",
    ),
    Mutant(
        "a-lost-probe-is-not-sent-again",
        "law 12",
        CORE,
        "                progress.probing = False\n",
        "",
    ),
    Mutant(
        "a-late-rejection-takes-a-probe-back",
        "law 12",
        PROGRESS,
        "if prev_index != self.next_index - 1 or prev_index <= self.match_index:",
        "if prev_index <= self.match_index:",
    ),
    Mutant(
        "the-log-is-compacted-beyond-what-is-flushed",
        "Raft 7",
        "actors.upkeep",
        "flushed = min(self._stores.state.flushed.index, core.applied_handed)",
        "flushed = core.applied_handed",
    ),
    Mutant(
        "entries-are-counted-with-each-flush-though-an-exporter-is-far-behind",
        "law 15",
        "actors.upkeep",
        "        if held is None or held > target:\n",
        "        if target:\n",
    ),
    Mutant(
        "a-peer-behind-the-log-gets-no-snapshot",
        "Raft 7",
        CORE,
        "                self._snapshot_to.append(peer)\n",
        "",
    ),
    Mutant(
        "a-failed-snapshot-is-not-begun-again",
        "law 12",
        CORE,
        "            progress.snapshot_ended(arrived=arrived)",
        "            progress.probing = not arrived",
    ),
)
