"""The session row, and who may write to what hangs on it. Commands are in `session.py`.

The epoch is a number from `Tables.unique`, so every takeover raises it, also over a session that
ended and began anew, also within one entry: a broker that holds an older one is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from state_machines.errors import Fenced, NotFound
from state_machines.repair import clamp
from state_machines.tables import Table, Tables

NEVER_S: Final = 0xFFFFFFFF
"""An expiry of this many seconds means never (MQTT 5, 3.1.2.11.2)."""


@dataclass(frozen=True, slots=True)
class Session:
    """A client's session. Times are the group's, Unix milliseconds; 0 stands for not (yet), and a
    `connected_ms` of 0 for one that a command has ended: it counts no more, and a pulse takes it.
    """

    tenant: str
    client_id: str
    broker: str
    epoch: int
    connected: bool
    expiry_s: int
    created_ms: int
    connected_ms: int
    disconnected_ms: int
    expires_ms: int

    subscriptions: int

    def over(self, now_ms: int) -> bool:
        """Whether its time is over: whoever opens it begins a new one."""
        return 0 < self.expires_ms <= now_ms

    @property
    def counts(self) -> bool:
        """Whether it is one of its tenant's."""
        return self.connected_ms != 0


@dataclass(frozen=True, slots=True)
class SessionTally:
    """How many sessions a tenant has in this group, and how many of them are connected. One whose
    time has run out is among them until a pulse ends it."""

    tenant: str
    sessions: int
    connected: int


TALLIES: Final = Table("mqtt.session_tally", SessionTally, key=("tenant",))
SESSIONS: Final = Table(
    "mqtt.session", Session, key=("tenant", "client_id"), identity_field="epoch"
)


def held(db: Tables, tenant: str, client_id: str, epoch: int) -> Session:
    """The session, if the caller's epoch is the one in force. NotFound, or Fenced."""
    session = db.get(SESSIONS, tenant, client_id)
    if session is None:
        raise NotFound("client_id: there is no such session")
    if epoch != session.epoch:
        raise Fenced(f"epoch: {epoch}, in force is {session.epoch}")
    return session


def put_session(db: Tables, before: Session | None, session: Session) -> None:
    """Set the session that was `before`, and keep the tally."""
    _tally(db, session.tenant, before, session)
    db.put(SESSIONS, session)


def delete_session(db: Tables, session: Session) -> None:
    """Remove the session, and keep the tally."""
    _tally(db, session.tenant, session, None)
    db.delete(SESSIONS, session.tenant, session.client_id)


def _tally(db: Tables, tenant: str, before: Session | None, after: Session | None) -> None:
    more = (after is not None and after.counts) - (before is not None and before.counts)
    connected = (after is not None and after.connected) - (before is not None and before.connected)
    count_sessions(db, tenant, more, connected)


def count_sessions(db: Tables, tenant: str, more: int, connected: int) -> None:
    """There are so many more sessions, so many more of them connected."""
    if more or connected:
        old = db.get(TALLIES, tenant) or SessionTally(tenant, 0, 0)
        sessions = clamp(db, TALLIES, (tenant,), "sessions", old.sessions + more)
        connected = clamp(db, TALLIES, (tenant,), "connected", old.connected + connected)
        db.put(TALLIES, SessionTally(tenant, sessions, connected))
