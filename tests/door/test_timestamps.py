"""Timestamps as clients take them."""

from __future__ import annotations

from typing import Any

import pytest

import metaray.client
from metaray.timestamps import BlockingTimestamps, parts
from state_machines.errors import Invalid
from state_machines.metadata.timestamp import COUNT_MAX
from tests.door.test_transactions import Client, with_client
from tests.entities.group import Group
from tests.machine.alone import NOW_MS


@with_client
async def test_one_and_a_range(client: Client) -> None:
    door: Any = metaray.client.Client()
    with pytest.raises(RuntimeError, match="is not open"):
        await door.timestamp()
    door._caller = client.caller
    first = await door.timestamp()
    assert parts(first) == (NOW_MS, 0)
    assert await door.timestamps(1_000) == range(first + 1, first + 1_001)
    assert parts(await door.timestamp()) == (NOW_MS, 1_001)
    with pytest.raises(Invalid, match=rf"^count: 0, the range is 1 to {COUNT_MAX}$"):
        await door.timestamps(0)
    assert set(client.machines.asked) == {"metadata-0"}


class Blocking(BlockingTimestamps):
    """The part of `metaray.BlockingClient` that this door uses."""

    def __init__(self) -> None:
        self.call = Group("metadata").run


def test_the_same_for_threads() -> None:
    assert issubclass(metaray.client.BlockingClient, BlockingTimestamps)
    door = Blocking()
    first = door.timestamp()
    assert door.timestamps(5) == range(first + 1, first + 6)
    assert parts(door.timestamp()) == (NOW_MS, 6)
