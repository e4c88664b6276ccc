"""Exactly-once timers: a sample of killed leaders, and judges that can tell."""

from __future__ import annotations

import pytest

from state_machines.mqtt import due, will
from tests.simulation import wills
from tests.simulation.wills import LIVES, play, stories

STORIES = 12


@pytest.mark.parametrize("part", range(3))
def test_a_will_is_sent_once_and_in_time_whenever_its_leader_is_killed(part: int) -> None:
    kills = 0
    for seed, kill_at, controller in list(stories(STORIES))[part::3]:
        story = play(seed, kill_at, controller=controller)
        kills += bool(story.killed)
        sent = {each.row.client_id for each in story.published}
        assert sent >= {life.client for life in LIVES if not life.silent}
    assert kills == STORIES // 3, "a leader was killed in every life"


def test_a_will_that_is_armed_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = will.arm
    monkeypatch.setattr(will, "arm", lambda db, row, due_ms: arm(db, row, due_ms - 1_500))
    with pytest.raises(AssertionError, match="sent before"):
        play(1)


def test_a_will_that_is_not_cancelled_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(will, "cancel", lambda db, row: None)
    with pytest.raises(AssertionError, match=r"though it should not|outbox ids"):
        play(1)


def test_a_timer_that_is_lost_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    arm = due.arm

    def forgetful(db: object, due_ms: int, kind: str, *names: str) -> None:
        if kind != due.WILL:
            arm(db, due_ms, kind, *names)  # type: ignore[arg-type]

    monkeypatch.setattr(due, "arm", forgetful)
    with pytest.raises(AssertionError, match="outbox ids"):
        play(1)


def test_a_will_that_fires_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    fire = will.fire

    def eager(*words: object) -> None:
        fire(*words)  # type: ignore[arg-type]
        fire(*words)  # type: ignore[arg-type]

    monkeypatch.setattr(will, "fire", eager)
    with pytest.raises(AssertionError, match=r"outbox ids \[1, 2\]|one is right"):
        play(1)


def test_a_life_takes_many_steps() -> None:
    assert next(stories(3)) == (0, 1, False)
    assert wills.shortest() > 1_000
