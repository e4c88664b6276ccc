"""Who sits where: asked for, heard of, and linked to before there is something urgent to say."""

from __future__ import annotations

import asyncio

from actors.transport import CALL_SECONDS, MEET_SECONDS
from state_machines.raft.messages import HeartbeatReply
from tests.actors.carrier import ME, OTHER, PEER, SEATS, append, envelope, transporting
from tests.actors.virtual_time import in_virtual_time, settled


@in_virtual_time
async def test_an_unknown_peer_is_asked_for_and_learned() -> None:
    async with transporting(knows=False) as made:
        made.transport.send([append(1)])
        made.transport.send([append(2)])
        await asyncio.sleep(0.1)
        assert made.carrier.delivered == []
        assert made.transport.dropped == 2
        assert sorted(made.carrier.helloed) == list(SEATS[1:])  # once, not for each message
        assert made.transport.seat_of(PEER) == SEATS[1]
        made.transport.send([append(3)])
        await settled()
        assert [seat for seat, _ in made.carrier.delivered] == [SEATS[1]]


@in_virtual_time
async def test_a_seat_that_does_not_answer_does_not_spoil_the_search() -> None:
    async with transporting(knows=False) as made:
        made.carrier.ids[SEATS[1]] = RuntimeError("away")
        made.carrier.ids[SEATS[2]] = OTHER
        made.transport.meet([ME, PEER, OTHER])
        await asyncio.sleep(0.1)
        assert made.transport.seat_of(OTHER) == SEATS[2]
        assert made.transport.seat_of(PEER) == ""
        made.carrier.ids[SEATS[1]] = 0  # vacant
        await asyncio.sleep(MEET_SECONDS)
        made.transport.meet([PEER])
        await asyncio.sleep(0.1)
        assert made.carrier.helloed.count(SEATS[1]) == 2
        assert made.transport.seat_of(PEER) == ""


@in_virtual_time
async def test_a_seat_that_hangs_keeps_nobody_from_being_looked_for_again() -> None:
    async with transporting(knows=False) as made:
        made.carrier.ids[SEATS[1]] = asyncio.Event()
        made.carrier.ids[SEATS[2]] = 0  # vacant
        made.transport.meet([ME, PEER, OTHER])
        await asyncio.sleep(CALL_SECONDS + 0.1)
        made.carrier.ids[SEATS[2]] = OTHER
        made.transport.meet([ME, PEER, OTHER])
        await asyncio.sleep(0.1)
        assert made.transport.seat_of(OTHER) == SEATS[2]


@in_virtual_time
async def test_all_met_is_nothing_to_ask() -> None:
    async with transporting() as made:
        made.transport.meet([ME, PEER, OTHER])
        await asyncio.sleep(0.1)
        assert made.carrier.helloed == []
        assert made.transport.seat_of(ME) == SEATS[0]


@in_virtual_time
async def test_an_envelope_teaches_where_its_sender_sits_but_only_a_seat_of_the_group() -> None:
    async with transporting() as made:
        await made.transport.deliver(envelope(HeartbeatReply(PEER, ME, 1), seat=SEATS[2]))
        assert made.transport.seat_of(PEER) == SEATS[2]
        for foreign in ("elsewhere/1", SEATS[0], ""):
            await made.transport.deliver(envelope(HeartbeatReply(PEER, ME, 1), seat=foreign))
            assert made.transport.seat_of(PEER) == SEATS[2]


@in_virtual_time
async def test_links_to_all_members_are_wanted_before_there_is_something_to_say() -> None:
    async with transporting() as made:
        made.transport.meet([ME, PEER, OTHER])
        assert made.carrier.looked_at == {SEATS[1], SEATS[2]}


@in_virtual_time
async def test_links_are_looked_after_with_each_tick_and_seats_are_asked_for_now_and_then() -> None:
    async with transporting() as made:
        made.transport.meet([ME, PEER, OTHER, 9])
        made.carrier.looked_at.clear()
        for _ in range(50):
            await asyncio.sleep(MEET_SECONDS / 20)
            made.transport.meet([ME, PEER, OTHER, 9])
            assert made.carrier.looked_at == {SEATS[1], SEATS[2]}
            made.carrier.looked_at.clear()
        assert made.carrier.helloed.count(SEATS[1]) == 3  # in two and a half times so long


@in_virtual_time
async def test_who_is_learned_anew_is_linked_to() -> None:
    async with transporting(knows=False) as made:
        made.transport.learn(PEER, SEATS[1])
        assert made.carrier.looked_at == {SEATS[1]}
        made.carrier.looked_at.clear()
        made.transport.learn(PEER, SEATS[1])
        assert made.carrier.looked_at == set(), "of each message that says so"


@in_virtual_time
async def test_who_asks_is_known_and_expected() -> None:
    """A leader that was killed and came back was known to nobody but its successor, for seconds."""
    async with transporting(knows=False) as made:
        made.transport.greeted(PEER, SEATS[1])
        assert made.transport.seat_of(PEER) == SEATS[1]
        made.transport.greeted(PEER, SEATS[1])  # it has been away meanwhile
        assert made.carrier.expected == [SEATS[1]] * 2
        for foreign in ("elsewhere/1", SEATS[0], ""):
            made.transport.greeted(PEER, foreign)
        assert made.transport.seat_of(PEER) == SEATS[1]
        assert made.carrier.expected == [SEATS[1]] * 2
