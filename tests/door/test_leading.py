"""Leaderships that go where an operator wants them, while writers go on."""

from __future__ import annotations

import pytest
import ray

from actors import calls
from metaray import connect_sync
from metaray.leading import drain, transfer
from state_machines.errors import NoQuorum, NotFound
from state_machines.offset.offset import OffsetCommit
from tests.door.seats import ask, follower, leader, seats, wait_until_whole
from tests.door.test_cli import refused, run

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("service")]

GROUPS = ("metadata-0", "offset-0", "mqtt-0")


def places(group: str) -> dict[str, str]:
    """The Ray node of each seat."""
    return {seat: ask(seat, "node") for seat in seats(group)}


def test_a_voter_leads_when_it_is_told_to(tenant: str) -> None:
    wait_until_whole("offset-0")
    before, target = leader("offset-0"), follower("offset-0")
    commit = OffsetCommit(group="g", topic="t", partition=0, offset=1)
    with connect_sync() as client:
        client.commit_offsets([commit], tenant=tenant)
        handed = transfer(target)
        assert handed == ("offset-0", before["seat"], target)
        client.commit_offsets([commit], tenant=tenant)
        [row] = client.fetch_offsets("g", tenant=tenant)
    assert row.commits == 2
    after = leader("offset-0")
    assert (after["seat"], after["term"]) == (target, before["term"] + 1)
    assert transfer(target) is None
    assert run("transfer", target).stdout == f"{target} leads already\n"


def test_nobody_leads_on_a_node_that_was_drained() -> None:
    for each in GROUPS:
        wait_until_whole(each)
    node = places("offset-0")[leader("offset-0")["seat"]]
    led = [each for each in GROUPS if places(each)[leader(each)["seat"]] == node]
    result = run("drain", node)
    assert result.exit_code == 0, result.output
    assert result.stdout.count(" leads, after ") == len(led)
    for each in GROUPS:
        assert places(each)[leader(each)["seat"]] != node
    name = next(each["NodeName"] for each in ray.nodes() if each["NodeID"] == node)
    assert drain(name) == []
    assert run("drain", node).stdout == f"no replica on {node} leads\n"


def test_what_cannot_lead_is_refused_by_name() -> None:
    wait_until_whole("offset-0")
    term = leader("offset-0")["term"]
    with pytest.raises(NotFound, match="seat: 'offset-0/9' has no replica that answers; there are"):
        transfer("offset-0/9")
    with pytest.raises(NotFound, match=r"seat: 'nobody-0/0' has no replica .*; there are none"):
        transfer("nobody-0/0")
    assert "NotFound: node: there is no 'n9'; there are " in refused("drain", "n9")
    assert leader("offset-0")["term"] == term


def test_a_node_whose_leaderships_nobody_can_take_keeps_them_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All seats look as if they were on the node that is to be drained."""
    node = ray.nodes()[0]["NodeID"]
    each_call = calls.each_call

    def crowded(names: list[str], method: str, **more: float) -> dict[str, object]:
        if method == "node":
            return dict.fromkeys(names, node)
        found: dict[str, object] = each_call(names, method, **more)
        return found

    monkeypatch.setattr(calls, "each_call", crowded)
    with pytest.raises(NoQuorum, match="metadata-0: no voter on another node could lead"):
        drain(node)
