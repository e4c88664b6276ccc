"""The slot map: for each kind, which group owns which slots. Lives in `metadata-0` alone.

Without a row for a kind, its group 0 owns every slot. A new map has the next version and leaves no
slot without an owner.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from state_machines import names
from state_machines.errors import Conflict, Invalid
from state_machines.fence import check_epoch, pass_fence
from state_machines.limits import INT_MAX
from state_machines.op import Stamp, command, query
from state_machines.slots import SLOTS, SlotRange, check_ranges
from state_machines.tables import Table, Tables


@dataclass(frozen=True, slots=True)
class KindSlots:
    """The slots of one kind."""

    kind: str
    version: int
    ranges: tuple[SlotRange, ...]


KINDS: Final = ("metadata", "mqtt", "offset")  #: of groups: those that tables are of
SLOT_MAPS: Final = Table("metadata.slots", KindSlots, key=("kind",))
_NUMBER: Final = re.compile(r"0|[1-9]\d{0,3}", re.ASCII)  #: as in the names of a cluster's groups


@command("metadata.slots.assign")
class AssignSlots:
    """Say who owns the slots of a kind: groups by their numbers. The reply is the new version.

    The controller does, when a kind begins with several groups, after it has told each of them what
    it owns (`group.own`). By hand it is not for a kind that has rows: nothing moves them with their
    slots, and they would be looked for where they are not.

    `version`: what the groups were told; 0: the next one. `controller_epoch`: 0 if it is done by
    hand.
    """

    urgent: ClassVar[bool] = True
    kind: str
    expected_version: int
    ranges: tuple[SlotRange, ...]
    version: int = 0
    controller_epoch: int = 0

    def validate(self) -> None:
        """A kind that has tables; every slot has exactly one owner, a group of that kind."""
        names.one_of(self.kind, "kind", KINDS)
        if self.controller_epoch:
            check_epoch(self.controller_epoch)
        if not 0 <= self.version <= INT_MAX:
            raise Invalid(f"version: {self.version}, the range is 0 to {INT_MAX}")
        check_ranges(self.ranges)
        covered = sum(each.last - each.first + 1 for each in self.ranges)
        if covered != SLOTS:
            raise Invalid(f"ranges: {covered} slots have an owner, there are {SLOTS}")
        for each in self.ranges:
            names.name(each.group, "ranges.group")
            kind, _, number = each.group.rpartition("-")
            if kind != self.kind or not _NUMBER.fullmatch(number):
                raise Invalid(f"ranges.group: {each.group!r} is not a group of kind {self.kind!r}")

    def apply(self, db: Tables, at: Stamp) -> int:
        """Conflict unless the kind's map is at the expected version (0: there is none), and the
        new one's is newer than all.

        Versions are of all kinds together: whoever has the latest has them all.
        """
        if self.controller_epoch:
            pass_fence(db, self.controller_epoch)
        old = db.get(SLOT_MAPS, self.kind)
        version = old.version if old is not None else 0
        if version != self.expected_version:
            raise Conflict(f"expected_version: {self.expected_version}, the map is at {version}")
        latest = max([row.version for _, row, _ in db.scan(SLOT_MAPS)], default=0)
        if 0 < self.version <= latest:
            raise Conflict(f"version: {self.version}, there is a map of version {latest}")
        version = self.version or latest + 1
        db.put(SLOT_MAPS, KindSlots(self.kind, version, self.ranges))
        return version


@query("metadata.slots.get")
class GetSlots:
    """The slot maps of all kinds that have one. A row of what is no kind counts for nothing."""

    def read(self, db: Tables, at: Stamp) -> tuple[KindSlots, ...]:
        """By kind."""
        return tuple([row for _, row, _ in db.scan(SLOT_MAPS) if row.kind in KINDS])
