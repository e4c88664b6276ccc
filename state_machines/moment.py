"""What the time is in a group, for whoever has to tell what is due there."""

from __future__ import annotations

from typing import ClassVar

from state_machines.op import Stamp, query
from state_machines.tables import Tables


@query("group.time")
class GetTime:
    """The time of the group that is named, Unix milliseconds: leases, brokers, sessions and wills
    end by it. It may be off from every wall clock."""

    single_row: ClassVar[bool] = True

    def read(self, db: Tables, at: Stamp) -> int:
        """As it would be stamped now."""
        return at.now_ms
