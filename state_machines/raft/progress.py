"""One peer as its leader sees it: what it surely has, what to send next, how fast to send.

PROBE       Where the logs part is not known. One append at a time, until one is accepted.
REPLICATE   It is known. Appends follow each other without waiting (`next_index` runs ahead of
            `match_index`), bounded by the number and the bytes of the unanswered ones.
SNAPSHOT    The peer needs entries that the log no longer has. Nothing is sent but heartbeats
            until the state that the shell streams has arrived.

PROBE --accepted--> REPLICATE --rejected, unreachable--> PROBE
PROBE, REPLICATE --next_index below the log--> SNAPSHOT --sent, failed--> PROBE
SNAPSHOT --accepted--> REPLICATE
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum


class ProgressState(Enum):
    """How the leader sends to a peer."""

    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


@dataclass(slots=True)
class Progress:
    """What the leader knows of one peer.

    - match_index < next_index: the peer's log agrees up to match_index, durably;
    - match_index never goes back within a term: an answer that says less is a late one.
    """

    next_index: int
    match_index: int = 0
    state: ProgressState = ProgressState.PROBE
    active: bool = False  #: heard from since the last check of the quorum
    probing: bool = False  #: PROBE: an append is unanswered
    nudge: bool = False  #: a heartbeat went out whose answer may start a stalled append again
    commit_told: int = 0  #: the commit index it has been told, as far as that went out
    snapshot_index: int = 0  #: SNAPSHOT: where the log began when the snapshot became needed
    snapshot_term: int = 0
    inflight_bytes: int = 0
    _inflight: deque[tuple[int, int]] = field(default_factory=deque)  # (last index, bytes)

    @property
    def inflight(self) -> int:
        """How many appends are unanswered."""
        return len(self._inflight)

    def paused(self, appends_max: int, bytes_max: int) -> bool:
        """Whether entries have to wait for an answer."""
        match self.state:
            case ProgressState.REPLICATE:
                return len(self._inflight) >= appends_max or self.inflight_bytes >= bytes_max
            case ProgressState.PROBE:
                return self.probing
            case ProgressState.SNAPSHOT:
                return True

    def sent(self, last_index: int, size: int) -> None:
        """Entries up to `last_index` are on their way."""
        if self.state is ProgressState.REPLICATE:
            assert last_index >= self.next_index, f"{last_index} was sent already"
            self.next_index = last_index + 1
            self._inflight.append((last_index, size))
            self.inflight_bytes += size
        else:
            self.probing = True

    def accepted(self, match_index: int) -> bool:
        """The peer has everything up to `match_index`; whether that is news."""
        inflight = self._inflight
        while inflight and inflight[0][0] <= match_index:
            self.inflight_bytes -= inflight.popleft()[1]
        if match_index <= self.match_index:
            return False
        self.match_index = match_index
        self.next_index = max(self.next_index, match_index + 1)
        return True

    def rejected(self, prev_index: int, hint: int) -> bool:
        """The peer refused `prev_index`, and agrees up to `hint` at most; False if that is old."""
        match self.state:
            case ProgressState.REPLICATE:
                # Whatever match_index covers was accepted, so this answers something older.
                if prev_index <= self.match_index:
                    return False
                self.probe()
                self.next_index = max(min(prev_index, hint + 1), self.match_index + 1)
                return True
            case ProgressState.PROBE:
                if prev_index != self.next_index - 1 or prev_index <= self.match_index:
                    return False
                self.next_index = max(min(prev_index, hint + 1), self.match_index + 1)
                self.probing = False
                return True
            case ProgressState.SNAPSHOT:
                return False

    def probe(self) -> None:
        """Go back to one append at a time, from the first entry that is not surely there."""
        self._become(ProgressState.PROBE)
        self.next_index = self.match_index + 1

    def replicate(self) -> None:
        """The logs agree up to match_index: send what follows without waiting."""
        self._become(ProgressState.REPLICATE)
        self.next_index = self.match_index + 1

    def snapshot_ended(self, *, arrived: bool) -> None:
        """The stream is over. What came of it shows when the peer answers the next heartbeat."""
        index = self.snapshot_index
        self.probe()
        if arrived:
            self.next_index = index + 1
        self.probing = True

    def snapshot(self, index: int, term: int) -> None:
        """The log begins after (index, term) and the peer needs something older."""
        self._become(ProgressState.SNAPSHOT)
        self.snapshot_index = index
        self.snapshot_term = term

    def _become(self, state: ProgressState) -> None:
        self.state = state
        self.probing = False
        self.inflight_bytes = 0
        self._inflight.clear()
