"""Where reads are answered: single rows in haste, long ones beside the storage thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors import answers
from actors.admission import LOOK_SECONDS
from actors.answers import SINGLE_ROWS_MAX, WALK_MS, Answers
from actors.pending import Read
from actors.storage_thread import Haste, On, StorageThread
from state_machines import op
from state_machines.machine import Machine
from state_machines.metadata.kv import GetKv, KvPage, PutKv, RangeKv
from state_machines.wire import api_pb2 as api
from storage.errors import CorruptRecord, ViewLost
from storage.reading import Reading
from storage.shelf import DiskShelf, MemoryShelf
from storage.state import State
from tests.machine.alone import Group, wire

NOW_MS = 1_700_000_000_000


@dataclass
class Watched(StorageThread):
    """A storage thread without threads, that takes note of where each job was to go."""

    handed: list[tuple[On, Haste]] = field(default_factory=list)
    before: dict[On, Callable[[], None]] = field(default_factory=dict)

    def hand(
        self,
        job: Callable[[], Any],
        done: Callable[[Any], None],
        failed: Callable[[BaseException], None],
        *,
        haste: Haste = Haste.NONE,
        of_state: bool = True,
        on: On = On.STORAGE,
    ) -> None:
        self.handed.append((on, haste))
        self.before.get(on, lambda: None)()
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 - as the thread hands it over
            failed(error)
        else:
            done(result)


class Moment:
    """A clock that stands, unless it is moved."""

    seconds = 0.0

    def now_ms(self) -> int:
        return NOW_MS

    def monotonic(self) -> float:
        return self.seconds

    uptime = monotonic


class Answering:
    """A group with ten pairs, and reads of it."""

    def __init__(self, shelf: DiskShelf | None = None) -> None:
        self.state = State(shelf or MemoryShelf())
        self.group = Group("metadata", self.state)  # type: ignore[arg-type]
        for number in range(10):
            self.group.run(PutKv(key=f"k{number}", value=b"1"))
        self.storage = Watched()
        self.failed: list[BaseException] = []
        self.moment = Moment()
        machine: Machine = self.group.machine
        self.answers = Answers(
            self.storage, machine, self.state, self.moment, Random(5), self.failed.append
        )

    def hand(self, *reads: tuple[api.Command, ...]) -> list[Read]:
        loop = asyncio.get_running_loop()
        due = [Read(api.QueryRequest(queries=each), loop.create_future()) for each in reads]
        self.answers.hand(due)
        return due

    async def ask(self, *reads: tuple[api.Command, ...]) -> list[api.Reply]:
        return await replies_to(self.hand(*reads))

    def page(self, reply: api.Reply) -> KvPage:
        page: KvPage = op.decode_reply(RangeKv(), reply.results[0].body)
        return page


class Held:
    """Real threads for it, of which one waits until it is let go: the reader's, or the storage
    thread's."""

    def __init__(self, answering: Answering, on: On = On.READER) -> None:
        self.storage = answering.answers.storage = StorageThread("s")
        self._on = on
        self._free = threading.Event()
        free, failed = partial(self._free.wait, 10), answering.failed.append
        self.storage.hand(free, lambda _: None, failed, of_state=on is On.STORAGE, on=on)

    async def let_go(self) -> None:
        if self._on is On.READER:
            await self.storage.run(lambda: None)  # what was handed over before has its reading
        self._free.set()


async def replies_to(reads: list[Read]) -> list[api.Reply]:
    async with asyncio.timeout(10):
        return [api.Reply.FromString(await each.reply) for each in reads]


GET, RANGE = wire(GetKv(key="k1")), wire(RangeKv())
ON_LOOP, IN_TURN = (On.STORAGE, Haste.HERE), (On.STORAGE, Haste.NONE)


