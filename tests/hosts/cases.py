"""What is done to hosts while the broker's host writes, and what has to be so afterwards."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from tests.hosts.world import BROKER, HEAD, WORKERS, Failed, Hosts, wait_for, writer

BEFORE_SECONDS: Final = 5.0
AFTER_SECONDS: Final = 15.0
GROUP: Final = "metadata-0"


def _while_writing(hosts: Hosts, seconds: float, act: Callable[[], None]) -> dict[str, Any]:
    """Write for so long, with some time before and after; what came of it."""
    writing = writer(hosts[BROKER], BEFORE_SECONDS + seconds + AFTER_SECONDS)
    time.sleep(BEFORE_SECONDS)
    act()
    said, _ = writing.communicate(timeout=seconds + AFTER_SECONDS + 60)
    if writing.returncode:
        raise Failed(f"the writers ended with {writing.returncode}")
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _cut(hosts: Hosts, name: str, seconds: float) -> dict[str, Any]:
    def act() -> None:
        hosts[name].cut()
        time.sleep(seconds)
        hosts[name].mend()

    return _while_writing(hosts, seconds, act)


def _whole_again(hosts: Hosts) -> float:
    begun = time.monotonic()
    wait_for(hosts.whole, "there is no alarm")
    return round(time.monotonic() - begun, 1)


def is_cut(name: str, hosts: Hosts, seconds: float) -> dict[str, Any]:
    """The head, whom nobody who writes asks; or the broker's host, where they wait as long."""
    found = _cut(hosts, name, seconds)
    return {**found, "whole_again_s": _whole_again(hosts)}


def leader_is_cut(hosts: Hosts, seconds: float) -> dict[str, Any]:
    """The others elect, and it follows once it is back."""
    name = hosts.leads(GROUP)
    found = _cut(hosts, name, seconds)
    if hosts.leads(GROUP) == name:
        raise Failed(f"{name} leads {GROUP}, as if it had not been away")
    return {**found, "whole_again_s": _whole_again(hosts)}


def worker_is_booted(hosts: Hosts, seconds: float) -> dict[str, Any]:
    """All that ran there is gone; its data is not, and its seats serve from it again."""
    name = next(each for each in WORKERS if each != hosts.leads(GROUP))

    def act() -> None:
        hosts[name].end()
        time.sleep(seconds)
        hosts[name].begin()
        hosts.join(name)

    found = _while_writing(hosts, seconds, act)
    return {**found, "whole_again_s": _whole_again(hosts)}


CASES: Final[dict[str, tuple[Callable[[Hosts, float], dict[str, Any]], float]]] = {
    "the head is cut off for 28 s": (partial(is_cut, HEAD), 28.0),
    "the head is cut off for 50 s": (partial(is_cut, HEAD), 50.0),
    "the broker's host is cut off for 1.5 s": (partial(is_cut, BROKER), 1.5),
    "the broker's host is cut off for 3 s": (partial(is_cut, BROKER), 3.0),
    "the broker's host is cut off for 8 s": (partial(is_cut, BROKER), 8.0),
    "the leader's host is cut off for 20 s": (leader_is_cut, 20.0),
    "a worker is booted within 3 s": (worker_is_booted, 3.0),
}
