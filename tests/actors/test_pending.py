"""Who waits at a replica: bounds, one answer each, and where a slow write spent its time."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from random import Random

import pytest

from actors import pending
from actors.admission import PROPOSALS
from actors.caller import error_of
from actors.deadlines import Deadlines
from actors.pending import PHASES, Read, Reads, Slot, Write, Writes
from state_machines.errors import (
    MetarayError,
    NotLeader,
    Overloaded,
    Stopped,
    Transferring,
    WrongShard,
)
from state_machines.machine import Applied
from state_machines.raft.messages import Entry
from state_machines.wire import api_pb2 as api
from tests.actors.virtual_time import VirtualClock, in_virtual_time


def reply_future() -> asyncio.Future[bytes]:
    return asyncio.get_running_loop().create_future()


def write(size: int = 10, at: float = 0.0) -> Write:
    return Write(api.Proposal(client=1, sequence=1), (), size, reply_future(), at)


def read(min_revision: int = 0) -> Read:
    return Read(api.QueryRequest(min_revision=min_revision), reply_future())


def code(future: asyncio.Future[bytes]) -> int:
    return api.Reply.FromString(future.result()).code


def entry(index: int, term: int = 1) -> Entry:
    return Entry(term, index, b"x")


# -- writes -------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_full_queue_refuses() -> None:
    writes = Writes("s", 1.0, Random(1))
    writes.admission.limits = replace(PROPOSALS, calls=3)
    for _ in range(3):
        writes.queue(write())
    with pytest.raises(Overloaded) as refused:
        writes.queue(write())
    assert refused.value.retry_after_ms > 0
    assert len(writes) == 3
    taken = writes.take(0.0)
    writes.proposed(1, Slot(1, taken, 0.0))
    with pytest.raises(Overloaded):  # what is in the log waits as well
        writes.queue(write())
    writes.applied(1, 1, [Applied(1, 1, b"")] * 3, 0.1)
    writes.queue(write())


@in_virtual_time
async def test_too_many_bytes_are_refused_and_counted_off_again() -> None:
    writes = Writes("s", 1.0, Random(1))
    writes.admission.limits = replace(PROPOSALS, size=100)
    for round_ in range(5):
        writes.queue(write(60))
        with pytest.raises(Overloaded):
            writes.queue(write(41))
        match round_:
            case 0 | 1:
                writes.fail(Stopped("over"), 0.0)
            case 2 | 3:
                writes.refuse(writes.take(0.0), NotLeader("lost"), 0.0)
            case _:
                writes.proposed(1, Slot(1, writes.take(0.0), 0.0))
                writes.applied(1, 1, [Applied(1, 1, b"")], 0.0)
    writes.queue(write(60))


@in_virtual_time
async def test_an_entry_closes_at_its_limits() -> None:
    writes = Writes("s", 1.0, Random(1), batch_max=4)
    for _ in range(10):
        writes.queue(write())
    assert [len(writes.take(0.0)) for _ in range(4)] == [4, 4, 2, 0]
    for _ in range(5):
        writes.queue(write(pending.BATCH_BYTES_MAX // 2))
    assert [len(writes.take(0.0)) for _ in range(4)] == [2, 2, 1, 0]
    writes.queue(write(3 * pending.BATCH_BYTES_MAX))
    assert len(writes.take(0.0)) == 1


@in_virtual_time
async def test_whoever_gave_up_is_not_proposed() -> None:
    writes = Writes("s", 1.0, Random(1))
    gone, late, stays = write(), write(), write()
    for each in (gone, late, stays):
        writes.queue(each)
    gone.reply.cancel()
    assert api.Reply.FromString(await Deadlines("g").watch(late.reply, 5)).code == api.UNKNOWN
    assert writes.take(0.0) == [stays]


@in_virtual_time
async def test_each_gets_its_own_reply() -> None:
    writes = Writes("s", 1.0, Random(1))
    batch = [write(), write()]
    writes.proposed(5, Slot(1, batch, 0.0))
    writes.applied(5, 1, [Applied(1, 1, b"one"), Applied(2, 1, b"two")], 0.1)
    assert [each.reply.result() for each in batch] == [b"one", b"two"]
    writes.applied(5, 1, [Applied(1, 1, b"again"), Applied(2, 1, b"again")], 0.2)  # no such slot


@in_virtual_time
async def test_another_leaders_entry_at_the_index_is_a_refusal() -> None:
    writes = Writes("s", 1.0, Random(1))
    mine = write()
    writes.proposed(5, Slot(1, [mine], 0.0))
    writes.saved([entry(5, term=2)], 0.1)
    writes.committed([entry(5, term=2)], 0.2)
    writes.applied(5, 2, [Applied(9, 9, b"another's"), Applied(9, 10, b"more")], 0.3)
    assert code(mine.reply) == api.NOT_LEADER
    assert sum(writes.phases.values()) == 0


@in_virtual_time
async def test_phases_add_up_to_the_whole() -> None:
    writes = Writes("s", 100.0, Random(1))
    mine = [write(at=1.0), write(at=1.5)]
    writes.proposed(5, Slot(1, mine, 2.0))
    writes.saved([entry(4), entry(5)], 4.0)
    writes.committed([entry(5), entry(6)], 8.0)
    writes.applied(5, 1, [Applied(1, 1, b""), Applied(2, 1, b"")], 16.0)
    assert writes.phases == {"queue": 1.0, "append": 2.0, "replicate": 4.0, "apply": 8.0}
    assert sum(writes.phases.values()) == 16.0 - 1.0


@in_virtual_time
async def test_phases_add_up_when_followers_were_faster() -> None:
    writes = Writes("s", 100.0, Random(1))
    writes.proposed(5, Slot(1, [write(at=1.0)], 2.0))
    writes.committed([entry(5)], 4.0)
    writes.applied(5, 1, [Applied(1, 1, b"")], 5.0)
    assert writes.phases["replicate"] == 0.0
    assert sum(writes.phases.values()) == 4.0


def test_a_slow_write_is_one_warning_with_its_phases(caplog: pytest.LogCaptureFixture) -> None:
    @in_virtual_time
    async def slow() -> None:
        writes = Writes("metadata-0/1", 1.0, Random(1))
        for index, took in ((5, 0.9), (6, 3.0)):
            writes.proposed(index, Slot(1, [write(at=0.0), write(at=0.1)], 0.2))
            writes.saved([entry(index)], 0.3)
            writes.committed([entry(index)], 0.4)
            writes.applied(index, 1, [Applied(1, 1, b""), Applied(2, 1, b"")], took)
        assert writes.slow == 1

    with caplog.at_level(logging.WARNING, "actors.pending"):
        slow()
    (said,) = caplog.messages
    assert "metadata-0/1" in said
    assert "index 6" in said
    assert all(f"{phase} " in said for phase in PHASES)
    assert "2600 ms" in said


def test_writes_that_no_lead_is_left_to_apply_are_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """They have taken longer than any that were applied, and nothing else would tell of them."""

    @in_virtual_time
    async def lost() -> None:
        for saved, waited in ((True, 0.9), (True, 3.0), (False, 3.0)):
            writes = Writes("metadata-0/1", 1.0, Random(1))
            writes.proposed(5, Slot(1, [write(at=0.0), write(at=0.1)], 0.2))
            if saved:
                writes.saved([entry(5)], 0.3)
            writes.queue(write(at=0.4))
            writes.queue(write(at=2.5))
            writes.fail(NotLeader("lost the leadership", "s/2"), waited)
            assert writes.slow == (waited > 1.0)
        writes.fail(NotLeader("nobody waits"), 9.0)
        writes.queue(write(at=10.0))
        writes.fail(Stopped("closed"), 12.0)
        assert writes.slow == 2

    with caplog.at_level(logging.WARNING, "actors.pending"):
        lost()
    replicate, append, queue = caplog.messages
    assert all("metadata-0/1: slow writes" in each for each in caplog.messages)
    assert "3 were not applied, the oldest after 3000 ms in replicate: lost the lead" in replicate
    assert "in append" in append
    assert "1 were not applied, the oldest after 2000 ms in queue: closed" in queue


@in_virtual_time
async def test_an_entry_lingers_for_company_but_not_when_full() -> None:
    writes = Writes("s", 1.0, Random(1), linger_seconds=0.1, batch_max=2)
    assert writes.linger(5.0) == 0.0
    writes.queue(write(at=5.0))
    assert writes.linger(5.04) == pytest.approx(0.06)
    assert writes.linger(5.2) <= 0
    writes.queue(write(at=5.05))
    assert writes.linger(5.05) == 0.0


@in_virtual_time
async def test_nobody_lingers_with_one_call_that_is_as_much_as_an_entry_of_calls() -> None:
    writes = Writes("s", 1.0, Random(1), linger_seconds=0.1, batch_max=100)
    for operations, waits in ((99, 0.1), (1, 0.0)):
        one = write(at=5.0)
        one.charge = replace(one.charge, operations=operations)
        writes.queue(one)
        assert writes.linger(5.0) == pytest.approx(waits)


@in_virtual_time
async def test_everyone_ends_exactly_once_on_fail() -> None:
    writes = Writes("s", 1.0, Random(1))
    answered, cancelled, slotted, queued = write(), write(), write(), write()
    answered.reply.set_result(b"already")
    cancelled.reply.cancel()
    writes.proposed(5, Slot(1, [answered, slotted], 0.0))
    writes.queue(cancelled)
    writes.queue(queued)
    writes.fail(NotLeader("lost", "s/2"), 0.0)
    assert answered.reply.result() == b"already"
    assert cancelled.reply.cancelled()
    for each in (slotted, queued):
        assert api.Reply.FromString(each.reply.result()).leader == "s/2"
    assert len(writes) == 0
    assert writes.take(0.0) == []
    writes.fail(Stopped("again"), 0.0)
    writes.applied(5, 1, [Applied(1, 1, b"late"), Applied(2, 1, b"late")], 9.0)
    assert code(slotted.reply) == api.NOT_LEADER


@in_virtual_time
async def test_only_of_what_came_into_no_log_is_that_said() -> None:
    """The entry of a lead that was lost may be committed yet."""
    writes = Writes("s", 1.0, Random(1))
    slotted, queued, taken = write(), write(), write()
    writes.queue(taken)
    writes.refuse(writes.take(0.0), NotLeader("lost"), 0.0)
    writes.proposed(5, Slot(1, [slotted], 0.0))
    writes.queue(queued)
    writes.fail(NotLeader("lost"), 0.0)
    said = [api.Reply.FromString(each.reply.result()) for each in (taken, queued, slotted)]
    assert [each.unproposed for each in said] == [True, True, False]


def reads_of() -> Reads:
    return Reads("s", Random(5), VirtualClock())


# -- reads --------------------------------------------------------------------------------------


@in_virtual_time
async def test_reads_share_a_round_and_rounds_are_never_reused() -> None:
    reads = reads_of()
    assert reads.begin_round() is None
    first, second, third = read(), read(), read()
    reads.queue(first)
    reads.queue(second)
    begun = reads.begin_round()
    assert begun is not None
    assert begun[1] == [first, second]
    reads.queue(third)
    later = reads.begin_round()
    assert later is not None
    assert later[0] > begun[0]
    reads.fail(NotLeader("lost"), safe_too=False)
    reads.queue(read())
    again = reads.begin_round()
    assert again is not None
    assert again[0] > later[0]


@in_virtual_time
async def test_a_read_waits_for_its_round_and_for_the_state() -> None:
    reads = reads_of()
    mine = read()
    reads.queue(mine)
    begun = reads.begin_round()
    assert begun is not None
    assert reads.due(1_000) == []
    reads.confirmed(begun[0], 7)
    reads.confirmed(begun[0] + 1, 7)  # of nobody
    assert reads.due(6) == []
    assert reads.due(7) == [mine]
    assert reads.due(7) == []
    assert len(reads) == 0


@in_virtual_time
async def test_a_refused_round_holds_nobody() -> None:
    reads = reads_of()
    refused = read()
    reads.queue(refused)
    begun = reads.begin_round()
    assert begun is not None
    reads.abandon(begun[0], NotLeader("lost"))
    assert len(reads) == 0
    assert reads.begun == []
    assert code(refused.reply) == api.NOT_LEADER


@in_virtual_time
async def test_an_answer_made_ahead_counts_if_the_round_ends_at_no_later_index() -> None:
    reads = reads_of()
    soon, late, gone, asked = read(), read(), read(), read()
    for each, at in ((soon, 7), (late, 6), (gone, 7)):
        reads.queue(each)
        each.ahead, each.ahead_at = b"made at %d" % at, at
    reads.queue(asked)
    gone.reply.cancel()
    begun = reads.begin_round()
    assert begun is not None
    assert not soon.reply.done(), "nobody has said that this replica still leads"
    reads.confirmed(begun[0], 7)
    assert soon.reply.result() == b"made at 7"
    assert reads.due(7) == [late, asked]


@in_virtual_time
async def test_only_a_round_that_waits_for_no_other_has_begun() -> None:
    reads = reads_of()
    first, second = read(), read()
    reads.queue(first)
    begun = reads.begin_round()
    assert begun is not None
    assert reads.begun == [first]
    reads.queue(second)
    reads.begin_round()
    assert reads.begun == []
    reads.confirmed(begun[0], 1)


@in_virtual_time
async def test_full_read_queues_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "READS_MAX", 2)
    reads = reads_of()
    for queue in (reads.queue, lambda read: reads.queue_stale(read, 0)):
        queue(read(5))
        queue(read(5))
        refused = reads.refusals.refused
        later = set()
        for _ in range(20):
            with pytest.raises(Overloaded, match="s: the read queue is full") as told:
                queue(read(5))
            later.add(told.value.retry_after_ms)
        assert reads.refusals.refused == refused + 20
        assert 50 <= min(later) < max(later) <= 150, "they do not come back together"


@in_virtual_time
async def test_reads_in_rounds_take_room_until_their_round_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a leader that is cut off takes reads in, turn by turn, until it knows that it is."""
    monkeypatch.setattr(pending, "READS_MAX", 2)
    reads = reads_of()

    def begun() -> int:
        round_ = reads.begin_round()
        assert round_ is not None
        with pytest.raises(Overloaded, match="s: the read queue is full"):
            reads.queue(read())
        return round_[0]

    def fill() -> int:
        reads.queue(read())
        reads.queue(read())
        return begun()

    reads.confirmed(fill(), 0)
    assert len(reads.due(0)) == 2
    reads.abandon(fill(), NotLeader("lost"))
    fill()
    reads.fail(Stopped("over"), safe_too=False)
    reads.queue(read())
    assert len(reads) == 1


