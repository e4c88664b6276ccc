"""What is written beside the rows of the entities, and taken back with them."""

from __future__ import annotations

from state_machines.metadata.node import RegisterNode
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group
from tests.machine.alone import wire

JOIN = RegisterNode(node_id="b1")


def join(group: Group, sequence: int, acked: int) -> api.Proposal:
    return api.Proposal(client=group.client, sequence=sequence, acked=acked, commands=[wire(JOIN)])


def test_who_acknowledged_his_own_proposal_can_still_ask_for_its_reply_later() -> None:
    group = Group("metadata")
    first = group.entry(join(group, 3, acked=3))
    group.entry(join(group, 4, acked=0))
    assert group.entry(join(group, 3, acked=3)) == first
