"""What Ray's metrics port of each node says of the replicas on it."""

from __future__ import annotations

import re
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from metaray.local import LocalCluster

SECONDS = 30.0
LINE = re.compile(r'^ray_metaray_(\w+)\{.*\bgroup="([^"]+)".*\bseat="([^"]+)".*\} (\S+)$', re.M)
WANTED = {
    *("term", "leads", "commit_index", "applied_index", "queue", "elections_total"),
    *("append_seconds_total", "apply_seconds_total", "slow_writes_total"),
    *("overloaded_total", "overloaded_reads_total", "loop_late_seconds", "links"),
    "write_replicate_seconds_total",
}


def scrape() -> dict[tuple[str, str], float]:
    """Every value of ours on every node, by (name, seat)."""
    import ray

    found = {}
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        for name, group, seat, value in LINE.findall(text):
            assert seat.startswith(f"{group}/")
            found[name, seat] = float(value)
    return found


@pytest.mark.ray
def test_every_replica_shows_its_numbers(service: LocalCluster) -> None:
    seats = {f"{group}/{n}" for group in ("metadata-0", "offset-0", "mqtt-0") for n in range(3)}
    deadline = time.monotonic() + SECONDS
    while True:
        found = scrape()
        missing = {(name, seat) for name in WANTED for seat in seats} - found.keys()
        leaders = [seat for seat in seats if found.get(("leads", seat)) == 1]
        alone = [seat for seat in leaders if found.get(("links", seat), 0) < 2]
        if not missing and len(leaders) == 3 and not alone:
            break
        assert time.monotonic() < deadline, (sorted(missing)[:5], leaders, alone)
        time.sleep(0.2)  # they are reported every five seconds; nothing says when
    assert all(found["term", seat] >= 1 for seat in seats)
    assert service.nodes
