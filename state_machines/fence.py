"""The controller's fence: the highest epoch that a group has seen, and no lower one (law 20).

The epoch is the term of the metadata leader that made the controller. Two controllers may be alive
at once (the old one has not noticed); from the first command of the newer one on, the older one's
are refused, in every group it speaks to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from state_machines.errors import Fenced, Invalid
from state_machines.raft.config import TERM_MAX
from state_machines.tables import Table, Tables


@dataclass(frozen=True, slots=True)
class ControllerEpoch:
    """The one row. `since_ms`: from when on this controller counts silence, by the group's time; 0
    until it has asked."""

    name: str
    epoch: int
    since_ms: int = 0


EPOCHS: Final = Table("group.controller", ControllerEpoch, key=("name",))
NAME: Final = "controller"
FIELD: Final = "controller_epoch"


def check_epoch(epoch: int) -> None:
    """Raise Invalid unless the epoch is a term."""
    if not 0 < epoch <= TERM_MAX:
        raise Invalid(f"{FIELD}: {epoch}, the range is 1 to {TERM_MAX}")


def pass_fence(db: Tables, epoch: int) -> None:
    """Raise Fenced for an epoch below the highest one seen; remember a higher one."""
    row = db.get(EPOCHS, NAME)
    seen = row.epoch if row is not None else 0
    if epoch < seen:
        raise Fenced(f"{FIELD}: {epoch}, in force is {seen}")
    if epoch > seen:
        db.put(EPOCHS, ControllerEpoch(NAME, epoch))


def counting_since(db: Tables, now_ms: int) -> int:
    """When the controller that has just passed the fence asked this for the first time, which is
    now if it never did: what was silent before may have had nobody to speak to."""
    row = db.get(EPOCHS, NAME)
    assert row is not None, "it has passed the fence"
    if not row.since_ms:
        row = replace(row, since_ms=now_ms)
        db.put(EPOCHS, row)
    return row.since_ms


def is_of_controller(error: Fenced) -> bool:
    """Whether it is the controller's epoch that is too old, and not that of a row."""
    return error.detail.startswith(f"{FIELD}: ")
