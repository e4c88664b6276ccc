"""The operation history: what was committed, by whom, when, at which index.

The exporter appends one row for each command of each committed entry (`metaray history`), Parquet
files of one group each, exactly once by (group, index, number). Hotspots, chargeback, audit and
the difference between two moments are told from it.
"""

from __future__ import annotations

import pyarrow as pa


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


OPERATIONS = pa.schema(
    [
        _not_null("group", pa.string()),  # the Raft group, such as offset-0
        _not_null("index", pa.int64()),  # of the entry: the revision that its rows have
        _not_null("number", pa.int64()),  # place of the command in its entry, from 0
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
"""One row for each committed command."""
