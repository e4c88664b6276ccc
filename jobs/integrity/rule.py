"""Rules: a name, what it means, and a function from the rows of a cut to findings.

A cut has each Raft group at one index, so rules that stay within a group are exact: they join by
`raft_group` and know nothing of time. A rule that goes `across` groups compares rows of different
indexes; what is younger than the option `grace_ms` may be a race and is left out, and its finding
says with `recheck` what to ask again before anything is done.

`follows` is the pattern of every index (these rows and no others have to be there), `counts` that
of every count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

import state_machines.machine  # noqa: F401 - registers the entities, whose tables are named here
from actors import columns
from jobs.datasets import RAFT_GROUP
from jobs.job import Context
from state_machines.tables import TABLES

Severity = Literal["error", "warning"]
SEVERITIES: Final = ("error", "warning")

ROW: Final = "group.repair.row"
COUNT: Final = "group.repair.count"
STRUCTURAL: Final = frozenset({ROW, COUNT})
"""Repairs of what no ordinary command may meet: they come before all others."""


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


FINDINGS = pa.schema(
    [
        _not_null("rule", pa.string()),
        _not_null("severity", pa.string()),  # error, warning
        _not_null("tenant", pa.string()),  # empty for what belongs to no tenant
        _not_null("table", pa.string()),
        _not_null("key", pa.string()),  # JSON: the fields of the row's key
        _not_null("group", pa.string()),  # the Raft group
        pa.field("revision", pa.int64()),  # the row's, which a repair demands; 0: there is no row
        _not_null("detail", pa.string()),
        pa.field("repair", pa.string()),  # tag of the command that repairs it; null: none does
        pa.field("repair_body", pa.string()),  # JSON: its fields, but for the table and the key
        pa.field("recheck", pa.string()),  # JSON: what of another group is to be asked again
    ]
)
"""One row for each row that breaks a rule."""

NAMES: Final = tuple(FINDINGS.names)


@dataclass(frozen=True, slots=True)
class Cut:
    """The rows of a cut by table, each with the Raft group that it is of."""

    frames: Mapping[str, DataFrame]
    context: Context

    def __getitem__(self, table: str) -> DataFrame:
        return self.frames[table]

    @property
    def settled_ms(self) -> int:
        """What happened before this moment is known to all groups of the cut."""
        return self.context.now_ms - int(self.context.options["grace_ms"])

    @property
    def overdue_ms(self) -> int:
        """What was due before this moment should have happened."""
        return self.context.now_ms - int(self.context.options["overdue_ms"])

    def option(self, name: str) -> str:
        """An option that is a word."""
        return str(self.context.options[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that has to hold."""

    name: str
    about: str
    tables: tuple[str, ...]
    """What it reads; `watermarks` is the file of that name."""
    severity: Severity
    repair: str
    """What puts it right, in words."""
    find: Callable[[Cut], DataFrame]
    across: bool = False
    """Whether it compares rows of several groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """The command that repairs a finding: its tag and the fields of its body."""

    command: str
    body: Column | None = None


def needs(**names: Sequence[str]) -> dict[str, pa.Schema]:
    """Schemas of tables (`mqtt__session` is mqtt.session): these columns, the revision and the
    Raft group."""
    found = {}
    for said, wanted in names.items():
        table = said.replace("__", ".")
        schema = columns.schema_of(TABLES[table].row)
        fields = [schema.field(name) for name in (*wanted, columns.REVISION)]
        found[table] = pa.schema([*fields, _not_null(RAFT_GROUP, pa.string())])
    return found


def text(*parts: str | Column) -> Column:
    """Words and values, one after the other."""
    said = [fn.lit(each) if isinstance(each, str) else each.cast("string") for each in parts]
    return fn.concat(*said)


def to_json(**fields: Column) -> Column:
    """A JSON object."""
    return fn.to_json(fn.struct(*[value.alias(name) for name, value in fields.items()]))


def findings(
    broken: DataFrame,
    table: str,
    *,
    detail: Column,
    tenant: Column | None = None,
    key: Mapping[str, Column] | None = None,
    revision: Column | None = None,
    repair: Repair | None = None,
    recheck: Column | None = None,
) -> DataFrame:
    """A finding for each row of a frame that has the columns of the table's key, the revision and
    the Raft group. What differs from that is said by name."""
    key = key or {name: fn.col(name) for name in TABLES[table].key}
    nothing = fn.lit(None).cast("string")
    body = repair.body if repair is not None else None
    return broken.select(
        (fn.col("tenant") if tenant is None else tenant).alias("tenant"),
        fn.lit(table).alias("table"),
        to_json(**key).alias("key"),
        fn.col(RAFT_GROUP).alias("group"),
        (fn.col("revision") if revision is None else revision).cast("bigint").alias("revision"),
        detail.alias("detail"),
        (fn.lit(repair.command) if repair is not None else nothing).alias("repair"),
        (body if body is not None else nothing).alias("repair_body"),
        (recheck if recheck is not None else nothing).alias("recheck"),
    )


def without(rows: DataFrame, others: DataFrame, on: Sequence[str]) -> DataFrame:
    """The rows that have no counterpart in their own Raft group."""
    keys = [RAFT_GROUP, *on]
    return rows.join(others.select(*keys).distinct(), keys, "left_anti")


def follows(cut: Cut, table: str, wanted: DataFrame) -> DataFrame:
    """Rows of an index that have to be there and are not, or that are and need not.

    `wanted` has the Raft group and the columns of the index's key.
    """
    keys = [RAFT_GROUP, *TABLES[table].key]
    there = cut[table].select(*keys, fn.col("revision").alias("there"))
    both = there.join(wanted.select(*keys).distinct().withColumn("wanted", fn.lit(1)), keys, "full")
    broken = both.where(fn.col("there").isNull() | fn.col("wanted").isNull())
    missing = fn.col("there").isNull()
    return findings(
        broken,
        table,
        tenant=fn.col("tenant") if "tenant" in keys else fn.lit(""),
        revision=fn.coalesce(fn.col("there"), fn.lit(0)),
        detail=fn.when(missing, "is not there").otherwise("stands for nothing"),
        repair=Repair(command=ROW),
    )


def counts(
    cut: Cut,
    table: str,
    truth: DataFrame,
    fields: Sequence[str],
    *,
    made: bool = True,
    demand: bool = False,
) -> DataFrame:
    """Counts that are not the number of what they count.

    `truth` has the Raft group, the columns of the table's key and each field as it should be; rows
    with zeros may be left out. `made`: a row stands for its counts alone, so that it may be
    missing. `demand`: the row must not have changed since the cut for a repair to hold.
    """
    keys = [RAFT_GROUP, *TABLES[table].key]
    rows = cut[table].select(*keys, "revision", *[fn.col(f).alias(f"is_{f}") for f in fields])
    right = truth.select(*keys, *[fn.col(f).alias(f"be_{f}") for f in fields])
    zero = fn.lit(0).cast("bigint")
    both = rows.join(right, keys, "full" if made else "left")
    each = [
        fn.struct(
            fn.lit(f).alias("field"),
            fn.coalesce(fn.col(f"is_{f}"), zero).alias("is"),
            fn.coalesce(fn.col(f"be_{f}"), zero).cast("bigint").alias("be"),
        )
        for f in fields
    ]
    off = both.select(*keys, "revision", fn.explode(fn.array(*each)).alias("off"))
    off = off.where(fn.col("off.is") != fn.col("off.be"))
    more = fn.expr("try_subtract(off.be, off.is)")
    seen = fn.element_at(_indexes(cut.context), fn.col(RAFT_GROUP))
    revision = fn.coalesce(fn.col("revision"), fn.lit(0))
    return findings(
        off,
        table,
        tenant=fn.col("tenant") if "tenant" in keys else fn.lit(""),
        revision=revision if demand or not made else fn.lit(None),
        detail=text(
            fn.col("off.field"), " is ", fn.col("off.is"), ", should be ", fn.col("off.be")
        ),
        repair=Repair(
            command=COUNT,
            body=to_json(field=fn.col("off.field"), more=more, seen=seen),
        ),
    )


def _indexes(context: Context) -> Column:
    """The vector of the cut, as a map."""
    pairs = [fn.lit(part) for pair in sorted(context.cut.items()) for part in pair]
    return fn.create_map(*pairs).cast("map<string,bigint>")


def lost_brokers(cut: Cut) -> DataFrame:
    """The brokers (`broker`) that were of the fleet once, and are gone or silent for the grace."""
    known = cut["metadata.node_epoch"].select("node_id").distinct()
    nodes = cut["metadata.node"].select("node_id", "online", "heartbeat_ms")
    silent = ~fn.col("online") & (fn.col("heartbeat_ms") < cut.settled_ms)
    return (
        known.join(nodes, "node_id", "left")
        .where(fn.col("online").isNull() | silent)
        .select(fn.col("node_id").alias("broker"))
    )
