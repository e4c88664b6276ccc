"""The controller's duties: one file each, which observes, plans and acts.

What is to be done is decided by the pure planner of the same name in `actors/planners`; when a duty
runs, and what becomes of its errors, is the business of `actors/controller.py`. A new duty is a
file here and a line in `DUTIES`.
"""

from __future__ import annotations

from actors.duties.advice import Advices
from actors.duties.connectors import Connectors
from actors.duties.duty import Context, Duty
from actors.duties.failover import Failover
from actors.duties.leases import Leases
from actors.duties.liveness import Liveness
from actors.duties.offsets import Offsets
from actors.duties.orders import Orders
from actors.duties.quotas import Quotas
from actors.duties.rebalance import Rebalance
from actors.duties.repair import Repair
from actors.duties.schedules import Schedules
from actors.duties.sessions import Sessions
from actors.duties.share_groups import ShareBrokers, ShareMembers
from actors.duties.slots import Slots
from actors.duties.storage import Storage
from actors.duties.tenants import Tenants
from actors.duties.timers import Timers

DUTIES: tuple[type[Duty], ...] = (
    Liveness,
    Failover,
    Rebalance,
    Storage,
    Timers,
    Leases,
    Offsets,
    Connectors,
    Sessions,
    ShareBrokers,
    ShareMembers,
    Quotas,
    Tenants,
    Schedules,
    Advices,
    Repair,
    Slots,
)
"""All there are, in the order in which they are shown."""

__all__ = ["DUTIES", "Context", "Duty", "Orders"]
