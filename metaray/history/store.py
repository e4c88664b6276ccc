"""The files of one operation history, as the one process that appends to it sees them.

    store = Store.open(directory, cluster)       # holds LOCK until it is closed
    store.next("offset-0")                       # the first entry that is not exported yet
    store.add_rows("offset-0", 4_712, 4_801, batches)
    store.add_gap("offset-0", 4_802, 4_900, "…")
    store.tidy(now_ms)                           # merge small files, delete what is old

`next` is one more than the greatest last entry of any file, gaps included: nothing else says how
far the history is, so nothing can disagree with it. Files are merged when many small ones are in a
row; what they were made of is left for `GRACE_SECONDS`, because somebody may be reading it.

The newest file of a group is never deleted for its age: it is what says where to go on.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq

from jobs import operation_files as files
from jobs.errors import BadHistory
from jobs.operation_files import Gap, Range
from state_machines.errors import Conflict
from storage import filesystem

LOCK: Final = "LOCK"
MERGE_FILES: Final = 16  #: small files in a row are merged once there are so many
MERGED_BYTES: Final = 64 << 20  #: and a file of half of this is not small any more
RESERVE_BYTES: Final = 64 << 20  #: that a merge leaves free for what is exported next
GRACE_SECONDS: Final = 600.0  #: what was merged stays so long for those who read it

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Extent:
    """How far the history of one group reaches."""

    group: str
    first: int  #: the oldest entry that it has, or knows to be missing
    exported: int  #: everything up to this entry is durable, or known to be missing
    files: int
    bytes: int
    gaps: tuple[Gap, ...]


def extent(directory: Path, group: str) -> Extent:
    """How far a group's history reaches. Raises BadHistory."""
    found = files.listed(directory, [group])
    return Extent(
        group=group,
        first=found[0].first if found else 0,
        exported=found[-1].last if found else 0,
        files=len(found),
        bytes=sum(each.path.stat().st_size for each in found),
        gaps=tuple(files.gaps(found)),
    )


