"""What an actor's method raised reaches who called it as itself, not as Ray's story of it."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from ray.exceptions import RayTaskError

from actors.calls import Handles
from state_machines.errors import Conflict
from tests.actors.virtual_time import in_virtual_time


def told_by_ray(cause: Exception) -> Exception:
    story = "\x1b[36mray::SeatActor.change()\x1b[39m\n  File ..." * 20
    wrapped: Exception = RayTaskError("change", story, cause).as_instanceof_cause()
    return wrapped


@pytest.mark.parametrize("cause", [Conflict("another change"), OSError(30, "Read-only")])
@in_virtual_time
async def test_what_a_seat_raises_is_its_own_words(cause: Exception) -> None:
    async def change() -> Any:
        raise told_by_ray(cause)

    handles = Handles()
    handles._handles["g-0/0"] = mock.Mock(change=mock.Mock(remote=change))
    with pytest.raises(type(cause)) as raised:
        await handles.call("g-0/0", "change")
    assert str(raised.value) == str(cause)
