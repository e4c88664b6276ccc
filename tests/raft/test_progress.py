"""What a leader keeps of one peer."""

from __future__ import annotations

import pytest

from state_machines.raft.progress import Progress, ProgressState


def test_what_was_lost_on_the_way_holds_up_nothing_later() -> None:
    """Appends of a connection that broke are never answered: they are not under way any more."""
    progress = Progress(1)
    progress.replicate()
    for _ in range(3):
        progress.sent(progress.next_index, 40)
        assert not progress.paused(appends_max=9, bytes_max=100)
        progress.probe()
        progress.replicate()
        assert (progress.inflight, progress.inflight_bytes) == (0, 0)
    assert not progress.paused(appends_max=9, bytes_max=100)


def test_what_was_accepted_holds_up_nothing_later() -> None:
    progress = Progress(1)
    progress.replicate()
    for index in range(1, 9, 2):
        progress.sent(index, 40)
        progress.sent(index + 1, 50)
        assert (progress.inflight, progress.inflight_bytes) == (2, 90)
        assert progress.accepted(index)
        assert (progress.inflight, progress.inflight_bytes) == (1, 50)
        assert progress.accepted(index + 1)
        assert (progress.inflight, progress.inflight_bytes) == (0, 0)


@pytest.mark.parametrize("state", [ProgressState.PROBE, ProgressState.REPLICATE])
@pytest.mark.parametrize(
    ("hint", "next_index"), [(1, 5), (3, 5), (4, 5), (5, 6), (6, 7), (8, 9), (9, 9), (20, 9)]
)
def test_a_refusal_leads_back_as_far_as_it_says_but_not_below_the_match(
    state: ProgressState, hint: int, next_index: int
) -> None:
    progress = Progress(10, match_index=4, state=state)
    assert progress.rejected(9, hint)
    assert (progress.state, progress.next_index) == (ProgressState.PROBE, next_index)


def test_a_refusal_of_what_surely_matches_is_an_old_one() -> None:
    progress = Progress(5, match_index=4)
    progress.sent(5, 1)
    assert not progress.rejected(4, 2)
    assert (progress.next_index, progress.probing) == (5, True)


def test_what_follows_the_match_is_sent_next() -> None:
    progress = Progress(10, match_index=4)
    progress.replicate()
    assert progress.next_index == 5
