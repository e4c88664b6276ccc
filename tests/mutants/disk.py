"""Bugs of the disk: what is not synced, not checked, not locked, or tried again."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant

DISK: Final[tuple[Mutant, ...]] = (
    Mutant(
        "a-checksum-is-not-asked",
        "law 16",
        "storage.engine",
        'if computed != int.from_bytes(stored[:CRC_BYTES], "big") or len(stored) < CRC_BYTES:',
        "if len(stored) < CRC_BYTES:",
    ),
    Mutant(
        "a-checksum-does-not-know-its-place",
        "law 16",
        "storage.engine",
        'return crc32(value, crc32(key, _seed(table))).to_bytes(CRC_BYTES, "big") + value',
        'return crc32(value).to_bytes(CRC_BYTES, "big") + value',
        (
            ("computed = crc32(value, crc32(key, _seed(table)))", "computed = crc32(value)"),
            ("crc32(value, crc32(key, seed)).to_bytes", "crc32(value).to_bytes"),
        ),
    ),
    Mutant(
        "entries-missing-at-the-end-are-not-missed",
        "law 16",
        "storage.log",
        '        self._expect(self.last_index, max(tail, self.base.index), "last entry")\n',
        "",
    ),
    Mutant(
        "entries-missing-in-the-middle-are-not-missed",
        "law 16",
        "storage.log",
        '            self._expect(entry.index, self.base.index + len(entries) + 1, "entry")\n',
        "",
    ),
    Mutant(
        "a-log-that-lost-applied-entries-starts",
        "law 16",
        "storage.log",
        "        if not installed:\n",
        "        if not loaded:\n",
    ),
    Mutant(
        "a-log-that-begins-after-its-state-starts",
        "law 6",
        "storage.log",
        "        if ahead < 0 or (ahead == 0 and base.index > 0 and flushed.term != base.term):\n",
        "        if ahead == 0 and base.index > 0 and flushed.term != base.term:\n",
    ),
    Mutant(
        "commits-are-not-synced",
        "law 3",
        "storage.disk",
        "                sync=True,\n                metasync=True,\n",
        "                sync=False,\n                metasync=True,\n",
        (('        assert flags["sync"], "commits are not synced"\n', ""),),
    ),
    Mutant(
        "the-page-that-makes-a-commit-current-is-not-synced",
        "law 3",
        "storage.disk",
        "                metasync=True,\n",
        "                metasync=False,\n",
        (('        assert flags["metasync"], "the last commit could be undone by a crash"\n', ""),),
    ),
    Mutant(
        "pages-are-written-through-the-map",
        "law 3",
        "storage.disk",
        "                writemap=False,\n",
        "                writemap=True,\n",
        (('        assert not flags["writemap"], "a full disk would be SIGBUS"\n', ""),),
    ),
    Mutant(
        "a-failed-commit-is-tried-again",
        "law 17",
        "storage.disk",
        "        if self._failure is not None:\n            raise StorageFailed(",
        "        if self._failure == self.path:\n            raise StorageFailed(",
    ),
    Mutant(
        "a-process-lives-on-after-a-failed-commit",
        "law 17",
        "actors.replica",
        "        if isinstance(error, StorageFailed):\n",
        "        if error is None:\n",
    ),
    Mutant(
        "a-directory-is-not-locked",
        "law 2",
        "storage.identity",
        "            fcntl.flock(handle, kind | fcntl.LOCK_NB)\n",
        "            fcntl.fcntl(handle, fcntl.F_GETFD)\n",
    ),
    Mutant(
        "a-lock-is-shared",
        "law 2",
        "storage.identity",
        "fcntl.flock(handle, kind | fcntl.LOCK_NB)",
        "fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)",
    ),
    Mutant(
        "a-new-directory-gets-the-id-of-the-lost-one",
        "law 1",
        "storage.identity",
        "replica = replica or secrets.randbelow((1 << 63) - 1) + 1",
        "replica = replica or crc32(f'{cluster} {group} {root}'.encode()) + 1",
    ),
    Mutant(
        "an-identity-is-not-checked",
        "law 16",
        "storage.identity",
        '        whole = crc32(_canonical(body)) == content["crc"]\n',
        '        whole = bool(content["crc"])\n',
    ),
    Mutant(
        "a-directory-of-another-cluster-is-opened",
        "law 1",
        "storage.identity",
        '            _expect(path, "cluster", identity.cluster, cluster)\n'
        '            _expect(path, "group"',
        '            _expect(path, "group"',
    ),
    Mutant(
        "a-removed-replica-comes-back-after-a-restart",
        "law 1",
        "actors.seat",
        '            self._directory.update(status="retired")\n',
        '            self._directory.update(status="active")\n',
    ),
    Mutant(
        "a-retired-directory-is-opened",
        "law 1",
        "actors.seat",
        'if each.identity.status != "retired" and self._directory is None:',
        "if self._directory is None:",
        (('self._directory.identity.status == "active":', "True:"),),
    ),
    Mutant(
        "rows-are-not-read-at-the-start",
        "law 16",
        "storage.stores",
        "    verify: bool = True,\n",
        "    verify: bool = False,\n",
    ),
    Mutant(
        "a-replaced-file-is-not-synced",
        "law 3",
        "storage.filesystem",
        "            view = view[os.write(handle, view) :]\n        os.fsync(handle)\n",
        "            view = view[os.write(handle, view) :]\n",
    ),
    Mutant(
        "a-replaced-file-is-written-in-place",
        "law 6",
        "storage.filesystem",
        '    fresh = path.with_name(path.name + ".new")\n',
        "    fresh = path\n",
    ),
    Mutant(
        "a-new-environment-is-made-in-place",
        "law 3",
        "storage.disk",
        "        filesystem.make(path)\n        _begin(path)\n",
        "        filesystem.make(path)\n",
    ),
    Mutant(
        "a-replica-that-took-part-starts-with-a-blank-log",
        "law 1",
        "storage.stores",
        'if directory.identity.status == "active":',
        'if directory.identity.status == "retired":',
    ),
    Mutant(
        "truncated-entries-stay-on-disk",
        "Raft 5.3",
        "storage.log",
        "            changes += [(ENTRIES, keys.entry_key(i), "
        "None) for i in range(end + 1, last + 1)]\n",
        "",
    ),
)