def test_single_rows_are_read_in_haste_and_long_reads_aside() -> None:
    async def run() -> None:
        answering = Answering()
        many = api.Command(tag=GET.tag, count=SINGLE_ROWS_MAX + 1, body=b"\x80")
        replies = await answering.ask((GET, GET), (RANGE,), (GET,))
        assert [len(each.results) for each in replies] == [2, 1, 1]
        assert answering.storage.handed == [ON_LOOP, IN_TURN, (On.READER, Haste.NONE)]
        answering.storage.handed.clear()
        await answering.ask((GET, RANGE))  # one of them is enough
        assert answering.storage.handed == [IN_TURN, (On.READER, Haste.NONE)]
        answering.storage.handed.clear()
        await answering.ask((many,))
        assert answering.storage.handed == [IN_TURN]
        replies = await answering.ask((api.Command(tag="no.such"),))
        assert replies[0].results[0].code == api.INVALID

    asyncio.run(run())


def test_what_is_little_is_answered_ahead_from_all_that_is_committed() -> None:
    async def run() -> None:
        answering = Answering()
        loop = asyncio.get_running_loop()

        def made(*commands: api.Command, commit: int = 10, applied: int = 10) -> list[int]:
            reads = [Read(api.QueryRequest(queries=(c,)), loop.create_future()) for c in commands]
            answering.answers.make_ahead(reads, commit, applied)
            assert not any(each.reply.done() for each in reads), "its round is under way"
            replies = [api.Reply.FromString(each.ahead) for each in reads if each.ahead]
            assert all(each.ahead_at == applied for each in reads if each.ahead)
            return [len(each.results) for each in replies]

        many = api.Command(tag=GET.tag, count=SINGLE_ROWS_MAX, body=b"\x80")
        assert made(GET, GET) == [1, 1]
        assert made(GET, commit=9) == [1]
        assert answering.storage.handed == [(On.STORAGE, Haste.SPARE)] * 2
        assert made(GET, commit=11) == []
        assert made(GET, RANGE) == []
        assert made(GET, many) == []
        assert len(answering.storage.handed) == 2

    asyncio.run(run())


def test_a_long_read_sees_the_state_of_its_turn() -> None:
    """Entries that are applied before the reader comes to it are not half of what it sees."""

    async def run() -> None:
        answering = Answering()

        def meanwhile() -> None:
            answering.group.run(PutKv(key="k0", value=b"2"))
            answering.group.run(PutKv(key="k10", value=b"2"))

        answering.storage.before[On.READER] = meanwhile
        (reply,) = await answering.ask((RANGE,))
        assert {each.value for each in answering.page(reply).entries} == {b"1"}
        assert reply.revision == answering.group.index - 2
        (reply,) = await answering.ask((RANGE,))
        assert len(answering.page(reply).entries) == 11

    asyncio.run(run())


def test_a_long_read_sees_what_was_handed_over_before_it() -> None:
    async def run() -> None:
        answering = Answering()
        storage = answering.answers.storage = StorageThread("s")
        gate = threading.Event()

        def apply() -> None:
            assert gate.wait(10)
            answering.group.run(PutKv(key="k10", value=b"2"))

        storage.hand(apply, lambda _: None, answering.failed.append)
        reads = answering.hand((RANGE,))
        gate.set()
        (reply,) = await replies_to(reads)
        assert len(answering.page(reply).entries) == 11
        storage.close()

    asyncio.run(run())


def test_a_long_read_whose_view_is_lost_is_answered_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        answering = Answering()
        taken: list[Reading] = []
        reading = State.reading

        def note(state: State) -> Reading:
            taken.append(reading(state))
            return taken[-1]

        monkeypatch.setattr(State, "reading", note)
        answering.storage.before[On.READER] = lambda: taken[-1].close()
        (reply,) = await answering.ask((RANGE,))
        assert len(answering.page(reply).entries) == 10
        assert answering.storage.handed == [IN_TURN, (On.READER, Haste.NONE), IN_TURN]
        assert not answering.failed

        def none_left(_: State) -> Reading:
            raise ViewLost("too many views are open")

        monkeypatch.setattr(State, "reading", none_left)
        answering.storage.handed.clear()
        (reply,) = await answering.ask((RANGE,))
        assert len(answering.page(reply).entries) == 10
        assert answering.storage.handed == [IN_TURN, IN_TURN]

    asyncio.run(run())


