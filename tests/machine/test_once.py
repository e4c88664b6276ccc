"""What a group remembers of its clients: bounded, part of the state, exact (proof D5, D6).

`test_machine.py` asks what a caller sees of it; here is what lies in the rows.
"""

from __future__ import annotations

import pytest

from state_machines import clients
from state_machines.metadata.kv import PutKv
from state_machines.metadata.node import GetNode, RegisterNode
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group
from tests.machine.alone import wire

JOIN = RegisterNode(node_id="b1")  # not idempotent: every time it raises the epoch


def join(group: Group, sequence: int, acked: int = 0) -> api.Proposal:
    return api.Proposal(client=group.client, sequence=sequence, acked=acked, commands=[wire(JOIN)])


def epoch(group: Group) -> int:
    node = group.ask(GetNode(node_id="b1"))
    return node.epoch if node is not None else 0


def test_a_duplicate_touches_nothing_but_the_clock() -> None:
    group = Group("metadata")
    first = group.entry(join(group, 1))
    before = group.store.dump()
    group.later(60)
    assert group.entry(join(group, 1)) == first
    after = group.store.dump()
    assert after.pop("group.clock") != before.pop("group.clock")
    assert after == before
    assert epoch(group) == 1


def test_a_refusal_is_kept_like_any_reply() -> None:
    group = Group("metadata")
    refused = group.proposal(PutKv(key="k", value=b"1", expected_revision=7))
    (first,) = group.entry(refused)
    assert first.results[0].code == api.CONFLICT
    other = api.Proposal(client=group.client, sequence=2, commands=[wire(JOIN)])
    group.entry(other)
    assert group.entry(refused) == [first]


def test_bytes_that_move_between_commands_are_another_body() -> None:
    def checksum(*commands: tuple[str, bytes]) -> int:
        return clients.checksum(
            api.Proposal(commands=[api.Command(tag=tag, body=body) for tag, body in commands])
        )

    one = checksum(("a", b"bc"), ("d", b""))
    assert one == checksum(("a", b"bc"), ("d", b""))
    assert one != checksum(("ab", b"c"), ("d", b""))
    assert one != checksum(("a", b"b"), ("cd", b""))
    assert one != checksum(("a", b"bc"))


def test_the_same_tag_and_body_in_another_order_is_another_body() -> None:
    group = Group("metadata")
    first = group.proposal(PutKv(key="a", value=b""), PutKv(key="b", value=b""))
    group.entry(first)
    turned = api.Proposal(client=group.client, sequence=1, commands=first.commands[::-1])
    assert group.entry(turned)[0].code == api.INVALID


def test_acked_trims_the_kept_replies() -> None:
    group = Group("metadata")
    for sequence in range(1, 11):
        group.entry(join(group, sequence))
    assert group.rows("group.reply") == 10
    group.entry(join(group, 11, acked=9))
    assert group.rows("group.reply") == 2
    assert group.entry(join(group, 10))[0].code == api.OK
    assert epoch(group) == 11


def test_nobody_acknowledges_the_answer_he_waits_for() -> None:
    group = Group("metadata")
    first = group.entry(join(group, 3, acked=3))
    assert group.entry(join(group, 3, acked=3)) == first
    assert epoch(group) == 1


def test_acknowledgements_do_not_go_back() -> None:
    group = Group("metadata")
    for sequence, acked in ((1, 0), (2, 0), (3, 2), (4, 0)):
        group.entry(join(group, sequence, acked))
    assert group.rows("group.reply") == 2
    assert group.entry(join(group, 2))[0].code == api.INVALID


def test_a_forgotten_client_takes_only_its_own_along(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 3)
    group = Group("metadata")
    group.entry(join(group, 1), join(group, 2))
    second, third = group.register(), group.register()
    for client in (second, third):
        group.entry(api.Proposal(client=client, sequence=1, commands=[wire(JOIN)]))
    group.register()  # one more than there may be: the one silent longest goes
    (reply,) = group.entry(join(group, 1))
    assert reply.code == api.SESSION_EXPIRED
    assert reply.detail.startswith(f"client: {group.client} ")
    assert epoch(group) == 4
    assert group.rows("group.reply") == 2
    assert group.rows("group.client") == group.rows("group.client_seen") == 3


def test_a_client_that_speaks_is_not_the_one_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 2)
    group = Group("metadata")
    silent = group.register()
    for sequence in range(1, clients.TOUCH_ENTRIES + 2):
        group.entry(join(group, sequence, sequence - 1))
    group.register()
    assert group.entry(join(group, 100))[0].code == api.OK
    group.client = silent
    assert group.entry(join(group, 1))[0].code == api.SESSION_EXPIRED


def test_many_clients_leave_as_many_rows_as_there_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 5)
    group = Group("metadata")
    for _ in range(50):
        group.client, group.sequence = group.register(), 0
        group.run(JOIN)
        group.run(JOIN)
    assert group.rows("group.client") == group.rows("group.client_seen") == 5
    assert group.rows("group.reply") <= 5


def test_nobody_has_the_reply_before_it_is_given() -> None:
    """A number out of a broken client: what it proposes next is no retry of what was answered."""
    group = Group("metadata")
    (first,) = group.entry(join(group, 1, acked=1_000))
    assert group.entry(join(group, 1, acked=1_000)) == [first]
    (second,) = group.entry(join(group, 2))
    assert (second.code, epoch(group)) == (api.OK, 2)
