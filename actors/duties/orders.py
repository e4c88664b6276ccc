"""What operators have said is read: which duties are paused.

It is a duty like the others, and the first: until it has run once no other begins, so that a new
controller never does what its predecessor had been told to leave. It cannot be paused itself.
"""

from __future__ import annotations

from typing import ClassVar

from actors.duties.duty import Context, Duty
from state_machines.metadata.duty import ListPauses, Pause


class Orders(Duty):
    """Read which duties are paused, and until when."""

    name: ClassVar[str] = "orders"
    interval: ClassVar[str] = "order_check_ms"

    def __init__(self) -> None:
        #: whether it was ever read
        self.read = False
        #: duty -> its pause, as read last
        self.pauses: dict[str, Pause] = {}

    async def step(self, context: Context) -> int:
        """What cannot be read stays as it was read last."""
        pauses = await context.caller.call(ListPauses())
        self.pauses = {each.duty: each for each in pauses}
        self.read = True
        return 0
