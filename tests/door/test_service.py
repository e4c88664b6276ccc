"""Starting the service: what it makes, what a second start changes, what it refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from actors import bootstrap, calls, cpu_latency, placement, remote
from actors.config import ClusterConfig
from actors.placement import NotEnoughNodes
from metaray import connect_sync
from metaray.local import LocalCluster
from metaray.overview import overview
from metaray.service import start_service
from state_machines.errors import Conflict
from tests.door.seats import ask, leader, seats, statuses, wait_for, wait_until_whole
from tests.kernel import slices_ns, takes_slices

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

GROUPS = ("metadata-0", "offset-0", "mqtt-0")
COLOCATED = "offset-1"


def test_every_group_stands_on_three_nodes_with_a_leader_and_a_controller() -> None:
    for group in GROUPS:
        assert seats(group) == [f"{group}/{number}" for number in range(3)]
        assert len({ask(seat, "node") for seat in seats(group)}) == 3
        wait_until_whole(group)
    controller, leads = bootstrap.wait_for_controller(seats("metadata-0"))
    assert leads == leader("metadata-0")["seat"]
    assert controller["node"] == ask(leads, "node")
    assert placement.alarms(placement.observe()) == ()


def test_replicas_and_clients_talk_over_tcp() -> None:
    def linked() -> bool:
        replicas = [each for group in GROUPS for each in statuses(group).values()]
        return all(set(each["carriers"].values()) == {"tcp"} for each in replicas)

    wait_for(linked, "all replicas have links")
    with connect_sync() as client:
        wait_for(
            lambda: client.put("linked", b"") and client._client._groups._links.up(),
            "the client has a link to whoever leads",
        )


LOWERED = """
from actors import autogroup
autogroup.begin({nice})
print(open("/proc/self/autogroup").read().split()[-1])
"""


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="no autogroups here")
def test_each_replica_has_an_autogroup_and_metadata_the_largest_share() -> None:
    """As far as this user may lower nice values, which a process like theirs tells."""
    program = LOWERED.format(nice=ClusterConfig().raft.metadata_nice)
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    for group in GROUPS:
        for seat in seats(group):
            process = ask(seat, "process")
            assert os.getsid(process) == process
            nice = Path(f"/proc/{process}/autogroup").read_text().split()[-1]
            assert nice == (told.stdout.strip() if group == "metadata-0" else "0")


@pytest.mark.skipif(not takes_slices(), reason="this kernel takes no slices, or hides them")
def test_voters_of_metadata_have_short_turns_and_no_others() -> None:
    wanted = {ClusterConfig().raft.metadata_slice_us * 1_000}
    for group in GROUPS:
        for seat in seats(group):
            found = slices_ns(ask(seat, "process"))
            assert len(found) > 1
            assert ({*found} == wanted) == (group == "metadata-0")


@pytest.mark.skipif(not os.access(cpu_latency.FILE, os.W_OK), reason="nobody may ask for it here")
def test_busy_replicas_keep_the_processors_awake_and_quiet_ones_do_not() -> None:
    # Asked once: to be asked again and again would keep them busy.
    processes = {seat: ask(seat, "process") for group in GROUPS for seat in seats(group)}

    def asks(seat: str) -> bool:
        files = Path(f"/proc/{processes[seat]}/fd")
        return cpu_latency.FILE in [
            each.readlink() for each in files.iterdir() if each.is_symlink()
        ]

    def busy() -> bool:
        for number in range(200):
            client.put(f"awake/{number}", b"")
        return all(asks(seat) for seat in seats("metadata-0"))

    with connect_sync() as client:
        wait_for(busy, "those that work keep the processors awake")
    wait_for(
        lambda: not any(map(asks, processes)),
        "those that do not let them sleep",
    )


def test_a_second_start_changes_nothing(tenant: str) -> None:
    def ids() -> dict[str, tuple[int, int]]:
        known = [each for group in GROUPS for each in statuses(group).values()]
        return {each["seat"]: (each["replica"], each["boot"]) for each in known}

    with connect_sync() as client:
        client.put("kept", b"before", tenant=tenant)
        before, terms = ids(), {group: leader(group)["term"] for group in GROUPS}
        started = list(start_service(ClusterConfig()))
        assert [name for name, _, _ in started[:3]] == list(GROUPS)
        assert started[3][0].startswith("controller-")
        assert ids() == before
        assert len(before) == 9
        assert all(leader(group)["term"] >= terms[group] for group in GROUPS)
        kept = client.get("kept", tenant=tenant)
        assert kept is not None
        assert kept.value == b"before"


STARTING = """
import ray
from actors import remote
from actors.ray_env import NAMESPACE
ray.init(address={address!r}, namespace=NAMESPACE, log_to_driver=False)
guard = remote.starting()
guard.__enter__()
print("started", flush=True)
input()
"""


def test_a_start_leaves_another_one_alone_and_one_that_died_is_in_nobodys_way(
    service: LocalCluster,
) -> None:
    """The second took the places of the first for left over, and neither came about."""
    actors, places = calls.named_actors(), placement.states()
    program = STARTING.format(address=service.address)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"started\n"
        with pytest.raises(Conflict, match="another start is under way"):
            next(start_service(ClusterConfig(groups=(*GROUPS, COLOCATED))))
        assert calls.named_actors() == actors | {remote.START}
        assert placement.states() == places
        other.kill()
    wait_for(lambda: remote.START not in calls.named_actors(), "its guard is gone")
    assert next(start_service(ClusterConfig()))[0] == "metadata-0"
    assert calls.named_actors() == actors


def test_more_replicas_than_nodes_is_refused_with_both_numbers_and_leaves_nothing() -> None:
    actors, places = calls.named_actors(), placement.states()
    config = ClusterConfig(groups=(*GROUPS, COLOCATED), replicas=5)
    with pytest.raises(NotEnoughNodes) as refused:
        bootstrap.start_group(config, COLOCATED, "")
    assert re.search(r"wants 5 replicas .* 3 of 3 nodes", refused.value.detail)
    assert "--allow-colocated" in refused.value.detail
    assert calls.named_actors() == actors
    assert placement.states() == places


def test_a_running_group_keeps_its_number_of_replicas() -> None:
    with pytest.raises(Exception, match="replicas is 1, but metadata-0 was placed with 3"):
        next(start_service(ClusterConfig(replicas=1)))


def test_replicas_may_share_a_node_when_asked_to_and_are_taken_off_again() -> None:
    config = ClusterConfig(groups=(*GROUPS, COLOCATED), replicas=5, allow_colocated=True)
    cluster = str(leader("metadata-0")["cluster"])
    try:
        assert bootstrap.start_group(config, COLOCATED, cluster) == cluster
        assert len(seats(COLOCATED)) == 5
        wait_until_whole(COLOCATED)
        assert len({each["replica"] for each in statuses(COLOCATED).values()}) == 5
        nodes = [ask(seat, "node") for seat in seats(COLOCATED)]
        assert len(set(nodes)) == 3
    finally:
        placement.remove([COLOCATED])
    assert seats(COLOCATED) == []
    assert COLOCATED not in placement.states()


def test_the_overview_is_whole_and_without_alarms(service: LocalCluster) -> None:
    for group in GROUPS:
        wait_until_whole(group)
    bootstrap.wait_for_controller(seats("metadata-0"))
    seen = overview()
    if seen["alarms"]:  # the controller's word on a fault of the test before, until its next run
        wait_for(lambda: not overview()["alarms"], f"no alarm; first: {seen['alarms']}")
    assert set(seen["groups"]) == set(GROUPS)
    for name, group in seen["groups"].items():
        assert group["placement"] == "CREATED"
        assert group["leader"] in seats(name)
        assert [each["seat"] for each in group["replicas"]] == seats(name)
    assert sum(node["alive"] for node in seen["nodes"]) == len(service.nodes)
