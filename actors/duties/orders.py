"""What operators have said is read: which duties are paused, and which settings hold now.

It is a duty like the others, and the first: until it has run once no other begins, so that a new
controller never does what its predecessor had been told to leave. It cannot be paused itself.
"""

from __future__ import annotations

from typing import ClassVar

from actors.duties.duty import PAGE, Context, Duty
from state_machines.metadata.config import CLUSTER, ListConfigs, value_of
from state_machines.metadata.duty import ListPauses, Pause


class Orders(Duty):
    """Read which duties are paused, and what was set for the cluster."""

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
        configured = await context.rows(ListConfigs(scope=CLUSTER, limit=PAGE))
        values = {each.key: value_of(each) for each in configured}
        context.configured = {key: each for key, each in values.items() if each is not None}
        self.pauses = {each.duty: each for each in pauses}
        self.read = True
        return 0
