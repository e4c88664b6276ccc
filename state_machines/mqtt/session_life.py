"""How sessions begin and end, and what becomes of what hangs on them."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import compress, islice, pairwise, repeat
from operator import itemgetter, not_
from typing import Any, Final

from state_machines import packing
from state_machines.batch import Outcome, outcome
from state_machines.budgets import BYTES_CHANGED_MAX, Budget, too_much
from state_machines.errors import Invalid, QuotaExceeded, Rejected
from state_machines.mqtt import due, share_group, subscription, will
from state_machines.mqtt.properties import message_bytes
from state_machines.mqtt.sessions import (
    NEVER_S,
    SESSIONS,
    Session,
    count_sessions,
    delete_session,
    held,
    put_session,
)
from state_machines.mqtt.share_rows import OF_CLIENT
from state_machines.op import Stamp
from state_machines.removal import remover
from state_machines.tables import Tables

MS: Final = 1_000
OPEN_ROWS_MAX: Final = 20_000  #: subscriptions that end with the former sessions of a run, softly
OPEN_ROWS_EACH: Final = 10  #: for each of a batch, which is refused whole, if that is more
WILLS_READ: Final = 64  #: wills read at once: one may have more than a mebibyte
WILLS_READ_SMALL: Final = 256  #: the same, if those before were small:
WILLS_BYTES: Final = 256 << 10  #: so many bytes in all

_PLACES: Final = packing.field_names(Session)
_EPOCH: Final = _PLACES.index("epoch")
_CONNECTED: Final = _PLACES.index("connected")
_EXPIRY_S: Final = _PLACES.index("expiry_s")
_DISCONNECTED_MS: Final = _PLACES.index("disconnected_ms")
_EXPIRES_MS: Final = _PLACES.index("expires_ms")
_SUBSCRIPTIONS: Final = _PLACES.index("subscriptions")
_CREATED_MS: Final = _PLACES.index("created_ms")
_CONNECTED_MS: Final = _PLACES.index("connected_ms")
_KEPT: Final = itemgetter(_CONNECTED, _CREATED_MS, _SUBSCRIPTIONS)
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
    *,
    created: list[int] | None = None,
    partly: bool = False,
    budgets: tuple[Budget, Budget] | None = None,
) -> tuple[list[int], list[bool]]:
    """Open sessions, said in columns; the epoch of each, and whether it was there before. Since
    when each is goes into `created`, for who wants to know: it costs batches a tenth.

    In the usual case, a new session or one that is opened again, without a will, and goes on or has
    nothing that ends with it, rows are columns of plain values and the tally is settled once a
    tenant: it is what a reconnect storm is made of.

    What the sessions before them leave may be too much for one command (wills and subscriptions,
    each has a budget): then QuotaExceeded, or, `partly`, only the first of them are opened.
    """
    if budgets is None:
        rows = OPEN_ROWS_MAX if partly else max(OPEN_ROWS_MAX, OPEN_ROWS_EACH * len(client_ids))
        budgets = Budget(size=BYTES_CHANGED_MAX), Budget(rows, BYTES_CHANGED_MAX)
    keys = tuple(zip(tenants, client_ids, strict=True))
    if len(set(keys)) < len(keys):
        columns: Any = (tenants, client_ids, brokers, expiry_s, clean_starts)
        epochs, present = list[int](), list[bool]()
        with nullcontext() if partly else db.part():  # a later one may yet refuse them all
            for start, end in pairwise(_cuts(keys)):
                some = (column[start:end] for column in columns)
                opened = open_all(db, at, *some, created=created, partly=partly, budgets=budgets)
                epochs += opened[0]
                present += opened[1]
                if len(epochs) < end:
                    break
        return epochs, present
    of_wills, budget = budgets
    wills = _with_wills(db, keys, of_wills)
    before = db.store.get_many(SESSIONS.name, keys)
    found = [old for old in before if old is not None]
    values = iter(packing.unpack_columns(found)[1] if found else ())
    there = [_NONE if old is None else next(values) for old in before]
    present = [old is not None for old in before]
    unsettled = [
        place
        for place, (old, clean_start, last_will) in enumerate(
            zip(there, clean_starts, wills, strict=False)
        )
        if old is not _NONE and (clean_start or last_will or old[_EXPIRES_MS] or not old[_EXPIRY_S])
    ]
    count, hangs, epochs = len(wills), _hanging(db), list[int]()
    ending: dict[int, list[bytes]] = {}  # with what they were subscribed to, read before it changes
    unusual: set[int] = set()
    for place in unsettled:
        key, old = keys[place], there[place]
        # One without an expiry ends with its connection, which this one closes (MQTT 5,
        # 3.1.2.11.2).
        ends = clean_starts[place] or not old[_EXPIRY_S] or 0 < old[_EXPIRES_MS] <= at.now_ms
        if wills[place] or (ends and hangs(key, old)):
            unusual.add(place)
        if ends:
            ending[place] = subscription.stored(db, *key) if place in unusual else []
            budget.spend(rows=len(ending[place]), size=sum(map(len, ending[place])))
            if budget.spent:
                count = min(count, place + 1)
                break
    if count < len(keys):
        if not partly:
            raise QuotaExceeded(
                f"client_ids: what the sessions before leave, of the first {count} alone, is much "
                "for one command; open no more at once"
            )
        keys, there, present = keys[:count], there[:count], present[:count]
    usual = [True] * count
    for place in unsettled:
        if place >= count:
            break
        key, old = keys[place], there[place]
        expires_ms = old[_EXPIRES_MS]
        if place in unusual:
            # In the order of the places, as if they were opened one by one.
            epochs += db.unique_many(place - len(epochs))
            gone = ending.get(place)
            epoch, present[place] = _open(db, at, *key, brokers[place], expiry_s[place], gone)
            epochs.append(epoch)
            usual[place] = False
            continue
        due.disarm(db, expires_ms, due.SESSION, *key)
        if place in ending:
            db.swap(SESSIONS.name, key, before[place], None)
            present[place] = False
            if not old[_CONNECTED_MS]:
                there[place] = _NONE  # it counts no more
    epochs += db.unique_many(len(keys) - len(epochs))
    if created is not None:
        created += [
            old[_CREATED_MS] if goes_on else at.now_ms
            for goes_on, old in zip(present, there, strict=True)
        ]
    columns = [keys, there, present, brokers[:count], epochs, expiry_s[:count]]
    if not all(usual):
        columns = [tuple(compress(each, usual)) for each in columns]
    _settle_usual(db, at, *columns)
    return epochs, present


def _hanging(db: Tables) -> Callable[[tuple[str, str], Sequence[Any]], bool]:
    """Whether anything but a will ends with a session of this key and these values."""
    member, subscribed = (
        functools.cache(functools.partial(db.has_any, each))
        for each in (OF_CLIENT, subscription.SUBSCRIPTIONS)
    )

    def hangs(key: tuple[str, str], values: Sequence[Any]) -> bool:
        # A count of none may have been made wrong.
        if values[_SUBSCRIPTIONS] or (subscribed(key[0]) and subscribed(*key)):
            return True
        return member(key[0]) and member(*key)

    return hangs


def _with_wills(db: Tables, keys: tuple[tuple[str, str], ...], budget: Budget) -> list[bool]:
    """Which of these sessions have a will: of the first of them, until the wills are as large as
    the budget allows."""
    if len(keys) > WILLS_READ and not db.has_any(will.WILLS):
        return [False] * len(keys)
    there: list[bool] = []
    left, step = iter(keys), WILLS_READ
    while not budget.spent and (some := tuple(islice(left, step))):
        found = db.store.get_many(will.WILLS.name, some)
        size = sum(map(len, filter(None, found)))
        step = WILLS_READ if size > WILLS_BYTES else WILLS_READ_SMALL
        if not size:
            there += [False] * len(some)
            continue
        for each in found:
            budget.spend(rows=0, size=len(each or b""))
            there.append(each is not None)
            if budget.spent:
                break
    return there


def _cuts(keys: Sequence[tuple[str, str]]) -> Iterator[int]:
    """Where to cut so that no key comes twice in a part: the second takes over from the first."""
    yield 0
    seen: set[tuple[str, str]] = set()
    for place, key in enumerate(keys):
        if key in seen:
            yield place
            seen.clear()
        seen.add(key)
    yield len(keys)


def _settle_usual(
    db: Tables,
    at: Stamp,
    keys: tuple[tuple[str, str], ...],
    there: Sequence[Sequence[Any]],
    goes_on: Sequence[bool],
    brokers: Sequence[str],
    epochs: Sequence[int],
    expiry_s: Sequence[int],
) -> None:
    """These sessions are connected now; `there` has the values of those that were there, of which
    nothing has to be settled, and `_NONE` of the new ones. Those that do not go on begin anew."""
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
        "created_ms": [old if on else now_ms for on, old in zip(goes_on, created, strict=True)],
        "connected_ms": (now_ms,) * count,
        "disconnected_ms": (0,) * count,
        "expires_ms": (0,) * count,
        "subscriptions": [old if on else 0 for on, old in zip(goes_on, subscriptions, strict=True)],
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
    subscribed: list[bytes] | None,
) -> tuple[int, bool]:
    """The same of one session that is there, whatever hangs on it. With the former one end its
    subscriptions; None: it goes on."""
    before = db.get(SESSIONS, tenant, client_id)
    assert before is not None, "nothing has to be settled for a session that is not there"
    goes_on = subscribed is None
    if subscribed is None:
        _settle_will(db, at, before)
        due.disarm(db, before.expires_ms, due.SESSION, tenant, client_id)
    else:
        _let_go(db, at, before, Budget(), subscribed)
        db.delete(SESSIONS, tenant, client_id)
    epoch = db.unique()
    put_session(
        db,
        before,
        Session(
            tenant=tenant,
            client_id=client_id,
            broker=broker,
            epoch=epoch,
            connected=True,
            expiry_s=expiry_s,
            created_ms=before.created_ms if goes_on else at.now_ms,
            connected_ms=at.now_ms,
            disconnected_ms=0,
            expires_ms=0,
            subscriptions=before.subscriptions if goes_on else 0,
        ),
    )
    return epoch, goes_on


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


def close_all(
    db: Tables,
    at: Stamp,
    tenants: Sequence[str],
    client_ids: Sequence[str],
    epochs: Sequence[int],
    graceful: Sequence[bool],
    expiry_s: Sequence[int | None],
    *,
    budget: Budget | None = None,
    of_wills: Budget | None = None,
) -> list[Rejected | None]:
    """Close sessions, said in columns: why each was refused, None where it was not. Those that end
    are left to the pulses (`expire`) when what ends with them is more than the budget, and so are
    the wills of those that last. As each of these is written anew, or goes, it is only the first of
    the sessions that are closed, until their wills are about `BYTES_CHANGED_MAX`.

    In the usual case, one without a will that lasts or has nothing that ends with it, a session is
    a few plain values and so is its timer, and the tally is settled once a tenant.
    """
    budget = Budget() if budget is None else budget
    of_wills = Budget(size=BYTES_CHANGED_MAX) if of_wills is None else of_wills
    keys = tuple(zip(tenants, client_ids, strict=True))
    refusals: list[Rejected | None] = []
    if len(set(keys)) < len(keys):
        columns: Any = (tenants, client_ids, epochs, graceful, expiry_s)
        for start, end in pairwise(_cuts(keys)):
            some = (column[start:end] for column in columns)
            refusals += close_all(db, at, *some, budget=budget, of_wills=of_wills)
            if len(refusals) < end:
                break
        return refusals
    wills = _with_wills(db, keys, of_wills)
    before = db.store.get_many(SESSIONS.name, keys)
    unpack, hangs, now_ms = packing.unpack_values, _hanging(db), at.now_ms
    refusals += [None] * len(wills)
    gone, ended = Counter[str](), Counter[str]()
    closed: dict[tuple[str, str], bytes] = {}
    timers: list[tuple[int, str, str, str]] = []
    for place, (key, value, last_will, epoch, asked_s) in enumerate(
        zip(keys, before, wills, epochs, expiry_s, strict=False)
    ):
        old = _NONE if value is None else unpack(value)[1]
        lasts_s = old[_EXPIRY_S] if asked_s is None else asked_s
        usual = old[_CONNECTED] and old[_EPOCH] == epoch and not last_will
        if not usual or (not old[_EXPIRY_S] if lasts_s else hangs(key, old)):
            try:
                with db.part():
                    close(db, at, *key, epoch, graceful[place], asked_s, budget)
            except Rejected as error:
                refusals[place] = error
            continue
        gone[key[0]] += 1
        if not lasts_s:
            ended[key[0]] += 1
            db.swap(SESSIONS.name, key, value, None)
            continue
        row = [*old]
        row[_CONNECTED], row[_EXPIRY_S], row[_DISCONNECTED_MS] = False, lasts_s, now_ms
        row[_EXPIRES_MS] = expires_ms = _expires_ms(at, lasts_s)
        closed[key] = db.pack((db.revision, row))
        if expires_ms:
            timers.append((expires_ms, due.SESSION, *key))
    if closed:
        db.settle_many(SESSIONS.name, tuple(closed), [*closed.values()])
    due.arm_all(db, timers)
    for tenant, count in gone.items():
        count_sessions(db, tenant, -ended[tenant], -count)
    return refusals


def told(db: Tables, refusals: Sequence[Rejected | None], count: int) -> tuple[Outcome, ...]:
    """What is said of so many sessions, of which the first were closed as these say."""
    done = outcome(db, None)
    outcomes = [done if each is None else outcome(db, each) for each in refusals]
    return *outcomes, *repeat(outcome(db, too_much("items")), count - len(outcomes))


def _expires_ms(at: Stamp, expiry_s: int) -> int:
    return 0 if expiry_s == NEVER_S else at.now_ms + expiry_s * MS


def close(
    db: Tables,
    at: Stamp,
    tenant: str,
    client_id: str,
    epoch: int,
    graceful: bool,
    expiry_s: int | None,
    budget: Budget,
) -> None:
    """Close one session, whatever hangs on it. Raises NotFound, Fenced and Invalid."""
    before = held(db, tenant, client_id, epoch)
    if not before.connected:
        return
    lasts_s = before.expiry_s if expiry_s is None else expiry_s
    if lasts_s and not before.expiry_s:
        raise Invalid("expiry_s: a session that ends with its connection cannot outlive it")
    pending = db.get(will.WILLS, tenant, client_id)
    if pending is not None and graceful:
        will.cancel(db, pending)
        pending = None
    if lasts_s == 0:
        end_within(db, at, before, budget)
        return
    expires_ms = _expires_ms(at, lasts_s)
    session = replace(
        before,
        connected=False,
        expiry_s=lasts_s,
        disconnected_ms=at.now_ms,
        expires_ms=expires_ms,
    )
    put_session(db, before, session)
    if expires_ms:
        due.arm(db, expires_ms, due.SESSION, tenant, client_id)
    if pending is None:
        return
    if pending.delay_s == 0 and not budget.spent:
        will.fire(db, at, pending, session.broker)
        budget.spend(rows=0, size=message_bytes(pending))
    else:  # without a delay a pulse fires it, or whoever opens the session before
        will.arm(db, pending, at.now_ms + min(pending.delay_s, lasts_s) * MS)


def end_within(db: Tables, at: Stamp, session: Session, budget: Budget) -> None:
    """The session is over. One for which the budget has nothing left goes with a later pulse."""
    if budget.spent:
        expire(db, at, session)
    else:
        end(db, at, session, budget)


def expire(db: Tables, at: Stamp, session: Session) -> None:
    """The session's time is over now: nobody holds it, it counts no more, whoever opens it begins a
    new one, and a pulse ends it."""
    if session.over(at.now_ms):
        return
    tenant, client_id = session.tenant, session.client_id
    due.disarm(db, session.expires_ms, due.SESSION, tenant, client_id)
    over = replace(
        session,
        epoch=db.unique(),
        connected=False,
        connected_ms=0,
        disconnected_ms=at.now_ms if session.connected else session.disconnected_ms,
        expires_ms=at.now_ms,
    )
    put_session(db, session, over)
    due.arm(db, at.now_ms, due.SESSION, tenant, client_id)


def end(db: Tables, at: Stamp, session: Session, budget: Budget) -> None:
    """The session is over: its will fires, and it goes with all that hangs on it, which the budget
    pays."""
    subscribed = subscription.stored(db, session.tenant, session.client_id)
    _let_go(db, at, session, budget, subscribed)
    delete_session(db, session)


def _let_go(
    db: Tables, at: Stamp, session: Session, budget: Budget, subscribed: list[bytes]
) -> None:
    """All of that but the session itself."""
    size = 0
    pending = db.get(will.WILLS, session.tenant, session.client_id)
    if pending is not None:
        will.fire(db, at, pending, session.broker)
        size = message_bytes(pending)
    rows, bytes_of_rows = subscription.remove_all(db, session.tenant, session.client_id, subscribed)
    shared, bytes_shared = share_group.leave_all(db, at, session.tenant, session.client_id)
    due.disarm(db, session.expires_ms, due.SESSION, session.tenant, session.client_id)
    budget.spend(1 + rows + shared, size + bytes_of_rows + bytes_shared)


@remover(SESSIONS)
def _remove(db: Tables, at: Stamp, session: Session) -> None:
    """As at its end, but nothing is said for it."""
    pending = db.get(will.WILLS, session.tenant, session.client_id)
    if pending is not None:
        will.cancel(db, pending)
    end(db, at, session, Budget())
