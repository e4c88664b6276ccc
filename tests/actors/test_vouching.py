"""Reads that a voter vouches for: when a leader answers without a round, and when that holds."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from random import Random

import pytest

from actors.caller import Caller
from actors.vouching import Vouching
from state_machines.metadata.kv import GetKv, PutKv
from state_machines.raft import Configuration, Raft, RaftConfig, SnapshotMeta
from state_machines.raft.messages import AppendReply, Heartbeat, VoteReply
from state_machines.wire import api_pb2 as api
from tests.actors.alone import Alone, code
from tests.actors.at_seat import get_request
from tests.actors.virtual_time import in_virtual_time, settled
from tests.actors.wires import Group, Wires, eventually, in_loop


def reply_of(answer: asyncio.Future[bytes]) -> api.Reply:
    assert answer.done(), "nothing is answered yet"
    return api.Reply.FromString(answer.result())


async def leading(founders: tuple[int, ...], *, committed: bool = True) -> Alone:
    """The leader of term 1, which may have committed in it."""
    made = Alone(founders)
    made.replica.campaign()
    await settled()
    for voter in founders[1 : len(founders) // 2 + 1]:
        await made.hear(VoteReply(voter, 1, 1, granted=True))
    assert made.replica.leads
    if committed:
        for voter in founders[1 : len(founders) // 2 + 1]:
            await made.hear(AppendReply(voter, 1, 1, made.replica.core.last_index))
    return made


@in_virtual_time
async def test_a_leader_answers_at_once_and_says_who_has_to_vouch_for_it() -> None:
    leader = await leading((1, 2, 3))
    sent = len(leader.said)
    answer = leader.asks(vouched=True)
    await settled()
    assert len(leader.said) == sent, "no round"
    reply = reply_of(answer)
    assert (reply.code, reply.term, list(reply.partners)) == (api.OK, 1, [2, 3])
    plain = leader.asks()
    await settled()
    assert len(leader.said) > sent, "a round"
    assert not plain.done()


@in_virtual_time
async def test_it_takes_a_leader_that_has_committed_in_its_term() -> None:
    leader = await leading((1, 2, 3), committed=False)
    answer = leader.asks(vouched=True)
    await settled()
    assert not answer.done()
    await leader.hear(AppendReply(2, 1, 1, leader.replica.core.last_index))
    assert not answer.done(), "it waits for its round"
    again = leader.asks(vouched=True)
    await settled()
    assert reply_of(again).partners


@in_virtual_time
async def test_what_is_committed_is_applied_before_it_is_answered() -> None:
    leader = await leading((1, 2, 3))
    leader.proposes()
    await settled()
    leader.disk.stuck = True
    await leader.hear(AppendReply(2, 1, 1, leader.replica.core.last_index))
    answer = leader.asks(vouched=True)
    await settled()
    assert not answer.done()
    leader.disk.release()
    await settled()
    assert reply_of(answer).revision == leader.replica.core.commit


@pytest.mark.parametrize(
    "configuration",
    [
        Configuration(voters=(1,)),
        Configuration(voters=(1, 2, 3, 4)),
        Configuration(voters=(1, 2, 3, 4, 5)),
        Configuration(voters=(1, 2, 3), outgoing=(1, 4, 5)),
        Configuration(voters=(2, 3), learners=(1,)),
        Configuration(voters=(2, 3, 4)),
    ],
    ids=["alone", "four", "five", "joint", "learner", "removed"],
)
def test_a_round_it_is_where_two_are_no_majority(configuration: Configuration) -> None:
    core = Raft(
        id=1, config=RaftConfig(), rng=Random(1), snapshot=SnapshotMeta(1, 0, configuration)
    )
    asked = api.QueryRequest(vouched=True)
    assert Vouching(core).partners(asked, applied_term=core.term) == b""


@pytest.mark.parametrize("voters", [(1, 2), (1, 2, 3)])
def test_partners_are_the_other_voters_and_follow_the_configuration(
    voters: tuple[int, ...],
) -> None:
    start = SnapshotMeta(1, 0, Configuration(voters=voters, learners=(9,)))
    core = Raft(id=1, config=RaftConfig(), rng=Random(1), snapshot=start)
    vouching, asked = Vouching(core), api.QueryRequest(vouched=True)
    for _ in range(2):
        said = api.Reply.FromString(vouching.partners(asked, applied_term=0))
        assert list(said.partners) == list(voters[1:])
    assert vouching.partners(api.QueryRequest(), applied_term=0) == b""
    assert vouching.partners(asked, applied_term=1) == b"", "of another term"


@in_virtual_time
async def test_a_voter_says_its_term_whatever_its_disk_does() -> None:
    follower = Alone((1, 2, 3))
    follower.disk.stuck = True
    for term in (1, 5):
        await follower.hear(Heartbeat(2, 1, term, 0, 0))
        answer = follower.asks(vouch=True)
        await settled()
        reply = reply_of(answer)
        assert (reply.code, reply.replica, reply.term) == (api.OK, 1, term)
    follower.replica.abandon()
    late = follower.asks(vouch=True)
    await settled()
    assert code(late) == api.STOPPED


@in_virtual_time
async def test_a_vouch_goes_without_queries() -> None:
    follower = Alone((1, 2, 3))
    await follower.hear(Heartbeat(2, 1, 1, 0, 0))
    asked = api.QueryRequest.FromString(get_request("k"))
    asked.vouch = True
    reply = reply_of(follower.replica.query(asked))
    assert (reply.code, reply.detail) == (
        api.INVALID,
        "queries: 1 with a vouch, which goes without queries",
    )
    assert not reply.term, "it has not vouched"


@in_virtual_time
async def test_who_does_not_lead_answers_no_vouched_read() -> None:
    follower = Alone((1, 2, 3))
    await follower.hear(Heartbeat(2, 1, 1, 0, 0))
    answer = follower.asks(vouched=True)
    await settled()
    assert code(answer) == api.NOT_LEADER


class Counting(Wires):
    """Notes what each seat was asked by clients."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, bool, bool]] = []

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        message = api.QueryRequest.FromString(request)
        self.asked.append((seat, message.vouched, message.vouch))
        return super().query(seat, request)


