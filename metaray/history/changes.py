"""What the commands between two revisions of a group were about: for each entity and subject how
many there were, and the first and the last of them.

Folded batch by batch, so that memory grows with the subjects that were touched, and with no more of
the history than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jobs.operation_files import Gap, gaps
from metaray.history.audit import Wanted, files_of, scan
from state_machines.errors import Invalid, NotFound

SUBJECTS_MAX: Final = 1_000_000  #: that are told apart: beyond, name a tenant or fewer revisions
COLUMNS: Final = ("index", "number", "at_ms", "client", "op", "tenant", "subject", "items")

_KEY: Final = ["tenant", "entity", "subject"]
_ROW: Final = ("first", "first_ms", "first_op", "first_client", "last", "last_ms", "last_op")
_ENDS: Final = (*_ROW, "last_client")


@dataclass(frozen=True, slots=True)
class Changes:
    """What was touched after revision `after`, up to and including `upto`, the busiest first."""

    group: str
    after: int
    upto: int
    rows: list[dict[str, Any]]
    of: int
    touched: int  #: how often they were, all together: a command counts for each of its subjects
    gaps: list[Gap]


def changes(
    directory: Path, group: str, after: int, upto: int, *, tenant: str | None = None, limit: int
) -> Changes:
    """Fold the commands of a group between two revisions.

    Raises Invalid for a range or a limit that is none, NotFound for revisions that the history does
    not reach (yet, or any more), and BadHistory.
    """
    if after < 0 or upto <= after:
        raise Invalid(f"to: {upto}, it must be above --from, {after}")
    if not 0 < limit <= SUBJECTS_MAX:
        raise Invalid(f"limit: {limit}, the range is 1 to {SUBJECTS_MAX}")
    found = files_of(directory, group)
    if not found:
        raise NotFound(f"group: the history has nothing of {group}")
    if upto > found[-1].last:
        raise NotFound(f"to: {upto} is not exported yet, {found[-1].last} is")
    if after + 1 < found[0].first:
        raise NotFound(f"from: {after} is gone, the history begins after {found[0].first - 1}")
    wanted = Wanted(tenant=tenant, group=group, after=after, upto=upto)
    missing = [gap for gap in gaps(found) if gap.last > after and gap.first <= upto]
    found = [each for each in found if each.last > after and each.first <= upto]
    parts: list[pa.Table] = []  # the first has what is joined already
    waiting = 0
    for batch in scan(found, wanted, COLUMNS):
        parts.append(_folded(pa.Table.from_batches([batch])))
        waiting += parts[-1].num_rows
        # Joined batch by batch, the time would grow with the square of the subjects.
        if waiting >= parts[0].num_rows:
            parts, waiting = [_joined(parts)], 0
    folded = _joined(parts) if parts else None
    rows: list[dict[str, Any]] = []
    if folded is not None:
        order = [("commands", "descending"), *((name, "ascending") for name in _KEY)]
        rows = folded.take(pc.sort_indices(folded, sort_keys=order)[:limit]).to_pylist()
    return Changes(
        group,
        after,
        upto,
        rows,
        folded.num_rows if folded is not None else 0,
        pc.sum(folded["commands"]).as_py() if folded is not None else 0,
        missing,
    )


def _folded(rows: pa.Table) -> pa.Table:
    """One row a subject, of commands in the order of the log."""
    entity = pc.replace_substring_regex(rows["op"], pattern=r"\.[^.]*$", replacement="")
    rows = rows.append_column("entity", entity)
    ends = [
        (name, f"{end}{suffix}")
        for end in ("first", "last")
        for name, suffix in (("index", ""), ("at_ms", "_ms"), ("op", "_op"), ("client", "_client"))
    ]
    folded = rows.group_by(_KEY, use_threads=False).aggregate(
        [
            *((name, alias.partition("_")[0]) for name, alias in ends),
            ("items", "sum"),
            ("op", "count"),
        ]
    )
    names = {f"{name}_{alias.partition('_')[0]}": alias for name, alias in ends}
    names |= {"items_sum": "items", "op_count": "commands"}
    return folded.rename_columns([names.get(name, name) for name in folded.column_names])


def _joined(parts: list[pa.Table]) -> pa.Table:
    """Foldings as one, each of commands that came later. Raises Invalid for too many subjects."""
    rows = pa.concat_tables([each.select(parts[0].column_names) for each in parts])
    folds = [(name, name.partition("_")[0]) for name in _ENDS]
    folded = rows.group_by(_KEY, use_threads=False).aggregate(
        [*folds, ("items", "sum"), ("commands", "sum")]
    )
    names = {f"{name}_{fold}": name for name, fold in folds}
    names |= {"items_sum": "items", "commands_sum": "commands"}
    if folded.num_rows > SUBJECTS_MAX:
        raise Invalid(f"from: more than {SUBJECTS_MAX} subjects; name a tenant, or fewer")
    return folded.rename_columns([names.get(name, name) for name in folded.column_names])
