"""The operation history: what was committed, by whom, when, at which index.

The exporter appends the commands of each committed entry (`metaray history`), Parquet files of one
group each (`jobs.operation_files`), exactly once by (group, index, number). Hotspots, chargeback,
audit and the difference between two moments are told from it.

A command that is about one thing is one row. A batch, or a run of commands of one class, that is
about several (a thousand commits for a dozen consumer groups) is a row for each (tenant, subject):
`items` and `bytes` of these rows add up to those of the command, and the first of them has its
body. So sums by tenant and by subject need nothing but a group-by. `subject_of` makes it of what a
command is placed by. It is at most `SUBJECT_MAX` characters: `subject_name` says what stands there
for a longer one.

What was committed is not always what was done: a command may have been refused where it was
applied, and a client that had no answer in time may have proposed the same (client, sequence)
again, which is answered and not applied again. The log does not say so; `outcome` is null where
nothing but the replica knew.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

if TYPE_CHECKING:  # the exporter writes these rows in a process that needs no Spark
    from pyspark.sql import DataFrame

    from jobs.session import Session


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


OPERATIONS = pa.schema(
    [
        _not_null("group", pa.string()),  # the Raft group, such as offset-0
        _not_null("index", pa.int64()),  # of the entry: the revision that its rows have
        _not_null("number", pa.int64()),  # place of the row among those of its entry, from 0
        _not_null("term", pa.int64()),
        _not_null("at_ms", pa.int64()),  # the leader's stamp, Unix milliseconds
        _not_null("client", pa.string()),  # who: the client's id, in hex
        _not_null("sequence", pa.int64()),  # the client's number of the request
        _not_null("op", pa.string()),  # the command's name, such as offset.commit
        _not_null("tenant", pa.string()),  # empty for what belongs to no tenant
        _not_null("subject", pa.string()),  # what it is about: a topic, a client id, a group
        _not_null("items", pa.int64()),  # operations in it: a batch of 1000 commits has 1000
        _not_null("bytes", pa.int64()),  # of the body as it was committed
        pa.field("outcome", pa.string()),  # empty: applied; a refusal's code; null: not known
        pa.field(
            "body", pa.binary()
        ),  # msgpack, so that it can be told and undone; may be left out
    ]
)
"""One row for each committed command and subject."""

DATASET: Final = "operations"

SUBJECT_MAX: Final = 512  #: characters of a subject: an MQTT client id may have 65 535 bytes
SUBJECT_DIGITS: Final = 16  #: hex digits of the SHA-256 at the end of a longer one's name
SUBJECT_KEPT: Final = SUBJECT_MAX - 1 - SUBJECT_DIGITS  #: characters before the ~ of such a name


def subject_of(parts: Sequence[str]) -> str:
    """What a command is about, of the parts of a slot key without the tenant, at least one: joined
    by `/`, for which `%2F` stands within those before the last (and `%25` for `%`).

    So as many parts as an entity has are told apart whatever they say, and what has one part, such
    as a client id or a topic, is as it is.
    """
    *before, last = parts
    return "/".join([*(each.replace("%", "%25").replace("/", "%2F") for each in before), last])


def subject_name(whole: str) -> str:
    """What the history calls a subject: as it is, or of a longer one its first characters, ~ and
    the SHA-256 of the whole, so that different subjects stay different.

    One that is just as long as such a name and has the ~ there is named in the same way, so that no
    client can choose an id that is the name of another's. `jobs.loads` has the same in SQL.
    """
    if len(whole) < SUBJECT_MAX:
        return whole
    if len(whole) == SUBJECT_MAX and whole[SUBJECT_KEPT] != "~":
        return whole
    digest = hashlib.sha256(whole.encode()).hexdigest()
    return f"{whole[:SUBJECT_KEPT]}~{digest[:SUBJECT_DIGITS]}"


def read(
    session: Session,
    directory: Path,
    *,
    groups: Sequence[str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    body: bool = False,
) -> DataFrame:
    """The history in a directory as a DataFrame of OPERATIONS, on either engine.

    Each command is there once, whatever the exporter is doing meanwhile. `groups`: of these Raft
    groups alone; `since_ms` and `until_ms`: stamped then or later, and before then. Bodies are
    null unless they are asked for. Raises BadHistory for a directory that has no history, and
    SchemaMismatch for a file of another shape.
    """
    from jobs import datasets

    pages = pages_of(directory, groups=groups, since_ms=since_ms, until_ms=until_ms, body=body)
    return datasets.frame(session, OPERATIONS, pages, DATASET)


def pages_of(
    directory: Path,
    *,
    groups: Sequence[str] | None = None,
    since_ms: int | None = None,
    until_ms: int | None = None,
    body: bool = True,
) -> Iterator[pa.RecordBatch]:
    """The same as Arrow pages, one at a time. It holds no more than one row group."""
    import pyarrow.compute as pc

    from jobs import operation_files as files

    names = [name for name in OPERATIONS.names if body or name != "body"]
    for page in files.batches(files.listed(directory, groups), names):
        if not body:
            page = page.append_column("body", pa.nulls(page.num_rows, pa.binary()))
        if since_ms is not None:
            page = page.filter(pc.greater_equal(page.column("at_ms"), since_ms))
        if until_ms is not None:
            page = page.filter(pc.less(page.column("at_ms"), until_ms))
        yield page


def write(directory: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add a history that is made up, one file a group: for trials and tests.

    A row says what differs from a plain one: `group` and `index` at least, in the order of the
    log. Raises BadHistory where the directory has some of these entries already.
    """
    from jobs import operation_files as files

    plain = {
        "number": 0,
        "term": 1,
        "at_ms": 0,
        "client": "1",
        "sequence": 1,
        "op": "offset.commit",
        "tenant": "default",
        "subject": "",
        "items": 1,
        "bytes": 0,
    }
    by_group: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_group.setdefault(row["group"], []).append({**plain, **row})
    for group, some in by_group.items():
        first, last = some[0]["index"], some[-1]["index"]
        found = files.everything(directory, group)
        path = files.path_of(directory, group, first, last)
        files.counted([*found, files.Range(group, first, last, path)])
        page = pa.RecordBatch.from_pylist(some, schema=OPERATIONS)
        files.add_rows(directory, group, first, last, [page])
