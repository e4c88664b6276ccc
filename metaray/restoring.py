"""Restoring a backup, or a part of it, into a live cluster.

    restore(client, Path("backup"), Scope(tenant="acme"))

The rows travel as ordinary commands through the log, so the slot map decides where they go, quotas
and limits hold, and whoever watches sees each change once, at a revision above all before. First
every row of the scope is read and checked; nothing has been proposed by then. Then the live rows of
the scope are read and compared: what is equal is left alone. What the backup does not have goes,
children before their parents; then what is missing or differs is put, parents first. Rows of one
table go in any order, some commands at a time. Last the scope is read again, and its checksums are
compared to the backup's.

A restore that was interrupted is finished by doing it again: what it had done is equal by then.
Rows that others write to the scope meanwhile are seen or not; the checksums tell.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from actors.seat_names import kind_of
from jobs import cut
from jobs.cut import Manifest
from jobs.errors import BadCut
from metaray import backups
from metaray.restore_index import (
    ADD,
    CHANGE,
    EQUAL,
    LEASED,
    OVER,
    Checksum,
    Index,
    key_of,
    said,
)
from state_machines import names, packing, restoring
from state_machines.batch import Outcome
from state_machines.errors import Invalid, NotFound, QuotaExceeded
from state_machines.limits import PAGE_ROWS_MAX
from state_machines.metadata.restore import RemoveMetadata, RestoreMetadata
from state_machines.metadata.slot_map import GetSlots
from state_machines.mqtt.restore import RemoveMqtt, RestoreMqtt
from state_machines.offset.restore import RemoveOffsets, RestoreOffsets
from state_machines.restoring import Remove, Restorer
from state_machines.slots import SlotMap
from state_machines.table_rows import ReadRows

PUTS: Final[dict[str, Callable[..., Any]]] = {
    "metadata": RestoreMetadata,
    "mqtt": RestoreMqtt,
    "offset": RestoreOffsets,
}
REMOVALS: Final[dict[str, Callable[..., Any]]] = {
    "metadata": RemoveMetadata,
    "mqtt": RemoveMqtt,
    "offset": RemoveOffsets,
}
BATCH_ROWS: Final = 500  #: of one command
BATCH_BYTES: Final = 256 << 10  #: of one command, softly: a batch has at least one row
WINDOW: Final = 4  #: commands under way at once: the next are made while groups apply these
REFUSALS_SHOWN: Final = 5  #: of one table, in words; all are counted


class Caller(Protocol):
    """What is asked of a client: `BlockingClient` has it. Several threads call at once."""

    def call(self, operation: Any, /, *, group: str = "") -> Any:
        """Carry out one operation."""
        ...

    def groups(self) -> Sequence[str]:
        """The groups of the cluster, by name."""
        ...


@dataclass(frozen=True, slots=True)
class Scope:
    """What of a backup is restored. Without any field: all of it.

    `consumers` and `topic` are names within a tenant. `into` is the tenant that the rows go to
    instead of their own.
    """

    tenant: str = ""
    consumers: str = ""
    topic: str = ""
    into: str = ""

    def check(self) -> None:
        """Raise Invalid unless this says what is meant."""
        for field_name in ("tenant", "consumers", "topic", "into"):
            names.name(getattr(self, field_name), field_name, 65_535, empty=True)
        if (self.consumers or self.topic or self.into) and not self.tenant:
            raise Invalid("tenant: name the one that the group, the topic or the rows are of")

    def tables(self) -> list[Restorer[Any]]:
        """The tables that have rows of it, parents first."""
        return [
            each
            for each in restoring.in_order()
            if not (self.tenant and each.local)
            and not (self.consumers and not each.consumers)
            and not (self.topic and not each.topic)
        ]

    def has(self, known: Restorer[Any], row: Any, tenant: str) -> bool:
        """Whether a row belongs to it, in this tenant."""
        return (
            (not tenant or known.tenant(row) == tenant)
            and (not self.consumers or getattr(row, known.consumers) == self.consumers)
            and (not self.topic or getattr(row, known.topic) == self.topic)
        )

    def __str__(self) -> str:
        parts = [
            f"tenant {self.tenant}" if self.tenant else "the whole cluster",
            f"group {self.consumers}" if self.consumers else "",
            f"topic {self.topic}" if self.topic else "",
            f"into tenant {self.into}" if self.into else "",
        ]
        return ", ".join(part for part in parts if part)


@dataclass(slots=True)
class TableReport:
    """What became of a table. Counts are rows."""

    table: str
    add: int = 0
    change: int = 0
    remove: int = 0
    equal: int = 0
    over: int = 0  #: their time has passed
    leased: int = 0  #: they lived on leases
    kept: int = 0  #: they differ and were left: only what was missing was wanted
    done: int = 0  #: put or removed by this run
    refused: dict[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    backup: str = ""  #: checksum of the rows that are to be there
    live: str = ""  #: and of those that are
    same: bool | None = None  #: whether they agree; None in a dry run


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What a restore did, or (`dry_run`) would do."""

    scope: str
    cluster: str
    taken_ms: int
    dry_run: bool
    replace: bool
    tables: tuple[TableReport, ...]
    left_out: dict[str, str]
    """Tables of the backup that are not restored, and why."""

    missing: tuple[str, ...] = ()
    """Groups that may have rows of the scope, and that the backup lacks."""

    @property
    def ok(self) -> bool:
        """Whether nothing was refused and the checksums agree."""
        return all(not each.refused and each.same is not False for each in self.tables)


