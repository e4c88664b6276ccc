"""Starting the service on a Ray cluster this process is connected to."""

from __future__ import annotations

import time
from collections.abc import Iterator

from actors import bootstrap, learners, placement, remote
from actors.config import FIRST_GROUP, ClusterConfig
from actors.seat_names import kind_of


def start_service(config: ClusterConfig) -> Iterator[tuple[str, float, str]]:
    """Start every group in order, then wait for the controller, then settle the learners.

    Yields (name, seconds, where it leads or stands) as each is ready: groups, the controller, the
    slots if a kind has several groups, the learners' seats that are wanted or had to go, and the
    exporter of the operation history if there is to be one. Starting a service that runs changes
    nothing but the number of its learners.
    Raises NotEnoughNodes before anything has been started, and Conflict while another start is
    under way on the Ray cluster, which it leaves alone.
    """
    with remote.starting():
        yield from _start(config)


def _start(config: ClusterConfig) -> Iterator[tuple[str, float, str]]:
    placement.check_learners(config, placement.observe())
    cluster = ""
    metadata: list[str] = []  # the seats of the first group, beside whose leader the controller is
    for group in config.groups:
        begun = time.monotonic()
        cluster = bootstrap.start_group(config, group, cluster)
        seats = [spec.seat for spec in bootstrap.specs(config) if spec.group == group]
        leader = bootstrap.wait_for_leader(seats)
        if group == FIRST_GROUP:
            metadata = seats
        yield group, time.monotonic() - begun, leader["seat"]
    begun = time.monotonic()
    controller, beside = bootstrap.wait_for_controller(metadata)
    yield controller["name"], time.monotonic() - begun, f"{beside}, on its node"
    if len({kind_of(group) for group in config.groups}) < len(config.groups):
        begun = time.monotonic()
        kept = bootstrap.wait_for_slots(metadata)
        yield "slots", time.monotonic() - begun, "; ".join(kept) or "on all groups of each kind"
    begun = time.monotonic()
    for seat, became in learners.settle(config):
        yield seat, time.monotonic() - begun, became
    if config.history_path:
        from metaray.history import running  # Parquet, which most clusters do not need to start

        begun = time.monotonic()
        running.start(config.history_path, config.raft)
        yield remote.HISTORY, time.monotonic() - begun, config.history_path
