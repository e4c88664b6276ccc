"""What was committed, in pages, for whoever keeps the operation history; and how far compaction
waits, for him and for peers that are sent a snapshot.

    page = await committed.page("history", first=4_712, bytes_max=1 << 20, timeout_ms=5_000,
                                exported=4_700)

A page has the entries from `first` on as they are in the log, encoded on the reader thread and not
looked into: what they say is for the process that asked. It is a long poll, answered as soon as
there is something. A replica keeps its latest entries in memory, so a page costs it no disk.

Every request says what is exported and durable. From then on that exporter is *registered*, and
compaction leaves what follows that entry (`Holds.limit`), for `hold_ms` after he was heard last and
within `hold_bytes`: what he is too slow for goes nevertheless, oldest first. A page therefore says
where the log begins. Whoever asked for less sees what he has missed, and is never told nothing. Who
is registered is written down (`storage.exporters`), so a replica that starts again keeps its log
for those who are away just then, as if it had heard them at its start.

A peer that a leader sends its state needs the entries after it when it has installed that: else it
would need the next snapshot, and in a group that is written to the one after that, for ever. So
compaction leaves what follows the log's beginning until the peer has caught up with the flushed
entries, within the same `hold_bytes`: who is slower than that is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from actors.clock import Clock
from actors.config import RaftSettings
from actors.storage_thread import On
from state_machines.errors import Invalid, Overloaded, Stopped
from state_machines.limits import INT_MAX
from state_machines.raft import Raft
from state_machines.raft.messages import Entry
from storage import records

if TYPE_CHECKING:
    from actors.replica import Replica

PAGE_BYTES_MAX: Final = 4 << 20  #: of entries in one page, but for a single one that has more
WAIT_MS_MAX: Final = 10_000  #: the longest a page is waited for
EXPORTERS_MAX: Final = 8  #: registered at one replica
QUIET_SECONDS: Final = 30.0  #: who was not heard for so long makes room for one more
SAVE_SECONDS: Final = 60.0  #: how often is written down how far they are
MARK_ENTRIES: Final = 64  #: what is held is counted, and goes, by so many entries
NAME_MAX: Final = 64  #: characters of an exporter's name

log = logging.getLogger(__name__)


class Holds:
    """How far exporters and peers have come, and what compaction leaves for them. On the event
    loop."""

    def __init__(
        self,
        core: Raft,
        settings: RaftSettings,
        clock: Clock,
        known: Mapping[str, int] | None = None,
    ) -> None:
        self._core = core
        self._settings = settings
        self._clock = clock
        self._saved = dict(known or {})
        self._tried, self._tried_at = self._saved, clock.monotonic()
        self._told = {  # exported up to, and when that was heard
            name: (exported, self._tried_at) for name, exported in self._saved.items()
        }
        self._peers: dict[int, int] = {}  # sent a snapshot: what follows this entry is still needed
        self._marks: deque[tuple[int, int]] = deque()  # flushed up to, bytes since the mark before
        self._counted = 0
        self._bytes = 0  # of all marks

    def tell(self, exporter: str, exported: int) -> None:
        """An exporter has everything up to this entry on his disk. Raises Invalid, Overloaded."""
        if not isinstance(exporter, str) or not 0 < len(exporter) <= NAME_MAX:
            raise Invalid(f"exporter: a name of 1 to {NAME_MAX} characters is wanted")
        if type(exported) is not int or not 0 <= exported <= INT_MAX:
            raise Invalid(f"exported: {exported!r:.40}, the range is 0 to {INT_MAX}")
        self._forget()
        if exporter not in self._told and len(self._told) >= EXPORTERS_MAX:
            self._make_room()
        self._told[exporter] = (exported, self._clock.monotonic())

    def stream(self, peer: int) -> None:
        """A snapshot for this peer begins. What there is by now is kept anyway, and not counted."""
        self._peers[peer] = self._core.first_index - 1
        self._counted = max(self._counted, self._core.applied_handed)

    def broken(self, peer: int) -> None:
        """It did not arrive."""
        self._peers.pop(peer, None)

    def limit(self, flushed: int) -> int | None:
        """Entries after this one stay for somebody; None: nobody wants one that is flushed."""
        if not self._told and not self._peers:
            return None
        self._forget()
        self._follow(flushed)
        wanted = min([exported for exported, _ in self._told.values()], default=flushed)
        wanted = min([wanted, *self._peers.values()])
        if wanted >= flushed:
            self._counted, self._bytes = flushed, 0
            self._marks.clear()
            return None
        return max(wanted, self._within_bound(wanted, flushed))

    def shown(self) -> dict[str, int]:
        """Who is registered, and up to which entry he has everything."""
        return {name: exported for name, (exported, _) in sorted(self._told.items())}

    def to_save(self) -> dict[str, int] | None:
        """What `shown` says, when it is time to write that down: at once when somebody has come or
        gone, else now and then, for what is written may be old."""
        due = self._clock.monotonic() - self._tried_at >= SAVE_SECONDS
        if not due and self._told.keys() == self._tried.keys():
            return None
        shown = self.shown()
        self._tried, self._tried_at = shown, self._clock.monotonic()
        return shown if shown != self._saved else None

    def saved(self, shown: dict[str, int]) -> None:
        """That was written down. What was not is tried again when it is time."""
        self._saved = shown

    def _forget(self) -> None:
        since = self._clock.monotonic() - self._settings.hold_ms / 1_000
        for name in [name for name, (_, heard) in self._told.items() if heard < since]:
            log.warning("exporter %s was not heard for long: nothing is kept for it", name)
            del self._told[name]

    def _follow(self, flushed: int) -> None:
        """What a peer has is not kept for it. Nothing is, once it has all that is flushed, is no
        member any more or this replica leads no more."""
        for peer, held in tuple(self._peers.items()):
            progress = self._core.progress.get(peer)
            self._peers[peer] = max(held, flushed if progress is None else progress.match_index)
            if self._peers[peer] >= flushed:
                del self._peers[peer]

    def _make_room(self) -> None:
        quietest, (_, heard) = min(self._told.items(), key=lambda each: each[1][1])
        if heard > self._clock.monotonic() - QUIET_SECONDS:
            raise Overloaded(f"{EXPORTERS_MAX} exporters are at work here already", 1_000)
        log.warning("exporter %s makes room for another: nothing is kept for it", quietest)
        del self._told[quietest]

    def _count(self, first: int, last: int) -> None:
        """Mark these entries. After a start they may be all that is held, and a mark goes whole."""
        for begin in range(first, last + 1, MARK_ENTRIES):
            end = min(begin + MARK_ENTRIES - 1, last)
            size = self._core.bytes_between(begin, end)
            self._marks.append((end, size))
            self._bytes += size

    def _within_bound(self, wanted: int, flushed: int) -> int:
        """The entry after which all that is held takes `hold_bytes` at most."""
        begin = max(self._counted + 1, wanted + 1, self._core.first_index)
        if begin <= flushed:
            self._count(begin, flushed)
            self._counted = flushed
        while self._marks and self._marks[0][0] <= wanted:
            self._bytes -= self._marks.popleft()[1]
        if self._bytes <= self._settings.hold_bytes:
            return 0
        least = 0
        # More than is needed at once: each compaction should be worth its transaction.
        while self._marks and self._bytes > self._settings.hold_bytes * 3 // 4:
            least, size = self._marks.popleft()
            self._bytes -= size
        log.warning("hold_bytes: entries up to %d go, those after %d are wanted", least, wanted)
        for peer in [peer for peer, held in self._peers.items() if held < least]:
            log.warning("replica %x catches up too slowly: it will need another snapshot", peer)
            del self._peers[peer]
        return least


class Committed:
    """The committed entries of one replica."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    async def page(
        self, exporter: str, first: int, bytes_max: int, timeout_ms: int, exported: int
    ) -> dict[str, Any]:
        """The entries from `first` on, none if nothing comes within the time.

        `first_index` is the oldest entry there is: with one above `first` the page is empty.
        Raises Invalid, Overloaded, and Stopped.
        """
        for name, value, low, high in (
            ("first", first, 1, INT_MAX),
            ("bytes_max", bytes_max, 1, PAGE_BYTES_MAX),
            ("timeout_ms", timeout_ms, 0, WAIT_MS_MAX),
        ):
            if type(value) is not int or not low <= value <= high:
                raise Invalid(f"{name}: {value!r:.40}, the range is {low} to {high}")
        replica, core = self._replica, self._replica.core
        self.hold(exporter, exported)
        if core.applied_handed < first and timeout_ms:
            await replica.history.reached(first, timeout_ms / 1_000)
            self._must_run()
        entries: Sequence[Entry] = ()
        if core.first_index <= first <= core.applied_handed:
            entries = core.committed(first, bytes_max)
        return {
            "seat": replica.seat,
            "leads": replica.leads,
            "first_index": core.first_index,
            "commit": core.commit,
            "entries": await self._encoded(entries) if entries else [],
        }

    def hold(self, exporter: str, exported: int) -> int:
        """An exporter that reads elsewhere has everything up to this entry. The commit index: by it
        he sees whether the replica that he reads from gets on."""
        self._must_run()
        self._replica.upkeep.holds.tell(exporter, exported)
        return self._replica.core.commit

    def _must_run(self) -> None:
        replica = self._replica
        if replica.stopped_because:
            raise Stopped(f"{replica.seat}: {replica.stopped_because}")

    async def _encoded(self, entries: Sequence[Entry]) -> list[bytes]:
        made: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()

        def done(encoded: list[bytes]) -> None:
            if not made.done():
                made.set_result(encoded)

        def failed(error: BaseException) -> None:
            if not made.done():
                made.set_exception(error)

        self._replica.storage.hand(
            lambda: [records.entry_to(each) for each in entries],
            done,
            failed,
            of_state=False,
            on=On.READER,
        )
        return await made
