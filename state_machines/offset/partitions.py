"""Partitions whose offsets are committed together, again and again.

    ours = Partitions([("billing", "orders", 0), ("billing", "orders", 1)])
    await client.call(ours.commit([17, 4]))

A consumer commits the partitions that it has been given, and a broker those of its consumers, every
few seconds; all that changes are the offsets. So what such a batch names is checked and packed here
once, and each commit after that says its offsets only. What is sent is the same, byte for byte, as
without (`CommitOffsets.of`), and replicas know it again by just these bytes (`recurring.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from state_machines import names, op, packing
from state_machines.errors import Invalid
from state_machines.offset.offset import NAMES, CommitOffsets, MoreColumns

PARTS: Final = 3


class Partitions:
    """Some partitions of some consumer groups, in order. Nothing of it changes."""

    __slots__ = ("_begun", "_said")

    def __init__(
        self, named: Iterable[tuple[str, str, int]], *, tenant: str = names.DEFAULT_TENANT
    ) -> None:
        """`named`: group, topic and partition of each. Raises Invalid."""
        some = list(named)
        for place, each in enumerate(some):
            if type(each) not in (tuple, list) or len(each) != PARTS:
                raise Invalid(f"named: group, topic and partition are wanted at place {place}")
        columns: tuple[Any, ...] = tuple(zip(*some, strict=True)) or ((),) * PARTS
        groups, topics, partitions = columns
        said = CommitOffsets(
            tenant=tenant,
            groups=groups,
            topics=topics,
            partitions=partitions,
            offsets=(0,) * len(some),
        )
        op.validate(said)
        self._said = said
        fields = packing.field_names(CommitOffsets)
        self._begun = packing.map_head(len(fields)) + packing.pack_fields(said, NAMES)

    def __len__(self) -> int:
        return len(self._said.groups)

    def commit(
        self,
        offsets: Sequence[int],
        *,
        metadata: Sequence[str] = (),
        more: MoreColumns | None = None,
    ) -> CommitOffsets:
        """The command that commits these offsets, one for each partition. `metadata` and the
        columns of `more` are as long, or empty. What is wrong with them the call says."""
        said = self._said
        made = CommitOffsets(
            tenant=said.tenant,
            groups=said.groups,
            topics=said.topics,
            partitions=said.partitions,
            offsets=tuple(offsets),
            metadata=tuple(metadata),
            more=more,
        )
        made.begin(self._begun)
        return made
