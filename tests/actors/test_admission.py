"""Admission: bounds, fairness, and when those who are refused come back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors import admission, pending
from actors.admission import LOOK_SECONDS, Admission, Charge, Drain, Limits, Refusals
from actors.pending import AHEAD_BYTES_MAX, Slot, Writes
from state_machines import op, runs
from state_machines.errors import Invalid, Overloaded
from state_machines.limits import CALL_ITEMS_MAX
from state_machines.machine import Admitted, Applied
from state_machines.metadata.kv import KV, PutKv
from state_machines.metadata.node import ExpireNodes, HeartbeatNode
from state_machines.mqtt.session import OpenSession, SessionItem
from state_machines.mqtt.session_columns import OpenSessions
from state_machines.offset.group import DeleteGroup, FenceGroup
from state_machines.offset.reset import REWIND_MAX, RewindGroup
from state_machines.transaction import STEPS_MAX, Compare, Transaction
from tests.actors.test_pending import code, reply_future
from tests.actors.test_pending import write as some_write
from tests.actors.virtual_time import in_virtual_time

BEAT = HeartbeatNode(node_id="b", epoch=1)
PUT = PutKv(tenant="a", key="k", value=b"")
MANY = OpenSessions.of([SessionItem(client_id="c", broker="b")] * 9)


PATIENT = {
    *("metadata.segment.finish", "metadata.shard.sweep"),
    *("mqtt.share.remove_orphans", "mqtt.session.close_held"),
}
"""The controller's that only clear away: they are long, and wait like everybody's."""

BRIEF = {
    *("group.quota.drop", "group.quota.set", "metadata.segment.leader"),
    *("mqtt.connector.assign", "mqtt.connector.heartbeat"),
    *("metadata.advice.approve", "metadata.advice.dismiss", "metadata.advice.undo"),
}
"""Urgent though they name many: who is closed, who leads, who runs what, what an operator said of
advice, is known at once."""


LIMITS = (("a", 5), ("b", 700))


def charge(tenants: dict[str, int], size: int = 0, *, urgent: bool = False) -> Charge:
    return Charge(
        urgent,
        sum(tenants.values()),
        size,
        {name: (count, size * count // sum(tenants.values())) for name, count in tenants.items()},
    )


def run_of(tenants: list[str]) -> runs.Run:
    operations = [OpenSession(tenant=each, client_id="c", broker="b") for each in tenants]
    return runs.unpack(OpenSession, len(operations), runs.body_of(runs.of(operations)))


SMALL = Limits(calls=60, operations_soft=40, operations=100)


# -- what a proposal costs ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("admitted", "urgent", "tenants"),
    [
        ((PutKv(key="k", value=b""),), False, {"default": 1}),
        ((BEAT,), True, {"": 1}),
        ((BEAT, ExpireNodes(controller_epoch=1, timeout_ms=5)), True, {"": 2}),
        ((BEAT, PUT), False, {"": 1, "a": 1}),
        ((run_of(["default"] * 7),), False, {"default": 7}),
        ((run_of(["a"] * 3), run_of(["a"])), False, {"a": 4}),
        ((run_of(["a", "b", "a"]), run_of(["c"])), False, {"a": 2, "b": 1, "c": 1}),
        ((MANY,), False, {"default": 9}),
        (
            (Transaction.of(then=[PutKv(tenant="a", key="k", value=b""), BEAT, BEAT]),),
            False,
            {"a": 1, "": 2},
        ),
        (
            (
                Transaction.of(
                    otherwise=[OpenSessions.of([SessionItem(client_id="c", broker="b")] * 9)]
                ),
            ),
            False,
            {"default": 9},
        ),
        ((Transaction.of(compare=[Compare.absent(KV, "a", "k")]), BEAT), False, {"": 2}),
        ((), False, {}),
    ],
)
def test_each_tenant_is_charged_its_own(
    admitted: Admitted, urgent: bool, tenants: dict[str, int]
) -> None:
    made = Charge.of(admitted, 400)
    assert made.urgent is urgent
    assert {name: count for name, (count, _) in made.tenants.items()} == tenants
    assert made.operations == sum(tenants.values())
    assert made.size == 400
    assert 400 - len(tenants) < sum(size for _, size in made.tenants.values()) <= 400 or not tenants


def test_what_many_items_make_long_says_how_many() -> None:
    for tag, cls in op.COMMANDS.items():
        kind: Any = cls
        if hasattr(kind, "slot_keys"):
            assert hasattr(kind, "many"), tag
        if many := getattr(kind, "many", ""):
            assert str(kind.__dataclass_fields__[many].type).startswith("tuple["), tag


def test_what_keeps_the_fleet_alive_is_urgent_and_nothing_long_is() -> None:
    urgent = {tag for tag, cls in op.COMMANDS.items() if op.urgent(cls)}
    assert {"metadata.node.heartbeat", "metadata.node.expire", "mqtt.pulse"} <= urgent
    assert {"client.register", "metadata.node.register"} <= urgent
    for tag, cls in op.COMMANDS.items():
        fields: Any = getattr(cls, "__dataclass_fields__", {})
        if "controller_epoch" in fields and tag not in PATIENT:
            assert tag in urgent, "the controller's commands do not wait"
    assert not PATIENT & urgent
    assert {tag for tag in urgent if hasattr(op.COMMANDS[tag], "many")} == BRIEF


# -- who is refused -----------------------------------------------------------------------------


def test_one_tenant_keeps_to_the_soft_limit_and_others_find_room_above_it() -> None:
    made = Admission("s", Random(1), SMALL)
    big, little = charge({"big": 10}), charge({"little": 5})
    for _ in range(4):
        made.enter(big, 0.0)
    with pytest.raises(Overloaded, match="tenant 'big' has its share"):
        made.enter(big, 0.0)
    for _ in range(4):
        made.enter(little, 0.0)
    with pytest.raises(Overloaded, match="'little'"):
        made.enter(little, 0.0)  # two tenants: 20 operations each
    made.enter(charge({"third": 10}), 0.0)
    assert (made.rest.operations, made.refused) == (70, 2)


def test_what_is_too_much_at_once_is_refused_even_where_nobody_waits() -> None:
    """Ten thousand commands of ten thousand items each keep every limit of their own."""
    made = Admission("s", Random(1))
    made.enter(charge({"a": CALL_ITEMS_MAX}), 0.0)
    made.leave(charge({"a": CALL_ITEMS_MAX}), 0.0)
    with pytest.raises(Invalid, match=f"commands: {CALL_ITEMS_MAX + 1} items, the limit is"):
        made.enter(charge({"a": CALL_ITEMS_MAX, "b": 1}), 0.0)
    assert made.rest.calls == 0


def test_a_command_is_charged_the_rows_that_it_says_it_may_touch() -> None:
    few, many = (DeleteGroup(tenant=each, group="g", limit=limit) for each, limit in LIMITS)
    rewind = RewindGroup(tenant="a", group="g", at_ms=1)
    assert Charge.of([FenceGroup(tenant="a", group="g"), PUT], 1).operations == 2
    assert Charge.of([few, many, rewind], 1).operations == 5 + 700 + REWIND_MAX
    assert Charge.of([Transaction.of(then=[few, many])], 1).operations == 705
    run = runs.unpack(DeleteGroup, 2, runs.body_of(runs.of([few, many])))
    charged = Charge.of([run], 705)
    assert charged.operations == 705
    assert charged.tenants == {"a": (5, 5), "b": (700, 700)}


def test_a_transaction_is_charged_its_heavier_branch() -> None:
    """Only one is done."""
    few, many = (DeleteGroup(tenant=each, group="g", limit=limit) for each, limit in LIMITS)
    made = Charge.of([Transaction.of(then=[few], otherwise=[many, few])], 705)
    assert made.tenants == {"a": (5, 5), "b": (700, 700)}


@pytest.mark.parametrize("step", [DeleteGroup(group="g"), RewindGroup(group="g", at_ms=1)])
def test_a_transaction_of_as_many_steps_as_it_may_have_is_admitted(step: Any) -> None:
    made = Admission("s", Random(1))
    charged = Charge.of([Transaction.of(then=[step] * STEPS_MAX, otherwise=[step])], 1)
    made.enter(charged, 0.0)
    assert CALL_ITEMS_MAX - STEPS_MAX < charged.operations <= CALL_ITEMS_MAX


def test_a_transaction_of_too_many_items_is_not_admitted() -> None:
    items = OpenSessions.of([SessionItem(client_id="c", broker="b")] * (CALL_ITEMS_MAX // 3))
    step = DeleteGroup(group="g")
    made = Charge.of([Transaction.of(then=[*[items] * 4, step])], 1)
    with pytest.raises(Invalid, match=r"commands: \d+ items, the limit is \d+; each row that"):
        Admission("s", Random(1)).enter(made, 0.0)


def test_a_proposal_goes_with_the_greater_part_of_its_operations() -> None:
    made = Admission("s", Random(1), SMALL)
    for _ in range(4):
        made.enter(charge({"big": 10}), 0.0)
    made.enter(charge({"big": 5, "little": 5}), 0.0)
    with pytest.raises(Overloaded):
        made.enter(charge({"big": 6, "little": 5}), 0.0)


def test_bytes_count_as_operations_do() -> None:
    made = Admission("s", Random(1), replace(SMALL, size_soft=400, size=1_000))
    made.enter(charge({"big": 1}, 500), 0.0)
    with pytest.raises(Overloaded, match="'big'"):
        made.enter(charge({"big": 1}, 1), 0.0)
    made.enter(charge({"little": 1}, 100), 0.0)
    with pytest.raises(Overloaded, match="the limit is 1000"):
        made.enter(charge({"third": 1}, 401), 0.0)


def test_urgent_ones_have_a_limit_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "URGENT_MAX", 5)
    made = Admission("s", Random(1), SMALL)
    for each in range(10):
        made.enter(charge({f"t{each}": 10}), 0.0)
    with pytest.raises(Overloaded, match="100 operations wait, the limit is 100"):
        made.enter(charge({"new": 1}), 0.0)
    beat = charge({"": 1}, 10, urgent=True)
    for _ in range(5):
        made.enter(beat, 0.0)
    with pytest.raises(Overloaded, match="5 urgent proposals wait"):
        made.enter(beat, 0.0)
    made.leave(beat, 0.0)
    monkeypatch.setattr(admission, "URGENT_BYTES_MAX", 49)
    with pytest.raises(Overloaded, match="urgent proposals of 40 bytes"):
        made.enter(beat, 0.0)


@dataclass
class Crowd:
    """An admission, and what is known to wait."""

    limits: Limits
    made: Admission = field(init=False)
    inside: list[Charge] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.made = Admission("s", Random(1), self.limits)

    def ask(self, asked: Charge) -> None:
        waiting = sum(each.operations for each in self.inside if not each.urgent)
        calls = sum(not each.urgent for each in self.inside)
        urgent = len(self.inside) - calls
        held: dict[str, int] = {}
        for each in self.inside:
            for name, (count, _) in each.tenants.items():
                held[name] = held.get(name, 0) + (0 if each.urgent else count)
        present = {name for name, count in held.items() if count} | set(asked.tenants)
        share = self.limits.operations_soft / len(present)
        try:
            self.made.enter(asked, self.now)
        except Overloaded as error:
            self.told.append(error.retry_after_ms)
            full = calls >= self.limits.calls or waiting + asked.operations > self.limits.operations
            if asked.urgent:
                assert urgent >= admission.URGENT_MAX
            else:
                over = any(held.get(name, 0) >= share for name in asked.tenants)
                assert full or (over and waiting >= self.limits.operations_soft)
        else:
            self.inside.append(asked)
        assert all(0 < each <= admission.RETRY_MS_MAX * 3 // 2 for each in self.told)
        assert self.made.rest.operations <= self.limits.operations
        assert self.made.rest.calls <= self.limits.calls
        assert self.made.urgent.calls <= admission.URGENT_MAX

    def answer(self, count: int) -> None:
        for each in self.inside[:count]:
            self.made.leave(each, self.now)
        del self.inside[:count]
        self.now += 0.07
        assert self.made.rest.operations == sum(
            each.operations for each in self.inside if not each.urgent
        )
        if not self.inside:
            assert self.made._tenants == {}


asked = st.builds(
    charge,
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 12), min_size=1, max_size=2),
    st.integers(0, 50),
    urgent=st.booleans(),
)


@given(steps=st.lists(asked | st.integers(0, 8), max_size=80))
def test_bounded_fair_and_the_same_with_the_same_seed(steps: list[Charge | int]) -> None:
    """Who is below the share is refused at a hard limit only; what is told has its bounds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(admission, "URGENT_MAX", 5)
        limits = replace(SMALL, calls=20)
        crowds = Crowd(limits), Crowd(limits)
        for crowd in crowds:
            for each in steps:
                if isinstance(each, int):
                    crowd.answer(each)
                else:
                    crowd.ask(each)
        assert crowds[0].told == crowds[1].told
        crowds[0].answer(len(crowds[0].inside))


