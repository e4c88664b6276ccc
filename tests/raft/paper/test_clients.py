"""Ongaro's dissertation, chapter 6: finding the leader, once and only once, and reads.

The session paragraphs are about the machine that all replicas share (`state_machines.machine`,
`state_machines.clients`), the routing ones about the client's lanes; reads are the core's.
"""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from actors.pending import Read, Reads
from state_machines import clients
from state_machines.errors import Conflict, NotLeader
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.metadata.node import GetNode, RegisterNode
from state_machines.raft import Follower, HeartbeatReply, Leader, ReadState, RequestVote
from state_machines.wire import api_pb2 as api
from storage.memory import MemoryKeyValue
from tests.actors.alone import Alone
from tests.actors.scripted import HANG, LOSE, NOT_LEADER, Call, Script, calling, once, put
from tests.actors.virtual_time import VirtualClock, in_virtual_time, settled
from tests.entities.group import Group
from tests.machine.alone import wire
from tests.raft.paper.rig import Table, applied, leader, replica, turn

UNTESTED = {
    "Thesis 6 ¶1": "announces the chapter",
    "Thesis 6 ¶2": "says what is assumed: a network service, used directly",
    "Thesis 6.1 ¶2": "what LogCabin did about it",
    "Thesis 6.3 ¶3": "defines linearizability: what tests/history checks histories for",
    "Thesis 6.4 ¶6": "what LogCabin implemented",
    "Thesis 6.4.1 ¶1": "introduces clocks in place of messages",
    "Thesis 6.4.1 ¶3": "what clocks would have to keep; no clock is relied on here (see ¶2)",
}

JOIN = RegisterNode(node_id="b1")  # not idempotent: every time it raises the epoch


class Directory(Script):
    """Seats that are known when somebody has looked: five, of which one is there."""

    async def refresh(self) -> None:
        await super().refresh()
        self.names["metadata-0"] = tuple(f"metadata-0/{number}" for number in range(5))


def proposal(group: Group, sequence: int, *commands: object, acked: int = 0) -> api.Proposal:
    return api.Proposal(
        client=group.client, sequence=sequence, acked=acked, commands=list(map(wire, commands))
    )


def epoch(group: Group) -> int:
    node = group.ask(GetNode(node_id="b1"))
    return node.epoch if node is not None else 0


# 6.1 Finding the cluster


@in_virtual_time
async def test_the_members_are_looked_up_and_some_too_many_do_no_harm() -> None:
    """Thesis 6.1 ¶1: clients find the members in a directory, which may name some that are none."""
    script = Directory(names={})
    gone = ConnectionResetError("no such seat")
    script.faults.append(lambda call: None if call.seat == "metadata-0/4" else gone)
    async with calling(script) as caller:
        assert await caller.call(put()) == 1
    assert script.refreshed >= 1


# 6.2 Routing requests to the leader


@in_virtual_time
async def test_a_server_that_does_not_lead_refuses_and_another_is_tried() -> None:
    """Thesis 6.2 ¶1: a client asks one after the other until it finds the leader."""
    script = Script(faults=[lambda c: None if c.seat == "metadata-0/2" else NOT_LEADER])
    async with calling(script) as caller:
        await caller.call(put())
    assert [call.seat[-1] for call in script.calls] == ["0", "1", "2", "2"]


@in_virtual_time
async def test_a_refusal_names_the_leader() -> None:
    """Thesis 6.2 ¶2: servers know the leader by its messages and name it when they refuse; the
    client goes there at once, and stays."""
    table = Table("cluster 3", "quietly lead 1")
    with pytest.raises(NotLeader) as refused:
        table.raft(3).propose(b"x")
    assert refused.value.leader == "1"
    hint = api.Reply(code=api.NOT_LEADER, leader="metadata-0/2")
    script = Script(faults=[lambda call: None if call.seat == "metadata-0/2" else hint])
    async with calling(script) as caller:
        begun = asyncio.get_running_loop().time()
        await caller.call(put())
        await caller.call(put())
        assert asyncio.get_running_loop().time() == begun
    assert [call.seat[-1] for call in script.calls] == ["0", "2", "2", "2"]


def test_a_leader_without_its_majority_steps_down() -> None:
    """Thesis 6.2 ¶3, leaders: an election timeout without a successful round ends the leadership,
    so that clients try elsewhere."""
    table = Table("cluster 3", "quietly lead 1", "cut 1", "propose 1 a")
    table.do("tick 1 20")
    assert isinstance(table.raft(1).role, Follower)
    with pytest.raises(NotLeader):
        table.raft(1).propose(b"b")


