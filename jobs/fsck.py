"""fsck: referential integrity over one cut, and which command repairs what is broken.

    findings    one row for each row that breaks a rule               `rule.FINDINGS`
    rules       one row a rule, also those that nothing breaks

The rules are in `jobs.integrity`. A rule that misses rows of a group that the cut does not have, or
a table, is left out, and says so. `metaray repair` executes the findings that have a command.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.errors import MissingInput
from jobs.head import WATERMARKS
from jobs.integrity import common, connectors, engine, offsets, sessions, shares, slots
from jobs.integrity.rule import (
    FINDINGS,
    KEPT,
    SEVERITIES,
    Cut,
    Rule,
    Way,
    counted,
    followed,
    of_lost_brokers,
    unowned,
)
from jobs.job import Context, Input, Job, Option, Output
from jobs.results import Results
from jobs.schemas import require
from jobs.view import Bars, Column, Listing, Number, View
from state_machines.errors import Invalid
from state_machines.slots import SLOT_MAP_GROUP
from state_machines.tables import TABLES as ALL_TABLES

AREAS: Final = (sessions, connectors, shares, offsets, engine, common, slots)

RULES: Final[Mapping[str, Rule]] = {rule.name: rule for area in AREAS for rule in area.RULES}

TABLES: Final[Mapping[str, pa.Schema]] = {
    table: schema for area in AREAS for table, schema in area.NEEDS.items()
}
"""The tables of a cut that are read, and of each the columns that are needed."""

LATER: Final = ("mqtt.outbox_of_tenant", "mqtt.outbox_free")
"""Tables that cuts of earlier releases do not have: the rules that read one are left out then."""


def _not_null(name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, nullable=False)


BY_RULE = pa.schema(
    [
        _not_null("rule", pa.string()),
        _not_null("severity", pa.string()),
        _not_null("findings", pa.int64()),
        _not_null("repairable", pa.int64()),  # of them, by a command
        _not_null("about", pa.string()),
        _not_null("repair", pa.string()),
        _not_null("left_out", pa.string()),  # what it needs, and the cut has not; empty: it is told
    ]
)
"""One row a rule."""

ALL: Final = "all"

OPTIONS: Final = {
    "rules": Option(default=ALL, about="Only these rules, by name, with commas."),
    "grace_ms": Option(
        default=60_000,
        about="What is younger is not compared across groups: their rows are of different moments.",
    ),
    "overdue_ms": Option(
        default=60_000, about="How late an expiry or a timer may be before it is a finding."
    ),
    "topics": Option(
        default=offsets.MARKED,
        about="Which topics are known to be gone: `marked` for deletion, or all that are missing "
        "where a tenant has `declared` some.",
    ),
    "tenants": Option(
        default=common.USED,
        about="Which tenants may have rows: all that are `used` and not deleted, or those that are "
        "`recorded`.",
    ),
}

WORDS: Final = {
    "topics": (offsets.MARKED, offsets.DECLARED),
    "tenants": (common.USED, common.RECORDED),
}


def run(frames: Mapping[str, DataFrame], context: Context) -> Mapping[str, DataFrame]:
    """The tables of a cut to `findings` and `rules`.

    Raises Invalid for an unknown word, and MissingInput for a named rule without its tables.
    """
    for name, words in WORDS.items():
        if (said := context.options[name]) not in words:
            raise Invalid(f"{name}: {said!r}, one of {', '.join(words)} is wanted")
    checked = {
        table: require(frames[table], schema, table)
        for table, schema in TABLES.items()
        if table in frames or table not in LATER
    }
    checked["watermarks"] = require(frames["watermarks"], WATERMARKS, "watermarks")
    cut = Cut(checked, context)
    lacking = lacks(checked, context.cut, _owners(cut))
    rules = chosen(context.options["rules"], lacking)
    left_out = [RULES[name] for name in lacking] if context.options["rules"] == ALL else []
    ways: dict[Way, Callable[[DataFrame], DataFrame]] = {
        "rows": lambda all_of: all_of.select("rule", *KEPT),
        "follows": followed,
        "counts": lambda all_of: counted(all_of, context),
        "owned": unowned,
        "broker": lambda all_of: of_lost_brokers(cut, all_of),
    }
    decided = [
        decide(_all(cut, [rule for rule in rules if rule.way == way]))
        for way, decide in ways.items()
        if any(rule.way == way for rule in rules)
    ]
    found = functools.reduce(DataFrame.unionByName, decided)
    warns = [rule.name for rule in RULES.values() if rule.severity == "warning"]
    severity = fn.when(fn.col("rule").isin(warns), "warning").otherwise("error")
    # Kept: the second output is counted from the first, whose plan is the long one.
    found = require(found.withColumn("severity", severity), FINDINGS, "findings").persist()
    by_rule = _by_rule(found, (*rules, *left_out), lacking)
    return {"findings": found, "rules": require(by_rule, BY_RULE, "rules")}


def chosen(said: str, lacking: Mapping[str, str]) -> list[Rule]:
    """The rules of these names, or ALL but those that are `lacking` something.

    Raises Invalid for a name that is none, and MissingInput for a rule that lacks something.
    """
    if said == ALL:
        return [rule for rule in RULES.values() if rule.name not in lacking]
    names = [each.strip() for each in said.split(",")]
    for name in names:
        if name not in RULES:
            raise Invalid(f"rules: {name[:80]!r} is none of the {len(RULES)}: {', '.join(RULES)}")
        if what := lacking.get(name):
            raise MissingInput(f"rules: {name} needs {what}, which the cut does not have", what)
    return [rule for rule in RULES.values() if rule.name in names]


def lacks(
    there: Container[str], groups: Container[str], owners: Mapping[str, Collection[str]]
) -> dict[str, str]:
    """The rules that cannot be told of the tables that are `there` and the `groups` of the cut, and
    what each of them needs. `owners`: by kind, the groups that own slots; none: its group 0.
    """
    found = {}
    for rule in RULES.values():
        needed = [table for table in rule.tables if table not in there]
        for table in (ALL_TABLES[name] for name in rule.absent):
            first = f"{table.kind}-0"
            of_it = owners.get(table.kind) or (first,) if table.has_slots else (first,)
            # Without the slot map it is not known which groups there are.
            needed += [each for each in (SLOT_MAP_GROUP, *sorted(of_it)) if each not in groups]
        if needed:
            found[rule.name] = ", ".join(dict.fromkeys(needed))
    return found


def _owners(cut: Cut) -> dict[str, set[str]]:
    """By kind, the groups that own slots, by the slot map of the cut."""
    of_map = cut["metadata.slots"].where(fn.col(RAFT_GROUP) == SLOT_MAP_GROUP)
    owners: dict[str, set[str]] = {}
    for row in of_map.select("kind", "ranges.group").collect():
        owners.setdefault(row["kind"], set()).update(row["group"])
    return owners


def _all(cut: Cut, rules: Sequence[Rule]) -> DataFrame:
    """What these rules, all of one way, contribute, each under its name."""
    return functools.reduce(
        DataFrame.unionByName,
        [rule.find(cut).withColumn("rule", fn.lit(rule.name)) for rule in rules],
    )


def _by_rule(found: DataFrame, rules: Sequence[Rule], lacking: Mapping[str, str]) -> DataFrame:
    counted = found.groupBy("rule").agg(
        fn.count(fn.lit(1)).alias("findings"), fn.count("repair").alias("repairable")
    )
    every = [
        fn.struct(
            fn.lit(rule.name).alias("rule"),
            fn.lit(rule.severity).alias("severity"),
            fn.lit(rule.about).alias("about"),
            fn.lit(rule.repair).alias("repair"),
            fn.lit(lacking.get(rule.name, "")).alias("left_out"),
        )
        for rule in rules
    ]
    # Literals, and not createDataFrame: that would need a Python worker beside every executor.
    named = found.sparkSession.range(1).select(fn.explode(fn.array(*every)).alias("it"))
    zero = fn.lit(0).cast("bigint")
    return (
        named.select("it.*")
        .join(counted, "rule", "left")
        .withColumn("findings", fn.coalesce("findings", zero))
        .withColumn("repairable", fn.coalesce("repairable", zero))
    )


def view(results: Results, context: Context) -> View:
    """What was found, the worst first."""
    every = results.table("rules").to_pylist()
    rules = [each for each in every if not each["left_out"]]
    left_out = [each for each in every if each["left_out"]]
    broken = sorted(
        [each for each in rules if each["findings"]],
        key=lambda each: (SEVERITIES.index(each["severity"]), -each["findings"], each["rule"]),
    )
    of = {
        severity: sum(each["findings"] for each in broken if each["severity"] == severity)
        for severity in SEVERITIES
    }
    repairable = sum(each["repairable"] for each in broken)
    total = sum(of.values())
    headline = (
        f"{total} rows break {len(broken)} of {len(rules)} rules; {repairable} can be repaired"
        if total
        else f"No row breaks any of {len(rules)} rules"
    )
    if left_out:
        headline += f"; {len(left_out)} left out"
    listings = [
        Listing(
            title="Rules that are broken",
            columns=(
                Column("severity", "severity"),
                Column("rule", "rule"),
                Column("findings", "rows", "count"),
                Column("repairable", "repairable", "count"),
                Column("about", "what should hold", prose=True),
                Column("repair", "repair", prose=True),
            ),
            rows=broken,
            of=len(broken),
            section="severity",
            nothing="every rule holds",
        )
    ]
    if left_out:
        columns = (Column("rule", "rule"), Column("left_out", "the cut has not"))
        listings.append(
            Listing(
                title="Rules that are left out",
                columns=columns,
                rows=left_out,
                of=len(left_out),
            )
        )
    listings += [_some(results, each) for each in broken[:BROKEN_SHOWN]]
    largest = sorted(broken, key=lambda each: (-each["findings"], each["rule"]))[:BARS]
    bars = Bars(
        title="Findings by rule",
        label="rows",
        names=[each["rule"] for each in largest],
        values=[each["findings"] for each in largest],
        bad=True,
    )
    return View(
        headline=headline,
        numbers=(
            Number("errors", of["error"], alarming=of["error"] > 0),
            Number("warnings", of["warning"]),
            Number("repairable", repairable),
            Number("rules", len(rules)),
        ),
        listings=listings,
        plots=(bars,) if broken else (),
    )


BROKEN_SHOWN: Final = 8  #: rules of which rows are listed
ROWS_SHOWN: Final = 5  #: of each of them
BARS: Final = 10


def _some(results: Results, rule: Mapping[str, object]) -> Listing:
    where = {"rule": rule["rule"]}
    rows = results.top("findings", "revision", ROWS_SHOWN, "table", "key", where=where)
    return Listing(
        title=f"{rule['rule']}: {rule['about']}",
        columns=(
            Column("tenant", "tenant"),
            Column("table", "table"),
            Column("key", "key"),
            Column("group", "group"),
            Column("detail", "what is wrong"),
            Column("repair", "repaired by"),
        ),
        rows=rows,
        of=int(str(rule["findings"])),
    )


JOB: Final = Job(
    name="fsck",
    title="Integrity",
    about="Which rows of a cut contradict others, and which command repairs them.",
    inputs={
        **{
            table: Input(
                schema=schema, table=table, required=table not in LATER, told=table in LATER
            )
            for table, schema in TABLES.items()
        },
        "watermarks": Input(
            schema=WATERMARKS,
            of="file",
            required=False,
            about="High watermarks of partitions; without it no offset is above one.",
        ),
    },
    outputs={
        "findings": Output(
            schema=FINDINGS,
            order=("severity", "rule", "group", "table", "key", "detail"),
            about="Rows that break a rule.",
        ),
        "rules": Output(schema=BY_RULE, order=("severity", "rule"), about="Every rule."),
    },
    run=run,
    view=view,
    options=OPTIONS,
)
"""`metaray fsck`."""
