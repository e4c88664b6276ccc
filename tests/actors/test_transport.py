"""The transport over scripted calls: bounds, overtaking, links, open calls, a death."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from actors import transport as transport_module
from actors.transport import ANSWER_SECONDS, BUFFER_MAX, CALLS_MAX
from state_machines.errors import Invalid
from state_machines.raft.messages import (
    Append,
    AppendReply,
    Configuration,
    Heartbeat,
    HeartbeatReply,
    InstallSnapshot,
    Message,
    SnapshotMeta,
    VoteReply,
)
from state_machines.wire import codec
from tests.actors.carrier import (
    ME,
    OTHER,
    PEER,
    SEATS,
    Died,
    append,
    beat,
    envelope,
    transporting,
)
from tests.actors.virtual_time import in_virtual_time, settled

META = SnapshotMeta(index=1, term=1, configuration=Configuration(voters=(ME,)))


def numbers(messages: Sequence[Message]) -> list[int]:
    return [each.entries[0].index for each in messages if isinstance(each, Append)]


# -- bounds -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_frozen_peer_has_few_calls_under_way_and_a_buffer_that_drops_its_oldest() -> None:
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        for number in range(1, 1_001):
            made.transport.send([append(number)])
            await asyncio.sleep(0)
        assert made.carrier.under_way == CALLS_MAX
        assert made.transport.dropped == 1_000 - CALLS_MAX - BUFFER_MAX
        made.carrier.frozen.set()
        await settled()
        sent = [number for _, each in made.carrier.delivered for number in numbers(each)]
        assert sent == [*range(1, CALLS_MAX + 1), *range(1_001 - BUFFER_MAX, 1_001)]


@in_virtual_time
async def test_a_frozen_peer_costs_the_others_nothing() -> None:
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        for number in range(1, 100):
            made.transport.send([append(number), append(number, receiver=OTHER)])
        await settled()
        assert {seat for seat, _ in made.carrier.delivered} == {SEATS[1], SEATS[2]}


@in_virtual_time
async def test_every_call_has_our_own_deadline() -> None:
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        made.transport.send([append(1)])
        await asyncio.sleep(transport_module.CALL_SECONDS + 0.1)
        assert made.carrier.under_way == 0
        made.carrier.frozen = None
        made.transport.send([append(2)])
        await settled()
        assert len(made.carrier.delivered) == 2


@in_virtual_time
async def test_what_waits_for_a_peer_goes_together_up_to_a_size() -> None:
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        size = transport_module.INLINE_BYTES_MAX // 4
        for number in range(1, 12):
            made.transport.send([append(number, size)])
            await asyncio.sleep(0)
        made.carrier.frozen.set()
        await settled()
        assert [len(each) for _, each in made.carrier.delivered] == [1, 1, 4, 4, 1]


@in_virtual_time
async def test_no_call_is_so_large_that_ray_would_take_it_through_its_store() -> None:
    """Law 14: a store that is full holds up whoever puts something there, on its event loop."""
    limit = 64 << 10
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        sizes = [100, 100, limit - 100, 100, 100, limit, 2 * limit, limit // 2, limit // 2 + 1, 0]
        for number, size in enumerate(sizes, 1):
            made.transport.send([append(number, size)])
            await asyncio.sleep(0)
        made.carrier.frozen.set()
        await settled()
        sent = [numbers(each) for _, each in made.carrier.delivered]
        assert sent == [[1], [2], [3, 4], [5], [6], [7], [8], [9, 10]]


@in_virtual_time
async def test_a_heartbeat_does_not_queue_behind_an_append() -> None:
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        for number in range(1, 10):
            made.transport.send([append(number)])
        made.transport.send([beat()])
        await settled()
        assert made.carrier.delivered[-1] == (SEATS[1], (beat(),))


@in_virtual_time
async def test_heartbeats_to_a_frozen_peer_do_not_pile_up() -> None:
    async with transporting() as made:
        made.carrier.frozen = asyncio.Event()
        made.transport.send([append(1)])
        for _ in range(500):
            made.transport.send([beat()])
            await asyncio.sleep(0.01)
        assert made.carrier.most_under_way <= CALLS_MAX + transport_module.HEARTBEATS_MAX
        assert len(made.carrier.delivered) > 10  # but they go on


@in_virtual_time
async def test_heartbeats_that_were_answered_leave_room_for_others() -> None:
    async with transporting() as made:
        made.carrier.frozen = gate = asyncio.Event()
        made.transport.send([append(1)])
        await settled()
        made.carrier.frozen = None  # it alone is stuck
        for _ in range(3 * transport_module.HEARTBEATS_MAX):
            made.transport.send([beat()])
            await settled()
        assert made.transport.dropped == 0
        gate.set()


@in_virtual_time
async def test_no_messages_are_no_calls() -> None:
    async with transporting() as made:
        made.transport.send([])
        await settled()
        assert made.carrier.delivered == []


# -- links --------------------------------------------------------------------------------------


@in_virtual_time
async def test_what_a_link_takes_is_no_call() -> None:
    async with transporting() as made:
        made.carrier.links = {SEATS[1]}
        made.transport.send([append(1), beat(), append(2, receiver=OTHER)])
        await settled()
        assert made.carrier.posted == [(SEATS[1], (append(1), beat()))]
        assert [seat for seat, _ in made.carrier.delivered] == [SEATS[2]]
        assert made.transport.carriers() == {SEATS[1]: "tcp", SEATS[2]: "ray"}


@in_virtual_time
async def test_a_link_is_posted_envelopes_up_to_a_size() -> None:
    async with transporting() as made:
        made.carrier.links = {SEATS[1]}
        size = transport_module.ENVELOPE_BYTES_MAX // 4
        made.transport.send([append(number, size) for number in range(1, 11)])
        assert [len(each) for _, each in made.carrier.posted] == [4, 4, 2]


@in_virtual_time
async def test_what_a_link_refuses_is_lost() -> None:
    """Its reader does not read: more calls would not make it."""
    async with transporting() as made:
        made.carrier.links, made.carrier.full = {SEATS[1]}, True
        made.transport.send([append(1)])
        await settled()
        assert made.carrier.delivered == []
        assert made.transport.dropped == 1


@in_virtual_time
async def test_what_a_link_has_not_taken_when_it_ends_goes_by_calls() -> None:
    async with transporting() as made:
        made.carrier.links, made.carrier.link_ends_after = {SEATS[1]}, 1
        size = transport_module.ENVELOPE_BYTES_MAX // 2
        made.transport.send([append(number, size) for number in range(1, 6)])
        await settled()
        assert [numbers(each) for _, each in made.carrier.posted] == [[1, 2]]
        called = [number for _, each in made.carrier.delivered for number in numbers(each)]
        assert called == [1, 2, 3, 4, 5]


@in_virtual_time
async def test_a_call_waits_for_no_answer_that_would_go_by_a_link() -> None:
    """Two that waited kept a candidate from asking for a vote, for 50 ms of each such fail-over."""
    async with transporting() as made:
        made.carrier.links = {SEATS[1]}
        begun = asyncio.get_running_loop().time()
        assert await made.transport.deliver(envelope(Heartbeat(PEER, ME, 1, 0))) == b""
        assert asyncio.get_running_loop().time() == begun
        assert made.received == [Heartbeat(PEER, ME, 1, 0)]


@in_virtual_time
async def test_no_link_is_wanted_to_who_sits_nowhere() -> None:
    async with transporting(knows=False) as made:
        assert await made.transport.deliver(envelope(Heartbeat(PEER, ME, 1, 0), seat="")) == b""
        assert made.received == [Heartbeat(PEER, ME, 1, 0)]
        assert made.carrier.looked_at == set()


@in_virtual_time
async def test_an_answer_goes_by_the_link_though_a_call_is_open() -> None:
    """The call came before the link was up; it ends by itself."""
    async with transporting() as made:
        call = asyncio.create_task(made.transport.deliver(envelope(Heartbeat(PEER, ME, 1, 0))))
        await settled()
        made.carrier.links = {SEATS[1]}
        made.transport.send([HeartbeatReply(ME, PEER, 1)])
        assert made.carrier.posted == [(SEATS[1], (HeartbeatReply(ME, PEER, 1),))]
        assert await call == b""


@in_virtual_time
async def test_what_comes_by_a_link_is_taken_or_refused() -> None:
    async with transporting(knows=False) as made:
        made.transport.take(envelope(Heartbeat(PEER, ME, 1, 0)))
        assert made.received == [Heartbeat(PEER, ME, 1, 0)]
        assert made.transport.seat_of(PEER) == SEATS[1]
        for bad in (b"\xff", envelope(beat(), cluster="other"), envelope(beat(), group="g-1")):
            with pytest.raises(Invalid):
                made.transport.take(bad)
        made.transport.close()
        made.transport.take(envelope(Heartbeat(PEER, ME, 1, 0)))
        assert len(made.received) == 1


# -- open calls ---------------------------------------------------------------------------------


@in_virtual_time
async def test_an_answer_travels_on_the_open_call() -> None:
    async with transporting() as made:
        call = asyncio.create_task(made.transport.deliver(envelope(Heartbeat(PEER, ME, 1, 0))))
        await settled()
        assert made.received == [Heartbeat(PEER, ME, 1, 0)]
        made.transport.send([HeartbeatReply(ME, PEER, 1)])
        answer = codec.decode_envelope(await call)
        assert answer.messages == (HeartbeatReply(ME, PEER, 1),)
        assert made.carrier.delivered == []
        made.transport.send([HeartbeatReply(ME, PEER, 1)])  # no call is open any more
        await settled()
        assert len(made.carrier.delivered) == 1


@in_virtual_time
async def test_what_comes_back_is_taken_and_learned_from() -> None:
    async with transporting(knows=False) as made:
        made.transport.learn(PEER, SEATS[2])
        made.carrier.answers = [envelope(AppendReply(PEER, ME, 1, 1), seat=SEATS[2])]
        made.transport.send([append(1)])
        await settled()
        assert made.received == [AppendReply(PEER, ME, 1, 1)]


@in_virtual_time
async def test_a_peer_that_has_nothing_to_say_is_not_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with transporting() as made:
        made.carrier.answers = [b""]
        made.transport.send([append(1)])
        await settled()
        assert len(made.carrier.delivered) == 1
    assert caplog.messages == []


@in_virtual_time
async def test_an_open_call_ends_after_a_moment_and_leaves_nothing() -> None:
    async with transporting() as made:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        calls = [
            asyncio.create_task(made.transport.deliver(envelope(Heartbeat(PEER, ME, 1, 0))))
            for _ in range(100)
        ]
        assert await asyncio.gather(*calls) == [b""] * 100
        assert loop.time() - begun == pytest.approx(ANSWER_SECONDS, abs=0.01)
        assert made.transport.open_calls == 0


@pytest.mark.parametrize("at_once", [False, True])
@in_virtual_time
async def test_a_cancelled_call_is_not_answered_on(at_once: bool) -> None:
    async with transporting() as made:
        call = asyncio.create_task(made.transport.deliver(envelope(Heartbeat(PEER, ME, 1, 0))))
        await settled()
        call.cancel()
        if not at_once:
            await settled()
        made.transport.send([HeartbeatReply(ME, PEER, 1)])
        await settled()
        assert len(made.carrier.delivered) == 1
        assert made.transport.open_calls == 0


@in_virtual_time
async def test_replies_alone_are_not_waited_for() -> None:
    async with transporting() as made:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for reply in (
            VoteReply(PEER, ME, 1, True),
            AppendReply(PEER, ME, 1, 1),
            HeartbeatReply(PEER, ME, 1),
        ):
            assert await made.transport.deliver(envelope(reply)) == b""
        assert loop.time() == begun


@in_virtual_time
async def test_a_reply_beside_something_else_is_waited_for() -> None:
    async with transporting() as made:
        both = envelope(AppendReply(PEER, ME, 1, 1), Heartbeat(PEER, ME, 1, 0))
        call = asyncio.create_task(made.transport.deliver(both))
        await settled()
        made.transport.send([HeartbeatReply(ME, PEER, 1)])
        assert codec.decode_envelope(await call).messages == (HeartbeatReply(ME, PEER, 1),)


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "bad",
    [
        envelope(Heartbeat(PEER, ME, 1, 0), cluster="another"),
        envelope(Heartbeat(PEER, ME, 1, 0), group="h-0"),
        envelope(InstallSnapshot(PEER, ME, 1, META)),
        b"\xff\xff",
    ],
    ids=["cluster", "group", "snapshot", "rubbish"],
)
def test_a_strangers_envelope_is_refused_both_ways(bad: bytes) -> None:
    @in_virtual_time
    async def run() -> None:
        async with transporting() as made:
            with pytest.raises(Invalid):
                await made.transport.deliver(bad)
            made.carrier.answers = [bad]
            made.transport.send([append(1)])
            await settled()
            assert made.received == []
            made.carrier.answers = [envelope(AppendReply(PEER, ME, 1, 1))]
            made.transport.send([append(2)])
            await settled()
            assert made.received == [AppendReply(PEER, ME, 1, 1)]
            assert made.transport.open_calls == 0

    run()


# -- a death ------------------------------------------------------------------------------------


@in_virtual_time
async def test_the_death_of_the_leaders_process_is_told_once() -> None:
    async with transporting() as made:
        made.carrier.life = asyncio.Event()
        for _ in range(5):
            made.transport.attend(PEER)
            await settled()
        assert made.carrier.attended == [(SEATS[1], PEER)]
        made.carrier.life.set()
        await settled()
        assert made.died == [PEER]
        made.transport.attend(0)  # it leads no more
        await asyncio.sleep(1)
        assert made.died == [PEER]
        assert made.transport.seat_of(PEER) == ""  # whoever sits there next may be another


@in_virtual_time
async def test_calls_that_fail_with_a_death_tell_it_once() -> None:
    async with transporting() as made:
        made.carrier.answers = [Died(), Died()]
        made.transport.send([append(1)])
        made.transport.send([append(2)])
        await settled()
        assert made.died == [PEER]


@in_virtual_time
async def test_any_other_failure_is_a_lost_message() -> None:
    async with transporting() as made:
        made.carrier.answers = [RuntimeError("a bad moment")]
        made.transport.send([append(1)])
        await settled()
        assert made.died == []
        assert made.transport.seat_of(PEER) == SEATS[1]


@in_virtual_time
async def test_attending_another_leader_or_nobody_ends_the_watch() -> None:
    async with transporting() as made:
        made.carrier.life = asyncio.Event()
        made.transport.attend(PEER)
        await settled()
        made.transport.attend(OTHER)
        await settled()
        made.transport.attend(ME)
        await settled()
        assert [replica for _, replica in made.carrier.attended] == [PEER, OTHER]
        made.carrier.life.set()
        await settled()
        assert made.died == []


@in_virtual_time
async def test_the_watch_is_renewed() -> None:
    async with transporting() as made:
        made.transport.attend(PEER)
        await asyncio.sleep(3 * transport_module.ATTEND_SECONDS + 1)
        assert len(made.carrier.attended) == 4
        assert made.died == []


@in_virtual_time
async def test_a_leader_that_steps_down_is_left_until_it_leads_again() -> None:
    async with transporting() as made:
        made.carrier.leads = False
        made.transport.attend(PEER)
        await asyncio.sleep(10)
        assert made.carrier.attended == [(SEATS[1], PEER)]
        made.transport.attend(PEER)
        await settled()
        assert made.carrier.attended == [(SEATS[1], PEER)] * 2
        assert made.died == []


@in_virtual_time
async def test_who_sits_at_no_seat_of_the_group_any_more_is_forgotten() -> None:
    async with transporting() as made:
        made.transport.know(SEATS[:2])
        assert made.transport.seat_of(OTHER) == ""
        assert made.transport.seat_of(PEER) == SEATS[1]


@in_virtual_time
async def test_a_leader_whose_seat_is_not_known_is_found_first() -> None:
    async with transporting(knows=False) as made:
        made.transport.attend(PEER)
        await asyncio.sleep(1)
        assert made.carrier.attended == [(SEATS[1], PEER)]


# -- chunks and the end -------------------------------------------------------------------------


@in_virtual_time
async def test_a_chunk_is_taken_refused_or_lost() -> None:
    async with transporting() as made:
        assert await made.transport.chunk(PEER, b"data")
        made.carrier.answers = [False, RuntimeError("lost"), Died()]
        for _ in range(3):
            assert not await made.transport.chunk(PEER, b"data")
        assert made.died == [PEER]
        assert not await made.transport.chunk(PEER, b"data")  # not known any more
        made.transport.learn(PEER, SEATS[1])
        made.carrier.frozen = asyncio.Event()
        begun = asyncio.get_running_loop().time()
        assert not await made.transport.chunk(PEER, b"data")
        took = asyncio.get_running_loop().time() - begun
        assert took == pytest.approx(transport_module.CHUNK_SECONDS, abs=0.1)


@in_virtual_time
async def test_close_cancels_all_that_is_under_way() -> None:
    async with transporting() as made:
        made.carrier.frozen, made.carrier.life = asyncio.Event(), asyncio.Event()
        for number in range(1, 10):
            made.transport.send([append(number)])
        made.transport.attend(OTHER)
        await settled()
        made.transport.close()
        await settled()
        assert made.carrier.under_way == 0
        made.carrier.frozen.set()
        made.transport.send([append(99)])
        made.transport.attend(PEER)
        made.transport.meet([4])
        await asyncio.sleep(5)
        assert len(made.carrier.delivered) == CALLS_MAX
        assert made.died == []
        assert made.carrier.helloed == []
