"""Rules: a name, what it means, and a function from the rows of a cut to findings.

A cut has each Raft group at one index, so rules that stay within a group are exact: they join by
`raft_group` and know nothing of time. A rule that goes `across` groups compares rows of different
indexes; what is younger than the option `grace_ms` may be a race and is left out, and its finding
says with `recheck` what to ask again before anything is done.

Most rules follow one of four patterns: `follows` is that of every index (these rows and no others
have to be there), `counts` that of every count, `owned_by` of what lives with something else, and
`broker` of what a lost broker leaves behind. All rules of a pattern are decided together, by one
pass of Spark over what each contributes, so forty rules cost about as much as five.
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
from jobs.schemas import optional
from state_machines.tables import TABLES

Severity = Literal["error", "warning"]
SEVERITIES: Final = ("error", "warning")

ROW: Final = "group.repair.row"
COUNT: Final = "group.repair.count"
STRUCTURAL: Final = (COUNT, ROW)
"""Repairs of what no ordinary command may meet: they come before all others, counts first, as a
row that is repaired is counted as by any command."""


LATER: Final = {"metadata.segment": ("min_isr", "copies")}
"""Columns that cuts of earlier releases do not have: they are null then."""


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
KEPT: Final = NAMES[2:]
"""What a finding says besides its rule."""

Way = Literal["rows", "follows", "counts", "owned", "broker"]
"""How what a rule finds becomes findings: it has them already, or all rules of one way are decided
together, in one pass over what they contribute, however many they are."""


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
    way: Way = "rows"
    across: bool = False
    """Whether it compares rows of several groups."""
    absent: tuple[str, ...] = ()
    """Tables of which it misses a row that no group has: it needs all groups that may have it."""


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
        later = LATER.get(table, ())
        fields = [optional(each.name, each.type) if each.name in later else each for each in fields]
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
    table_of: Column | None = None,
    tenant: Column | None = None,
    key: Mapping[str, Column] | None = None,
    revision: Column | None = None,
    repair: Repair | None = None,
    recheck: Column | None = None,
    beside: Mapping[str, Column] | None = None,
) -> DataFrame:
    """A finding for each row of a frame that has the columns of the table's key, the revision and
    the Raft group. What differs from that is said by name; `beside` are columns for the pattern."""
    key = key or {name: fn.col(name) for name in TABLES[table].key}
    nothing = fn.lit(None).cast("string")
    body = repair.body if repair is not None else None
    return broken.select(
        (fn.col("tenant") if tenant is None else tenant).alias("tenant"),
        (fn.lit(table) if table_of is None else table_of).alias("table"),
        to_json(**key).alias("key"),
        fn.col(RAFT_GROUP).alias("group"),
        (fn.col("revision") if revision is None else revision).cast("bigint").alias("revision"),
        detail.alias("detail"),
        (fn.lit(repair.command) if repair is not None else nothing).alias("repair"),
        (body if body is not None else nothing).alias("repair_body"),
        (recheck if recheck is not None else nothing).alias("recheck"),
        *[value.alias(name) for name, value in (beside or {}).items()],
    )


def follows(cut: Cut, table: str, wanted: DataFrame) -> DataFrame:
    """Of an index: the rows that are there, and those that have to be.

    `wanted` has the Raft group and the columns of the index's key.
    """
    there = cut[table].withColumn("there", fn.col("revision")).withColumn("wanted", fn.lit(0))
    needed = wanted.withColumn("there", fn.lit(None).cast("bigint")).withColumn("wanted", fn.lit(1))
    keys = TABLES[table].key
    tenant = fn.col("tenant") if "tenant" in keys else fn.lit("")
    columns = (
        *(RAFT_GROUP, "there", "wanted", fn.lit(table).alias("table"), tenant.alias("tenant")),
        to_json(**{name: fn.col(name) for name in keys}).alias("key"),
    )
    return there.select(*columns).unionByName(needed.select(*columns))


def followed(rows: DataFrame) -> DataFrame:
    """What all rules of `follows` say together: rows that are missing, and those that are in the
    way."""
    both = rows.groupBy("rule", RAFT_GROUP, "table", "tenant", "key").agg(
        fn.max("there").alias("there"), fn.max("wanted").alias("wanted")
    )
    missing = fn.col("there").isNull()
    nothing = fn.lit(None).cast("string")
    return both.where(missing | (fn.col("wanted") == 0)).select(
        *("rule", "tenant", "table", "key", fn.col(RAFT_GROUP).alias("group")),
        fn.coalesce(fn.col("there"), fn.lit(0)).cast("bigint").alias("revision"),
        fn.when(missing, "is not there").otherwise("stands for nothing").alias("detail"),
        fn.lit(ROW).alias("repair"),
        nothing.alias("repair_body"),
        nothing.alias("recheck"),
    )


def counts(
    cut: Cut,
    table: str,
    *truth: DataFrame,
    fields: Sequence[str],
    made: bool = True,
    demand: bool = False,
) -> DataFrame:
    """Of counts: what they are, and what they should be.

    Each frame of `truth` has the Raft group, the columns of the table's key and each field: what a
    row adds to it. `made`: a row stands for its counts alone, so that it may be missing. `demand`:
    the row must not have changed since the cut for a repair to hold.
    """
    keys = TABLES[table].key
    tenant = fn.col("tenant") if "tenant" in keys else fn.lit("")

    def of(rows: DataFrame, revision: Column, *, there: bool) -> DataFrame:
        zero = fn.lit(0).cast("bigint")
        each = [
            fn.struct(
                fn.lit(field).alias("field"),
                (fn.col(field).cast("bigint") if there else zero).alias("is"),
                (zero if there else fn.col(field).cast("bigint")).alias("be"),
            )
            for field in fields
        ]
        return (
            rows.select(
                *(RAFT_GROUP, fn.lit(table).alias("table"), tenant.alias("tenant")),
                to_json(**{name: fn.col(name) for name in keys}).alias("key"),
                revision.cast("bigint").alias("revision"),
                fn.lit(made).alias("made"),
                fn.lit(demand or not made).alias("demand"),
                fn.explode(fn.array(*each)).alias("off"),
            )
            .select("*", "off.*")
            .drop("off")
        )

    all_of_it = of(cut[table], fn.col("revision"), there=True)
    for rows in truth:
        all_of_it = all_of_it.unionByName(of(rows, fn.lit(None), there=False))
    return all_of_it


def counted(rows: DataFrame, context: Context) -> DataFrame:
    """What all rules of `counts` say together: counts that are not what they should be."""
    both = rows.groupBy(
        *("rule", RAFT_GROUP, "table", "tenant", "key", "field", "made", "demand")
    ).agg(
        fn.try_sum("is").alias("is"),
        fn.try_sum("be").alias("be"),
        fn.max("revision").alias("revision"),
    )
    there = fn.col("revision").isNotNull() | fn.col("made")
    more = fn.expr("try_subtract(be, is)")
    seen = fn.element_at(_indexes(context), fn.col(RAFT_GROUP))
    revision = fn.coalesce(fn.col("revision"), fn.lit(0))
    return both.where(there & (fn.col("is") != fn.col("be"))).select(
        *("rule", "tenant", "table", "key", fn.col(RAFT_GROUP).alias("group")),
        fn.when(fn.col("demand"), revision).cast("bigint").alias("revision"),
        text(fn.col("field"), " is ", fn.col("is"), ", should be ", fn.col("be")).alias("detail"),
        fn.lit(COUNT).alias("repair"),
        to_json(field=fn.col("field"), more=more, seen=seen).alias("repair_body"),
        fn.lit(None).cast("string").alias("recheck"),
    )


def owned_by(
    found: DataFrame, owners: DataFrame, owner: Column, *, anywhere: bool = False
) -> DataFrame:
    """Of things that others own: the finding of each, should its owner not be there, and what
    owners there are.

    `found` has the `owner` of each beside it. `anywhere`: in whichever Raft group the owner is.
    """
    mine = found.withColumn("owns", fn.lit(False)).withColumn(
        "place", fn.lit("") if anywhere else fn.col("group")
    )
    theirs = owners.select(
        *[fn.lit(None).cast(found.schema[name].dataType).alias(name) for name in KEPT],
        owner.alias("owner"),
        fn.lit(True).alias("owns"),
        (fn.lit("") if anywhere else fn.col(RAFT_GROUP)).alias("place"),
    )
    return mine.unionByName(theirs)


def unowned(rows: DataFrame) -> DataFrame:
    """What all rules of `owned_by` say together: findings of things whose owner is not there."""
    keys = ["rule", "place", "owner"]
    owners = rows.where(fn.col("owns")).select(*keys).distinct()
    return rows.where(~fn.col("owns")).join(owners, keys, "left_anti").select("rule", *KEPT)


def of_lost_brokers(cut: Cut, rows: DataFrame) -> DataFrame:
    """What all rules about brokers say together: findings with a `broker` that is lost."""
    return rows.join(fn.broadcast(lost_brokers(cut)), "broker", "left_semi").select("rule", *KEPT)


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
