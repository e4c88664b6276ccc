"""What is done in haste, and that a slow disk ends it (law 15)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from actors import storage_thread
from actors.storage_jobs import SMALL_APPLY_BYTES, SMALL_SAVE_BYTES, haste_of_apply, haste_of_save
from actors.storage_thread import Haste, StorageThread
from state_machines import op, runs
from state_machines.lease import RevokeLeases
from state_machines.limits import BATCH_ITEMS_MAX
from state_machines.machine import batch_of
from state_machines.metadata.kv import GetKv, PutKv, RangeKv
from state_machines.metadata.node import ExpireNodes
from state_machines.metadata.topic import (
    DeleteTopicConfigs,
    TopicChange,
    TopicName,
    UpdateTopicConfigs,
)
from state_machines.mqtt.pulse import Pulse
from state_machines.mqtt.session import GetSession, OpenSession
from state_machines.mqtt.session_duty import CloseHeldSessions, HeldSession, ListHeldSessions
from state_machines.mqtt.share_group import (
    JoinShareGroups,
    LeaveShareGroups,
    RemoveShareOrphans,
    ShareJoin,
    ShareLeave,
    ShareOrphan,
)
from state_machines.mqtt.will import AckOutbox
from state_machines.offset.group import DeleteGroup, FenceGroup
from state_machines.offset.reset import OffsetReset, ResetOffsets
from state_machines.raft.messages import Entry, HardState, Heartbeat, Ready
from state_machines.transaction import Transaction
from state_machines.wire import api_pb2 as api
from tests.actors.wires import in_loop

LIMIT_SECONDS = 5.0


class Outcome:
    """What a job is told to, and on which thread it ran."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.ran_on = ""

    def job(self, work: Callable[[], object] = lambda: None) -> Callable[[], str]:
        def run() -> str:
            work()
            self.ran_on = threading.current_thread().name
            return self.ran_on

        return run

    def hand(self, storage: StorageThread, job: Callable[[], str], **haste: object) -> None:
        storage.hand(job, self.ended.set_result, self.ended.set_exception, **haste)  # type: ignore[arg-type]

    async def end(self) -> str:
        return await asyncio.wait_for(self.ended, LIMIT_SECONDS)


@in_loop
async def test_a_quick_save_has_ended_when_it_was_handed_over() -> None:
    storage = StorageThread("s")
    for _ in range(20):  # a machine that is busy may have been slow once
        saved = Outcome()
        saved.hand(storage, saved.job(), haste=Haste.SAVE, of_state=False)
        if saved.ended.done():
            break
        await saved.end()
        await asyncio.sleep(storage_thread.SULK_SECONDS)
    assert saved.ended.done()
    assert saved.ran_on == "storage s", "waited for, not done on the loop"
    assert storage.queued == 0
    storage.close()


@in_loop
async def test_a_slow_save_holds_the_loop_no_longer_than_its_patience() -> None:
    """Here for ever, if it did: only the loop ends what the save waits for."""
    storage, disk = StorageThread("s"), threading.Event()
    slow, next_save = Outcome(), Outcome()
    slow.hand(storage, slow.job(lambda: disk.wait(LIMIT_SECONDS)), haste=Haste.SAVE, of_state=False)
    assert not slow.ended.done()
    next_save.hand(storage, next_save.job(), haste=Haste.SAVE, of_state=False)
    assert storage.queued == 2
    disk.set()
    await slow.end()
    await next_save.end()
    assert storage.queued == 0
    storage.close()


@in_loop
async def test_what_may_run_here_does_unless_the_state_is_in_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_thread, "HERE_SECONDS", LIMIT_SECONDS)  # nothing counts as slow
    storage, disk = StorageThread("s"), threading.Event()
    alone, before, behind, beside = Outcome(), Outcome(), Outcome(), Outcome()
    alone.hand(storage, alone.job(), haste=Haste.HERE)
    assert alone.ended.done()
    assert alone.ran_on == threading.current_thread().name
    before.hand(storage, before.job(lambda: disk.wait(LIMIT_SECONDS)))
    behind.hand(storage, behind.job(), haste=Haste.HERE)
    assert not behind.ended.done(), "it would overtake the job before it"
    disk.set()
    assert await before.end() == await behind.end() == "storage s"
    beside.hand(storage, beside.job(), of_state=False)
    here = Outcome()
    here.hand(storage, here.job(), haste=Haste.HERE)
    assert here.ended.done(), "a save of the log does not touch the state"
    await beside.end()
    storage.close()


@in_loop
async def test_what_can_be_spared_is_done_here_or_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(storage_thread, "HERE_SECONDS", LIMIT_SECONDS)  # nothing counts as slow
    storage, disk = StorageThread("s"), threading.Event()
    alone, before, spared = Outcome(), Outcome(), Outcome()
    alone.hand(storage, alone.job(), haste=Haste.SPARE)
    assert alone.ended.done()
    assert alone.ran_on == threading.current_thread().name
    before.hand(storage, before.job(lambda: disk.wait(LIMIT_SECONDS)))
    spared.hand(storage, spared.job(), haste=Haste.SPARE)
    assert storage.queued == 1
    disk.set()
    await before.end()
    assert not spared.ended.done()
    storage.close()
    assert spared.ran_on == ""