class Store:
    """Used by one thread at a time."""

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self._lock = lock
        self._next: dict[str, int] = {}
        self._newest_ms: dict[Path, int] = {}  # of files that do not change any more
        self._unmerged: set[Path] = set()  # with what is before them they could not be merged

    @classmethod
    def open(cls, directory: Path, cluster: str) -> Self:
        """Take the directory, and make it if it is not there.

        Raises Conflict while somebody else appends to it, and BadHistory for that of another
        cluster.
        """
        try:
            # For its owner alone: bodies of commands have hashes of passwords.
            filesystem.make(directory, 0o700, 0o777, durable=False)
            lock = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise BadHistory(f"{directory}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise Conflict(f"{directory}: another exporter appends to it") from None
        store = cls(directory, lock)
        try:
            store._identify(cluster)
            store._recover()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Let the directory go."""
        os.close(self._lock)

    def _identify(self, cluster: str) -> None:
        path = self.directory / files.IDENTITY
        if path.exists():
            if (known := cluster_of(self.directory)) != cluster:
                raise BadHistory(f"{self.directory}: of cluster {known!r}, not of {cluster!r}")
            return
        part = self.directory / f".{files.IDENTITY}{files.PART}"
        part.write_text(json.dumps({"format": files.FORMAT, "cluster": cluster}) + "\n")
        files.sync_file(part)
        os.replace(part, path)
        files.sync_directory(self.directory)

    def _recover(self) -> None:
        """What was not finished goes, and what there is has to fit together."""
        for group in files.groups(self.directory):
            for part in (self.directory / group).glob(f".*{files.PART}"):
                part.unlink()
            found = files.counted(files.everything(self.directory, group))
            self._next[group] = found[-1].last + 1 if found else 1

    # -- adding ---------------------------------------------------------------------------------

    def next(self, group: str) -> int:
        """The first entry that the history says nothing of."""
        return self._next.get(group, 1)

    def add_rows(
        self, group: str, first: int, last: int, batches: Iterable[pa.RecordBatch]
    ) -> None:
        """The commands of the entries first..last, which follow what there is."""
        assert first == self.next(group), f"{first} after {self.next(group) - 1}"
        files.add_rows(self.directory, group, first, last, batches)
        self._next[group] = last + 1

    def add_gap(self, group: str, first: int, last: int, reason: str, now_ms: int) -> None:
        """The entries first..last, which follow what there is, cannot be had."""
        assert first == self.next(group), f"{first} after {self.next(group) - 1}"
        files.add_gap(self.directory, Gap(group, first, last, now_ms, reason))
        self._next[group] = last + 1

    # -- tidying --------------------------------------------------------------------------------

    def tidy(self, now_ms: int, keep_ms: int = 0) -> None:
        """Merge, and delete what counts no more and (with `keep_ms`) what is older than that. What
        goes wrong with one group is logged, and the others are tidied."""
        for group in files.groups(self.directory):
            try:
                self._merge(group)
                self._sweep(files.everything(self.directory, group))
                if keep_ms:
                    self._retire(group, now_ms - keep_ms)
            except (OSError, pa.ArrowException, BadHistory) as error:
                log.error("%s: files are not tidied: %s", group, error)

    def _merge(self, group: str) -> None:
        """Make one file of the newest small ones, if they are many."""
        some: list[Range] = []
        size = 0
        for each in reversed(files.counted(files.everything(self.directory, group))):
            bytes_ = each.path.stat().st_size
            follows = not some or each.last + 1 == some[-1].first
            if each.is_gap or bytes_ > MERGED_BYTES // 2 or not follows:
                break
            if each.path in self._unmerged:
                break
            if size + bytes_ > MERGED_BYTES:
                break
            some.append(each)
            size += bytes_
        if len(some) < MERGE_FILES:
            return
        if (free := shutil.disk_usage(self.directory).free) < size + RESERVE_BYTES:
            log.warning("%s: %d files are not merged: %d bytes are free", group, len(some), free)
            return
        some.reverse()
        first, last = some[0].first, some[-1].last
        try:
            files.add_rows(self.directory, group, first, last, files.whole(some))
        except (OSError, BadHistory) as error:
            log.error("%s: files up to %d are not merged: %s", group, last, error)
            if isinstance(error, BadHistory):  # no later try would do better
                self._unmerged.add(some[-1].path)

    def _sweep(self, found: list[Range]) -> None:
        """Delete those that were merged a while ago."""
        gone = False
        for whole in files.counted(found):
            parts = [each for each in found if whole.covers(each)]
            if parts and time.time() - whole.path.stat().st_mtime >= GRACE_SECONDS:
                gone |= _delete(parts)
        if gone:
            files.sync_directory(found[0].path.parent)

    def _retire(self, group: str, since_ms: int) -> None:
        """Delete the oldest, as long as nothing in them is younger; never the newest file."""
        found = files.everything(self.directory, group)
        counted = files.counted(found)
        for each in counted[:-1]:
            if self._newest(each) >= since_ms:
                return
            # What a merged file was made of would count again if it outlived it.
            if _delete([other for other in found if each.covers(other)]):
                files.sync_directory(each.path.parent)
            _delete([each])
            files.sync_directory(each.path.parent)
            self._newest_ms.pop(each.path, None)

    def _newest(self, found: Range) -> int:
        """When the last command in a file was stamped, or a gap was found."""
        if found.path not in self._newest_ms:
            if found.is_gap:
                (gap,) = files.gaps([found])
                self._newest_ms[found.path] = gap.found_ms
            else:
                self._newest_ms[found.path] = newest_ms(found.path)
        return self._newest_ms[found.path]


def newest_ms(path: Path) -> int:
    """The largest `at_ms` in a file, by its footer. One without rows, or that cannot be read, has
    nothing that is newer than the file: when that was written."""
    found: list[int] = []
    try:
        told = pq.read_metadata(path)
        column = told.schema.to_arrow_schema().get_field_index("at_ms")
        groups = [told.row_group(n).column(column).statistics for n in range(told.num_row_groups)]
        found = [int(each.max) for each in groups if each is not None and each.has_min_max]
    except (OSError, pa.ArrowException, IndexError, TypeError, ValueError) as error:
        log.error("%s: %s", path, error)
    return max(found) if found else path.stat().st_mtime_ns // 1_000_000


def _delete(found: Iterable[Range]) -> bool:
    """Whether there was one."""
    some = False
    for each in found:
        each.path.unlink(missing_ok=True)
        some = True
    return some


def cluster_of(directory: Path) -> str:
    """The id of the cluster that a history is of. Raises BadHistory."""
    path = directory / files.IDENTITY
    try:
        said: Any = json.loads(path.read_text())
        if said["format"] != files.FORMAT:
            raise BadHistory(f"{path}: format is not {files.FORMAT}")
        return str(said["cluster"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadHistory(f"{path}: {error}; no operation history was begun here") from None
