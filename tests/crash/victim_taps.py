"""Where a victim listens to itself: promises on the wire, stores as opened, entries as applied.

Only the carrier between the seats is ours anyway. Two functions are wrapped where their callers
look them up, to write down what goes through them; they do the same as before.
"""

from __future__ import annotations

import base64
from typing import Any
from zlib import crc32

import actors.replica
import storage.home
from state_machines.raft.messages import AppendReply, Message, RequestVote, VoteReply
from state_machines.wire import codec
from storage import records
from tests.actors.wires import Wires
from tests.crash.victim_journal import Journal


class JournalWires(Wires):
    """Writes down every promise before it is carried."""

    def __init__(self, journal: Journal) -> None:
        super().__init__()
        self._journal = journal

    async def call(self, source: str, seat: str, method: str, *args: Any) -> Any:
        if method != "deliver":
            return await super().call(source, seat, method, *args)
        self._note(args[0])
        answer = await super().call(source, seat, method, *args)
        if answer:
            self._note(answer)
        return answer

    def _note(self, envelope: bytes) -> None:
        for message in codec.decode_envelope(envelope).messages:
            self._promise(message)

    def _promise(self, message: Message) -> None:
        match message:
            case VoteReply(sender=sender, term=term, granted=True, pre=False):
                self._journal("vote", sender, term, message.receiver)
            case RequestVote(sender=sender, term=term, pre=False):
                self._journal("vote", sender, term, sender)
            case AppendReply(sender=sender, term=term, match_index=index, rejected=False):
                self._journal("match", sender, term, index)
            case _:
                pass


def listen(journal: Journal) -> None:
    """Write down what is opened and what is applied in this process."""
    home: Any = storage.home
    replica: Any = actors.replica
    open_stores, apply = home.open_stores, replica.apply
    known: set[tuple[str, int, int, int]] = set()
    home.VERIFY_ROWS = 0  # its states are small, and are looked at as large ones are

    def opened(directory: Any, **more: Any) -> Any:
        stores = open_stores(directory, **more)
        who, hard = directory.identity, stores.loaded.hard_state
        journal(
            "open",
            who.group,
            directory.path.parent.parent.name,
            who.replica,
            who.boot,
            hard.term,
            hard.vote,
            hard.commit,
            stores.loaded.snapshot.index,
            stores.log.last_index,
            stores.state.applied.index,
        )
        return stores

    def applied(machine: Any, state: Any, entries: Any, *more: Any) -> Any:
        for entry in entries:
            data = records.entry_to(entry)
            what = (machine.group, entry.index, entry.term, crc32(data))
            if what not in known:  # replicas of one process apply the same: once is enough
                known.add(what)
                journal("entry", *what[:3], entry.kind.value, base64.b64encode(data).decode())
        return apply(machine, state, entries, *more)

    home.open_stores = opened
    replica.apply = applied
