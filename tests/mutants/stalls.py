"""Bugs of what goes on while a disk hangs, or a replica is sent the state."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

STALLS: Final = (
    Mutant(
        "a-stream-outlives-the-lead-that-began-it",
        "Raft 7",
        "state_machines.raft.core",
        "        self._snapshot_to.clear()  # Streams are a leader's, of its term.\n",
        "",
    ),
    Mutant(
        "the-log-behind-a-stream-is-cut",
        "Raft 7",
        "actors.snapshots",
        "        self._upkeep.holds.stream(peer)\n",
        "",
    ),
    Mutant(
        "a-stream-that-broke-holds-the-log",
        "Raft 7",
        "actors.snapshots",
        "                if not whole:\n                    self._upkeep.holds.broken(peer)\n",
        "",
    ),
    Mutant(
        "compaction-waits-for-exporters-alone",
        "Raft 7",
        "actors.committed",
        "        wanted = min([wanted, *self._peers.values()])\n",
        "",
    ),
    Mutant(
        "promises-that-wait-grow-while-a-save-hangs",
        "design 3",
        "state_machines.raft.state",
        "        self[:] = [each for each in self if not _says_again(message, each)]\n",
        "",
    ),
    Mutant(
        "a-candidate-gives-up-before-anybody-was-asked",
        "Raft 5.2",
        "state_machines.raft.core",
        "self._elapsed = 0  # Its own vote",
        "pass  # Its own vote",
    ),
    Mutant(
        "a-leader-whose-disk-hangs-leads-on",
        "thesis 3.10",
        "state_machines.raft.core",
        "if heir := self._outrun_by(leader):",
        "if heir := 0:",
    ),
    Mutant(
        "who-is-silent-is-handed-the-lead",
        "thesis 3.10",
        "state_machines.raft.state",
        "if progress.active and peer in log.configuration.voters",
        "if peer in log.configuration.voters",
    ),
    Mutant(
        "a-name-is-looked-through-for-each-pattern",
        "law 15",
        "state_machines.mqtt.matching",
        "            known = self._at[char] = int",
        "            known = int",
    ),
    Mutant(
        "members-leave-on-the-loop",
        "law 15",
        "state_machines.mqtt.share_group",
        'clients leave groups."""\n\n    heavy: ClassVar[bool] = True',
        'clients leave groups."""\n\n    heavy: ClassVar[bool] = False',
    ),
)
