"""Exports: the rows of any groups at a vector {group: applied index}, as files or in memory.

    manifest = export(Path("cut"), groups=("offset-0", "mqtt-0"))      # a directory of `jobs.cut`
    cut = export_refs(tables=("offset.offset",))                       # in Ray's object store

Every group is cut first, all at about the same moment, and then read: one replica each, page by
page, a few groups at once. A replica that is lost on the way takes its cut along, so that group is
cut anew at another replica and begun anew: nothing is ever mixed of two indices. Memory does not
grow with the rows, and writers are not held up (`metaray.cuts`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypedDict, TypeVar

import pyarrow as pa

from actors import calls, columns
from actors.seat_names import kind_of
from jobs.cut import Manifest
from metaray import cut_directory
from metaray.cut_files import GroupFiles
from metaray.cut_refs import GroupRefs
from metaray.cuts import VIEW_BYTES, Cut, Exporters, take
from state_machines.errors import Invalid, NoQuorum, NotFound, Stopped, Unavailable
from state_machines.tables import TABLES

GROUPS_AT_ONCE: Final = 4  #: read at once: with each goes a row group in memory
TRIES: Final = 4  #: of one group, when replicas are lost

T = TypeVar("T")


class Choice(TypedDict, total=False):
    """What `export` and `export_refs` take besides the place."""

    groups: Sequence[str]
    """All groups that have one of the tables, if absent."""
    tables: Sequence[str]
    """All that can be exported, if absent."""
    source: str
    """leader, follower, learner, or a seat; if absent whoever has least to do."""
    min_index: Mapping[str, int]
    """Group to an index that its cut has to reach: the revisions of the caller's own writes."""
    progress: Callable[[Progress], None]
    """Called now and then, from any thread, never twice at once."""
    view_bytes: int
    """A larger state is read from a copy (`cuts.VIEW_BYTES`)."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an export is."""

    groups: int
    groups_done: int = 0
    rows: int = 0
    rows_total: int = 0  #: of the groups that are cut by now
    bytes: int = 0  #: written, or put into the object store
    begun_anew: int = 0  #: groups whose replica was lost on the way


