"""How rows of an `mqtt` group are put right: see `state_machines.repair`.

An index row that is set or taken back moves no count: those follow the rows that are indexed.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

from state_machines import quota
from state_machines.errors import Conflict
from state_machines.mqtt import connectors, due, sessions, share_rows, will
from state_machines.mqtt.blacklist import BLACKLIST
from state_machines.mqtt.connectors import BEATS, CHECKS, CONNECTORS, LOADS, PLACES, RUNNING
from state_machines.mqtt.retained import RETAINED
from state_machines.mqtt.sessions import SESSIONS
from state_machines.mqtt.share_rows import BROKERS, GROUPS, LEADS, MEMBERS, OF_BROKER, OF_CLIENT
from state_machines.mqtt.subscription import SUBSCRIPTIONS
from state_machines.mqtt.will import FREE, OF_TENANT, OUTBOX, WILLS
from state_machines.op import Stamp
from state_machines.repair import clamp, counted, let, repairs
from state_machines.tables import Tables

MEMBERS_MAX = 10_000  #: of a group that is made again: they are counted in one command

counted(sessions.TALLIES, "sessions", "connected", kept=True)
counted(SESSIONS, "subscriptions", made=False)
counted(LOADS, "running")
counted(BROKERS, "members", "leads")
counted(GROUPS, "members", made=False)
counted(quota.USAGES, "count")


@repairs(SUBSCRIPTIONS)
def _subscription(db: Tables, at: Stamp, key: tuple[str, str, str]) -> bool:
    """One that no session has goes; no session counts it."""
    return db.get(SESSIONS, *key[:2]) is None and db.delete(SUBSCRIPTIONS, *key)


@repairs(WILLS)
def _will(db: Tables, at: Stamp, key: tuple[str, str]) -> bool:
    """One that no session has is void."""
    row = db.get(WILLS, *key)
    if row is None or db.get(SESSIONS, *key) is not None:
        return False
    will.cancel(db, row)
    return True


@repairs(OUTBOX)
def _outbox(db: Tables, at: Stamp, key: tuple[int]) -> bool:
    """What has expired is not said any more (MQTT 5, 3.3.2.3.3), and goes."""
    row = db.get(OUTBOX, *key)
    if row is None or not 0 < row.expires_ms <= at.now_ms or row.claimed_until_ms > at.now_ms:
        return False
    will.forget(db, row)
    return True


@repairs(OF_TENANT)
def _of_tenant(db: Tables, at: Stamp, key: tuple[str, int]) -> bool:
    """What is in the outbox is found under its tenant."""
    place = will.OutboxOfTenant(*key)
    row = db.get(OUTBOX, place.outbox_id)
    return let(db, OF_TENANT, place, row is not None and row.tenant == place.tenant)


@repairs(FREE)
def _free(db: Tables, at: Stamp, key: tuple[str, int, int]) -> bool:
    """What is in the outbox is found by when it may be claimed."""
    row = db.get(OUTBOX, key[2])
    wanted = [] if row is None else [each for each in will.places(row) if FREE.key_of(each) == key]
    if not wanted:
        return db.delete(FREE, *key)
    return let(db, FREE, wanted[0], True)


@repairs(due.DUE)
def _timer(db: Tables, at: Stamp, key: tuple[int, str, str, str]) -> bool:
    """There is one for each row that says when it is due, and no other."""
    timer = due.Due(*key)
    return let(db, due.DUE, timer, bool(timer.due_ms) and _due_ms(db, timer) == timer.due_ms)


def _due_ms(db: Tables, timer: due.Due) -> int:
    """When what the timer is named after is due; 0 for what is not there."""
    match timer.kind:
        case due.WILL:
            pending = db.get(WILLS, timer.tenant, timer.name)
            return pending.due_ms if pending is not None else 0
        case due.SESSION:
            owner = db.get(SESSIONS, timer.tenant, timer.name)
            return owner.expires_ms if owner is not None else 0
        case due.RETAINED:
            message = db.get(RETAINED, timer.tenant, timer.name)
            return message.expires_ms if message is not None else 0
        case due.BLACKLIST:
            kind, _, resource = timer.name.partition("/")
            barred = db.get(BLACKLIST, timer.tenant, kind, resource)
            return barred.end_ms if barred is not None else 0
        case _:
            return 0


# -- connectors ---------------------------------------------------------------------------------


@repairs(PLACES)
def _place(db: Tables, at: Stamp, key: tuple[str, str, str, str]) -> bool:
    """A connector is found where its status and its broker say."""
    place = connectors.ConnectorPlace(*key)
    row = db.get(CONNECTORS, place.tenant, place.name)
    right = row is not None and (row.status, row.broker) == (place.status, place.broker)
    return let(db, PLACES, place, right)


@repairs(BEATS)
def _beat(db: Tables, at: Stamp, key: tuple[str, str]) -> bool:
    """Who runs a connector is listened to, from now on if nobody was; and nobody else is."""
    row, beat = db.get(CONNECTORS, *key), db.get(BEATS, *key)
    if row is None or row.status != RUNNING:
        if beat is not None:
            db.delete(CHECKS, beat.since_ms, *key)
            db.delete(BEATS, *key)
        return beat is not None
    if beat is None or (beat.broker, beat.epoch) != (row.broker, row.epoch):
        if beat is not None:
            db.delete(CHECKS, beat.since_ms, *key)
        beat = connectors.ConnectorBeat(*key, row.broker, row.epoch, at.now_ms, at.now_ms)
        db.put(BEATS, beat)
        db.put(CHECKS, connectors.ConnectorCheck(beat.since_ms, *key))
        return True
    return let(db, CHECKS, connectors.ConnectorCheck(beat.since_ms, *key), True)


@repairs(CHECKS)
def _check(db: Tables, at: Stamp, key: tuple[int, str, str]) -> bool:
    """A connector is looked at where its beat says, and nowhere else."""
    check = connectors.ConnectorCheck(*key)
    beat = db.get(BEATS, check.tenant, check.name)
    return let(db, CHECKS, check, beat is not None and beat.since_ms == check.since_ms)


# -- shared subscriptions -----------------------------------------------------------------------


@repairs(OF_CLIENT)
def _of_client(db: Tables, at: Stamp, key: tuple[str, str, str, str]) -> bool:
    """A member is found under its client."""
    row = share_rows.ShareOfClient(*key)
    member = db.get(MEMBERS, row.tenant, row.name, row.client_id, row.filter)
    return let(db, OF_CLIENT, row, member is not None)


@repairs(OF_BROKER)
def _of_broker(db: Tables, at: Stamp, key: tuple[str, str, str, str, str]) -> bool:
    """A member is found under the broker that it is with."""
    row = share_rows.ShareOfBroker(*key)
    member = db.get(MEMBERS, row.tenant, row.name, row.client_id, row.filter)
    return let(db, OF_BROKER, row, member is not None and member.broker == row.broker)


@repairs(LEADS)
def _lead(db: Tables, at: Stamp, key: tuple[str, str, str]) -> bool:
    """A group is found under its leader."""
    row = share_rows.ShareLead(*key)
    group = db.get(GROUPS, row.tenant, row.name)
    return let(db, LEADS, row, group is not None and group.leader == row.broker)


@repairs(GROUPS)
def _share_group(db: Tables, at: Stamp, key: tuple[str, str]) -> bool:
    """A group without members goes; members without a group get one, led by the first's broker.

    Conflict with more than `MEMBERS_MAX` of them.
    """
    group = db.get(GROUPS, *key)
    first = next((row for _, row, _ in db.scan(MEMBERS, *key)), None)
    if (group is None) == (first is None):
        return False
    if group is not None:
        db.delete(LEADS, group.leader, *key)
        _leads_more(db, group, -1)
        return db.delete(GROUPS, *key)
    assert first is not None
    members = sum(1 for _ in itertools.islice(db.scan(MEMBERS, *key), MEMBERS_MAX + 1))
    if members > MEMBERS_MAX:
        raise Conflict(f"key: the group has more than {MEMBERS_MAX} members")
    made = share_rows.ShareGroup(*key, first.broker, db.unique(), members, at.now_ms)
    db.put(GROUPS, replace(made, created_ms=first.joined_ms))
    let(db, LEADS, share_rows.ShareLead(first.broker, *key), True)
    _leads_more(db, made, 1)
    return True


def _leads_more(db: Tables, group: share_rows.ShareGroup, more: int) -> None:
    """As commands count it, but a count that is too low already stays what it is."""
    for tenant in (group.tenant, ""):
        row = db.get(BROKERS, tenant, group.leader) or share_rows.ShareBroker(
            tenant, group.leader, 0, 0
        )
        key = BROKERS.key_of(row)
        row = replace(row, leads=clamp(db, BROKERS, key, "leads", row.leads + more))
        if row.members or row.leads:
            db.put(BROKERS, row)
        else:
            db.delete(BROKERS, tenant, group.leader)
