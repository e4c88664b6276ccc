"""A learner of a running service on real Ray: added, killed, back again, and taken away.

The shared cluster has no node with the resource `analytics`, so it stands beside a voter here.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from actors import calls, placement
from actors.config import ClusterConfig
from actors.placement import NotEnoughNodes
from actors.seat_names import learners_among
from metaray import connect_sync
from metaray.cli.app import app
from metaray.cli.cluster import _lag_of
from metaray.local import LocalCluster
from metaray.overview import _alarms, overview
from metaray.service import start_service
from state_machines.offset.offset import OffsetCommit
from tests.door.seats import ask, leader, wait_for, wait_until_whole
from tests.door.test_faults import directories, kill_process, rows_at, write_through

GROUP = "offset-0"
LEARNER = f"{GROUP}/learner-0"
TABLE = "offset.offset"


@pytest.fixture(scope="module")
def learners(service: LocalCluster) -> Iterator[dict[str, str]]:
    """What became of each learner's seat. In the end there are none."""
    config = ClusterConfig(learners=1, allow_colocated=True)
    yield {name: became for name, _, became in start_service(config)}
    for _ in start_service(ClusterConfig()):
        pass


def answering(seat: str) -> dict[str, Any] | None:
    """What the seat says, None while it is silent."""
    said = calls.each_call([seat], "status", seconds=5.0)[seat]
    return said if isinstance(said, dict) else None


def equal_to_the_leader(seat: str) -> bool:
    said = answering(seat)
    leads = leader(GROUP)
    return (
        said is not None
        and said.get("applied", -1) >= leads["commit"]
        and rows_at(seat, TABLE) == rows_at(leads["seat"], TABLE)
    )


@pytest.mark.ray
@pytest.mark.long
def test_a_learner_joins_a_running_service_dies_comes_back_and_goes(
    learners: dict[str, str], service: LocalCluster, tenant: str
) -> None:
    for group in ("metadata-0", GROUP, "mqtt-0"):
        assert learners[f"{group}/learner-0"].startswith("learner, "), learners
    first = ask(LEARNER, "status")
    assert first["role"] == "learner"
    assert first["replica"] in leader(GROUP)["learners"]
    [directory] = directories(service, GROUP, first["replica"])
    assert directory.parent.parent.name == "learners", "voters' directories are elsewhere"
    assert placement.states()[LEARNER] == "CREATED"
    with connect_sync() as client:
        commits = [OffsetCommit(group=f"g{n}", topic="t", partition=0, offset=n) for n in range(50)]
        client.commit_offsets(commits, tenant=tenant)
        assert client._client.seats(GROUP) == tuple(f"{GROUP}/{number}" for number in range(3))
    wait_for(lambda: equal_to_the_leader(LEARNER), "the learner has the leader's rows")

    terms = leader(GROUP)["term"]
    acknowledged = asyncio.run(write_through(tenant, lambda: kill_process(LEARNER)))
    with connect_sync() as client:
        for writer, count in acknowledged.items():
            [row] = client.fetch_offsets(writer, tenant=tenant)
            assert (row.commits, row.offset) == (count, count)
    assert leader(GROUP)["term"] == terms, "nobody stood for election"
    back = wait_for(lambda: answering(LEARNER), "the learner's actor is back")
    assert back["replica"] == first["replica"]
    assert back["boot"] == first["boot"] + 1
    wait_for(lambda: equal_to_the_leader(LEARNER), "it has caught up")
    assert len(leader(GROUP)["voters"]) == 3

    pid = ask(LEARNER, "process")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("metaray.overview.CALL_SECONDS", 2.0)
        os.kill(pid, signal.SIGSTOP)
        try:
            alarms = overview()["alarms"]
            said = CliRunner().invoke(app, ["status"], env={"COLUMNS": "80"}).stdout
        finally:
            os.kill(pid, signal.SIGCONT)
    [alarm] = [each for each in alarms if each.startswith(LEARNER)]
    assert alarm.startswith(f"{LEARNER}: silent")
    assert alarm.endswith("it is a learner, no vote is missing")
    assert not any("no leader" in each for each in alarms), alarms
    assert f"learner {LEARNER} silent, no vote is missing" in said

    became = {name: word for name, _, word in start_service(ClusterConfig())}
    assert became[LEARNER] == "removed"
    assert not learners_among(calls.named_actors())
    assert not learners_among(placement.states())
    leads = leader(GROUP)
    assert leads["learners"] == []
    assert leads["group_seats"] == tuple(f"{GROUP}/{number}" for number in range(3))
    wait_until_whole(GROUP)


