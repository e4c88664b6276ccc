"""Bugs of the journal: what is not durable, not checked, mixed up, or written over too early."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

FILE: Final = "storage.journal"
ENGINE: Final = "storage.journaled"

JOURNAL: Final = (
    Mutant(
        "a-journal-is-written-without-a-sync",
        "law 3",
        FILE,
        "os.O_CREAT | os.O_DSYNC | os.O_CLOEXEC",
        "os.O_CREAT | os.O_CLOEXEC",
    ),
    Mutant(
        "a-damaged-sector-is-taken-for-a-torn-one",
        "law 16",
        FILE,
        "            if stored != computed:\n",
        "            if stored != computed:\n"
        "                sectors.append(_NOTHING)\n"
        "                continue\n"
        "            if stored != computed:\n",
    ),
    Mutant(
        "what-is-left-of-a-torn-record-becomes-a-part-of-the-next",
        "law 16",
        FILE,
        "        self._life = 1 + max(",
        "        self._life = 1 + 0 * max(",
    ),
    Mutant(
        "a-record-missing-before-a-later-one-is-not-missed",
        "law 16",
        FILE,
        "        if newest > self.last + 1:",
        "        if newest > self.last + 1_000_000:",
    ),
    Mutant(
        "a-torn-record-is-taken-for-a-whole-one",
        "law 3",
        FILE,
        "[each[:4] for each in some] != wanted:",
        "len(some) != count:",
    ),
    Mutant(
        "a-write-cut-short-is-taken-for-a-whole-one",
        "law 17",
        FILE,
        "        if written != len(data):\n",
        "        if not written:\n",
    ),
    Mutant(
        "half-of-a-sector-is-left-by-a-write-cut-short",
        "law 17",
        FILE,
        "            os.ftruncate(self._handle, at)\n",
        "",
    ),
    Mutant(
        "a-file-of-the-journal-is-cut-within-a-sector",
        "law 3",
        FILE,
        "        keep = _whole(keep)\n",
        "",
    ),
    Mutant(
        "a-file-of-the-journal-grows-to-the-middle-of-a-sector",
        "law 3",
        FILE,
        "        self._grow = _whole(grow_bytes)\n",
        "        self._grow = grow_bytes\n",
    ),
    Mutant(
        "a-write-to-the-journal-is-tried-again-after-it-failed",
        "law 17",
        ENGINE,
        '        self._failure = f"its journal cannot be written: {error}"\n'
        "        return StorageFailed(self.path, self._failure)\n",
        '        return StorageFailed(self.path, f"its journal cannot be written: {error}")\n',
    ),
    Mutant(
        "a-checkpoint-that-was-begun-is-forgotten-by-the-next-process",
        "law 3",
        ENGINE,
        "            self._checkpoint = Checkpoint(self.engine, self._frozen, older[-1].number)\n",
        "            self._checkpoint = None\n",
    ),
    Mutant(
        "a-checkpoint-says-more-than-it-carries-over",
        "law 3",
        ENGINE,
        "[*tables.items(), _done(number)]",
        "[*tables.items(), _done(number + 1)]",
    ),
    Mutant(
        "a-lost-file-of-the-journal-is-made-anew",
        "law 16",
        "storage.stores",
        "                if not each.exists():\n",
        "                if not each.parent.exists():\n",
    ),
)
