"""Rows on a lease: which, whose, and what becomes of one that has changed since."""

from __future__ import annotations

from dataclasses import replace

import msgpack
import pytest

from state_machines import op, removal
from state_machines.errors import Conflict, Invalid, NotFound, QuotaExceeded
from state_machines.lease import ATTACHMENTS, LEASES, RevokeLeases
from state_machines.lease_rows import (
    ROWS_MAX,
    AttachRows,
    DetachRows,
    LeasedRow,
    ListLeasedRows,
)
from state_machines.metadata.kv import FLOORS, KV, DeleteKv, GetKv, PutKv
from state_machines.metadata.node import NODES, GetNode, HeartbeatNode, RegisterNode
from state_machines.metadata.segments import SEGMENTS
from state_machines.metadata.shard import CreateShards, ShardItem
from state_machines.metadata.shards import SHARDS
from state_machines.metadata.topic import (
    TOPIC_CONFIGS,
    CreateTopicConfigs,
    GetTopicConfig,
    NewTopic,
    TopicChange,
    UpdateTopicConfigs,
)
from state_machines.mqtt.topic import TOPICS
from state_machines.offset.rows import GROUPS
from state_machines.removal import REMOVERS
from state_machines.slots import SLOTS, SlotMap, SlotRange, slot_of
from state_machines.tables import TABLES, Tables
from state_machines.transaction import Compare, Transaction
from tests.entities.group import Group
from tests.entities.leases import TTL_S, Leased, beyond, row


@pytest.fixture
def group() -> Leased:
    return Leased()


def attach(lease: int, *keys: str) -> AttachRows:
    return AttachRows(lease_id=lease, rows=tuple(map(row, keys)))


def ends(group: Leased, lease: int) -> None:
    (outcome,) = group.run(RevokeLeases(items=(lease,)))
    assert outcome.ok
    group.check()


def test_rows_are_attached_and_listed(group: Leased) -> None:
    lease = group.grant()
    group.run(RegisterNode(node_id="n"))
    for key in "ba":
        group.run(PutKv(key=key, value=b""))
    assert group.run(attach(lease, "b", "a", "a")) == 2
    assert group.run(AttachRows(lease_id=lease, rows=(LeasedRow.of(NODES, "n"),))) == 3
    page = group.ask(ListLeasedRows(lease_id=lease, limit=2))
    rest = group.ask(ListLeasedRows(lease_id=lease, limit=2, after=page.next))
    assert page.rows + rest.rows == (row("a"), row("b"), LeasedRow.of(NODES, "n"))
    ends(group, lease)
    assert group.there("a", "b") == [False, False]
    assert group.ask(GetNode(node_id="n")) is None


def test_a_topic_goes_with_its_lease_whichever_revision_it_was_attached_by(group: Leased) -> None:
    """Two changes in one entry: its own revision is above the log index of its last change, by
    which earlier versions attached topics."""
    lease = group.grant()
    new = [NewTopic(name=name, protocol="kafka") for name in ("t", "u")]
    group.run(CreateTopicConfigs(items=tuple(new)))
    change = [TopicChange(name=each.name, read_queues=4) for each in new]
    group.together(*[UpdateTopicConfigs(items=tuple(change))] * 2)
    topics = [LeasedRow.of(TOPIC_CONFIGS, "default", name) for name in ("t", "u")]
    group.run(AttachRows(lease_id=lease, rows=tuple(topics)))
    db = Tables(group.store, group.index)
    now = db.get(ATTACHMENTS, TOPIC_CONFIGS.name, topics[0].key)
    found = db.versioned(TOPIC_CONFIGS, "default", "t")
    assert now is not None
    assert found is not None
    assert now.revision == found[0].revision > found[1]
    db.put(ATTACHMENTS, replace(now, revision=found[1]))
    ends(group, lease)
    assert [group.ask(GetTopicConfig(name=name)) for name in ("t", "u")] == [None, None]


def test_a_put_with_a_lease_that_is_over_does_not_happen(group: Leased) -> None:
    lease = group.grant()
    ends(group, lease)
    with group.refuses(NotFound, r"^then\[1\]: lease_id: "):
        group.put(lease, "a")


def test_all_rows_are_attached_or_none(group: Leased) -> None:
    lease = group.grant()
    group.run(PutKv(key="a", value=b""))
    with group.refuses(NotFound, r"^rows\[1\]: there is no such row"):
        group.run(attach(lease, "a", "b"))


def test_a_row_that_was_written_by_somebody_else_since_stays(group: Leased) -> None:
    lease = group.grant()
    group.put(lease, "mine", "theirs", "again")
    group.run(PutKv(key="theirs", value=b"free"))
    group.run(DeleteKv(key="again"))
    group.run(PutKv(key="again", value=b"leased"))
    ends(group, lease)
    assert group.there("mine", "theirs", "again") == [False, True, True]


