"""Exactly once: what a group remembers of its clients, as part of the replicated state (law 9).

A client registers and gets an id made of the log position of its registration. From then on each
proposal carries (client, sequence), and its reply is kept under that until the client says that it
has it (`acked`). So a retry, whoever leads by then, is answered with the kept reply and changes
nothing (Raft thesis, 6.3). Sequences may arrive in any order: several are under way at once.

The table is bounded: `WINDOW_MAX` replies a client, and `CLIENTS_MAX` clients. When one more
registers, the one that was silent longest (in log order, so the same on every replica) goes, and a
later proposal of it is answered `SESSION_EXPIRED`: the group can no longer tell a retry from a new
request.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final
from zlib import crc32

from state_machines import packing
from state_machines.errors import Invalid, QuotaExceeded, SessionExpired
from state_machines.limits import CLIENTS_MAX, INT_MAX, WINDOW_MAX
from state_machines.op import REGISTER_TAG, Stamp, command
from state_machines.tables import Table, Tables
from state_machines.wire import api_pb2 as api

TOUCH_ENTRIES: Final = 16  #: how far `seen_index` may lag behind, to save writes
POSITION_BITS: Final = 16  #: of a client id: its proposal's place within the entry
CRC_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Client:
    """A registered client: the sequences whose replies are kept, all of them above `acked`."""

    client: int
    seen_index: int
    acked: int
    kept: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """The same clients, by when they were seen last."""

    seen_index: int
    client: int


@dataclass(frozen=True, slots=True)
class Count:
    """How many clients there are."""

    name: str
    clients: int


CLIENTS: Final = Table("group.client", Client, key=("client",))
SEEN: Final = Table("group.client_seen", Seen, key=("seen_index", "client"))
COUNTS: Final = Table("group.client_count", Count, key=("name",))
REPLIES: Final = "group.reply"
"""Not rows: (client, sequence) -> CRC-32 of the commands, and the reply as it was sent."""

COUNT: Final = "clients"


@command(REGISTER_TAG)
class RegisterClient:
    """Ask for a client id. The machine does it itself, because the id is the command's position."""

    urgent: ClassVar[bool] = True

    def apply(self, db: Tables, at: Stamp) -> None:
        """Never so: it comes alone, from client 0."""
        raise Invalid("client: only 0 may register")


def checksum(proposal: api.Proposal) -> int:
    """CRC-32 over the commands: the same sequence with other commands is a mistake, not a retry."""
    crc = 0
    for each in proposal.commands:
        for part in (each.tag.encode(), each.body):
            crc = crc32(part, crc32(len(part).to_bytes(4, "big"), crc))
        if each.count:
            crc = crc32(each.count.to_bytes(4, "big"), crc)
    return crc


def check(proposal: api.Proposal) -> None:
    """Raise Invalid unless the numbers are what a client can have: 64 bits with a sign."""
    if proposal.client > INT_MAX:
        raise Invalid(f"client: {proposal.client}, the limit is {INT_MAX}")
    if not 0 < proposal.sequence <= INT_MAX:
        raise Invalid(f"sequence: {proposal.sequence}, the range is 1 to {INT_MAX}")


def register(db: Tables, position: int) -> int:
    """A new client id. Forgets the client that was silent longest when there are too many."""
    assert position < 1 << POSITION_BITS, f"{position} proposals in one entry"
    client = (db.revision << POSITION_BITS) | position
    counted = db.get(COUNTS, COUNT)
    count = counted.clients if counted is not None else 0
    while count >= CLIENTS_MAX:
        _, oldest, _ = next(db.scan(SEEN))
        _forget(db, oldest)
        count -= 1
    db.put(CLIENTS, Client(client, db.revision, 0, ()))
    db.put(SEEN, Seen(db.revision, client))
    db.put(COUNTS, Count(COUNT, count + 1))
    return client


def _forget(db: Tables, seen: Seen) -> None:
    row = db.get(CLIENTS, seen.client)
    assert row is not None, "a client that was seen is there"
    for sequence in row.kept:
        db.set(REPLIES, (seen.client, sequence), None)
    db.delete(CLIENTS, seen.client)
    db.delete(SEEN, seen.seen_index, seen.client)


def of(db: Tables, proposal: api.Proposal) -> Client:
    """The row of who proposes. Raises SessionExpired for a client that is not known, Invalid for
    numbers that no client can have."""
    check(proposal)
    client = proposal.client
    stored = db.store.get(CLIENTS.name, (client,))
    if stored is None:
        raise SessionExpired(f"client: {client} is not registered in this group, or was forgotten")
    # As plain values: each proposal comes by here.
    _, seen, acked, kept = packing.unpack_values(stored)[1]
    return Client(client, seen, acked, tuple(kept))


def kept_reply(db: Tables, row: Client, proposal: api.Proposal) -> bytes | None:
    """The reply already given to this (client, sequence), None for a new one.

    Raises Invalid for a sequence that was acknowledged or comes with other commands than before,
    QuotaExceeded when the client leaves too many replies unacknowledged. Neither is kept.
    """
    client, sequence = proposal.client, proposal.sequence
    if sequence in row.kept:
        kept = db.store.get(REPLIES, (client, sequence))
        assert kept is not None, "the window and the replies agree"
        if int.from_bytes(kept[:CRC_BYTES], "big") != checksum(proposal):
            raise Invalid(f"sequence: {sequence} came before with other commands")
        return kept[CRC_BYTES:]
    if sequence <= row.acked:
        raise Invalid(f"sequence: {sequence} was acknowledged already (up to {row.acked})")
    if len(row.kept) >= WINDOW_MAX:
        acked = _acked(row, proposal)
        if sum([each > acked for each in row.kept]) >= WINDOW_MAX:
            raise QuotaExceeded(f"acked: {WINDOW_MAX} replies are not acknowledged, the limit")
    return None


def keep(db: Tables, row: Client, proposal: api.Proposal, reply: bytes) -> None:
    """Remember the reply, drop those that the client says it has, and note when it was seen.

    `row` is the client's as it was before the commands, which have no way to change it. Nothing of
    this is ever taken back, and no watch hears of it, so it goes past the journal.
    """
    client, sequence, index = proposal.client, proposal.sequence, db.revision
    store, acked = db.store, _acked(row, proposal)
    kept: list[int] = []
    for each in row.kept:
        if each > acked:
            kept.append(each)
        else:
            store.delete(REPLIES, (client, each))
    kept.append(sequence)
    seen = row.seen_index
    if index - seen >= TOUCH_ENTRIES:
        db.delete(SEEN, seen, client)
        db.put(SEEN, Seen(index, client))
        seen = index
    store.put(CLIENTS.name, (client,), db.pack((index, (client, seen, acked, kept))))
    crc = checksum(proposal).to_bytes(CRC_BYTES, "big")
    store.put(REPLIES, (client, sequence), crc + reply)


def _acked(row: Client, proposal: api.Proposal) -> int:
    """Everything up to here has been answered to the client; never the proposal itself."""
    return max(row.acked, min(proposal.acked, proposal.sequence - 1))
