"""The machine: once per client, refusals that change nothing, time that never goes back."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import DecodeError

from state_machines import op
from state_machines.errors import Conflict, Invalid, NotFound, QuotaExceeded, WrongShard
from state_machines.limits import BATCH_ITEMS_MAX, REPLY_BYTES_MAX, VALUE_BYTES_MAX
from state_machines.machine import Machine
from state_machines.metadata.kv import DeleteKv, GetKv, KvEntry, PutKv
from state_machines.metadata.node import HeartbeatNode, RegisterNode
from state_machines.mqtt.retained import DeleteRetained, SetRetained
from state_machines.mqtt.topic import CreateTopics, DeleteTopics
from state_machines.offset.offset import FetchOffsets
from state_machines.raft.messages import Entry
from state_machines.slots import Own, SlotRange, slot_of
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.machine.alone import EMPTY, NOW_MS, Group, wire


@pytest.fixture
def group() -> Group:
    return Group("metadata")


def put(key: str, value: bytes = b"", expected: int | None = None) -> PutKv:
    return PutKv(key=key, value=value, expected_revision=expected)


def test_a_command_changes_the_state_and_says_at_which_entry(group: Group) -> None:
    assert group.run(put("a", b"1")) == group.index
    assert group.ask(GetKv(key="a")) == KvEntry("a", b"1", group.index)


def test_one_refused_command_takes_only_its_own_writes_back(group: Group) -> None:
    first, second, third = group.together(put("a", b"1"), put("a", b"2", 7), put("b", b"3"))
    assert first == third == group.index
    assert isinstance(second, Conflict)
    assert group.ask(GetKv(key="a")).value == b"1"
    assert group.ask(GetKv(key="b")).value == b"3"


def test_each_command_has_its_own_reply() -> None:
    group = Group("mqtt")
    group.together(SetRetained(topic="t", payload=b"1"), CreateTopics(names=("t", "u")))
    gone, some, other, none, still_gone = group.together(
        DeleteRetained(topic="t"),
        DeleteTopics(names=("t",)),
        DeleteTopics(names=("u",)),
        DeleteTopics(names=("u",)),
        DeleteRetained(topic="t"),
    )
    assert (gone, still_gone) == (True, False)  # a yes is not sent as a one: it could not be read
    assert (some, other, none) == (1, 1, 0)


def test_a_refused_proposal_leaves_everything_but_the_books_as_it_was(group: Group) -> None:
    group.run(put("a", b"1"))
    before = {name: rows for name, rows in group.store.dump().items() if "group." not in name}
    (refused,) = group.together(put("a", b"2", 99))
    assert isinstance(refused, Conflict)
    assert {n: r for n, r in group.store.dump().items() if "group." not in n} == before


def test_an_entry_without_data_changes_nothing_but_the_clock(group: Group) -> None:
    assert group.machine.apply(Entry(term=2, index=group.index + 1)) == []
    assert group.run(put("a")) == group.index


def test_time_never_goes_back(group: Group) -> None:
    group.run(RegisterNode(node_id="n"))
    group.now_ms = NOW_MS - 60_000
    group.run(HeartbeatNode(node_id="n", epoch=1))
    from state_machines.metadata.node import GetNode

    assert group.ask(GetNode(node_id="n")).heartbeat_ms == NOW_MS


def test_a_query_says_how_far_the_group_had_come(group: Group) -> None:
    group.run(put("a"))
    assert group.machine.query([wire(GetKv(key="a"))], 0).revision == group.index


def test_reads_keep_nothing_beyond_the_next_entry(group: Group) -> None:
    """How far the group has come and what it owns is read once for all reads between two."""
    other = next(key for key in map(str, range(999)) if slot_of(("default", key)) > 8_000)
    for _ in range(2):
        group.run(put(other))
        assert group.machine.query([wire(GetKv(key=other))], NOW_MS).revision == group.index
    owned = (SlotRange(0, 8_000),)
    group.run(Own(controller_epoch=1, group_kind="metadata", version=4, ranges=owned))
    for _ in range(2):
        with pytest.raises(WrongShard):
            group.ask(GetKv(key=other))


def test_reads_keep_nothing_beyond_a_snapshot(group: Group) -> None:
    group.run(put("a"))
    group.ask(GetKv(key="a"))
    later = Group("metadata", group.store)  # changes the rows behind the other's back
    later.run(put("a"))
    group.machine.forget()
    assert group.machine.query([wire(GetKv(key="a"))], NOW_MS).revision == later.index


def test_a_query_that_is_not_known_or_not_ours_is_refused(group: Group) -> None:
    reply = group.machine.query(
        [
            api.Command(tag="metadata.kv.nothing", body=EMPTY),
            wire(FetchOffsets(group="g")),
            wire(put("a")),
            wire(GetKv(key="a")),
        ],
        0,
    )
    assert [each.code for each in reply.results] == [api.INVALID] * 3 + [api.OK]


def test_more_queries_than_a_batch_are_refused_whole(group: Group) -> None:
    reply = group.machine.query([wire(GetKv(key="a"))] * (BATCH_ITEMS_MAX + 1), 0)
    assert reply.code == api.INVALID
    assert str(BATCH_ITEMS_MAX) in reply.detail


def test_a_reply_does_not_grow_without_end(group: Group) -> None:
    group.run(put("a", bytes(VALUE_BYTES_MAX)))
    reply = group.machine.query([wire(GetKv(key="a"))] * 20, 0)
    codes = [each.code for each in reply.results]
    answered = codes.count(api.OK)
    assert answered == REPLY_BYTES_MAX // VALUE_BYTES_MAX
    assert codes == [api.OK] * answered + [api.QUOTA_EXCEEDED] * (20 - answered)
    assert reply.ByteSize() < REPLY_BYTES_MAX + 2 * VALUE_BYTES_MAX
    assert {each.detail for each in reply.results[answered:]} == {op.REPLY_FULL}


# -- admission --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proposal", "said"),
    [
        (api.Proposal(client=1, sequence=1), "commands: there is none"),
        (api.Proposal(client=1, sequence=0, commands=[wire(put("a"))]), "sequence: 0"),
        (api.Proposal(client=1, sequence=2**63, commands=[wire(put("a"))]), "sequence: "),
        (api.Proposal(client=2**63, sequence=1, commands=[wire(put("a"))]), "client: "),
        (api.Proposal(client=0, sequence=1, commands=[wire(put("a"))]), "client: 0 may only"),
        (
            api.Proposal(client=1, sequence=1, commands=[api.Command(tag="no.such", body=EMPTY)]),
            "tag: 'no.such' is not known",
        ),
        (
            api.Proposal(client=1, sequence=1, commands=[wire(GetKv(key="a"))]),
            "tag: 'metadata.kv.get' is not known",
        ),
        (
            api.Proposal(
                client=1, sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY)]
            ),
            "client: only 0 may register",
        ),
        (
            api.Proposal(sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY)] * 2),
            "client: 0 may only register, with one",
        ),
        (
            api.Proposal(
                client=1, sequence=1, commands=[api.Command(tag="offset.delete_group", body=EMPTY)]
            ),
            "group: missing",
        ),
        (
            api.Proposal(
                client=1, sequence=1, commands=[api.Command(tag="metadata.kv.put", body=b"\xc1")]
            ),
            "body: not msgpack",
        ),
        (
            api.Proposal(client=1, sequence=1, commands=[wire(put("a"))] * (BATCH_ITEMS_MAX + 1)),
            f"commands: {BATCH_ITEMS_MAX + 1}, the limit is {BATCH_ITEMS_MAX}",
        ),
    ],
)
def test_what_may_not_enter_the_log_is_refused_by_name(
    group: Group, proposal: api.Proposal, said: str
) -> None:
    before = group.store.dump()
    with pytest.raises(Invalid, match=said):
        group.machine.admit(proposal)
    assert group.store.dump() == before


def test_a_command_of_another_kind_is_refused(group: Group) -> None:
    from state_machines.mqtt.topic import CreateTopics

    with pytest.raises(Invalid, match="does not belong to metadata-0"):
        group.machine.admit(group.proposal(CreateTopics(names=("t",))))


def test_a_tag_that_an_old_replica_does_not_know_stops_it(group: Group) -> None:
    unknown = api.Proposal(
        client=group.client, sequence=1, commands=[api.Command(tag="metadata.new", body=EMPTY)]
    )
    with pytest.raises(AssertionError, match=r"unknown command 'metadata\.new'"):
        group.entry(unknown)


def test_an_entry_that_is_no_batch_stops_the_replica() -> None:
    machine = Machine("metadata", "metadata-0", MemoryKeyValue())
    with pytest.raises(DecodeError):
        machine.apply(Entry(term=1, index=1, data=b"\xff\xff"))


# -- once per client ---------------------------------------------------------------------------


def test_a_retry_is_answered_with_the_kept_reply_and_changes_nothing(group: Group) -> None:
    proposal = group.proposal(put("a", b"1", 0), DeleteKv(key="b"))
    (first,) = group.entry(proposal)
    state = group.ask(GetKv(key="a"))
    (again,) = group.entry(proposal)
    assert again == first
    assert [each.code for each in again.results] == [api.OK, api.NOT_FOUND]
    assert group.ask(GetKv(key="a")) == state


def test_a_retry_within_the_same_entry_is_one_too(group: Group) -> None:
    proposal = group.proposal(put("a", b"1", 0))
    first, second = group.entry(proposal, proposal)
    assert first == second


def test_sequences_may_overtake_each_other(group: Group) -> None:
    late, early = group.proposal(put("a", b"1")), group.proposal(put("b", b"2"))
    late.acked = early.acked = 0
    assert [group.entry(each)[0].code for each in (early, late)] == [api.OK, api.OK]
    assert group.entry(early)[0].results[0].code == api.OK
    assert group.ask(GetKv(key="b")).revision == group.index - 2


def test_the_same_sequence_with_other_commands_is_refused(group: Group) -> None:
    proposal = group.proposal(put("a", b"1"))
    group.entry(proposal)
    proposal.commands[0].body = wire(put("a", b"2")).body
    (reply,) = group.entry(proposal)
    assert reply.code == api.INVALID
    assert "came before with other commands" in reply.detail
    assert group.ask(GetKv(key="a")).value == b"1"


def test_a_sequence_that_was_acknowledged_is_refused(group: Group) -> None:
    first = group.proposal(put("a", b"1"))
    group.entry(first)
    group.run(put("b"))
    (reply,) = group.entry(first)
    assert reply.code == api.INVALID
    assert "was acknowledged already (up to 1)" in reply.detail


@pytest.mark.parametrize("client", [0x77, 2**63 - 1, 2**64 - 1])
def test_a_client_that_is_not_known_is_refused(group: Group, client: int) -> None:
    proposal = group.proposal(put("a"))
    proposal.client = client
    (reply,) = group.entry(proposal)
    assert reply.code == (api.SESSION_EXPIRED if client < 2**63 else api.INVALID)
    assert group.ask(GetKv(key="a")) is None


def test_an_absurd_acknowledgement_costs_nothing_and_breaks_nothing(group: Group) -> None:
    proposal = group.proposal(put("a"))
    proposal.sequence, proposal.acked = 2**62, 2**64 - 1
    assert group.entry(proposal)[0].code == api.OK
    assert group.entry(proposal)[0].code == api.OK
    proposal.sequence = 5
    assert group.entry(proposal)[0].code == api.INVALID


def test_a_long_silence_of_the_group_does_not_lock_a_client_out(group: Group) -> None:
    """Sequences that never arrived leave a gap; what counts is what the client has answers for."""
    group.run(put("a"))
    group.sequence += 100_000
    assert group.run(put("a")) == group.index


def test_two_clients_in_one_entry_get_two_ids(group: Group) -> None:
    register = api.Proposal(sequence=1, commands=[api.Command(tag=op.REGISTER_TAG, body=EMPTY)])
    ids = [each.client for each in group.entry(register, register, register)]
    assert len(set(ids)) == 3
    assert all(0 < each < 2**63 for each in ids)


def test_replies_that_nobody_acknowledges_have_a_limit(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_machines.clients.WINDOW_MAX", 3)

    def send(sequence: int, acked: int) -> int:
        proposal = group.proposal(put(f"k{sequence}"))
        proposal.sequence, proposal.acked = sequence, acked
        return group.entry(proposal)[0].code

    assert [send(each, 0) for each in (1, 2, 3, 4)] == [api.OK] * 3 + [api.QUOTA_EXCEEDED]
    assert send(2, 0) == api.OK  # kept
    assert send(4, 1) == api.OK
    assert group.ask(GetKv(key="k4")).revision == group.index


def test_the_client_silent_longest_is_forgotten_first(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_machines.clients.CLIENTS_MAX", 3)
    monkeypatch.setattr("state_machines.clients.TOUCH_ENTRIES", 1)
    first, second = group.client, group.register()
    group.run(put("a"))  # the first one is heard of again
    group.register()
    group.register()

    def known(client: int) -> bool:
        proposal = api.Proposal(client=client, sequence=9_000, commands=[wire(put("z"))])
        return group.entry(proposal)[0].code == api.OK

    assert [known(each) for each in (first, second)] == [True, False]
    kept = group.store.dump()["group.client"]
    assert len(kept) == 3
    assert len(group.store.dump()["group.client_seen"]) == 3


def test_a_forgotten_client_leaves_nothing_behind(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("state_machines.clients.CLIENTS_MAX", 1)
    group.run(put("a"))
    assert "group.reply" in group.store.dump()
    group.register()
    assert "group.reply" not in group.store.dump()


def test_a_refusal_says_why_in_our_words_only(group: Group) -> None:
    with pytest.raises(NotFound) as caught:
        group.run(DeleteKv(key="nothing"))
    assert caught.value.detail == "key: 'nothing' is not there"


def test_quota_is_an_answer_like_any_other() -> None:
    assert QuotaExceeded("x").code in api.Code.keys()  # noqa: SIM118 - an enum, not a dict


def test_bodies_are_decoded_once_for_admission_and_apply(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    real = op.decode

    def counted(*args: Any) -> Any:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(op, "decode", counted)
    proposal = group.proposal(put("only here", b"once"))
    admitted = group.machine.admit(proposal)
    entry = Entry(1, 100, api.Batch(proposals=[proposal]).SerializeToString())
    group.machine.apply(entry, [admitted])
    assert len(calls) == 1
    assert group.ask(GetKv(key="only here")).value == b"once"


def test_what_is_unforeseen_in_a_command_is_no_refusal(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 8: it stops the replica, which may be the only one that it happens to."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(DeleteKv, "apply", broken)
    with pytest.raises(ZeroDivisionError):
        group.run(DeleteKv(key="k"))
