"""Rules of what every kind of group has: topics that are counted, leases, tenants."""

from __future__ import annotations

import functools
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from jobs.datasets import RAFT_GROUP
from jobs.integrity.rule import (
    ROW,
    Cut,
    Repair,
    Rule,
    counts,
    findings,
    follows,
    needs,
    owned_by,
    text,
    to_json,
)
from state_machines.names import DEFAULT_TENANT
from state_machines.quota import TOPICS

NEEDS: Final = needs(
    group__usage=("tenant", "resource", "count"),
    group__quota=("tenant", "closed", "clean"),
    group__lease=("lease_id", "deadline_ms", "due_ms", "rows", "graced", "ending"),
    group__lease_due=("due_ms", "lease_id"),
    group__lease_attachment=("table", "key", "lease_id"),
    group__lease_row=("lease_id", "table", "key"),
    mqtt__topic=("tenant", "name"),
    metadata__tenant=("name",),
)

USED: Final = "used"
RECORDED: Final = "recorded"

OF_TENANTS: Final = (
    *("metadata.topic", "metadata.shard", "metadata.segment", "mqtt.topic", "mqtt.session"),
    *("mqtt.subscription", "mqtt.will", "mqtt.retained", "mqtt.blacklist", "mqtt.connector"),
    *("mqtt.share_group", "mqtt.share_member", "offset.group", "offset.offset"),
)
"""The tables that are looked through for tenants."""


def _usage(cut: Cut) -> DataFrame:
    each = [
        cut[table].withColumn("resource", fn.lit(TOPICS)).withColumn("count", fn.lit(1))
        for table in ("mqtt.topic", "metadata.topic")
    ]
    # A count that is too low stays at 0 when more goes, so the difference holds for this row only.
    return counts(cut, "group.usage", *each, fields=("count",), demand=True)


def _lease_due(cut: Cut) -> DataFrame:
    return follows(cut, "group.lease_due", cut["group.lease"])


def _lease_rows(cut: Cut) -> DataFrame:
    each = cut["group.lease_attachment"].withColumn("rows", fn.lit(1))
    return counts(cut, "group.lease", each, fields=("rows",), made=False)


def _lease_index(cut: Cut) -> DataFrame:
    return follows(cut, "group.lease_row", cut["group.lease_attachment"])


def _attachment_without_lease(cut: Cut) -> DataFrame:
    lease = to_json(lease_id=fn.col("lease_id"))
    found = findings(
        cut["group.lease_attachment"],
        "group.lease_attachment",
        tenant=fn.lit(""),
        detail=text("there is no lease ", fn.col("lease_id")),
        repair=Repair(command=ROW),
        beside={"owner": lease},
    )
    return owned_by(found, cut["group.lease"], lease)


def _lease_overdue(cut: Cut) -> DataFrame:
    over = cut["group.lease"].where(~fn.col("ending") & (fn.col("deadline_ms") < cut.overdue_ms))
    return findings(
        over,
        "group.lease",
        tenant=fn.lit(""),
        detail=text("over for ", fn.lit(cut.context.now_ms) - fn.col("deadline_ms"), " ms"),
        repair=Repair(command="group.lease.revoke", body=to_json(items=fn.array("lease_id"))),
    )


def _tenants(cut: Cut) -> DataFrame:
    clean = cut["group.quota"].where(fn.col("clean")).select(RAFT_GROUP, "tenant")
    recorded = cut["metadata.tenant"].select(fn.col("name").alias("tenant")).distinct()
    each = [cut[name].select(RAFT_GROUP, "tenant", fn.lit(name).alias("of")) for name in OF_TENANTS]
    found = (
        functools.reduce(DataFrame.unionByName, each)
        .groupBy(RAFT_GROUP, "tenant", "of")
        .agg(fn.count(fn.lit(1)).alias("rows"))
        .join(fn.broadcast(clean.withColumn("clean", fn.lit(True))), [RAFT_GROUP, "tenant"], "left")
        .join(fn.broadcast(recorded.withColumn("recorded", fn.lit(True))), "tenant", "left")
    )
    strict = fn.lit(cut.option("tenants") == RECORDED) & (fn.col("tenant") != DEFAULT_TENANT)
    why = fn.when(fn.col("clean"), "its deletion has found nothing left here").when(
        strict & fn.col("recorded").isNull(), "it is not recorded"
    )
    return findings(
        found.withColumn("why", why).where(fn.col("why").isNotNull()),
        "metadata.tenant",
        key={"tenant": fn.col("tenant")},
        table_of=fn.col("of"),
        revision=fn.lit(None),
        detail=text(fn.col("rows"), " rows of the tenant: ", fn.col("why")),
    )


RULES: Final = (
    Rule(
        name="topic_usage",
        about="A tenant's topics are counted in each group, for its quota.",
        tables=("group.usage", "mqtt.topic", "metadata.topic"),
        severity="warning",
        repair="the count is moved, if it has not changed",
        find=_usage,
        way="counts",
    ),
    Rule(
        name="lease_due",
        about="A lease is looked at when it says.",
        tables=("group.lease_due", "group.lease"),
        severity="error",
        repair="the index row is set or taken back",
        find=_lease_due,
        way="follows",
    ),
    Rule(
        name="lease_rows",
        about="A lease counts the rows that are attached to it.",
        tables=("group.lease", "group.lease_attachment"),
        severity="error",
        repair="the count is moved, if the lease has not changed",
        find=_lease_rows,
        way="counts",
    ),
    Rule(
        name="lease_row",
        about="A row with a lease is found under the lease.",
        tables=("group.lease_row", "group.lease_attachment"),
        severity="error",
        repair="the index row is set or taken back",
        find=_lease_index,
        way="follows",
    ),
    Rule(
        name="attachment_without_lease",
        about="The lease that a row is attached to is there.",
        tables=("group.lease_attachment", "group.lease"),
        severity="error",
        repair="the attachment goes, the row stays",
        find=_attachment_without_lease,
        way="owned",
    ),
    Rule(
        name="lease_overdue",
        about="A lease ends when it has run out, by the controller.",
        tables=("group.lease",),
        severity="warning",
        repair="the lease is revoked, if nobody has kept it alive since",
        find=_lease_overdue,
    ),
    Rule(
        name="tenant_leftover",
        about="A deleted tenant has no rows; with the option `tenants`, nor has an unrecorded one.",
        tables=("group.quota", "metadata.tenant", *OF_TENANTS),
        severity="warning",
        repair="none: record the tenant and delete it, then the controller purges it",
        find=_tenants,
        absent=("metadata.tenant",),
    ),
)
