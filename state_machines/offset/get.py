"""The offset of one partition: what a consumer asks for when it is given the partition.

It reads two rows by their keys: the offset, and its consumer group, which says whether the offset
is still shown. So it is answered as any read of a single row is, and many that are asked for at
once share a call and are looked for together.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import ClassVar, Final

from state_machines import names, packing
from state_machines.errors import Invalid
from state_machines.offset.rows import (
    OFFSETS,
    PARTITION_MAX,
    Offset,
    StoredOffset,
    check_group,
    shown,
)
from state_machines.op import Stamp, query
from state_machines.runs import Run, Values
from state_machines.tables import Tables

STEP_ROWS: Final = 256  #: looked for at once

_TOLD: Final = len(packing.field_names(Offset))  # of a row's fields, the first
assert packing.field_names(StoredOffset)[:_TOLD] == packing.field_names(Offset)


@query("offset.get")
class GetOffset:
    """The offset of one partition."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    group: str
    topic: str
    partition: int

    def validate(self) -> None:
        """Names and numbers within their limits."""
        check_group(self.tenant, self.group)
        names.name(self.topic, "topic")
        if not 0 <= self.partition <= PARTITION_MAX:
            raise Invalid(f"partition: {self.partition}, the range is 0 to {PARTITION_MAX}")

    def slot_key(self) -> tuple[str, ...]:
        """Where its group's offsets are."""
        return (self.tenant, self.group)

    def read(self, db: Tables, at: Stamp) -> Offset | None:
        """None when there is none, or its group is being deleted."""
        row = db.get(OFFSETS, self.tenant, self.group, self.topic, self.partition)
        if row is None or shown(db, self.tenant, self.group) is None:
            return None
        return row.told()

    @classmethod
    def validate_run(cls, run: Run) -> None:
        """The same of a run."""
        columns = run.columns
        for tenant, group in dict.fromkeys(run.rows("tenant", "group")):
            check_group(tenant, group)
        for topic in dict.fromkeys(columns["topic"]):
            names.name(topic, "topic")
        for each in (min(columns["partition"]), max(columns["partition"])):
            if not 0 <= each <= PARTITION_MAX:
                raise Invalid(f"partition: {each}, the range is 0 to {PARTITION_MAX}")

    @classmethod
    def read_run(cls, db: Tables, at: Stamp, run: Run) -> Iterator[list[Values]]:
        """The same of a run."""
        places = iter(run.rows("tenant", "group", "topic", "partition"))
        there: dict[tuple[str, str], bool] = {}
        while some := tuple(itertools.islice(places, STEP_ROWS)):
            found: list[Values] = []
            for place, stored in zip(some, db.store.get_many(OFFSETS.name, some), strict=True):
                if stored is None:
                    found.append(None)
                    continue
                whose = place[:2]
                if whose not in there:
                    there[whose] = shown(db, *whose) is not None
                found.append(OFFSETS.values_of(stored)[1][:_TOLD] if there[whose] else None)
            yield found