def test_even_one_that_was_written_in_the_same_entry(group: Leased) -> None:
    lease = group.grant()
    mine = Transaction.of(then=[PutKv(key="a", value=b"1"), attach(lease, "a")])
    group.together(mine, PutKv(key="a", value=b"2"))
    ends(group, lease)
    assert group.there("a") == [True]


def test_one_that_its_owner_writes_anew_is_attached_again(group: Leased) -> None:
    lease = group.grant()
    for _ in range(3):
        group.put(lease, "a")
        assert group.lease(lease).rows == 1
    ends(group, lease)
    assert group.there("a") == [False]


def test_a_row_with_an_identity_may_change_and_is_still_the_same(group: Leased) -> None:
    """A broker's heartbeat changes its row; only a new registration makes it another."""
    lease = group.grant()
    for name in ("n1", "n2"):
        group.run(RegisterNode(node_id=name))
        group.run(AttachRows(lease_id=lease, rows=(LeasedRow.of(NODES, name),)))
    group.later(1)
    group.run(HeartbeatNode(node_id="n1", epoch=1))
    group.run(RegisterNode(node_id="n2"))
    ends(group, lease)
    assert group.ask(GetNode(node_id="n1")) is None
    assert group.ask(GetNode(node_id="n2")).epoch == 2


def test_a_row_that_is_gone_is_nothing(group: Leased) -> None:
    lease = group.grant()
    group.put(lease, "a", "b")
    group.run(DeleteKv(key="a"))
    group.later(TTL_S)
    assert group.expire().leases == 1
    assert group.there("a", "b") == [False, False]


def test_a_row_has_one_lease_the_last(group: Leased) -> None:
    first, second = group.grant(), group.grant()
    group.put(first, "a", "b")
    group.run(attach(second, "a"))
    assert [group.lease(each).rows for each in (first, second)] == [1, 1]
    ends(group, first)
    assert group.there("a", "b") == [True, False]
    ends(group, second)
    assert group.there("a") == [False]


def test_a_row_can_be_taken_from_a_lease_that_is_ending(group: Leased) -> None:
    first, second = group.grant(), group.grant(TTL_S * 2)
    group.put(first, "a", "b")
    group.later(TTL_S)
    assert group.expire(limit=2).rows == 1
    group.run(attach(second, "b"))
    group.check()
    assert group.expire().leases == 1
    assert group.there("a", "b") == [False, True]


def test_what_is_detached_stays(group: Leased) -> None:
    first, second = group.grant(), group.grant()
    group.put(first, "a", "b")
    assert group.run(DetachRows(lease_id=first, rows=(row("a"), row("a"), row("c")))) == 1
    assert group.run(DetachRows(lease_id=second, rows=(row("b"),))) == 0, "it is not its row"
    ends(group, first)
    assert group.there("a", "b") == [True, False]
    with group.refuses(NotFound, "^lease_id: "):
        group.run(DetachRows(lease_id=first, rows=(row("a"),)))


def test_a_key_that_went_with_its_lease_and_comes_back_has_a_revision_of_its_own(
    group: Leased,
) -> None:
    """Or who has seen the old one could replace the new one unseen."""
    lease = group.grant()
    made = Transaction.of(then=[PutKv(key="a", value=b"old"), attach(lease, "a")])
    done, _, new = group.together(made, RevokeLeases(items=(lease,)), PutKv(key="a", value=b"new"))
    (old, _) = made.answers(done).replies
    assert new > old
    with group.refuses(Conflict):
        group.run(PutKv(key="a", value=b"", expected_revision=old))
    assert group.ask(GetKv(key="a")).value == b"new"


def test_what_is_refused_in_a_transaction_leaves_the_leases_as_they_were(group: Leased) -> None:
    first, second = group.grant(), group.grant()
    group.put(first, "a")
    steps = [attach(second, "a"), RevokeLeases(items=(first,)), DeleteKv(key="nobody")]
    with group.refuses(NotFound, r"^then\[2\]: "):
        group.run(Transaction.of(then=steps))
    group.check()
    assert group.lease(first).rows == 1


# -- limits -------------------------------------------------------------------------------------


def test_a_lease_has_so_many_rows(group: Leased) -> None:
    lease = group.grant()
    keys = [f"k{number}" for number in range(ROWS_MAX + 2)]
    group.together(*[PutKv(key=key, value=b"") for key in keys])
    assert group.run(attach(lease, *keys[:ROWS_MAX])) == ROWS_MAX
    assert group.run(attach(lease, keys[0])) == ROWS_MAX
    with group.refuses(QuotaExceeded, rf"^rows: .* {ROWS_MAX + 1}, the limit is {ROWS_MAX}"):
        group.run(attach(lease, keys[-1]))
    group.run(DeleteKv(key=keys[0]))
    group.run(PutKv(key=keys[1], value=b"free"))
    assert group.run(attach(lease, keys[-1])) == ROWS_MAX - 1, "what is gone makes room"
    group.check()
    group.beyond(attach(lease, *keys[: ROWS_MAX + 1]), "rows")
    group.beyond(AttachRows(lease_id=lease, rows=()), "rows")


