"""The controller's steps for shared subscriptions, over the machines of three groups."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from actors.clock import SystemClock
from actors.config import RaftSettings
from actors.duties import share_groups
from actors.duties.duty import Context
from actors.duties.share_groups import ShareBrokers, ShareMembers
from state_machines import op
from state_machines.errors import Fenced
from state_machines.metadata.node import ExpireNodes, RegisterNode, UnregisterNode
from state_machines.mqtt.session import DeleteSessions, GetSession, OpenSession
from state_machines.mqtt.share_group import (
    GetShareGroup,
    JoinShareGroups,
    ListShareMembers,
    RemoveShareBroker,
    ShareJoin,
)
from state_machines.slots import SLOTS, SlotMap, SlotRange
from tests.machine.alone import Group

T = TypeVar("T")
HALF = SLOTS // 2
TWO = SlotMap(1, {"mqtt": (SlotRange(0, HALF - 1, "mqtt-0"), SlotRange(HALF, SLOTS - 1, "mqtt-1"))})


class Cluster:
    """Groups and caller in one: two groups of the kind `mqtt`."""

    def __init__(self) -> None:
        self.made = {
            "metadata-0": Group("metadata"),
            "mqtt-0": Group("mqtt"),
            "mqtt-1": Group("mqtt"),
        }
        self.called: list[Any] = []

    def groups(self) -> list[str]:
        return sorted(self.made)

    async def call(self, operation: Any, /, *, group: str = "") -> Any:
        await asyncio.sleep(0)
        self.called.append(operation)
        return self.now(operation, group)

    def now(self, operation: Any, group: str = "") -> Any:
        parts = [(group, operation)] if group else TWO.route(operation)
        replies = [
            (self.made[name].ask if op.is_query(type(part)) else self.made[name].run)(part)
            for name, part in parts
        ]
        if len(parts) == 1:
            return replies[0]
        return op.join(operation, [part for _, part in parts], replies)

    def join(self, broker: str, client: str, *names: str, created_ms: int = 0) -> None:
        items = tuple(
            ShareJoin(name=each, client_id=client, filter="t", session_created_ms=created_ms)
            for each in names
        )
        self.now(JoinShareGroups(broker=broker, items=items))

    def members(self, client: str) -> set[str]:
        found = self.now(ListShareMembers()).members
        return {each.name for each in found if each.client_id == client}

    def leaders(self, *names: str) -> list[str]:
        found = [self.now(GetShareGroup(name=each)) for each in names]
        return ["" if each is None else each.leader for each in found]


class ShareDuty:
    """Both duties of one controller."""

    def __init__(self, cluster: Cluster, epoch: int) -> None:
        anyone: Any = cluster
        self._context = Context(epoch, anyone, anyone, anyone, RaftSettings(), SystemClock())
        self._brokers, self._members = ShareBrokers(), ShareMembers()

    def gone(self) -> Coroutine[Any, Any, int]:
        return self._brokers.step(self._context)

    def sweep(self) -> Coroutine[Any, Any, int]:
        return self._members.step(self._context)


NAMES = tuple(f"g{number}" for number in range(6))  #: of both groups of the kind


@pytest.fixture
def cluster() -> Cluster:
    found = Cluster()
    for each in ("b1", "b2"):
        found.now(RegisterNode(node_id=each))
    assert {TWO.group_of("mqtt", ("default", each)) for each in NAMES} == {"mqtt-0", "mqtt-1"}
    return found


def run(step: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(step)


def test_nothing_is_done_while_every_broker_is_there(cluster: Cluster) -> None:
    duty = ShareDuty(cluster, 1)
    assert run(duty.gone()) == 0
    assert len(cluster.called) == 2, "without members nobody asks for nodes"
    cluster.join("b1", "c1", *NAMES)
    assert run(duty.gone()) == 0
    assert cluster.leaders(*NAMES) == ["b1"] * 6


@pytest.mark.parametrize("how", ["silent", "left"])
def test_a_broker_that_is_gone_is_gone_from_every_group(
    cluster: Cluster, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "ROWS_A_COMMAND", 1)
    monkeypatch.setattr(share_groups, "PAGE", 1)
    cluster.join("b1", "c1", *NAMES)
    cluster.join("b2", "c2", *NAMES[:5])
    if how == "left":
        cluster.now(UnregisterNode(node_id="b1", epoch=1))
    else:
        expire = ExpireNodes(controller_epoch=1, timeout_ms=30_000)
        cluster.now(expire)
        cluster.made["metadata-0"].now_ms += 60_000
        cluster.now(RegisterNode(node_id="b2"))
        assert cluster.now(expire) == ("b1",)
    duty = ShareDuty(cluster, 1)
    assert run(duty.gone()) == 2, "once in each group"
    assert cluster.leaders(*NAMES) == ["b2"] * 5 + [""]
    assert run(duty.gone()) == 0


def test_a_broker_that_is_back_while_it_is_removed_keeps_what_joins_by_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "ROWS_A_COMMAND", 1)
    cluster.join("b1", "c1", *NAMES)
    cluster.now(UnregisterNode(node_id="b1", epoch=1))
    call, removals = cluster.call, list[RemoveShareBroker]()

    async def called(operation: Any, /, *, group: str = "") -> Any:
        reply = await call(operation, group=group)
        if isinstance(operation, RemoveShareBroker):
            removals.append(operation)
            if len(removals) == 1:
                cluster.now(RegisterNode(node_id="b1"))
                cluster.join("b1", "c9", *NAMES)
        return reply

    monkeypatch.setattr(cluster, "call", called)
    run(ShareDuty(cluster, 1).gone())
    assert cluster.members("c9") == {*NAMES}
    assert cluster.leaders(*NAMES) == ["b1"] * 6


def test_a_member_whose_session_is_in_another_group_goes_with_it(cluster: Cluster) -> None:
    clients = [f"c{number}" for number in range(6)]
    for each in clients:
        cluster.now(OpenSession(client_id=each, broker="b1"))
        cluster.join("b1", each, *NAMES)
    cluster.now(DeleteSessions(client_ids=tuple(clients[:3])))
    left = cluster.now(ListShareMembers())
    assert 18 < len(left.members) < 36, "some have gone with their session"
    duty = ShareDuty(cluster, 1)
    assert run(duty.sweep()) == len(left.members) - 18
    assert {each.client_id for each in cluster.now(ListShareMembers()).members} == set(clients[3:])
    assert run(duty.sweep()) == 0


def test_a_member_of_an_earlier_session_of_its_client_goes(cluster: Cluster) -> None:
    """A session that begins anew has nothing of the one before, in whichever group that is."""
    clients = ("ends", "goes on", "unknown")

    def open_all(*clean: str) -> None:
        for each in clients:
            opens = OpenSession(client_id=each, broker="b1", expiry_s=9, clean_start=each in clean)
            cluster.now(opens)

    def join(client: str) -> None:
        created_ms = cluster.now(GetSession(client_id=client)).created_ms
        known = client != "unknown"
        cluster.join("b1", client, *NAMES, created_ms=created_ms if known else 0)

    open_all()
    for each in clients:
        join(each)
    for group in cluster.made.values():
        group.now_ms += 1
    open_all("ends", "unknown")
    left = len(cluster.members("ends"))
    duty = ShareDuty(cluster, 1)
    assert run(duty.sweep()) == left > 0
    assert cluster.members("ends") == set()
    assert cluster.members("goes on") == set(NAMES)
    assert cluster.members("unknown") != set()
    join("ends")
    assert run(duty.sweep()) == 0


def test_a_sweep_goes_on_where_it_was_and_begins_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "PAGE", 2)
    for each in range(5):
        cluster.join("b1", f"c{each}", "g0")
    duty = ShareDuty(cluster, 1)
    assert [run(duty.sweep()) for _ in range(4)] == [2, 2, 1, 0]
    assert cluster.leaders("g0") == [""]


def test_an_old_controller_is_told_so(cluster: Cluster) -> None:
    """Law 20."""
    cluster.join("b9", "c1", "g0")
    for group in ("mqtt-0", "mqtt-1"):
        cluster.now(RemoveShareBroker(controller_epoch=7, broker="nobody"), group)
    duty = ShareDuty(cluster, 6)
    for step in (duty.gone(), duty.sweep()):
        with pytest.raises(Fenced):
            run(step)
    assert cluster.leaders("g0") == ["b9"]
