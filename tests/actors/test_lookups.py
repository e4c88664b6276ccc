"""Names are asked for at Ray's control service, which may be away for a day: within a deadline."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors import calls
from actors.calls import Handles, LinkedGroups
from state_machines.errors import Stopped


@pytest.mark.parametrize(
    "look", [lambda: Handles().get("g-0/0"), lambda: LinkedGroups().refresh()], ids=["one", "all"]
)
def test_whoever_looks_for_names_is_told_that_nobody_answers(
    look: Callable[[], Awaitable[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    back = threading.Event()

    def away(*_: Any, **__: Any) -> set[str]:
        assert back.wait(10), "who asked waits for an answer"
        return set()

    async def looks() -> None:
        try:
            with pytest.raises(Stopped, match="Ray's control service does not answer"):
                await look()
        finally:
            back.set()  # the loop ends when its threads have

    monkeypatch.setattr("ray.get_actor", away)
    monkeypatch.setattr(calls, "named_actors", away)
    monkeypatch.setattr(calls, "LOOKUP_SECONDS", 0.01)
    asyncio.run(looks())
