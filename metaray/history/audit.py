"""Who did what when: the commands of an operation history that pass a filter, and its gaps.

The filter goes down to the files: row groups whose statistics rule it out are not read. What is
found is looked through batch by batch, and no more of it is kept than is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from jobs import operation_files as files
from jobs.errors import BadHistory
from jobs.operation_files import Gap, Range
from jobs.operations import OPERATIONS, subject_name
from metaray.history.rows import operations_of
from state_machines import columnar, op, packing
from state_machines.errors import Invalid, Rejected
from state_machines.limits import INT_MAX, INT_MIN

LIMIT_MAX: Final = 100_000  #: rows that are kept at once
BATCH_ROWS: Final = 16_384
ANY: Final = "*"  #: at the end of a name: whatever follows

_ORDER: Final = ("at_ms", "group", "index", "number")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which commands: those for which all of these hold. None: it does not matter.

    `op` and `subject` may end with `*`; a subject that is too long for the history is looked for by
    its name there (`jobs.operations.subject_name`), which may be given as well. `since_ms`
    belongs to the time, `until_ms` does not; `after` and `upto` are revisions, the first not
    included, the second included.
    """

    tenant: str | None = None
    group: str | None = None
    client: str | None = None
    op: str | None = None
    subject: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    after: int | None = None
    upto: int | None = None

    def expression(self) -> Any:
        """The filter. Raises Invalid for times or revisions in the wrong order or beyond 64 bits,
        and for words that are not UTF-8."""
        self._check()
        for low, high, name in (
            (self.since_ms, self.until_ms, "until"),
            (self.after, self.upto, "to"),
        ):
            if low is not None and high is not None and high < low:
                raise Invalid(f"{name}: {high} is before {low}, where it begins")
        parts = [
            ds.field(name) == value
            for name, value in (("tenant", self.tenant), ("client", self.client))
            if value is not None
        ]
        for name, value in (("op", self.op), ("subject", self.subject)):
            if value is not None and value.endswith(ANY):
                parts.append(pc.starts_with(ds.field(name), pattern=value[: -len(ANY)]))
            elif value is not None:
                same = ds.field(name) == value
                if name == "subject" and (called := subject_name(value)) != value:
                    same |= ds.field(name) == called
                parts.append(same)
        if self.since_ms is not None:
            parts.append(ds.field("at_ms") >= self.since_ms)
        if self.until_ms is not None:
            parts.append(ds.field("at_ms") < self.until_ms)
        if self.after is not None:
            parts.append(ds.field("index") > self.after)
        if self.upto is not None:
            parts.append(ds.field("index") <= self.upto)
        found = ds.scalar(True)
        for each in parts:
            found = found & each
        return found

    def _check(self) -> None:
        for number, name in (
            (self.since_ms, "since"),
            (self.until_ms, "until"),
            (self.after, "from"),
            (self.upto, "to"),
        ):
            if number is not None and not INT_MIN <= number <= INT_MAX:
                raise Invalid(f"{name}: {number}, the range is {INT_MIN} to {INT_MAX}")
        for name in ("tenant", "client", "op", "subject"):
            try:
                (getattr(self, name) or "").encode()
            except UnicodeEncodeError:
                raise Invalid(f"{name}: not UTF-8") from None


@dataclass(frozen=True, slots=True)
class Audit:
    """What was found: the newest `rows` of `of`, oldest first, and what is missing."""

    rows: list[dict[str, Any]]
    of: int
    gaps: list[Gap]


def audit(directory: Path, wanted: Wanted, limit: int, *, bodies: bool = False) -> Audit:
    """Look through a history. Raises BadHistory, and Invalid for a limit beyond `LIMIT_MAX`."""
    if not 0 < limit <= LIMIT_MAX:
        raise Invalid(f"limit: {limit}, the range is 1 to {LIMIT_MAX}")
    found = files_of(directory, wanted.group)
    names = [name for name in OPERATIONS.names if bodies or name != "body"]
    kept = pa.schema([OPERATIONS.field(name) for name in names]).empty_table()
    count = 0
    newest = [(name, "descending") for name in _ORDER]
    for batch in scan(found, wanted, names):
        count += batch.num_rows
        kept = pa.concat_tables([kept, pa.Table.from_batches([batch])])
        kept = kept.take(pc.sort_indices(kept, sort_keys=newest)[:limit])
    rows = kept.to_pylist()
    rows.reverse()
    gaps = [
        gap
        for gap in files.gaps(found)
        if (wanted.after is None or gap.last > wanted.after)
        and (wanted.upto is None or gap.first <= wanted.upto)
    ]
    return Audit(rows, count, gaps)


def files_of(directory: Path, group: str | None) -> list[Range]:
    """The files of a history, or of one of its groups. Raises BadHistory, Invalid for a group that
    it has nothing of."""
    known = files.groups(directory)
    if group is not None and group not in known:
        raise Invalid(f"group: {group[:80]!r} is not in this history; it has {', '.join(known)}")
    return files.listed(directory, known if group is None else [group])


def scan(found: Sequence[Range], wanted: Wanted, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of these files that are wanted, batch by batch. Raises BadHistory."""
    paths = [str(each.path) for each in found if not each.is_gap]
    if not paths:
        return
    expression = wanted.expression()
    try:
        dataset = ds.dataset(paths, schema=OPERATIONS, format="parquet")
        batches = dataset.to_batches(
            columns=list(names),
            filter=expression,
            batch_size=BATCH_ROWS,
            batch_readahead=2,
            fragment_readahead=1,
        )
        for batch in batches:
            if batch.num_rows:
                yield batch
    except (OSError, pa.ArrowException) as error:
        raise BadHistory(f"{found[0].path.parent.parent}: {error}") from None


def said(row: dict[str, Any]) -> list[Any] | None:
    """What the body of a row says, as operations; None without one, or if it cannot be read."""
    body, tag = row.get("body"), row["op"]
    kind = op.COMMANDS.get(tag)
    if body is None or kind is None:
        return None
    try:
        return operations_of(tag, body, _count(kind, body))
    except Rejected:
        return None


def _count(kind: type, body: bytes) -> int:
    """How many operations a run has; 0 for a body that is no run. Of a class that may come in runs
    no field is a list, so where one is, it is a column."""
    if not columnar.flat(kind):
        return 0
    columns = packing.load(body)
    lists = [each for each in columns.values() if type(each) is list]
    return len(lists[0]) if lists else 0
