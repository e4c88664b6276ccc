"""How long a group was away, as its writers have seen it."""

from __future__ import annotations

import pytest

from tests.history.operation import Operation
from tests.nemesis.run import Episode, window

SECOND = 1_000_000_000
GROUP = "metadata-0"
EPISODE = Episode("a fault", "seen", (GROUP,), begun=10.0, healing=10.0, whole=20.0, elections=0)


def put(invoked: float, returned: float | None, key: str = "register.1.0") -> Operation:
    ended = None if returned is None else int(returned * SECOND)
    return Operation("c0", "put", key, ("a", None), 7, int(invoked * SECOND), ended)


@pytest.mark.parametrize(
    ("history", "seconds"),
    [
        ([put(9, 9.5), put(9.5, 12), put(12, 12.5)], 2.5),
        ([put(9, 9.5), put(13.5, 14), put(14, 14.25)], 0.5),
        ([put(9, 9.5), put(10, None), put(13.5, 14)], 4.0),
        ([put(9, 9.5), put(9.5, 12), put(9.5, 16), put(16, 16.5)], 4.0),
        ([put(1, 2), put(2, 8), put(8, 10.5), put(25, 30), put(30, 39)], 2.5),
        ([put(1, 2), put(10, 19, "counter.1.0")], 0.0),
    ],
    ids=[
        "one waits",
        "nobody asked for some time",
        "one was never answered",
        "two wait",
        "only what the fault can have to do with",
        "other groups are none of it",
    ],
)
def test_a_group_is_away_while_a_write_waits_and_none_is_acknowledged(
    history: list[Operation], seconds: float
) -> None:
    assert window(history, EPISODE, "t") == pytest.approx(seconds)
