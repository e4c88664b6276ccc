"""What a tenant may open: how many sessions it has, and how many it opens in a second.

`admit` is asked before the first session of a command is touched, because `session.open_all` writes
for good. Of a tenant without a quota row it costs one look into a dict a command; only where all of
them would pass a limit on sessions does it look for each of them, to know which are new.
"""

from __future__ import annotations

from collections.abc import Sequence

from state_machines import quota
from state_machines.mqtt.sessions import SESSIONS, TALLIES
from state_machines.op import Stamp
from state_machines.tables import Tables


def admit(db: Tables, at: Stamp, tenant: str, client_ids: Sequence[str]) -> None:
    """Raise QuotaExceeded unless the tenant may open all of these now. Asked once a command.

    Whoever has a session already may open it again at the limit: it is none more.
    """
    limits = quota.of(db, tenant)
    if limits is None:
        return
    if limits.sessions:
        tally = db.get(TALLIES, tenant)
        have = tally.sessions if tally is not None else 0
        if have + len(client_ids) > limits.sessions:
            found = [db.get(SESSIONS, tenant, each) for each in dict.fromkeys(client_ids)]
            more = sum(each is None or not each.counts for each in found)
            if more:
                quota.check_count(limits, quota.SESSIONS, have + more)
    quota.take(db, at, limits, quota.SESSION_OPENS, len(client_ids))
