"""The doors that bad input comes through, and how much of it the long run sends to each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from tests.bad_input.area_cli import Cli
from tests.bad_input.area_client import Client
from tests.bad_input.area_codec import Codec
from tests.bad_input.area_config import Config
from tests.bad_input.area_core import Core
from tests.bad_input.area_requests import Requests
from tests.bad_input.area_seat import SeatArea
from tests.bad_input.area_snapshot import Snapshot
from tests.bad_input.battery import Area

AREAS: Final[dict[str, tuple[Callable[[], Area], int]]] = {
    "codec": (Codec, 100_000),
    "core": (Core, 30_000),
    "snapshot": (Snapshot, 12_000),
    "client": (Client, 15_000),
    "requests": (Requests, 34_000),
    "config": (Config, 9_500),
    "seat": (SeatArea, 3_000),
    "cli": (Cli, 1_300),
}
"""Area and cases by name."""

MEASURED_EVERY: Final = 64
"""One case in so many has its memory measured, and every bomb."""


def sample(area: Area, count: int) -> Iterator[int]:
    """Half of them from all over what is listed, half drawn; the same ones every time."""
    listed = min(area.listed, count // 2)
    for place in range(listed):
        yield place * area.listed // listed
    yield from range(area.listed, area.listed + count - listed)