def test_a_follower_forgets_a_leader_that_may_not_be_one() -> None:
    """Thesis 6.2 ¶3, followers: who leads is forgotten when an election starts or the term
    changes."""
    table = Table("cluster 3", "quietly lead 1")
    assert table.raft(2).leader == table.raft(3).leader == 1
    table.do("timeout 2")
    assert table.raft(2).leader == 0
    table.raft(3).step(RequestVote(2, 3, 2, 0, 0, transfer=True))
    assert (table.raft(3).term, table.raft(3).leader) == (2, 0)


@in_virtual_time
@pytest.mark.parametrize("loss", [HANG, ConnectionResetError("gone")])
async def test_a_client_that_loses_its_leader_tries_another(loss: object) -> None:
    """Thesis 6.2 ¶3, clients: it does not insist on the last leader it knew."""
    script = Script()
    async with calling(script) as caller:
        await caller.call(put("a"))
        last = script.calls[-1].seat
        script.faults.append(lambda call: loss if call.seat == last else None)
        await caller.call(put("b"))
    assert script.calls[-1].seat != last


# 6.3 Implementing linearizable semantics


def test_the_log_alone_is_at_least_once() -> None:
    """Thesis 6.3 ¶1: a command that is submitted again is another entry, committed again."""
    raft = leader(size=1)
    for _ in range(2):
        raft.propose(b"the same")
    assert [entry.data for entry in applied(raft)] == [b"the same", b"the same"]


@in_virtual_time
async def test_a_client_repeats_what_was_not_answered_under_its_number() -> None:
    """Thesis 6.3 ¶1: the client cannot know whether a leader that died had committed it."""
    script = Script(faults=[once(LOSE)])
    async with calling(script) as caller:
        assert await caller.call(put()) == 1
    first, second = script.proposals
    assert (first.client, first.sequence, first.body) == (
        second.client,
        second.sequence,
        second.body,
    )


def test_a_lock_is_not_lost_to_its_own_retry() -> None:
    """Thesis 6.3 ¶2: figure 6.2: the retry of a request that took a lock finds that it has it, and
    an increment counts once."""
    group = Group("metadata")
    take = PutKv(key="lock", value=b"mine", expected_revision=0)
    first = group.entry(proposal(group, 1, take))
    assert group.entry(proposal(group, 1, take)) == first
    assert first[0].results[0].code == api.OK
    group.sequence = 1
    with pytest.raises(Conflict):  # whereas a new request is refused
        group.run(take)
    for _ in range(3):
        group.entry(proposal(group, 9, JOIN))
    assert epoch(group) == 1


def test_a_duplicate_is_answered_without_being_executed() -> None:
    """Thesis 6.3 ¶4: every client has an id of its own and numbers its commands; the session keeps
    the response under the number."""
    group = Group("metadata")
    other = group.register()
    assert other != group.client
    (first,) = group.entry(proposal(group, 1, JOIN))
    before = group.store.dump()
    (again,) = group.entry(proposal(group, 1, JOIN))
    after = group.store.dump()
    assert again == first
    assert before.pop("group.clock") != after.pop("group.clock")
    assert after == before
    group.client = other
    (theirs,) = group.entry(proposal(group, 1, JOIN))  # the same number of somebody else
    assert theirs != first
    assert epoch(group) == 2


def test_a_command_takes_effect_where_it_first_stands_in_the_log() -> None:
    """Thesis 6.3 ¶5: later appearances change nothing, whatever came between."""
    group = Group("metadata")
    mine = proposal(group, 1, put("k", b"mine"))
    group.entry(mine)
    owner, group.client = group.client, group.register()
    group.entry(proposal(group, 1, put("k", b"theirs")))
    group.client = owner
    group.entry(mine, mine)
    assert group.ask(GetKv(key="k")).value == b"theirs"


def test_several_requests_of_a_client_may_be_under_way() -> None:
    """Thesis 6.3 ¶6: the session keeps a set of numbers and responses, which may come in any order,
    and drops those below what the client still waits for."""
    group = Group("metadata")
    replies = {sequence: group.entry(proposal(group, sequence, JOIN)) for sequence in (3, 1, 2)}
    assert epoch(group) == 3
    for sequence in (1, 2, 3):
        assert group.entry(proposal(group, sequence, JOIN)) == replies[sequence]
    group.entry(proposal(group, 4, JOIN, acked=2))
    assert group.rows("group.reply") == 2
    assert group.entry(proposal(group, 3, JOIN)) == replies[3]
    (late,) = group.entry(proposal(group, 2, JOIN))
    assert late.code == api.INVALID
    assert epoch(group) == 4


