"""Advice, decisions about it and what the controller does with it, as part of a made-up history."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from state_machines.metadata.advice import (
    ApproveAdvice,
    DismissAdvice,
    NewAdvice,
    PutAdvice,
    UndoAdvice,
)
from state_machines.metadata.advice_duty import (
    BeginAdvice,
    CarryOutAdvice,
    ExpireAdvice,
    SettleAdvice,
)


def advice(luck: Random, index: int, now_ms: int) -> list[Callable[[], Any]]:
    """Limits for two tenants and moves of a leadership; some expire at once, some are undone."""
    name, epoch = f"a{luck.randrange(4)}", 1 + index // 50
    expires_ms = now_ms + luck.choice((-1, 20_000, 3_600_000))
    cap = NewAdvice(
        id=name,
        kind="quota",
        target=luck.choice(("acme", "zeta")),
        limit="offset_commits_per_s",
        number=luck.randrange(1, 9),
        reason="it is hot",
        evidence='{"share": 0.9}',
        start_ms=index,
        expires_ms=expires_ms,
    )
    move = NewAdvice(
        id=f"m{name}",
        kind="leader",
        target="offset-0",
        source="offset-0/1",
        destination="offset-0/2",
        reason="it is full",
        expires_ms=expires_ms,
    )
    was, state = luck.choice(
        (("applying", "applied"), ("undoing", "undone"), ("proposed", "failed"))
    )
    ids = (name, f"m{name}")
    return [
        lambda: PutAdvice(items=(cap, move)),
        lambda: ApproveAdvice(ids=ids, by="ann"),
        lambda: DismissAdvice(ids=(name,)),
        lambda: UndoAdvice(ids=ids),
        lambda: CarryOutAdvice(controller_epoch=epoch, id=name, automatic=luck.random() < 0.5),
        lambda: BeginAdvice(controller_epoch=epoch, id=f"m{name}", automatic=True),
        lambda: SettleAdvice(
            controller_epoch=epoch, id=luck.choice(ids), was=was, state=state, note="so"
        ),
        lambda: ExpireAdvice(controller_epoch=epoch, limit=luck.randrange(1, 4)),
    ]