def test_damage_that_a_long_read_finds_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        answering = Answering()

        def damaged(*_: object, **__: object) -> None:
            raise CorruptRecord("here", "metadata.kv", "k", "checksum")

        monkeypatch.setattr(Reading, "scan", damaged)
        (reply,) = await answering.ask((RANGE,))
        assert reply.code == api.STOPPED
        assert "checksum" in reply.detail
        assert [type(each) for each in answering.failed] == [CorruptRecord]

    asyncio.run(run())


def test_a_long_read_keeps_no_view_when_it_is_answered(tmp_path: Path) -> None:
    async def run() -> None:
        answering = Answering(DiskShelf(tmp_path / "s", tmp_path / "i"))
        await answering.ask((RANGE,))
        assert answering.state.engine.stats().views == 0
        answering.state.close()

    asyncio.run(run())


def test_damage_that_single_rows_meet_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        answering = Answering()

        def damaged(*_: object) -> None:
            raise CorruptRecord("here", "metadata.kv", "k", "checksum")

        monkeypatch.setattr(answers, "answer", damaged)
        (read,) = answering.hand((GET,))
        assert read.reply.done()
        (reply,) = await replies_to([read])
        assert reply.code == api.STOPPED
        assert [type(each) for each in answering.failed] == [CorruptRecord]

    asyncio.run(run())


def test_hundreds_of_long_reads_wait_with_one_reading(tmp_path: Path) -> None:
    """Each takes a reader's place in LMDB, which has 512, and applies need one as well."""

    async def run() -> None:
        answering = Answering(DiskShelf(tmp_path / "s", tmp_path / "i"))
        held = Held(answering)
        reads = [read for _ in range(600) for read in answering.hand((RANGE,))]
        await held.storage.run(lambda: None)
        assert answering.state.engine.stats().views == 1
        await held.let_go()
        assert {len(answering.page(each).entries) for each in await replies_to(reads)} == {10}
        assert not answering.failed
        held.storage.close()
        answering.state.close()

    asyncio.run(run())


def test_a_long_read_that_comes_during_a_walk_sees_what_was_applied_before_it() -> None:
    async def run() -> None:
        answering = Answering()
        held = Held(answering)
        first = answering.hand((RANGE,))
        await held.storage.run(lambda: answering.group.run(PutKv(key="k10", value=b"1")))
        later = [*answering.hand((RANGE,)), *answering.hand((RANGE,))]
        assert len(answering.answers) == 3
        await held.let_go()
        pages = [answering.page(each) for each in await replies_to(first + later)]
        assert [len(each.entries) for each in pages] == [10, 11, 11]
        assert len(answering.answers) == 0
        held.storage.close()

    asyncio.run(run())


def test_nothing_is_walked_over_for_callers_that_gave_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        answering = Answering()
        asked: list[Any] = []
        query = Machine.query

        def note(machine: Machine, queries: Any, *rest: Any, **more: Any) -> api.Reply:
            asked.append(queries)
            return query(machine, queries, *rest, **more)

        monkeypatch.setattr(Machine, "query", note)
        held = Held(answering)
        walked, waiting = answering.hand((RANGE,), (RANGE,)), answering.hand((RANGE,))
        for read in walked + waiting:
            read.reply.cancel()
        last = answering.hand((RANGE,))
        await held.let_go()
        await replies_to(last)
        assert len(asked) == 1
        held.storage.close()

    asyncio.run(run())