def test_rows_that_can_have_a_lease(group: Leased) -> None:
    good = row("a")
    for each in (AttachRows, DetachRows):
        for field, wrong in (
            ("rows[1].table", LeasedRow(table="no.such", key=good.key)),
            ("rows[1].table", LeasedRow.of(LEASES, 1)),
            ("rows[1].table", LeasedRow.of(FLOORS, "default", "a")),
            ("rows[1].key", LeasedRow(table=KV.name, key=b"")),
            ("rows[1].key", LeasedRow.of(KV, "default")),
        ):
            beyond(group, each(lease_id=1, rows=(good, wrong)), field)
    for wrong in (
        LeasedRow.of(SHARDS, "default", "s"),
        LeasedRow.of(SEGMENTS, "default", "s", 0),
        LeasedRow.of(GROUPS, "default", "g"),
    ):
        beyond(group, AttachRows(lease_id=1, rows=(good, wrong)), "rows[1].table")


def test_nothing_that_a_group_lives_by_can_be_removed() -> None:
    assert {"metadata.kv", "metadata.node"} <= set(REMOVERS)
    for name in REMOVERS:
        assert TABLES[name].kind, f"{name} is of every group"


def test_however_a_key_is_spelled_it_is_one_row(group: Leased) -> None:
    first, second = group.grant(), group.grant()
    group.put(first, "a")
    spelled = bytes([0x92, 0xD9, 7]) + b"default" + bytes([0xD9, 1]) + b"a"
    assert msgpack.unpackb(spelled) == ["default", "a"]
    group.run(AttachRows(lease_id=second, rows=(LeasedRow(table=KV.name, key=spelled),)))
    group.check()
    assert [group.lease(each).rows for each in (first, second)] == [0, 1]


# -- one group ----------------------------------------------------------------------------------


def test_an_attachment_finds_the_group_of_its_rows() -> None:
    halves = (
        SlotRange(0, SLOTS // 2 - 1, "metadata-0"),
        SlotRange(SLOTS // 2, SLOTS - 1, "metadata-1"),
    )
    two = SlotMap(3, {"metadata": halves})
    low, high = "", ""
    for key in map(str, range(100)):
        low, high = (low, key) if slot_of(("default", key)) > halves[0].last else (key, high)
    for key, group in ((low, "metadata-0"), (high, "metadata-1")):
        for made in (attach(1, key), DetachRows(lease_id=1, rows=(row(key),))):
            assert two.route(made) == [(group, made)]
        put = Transaction.of(then=[PutKv(key=key, value=b""), attach(1, key)])
        assert two.route(put) == [(group, put)]
    with pytest.raises(Invalid, match="one group is wanted"):
        two.route(attach(1, low, high))


def test_a_group_of_another_kind_refuses_it() -> None:
    group = Group("mqtt")
    with pytest.raises(Invalid, match="does not belong to mqtt-0"):
        group.machine.admit(group.proposal(attach(1, "a")))
    mixed = Transaction.of(compare=[Compare.exists(TOPICS, "default", "t")], then=[attach(1, "a")])
    with pytest.raises(Invalid, match=r"^then: one group is wanted, these lie in metadata, mqtt"):
        op.validate(mixed)


def of_an_earlier_version(lease: int, rows: tuple[LeasedRow, ...], group: Leased) -> None:
    """Which attached rows of these tables, too."""
    removal.LEASABLE.add(SHARDS.name)
    try:
        group.run(AttachRows(lease_id=lease, rows=rows))
    finally:
        removal.LEASABLE.discard(SHARDS.name)


@pytest.mark.parametrize("detached", [True, False])
def test_a_row_that_can_have_no_lease_any_more_can_be_taken_off_and_stays(
    group: Leased, detached: bool
) -> None:
    group.run(RegisterNode(node_id="n1"))
    (made,) = group.run(CreateShards(items=(ShardItem(name="s", nodes=("n1",)),)))
    assert made.ok
    lease = group.grant()
    of_an_earlier_version(lease, (LeasedRow.of(SHARDS, "default", "s"),), group)
    if detached:
        rows = (LeasedRow.of(SHARDS, "default", "s"),)
        assert group.run(DetachRows(lease_id=lease, rows=rows)) == 0
    ends(group, lease)
    assert group.rows(SHARDS.name) == 1