def test_sessions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thesis 6.3 ¶7: they cannot be kept for ever: the one not used longest goes."""
    monkeypatch.setattr(clients, "CLIENTS_MAX", 4)
    monkeypatch.setattr(clients, "TOUCH_ENTRIES", 1)
    group = Group("metadata")
    kept = group.client
    for _ in range(30):
        other = group.register()
        group.entry(proposal(group, group.index, JOIN))  # `kept` is in use
        assert other != kept
    assert group.rows("group.client") == 4
    assert group.entry(proposal(group, group.index, JOIN))[0].code == api.OK


def test_all_servers_expire_the_same_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thesis 6.3 ¶8: expiry is a matter of the log, not of anybody's clock: the same log gives
    everybody the same sessions, and the same state."""
    monkeypatch.setattr(clients, "CLIENTS_MAX", 3)
    stores = [MemoryKeyValue(), MemoryKeyValue()]
    groups = [Group("metadata", store) for store in stores]
    answers: list[list[object]] = [[], []]
    for group, seen in zip(groups, answers, strict=True):
        ids = [group.client]
        rng = Random(4)
        for step in range(60):
            if rng.random() < 0.2:
                ids.append(group.register())
            group.client = rng.choice(ids[-5:])
            seen.append(group.entry(proposal(group, 1 + step, JOIN)))
    assert answers[0] == answers[1]
    assert stores[0].dump() == stores[1].dump()
    assert any(reply[0].code == api.SESSION_EXPIRED for reply in answers[0])  # type: ignore[index]


