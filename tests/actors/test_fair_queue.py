"""Whose turn it is among proposals that wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.admission import Charge, Share
from actors.fair_queue import ENDS_KEPT, OPERATION_BYTES, FairQueue


@dataclass(frozen=True, slots=True, eq=False)
class Waits:
    charge: Charge


def waits(**tenants: int | Share) -> Waits:
    shares = {
        name: share if isinstance(share, tuple) else (share, 0) for name, share in tenants.items()
    }
    operations, size = (sum(column) for column in zip(*shares.values(), strict=True))
    return Waits(Charge(urgent=False, operations=operations, size=size, tenants=shares))


def queue_of(some: Sequence[Waits]) -> FairQueue[Waits]:
    queue: FairQueue[Waits] = FairQueue()
    for each in some:
        queue.append(each)
    return queue


def emptied(queue: FairQueue[Waits]) -> list[Waits]:
    return [queue.popleft() for _ in range(len(queue))]


def test_who_comes_with_one_does_not_wait_for_all_of_who_came_with_many() -> None:
    many = [waits(many=2_000) for _ in range(16)]
    queue = queue_of(many)
    assert queue.popleft() is many[0]
    few = waits(few=1)
    queue.append(few)
    assert [queue.popleft() for _ in range(2)] == [few, many[1]]


def test_however_many_tenants_come_between_a_turn_that_was_had_is_not_forgotten() -> None:
    some = [waits(many=1) for _ in range(100)]
    some += [waits(**{f"t{number}": 1}) for number in range(ENDS_KEPT + 2)]
    late, new = waits(many=1), waits(new=1)
    order = emptied(queue_of([*some, late, new]))
    assert order.index(new) < order.index(late)


def test_who_has_waited_long_does_not_come_before_all_who_had_nothing_waiting() -> None:
    """What was not used is not saved up: else one tenant could keep all others waiting."""
    queue = queue_of([waits(many=100) for _ in range(50)])
    for _ in range(40):
        queue.popleft()
    fresh = [waits(fresh=100) for _ in range(4)]
    for each in fresh:
        queue.append(each)
    assert sum(queue.popleft() in fresh for _ in range(4)) == 2


def test_alone_it_is_as_it_came() -> None:
    some = [waits(a=each) for each in (5, 1, 9_000, 2)]
    assert emptied(queue_of(some)) == some


def test_bytes_count_as_well() -> None:
    heavy = [waits(heavy=(1, 99 * OPERATION_BYTES)) for _ in range(2)]
    light = [waits(light=1) for _ in range(99)]
    taken = emptied(queue_of([*heavy, *light]))
    assert taken.index(heavy[1]) >= 99


def test_several_tenants_in_one_begin_when_the_last_of_them_may() -> None:
    first, both, alone, other = waits(a=10), waits(a=1, b=1), waits(b=1), waits(c=1)
    queue = queue_of([first, both, alone, other])
    assert emptied(queue) == [first, other, both, alone], "b keeps its order, c waits for nobody"


def test_an_empty_queue_owes_nobody_anything() -> None:
    queue = queue_of([waits(a=1_000)])
    queue.popleft()
    some = [waits(a=1), waits(b=1)]
    for each in some:
        queue.append(each)
    assert emptied(queue) == some
    queue.append(some[0])
    queue.clear()
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.popleft()


def test_tenants_that_have_nothing_waiting_are_forgotten() -> None:
    queue = queue_of([waits(always=1)])
    for number in range(10_000):
        queue.append(waits(**{f"t-{number}": 1}))
        queue.append(waits(always=1))
        queue.popleft()
        queue.popleft()
        assert len(queue._ends) <= 2 * ENDS_KEPT


TENANTS = "abc"
STEPS = st.lists(
    st.one_of(
        st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 50), min_size=1),
        st.sampled_from(TENANTS).flatmap(lambda name: st.just({name: 7})),
        st.none(),
    ),
    max_size=120,
)


@given(steps=STEPS)
def test_each_is_taken_once_and_a_tenant_s_own_in_order(steps: list[dict[str, int] | None]) -> None:
    queue: FairQueue[Waits] = FairQueue()
    came: list[Waits] = []
    taken: list[Waits] = []
    for step in steps:
        if step is not None:
            came.append(waits(**step))
            queue.append(came[-1])
        elif len(queue):
            assert set(queue) == set(came) - set(taken)
            taken.append(queue.popleft())
    taken += emptied(queue)
    assert len(taken) == len(came)
    for tenant in TENANTS:
        mine = [each for each in came if tenant in each.charge.tenants]
        assert [each for each in taken if tenant in each.charge.tenants] == mine


@given(steps=st.lists(st.tuples(st.sampled_from(TENANTS), st.integers(1, 50)), max_size=60))
def test_who_waits_gets_as_much_as_any_other_but_for_one_proposal_each(
    steps: list[tuple[str, int]],
) -> None:
    """Theorem 1 of the paper: over any time in which two have something waiting, what they get
    differs by no more than the largest of each."""
    queue = queue_of([waits(**{tenant: cost}) for tenant, cost in steps])
    left: dict[str, int] = defaultdict(int)
    largest: dict[str, int] = defaultdict(int)
    for tenant, cost in steps:
        left[tenant] += 1
        largest[tenant] = max(largest[tenant], cost)
    got = [dict.fromkeys(TENANTS, 0)]  # after each that was taken
    while all(left[tenant] for tenant in set(left)) and len(queue):
        ((tenant, (cost, _)),) = queue.popleft().charge.tenants.items()
        left[tenant] -= 1
        got.append({**got[-1], tenant: got[-1][tenant] + cost})
    for place, before in enumerate(got):
        for after in got[place:-1]:  # at the last one of them has nothing waiting any more
            for one in left:
                for other in left:
                    mine, theirs = after[one] - before[one], after[other] - before[other]
                    assert mine - theirs <= largest[one] + largest[other]