@in_loop
async def test_nothing_runs_here_while_a_save_is_overdue() -> None:
    storage, disk = StorageThread("s"), threading.Event()
    save, apply = Outcome(), Outcome()
    save.hand(storage, save.job(lambda: disk.wait(LIMIT_SECONDS)), of_state=False)
    await asyncio.sleep(storage_thread.OVERDUE_SECONDS * 1.5)
    apply.hand(storage, apply.job(), haste=Haste.HERE)
    assert not apply.ended.done()
    disk.set()
    assert await apply.end() == "storage s"
    await save.end()
    storage.close()


@in_loop
async def test_what_goes_wrong_in_haste_is_told_like_any_failure() -> None:
    storage, failed = StorageThread("s"), Outcome()

    def broken() -> str:
        raise OSError("no such luck")

    for haste in (Haste.HERE, Haste.SAVE):
        failed = Outcome()
        failed.hand(storage, broken, haste=haste)
        with pytest.raises(OSError, match="no such luck"):
            await failed.end()
    storage.close()


def test_small_saves_are_waited_for_a_leaders_too() -> None:
    def ready(size: int, *messages: Heartbeat) -> Ready:
        entry = Entry(1, 1, b"x" * size)
        return Ready(messages, None, (entry,), HardState(1, 1, 0), (), (), (), ())

    assert haste_of_save(ready(10)) is Haste.SAVE
    assert haste_of_save(ready(10, Heartbeat(1, 2, 1, 0))) is Haste.SAVE
    assert haste_of_save(ready(SMALL_SAVE_BYTES + 1)) is Haste.NONE


def haste_of(*operations: Any, run: bool = False, crowded: bool = False) -> Haste:
    """Of the apply of an entry with these commands."""
    commands = [api.Command(tag=op.tag(each), body=op.encode(each)) for each in operations]
    if run:
        body = runs.body_of(runs.of(operations))
        commands = [api.Command(tag=op.tag(operations[0]), body=body, count=len(operations))]
    proposal = api.Proposal(client=1, sequence=1, commands=commands)
    entry = Entry(1, 2, batch_of(1, [proposal]))
    state: Any = SimpleNamespace(crowded=crowded)
    return haste_of_apply([Entry(1, 1, b""), entry], state)


def test_what_is_little_is_applied_here() -> None:
    put = PutKv(key="k", value=b"v")
    assert haste_of(put, OpenSession(client_id="c", broker="b")) is Haste.HERE
    assert haste_of(put, put, run=True) is Haste.HERE
    assert haste_of(Transaction.of(then=[put, put])) is Haste.HERE
    assert haste_of(PutKv(key="k", value=b"x" * SMALL_APPLY_BYTES)) is Haste.NONE
    assert haste_of(put, crowded=True) is Haste.NONE


def test_batches_at_their_limit_are_applied_aside() -> None:
    """Each takes tenths of a second."""
    partitions = range(BATCH_ITEMS_MAX)
    resets = [OffsetReset(topic="t", partition=each, offset=1) for each in partitions]
    joins = [ShareJoin(name=str(each), client_id="c", filter="a") for each in partitions]
    assert haste_of(ResetOffsets(group="g", resets=tuple(resets))) is Haste.NONE
    assert haste_of(JoinShareGroups(broker="b", items=tuple(joins))) is Haste.NONE
    assert haste_of(ExpireNodes(controller_epoch=1, timeout_ms=1)) is Haste.NONE


def test_memberships_are_set_and_taken_back_aside() -> None:
    """Each is five rows: what fits into a little entry held the loop for 70 ms."""
    join = ShareJoin(name="g", client_id="c", filter="a")
    leave = ShareLeave(name="g", client_id="c", filter="a")
    orphan = ShareOrphan(tenant="t", name="g", client_id="c", filter="a", member_id=1)
    for batch in (
        JoinShareGroups(broker="b", items=(join,)),
        LeaveShareGroups(broker="b", items=(leave,)),
        RemoveShareOrphans(controller_epoch=1, items=(orphan,)),
    ):
        assert haste_of(batch) is Haste.NONE


def test_a_transaction_that_walks_over_rows_is_applied_aside() -> None:
    """128 queries that each look at 10 000 rows are 6 KB, and held the loop for seconds."""
    put, walk = PutKv(key="k", value=b"v"), ListHeldSessions(brokers=("b",), limit=10_000)
    for one in (GetKv(key="k"), GetSession(client_id="c")):
        assert haste_of(Transaction.of(then=[one])) is Haste.HERE
    assert haste_of(Transaction.of(then=[put], otherwise=[RangeKv()])) is Haste.NONE
    assert haste_of(Transaction.of(then=[walk])) is Haste.NONE


def test_what_writes_large_rows_anew_is_applied_aside() -> None:
    for heavy in (
        AckOutbox(broker="b", ids=(1,)),
        DeleteTopicConfigs(items=(TopicName(name="t"),)),
        UpdateTopicConfigs(items=(TopicChange(name="t", permissions=2),)),
    ):
        assert haste_of(heavy) is Haste.NONE


def test_a_small_command_that_touches_many_rows_is_applied_aside() -> None:
    """On the loop 12 KB that end sessions held up heartbeats for seconds."""
    fence, delete = FenceGroup(group="g"), DeleteGroup(group="g")
    held = HeldSession(client_id="c", epoch=1)
    for heavy in (
        delete,
        CloseHeldSessions(controller_epoch=1, items=(held,)),
        Pulse(controller_epoch=1),
        RevokeLeases(items=(1,)),
    ):
        assert haste_of(heavy) is Haste.NONE
        assert haste_of(fence, heavy) is Haste.NONE
    assert haste_of(delete, delete, run=True) is Haste.NONE
    assert haste_of(Transaction.of(then=[fence, delete])) is Haste.NONE
