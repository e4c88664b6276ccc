"""How sessions and what hangs on them come back from a backup.

A restored session is disconnected, under an epoch above every one before: a broker that held it is
fenced, and its client opens it again. The time until it ends begins anew, with `GRACE_S` at least,
for it is not the client's doing that it was away. The same goes for its will: one whose expiry is 0
is there for that alone, and not resumed. Its subscriptions are counted as they are put. Members of
shared subscriptions join again, so their groups get a leader as they first did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from state_machines import names, quota
from state_machines.errors import NotFound, QuotaExceeded
from state_machines.mqtt import due, session, share_rows, will
from state_machines.mqtt.session_life import MS
from state_machines.mqtt.sessions import NEVER_S, SESSIONS, TALLIES, Session, put_session
from state_machines.mqtt.share_group import JoinShareGroups, ShareJoin
from state_machines.mqtt.share_rows import MEMBERS, Ledger, ShareMember
from state_machines.mqtt.subscription import (
    SUBSCRIPTIONS,
    SUBSCRIPTIONS_MAX,
    PutSubscriptions,
    Subscription,
    TopicFilter,
)
from state_machines.mqtt.will import WILLS, SetWill, Will
from state_machines.op import Stamp
from state_machines.restoring import GRACE_S, left_out, restorer
from state_machines.tables import Tables

OF_SESSION: Final = 1  #: the rank of what hangs on one

left_out("made from the sessions", TALLIES)
left_out(
    "made from the members",
    share_rows.GROUPS,
    share_rows.OF_CLIENT,
    share_rows.OF_BROKER,
    share_rows.LEADS,
    share_rows.BROKERS,
)


def _check_session(row: Session) -> None:
    names.tenant(row.tenant)
    session.check_columns((row.client_id,), (row.broker,), (row.expiry_s,))


def _plain_session(row: Session) -> Session:
    return replace(
        row,
        broker="",
        epoch=0,
        connected=False,
        connected_ms=0,
        disconnected_ms=0,
        expires_ms=0,
        subscriptions=0,
    )


@restorer(SESSIONS, check=_check_session, plain=_plain_session)
def _session(db: Tables, at: Stamp, before: Session | None, row: Session) -> None:
    if before is not None:
        due.disarm(db, before.expires_ms, due.SESSION, row.tenant, row.client_id)
    if before is None or not before.counts:
        _admit(db, row.tenant)
    lives_s = max(row.expiry_s, GRACE_S)
    expires_ms = 0 if row.expiry_s == NEVER_S else at.now_ms + lives_s * MS
    now = replace(
        row,
        epoch=db.unique(),
        connected=False,
        connected_ms=row.connected_ms or at.now_ms,
        disconnected_ms=at.now_ms,
        expires_ms=expires_ms,
        subscriptions=before.subscriptions if before is not None else 0,
    )
    put_session(db, before, now)
    if expires_ms:
        due.arm(db, expires_ms, due.SESSION, row.tenant, row.client_id)
    pending = db.get(WILLS, row.tenant, row.client_id)
    if pending is not None and not pending.due_ms:
        will.arm(db, pending, _said_ms(at, now, pending))


def _admit(db: Tables, tenant: str) -> None:
    limits = quota.of(db, tenant)
    tally = db.get(TALLIES, tenant) if limits is not None else None
    quota.check_count(limits, quota.SESSIONS, 1 + (tally.sessions if tally is not None else 0))


def _said_ms(at: Stamp, of: Session, pending: Will) -> int:
    """When the will of a session that has just come back is said: not before its client could."""
    return at.now_ms + max(min(pending.delay_s, of.expiry_s), GRACE_S) * MS


def _check_will(row: Will) -> None:
    SetWill(
        tenant=row.tenant,
        client_id=row.client_id,
        epoch=0,
        topic=row.topic,
        payload=row.payload,
        qos=row.qos,
        retain=row.retain,
        delay_s=row.delay_s,
        expiry_s=row.expiry_s,
        properties=row.properties,
    ).validate()


@restorer(WILLS, check=_check_will, rank=OF_SESSION, plain=lambda row: replace(row, due_ms=0))
def _will(db: Tables, at: Stamp, before: Will | None, row: Will) -> None:
    owner = _owner(db, row.tenant, row.client_id)
    if before is not None:
        due.disarm(db, before.due_ms, due.WILL, row.tenant, row.client_id)
    if owner.connected:
        db.put(WILLS, replace(row, due_ms=0))
    else:
        will.arm(db, row, _said_ms(at, owner, row))


def _owner(db: Tables, tenant: str, client_id: str) -> Session:
    owner = db.get(SESSIONS, tenant, client_id)
    if owner is None:
        raise NotFound("client_id: there is no such session")
    return owner


def _check_subscription(row: Subscription) -> None:
    wanted = TopicFilter(filter=row.filter, qos=row.qos, retain_handling=row.retain_handling)
    PutSubscriptions(
        tenant=row.tenant,
        client_id=row.client_id,
        epoch=0,
        filters=(wanted,),
        subscription_id=row.subscription_id,
    ).validate()


@restorer(SUBSCRIPTIONS, check=_check_subscription, rank=OF_SESSION)
def _subscription(db: Tables, at: Stamp, before: Subscription | None, row: Subscription) -> None:
    owner = _owner(db, row.tenant, row.client_id)
    if before is None:
        if owner.subscriptions >= SUBSCRIPTIONS_MAX:
            raise QuotaExceeded(f"filter: the session has {SUBSCRIPTIONS_MAX}, the limit")
        db.put(SESSIONS, replace(owner, subscriptions=owner.subscriptions + 1))
    db.put(SUBSCRIPTIONS, row)


def _check_member(row: ShareMember) -> None:
    item = ShareJoin(
        name=row.name,
        client_id=row.client_id,
        filter=row.filter,
        qos=row.qos,
        session_created_ms=row.session_created_ms,
    )
    JoinShareGroups(tenant=row.tenant, broker=row.broker, items=(item,)).validate()


@restorer(
    MEMBERS,
    check=_check_member,
    rank=OF_SESSION,
    plain=lambda row: replace(row, broker="", member_id=0),
)
def _member(db: Tables, at: Stamp, before: ShareMember | None, row: ShareMember) -> None:
    ledger = Ledger(db, at)
    ledger.join(replace(row, member_id=db.unique()))
    ledger.close()
