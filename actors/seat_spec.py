"""What a seat is to be."""

from __future__ import annotations

from dataclasses import dataclass

from actors.config import FIRST_GROUP, RaftSettings
from actors.seat_names import is_learner, kind_of


@dataclass(frozen=True, slots=True)
class SeatSpec:
    """What a seat is told when its actor is made; the same after every restart of the actor."""

    group: str
    seat: str
    seats: tuple[str, ...]
    settings: RaftSettings
    groups: tuple[str, ...] = ()  #: all that the cluster was started with, for the controller

    @property
    def kind(self) -> str:
        """What the group keeps: metadata, offset or mqtt."""
        return kind_of(self.group)

    @property
    def learner(self) -> bool:
        """Whether what sits here never votes."""
        return is_learner(self.seat)

    @property
    def keeps_controller(self) -> bool:
        """Whether the controller is to stand beside it while it leads."""
        return self.group == FIRST_GROUP and not self.learner