@pytest.mark.ray
@pytest.mark.usefixtures("service")
def test_learners_without_nodes_of_their_own_are_refused_and_nothing_is_made() -> None:
    actors, places = calls.named_actors(), placement.states()
    with pytest.raises(NotEnoughNodes, match="0 of 3 nodes offer the resource `analytics`"):
        next(start_service(ClusterConfig(learners=1)))
    assert (calls.named_actors(), placement.states()) == (actors, places)


# -- what needs no cluster ----------------------------------------------------------------------


def shown(seat: str, role: str, **more: Any) -> dict[str, Any]:
    shown = {"seat": seat, "role": role, "fault": "", "lag": 3, "lag_ms": 1_200, "replica": 0}
    return {**shown, "votes": None, "voters": (), "outgoing": (), **more}


@pytest.mark.parametrize("role", ["silent", "stopped", "vacant"])
def test_a_dead_learner_is_an_alarm_that_speaks_of_no_vote(role: str) -> None:
    replicas = [shown(f"{GROUP}/0", "leader"), shown(LEARNER, role)]
    groups = {GROUP: {"leader": f"{GROUP}/0", "placement": "CREATED", "replicas": replicas}}
    controlling = [{"name": "controller-1", "duties": {}, "fenced": ""}]
    assert _alarms(groups, controlling) == [
        f"{LEARNER}: {role}; it is a learner, no vote is missing"
    ]
    assert f"{role}[/], no vote is missing" in _lag_of(replicas[1])


@pytest.mark.parametrize(
    ("ahead_ms", "said"),
    [
        (5_000, ""),
        (-5_000, ""),
        (5_001, "5 s ahead of"),
        (-21_600_000, "21600 s behind"),
    ],
)
def test_a_leader_whose_clock_is_off_from_its_group_s_time_is_an_alarm(
    ahead_ms: int, said: str
) -> None:
    replicas = [
        shown(f"{GROUP}/0", "leader", clock_ahead_ms=ahead_ms),
        shown(f"{GROUP}/1", "follower", clock_ahead_ms=86_400_000),  # it may have much to apply
    ]
    groups = {GROUP: {"leader": f"{GROUP}/0", "placement": "CREATED", "replicas": replicas}}
    controlling = [{"name": "controller-1", "duties": {}, "fenced": ""}]
    alarm = f"{GROUP}/0: its node's clock is {said} the time of {GROUP}"
    assert _alarms(groups, controlling) == [alarm] * bool(said)


def test_what_a_duty_leaves_to_an_operator_is_an_alarm() -> None:
    said = {"last_error": "", "paused": None, "alarms": ["broker 'b' is offline"]}
    controlling = [{"name": "controller-1", "duties": {"liveness": said}, "fenced": ""}]
    assert _alarms({}, controlling) == ["controller-1: liveness: broker 'b' is offline"]


def test_how_far_a_learner_is_behind_is_said_in_words() -> None:
    learner = shown(LEARNER, "learner", lag=1_234)
    assert _lag_of(learner) == f"learner {LEARNER} is 1,234 entries, 1,200 ms behind its leader"
    unknown = {**learner, "lag_ms": None}
    assert _lag_of(unknown) == f"learner {LEARNER} is 1,234 entries behind its leader"
    assert "no vote is missing" in _lag_of({**learner, "lag": None})