# -- when to come back --------------------------------------------------------------------------


def test_who_is_refused_comes_back_when_what_waits_was_answered() -> None:
    drain = Drain(Random(1))
    assert 50 <= drain.retry_after_ms(10_000) <= 150, "nothing is known yet"
    drain.begin(0.0)
    for tenth in range(1, 11):
        drain.answered(1_000, tenth / 10)
    told = [drain.retry_after_ms(5_000) for _ in range(200)]
    assert all(250 <= each <= 750 for each in told), "ten thousand a second"
    assert len(set(told)) > 50, "not all at once"
    assert drain.retry_after_ms(0) >= 1
    assert drain.retry_after_ms(10**9) <= admission.RETRY_MS_MAX * 3 // 2


def test_a_pause_without_work_is_not_taken_for_slowness() -> None:
    drain = Drain(Random(1))
    drain.begin(0.0)
    drain.answered(1_000, 0.1)
    drain.begin(3_600.0)
    drain.answered(1_000, 3_600.1)
    assert drain.retry_after_ms(10_000) <= 1_500


def test_who_is_refused_after_a_rest_is_told_by_how_fast_the_work_is() -> None:
    made, some = Admission("s", Random(1), Limits(1, 1_000, 1_000)), charge({"a": 1_000})
    for hour in range(6):
        made.enter(some, hour * 3_600.0)
        made.leave(some, hour * 3_600.0 + 0.1)
    made.enter(some, 20_000.0)
    with pytest.raises(Overloaded) as refused:
        made.enter(some, 20_000.0)
    assert 50 <= refused.value.retry_after_ms <= 150, "ten thousand a second"


