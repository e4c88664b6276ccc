"""The settings of one replica's core, in ticks and bytes, each checked when it is made.

A tick is the core's only unit of time; the shell decides how long one lasts (50 ms). With that,
the defaults mean: a heartbeat every 250 ms, an election after 1.5 to 3 s of silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from state_machines.errors import Invalid

TERM_MAX: Final = 2**62
"""No term beyond this is believed: a message that carries one is dropped, and nobody campaigns past
it. Terms travel as 64-bit integers; a broken peer must not be able to use them up."""

TERM_JUMP_MAX: Final = 2**32
"""A message whose term is so far ahead of this replica's is dropped too: at an election a second it
would take a century to get there, and a single broken message could otherwise bring a group to
`TERM_MAX`, where nobody can be elected ever again."""


class Rng(Protocol):
    """The luck of one replica, passed in so that a seed replays a run (`random.Random` fits)."""

    def randrange(self, start: int, stop: int) -> int:
        """An integer in [start, stop)."""
        ...


@dataclass(frozen=True, slots=True)
class RaftConfig:
    """How one replica behaves. All replicas of a group should agree on the election ticks."""

    heartbeat_ticks: int = 5
    """A leader says that it is there this often."""

    election_ticks_min: int = 30
    """A follower that has heard a leader within this time refuses votes (thesis 4.2.3), a leader
    that has not heard a majority within it steps down, and a transfer is given up after it. Ten
    heartbeats or more keep a late one from costing an election; four are the least that is sane."""

    election_ticks_max: int = 60
    """Silence that starts an election is drawn anew from [min, max) each time (5.2)."""

    max_append_bytes: int = 64 * 1024
    """Entries in one `Append`, softly: a single entry may be larger."""

    max_inflight_appends: int = 64
    """Unanswered appends to one peer before the leader waits."""

    max_inflight_bytes: int = 8 * 1024 * 1024
    """Unanswered bytes to one peer before the leader waits."""

    max_uncommitted_bytes: int = 64 * 1024 * 1024
    """Proposals beyond this are refused with `Overloaded`: a leader cut off from its majority must
    not eat memory. A single entry is let in when nothing else is uncommitted."""

    max_waiting_reads: int = 100_000
    """Reads that wait for a round before more are refused with `Overloaded`."""

    promotion_gap_entries: int = 1_000
    """A learner at most this far behind the commit index is caught up and may be promoted."""

    pre_vote: bool = True
    """Ask whether an election could be won before raising the term (thesis 9.6)."""

    check_quorum: bool = True
    """A leader that hears no majority steps down, and followers that hear a leader refuse votes."""

    eager_commit: bool = False
    """Tell followers of a new commit index at once. Otherwise they learn it with the next append,
    or with the next tick: a message less for every write, and a tick's delay at most."""

    def __post_init__(self) -> None:
        for name in (
            "heartbeat_ticks",
            "election_ticks_min",
            "max_append_bytes",
            "max_inflight_appends",
            "max_inflight_bytes",
            "max_uncommitted_bytes",
            "max_waiting_reads",
        ):
            if getattr(self, name) < 1:
                raise Invalid(f"{name}: {getattr(self, name)} is less than 1")
        if self.promotion_gap_entries < 0:
            raise Invalid(f"promotion_gap_entries: {self.promotion_gap_entries} is negative")
        if self.election_ticks_min <= self.heartbeat_ticks:
            raise Invalid(
                f"election_ticks_min: {self.election_ticks_min} must be above heartbeat_ticks,"
                f" which is {self.heartbeat_ticks}"
            )
        if self.election_ticks_max <= self.election_ticks_min:
            raise Invalid(
                f"election_ticks_max: {self.election_ticks_max} must be above election_ticks_min,"
                f" which is {self.election_ticks_min}"
            )
