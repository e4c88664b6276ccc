"""The rule of slots: a row is in the group that owns its slot.

The slot map of a kind stands in `metadata-0`, and each group knows by itself what it owns. While
these do not agree on a slot it is moving: both groups may have its rows, and nothing is claimed. A
row is astray where all agree that another group has its slot: its own group refuses every command
for it, and clients ask elsewhere.

The hash of slots, CRC-16, is none of Spark's functions. It is computed byte by byte, by a table of
256 numbers, in the JVM; and only in groups that have been told what they own.
"""

from __future__ import annotations

import functools
from binascii import crc_hqx
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.integrity import common, connectors, engine, offsets, sessions, shares
from jobs.integrity.rule import KEPT, Cut, Rule, findings, needs, text
from state_machines.mqtt.blacklist import BLACKLIST, PATTERNS
from state_machines.slots import SLOT_MAP_GROUP, SLOTS
from state_machines.tables import TABLES

NEEDS: Final = needs(
    metadata__slots=("kind", "ranges"),
    group__owned=("kind", "ranges"),
)


def _has_slots(name: str) -> bool:
    table = TABLES[name]
    return bool(table.kind) and table.slot_key(table.key) is not None


SLOTTED: Final = tuple(
    sorted(
        {
            name
            for area in (sessions, connectors, shares, offsets, engine, common)
            for name in area.NEEDS
            if _has_slots(name)
        }
    )
)
"""The tables that are looked through: of those that are read anyway, the ones with slots."""

CRC: Final = [crc_hqx(bytes([byte]), 0) for byte in range(256)]
"""What one byte makes of an empty CRC-16: by this and a shift it goes on with any other."""


def slot_key(table: str) -> Column:
    """What `Table.slot_key` says of each row, as the bytes that `slot_of` hashes."""
    whole = _bytes(*(TABLES[table].slot_key(TABLES[table].key) or ()))
    if table == BLACKLIST.name:
        # Patterns of a type stay together, whatever they are of.
        return fn.when(fn.col("type").isin(*PATTERNS), _bytes("tenant", "type")).otherwise(whole)
    return whole


def _bytes(*names: str) -> Column:
    parts: list[Column] = []
    for name in names:
        part = fn.col(name).cast("binary")
        length = fn.unhex(fn.lpad(fn.hex(fn.octet_length(part)), 8, "0"))
        parts += [length, part]
    return fn.concat(*parts)


def slot_of(key: Column) -> Column:
    """The slot of what `slot_key` has made: `state_machines.slots.slot_of`."""
    table = fn.expr(f"array({', '.join(map(str, CRC))})")  # one call of the JVM, not 800

    def one_more(crc: Column, byte: Column) -> Column:
        place = fn.shiftright(crc, 8).bitwiseXOR(fn.ascii(byte))
        return fn.shiftleft(crc.bitwiseAND(fn.lit(0xFF)), 8).bitwiseXOR(fn.get(table, place))

    # In Latin-1 each byte is one character, and its number.
    each = fn.split(fn.decode(key, "ISO-8859-1"), "")
    return (fn.aggregate(each, fn.lit(0), one_more) % SLOTS).cast("bigint")


def _within(ranges: str) -> Column:
    def has(each: Column) -> Column:
        return fn.col("slot").between(each["first"], each["last"])

    return fn.exists(ranges, has)


def _given_away(cut: Cut) -> DataFrame:
    """The slots that a group knows it does not own, where their owner by the map (`owner`) owns
    them by what it knows itself, and is in the cut."""
    of_groups = cut["group.owned"].select(RAFT_GROUP, "kind", "ranges")
    of_map = (
        cut["metadata.slots"]
        .where(fn.col(RAFT_GROUP) == SLOT_MAP_GROUP)
        .select("kind", fn.col("ranges").alias("of_map"))
    )
    of_owner = of_groups.toDF("owner", "kind", "of_owner")
    group_0 = fn.concat("kind", fn.lit("-0")).alias("group")
    trivial = fn.array(
        fn.struct(
            fn.lit(0).cast("bigint").alias("first"),
            fn.lit(SLOTS - 1).cast("bigint").alias("last"),
            group_0,
        )
    )
    return (
        of_groups.join(of_map, "kind", "left")
        .withColumn("of", fn.explode(fn.coalesce("of_map", trivial)))
        .where(fn.col("of.group") != fn.col(RAFT_GROUP))
        .where(fn.col("of.group").isin(*cut.context.cut))
        .select(
            *(RAFT_GROUP, "kind", "ranges", fn.col("of.group").alias("owner")),
            fn.explode(fn.sequence("of.first", "of.last")).alias("slot"),
        )
        .where(~_within("ranges"))
        .join(of_owner, ["owner", "kind"], "left")
        .where(fn.col("of_owner").isNull() | _within("of_owner"))  # never told: it owns them all
        .select(RAFT_GROUP, "kind", "slot", "owner")
    )


def _astray(cut: Cut) -> DataFrame:
    each = [
        findings(
            cut[table],
            table,
            detail=fn.lit(""),
            beside={"kind": fn.lit(TABLES[table].kind), "slot_key": slot_key(table)},
        )
        for table in SLOTTED
    ]
    rows = functools.reduce(DataFrame.unionByName, each)
    told = cut["group.owned"].select(fn.col(RAFT_GROUP).alias("group"), "kind")
    given = _given_away(cut).withColumnRenamed(RAFT_GROUP, "group")
    said = text("slot ", fn.col("slot"), " is of ", fn.col("owner"))
    return (
        rows.join(fn.broadcast(told), ["group", "kind"], "left_semi")
        .withColumn("slot", slot_of(fn.col("slot_key")))
        .join(fn.broadcast(given), ["group", "kind", "slot"])
        .withColumn("detail", said)
        .select(*KEPT)
    )


RULES: Final = (
    Rule(
        name="slot_of_another_group",
        about="A row is in the group that owns its slot, unless the slot is moving.",
        tables=("metadata.slots", "group.owned", *SLOTTED),
        severity="error",
        repair="none: its group refuses what is for it; give it the slot back, and copy the row",
        find=_astray,
        across=True,
    ),
)
