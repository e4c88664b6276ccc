"""What a leader keeps of one peer."""

from __future__ import annotations

from state_machines.raft.progress import Progress


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
