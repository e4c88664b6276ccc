"""Bugs of snapshots: taken half, taken twice, taken back in time, or mixed with what was there."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

SNAPSHOT: Final = "storage.snapshot"
SENDING: Final = "actors.snapshots"

SNAPSHOTS: Final = (
    Mutant(
        "an-install-keeps-the-old-rows",
        "law 6",
        SNAPSHOT,
        "        self._engine = shelf.stage()\n",
        "        self._engine, old = shelf.stage(), shelf.engine\n"
        "        names = [each for each in old.tables() if each[0] != '@']\n"
        "        self._engine.write([(name, *row) for name in names for row in old.scan(name)])\n",
    ),
    Mutant(
        "a-snapshot-below-the-commit-index-is-accepted",
        "law 6",
        "state_machines.raft.core",
        "        if meta.index <= log.commit:\n",
        "        if meta.index <= log.offset:\n",
    ),
    Mutant(
        "the-state-goes-back-to-an-older-snapshot",
        "law 6",
        "storage.state",
        "        if point.index <= self.applied.index:\n",
        "        if point.index <= 0:\n",
    ),
    Mutant(
        "the-checksum-of-a-chunk-is-not-asked",
        "law 6",
        SNAPSHOT,
        "if crc32(chunk.data) != chunk.crc:",
        "if chunk.crc < 0:",
    ),
    Mutant(
        "the-count-of-a-snapshot-is-not-asked",
        "law 6",
        SNAPSHOT,
        "        if rows != last.records:\n",
        "        if rows < 0:\n",
    ),
    Mutant(
        "the-digest-of-a-snapshot-is-not-asked",
        "law 6",
        SNAPSHOT,
        "if self._digest.digest() != last.digest:",
        "if not self._digest.digest():",
    ),
    Mutant(
        "a-snapshot-that-breaks-off-is-whole",
        "law 6",
        SNAPSHOT,
        "        if not self._ended or self.meta is None:\n",
        "        if self.meta is None:\n",
    ),
    Mutant(
        "a-missing-chunk-is-not-missed",
        "law 6",
        SNAPSHOT,
        "        if chunk.number > len(self._crcs):\n",
        "        if chunk.number < 0:\n",
    ),
    Mutant(
        "a-chunk-that-comes-twice-counts-twice",
        "law 12",
        SNAPSHOT,
        "        if chunk.number < len(self._crcs):\n",
        "        if chunk.number < 0:\n",
    ),
    Mutant(
        "chunks-of-two-streams-are-mixed",
        "law 6",
        SENDING,
        "if self._staging is None or self._stream != (message.sender, message.term):",
        "if self._staging is None:",
    ),
    Mutant(
        "chunks-of-an-older-leader-are-taken",
        "law 12",
        SENDING,
        "if message.term < term or self._verified is not None:",
        "if self._verified is not None:",
    ),
    Mutant(
        "the-log-is-saved-before-the-state-is-switched",
        "law 6",
        "actors.storage_jobs",
        "        stores.state.install(staged, ready.snapshot)\n",
        "        stores.log.save(ready.snapshot, ready.entries, ready.hard_state)\n"
        "        stores.state.install(staged, ready.snapshot)\n",
    ),
    Mutant(
        "the-replies-kept-for-clients-do-not-travel",
        "law 9",
        SNAPSHOT,
        "    for table in view.tables():\n        name = table.encode()",
        "    for table in view.tables():\n"
        "        if table.startswith('group.client') or table == 'group.reply':\n"
        "            continue\n"
        "        name = table.encode()",
    ),
    Mutant(
        "a-chunk-is-larger-than-a-message-may-be",
        "law 14",
        SNAPSHOT,
        "CHUNK_BYTES = 60 << 10",
        "CHUNK_BYTES = 90 << 10",
    ),
    Mutant(
        "a-stream-is-one-huge-chunk",
        "law 14",
        SNAPSHOT,
        "        while len(buffer) > chunk_bytes:",
        "        while len(buffer) > chunk_bytes << 40:",
    ),
    Mutant(
        "a-switch-points-to-the-new-state-before-it-is-there",
        "law 6",
        "storage.shelf",
        "            (self._staging / INCOMING).rename(self._state / str(fresh))\n",
        "            self._point(fresh)\n"
        "            (self._staging / INCOMING).rename(self._state / str(fresh))\n",
    ),
    Mutant(
        "a-state-is-opened-whose-pointer-may-be-lost",
        "law 6",
        "storage.shelf",
        "        filesystem.sync(self._state)  # a process that was killed",
        "        # a process that was killed",
    ),
    Mutant(
        "a-replica-killed-while-it-was-made-never-starts",
        "liveness",
        "storage.shelf",
        "        if found > 1 and not (self._state",
        "        if not (self._state",
    ),
    Mutant(
        "an-installed-state-says-so-for-ever",
        "law 6",
        "storage.state",
        'stored is not None and int.from_bytes(number, "big") == self.flushed.index',
        "stored is not None and len(number) > 0",
    ),
)
