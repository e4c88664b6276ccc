"""Commands that carry many items of one entity: one entry, and an outcome for each item.

    @command("metadata.schema.delete")
    class DeleteSchemas(Batch):
        tenant: str = names.DEFAULT_TENANT
        items: tuple[SchemaName, ...]

        def slot_key_of(self, item: SchemaName) -> tuple[str, ...]: ...

        def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
            return each(db, self.items, lambda item: self._delete(db, item))

An item that is refused changes nothing and keeps nobody else from happening. A cluster-wide entity
leaves `slot_key_of` as it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final, Self, TypeVar

from state_machines import op
from state_machines.budgets import BYTES_CHANGED_MAX, BYTES_TAKEN_MAX, too_much
from state_machines.errors import BY_CODE, Rejected
from state_machines.tables import Tables

T = TypeVar("T")

OK: Final = "OK"


class Revision(int):
    """What an item's row has now, returned by who sets it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one item: OK and the revision its row has now, or a refusal's code and why."""

    code: str
    detail: str
    revision: int

    @property
    def ok(self) -> bool:
        """Whether it happened."""
        return self.code == OK

    def or_raise(self) -> Self:
        """Itself, or the refusal as the error that it stands for."""
        if not self.ok:
            raise BY_CODE[self.code](self.detail)
        return self


def each(
    db: Tables,
    items: Iterable[T],
    act: Callable[[T], object],
    *,
    large: str = "",
    changed: str = "",
) -> tuple[Outcome, ...]:
    """Do `act` for every item, in order. What it raises as `Rejected` takes that item back.

    The revision in the outcome is the entry's, or the `Revision` that `act` returns. `large`: the
    field of items that only name rows, which may be large: about `BYTES_TAKEN_MAX` of these are
    changed in one command, and items after that are QuotaExceeded. `changed`: the same, of items
    that write rows anew: `BYTES_CHANGED_MAX`.
    """
    field, limit = (large, BYTES_TAKEN_MAX) if large else (changed, BYTES_CHANGED_MAX)
    outcomes = []
    for item in items:
        try:
            if field and db.taken >= limit:
                raise too_much(field)
            with db.part():
                made = act(item)
        except Rejected as error:
            made = error
        outcomes.append(outcome(db, made))
    return tuple(outcomes)


def outcome(db: Tables, made: object) -> Outcome:
    """What is said of an item: a `Rejected`, or what else its doing came to."""
    if isinstance(made, Rejected):
        return Outcome(made.code, made.detail, 0)
    return Outcome(OK, "", int(made) if type(made) is Revision else db.revision)


class Batch:
    """What such commands share: how their items part over groups, and how the outcomes join.

    The items are the field that `many` names; the reply has one answer for each, in order.
    """

    __slots__ = ()

    many: ClassVar[str] = "items"

    def slot_key_of(self, item: Any) -> tuple[str, ...] | None:
        """What the group of an item is chosen by; None is cluster-wide."""
        return None

    def slot_keys(self) -> list[tuple[str, ...]]:
        """One for each item, or none for a cluster-wide entity."""
        keys = [self.slot_key_of(each) for each in getattr(self, self.many)]
        return [key for key in keys if key is not None]

    def select(self, indexes: Sequence[int]) -> Self:
        """The items at these places."""
        items = getattr(self, self.many)
        picked = tuple([items[index] for index in indexes])
        return dataclasses.replace(self, **{self.many: picked})  # type: ignore[type-var]

    def join(self, parts: Sequence[Self], replies: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
        """One reply for items that went to several groups, in the order asked."""
        return op.in_order(
            getattr(self, self.many),
            [
                answer
                for part, reply in zip(parts, replies, strict=True)
                for answer in zip(getattr(part, self.many), reply, strict=True)
            ],
        )