# -- in the queue -------------------------------------------------------------------------------


def write_of(admitted: Admitted, size: int = 10) -> Any:
    made = some_write(size)
    return type(made)(made.proposal, admitted, size, reply_future(), 0.0)


@in_virtual_time
async def test_urgent_ones_enter_the_log_first() -> None:
    writes = Writes("s", 1.0, Random(1), batch_max=3)
    rest = [write_of((PutKv(key="k", value=b""),)) for _ in range(3)]
    beats = [write_of((BEAT,)) for _ in range(2)]
    for each in (*rest, *beats):
        writes.queue(each)
    assert len(writes) == 5
    assert writes.take(0.0) == [*beats, rest[0]]
    assert writes.take(0.0) == rest[1:]


@in_virtual_time
async def test_little_is_in_the_log_ahead_of_what_is_urgent() -> None:
    writes = Writes("s", 1.0, Random(1))
    large = [write_of((PutKv(key="k", value=b""),), AHEAD_BYTES_MAX) for _ in range(2)]
    for each in large:
        writes.queue(each)
    writes.proposed(1, Slot(1, writes.take(0.0), 0.0))
    assert writes.take(0.0) == [], "as much is in the log as may be"
    beat = write_of((BEAT,))
    writes.queue(beat)
    assert writes.take(0.0) == [beat]
    writes.proposed(2, Slot(1, [beat], 0.0))
    writes.applied(1, 1, [Applied(1, 1, b"")], 0.1)
    assert writes.take(0.1) == [large[1]]