@in_loop
async def test_a_leader_that_was_left_behind_is_found_out(tmp_path: Path) -> None:
    """It can still be reached, and thinks that it leads; the others have elected another."""
    wires = Counting()
    group = Group(tmp_path, wires=wires)
    caller = Caller(wires, timeout_ms=20_000, rng=Random(11))
    try:
        await group.found()
        await caller.call(PutKv(key="k", value=b"old"))
        old = await group.leader()
        assert old.replica is not None
        for _ in range(2):  # the first finds the leader
            assert (await caller.call(GetKv(key="k"))).value == b"old"
        assert [each[1:] for each in wires.asked[-2:]] == [(True, False), (False, True)]

        others = [seat.spec.seat for seat in group.followers()]
        wires.cut = {
            pair for each in others for pair in ((old.spec.seat, each), (each, old.spec.seat))
        }
        old.replica.ticker.stop()  # or it would see that nobody answers, and step down
        there = Wires()  # of one who does not know the old leader
        there.living = {seat: wires.living[seat] for seat in others}
        for seat in there.living.values():
            seat.campaign()
        writer = Caller(there, timeout_ms=20_000, rng=Random(12))
        await writer.call(PutKv(key="k", value=b"new"))
        await writer.close()
        assert old.replica.leads, "as it thinks"
        stale = api.Reply.FromString(await old.query(get_request("k", vouched=True)))
        assert stale.partners, "it would answer from what it had"

        del wires.asked[:]
        read = asyncio.create_task(caller.call(GetKv(key="k")))
        await eventually(lambda: len(wires.asked) > 2)
        assert wires.asked[0] == (old.spec.seat, True, False)
        assert wires.asked[2] == (old.spec.seat, False, False), "it has to make its round"
        assert not read.done()
        old.replica.ticker.start()
        assert (await read).value == b"new"
    finally:
        wires.cut.clear()
        await caller.close()
        await group.close()
