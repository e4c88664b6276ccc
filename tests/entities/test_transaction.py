"""Transactions: one branch or the other, all of it or nothing, in one group, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import pytest

from state_machines import op, packing, row_key
from state_machines.errors import (
    Conflict,
    Fenced,
    Invalid,
    NotFound,
    QuotaExceeded,
)
from state_machines.fence import EPOCHS
from state_machines.lease import ExpireLeases
from state_machines.limits import PARTS_MAX, VALUE_BYTES_MAX
from state_machines.metadata.kv import KV, DeleteKv, GetKv, KvEntry, PutKv, RangeKv
from state_machines.metadata.node import NODES, GetNode, RegisterNode
from state_machines.metadata.topic import (
    TOPIC_CONFIGS,
    CreateTopicConfigs,
    GetTopicConfig,
    NewTopic,
    TopicChange,
    UpdateTopicConfigs,
)
from state_machines.quota import GroupQuota, SetQuotas
from state_machines.raft.messages import Entry
from state_machines.tables import TABLES
from state_machines.transaction import (
    COMPARES_MAX,
    EQUAL,
    EXISTS,
    GREATER,
    LESS,
    NOT_EQUAL,
    STEP_BYTES_MAX,
    STEPS_MAX,
    Compare,
    Step,
    Transacted,
    Transaction,
)
from state_machines.wire import api_pb2 as api
from tests.entities.group import Group
from tests.entities.leases import beyond
from tests.machine.alone import wire


def transact(
    group: Group,
    then: Sequence[Any] = (),
    compare: Sequence[Compare] = (),
    otherwise: Sequence[Any] = (),
) -> Transacted:
    made = Transaction.of(compare=compare, then=then, otherwise=otherwise)
    return made.answers(group.run(made))


def revision_is(key: str, relation: str, revision: int) -> Compare:
    return Compare.revision_is(KV, "default", key, relation=relation, revision=revision)


def value(group: Group, key: str) -> bytes | None:
    entry = group.ask(GetKv(key=key))
    return entry.value if entry is not None else None


@pytest.fixture
def group() -> Group:
    return Group("metadata")


# -- branches -----------------------------------------------------------------------------------


def test_one_branch_runs_and_its_replies_are_typed(group: Group) -> None:
    free = [Compare.absent(KV, "default", "leader")]
    claim, look = [PutKv(key="leader", value=b"b1")], [GetKv(key="leader")]
    first = transact(group, claim, free, look)
    assert (first.succeeded, first.revision, first.replies) == (True, group.index, (group.index,))
    taken = group.index
    second = transact(group, claim, free, look)
    assert not second.succeeded
    assert second.replies == (KvEntry("leader", b"b1", taken),)


def test_a_step_sees_what_those_before_it_have_written(group: Group) -> None:
    done = transact(
        group,
        [
            PutKv(key="a", value=b"1"),
            GetKv(key="a"),
            RegisterNode(node_id="n"),
            GetNode(node_id="n"),
            DeleteKv(key="a"),
            RangeKv(),
        ],
    )
    _, read, registered, node, nothing, page = done.replies
    assert read == KvEntry("a", b"1", group.index)
    assert registered == node
    assert nothing is None
    assert page.entries == ()


def test_it_may_only_ask(group: Group) -> None:
    group.run(PutKv(key="a", value=b"1"))
    assert transact(group, [], [Compare.exists(KV, "default", "a")]).succeeded
    assert not transact(group, [], [Compare.exists(KV, "default", "b")]).succeeded


def test_every_compare_has_to_hold(group: Group) -> None:
    group.run(PutKv(key="a", value=b"1"))
    there, gone = Compare.exists(KV, "default", "a"), Compare.exists(KV, "default", "b")
    assert transact(group, [], [there, there]).succeeded
    assert not transact(group, [], [there, gone]).succeeded
    assert not transact(group, [], [gone, there]).succeeded


# -- what a revision is -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("relation", "below", "same", "above"),
    [
        (EQUAL, False, True, False),
        (NOT_EQUAL, True, False, True),
        (LESS, False, False, True),
        (GREATER, True, False, False),
    ],
)
def test_relations(group: Group, relation: str, below: bool, same: bool, above: bool) -> None:
    at = group.run(PutKv(key="a", value=b"1"))
    found = [
        transact(group, [], [revision_is("a", relation, revision)]).succeeded
        for revision in (at - 1, at, at + 1)
    ]
    assert found == [below, same, above]


def test_the_revision_of_a_key_is_the_one_that_clients_see(group: Group) -> None:
    """Two writes of one entry: the key is one ahead of the log, and the compare knows it."""
    first, second = group.together(PutKv(key="a", value=b"1"), PutKv(key="a", value=b"2"))
    entry = group.ask(GetKv(key="a"))
    assert (first, second, entry.revision) == (group.index, group.index + 1, group.index + 1)
    assert transact(group, [], [revision_is("a", EQUAL, entry.revision)]).succeeded
    assert not transact(group, [], [revision_is("a", EQUAL, first)]).succeeded


def test_a_row_without_a_revision_of_its_own_has_the_index_of_its_change(group: Group) -> None:
    group.run(RegisterNode(node_id="n"))
    at = group.index
    group.run(PutKv(key="a", value=b""))

    def same(revision: int) -> bool:
        compare = Compare.revision_is(NODES, "n", relation=EQUAL, revision=revision)
        return transact(group, [], [compare]).succeeded

    assert [same(at), same(at + 1)] == [True, False]


def test_what_is_not_there_has_revision_0(group: Group) -> None:
    assert transact(group, [], [revision_is("a", EQUAL, 0), revision_is("a", LESS, 1)]).succeeded
    group.run(PutKv(key="a", value=b""))
    assert not transact(group, [], [revision_is("a", EQUAL, 0)]).succeeded


def test_a_topic_has_the_revision_that_its_writers_know(group: Group) -> None:
    """Two who change it at once share an entry: one of them knows its log index."""
    group.run(CreateTopicConfigs(items=(NewTopic(name="t", protocol="kafka"),)))
    first, second = [
        outcome.revision
        for (outcome,) in group.together(
            *(UpdateTopicConfigs(items=(TopicChange(name="t", read_queues=n),)) for n in (4, 8))
        )
    ]
    assert first < second == group.ask(GetTopicConfig(name="t")).revision

    def same(revision: int) -> bool:
        topic = Compare.revision_is(
            TOPIC_CONFIGS, "default", "t", relation=EQUAL, revision=revision
        )
        return transact(group, [], [topic]).succeeded

    assert [same(first), same(second)] == [False, True]


OF_SOMETHING_ELSE = {
    "group.lease_attachment",  # of the row that is attached
    "group.repaired",  # of the repair
    "metadata.kv_floor",  # of rows that are gone
    "metadata.revision_floor",
}


def test_a_row_with_a_revision_of_its_own_is_compared_by_it() -> None:
    rows: dict[str, Any] = {name: table.row for name, table in TABLES.items()}
    own = {name for name, row in rows.items() if "revision" in packing.field_names(row)}
    assert own >= OF_SOMETHING_ELSE
    named = {name for name, table in TABLES.items() if table.revision_field == "revision"}
    assert named == own - OF_SOMETHING_ELSE


def test_only_tables_of_such_rows_name_a_revision_field() -> None:
    for table in TABLES.values():
        row: Any = table.row
        names = packing.field_names(row)
        for field in (table.revision_field, table.identity_field):
            assert not field or field in names, table.name
        assert set(table.slot_fields or ()) <= set(table.key), table.name


# -- all or nothing -----------------------------------------------------------------------------


def test_a_refused_step_is_named_and_nothing_has_changed(group: Group) -> None:
    group.run(PutKv(key="b", value=b"old"))
    steps = [
        PutKv(key="a", value=b"1"),  # a settled write: it has to be taken back as well
        PutKv(key="b", value=b"new"),
        RegisterNode(node_id="n"),
        DeleteKv(key="nobody"),
        PutKv(key="c", value=b"1"),
    ]
    with group.refuses(NotFound, r"^then\[3\]: key: 'nobody' is not there$"):
        transact(group, steps)
    with group.refuses(Conflict, r"^otherwise\[0\]: expected_revision: "):
        transact(
            group,
            [],
            [Compare.absent(KV, "default", "b")],
            [PutKv(key="b", value=b"", expected_revision=1)],
        )


def test_a_refused_transaction_leaves_its_neighbours_in_the_proposal(group: Group) -> None:
    made = Transaction.of(then=[PutKv(key="b", value=b""), DeleteKv(key="nobody")])
    before, refused, after = group.together(
        PutKv(key="a", value=b"1"), made, PutKv(key="c", value=b"1")
    )
    assert isinstance(refused, NotFound)
    assert before == after == group.index
    assert [value(group, key) for key in "abc"] == [b"1", None, b"1"]


def test_a_refused_transaction_is_no_change_to_watch(group: Group) -> None:
    group.machine.take_changes()
    with pytest.raises(NotFound):
        transact(group, [PutKv(key="a", value=b""), DeleteKv(key="nobody")])
    assert not list(group.machine.take_changes())
    transact(group, [PutKv(key="a", value=b""), DeleteKv(key="a")])
    kv = [each for each in group.machine.take_changes() if each[0] == KV.name]
    assert [(key, stored is None) for _, key, stored in kv] == [
        (("default", "a"), False),
        (("default", "a"), True),
    ]


def test_a_controllers_command_is_fenced_within_it_too(group: Group) -> None:
    group.run(ExpireLeases(controller_epoch=5))
    with group.refuses(Fenced, r"^then\[1\]: controller_epoch: 4, in force is 5$"):
        transact(group, [PutKv(key="a", value=b""), ExpireLeases(controller_epoch=4)])
    assert transact(group, [], [Compare.exists(EPOCHS, "controller")]).replies == ()


def test_a_step_in_a_tenant_that_is_being_deleted_is_refused_as_a_command_is(group: Group) -> None:
    closed = GroupQuota("acme", 1, closed=True)
    group.run(SetQuotas(controller_epoch=1, items=(closed,)))
    with group.refuses(NotFound, r"^then\[1\]: tenant: 'acme' is being deleted$"):
        transact(group, [PutKv(key="a", value=b""), PutKv(tenant="acme", key="a", value=b"")])
    assert transact(group, [GetKv(tenant="acme", key="a")]).replies == (None,)


def test_replies_have_the_room_of_one_reply(group: Group) -> None:
    group.run(PutKv(key="a", value=b"x" * VALUE_BYTES_MAX))
    group.run(PutKv(key="b", value=b""))
    assert len(transact(group, [GetKv(key="a")] * 7).replies) == 7
    with group.refuses(QuotaExceeded, r"^then\[8\]: reply: \d+ bytes"):
        transact(group, [PutKv(key="b", value=b"1"), *[GetKv(key="a")] * 9])


# -- once ---------------------------------------------------------------------------------------


def test_it_happens_once_however_often_it_is_sent(group: Group) -> None:
    proposal = group.proposal(
        Transaction.of(
            compare=[Compare.absent(KV, "default", "a")],
            then=[PutKv(key="a", value=b"1"), RegisterNode(node_id="n")],
            otherwise=[PutKv(key="b", value=b"1")],
        )
    )
    first = group.entry(proposal)
    assert group.entry(proposal) == first
    assert group.entry(proposal, proposal) == first + first
    assert value(group, "b") is None
    assert group.ask(GetNode(node_id="n")).epoch == 1


def test_its_refusal_is_kept_too(group: Group) -> None:
    proposal = group.proposal(Transaction.of(then=[DeleteKv(key="a")]))
    (first,) = group.entry(proposal)
    assert first.results[0].code == api.NOT_FOUND
    group.entry(
        api.Proposal(client=group.client, sequence=9, commands=[wire(PutKv(key="a", value=b""))])
    )
    assert group.entry(proposal) == [first]
    assert value(group, "a") == b""


# -- limits -------------------------------------------------------------------------------------


def test_limits(group: Group) -> None:
    look, there = Step.of(GetKv(key="a")), Compare.exists(KV, "default", "a")
    most = Transaction(
        compare=(there,) * COMPARES_MAX, then=(look,) * STEPS_MAX, otherwise=(look,) * STEPS_MAX
    )
    assert len(group.run(most).replies) == STEPS_MAX
    group.beyond(Transaction(compare=(there,) * (COMPARES_MAX + 1)), "compare")
    group.beyond(Transaction(then=(look,) * (STEPS_MAX + 1)), "then")
    group.beyond(Transaction(otherwise=(look,) * (STEPS_MAX + 1)), "otherwise")
    group.beyond(Transaction(), "then")


def test_a_step_is_a_command_or_a_query_within_its_limits(group: Group) -> None:
    good = Step.of(GetKv(key="a"))
    for field, tag, body in (
        ("tag", "nothing.such", b"\x80"),
        ("tag", "client.register", b"\x80"),
        ("tag", "group.transact", b"\x80"),
        ("body", "metadata.kv.get", b"\xc1"),
        ("key", "metadata.kv.get", packing.pack_columns({"key": ""})),
        ("key", "metadata.kv.put", packing.pack_columns({"key": "k" * 401, "value": b""})),
        ("controller_epoch", "group.lease.expire", packing.pack_columns({"controller_epoch": 0})),
    ):
        beyond(group, Transaction(then=(good, Step(tag=tag, body=body))), f"then[1]: {field}")
    long = Step(tag="metadata.kv.put", body=b"\x80" + b"\0" * STEP_BYTES_MAX)
    with pytest.raises(Invalid, match=rf"^then\[0\]: body: .*the limit is {STEP_BYTES_MAX}"):
        op.validate(Transaction(then=(long,)))


def test_a_compare_names_a_row_that_there_can_be(group: Group) -> None:
    good = Compare.exists(KV, "default", "a")
    for field, compare in (
        ("table", Compare(table="no.such", key=good.key, relation=EXISTS)),
        ("key", Compare(table=KV.name, key=b"", relation=EXISTS)),
        ("key", Compare.exists(KV, "default")),
        ("key", Compare.exists(KV, "default", "a", "b")),
        ("key", Compare.exists(KV, "default", 1)),
        ("key", Compare.exists(KV, "default", "a\0")),
        ("key", Compare.exists(NODES, "")),
        ("relation", Compare(table=KV.name, key=good.key, relation="like")),
        ("revision", revision_is("a", EQUAL, -1)),
        ("revision", Compare(table=KV.name, key=good.key, relation=EXISTS, revision=1)),
    ):
        beyond(group, Transaction(compare=(good, compare)), f"compare[1].{field}")


def test_all_steps_together_have_the_limits_of_one_body(group: Group) -> None:
    """Each step is small; decoded together they would be lists by the million."""
    lists = bytes(msgpack.packb({"unknown": [[[]] * 1_000] * 8, "key": "a"}))
    few = Transaction(then=(Step(tag="metadata.kv.get", body=lists),) * 8)
    op.validate(few)
    count = PARTS_MAX // 8_000 + 1
    many = Transaction(then=(Step(tag="metadata.kv.get", body=lists),) * count)
    with pytest.raises(Invalid, match=rf"^then\[{count - 1}\]: body: not msgpack within"):
        op.validate(many)
    with pytest.raises(Invalid, match=r"^then\["):
        group.machine.admit(group.proposal(many))


def test_its_steps_are_decoded_once(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = []
    decode = op.decode

    def counted(registry: Any, tag: str, *rest: Any) -> Any:
        decoded.append(tag)
        return decode(registry, tag, *rest)

    proposal = group.proposal(Transaction.of(then=[PutKv(key="a", value=b"")]))
    monkeypatch.setattr(op, "decode", counted)
    admitted = [group.machine.admit(proposal)]
    assert decoded == ["group.transact", "metadata.kv.put"]
    batch = api.Batch(now_ms=group.now_ms, proposals=[proposal])
    entry = Entry(term=1, index=group.index + 1, data=batch.SerializeToString())
    group.machine.apply(entry, admitted)
    assert decoded == ["group.transact", "metadata.kv.put"]
    assert value(group, "a") == b""


def test_what_is_built_is_checked_with_its_place_named() -> None:
    with pytest.raises(Invalid, match=r"^then\[1\]: key: "):
        Transaction.of(then=[GetKv(key="a"), GetKv(key="")])
    with pytest.raises(Invalid, match=r"^otherwise\[0\]: "):
        Transaction.of(otherwise=[GetKv(key=5)])  # type: ignore[arg-type]


def test_what_it_says_is_no_field_of_it() -> None:
    made = Transaction.of(then=[PutKv(key="a", value=b"")])
    other = Transaction.of(then=[PutKv(key="a", value=b"")])
    op.validate(made)
    assert made == other
    assert op.encode(made) == op.encode(other)
    assert wire(made) == wire(other)


def test_the_same_key_is_named_the_same_way() -> None:
    assert row_key.pack(("default", "a")) == Compare.absent(KV, "default", "a").key
