"""How sessions begin and end, and what becomes of what hangs on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress, repeat
from operator import itemgetter, not_
from typing import Any, Final

from state_machines import packing
from state_machines.mqtt import due, share_group, subscription, will
from state_machines.mqtt.sessions import (
    SESSIONS,
    Session,
    count_sessions,
    delete_session,
    put_session,
)
from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.tables import Tables

_PLACES: Final = packing.field_names(Session)
_EXPIRY_S: Final = _PLACES.index("expiry_s")
_EXPIRES_MS: Final = _PLACES.index("expires_ms")
_KEPT: Final = itemgetter(*map(_PLACES.index, ("connected", "created_ms", "subscriptions")))
"""What a session that is opened again keeps, or has to be asked for."""
_NONE: Final = [0] * len(_PLACES)
"""The values of a session that is not there."""


def open_all(
    db: Tables,
    at: Stamp,
    tenants: Sequence[str],
    client_ids: Sequence[str],
    brokers: Sequence[str],
    expiry_s: Sequence[int],
    clean_starts: Sequence[bool],
) -> tuple[list[int], list[bool]]:
    """Open sessions, said in columns; the epoch of each, and whether it was there before.

    In the usual case, a new session or one without a will that is opened again and goes on, rows
    are columns of plain values and the tally is settled once a tenant: it is what a reconnect storm
    is made of.
    """
    keys = tuple(zip(tenants, client_ids, strict=True))
    if len(set(keys)) < len(keys):  # of one that comes twice the second takes over from the first
        items = zip(keys, brokers, expiry_s, clean_starts, strict=True)
        each = [
            open_all(db, at, key[:1], key[1:], (broker,), (expires_s,), (clean_start,))
            for key, broker, expires_s, clean_start in items
        ]
        return [epoch for (epoch,), _ in each], [present for _, (present,) in each]
    before = db.store.get_many(SESSIONS.name, keys)
    wills = db.store.get_many(will.WILLS.name, keys)
    unpack = packing.unpack_values
    there = [_NONE if old is None else unpack(old)[1] for old in before]
    present = [old is not None for old in before]
    epochs: list[int] = []
    usual = [True] * len(keys)
    for place, (old, clean_start, last_will) in enumerate(
        zip(there, clean_starts, wills, strict=True)
    ):
        if old is not _NONE and (
            clean_start or old[_EXPIRES_MS] or last_will is not None or not old[_EXPIRY_S]
        ):
            # In the order of the places, as if they were opened one by one.
            epochs += db.unique_many(place - len(epochs))
            epoch, present[place] = _open(
                db, at, *keys[place], brokers[place], expiry_s[place], clean_start
            )
            epochs.append(epoch)
            usual[place] = False
    epochs += db.unique_many(len(keys) - len(epochs))
    if all(usual):
        _settle_usual(db, at, keys, there, brokers, epochs, expiry_s)
    else:
        columns: Any = [
            tuple(compress(each, usual)) for each in (keys, there, brokers, epochs, expiry_s)
        ]
        _settle_usual(db, at, *columns)
    return epochs, present


def _settle_usual(
    db: Tables,
    at: Stamp,
    keys: tuple[tuple[str, str], ...],
    there: Sequence[Sequence[Any]],
    brokers: Sequence[str],
    epochs: Sequence[int],
    expiry_s: Sequence[int],
) -> None:
    """These sessions are connected now; `there` has the values of those that were there, without
    a will or a time at which they expire, and `_NONE` of the new ones."""
    if not keys:
        return
    tenants, client_ids = zip(*keys, strict=True)
    connected, created, subscriptions = zip(*map(_KEPT, there), strict=True)
    is_new, now_ms, count = [old is _NONE for old in there], at.now_ms, len(keys)
    columns: dict[str, Sequence[Any]] = {
        "tenant": tenants,
        "client_id": client_ids,
        "broker": brokers,
        "epoch": epochs,
        "connected": (True,) * count,
        "expiry_s": expiry_s,
        "created_ms": [now_ms if new else each for new, each in zip(is_new, created, strict=True)],
        "connected_ms": (now_ms,) * count,
        "disconnected_ms": (0,) * count,
        "expires_ms": (0,) * count,
        "subscriptions": subscriptions,
    }
    rows = zip(*[columns[name] for name in _PLACES], strict=True)
    settled = list(map(db.pack, zip(repeat(db.revision), rows)))
    db.settle_many(SESSIONS.name, keys, settled)
    more = Counter(compress(tenants, is_new))
    for tenant, woken in Counter(compress(tenants, map(not_, connected))).items():
        count_sessions(db, tenant, more[tenant], woken)


def _open(
    db: Tables,
    at: Stamp,
    tenant: str,
    client_id: str,
    broker: str,
    expiry_s: int,
    clean_start: bool,
) -> tuple[int, bool]:
    """The same of one session, whatever hangs on it."""
    old = db.get(SESSIONS, tenant, client_id)
    # One without an expiry ends with its connection, which this one closes (MQTT 5, 3.1.2.11.2).
    if old is not None and (clean_start or not old.expiry_s or 0 < old.expires_ms <= at.now_ms):
        end(db, at, old)
        old = None
    if old is not None:
        _settle_will(db, at, old)
        due.disarm(db, old.expires_ms, due.SESSION, tenant, client_id)
    epoch = db.unique()
    put_session(
        db,
        old,
        Session(
            tenant=tenant,
            client_id=client_id,
            broker=broker,
            epoch=epoch,
            connected=True,
            expiry_s=expiry_s,
            created_ms=old.created_ms if old is not None else at.now_ms,
            connected_ms=at.now_ms,
            disconnected_ms=0,
            expires_ms=0,
            subscriptions=old.subscriptions if old is not None else 0,
        ),
    )
    return epoch, old is not None


def _settle_will(db: Tables, at: Stamp, old: Session) -> None:
    """A client that comes back in time cancels its will (MQTT 5, 3.1.3.2.2).

    It is sent all the same if it was due before, though no pulse has seen it yet, or if this
    takeover closes a connection whose will has no delay (MQTT 5, 3.1.4).
    """
    pending = db.get(will.WILLS, old.tenant, old.client_id)
    if pending is None:
        return
    if 0 < pending.due_ms <= at.now_ms or (old.connected and pending.delay_s == 0):
        will.fire(db, at, pending, old.broker)
    else:
        will.cancel(db, pending)


def end(db: Tables, at: Stamp, session: Session) -> None:
    """The session is over: its will fires, and it goes with all that hangs on it."""
    pending = db.get(will.WILLS, session.tenant, session.client_id)
    if pending is not None:
        will.fire(db, at, pending, session.broker)
    subscription.remove_all(db, session.tenant, session.client_id)
    share_group.leave_all(db, at, session.tenant, session.client_id)
    due.disarm(db, session.expires_ms, due.SESSION, session.tenant, session.client_id)
    delete_session(db, session)


@remover(SESSIONS)
def _remove(db: Tables, at: Stamp, session: Session) -> None:
    """As at its end, but nothing is said for it."""
    pending = db.get(will.WILLS, session.tenant, session.client_id)
    if pending is not None:
        will.cancel(db, pending)
    end(db, at, session)