def test_who_was_answered_does_not_wait_for_all_others_of_a_walk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        answering = Answering()
        later = count(NOW_MS, WALK_MS // 2).__next__
        monkeypatch.setattr(answering.answers.clock, "now_ms", later)
        assert len(await answering.ask((RANGE,), (RANGE,), (RANGE,))) == 3
        # At the moments 1 and 2 of the first walk: that is one, and time is up.
        assert answering.storage.handed == [IN_TURN, (On.READER, Haste.NONE)] * 3

    asyncio.run(run())


def test_damage_is_told_to_those_who_wait_for_the_walk_that_finds_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        answering = Answering()
        waiting: list[Read] = []
        answering.storage.before[On.READER] = lambda: waiting.extend(answering.hand((RANGE,)))
        with monkeypatch.context() as patch:

            def damaged(*_: object, **__: object) -> None:
                raise CorruptRecord("here", "metadata.kv", "k", "checksum")

            patch.setattr(Reading, "scan", damaged)
            replies = [*await answering.ask((RANGE,)), *await replies_to(waiting)]
        assert [each.code for each in replies] == [api.STOPPED] * 2
        assert len(answering.failed) == 1
        answering.storage.before.clear()
        (reply,) = await answering.ask((RANGE,))  # nobody is stuck behind them
        assert reply.code == api.OK

    asyncio.run(run())


def test_long_reads_beyond_the_bound_are_told_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def run() -> None:
        monkeypatch.setattr("actors.answers.READS_MAX", 3)
        answering = Answering()
        held = Held(answering)
        reads = [*answering.hand((RANGE,)), *answering.hand(*[(RANGE,)] * 4)]
        taken, refused = reads[:3], reads[3:]
        assert all(each.reply.done() for each in refused)
        assert [each.code for each in await replies_to(refused)] == [api.OVERLOADED] * 2
        taken[-1].reply.cancel()
        answering.moment.seconds += LOOK_SECONDS
        taken[-1:] = answering.hand((RANGE,))  # who gave up leaves room
        await held.let_go()
        assert [each.code for each in await replies_to(taken)] == [api.OK] * 3
        held.storage.close()

    asyncio.run(run())


def test_tenants_take_turns_with_long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order in which they came, one waited for thousands of another tenant."""

    async def run() -> None:
        monkeypatch.setattr("actors.answers.WALK_MAX", 2)
        answering = Answering()
        asked: list[str] = []
        query = Machine.query

        def note(machine: Machine, queries: Any, *rest: Any, **more: Any) -> api.Reply:
            asked.append(op.decode(op.QUERIES, queries[0].tag, queries[0].body).tenant)
            return query(machine, queries, *rest, **more)

        monkeypatch.setattr(Machine, "query", note)
        held = Held(answering)
        many = [wire(RangeKv(tenant="many"))]
        reads = [read for _ in range(6) for read in answering.hand(tuple(many))]
        reads += answering.hand((wire(RangeKv(tenant="one")),))
        await held.let_go()
        await replies_to(reads)
        assert asked == ["many", "many", "one", "many", "many", "many", "many"]
        held.storage.close()

    asyncio.run(run())


def test_no_tenant_takes_all_the_room_for_long_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr("actors.answers.READS_MAX", 20)
        answering = Answering()
        held = Held(answering)
        many = [each for _ in range(60) for each in answering.hand((wire(RangeKv(tenant="m")),))]
        (one,) = answering.hand((wire(RangeKv(tenant="o")),))
        refused = [each for each in many if each.reply.done()]
        assert not one.reply.done()
        assert answering.answers.refusals.refused == len(refused) == 60 - 19
        told = await replies_to(refused)
        assert {each.code for each in told} == {api.OVERLOADED}
        later = [each.retry_after_ms for each in told]
        assert 50 <= min(later) < max(later) <= 150, "they do not come back together"
        await held.let_go()
        assert (await replies_to([one]))[0].code == api.OK
        held.storage.close()

    asyncio.run(run())