@in_virtual_time
async def test_reads_take_room_until_the_state_has_come_so_far(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a leader whose disk stands still takes reads in, round by round: its followers confirm
    them."""
    monkeypatch.setattr(pending, "READS_MAX", 2)
    reads = reads_of()
    safe = [read(), read()]
    for each in safe:
        reads.queue(each)
    begun = reads.begin_round()
    assert begun is not None
    reads.confirmed(begun[0], 9)
    with pytest.raises(Overloaded, match="s: the read queue is full"):
        reads.queue(read())
    assert reads.due(8) == []
    assert len(reads) == 2
    assert reads.due(9) == safe
    reads.queue(read())
    assert len(reads) == 1


@in_virtual_time
async def test_who_gave_up_makes_room_wherever_he_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "READS_MAX", 3)
    reads = reads_of()
    for_the_state, in_a_round, for_a_round = read(), read(), read()
    reads.queue(for_the_state)
    begun = reads.begin_round()
    assert begun is not None
    reads.confirmed(begun[0], 9)
    reads.queue(in_a_round)
    reads.begin_round()
    reads.queue(for_a_round)
    for each in (for_the_state, in_a_round, for_a_round):
        with pytest.raises(Overloaded):
            reads.queue(read())
        each.reply.cancel()
        await asyncio.sleep(1)  # after a look in vain nobody looks for a moment
        reads.queue(read())
    assert len(reads) == 3


@in_virtual_time
async def test_stale_readers_that_gave_up_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "READS_MAX", 2)
    reads = reads_of()
    for _ in range(6):  # each wants a revision that never comes, and its deadline passes
        waiting = read(2**60)
        reads.queue_stale(waiting, 2**60)
        assert reads.due(10) == []
        waiting.reply.cancel()
    assert reads.due(10) == []
    assert len(reads) == 0


@in_virtual_time
async def test_with_each_apply_only_those_are_looked_at_that_are_due() -> None:
    reads, looks = reads_of(), 0

    class Looked(asyncio.Future[bytes]):
        def done(self) -> bool:
            nonlocal looks
            looks += 1
            return super().done()

    def far(index: int) -> pending.Read:
        return pending.Read(read(index).request, Looked())

    waiting = {index: far(index) for index in (*range(900, 100, -1), *range(1_000, 1_200))}
    for index, each in waiting.items():
        reads.queue_stale(each, index)
    in_a_round = [far(0) for _ in range(100)]
    for each in in_a_round:
        reads.queue(each)
    begun = reads.begin_round()
    assert begun is not None
    reads.confirmed(begun[0], 950)
    for applied in range(101):
        assert reads.due(applied) == []
    assert looks <= 101
    waiting[102].reply.cancel()
    assert reads.due(102) == [waiting[101]]
    later = [waiting[index] for index in (*range(103, 901), 1_000)]
    assert reads.due(1_000) == [*in_a_round, *later]
    assert len(reads) == 199


@in_virtual_time
async def test_who_finds_a_queue_full_of_readers_that_gave_up_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nothing is applied nobody had looked for them."""
    monkeypatch.setattr(pending, "READS_MAX", 2)
    reads = reads_of()
    for _ in range(6):
        waiting = read(2**60)
        reads.queue_stale(waiting, 2**60)
        waiting.reply.cancel()
    assert len(reads) <= 2


@in_virtual_time
async def test_every_reader_ends_exactly_once_on_fail() -> None:
    for safe_too in (False, True):
        reads = reads_of()
        waiting, in_round, safe, stale = read(), read(), read(), read(50)
        reads.queue(safe)
        begun = reads.begin_round()
        assert begun is not None
        reads.confirmed(begun[0], 9)
        reads.queue(in_round)
        reads.begin_round()
        reads.queue(waiting)
        reads.queue_stale(stale, stale.request.min_revision)
        reads.fail(Stopped("over"), safe_too=safe_too)
        assert code(waiting.reply) == code(in_round.reply) == api.STOPPED
        assert safe.reply.done() is stale.reply.done() is safe_too
        if not safe_too:
            reads.fail_confirmed(Stopped("over"))
            assert (safe.reply.done(), stale.reply.done()) == (True, False)
            assert len(reads) == 1
        reads.fail(Stopped("over"), safe_too=True)
        assert code(safe.reply) == code(stale.reply) == api.STOPPED
        assert len(reads) == 0


# -- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        NotLeader("no", "metadata-0/2"),
        Overloaded("busy", 250),
        WrongShard("elsewhere", 12),
        Stopped("corrupt"),
        Transferring("a moment"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refusal_says_all_that_its_error_says(error: MetarayError) -> None:
    back = error_of(api.Reply.FromString(pending.refusal(error).SerializeToString()))
    assert type(back) is type(error)
    assert back.args == error.args
