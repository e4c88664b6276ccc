"""Plans for advice: what expires, what is carried out, and what became of what was begun.

    ListAdvice, who leads -> plan_advice -> ExpireAdvice, CarryOutAdvice, BeginAdvice, a transfer of
                                            a leadership, SettleAdvice

Whether an advice may be acted upon is a question of `advice_mode`: `approve` carries out what was
approved, `auto` also what nobody has looked at, one of them at a time. What somebody dismissed or
took back, and what was done already, is left alone by `auto` for `HOLD_MS`. Undoing is asked for by
a person and done in every mode, and so is the end of what was begun.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from state_machines.metadata import advice as advices
from state_machines.metadata.advice import (
    APPLIED,
    APPLYING,
    APPROVED,
    AUTO,
    DISMISSED,
    FAILED,
    LEADER,
    PROPOSED,
    QUOTA,
    UNDOING,
    UNDONE,
    Advice,
    about_of,
)
from state_machines.metadata.advice_duty import (
    BeginAdvice,
    CarryOutAdvice,
    ExpireAdvice,
    SettleAdvice,
    is_due,
)
from state_machines.settings import DAY_MS, MINUTE_MS

EXPIRE_LIMIT: Final = 100  #: rows that one command lets expire, or removes
HOLD_MS: Final = DAY_MS
GIVE_UP_MS: Final = 2 * MINUTE_MS  #: a leadership that has not moved by then does not want to


@dataclass(frozen=True, slots=True)
class Led:
    """Who leads a Raft group, and which seats may: its voters, each with its replica's id."""

    leader: str
    voters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Expire:
    """Let advice expire that is due to."""

    limit: int


@dataclass(frozen=True, slots=True)
class CarryOut:
    """Set the limit of a tenant, or restore it."""

    row: Advice
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Write down that a leadership is about to move."""

    row: Advice
    automatic: bool = False


@dataclass(frozen=True, slots=True)
class Transfer:
    """Ask the leader's seat to hand the leadership to a replica."""

    row: Advice
    seat: str
    replica: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Write down what became of it."""

    row: Advice
    state: str
    note: str


Action = Expire | CarryOut | Begin | Transfer | Settle


def wants_leaders(rows: Sequence[Advice], mode: str, now_ms: int) -> list[str]:
    """The Raft groups whose leader has to be known to plan."""
    return sorted(
        {
            row.target
            for row in rows
            if row.kind == LEADER
            and (row.state in (APPLYING, UNDOING) or _may_act(row, rows, mode, now_ms))
        }
    )


def plan_advice(
    rows: Sequence[Advice], mode: str, groups: Mapping[str, Led | None], now_ms: int
) -> list[Action]:
    """What to do now. `groups` has who leads the groups of `wants_leaders`, None: nobody, or not
    known."""
    actions: list[Action] = []
    if any(is_due(row, now_ms) for row in rows):
        actions.append(Expire(EXPIRE_LIMIT))
    alone = False  # one thing that nobody has approved: what it does is seen before the next
    for row in rows:
        under_way = row.state in (APPLYING, UNDOING)
        if not under_way and not _may_act(row, rows, mode, now_ms):
            continue
        automatic = row.state == PROPOSED
        if automatic and alone:
            continue
        action = _act(row, groups.get(row.target), now_ms, automatic=automatic)
        if action is not None:
            actions.append(action)
            alone = alone or automatic
    return actions


def _may_act(row: Advice, rows: Sequence[Advice], mode: str, now_ms: int) -> bool:
    """Whether the mode lets the controller carry it out."""
    if row.kind not in advices.ACTS or row.expires_ms <= now_ms:
        return False
    if row.state == APPROVED:
        return mode in (advices.APPROVE, AUTO)
    if row.state != PROPOSED or mode != AUTO:
        return False
    settled = (APPLYING, APPLIED, UNDOING, UNDONE, DISMISSED)
    return not any(
        about_of(each) == about_of(row)
        and each.state in settled
        and each.changed_ms + HOLD_MS > now_ms
        for each in rows
    )


def _act(row: Advice, led: Led | None, now_ms: int, *, automatic: bool) -> Action | None:
    if row.kind == QUOTA:
        return CarryOut(row, automatic)
    late = row.changed_ms + GIVE_UP_MS <= now_ms
    match row.state:
        case advices.APPLYING:
            return _move(row, led, row.before, row.after, APPLIED, FAILED, late=late)
        case advices.UNDOING:
            return _move(row, led, row.after, row.before, UNDONE, APPLIED, late=late)
    if led is None:
        return None  # it waits for a leader until it expires
    if why := refusal(row, led):
        return Settle(row, FAILED, why)
    return Begin(row, automatic)


def refusal(row: Advice, led: Led) -> str:
    """Why a leadership cannot move as advised, in words; empty if it can."""
    if led.leader != row.source:
        return f"{row.target} is led by {led.leader}, not by {row.source} any more"
    if row.destination not in led.voters:
        return f"{row.destination} has no voter of {row.target}"
    return ""


def _move(
    row: Advice, led: Led | None, away: str, to: str, done: str, not_done: str, *, late: bool
) -> Action | None:
    """The next step of a leadership on its way from one seat to another."""
    if led is not None and led.leader == to:
        return Settle(row, done, f"{row.target} is led by {to}")
    if led is not None and led.leader != away:
        return Settle(row, not_done, f"{row.target} is led by {led.leader}: changed since")
    if late:
        return Settle(row, not_done, f"{row.target} was not handed to {to} in {GIVE_UP_MS} ms")
    if led is None:
        return None
    if to not in led.voters:
        return Settle(row, not_done, f"{to} has no voter of {row.target}")
    return Transfer(row, away, led.voters[to])


def command_of(action: Action, controller_epoch: int) -> Any:
    """The command that carries an action out; None for a transfer, which is no command."""
    match action:
        case Expire(limit=limit):
            return ExpireAdvice(controller_epoch=controller_epoch, limit=limit)
        case CarryOut(row=row, automatic=automatic):
            return CarryOutAdvice(controller_epoch=controller_epoch, id=row.id, automatic=automatic)
        case Begin(row=row, automatic=automatic):
            return BeginAdvice(controller_epoch=controller_epoch, id=row.id, automatic=automatic)
        case Settle(row=row, state=state, note=note):
            return SettleAdvice(
                controller_epoch=controller_epoch,
                id=row.id,
                was=row.state,
                state=state,
                note=note,
            )
        case Transfer():
            return None
