"""Exactly once: what a group remembers of its clients, as part of the replicated state (law 9).

A client registers and gets an id made of the log position of its registration. From then on each
proposal carries (client, sequence), and its reply is kept under that until the client says that it
has it (`acked`). So a retry, whoever leads by then, is answered with the kept reply and changes
nothing (Raft thesis, 6.3).

The table is bounded: `WINDOW_MAX` replies a client, and `CLIENTS_MAX` clients. When one more
registers, the one that was silent longest (in log order, so the same on every replica) goes, and a
later proposal of it is answered `SESSION_EXPIRED`: the group can no longer tell a retry from a new
request.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgpack

from state_machines.errors import Invalid, SessionExpired
from state_machines.limits import CLIENTS_MAX, WINDOW_MAX
from state_machines.tables import Tables
from state_machines.wire import api_pb2 as api

CLIENTS: Final = "_client"  # (client,) -> [last seen index, acked]
REPLIES: Final = "_reply"  # (client, sequence) -> CRC-32 of the commands, reply
ORDER: Final = "_client_order"  # (last seen index, client) -> nothing
COUNT: Final = "_client_count"  # ("all",) -> how many

TOUCH_ENTRIES: Final = 1_000  #: how far a client's last seen index may lag behind, to save writes
POSITION_BITS: Final = 16  #: of a client id: its place within the entry


def checksum(proposal: api.Proposal) -> int:
    """CRC-32 over the commands: the same sequence with other commands is a mistake, not a retry."""
    crc = 0
    for each in proposal.commands:
        crc = crc32(each.body, crc32(each.tag.encode(), crc))
        crc = crc32(len(each.body).to_bytes(4, "big"), crc)
    return crc


def register(db: Tables, index: int, position: int) -> int:
    """A new client id. Forgets the client that was silent longest when there are too many."""
    client = (index << POSITION_BITS) | position
    count = int.from_bytes(db.store.get(COUNT, ("all",)) or b"\0", "big")
    while count >= CLIENTS_MAX:
        token = next(iter(db.store.scan(ORDER)), None)
        assert token is not None, "the count and the order of clients agree"
        seen, oldest = msgpack.unpackb(token[1])
        forget(db, seen, oldest)
        count -= 1
    db.set(CLIENTS, (client,), msgpack.packb([index, 0]))
    db.set(ORDER, (index, client), msgpack.packb([index, client]))
    db.set(COUNT, ("all",), (count + 1).to_bytes(4, "big"))
    return client


def forget(db: Tables, seen: int, client: int) -> None:
    """Remove a client and the replies kept for it."""
    row = db.store.get(CLIENTS, (client,))
    acked = msgpack.unpackb(row)[1] if row is not None else 0
    for sequence in range(acked + 1, acked + WINDOW_MAX + 1):
        if db.store.get(REPLIES, (client, sequence)) is not None:
            db.set(REPLIES, (client, sequence), None)
    db.set(CLIENTS, (client,), None)
    db.set(ORDER, (seen, client), None)


def kept_reply(db: Tables, proposal: api.Proposal) -> bytes | None:
    """The reply already given to this (client, sequence), None for a new one.

    Raises SessionExpired for a client that is not known, Invalid for a sequence that was
    acknowledged, lies beyond the window, or comes with other commands than before.
    """
    client, sequence = proposal.client, proposal.sequence
    row = db.store.get(CLIENTS, (client,))
    if row is None:
        raise SessionExpired(f"client: {client} is not registered in this group, or was forgotten")
    acked = msgpack.unpackb(row)[1]
    if sequence <= acked:
        raise Invalid(f"sequence: {sequence} was acknowledged already (up to {acked})")
    if sequence > acked + WINDOW_MAX:
        raise Invalid(f"sequence: {sequence} is beyond {acked} + {WINDOW_MAX}")
    kept = db.store.get(REPLIES, (client, sequence))
    if kept is None:
        return None
    if int.from_bytes(kept[:4], "big") != checksum(proposal):
        raise Invalid(f"sequence: {sequence} came before with other commands")
    return kept[4:]


def keep(db: Tables, proposal: api.Proposal, index: int, reply: bytes) -> None:
    """Remember the reply, drop those that the client says it has, and note when it was seen."""
    client, sequence = proposal.client, proposal.sequence
    row = db.store.get(CLIENTS, (client,))
    assert row is not None, "kept_reply has seen it"
    seen, acked = msgpack.unpackb(row)
    upto = min(max(acked, proposal.acked), sequence - 1)
    for each in range(acked + 1, upto + 1):
        db.set(REPLIES, (client, each), None)
    if upto != acked or index - seen >= TOUCH_ENTRIES:
        if index - seen >= TOUCH_ENTRIES:
            db.set(ORDER, (seen, client), None)
            db.set(ORDER, (index, client), msgpack.packb([index, client]))
            seen = index
        db.set(CLIENTS, (client,), msgpack.packb([seen, upto]))
    db.set(REPLIES, (client, sequence), checksum(proposal).to_bytes(4, "big") + reply)