@in_virtual_time
async def test_who_comes_with_few_enters_before_who_waits_with_many() -> None:
    writes = Writes("s", 1.0, Random(1))
    many = [write_of((run_of(["many"] * 2_000),)) for _ in range(20)]
    for each in many:
        writes.queue(each)
    assert writes.take(0.0) == many[:4], "nobody knows yet how fast they are answered"
    writes.proposed(1, Slot(1, many[:4], 0.0))
    few = write_of((PUT,))
    writes.queue(few)
    assert writes.take(0.1) == [], "as many operations are in the log as may be"
    writes.applied(1, 1, [Applied(1, 1, b"")] * 4, 0.1)
    assert writes.take(0.1)[0] is few


@pytest.mark.parametrize(
    ("a_second", "entered"),
    [
        (2_000, 500),
        (10_000, 500),
        (20_000, 1_000),
        (25_000, 1_250),
        (80_000, 4_000),
        (99_000, 4_000),
    ],
)
@in_virtual_time
async def test_as_many_operations_enter_as_are_answered_in_a_turn(
    monkeypatch: pytest.MonkeyPatch, a_second: int, entered: int
) -> None:
    monkeypatch.setattr(pending, "TURN_OPERATIONS_MIN", 500)
    monkeypatch.setattr(pending, "TURN_OPERATIONS_MAX", 4_000)
    writes = Writes("s", 1.0, Random(1))
    before = write_of((run_of(["a"] * min(a_second, 10_000)),))
    writes.queue(before)
    assert writes.take(0.0) == [before]
    writes.proposed(1, Slot(1, [before], 0.0))
    took = before.charge.operations / a_second
    writes.applied(1, 1, [Applied(1, 1, b"")], took)
    for _ in range(100):
        writes.queue(write_of((run_of(["a"] * 250),)))
    taken = writes.take(took)
    assert sum(each.charge.operations for each in taken) == entered
    writes.proposed(2, Slot(1, taken, took))
    assert writes.take(took) == []