@dataclass(frozen=True, slots=True)
class Refs:
    """A cut in the object store. It is there for as long as somebody holds the references."""

    cluster: str
    taken_ms: int
    cut: Mapping[str, int]
    tables: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Table to object references; each is a `pyarrow.Table` of rows of one group."""


def export(
    out: Path,
    *,
    groups: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    source: str = "",
    min_index: Mapping[str, int] | None = None,
    progress: Callable[[Progress], None] | None = None,
    view_bytes: int = VIEW_BYTES,
) -> Manifest:
    """Write a cut of the connected cluster to `out`, a directory that is empty or not there yet.
    The arguments are those of `Choice`.

    Raises Invalid and NotFound naming a group, table or replica that is none, NoQuorum when a group
    cannot be cut or its replicas are lost again and again, OutputFailed when the directory is not
    empty, cannot be written or its disk is full, Conflict when another export is writing to it.
    What was written is removed then.
    """
    plan = _plan(groups, tables, source, min_index or {})
    files: dict[str, GroupFiles] = {}

    def begin(group: str) -> GroupFiles:
        files[group] = GroupFiles(out, group, lambda size: told.add(size=size))
        return files[group]

    told = _Told(progress, len(plan))
    with cut_directory.prepare(out) as made:
        try:
            with cut_directory.explained(out):
                cuts = _read(plan, source, min_index or {}, view_bytes, begin, told)
                return cut_directory.finish(out, plan, cuts, files)
        except BaseException:
            cut_directory.clear(out, plan, made, files.values())
            raise


def export_refs(
    *,
    groups: Sequence[str] | None = None,
    tables: Sequence[str] | None = None,
    source: str = "",
    min_index: Mapping[str, int] | None = None,
    progress: Callable[[Progress], None] | None = None,
    view_bytes: int = VIEW_BYTES,
) -> Refs:
    """The same into Ray's object store, as Arrow of some MiB an object. A large cut goes to disk
    when the store is full, as Ray does with any object. Raises as `export` does."""
    plan = _plan(groups, tables, source, min_index or {})
    kept: dict[str, GroupRefs] = {}

    def begin(group: str) -> GroupRefs:
        kept[group] = GroupRefs(lambda size: told.add(size=size))
        return kept[group]

    told = _Told(progress, len(plan))
    cuts = _read(plan, source, min_index or {}, view_bytes, begin, told)
    found: dict[str, list[Any]] = {}
    for group in sorted(plan):
        for table, references in kept[group].tables.items():
            found.setdefault(table, []).extend(references)
    cluster, taken_ms = cut_directory.whence(cuts)
    return Refs(cluster, taken_ms, {group: cut.index for group, cut in cuts.items()}, found)


# -- what is exported ---------------------------------------------------------------------------


def _plan(
    groups: Sequence[str] | None,
    names: Sequence[str] | None,
    source: str,
    min_index: Mapping[str, int],
) -> dict[str, tuple[str, ...]]:
    """The tables of each group."""
    known = sorted({name.rpartition("/")[0] for name in calls.named_actors() if "/" in name})
    if not known:
        raise NoQuorum("the cluster has no group; is the service started?")
    seat_of = source.rpartition("/")[0]
    if groups is None:
        groups = [seat_of] if seat_of else known
    return chosen(known, groups, names, source, min_index)


def chosen(
    known: Sequence[str],
    groups: Sequence[str],
    names: Sequence[str] | None,
    source: str = "",
    min_index: Mapping[str, int] | None = None,
) -> dict[str, tuple[str, ...]]:
    """The tables of each of `groups`; groups without any are left out. Raises Invalid, NotFound."""
    for group in (*groups, *(min_index or {})):
        if group not in known:
            raise NotFound(f"groups: there is no group {group!r}; there are {', '.join(known)}")
    for name in names or ():
        if name not in TABLES:
            raise NotFound(f"tables: there is no table {name!r}")
        try:
            columns.schema_of(TABLES[name].row)
        except TypeError as error:
            raise Invalid(f"tables: {name!r} cannot be exported: {error}") from None
    seat_of = source.rpartition("/")[0]
    if seat_of and set(groups) != {seat_of}:
        raise Invalid(f"from: {source} is a replica of {seat_of}, other groups are asked for")
    plan = {}
    for group in sorted(set(groups)):
        kind = kind_of(group)
        some = tuple(
            name
            for name in (columns.exportable(kind) if names is None else sorted(set(names)))
            if TABLES[name].kind in ("", kind)
        )
        if some:
            plan[group] = some
    if not plan:
        raise Invalid("tables: none of the groups has one of them")
    return plan


# -- reading ------------------------------------------------------------------------------------


class _Sink(Protocol):
    """Where the rows of one group go: `GroupFiles`, or `GroupRefs`."""

    def begin(self, table: str, schema: pa.Schema) -> None: ...

    def add(self, page: pa.RecordBatch) -> None: ...

    def end(self) -> None: ...

    def discard(self) -> None: ...


class _Told:
    """Progress, told from many threads."""

    def __init__(self, progress: Callable[[Progress], None] | None, groups: int) -> None:
        self._progress = progress
        self._now = Progress(groups)
        self._lock = threading.Lock()

    def add(self, **more: int) -> None:
        """So much more; size: bytes."""
        if "size" in more:
            more["bytes"] = more.pop("size")
        with self._lock:
            now = {name: getattr(self._now, name) + count for name, count in more.items()}
            self._now = replace(self._now, **now)
            if self._progress is not None:
                self._progress(self._now)


def _read(
    plan: Mapping[str, tuple[str, ...]],
    source: str,
    min_index: Mapping[str, int],
    view_bytes: int,
    begin: Callable[[str], _Sink],
    told: _Told,
) -> dict[str, Cut]:
    """Cut all groups, then read them. Returns the cuts that were read to the end."""
    exporters = Exporters()
    ended = threading.Event()
    taken: list[Cut] = []

    def cut_of(group: str, avoid: Sequence[str] = ()) -> Cut:
        cut = take(
            group,
            plan[group],
            min_index=min_index.get(group, 0),
            source=source,
            exporters=exporters,
            view_bytes=view_bytes,
            avoid=avoid,
        )
        taken.append(cut)
        told.add(rows_total=sum(cut.rows.values()))
        return cut

    def read(group: str, cut: Cut) -> Cut:
        sink = begin(group)
        lost: list[str] = []
        while True:
            exporter = cut.exporter
            try:
                return _through(cut, plan[group], sink, told, ended)
            except (NotFound, Unavailable) as error:
                lost.append(cut.seat)
                exporters.forget(exporter)  # it may be what was lost
                if len(lost) == TRIES:
                    raise NoQuorum(
                        f"{group}: no replica lasted until its rows were read; {error.detail}"
                    ) from error
            sink.discard()
            sink = begin(group)
            told.add(begun_anew=1, rows_total=-sum(cut.rows.values()))
            cut = cut_of(group, lost)

    try:
        with ThreadPoolExecutor(GROUPS_AT_ONCE, thread_name_prefix="export") as threads:
            try:
                cuts = _all(threads, cut_of, [(group,) for group in plan])
                # Views first: they live shorter than copies.
                cuts.sort(key=lambda cut: (cut.exporter is not None, cut.group))
                done = _all(threads, read, [(cut.group, cut) for cut in cuts])
            except BaseException:
                ended.set()  # the others need not go on
                raise
    except BaseException:
        for cut in taken:
            cut.close()
        raise
    finally:
        exporters.close()
    return {cut.group: cut for cut in done}


def _all(
    threads: ThreadPoolExecutor, work: Callable[..., T], arguments: Sequence[tuple[Any, ...]]
) -> list[T]:
    futures = [threads.submit(work, *each) for each in arguments]
    try:
        return [future.result() for future in futures]
    except BaseException:
        for future in futures:
            future.cancel()
        raise


def _through(
    cut: Cut, tables: Sequence[str], sink: _Sink, told: _Told, ended: threading.Event
) -> Cut:
    """Read one cut to its end. What was told of its rows is taken back when it is lost."""
    rows = 0
    try:
        for table in tables:
            here = 0
            sink.begin(table, columns.schema_of(TABLES[table].row))
            for data in cut.pages(table):
                if ended.is_set():
                    raise Stopped("the export ended")
                page = columns.from_ipc(data)
                sink.add(page)
                here += page.num_rows
                rows += page.num_rows
                told.add(rows=page.num_rows)
            if here != cut.rows[table]:
                raise Stopped(f"{cut.seat}: {here} rows of {table} came, not {cut.rows[table]}")
            sink.end()
    except BaseException:
        told.add(rows=-rows)
        raise
    finally:
        cut.close()
    told.add(groups_done=1)
    return cut
