"""Stores that break a law, made by rewriting one line: the checkers must see each.

A checker that finds nothing in a sound store has shown little until it finds something here.
`BROKEN` are for crash images; `UNSTOPPED`, which outlive a failed commit, for calls that fail.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Broken:
    """`changes`: (module, old text, new text)."""

    why: str
    changes: tuple[tuple[str, str, str], ...]

    def rewrite(self, module: str, source: str) -> str:
        """The source of a module of this store."""
        for where, old, new in self.changes:
            if where == module:
                assert source.count(old) == 1, f"{old!r} is {source.count(old)} times in {module}"
                source = source.replace(old, new)
        return source


_DISK = "storage.disk"
_FILES = "storage.filesystem"

BROKEN = {
    "no sync": Broken(
        "commits are not synced",
        (
            (_DISK, "                sync=True,\n", "                sync=False,\n"),
            (_DISK, 'assert flags["sync"]', 'assert not flags["sync"]'),
        ),
    ),
    "no metasync": Broken(
        "the last commit of an environment is durable only with the next one",
        (
            (_DISK, "                metasync=True,\n", "                metasync=False,\n"),
            (_DISK, 'assert flags["metasync"]', 'assert not flags["metasync"]'),
        ),
    ),
    "writemap": Broken(
        "pages reach the disk whenever the kernel likes",
        (
            (_DISK, "                writemap=False,\n", "                writemap=True,\n"),
            (_DISK, "map_async=False", "map_async=True"),
            (_DISK, 'assert not flags["writemap"]', 'assert flags["writemap"]'),
        ),
    ),
    "journal not synced": Broken(
        "a save is durable whenever the kernel likes",
        (
            (
                "storage.journal",
                "os.O_CREAT | os.O_DSYNC | os.O_CLOEXEC",
                "os.O_CREAT | os.O_CLOEXEC",
            ),
        ),
    ),
    "journal without its first file": Broken(
        "what a checkpoint was about to carry over is forgotten with its process",
        (("storage.journaled", "        if older:\n", "        if not older:\n"),),
    ),
    "carried over too early": Broken(
        "the journal is written over while the environment does not have it yet",
        (("storage.slow_write", "self._engine.write_slices(self._slices)\n", "pass\n"),),
    ),
    "log before state": Broken(
        "an installed snapshot is in the log before it is in the state",
        (
            (
                "actors.storage_jobs",
                "        stores.state.install(staged, ready.snapshot)\n",
                "        stores.log.save(ready.snapshot, (), ready.hard_state)\n"
                "        stores.state.install(staged, ready.snapshot)\n",
            ),
        ),
    ),
    "names not synced": Broken(
        "renamed and removed names are not durable",
        (
            (
                _FILES,
                "        os.fsync(handle)\n    finally:\n        os.close(handle)\n\n\ndef replace",
                "        pass\n    finally:\n        os.close(handle)\n\n\ndef replace",
            ),
        ),
    ),
    "content not synced": Broken(
        "a small file is renamed into place before its content is durable",
        (
            (
                _FILES,
                "            view = view[os.write(handle, view) :]\n        os.fsync(handle)\n",
                "            view = view[os.write(handle, view) :]\n",
            ),
        ),
    ),
    "compact before flush": Broken(
        "the log lets go of entries that the state has only in memory",
        (
            (
                "storage.flush",
                "        super().write_here()\n",
                "        self._end(written=True)\n",
            ),
        ),
    ),
    "vote not saved": Broken(
        "a term is saved without the vote given in it",
        (
            (
                "storage.log",
                "records.hard_state_to(hard_state)",
                "records.hard_state_to(HardState(hard_state.term, 0, hard_state.commit))",
            ),
        ),
    ),
    "kept tail": Broken(
        "entries that a new leader replaced stay behind the new ones",
        (
            (
                "storage.log",
                "for i in range(end + 1, last + 1)]",
                "for i in range(last + 1, last + 1)]",
            ),
        ),
    ),
}

UNSTOPPED = {
    "not ended": Broken(
        "a replica whose commit failed stops, and its process stays",
        (("actors.replica", "os._exit(FAILED_COMMIT_EXIT)", "pass"),),
    ),
    "failure ignored": Broken(
        "a commit that failed is taken for one that did not",
        (
            (
                _DISK,
                "            raise\n        except lmdb.Error as error:\n"
                "            raise self._fail(error) from error",
                "            raise\n        except lmdb.Error:\n            pass",
            ),
            (
                "storage.journaled",
                "            self._journal.append(msgpack.packb(tables))\n"
                "        except OSError as error:\n"
                "            raise self._fail(error) from error\n",
                "            self._journal.append(msgpack.packb(tables))\n"
                "        except OSError:\n"
                "            pass\n",
            ),
        ),
    ),
}