@in_virtual_time
async def test_whoever_gave_up_is_not_charged_any_more() -> None:
    writes = Writes("s", 1.0, Random(1))
    gone = write_of((PutKv(key="k", value=b""),))
    writes.queue(gone)
    gone.reply.cancel()
    assert writes.take(0.0) == []
    assert writes.admission.rest.calls == 0


@in_virtual_time
async def test_a_leader_that_leads_no_more_starts_anew() -> None:
    writes = Writes("s", 1.0, Random(1))
    waiting = [write_of((PutKv(key="k", value=b""),), AHEAD_BYTES_MAX) for _ in range(2)]
    for each in waiting:
        writes.queue(each)
    writes.proposed(1, Slot(1, writes.take(0.0), 0.0))
    writes.fail(Overloaded("gone", 5), 0.0)
    assert [code(each.reply) for each in waiting] == [code(waiting[0].reply)] * 2
    assert writes.admission.rest.calls == 0
    again = write_of((PutKv(key="k", value=b""),))
    writes.queue(again)
    assert writes.take(0.0) == [again]


class Room:
    """Where calls wait, of which some have given up."""

    def __init__(self) -> None:
        self.waiting, self.gone, self.looks = 16, 0, 0

    def __len__(self) -> int:
        return self.waiting

    def let_go(self) -> None:
        self.looks += 1
        self.waiting, self.gone = self.waiting - self.gone, 0


def test_who_finds_a_room_full_does_not_look_in_vain_again_and_again() -> None:
    """A look is at all that wait: ten thousand who are refused would hold everybody up."""
    now = 5.0
    refusals, room = Refusals("g", Random(1), lambda: now), Room()

    def looks(gone: int) -> bool:
        """Whether one who finds the room full has a look, where so many have given up."""
        before = room.looks
        room.waiting, room.gone = 16, gone
        refusals.let_go(room)
        return room.looks > before

    assert [looks(2) for _ in range(3)] == [True] * 3, "each of these made room for two"
    assert looks(1), "as it is not known before"
    assert not looks(16)
    now += LOOK_SECONDS / 2
    assert not looks(16)
    now += LOOK_SECONDS / 2
    assert [looks(16) for _ in range(3)] == [True] * 3