def test_a_session_that_was_expired_is_told_from_a_new_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thesis 6.3 ¶9: clients register; a command of a session nobody knows is not processed but
    answered with an error, since it might be a duplicate."""
    monkeypatch.setattr(clients, "CLIENTS_MAX", 1)
    group = Group("metadata")
    applied_once = proposal(group, 1, JOIN)
    group.entry(applied_once)
    group.register()
    (reply,) = group.entry(applied_once)
    assert (reply.code, list(reply.results)) == (api.SESSION_EXPIRED, [])
    assert epoch(group) == 1


# 6.4 Processing read-only queries more efficiently


def test_a_read_bypasses_the_log() -> None:
    """Thesis 6.4 ¶1: a read appends nothing and writes to no disk."""
    table = Table("cluster 3", "quietly lead 1", "read 1 7")
    last = table.raft(1).last_index
    seen = table.do("settle")
    assert "1 answers read 7 at 1" in seen
    assert not [line for line in seen if "saves" in line]
    assert table.raft(1).last_index == last


def test_a_leader_that_was_cut_off_answers_no_read() -> None:
    """Thesis 6.4 ¶2: a leader that was replaced without knowing must not answer from its state."""
    table = Table("cluster 3", "quietly lead 1", "cut 1")
    table.patience(2, 3)
    table.do("quietly lead 2", "propose 2 new", "quietly settle", "read 1 7")
    seen = table.do("settle", "heal", "tick 1 2", "settle", "tick 2 2", "settle")
    assert table.raft(2).commit == 3
    assert not [line for line in seen if "answers" in line]


def test_read_step_1_waits_for_the_first_commit_of_the_term() -> None:
    """Thesis 6.4 step 1: before that a leader does not know what is committed."""
    raft = leader()
    turn(raft)
    raft.read(7)
    for peer in (2, 3):
        raft.step(HeartbeatReply(peer, 1, 1, 1))
    ready = raft.ready()
    assert ready is None or ready.reads == ()
    table = Table("cluster 3", "quietly lead 1", "read 1 7")
    assert "1 answers read 7 at 1" in table.do("settle")


def test_read_step_2_remembers_the_commit_index() -> None:
    """Thesis 6.4 step 2: the read is at the index that was committed when its round began, and
    sees every write acknowledged before."""
    table = Table("cluster 3", "quietly lead 1", "propose 1 a", "quietly settle", "read 1 7")
    table.do("quietly ready 1", "propose 1 b c")
    assert "1 answers read 7 at 2" in table.do("settle")
    assert table.raft(1).commit == 4


def test_read_step_3_asks_a_majority_that_it_still_leads() -> None:
    """Thesis 6.4 step 3: a round of heartbeats that began after the read, and answers of a
    majority to it."""
    table = Table("cluster 5", "quietly lead 1", "tick 1 2", "quietly turn 1", "read 1 7")
    for peer in (2, 3):  # answers to heartbeats from before the read
        table.do(f"quietly deliver 1 {peer}", f"quietly turn {peer}", f"quietly deliver {peer} 1")
    assert table.do("turn 1") == [
        f"1 to {peer}: heartbeat of round 1, commit 1" for peer in (2, 3, 4, 5)
    ]
    table.do("quietly deliver 1 2", "quietly turn 2", "quietly deliver 2 1")
    assert table.do("turn 1") == []
    table.do("quietly deliver 1 4", "quietly turn 4", "quietly deliver 4 1")
    assert table.do("turn 1") == ["1 answers read 7 at 1"]


@in_virtual_time
async def test_read_step_4_waits_for_the_state_to_reach_the_index() -> None:
    """Thesis 6.4 step 4: not before the state machine has come that far."""
    reads = Reads("metadata-0/0", Random(1), VirtualClock())
    mine = Read(api.QueryRequest(), asyncio.get_running_loop().create_future())
    reads.queue(mine)
    begun = reads.begin_round()
    assert begun is not None
    reads.confirmed(begun[0], 7)
    assert reads.due(6) == []
    assert reads.due(7) == [mine]


def test_read_step_5_answers_from_the_state() -> None:
    """Thesis 6.4 step 5: then the query runs against the state machine, and changes nothing."""
    group = Group("metadata")
    revision = group.run(put("k", b"1"))
    before = group.store.dump()
    found = group.ask(GetKv(key="k"))
    assert (found.value, found.revision) == (b"1", revision)
    assert group.store.dump() == before


def test_one_round_serves_all_reads_that_wait() -> None:
    """Thesis 6.4 ¶4: any number of reads that have accumulated share a round."""
    table = Table("cluster 3", "quietly lead 1")
    for context in range(100):
        table.do(f"read 1 {context}")
    seen = table.do("settle")
    assert len([line for line in seen if "1 to 2: heartbeat" in line]) == 1
    assert len([line for line in seen if "answers read" in line]) == 100


def test_a_follower_answers_no_linearizable_read() -> None:
    """Thesis 6.4 ¶5: what a follower has may be stale; here it sends the reader to the leader."""
    table = Table("cluster 3", "quietly lead 1")
    with pytest.raises(NotLeader) as refused:
        table.raft(2).read(7)
    assert refused.value.leader == "1"


# 6.4.1 Using clocks to reduce messaging for read-only queries


def test_no_clock_stands_in_for_a_round() -> None:
    """Thesis 6.4.1 ¶2: leases are not used: however lately a majority was heard, the next read asks
    again."""
    table = Table("cluster 3", "quietly lead 1", "read 1 1", "quietly settle", "read 1 2")
    assert table.do("turn 1") == ["1 to 2: heartbeat of round 2, commit 1"]


@in_virtual_time
async def test_a_client_never_sees_the_state_go_back() -> None:
    """Thesis 6.4.1 ¶4: replies carry the index of their state; a client says what it has
    seen, and a server that has not come so far waits."""
    server = await Alone.leading()
    seen = server.replica.core.commit + 1
    answer = server.asks(stale=True, min_revision=seen)
    await settled()
    assert not answer.done()
    server.proposes()
    await settled()
    assert api.Reply.FromString(answer.result()).revision == seen


def test_reads_of_a_leadership_end_with_it() -> None:
    """Thesis 6.4 step 3: a leader that learns of a later term answers none of the reads it held."""
    raft = leader()
    assert isinstance(raft.role, Leader)
    raft.read(7)
    raft.step(RequestVote(2, 1, 9, 9, 8))
    said: list[ReadState] = []
    while (ready := raft.ready()) is not None:
        said += ready.reads
        raft.advance(ready)
    assert said == []
    assert isinstance(replica().role, Follower)


@in_virtual_time
async def test_stale_hints_do_not_hold_a_client_for_ever() -> None:
    """Thesis 6.2 ¶3: two servers that name each other do not keep a client in a circle."""

    def pointing(call: Call) -> api.Reply | None:
        if len(script.calls) > 20:
            return None
        return api.Reply(code=api.NOT_LEADER, leader=f"metadata-0/{1 - int(call.seat[-1]) % 2}")

    script = Script(faults=[pointing])
    async with calling(script) as caller:
        begun = asyncio.get_running_loop().time()
        await caller.call(put())
        assert asyncio.get_running_loop().time() - begun > 0.1, "it waits between its attempts"