Progress = Callable[[str, str, int], None]
"""Told of the phase, the table and how many rows of it are done."""


def restore(
    client: Caller,
    directory: Path,
    scope: Scope,
    *,
    replace: bool = True,
    dry_run: bool = False,
    progress: Progress | None = None,
    now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
) -> RestoreReport:
    """Restore a scope of the backup in `directory`.

    `replace` False only puts what is missing. Raises BadCut for a backup that is not whole or not
    what its manifest says, and with `replace` for one that lacks groups; Invalid naming table,
    field and limit for a row that may not be, and NotFound when the backup has nothing of the
    scope: all before anything was proposed. What a group refuses is in the report, row by row
    counted. Errors of the client pass through; do it again then.
    """
    scope.check()
    manifest = cut.read_manifest(directory)
    backups.check(directory, manifest)
    with Index() as index:
        work = _Work(client, directory, manifest, scope, index, replace, progress, now_ms)
        if replace:
            work.check_groups()
        work.read()
        work.compare()
        if not dry_run:
            if replace:
                work.remove()
            work.put()
            work.verify()
        return work.report(dry_run)


class _Work:
    """One restore, step by step."""

    def __init__(
        self,
        client: Caller,
        directory: Path,
        manifest: Manifest,
        scope: Scope,
        index: Index,
        replace: bool,
        progress: Progress | None,
        now_ms: Callable[[], int],
    ) -> None:
        self._client = client
        self._directory = directory
        self._manifest = manifest
        self._scope = scope
        self._index = index
        self._replace = replace
        self._progress = progress
        self._now_ms = now_ms
        there = frozenset(manifest.tables())
        self._tables = [each for each in scope.tables() if each.table.name in there]
        kinds = {each.table.kind for each in scope.tables() if not each.local}
        lacking = backups.missing(directory, manifest)
        self._missing = [each for each in lacking if kind_of(each) in kinds]
        self._reports = {each.table.name: TableReport(each.table.name) for each in self._tables}

    def _tell(self, phase: str, known: Restorer[Any], rows: int) -> None:
        if self._progress is not None:
            self._progress(phase, known.table.name, rows)

    # -- reading ----------------------------------------------------------------------------

    def check_groups(self) -> None:
        """Raise BadCut unless the backup has every group of the kinds in the scope: what it lacks
        would be taken for removed. A cut without its own slot map is one of some tables, and held
        against the live map in the kinds of these."""
        lacking = self._missing
        if backups.slot_map(self._directory, self._manifest) is None:
            known = SlotMap(0, {row.kind: row.ranges for row in self._client.call(GetSlots())})
            kinds = {each.table.kind for each in self._tables if not each.local}
            wanted = {group for kind in kinds for group in known.groups(kind)}
            lacking = sorted(wanted - set(self._manifest.cut))
        if lacking:
            raise BadCut(
                f"cut: it is partial, without {', '.join(lacking)}, whose rows would be removed; "
                "restore a whole one, or with --only-missing"
            )

    def _found(self, known: Restorer[Any]) -> Iterator[tuple[Any, int]]:
        """The backup's rows of the scope, with their revisions."""
        for row, revision in backups.rows(self._directory, self._manifest, known):
            if self._scope.has(known, row, self._scope.tenant):
                yield row, revision

    def _wanted(self, known: Restorer[Any], row: Any) -> Any:
        """A row of the backup as it is to be."""
        return known.into(row, self._scope.into) if self._scope.into else row

    def read(self) -> None:
        """Read and check every row of the backup that is in the scope."""
        now_ms, total = self._now_ms(), 0
        leased = backups.Leased(self._directory, self._manifest, self._index)
        for known in self._tables:
            count = 0
            for count, (row, revision) in enumerate(self._found(known), 1):
                wanted = self._wanted(known, row)
                restoring.check_row(known, wanted)
                state = ADD
                if 0 < known.ends_ms(row) <= now_ms:
                    state = OVER
                elif leased.has(known, row, revision):
                    state = LEASED
                self._index.add(known, wanted, state)
                if count % BATCH_ROWS == 0:
                    self._tell("read", known, count)
            total += count
        if not total:
            raise NotFound(f"scope: the backup has nothing of {self._scope}")

    def _live(self, known: Restorer[Any]) -> Iterator[Any]:
        """The live rows of the scope."""
        scope, table = self._scope, known.table
        tenant = scope.into or scope.tenant
        named = tenant if table.key[0] == "tenant" else ""
        for group in self._groups(known):
            after = b""
            while True:
                asked = ReadRows(table=table.name, tenant=named, limit=PAGE_ROWS_MAX, after=after)
                page = self._client.call(asked, group=group)
                for value in page.rows:
                    row, _ = table.decode(value)
                    if scope.has(known, row, tenant):
                        yield row
                after = page.next
                if not after:
                    break

    def _groups(self, known: Restorer[Any]) -> list[str]:
        kind = known.table.kind
        return [each for each in self._client.groups() if kind_of(each) == kind]

    def compare(self) -> None:
        """Find out what is to be done."""
        for known in self._tables:
            if known.local:
                continue
            for count, row in enumerate(self._live(known), 1):
                key = key_of(known, row)
                found = self._index.find(known, key)
                if found is None:
                    if not known.stays:
                        self._index.other(known, key)
                elif found[2] == ADD:
                    same = found[0] == said(known, row) and known.floor(row) >= found[1]
                    self._index.decide(known, key, EQUAL if same else CHANGE)
                if count % BATCH_ROWS == 0:
                    self._tell("compare", known, count)
            counts = self._index.counts(known)
            report = self._reports[known.table.name]
            report.add, report.equal = counts.get(ADD, 0), counts.get(EQUAL, 0)
            report.over, report.leased = counts.get(OVER, 0), counts.get(LEASED, 0)
            if self._replace:
                report.change = counts.get(CHANGE, 0)
                report.remove = self._index.others_count(known)
            else:
                report.kept = counts.get(CHANGE, 0)

    # -- writing ----------------------------------------------------------------------------

    def remove(self) -> None:
        """Take away what the backup does not have, children first."""
        for known in reversed(self._tables):
            make = REMOVALS[known.table.kind]
            commands = (
                (make(table=known.table.name, keys=keys), "")
                for keys in _batches(self._index.others(known))
            )
            self._propose(known, commands, "remove")

    def put(self) -> None:
        """Put what is missing or differs, parents first."""
        states = (ADD, CHANGE) if self._replace else (ADD,)
        for known in self._tables:
            make = PUTS[known.table.kind]
            groups = self._groups(known) if known.local else [""]
            commands = (
                (make(table=known.table.name, rows=rows, replace=self._replace), group)
                for rows in _batches(self._due(known, states))
                for group in groups
            )
            self._propose(known, commands, "put")

    def _due(self, known: Restorer[Any], states: tuple[int, ...]) -> Iterator[bytes]:
        for row, _ in self._found(known):
            wanted = self._wanted(known, row)
            found = self._index.find(known, key_of(known, wanted))
            if found is not None and found[2] in states:
                yield packing.pack(wanted)

    def _propose(
        self, known: Restorer[Any], commands: Iterable[tuple[Any, str]], phase: str
    ) -> None:
        """Carry out commands on rows of one table, some at a time; all have ended when this does,
        also when it raises. To each its group, empty for that of its rows."""
        under_way: deque[Future[Sequence[Outcome]]] = deque()
        with ThreadPoolExecutor(WINDOW, "restore") as pool:
            for command, group in commands:
                if len(under_way) == WINDOW:
                    self._count(known, under_way.popleft().result(), phase)
                under_way.append(pool.submit(self._carried_out, command, group))
            for each in under_way:
                self._count(known, each.result(), phase)

    def _carried_out(self, command: Any, group: str) -> Sequence[Outcome]:
        """Of rows that go those that are too large for one command are asked for again."""
        outcomes: list[Outcome] = [*self._client.call(command, group=group)]
        if isinstance(command, Remove):
            places: Sequence[int] = range(len(outcomes))
            while left := [each for each in places if outcomes[each].code == QuotaExceeded.code]:
                again = self._client.call(command.select(left), group=group)
                for place, outcome in zip(left, again, strict=True):
                    outcomes[place] = outcome
                places = left
        return outcomes

    def _count(self, known: Restorer[Any], outcomes: Sequence[Outcome], phase: str) -> None:
        report = self._reports[known.table.name]
        for outcome in outcomes:
            if outcome.ok:
                report.done += outcome.revision > 0
                continue
            report.refused[outcome.code] = report.refused.get(outcome.code, 0) + 1
            if len(report.refusals) < REFUSALS_SHOWN:
                report.refusals.append(f"{phase}: {outcome.code}: {outcome.detail}")
        self._tell(phase, known, report.done)

    # -- checking ---------------------------------------------------------------------------

    def verify(self) -> None:
        """Read the scope again and compare it to the backup."""
        states = (ADD, CHANGE, EQUAL) if self._replace else (ADD,)
        for known in self._tables:
            if known.local:
                continue
            report = self._reports[known.table.name]
            live, low, now_ms = Checksum(), 0, self._now_ms()
            for count, row in enumerate(self._live(known), 1):
                found = self._index.find(known, key_of(known, row))
                if found is None:
                    compared = self._replace and not known.stays
                else:
                    compared = found[2] in states
                    low += compared and known.floor(row) < found[1]
                if compared and not 0 < known.ends_ms(row) <= now_ms:
                    live.add(said(known, row))
                if count % BATCH_ROWS == 0:
                    self._tell("verify", known, count)
            wanted = self._index.checksum(known, states, now_ms)
            report.backup, report.live = str(wanted), str(live)
            report.same = report.backup == report.live and wanted.rows == live.rows and not low

    def report(self, dry_run: bool) -> RestoreReport:
        """What was done."""
        there = self._manifest.tables()
        return RestoreReport(
            scope=str(self._scope),
            cluster=self._manifest.cluster,
            taken_ms=self._manifest.taken_ms,
            dry_run=dry_run,
            replace=self._replace,
            tables=tuple(self._reports.values()),
            left_out={each: why for each in there if (why := backups.why_left_out(each))},
            missing=tuple(self._missing),
        )


def _batches(items: Iterator[bytes]) -> Iterator[tuple[bytes, ...]]:
    """A command's worth at a time."""
    batch: list[bytes] = []
    size = 0
    for item in items:
        if batch and (len(batch) == BATCH_ROWS or size + len(item) > BATCH_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(item)
        size += len(item)
    if batch:
        yield tuple(batch)
