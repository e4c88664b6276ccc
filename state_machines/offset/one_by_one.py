"""Commits of offsets that have to be looked at one after the other.

`Guard` says which are refused, where a group is fenced or a commit expects an offset. `OneByOne`
makes the rows of those that ask for more than new numbers in a row: the first of a partition, one
whose predecessor goes into the history, and all of a batch that is guarded or that names a
partition twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from state_machines.errors import Conflict, Fenced
from state_machines.keyvalue import Part
from state_machines.offset import rows
from state_machines.offset.history import Keeper
from state_machines.offset.rows import LAYOUT, NO_GENERATION, NO_LEADER_EPOCH, Group
from state_machines.tables import Tables

if TYPE_CHECKING:
    from state_machines.offset.offset import CommitOffsets, MoreColumns

ABSENT: Final = -1  #: what a commit expects where there is no offset yet
REFUSED: Final = b""  #: in the place of the row that a commit would have written


class Guard:
    """Looks at the commits of a batch one by one, and notes which are refused."""

    def __init__(self, asked: MoreColumns, fenced: Mapping[str, Group]) -> None:
        self.accepted = 0
        self._fenced = fenced  # the groups that are, by name
        self._asked = zip(
            asked.expected or repeat(None),
            asked.generations or repeat(NO_GENERATION),
            asked.members or repeat(""),
            strict=False,
        )
        self._place = 0
        #: place, code and detail of what was refused so far
        self.refused: list[tuple[int, str, str]] = []

    def refuses(self, group: str, offset: int) -> bool:
        """Whether the next commit is refused, where `offset` is now."""
        expected, generation, member = next(self._asked)
        place, self._place = self._place, self._place + 1
        error = self._error(group, offset, expected, generation, member)
        if error is None:
            self.accepted += 1
            return False
        self.refused.append((place, *error))
        return True

    def _error(
        self, group: str, offset: int, expected: int | None, generation: int, member: str
    ) -> tuple[str, str] | None:
        in_force, holder = NO_GENERATION, ""
        if (known := self._fenced.get(group)) is not None:
            if known.state != rows.LIVE:
                return Conflict.code, "group: it is being deleted"
            in_force, holder = known.generation, known.member
        if generation != in_force:
            return Fenced.code, f"generation: {generation}, in force is {in_force}"
        if holder and member != holder:
            return Fenced.code, "member: another one holds the generation"
        if expected is not None and expected != offset:
            return Conflict.code, f"expected: {expected}, the offset is {offset}"
        return None


class OneByOne:
    """Commits that ask for more than new words in a row. Rows are plain values here."""

    def __init__(
        self,
        asked: CommitOffsets,
        db: Tables,
        now_ms: int,
        guard: Guard | None,
    ) -> None:
        #: how many partitions are new, by group
        self.new: dict[str, int] = {}
        #: groups with a partition that is new in this hour
        self.late: dict[str, int] = {}
        self._asked = asked
        self._db = db
        self._now_ms = now_ms
        self._hour_ms = now_ms - now_ms % rows.BUCKET_MS
        self._guard = guard
        self._keeper: Keeper | None = None
        # What this batch has written, if it names a partition twice.
        self._again: dict[tuple[Part, ...], bytes] = {}

    def commit(self, place: int, key: tuple[Part, ...], stored: bytes | None) -> bytes:
        """The row after the commit at this place of the batch, or `REFUSED`."""
        asked, guard, now_ms = self._asked, self._guard, self._now_ms
        group, offset = asked.groups[place], asked.offsets[place]
        note = asked.metadata[place] if asked.metadata else ""
        epochs = asked.more.leader_epochs if asked.more is not None else ()
        epoch = epochs[place] if epochs else NO_LEADER_EPOCH
        old = self._again.get(key, stored)
        if old is None:
            if guard is not None and guard.refuses(group, ABSENT):
                return REFUSED
            self.new[group] = self.new.get(group, 0) + 1
            values: list[Any] = [*key, offset, note, 1, now_ms, now_ms, epoch, 0, 0, 0]
        else:
            _, values = LAYOUT.unpack(old)
            if guard is not None and guard.refuses(group, values[rows.OFFSET]):
                return REFUSED
            if values[rows.KEEP_MS] <= now_ms:
                if values[rows.COMMIT_MS] < self._hour_ms:
                    self.late[group] = 1
                self._keeper = self._keeper or Keeper(self._db, now_ms)
                self._keeper.keep(key, values)
            values[rows.OFFSET] = offset
            values[rows.METADATA] = note
            values[rows.COMMITS] += 1
            values[rows.COMMIT_MS] = now_ms
            values[rows.LEADER_EPOCH] = epoch
        written = self._again[key] = LAYOUT.pack(self._db.pack, self._db.revision, values)
        return written
