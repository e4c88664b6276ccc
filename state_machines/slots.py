"""Slots: which group of a kind owns a row (design 5.15).

A row's *slot key* is a tuple of strings; rows that must change together share it (a session, its
subscriptions and its will: tenant and client id). `slot_of` hashes it to one of `SLOTS`. The slot
map says which group owns which slots; it lives in `metadata-0`, clients keep a copy, and each group
knows what it owns itself, so that one with an old map is told `WrongShard` with the newer version.
A kind with one group has the trivial map: version 0, everything to group 0.
"""

from __future__ import annotations

from binascii import crc_hqx
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from state_machines import names, op
from state_machines.errors import Conflict, Fenced, Invalid, WrongShard
from state_machines.fence import check_epoch, pass_fence
from state_machines.op import Stamp, command, query
from state_machines.tables import TABLES, Table, Tables

SLOTS: Final = 16_384
SLOT_MAP_GROUP: Final = "metadata-0"
RANGES_MAX: Final = 1_024


def slot_of(key: tuple[str, ...]) -> int:
    """The slot of a slot key: CRC-16 (XMODEM) over its parts, each with its length in front."""
    value = 0
    for part in key:
        data = part.encode()
        value = crc_hqx(len(data).to_bytes(4, "big") + data, value)
    return value % SLOTS


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots first..last, both included, and the group that owns them."""

    first: int
    last: int
    group: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """What a group knows it owns. Without this row it owns every slot of its kind."""

    kind: str
    version: int
    ranges: tuple[SlotRange, ...]


OWNED: Final = Table("group.owned", Owned, key=("kind",))
ALL: Final = (SlotRange(0, SLOTS - 1),)
_OWNED: Final = "slots.owned/"


def check_ranges(ranges: Sequence[SlotRange]) -> None:
    """Raise Invalid unless the ranges ascend, do not overlap and stay within the slots."""
    if len(ranges) > RANGES_MAX:
        raise Invalid(f"ranges: {len(ranges)}, the limit is {RANGES_MAX}")
    before = -1
    for each in ranges:
        if not before < each.first <= each.last < SLOTS:
            raise Invalid(f"ranges: {each.first}-{each.last} after {before}, of {SLOTS} slots")
        names.name(each.group, "ranges.group", empty=True)
        before = each.last


def gives_up(old: Sequence[SlotRange], new: Sequence[SlotRange]) -> bool:
    """Whether a range of the old ones is in none of the new ones."""
    return not all(any(n.first <= o.first and o.last <= n.last for n in new) for o in old)


def table_with_rows(db: Tables, kind: str) -> str:
    """The name of a table of this kind in which the group has rows that have slots; empty: none."""
    for table in TABLES.values():
        first = next(db.scan(table), None) if table.kind == kind else None
        if first is not None and table.slot_key(table.key_of(first[1])) is not None:
            return table.name
    return ""


@command("group.own")
class Own:
    """Tell a group which slots of its kind it owns: it refuses all that is of others.

    `only_empty`: unless that takes slots from it while it has rows, which would be hidden.
    """

    urgent: ClassVar[bool] = True
    controller_epoch: int
    group_kind: str
    version: int
    ranges: tuple[SlotRange, ...]
    only_empty: bool = False

    def validate(self) -> None:
        """Versions are positive; ranges ascend."""
        check_epoch(self.controller_epoch)
        names.name(self.group_kind, "group_kind")
        if self.version < 1:
            raise Invalid(f"version: {self.version}, the least is 1")
        check_ranges(self.ranges)

    def apply(self, db: Tables, at: Stamp) -> None:
        """Replace what the group owns. Fenced with an older version; the same again is fine.
        Conflict where `only_empty` forbids it."""
        pass_fence(db, self.controller_epoch)
        new = Owned(self.group_kind, self.version, self.ranges)
        old = db.get(OWNED, self.group_kind)
        if old is not None and old.version > self.version:
            raise Fenced(f"version: {self.version}, in force is {old.version}")
        if old is not None and old.version == self.version and old != new:
            raise Conflict(f"version: {self.version} stands for other ranges already")
        less = gives_up(old.ranges if old is not None else ALL, self.ranges)
        if self.only_empty and less and (table := table_with_rows(db, self.group_kind)):
            raise Conflict(f"only_empty: {table} has rows, and nothing moves them")
        db.put(OWNED, new)
        db.memo.clear()


@dataclass(frozen=True, slots=True)
class Holding:
    """What a group owns of its kind, and whether it has rows there."""

    version: int  #: 0: nobody has told it, it owns every slot
    ranges: tuple[SlotRange, ...]
    table: str  #: one that has rows with slots; empty: none has any


@query("group.holding")
class GetHolding:
    """What a group owns of a kind, for whoever gives out slots."""

    group_kind: str

    def validate(self) -> None:
        """A kind has a name."""
        names.name(self.group_kind, "group_kind")

    def read(self, db: Tables, at: Stamp) -> Holding:
        """As it is now."""
        owned = db.get(OWNED, self.group_kind)
        version, ranges = (0, ALL) if owned is None else (owned.version, owned.ranges)
        return Holding(version, ranges, table_with_rows(db, self.group_kind))


def places(operation: Any) -> Sequence[tuple[str, ...] | None]:
    """The slot keys of all that an operation touches, None for what is cluster-wide.

    Empty for one that has no place of its own: it asks every group, or is for whichever is named.
    """
    if hasattr(operation, "places"):
        found: Sequence[tuple[str, ...] | None] = operation.places()
        return found
    operation_type: Any = type(operation)
    keys = slot_keys(operation)
    if keys or getattr(operation, "every_group", False) or not op.kind(operation_type):
        return keys
    return (None,)


def slot_keys(operation: Any) -> Sequence[tuple[str, ...]]:
    """The slot keys of all that an operation touches; none for cluster-wide ones."""
    if hasattr(operation, "places"):
        return [key for key in operation.places() if key is not None]
    if hasattr(operation, "slot_keys"):
        keys: Sequence[tuple[str, ...]] = operation.slot_keys()
        return keys
    if hasattr(operation, "slot_key"):
        key = operation.slot_key()
        return () if key is None else (key,)
    return ()


def goes_everywhere(operation: Any) -> bool:
    """Whether it is for every group of its kind, because it has no place of its own."""
    if not getattr(operation, "every_group", False) or hasattr(operation, "places"):
        return False
    return not slot_keys(operation)


def owned_by(db: Tables, kind: str) -> Owned | None:
    """What this group owns of its kind; None as long as nobody has told it. Read once an entry."""
    place = _OWNED + kind
    if place not in db.memo:
        db.memo[place] = db.get(OWNED, kind)
    found: Owned | None = db.memo[place]
    return found


def check_owned(db: Tables, kind: str, operation: Any) -> None:
    """Raise WrongShard when this group does not own a slot that the operation touches."""
    owned = owned_by(db, kind)
    if owned is None:
        return
    for key in dict.fromkeys(slot_keys(operation)):
        slot = slot_of(key)
        if not any(each.first <= slot <= each.last for each in owned.ranges):
            raise WrongShard(f"slot {slot} of {kind} lives in another group", owned.version)


def owned_version(db: Tables, kind: str) -> int:
    """The version of the slot map that this group goes by; 0 for the trivial one."""
    owned = owned_by(db, kind)
    return owned.version if owned is not None else 0


@dataclass(frozen=True, slots=True)
class SlotMap:
    """A client's copy of the slot map: for each kind its version and ranges."""

    version: int = 0
    ranges: dict[str, tuple[SlotRange, ...]] = field(default_factory=dict)

    def group_of(self, kind: str, key: tuple[str, ...] | None) -> str:
        """The group of a kind that owns a slot key; None is cluster-wide, group 0."""
        if key is not None:
            slot = slot_of(key)
            for each in self.ranges.get(kind, ()):
                if each.first <= slot <= each.last:
                    return each.group
        return f"{kind}-0"

    def owns(self, group: str, operation: Any) -> bool:
        """Whether a group has every slot that an operation touches."""
        kind = op.home(operation)
        return all(self.group_of(kind, key) == group for key in slot_keys(operation))

    def only_group(self, operation_type: Any) -> str:
        """The group of all operations of this class, if their kind has but one."""
        kind = op.kind(operation_type)
        return f"{kind}-0" if kind and kind not in self.ranges else ""

    def groups(self, kind: str) -> list[str]:
        """The groups of a kind, by number."""
        found = {each.group for each in self.ranges.get(kind, ())} or {f"{kind}-0"}
        return sorted(found, key=lambda group: (len(group), group))

    def route(self, operation: Any) -> list[tuple[str, Any]]:
        """The groups an operation belongs to, with the part for each, groups in order.

        Raises Invalid for one that the caller has to name a group for.
        """
        kind = op.home(operation)
        if not kind:
            raise Invalid(f"{op.tag(operation)}: name the group; it belongs to every kind")
        if hasattr(operation, "places"):
            return [(self._one_group(kind, operation), operation)]
        if goes_everywhere(operation):
            return self._everywhere(kind, operation)
        keys = slot_keys(operation)
        if kind not in self.ranges or len(keys) <= 1:
            return [(self.group_of(kind, keys[0] if keys else None), operation)]
        owners = {key: self.group_of(kind, key) for key in dict.fromkeys(keys)}
        parts: defaultdict[str, list[int]] = defaultdict(list)
        for index, key in enumerate(keys):
            parts[owners[key]].append(index)
        if len(parts) == 1:
            return [(next(iter(parts)), operation)]
        return [
            (group, operation.select(parts[group])) for group in self.groups(kind) if group in parts
        ]

    def _one_group(self, kind: str, operation: Any) -> str:
        """The one group of an operation that is done whole. Invalid when it has places in more."""
        found = sorted({self.group_of(kind, key) for key in operation.places()})
        if len(found) > 1:
            said = ", ".join(found)
            raise Invalid(f"{op.tag(operation)}: one group is wanted, its rows lie in {said}")
        return found[0] if found else self.group_of(kind, None)

    def _everywhere(self, kind: str, operation: Any) -> list[tuple[str, Any]]:
        groups = self.groups(kind)
        if len(groups) == 1:
            return [(groups[0], operation)]
        if hasattr(operation, "after"):
            return op.split_page(operation, groups)
        if hasattr(operation, "join"):
            return [(group, operation) for group in groups]
        raise Invalid(f"{op.tag(operation)}: name the group; {kind} has {len(groups)}")
