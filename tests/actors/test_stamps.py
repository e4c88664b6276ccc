"""A group's time follows its leader's wall clock, whose leaps it does not make."""

from __future__ import annotations

import asyncio

from actors.stamps import FASTEST, SLOWEST, Stamps
from state_machines.wire import api_pb2 as api
from tests.actors.alone import Alone
from tests.actors.virtual_time import VirtualClock, in_virtual_time, settled

HOUR_MS = 3_600_000
TICK_S = 0.05
FOUND = 10  #: the last index of the log at the start


class Watch:
    """A machine's clocks: time passes, and the wall clock is what it was set to."""

    def __init__(self) -> None:
        self.seconds = 1_000.0
        self.wrong_ms = 0

    @property
    def true_ms(self) -> int:
        return int(self.seconds * 1_000)

    def now_ms(self) -> int:
        return self.true_ms + self.wrong_ms

    def monotonic(self) -> float:
        raise AssertionError("it does not count the machine's pauses")

    def uptime(self) -> float:
        return self.seconds


class Kept:
    """A replica's stamps."""

    def __init__(self, watch: Watch | None = None) -> None:
        self.watch = watch or Watch()
        self.stamps = Stamps(self.watch, FOUND)
        self.reached = (0, 0)

    def tick(self, *, leads: bool = False) -> int:
        self.watch.seconds += TICK_S
        self.stamps.tick(self.reached, leads=leads)
        return self.stamps.now_ms()

    def lead(self, seconds: float, *, writes: int = 1) -> list[int]:
        """So many stamps a tick, for so long."""
        given = []
        for _ in range(round(seconds / TICK_S)):
            for _ in range(writes):
                self.watch.seconds += TICK_S / writes
                given.append(self.stamps.take())
            self.stamps.tick(self.reached, leads=True)
        assert given == sorted(given)
        return given


def test_a_right_clock_is_followed_to_the_millisecond_however_many_stamps_are_taken() -> None:
    kept = Kept()
    kept.lead(60, writes=1_000)
    assert kept.watch.true_ms - 1 <= kept.stamps.take() <= kept.watch.true_ms


def test_a_clock_that_leaps_ahead_is_followed_at_double_speed_and_one_set_back_at_half() -> None:
    kept = Kept()
    for wrong_ms, speed in ((6 * HOUR_MS, FASTEST), (-6 * HOUR_MS, SLOWEST)):
        kept.watch.wrong_ms = wrong_ms
        before = kept.stamps.take()
        for writes in (1, 50):
            last = kept.lead(10, writes=writes)[-1]
            assert abs(last - before - speed * 10_000) <= 1
            before = last


def test_the_longer_a_group_was_idle_the_further_it_does_not_leap() -> None:
    kept = Kept()
    for _ in range(round(3_600 / TICK_S)):
        kept.tick(leads=True)
    kept.watch.wrong_ms = 6 * HOUR_MS
    kept.tick(leads=True)
    assert kept.stamps.take() == kept.watch.true_ms + 1_000 * TICK_S


def test_once_the_clock_is_right_again_so_is_the_time() -> None:
    kept = Kept()
    for wrong_ms in (HOUR_MS, -HOUR_MS):
        kept.watch.wrong_ms = wrong_ms
        kept.lead(60)
        kept.watch.wrong_ms = 0
        assert abs(kept.stamps.clock_ahead_ms) >= 29_999
        kept.lead(121)
        assert abs(kept.stamps.clock_ahead_ms) <= 1


def test_a_machine_that_was_suspended_for_hours_is_exact_when_it_wakes() -> None:
    kept = Kept()
    kept.watch.seconds += 8 * 3_600
    assert kept.stamps.take() == kept.watch.true_ms


def test_the_next_leader_goes_on_from_what_it_has_applied_of_the_last() -> None:
    kept = Kept()
    ahead_ms = 6 * HOUR_MS
    for index in range(FOUND + 1, FOUND + 100):
        kept.reached = (index, kept.watch.true_ms + ahead_ms)
        kept.tick()
    assert abs(kept.stamps.take() - kept.watch.true_ms - ahead_ms) <= 1_000 * TICK_S
    kept.reached = (FOUND + 100, kept.watch.true_ms)  # and of one that is behind
    kept.watch.wrong_ms = 6 * HOUR_MS
    kept.tick()
    assert kept.stamps.take() <= kept.watch.true_ms


def test_a_follower_that_hears_nothing_goes_on_by_itself() -> None:
    kept = Kept()
    kept.reached = (FOUND + 1, kept.watch.true_ms)
    kept.tick()
    kept.watch.wrong_ms = -HOUR_MS
    before = kept.tick()
    for _ in range(200):
        kept.tick()
    assert abs(kept.stamps.take() - before - 200 * 1_000 * TICK_S * SLOWEST) <= 1


def test_what_was_in_the_log_at_the_start_is_of_any_age() -> None:
    kept = Kept()
    kept.reached = (FOUND, kept.watch.true_ms - 8 * HOUR_MS)
    kept.tick()
    assert kept.stamps.take() == kept.watch.true_ms
    kept.reached = (FOUND, kept.watch.true_ms + 8 * HOUR_MS)  # but it does not lie in the future
    kept.tick()
    assert kept.stamps.take() >= kept.watch.true_ms + 8 * HOUR_MS - 1_000 * TICK_S


def test_a_leader_is_not_set_back_by_what_it_has_stamped_itself() -> None:
    kept = Kept()
    kept.reached = (FOUND + 1, kept.stamps.take())
    for _ in range(100):
        kept.tick(leads=True)
    assert kept.stamps.take() == kept.watch.true_ms


class Leaping(VirtualClock):
    """A wall clock that is set."""

    wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


async def stamped(alone: Alone) -> int:
    """The group's time after one more write."""
    answer = alone.proposes()
    await settled()
    assert api.Reply.FromString(answer.result()).code == api.OK
    return alone.machine.reached[1]


@in_virtual_time
async def test_a_leader_stamps_what_it_proposes_and_answers_by_the_same_time() -> None:
    clock = Leaping()
    alone = await Alone.leading(clock)
    alone.replica.start()
    before = await stamped(alone)
    clock.wrong_ms = 6 * HOUR_MS
    await asyncio.sleep(10)
    assert abs(await stamped(alone) - before - 20_000) <= 100
    assert abs(alone.replica.answers.clock.now_ms() - before - 20_000) <= 100
    assert abs(alone.replica.stamps.clock_ahead_ms - 6 * HOUR_MS + 10_000) <= 100
    clock.wrong_ms = 0
    await asyncio.sleep(10)
    assert abs(await stamped(alone) - before - 25_000) <= 200
    alone.replica.abandon()


@in_virtual_time
async def test_a_group_that_is_ahead_of_the_clock_at_its_start_does_not_stand() -> None:
    clock = Leaping()
    alone = await Alone.leading(clock)
    alone.replica.start()
    clock.wrong_ms = -6 * HOUR_MS
    alone.replica.stamps = Stamps(clock, FOUND)  # as one that starts now
    before = await stamped(alone)
    await asyncio.sleep(1)
    begun = await stamped(alone)
    await asyncio.sleep(10)
    assert begun >= before
    assert abs(await stamped(alone) - begun - 5_000) <= 200
    alone.replica.abandon()
