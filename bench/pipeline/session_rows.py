"""Sessions, what hangs on them, retained messages, and the timers and counts of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bench.pipeline.numbers import (
    BROKERS,
    HOUR_MS,
    NOW_MS,
    TENANTS,
    Columns,
    among,
    broken,
    clients,
    luck,
    tenant_numbers,
    tenants,
)
from state_machines.mqtt import due as timers
from state_machines.mqtt.sessions import NEVER_S

DAY_S: Final = 86_400
EXPIRY_S: Final = np.array([DAY_S, 7 * DAY_S, NEVER_S, 0, 60, 3_600])
"""Whoever is connected has any of them, who is not one of the first three: nobody is overdue."""

SUBSCRIPTIONS: Final = np.array([0, 1, 1, 1, 2])
WILLS: Final = 10  #: one session in so many has one
LOST: Final = BROKERS  #: the broker that is not there any more


@dataclass(frozen=True, slots=True)
class Sessions:
    """The numbers of sessions, by their places."""

    connected: Any
    broker: Any
    since_ms: Any
    """When they connected, or went."""
    expiry_s: Any
    expires_ms: Any
    subscriptions: Any
    will: Any


def numbers(places: Any) -> Sessions:
    """Two of three connected, the first brokers with more of them."""
    lost = broken("session_on_lost_broker", places)
    connected = (luck(places, "connected", 100) < 67) | lost
    since_ms = NOW_MS - luck(places, "since", 24 * HOUR_MS)
    since_ms = np.where(lost, NOW_MS - HOUR_MS, since_ms)
    expiry_s = EXPIRY_S[
        np.where(connected, luck(places, "expiry", len(EXPIRY_S)), luck(places, "expiry", 3))
    ]
    runs = ~connected & (expiry_s != NEVER_S)
    # The first of two random numbers' product is more often small.
    broker = luck(places, "broker", BROKERS) * luck(places, "and", BROKERS) // BROKERS
    return Sessions(
        connected=connected,
        broker=np.where(lost, LOST, broker),
        since_ms=since_ms,
        expiry_s=expiry_s,
        expires_ms=np.where(runs, since_ms + expiry_s * 1_000, 0),
        subscriptions=SUBSCRIPTIONS[luck(places, "subscriptions", len(SUBSCRIPTIONS))],
        will=luck(places, "will", WILLS) == 0,
    )


def sessions(places: Any, size: int) -> Columns:
    """The rows of them."""
    its = numbers(places)
    return {
        "tenant": tenants(places, size),
        "client_id": clients(places),
        "broker": among("broker", its.broker, 2),
        "epoch": places + 1,
        "connected": its.connected,
        "expiry_s": its.expiry_s,
        "created_ms": its.since_ms - HOUR_MS,
        "connected_ms": its.since_ms,
        "disconnected_ms": np.where(its.connected, 0, its.since_ms),
        "expires_ms": its.expires_ms,
        "subscriptions": its.subscriptions,
        "revision": places + 1,
    }


def tallies(places: Any, size: int, step: int = 250_000) -> Columns:
    """How many sessions each tenant has, and how many of them are connected."""
    had, connected = np.zeros(TENANTS, dtype=np.int64), np.zeros(TENANTS, dtype=np.int64)
    for start in range(0, size, step):
        some = np.arange(start, min(start + step, size), dtype=np.int64)
        of = tenant_numbers(some, size)
        had += np.bincount(of, minlength=TENANTS)
        connected += np.bincount(of[numbers(some).connected], minlength=TENANTS)
    there = places[had[places] > 0]
    return {
        "tenant": among("tenant", there, 3),
        "sessions": had[there],
        "connected": connected[there],
        "revision": there + 1,
    }


def subscriptions(places: Any, size: int) -> Columns:
    """As many of each session as it says."""
    its = numbers(places).subscriptions
    rows = its + broken("subscription_without_session", places)
    owner = np.repeat(places, rows)
    number = np.arange(len(owner)) - np.repeat(np.cumsum(rows) - rows, rows)
    nobody = pa.array(number >= np.repeat(its, rows))
    return {
        "tenant": tenants(owner, size),
        "client_id": pc.if_else(nobody, among("nobody", owner, 9), clients(owner)),
        "filter": among("sensors/+", number, 1),
        "qos": number % 3,
        "subscribed_ms": numbers(owner).since_ms,
        "revision": owner + 1,
    }


def wills(places: Any, size: int) -> Columns:
    """One session in WILLS has one, which is due a day after its client went."""
    its = numbers(places)
    owner = places[its.will]
    return {
        "tenant": tenants(owner, size),
        "client_id": clients(owner),
        "topic": among("last", owner, 9),
        "delay_s": np.full(len(owner), DAY_S),
        "due_ms": _will_due_ms(its)[its.will],
        "revision": owner + 1,
    }


def _will_due_ms(its: Sessions) -> Any:
    return np.where(its.connected, 0, its.since_ms + DAY_S * 1_000)


def retained_count(size: int) -> int:
    """How many retained messages there are."""
    return size // 10


def retained(places: Any, size: int) -> Columns:
    """Retained messages: one in ten expires some time."""
    return {
        "tenant": tenants(places, retained_count(size)),
        "topic": among("state", places, 9),
        "stored_ms": np.full(len(places), NOW_MS - HOUR_MS),
        "expires_ms": _retained_until_ms(places),
        "revision": places + 1,
    }


def _retained_until_ms(places: Any) -> Any:
    until_ms = NOW_MS + luck(places, "retained", 24 * HOUR_MS)
    return np.where(luck(places, "expires", 10) == 0, until_ms, 0)


def due(places: Any, size: int) -> Columns:
    """A timer of each session, will and retained message that ends some time."""
    its = numbers(places)
    will_ms = _will_due_ms(its) * its.will
    message = places[places < retained_count(size)]
    until_ms = _retained_until_ms(message)
    ends, fires, goes = its.expires_ms != 0, will_ms != 0, until_ms != 0
    nothing = places[broken("timer", places)]
    each = (
        (its.expires_ms[ends], timers.SESSION, places[ends], size, "client"),
        (will_ms[fires], timers.WILL, places[fires], size, "client"),
        (until_ms[goes], timers.RETAINED, message[goes], retained_count(size), "state"),
        (np.full(len(nothing), NOW_MS + 1), timers.SESSION, nothing, size, "nobody"),
    )
    return {
        "due_ms": np.concatenate([due_ms for due_ms, *_ in each]),
        "kind": pa.concat_arrays([pa.repeat(kind, len(of)) for _, kind, of, _, _ in each]),
        "tenant": pa.concat_arrays([tenants(of, rows) for _, _, of, rows, _ in each]),
        "name": pa.concat_arrays([among(prefix, of, 9) for _, _, of, _, prefix in each]),
        "revision": np.concatenate([of + 1 for _, _, of, _, _ in each]),
    }
