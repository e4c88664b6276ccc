"""What has begun goes on to its end, also when whoever asked for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def to_its_end(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """For a method that leaves things half done if it ends at an `await`: a directory that another
    thread opens, and nobody knows of. Who is cancelled hears so at once; the rest is done."""

    @wraps(method)
    async def whole(*args: P.args, **more: P.kwargs) -> T:
        return await asyncio.shield(asyncio.create_task(method(*args, **more)))

    return whole
