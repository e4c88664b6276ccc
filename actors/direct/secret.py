"""How two processes show each other that they know a secret, without saying it (HMAC, RFC 2104).

Each side chooses a nonce, and proves the secret over both nonces and the seat that was called. Who
records a conversation can neither repeat it nor take the other side in another one. What follows is
not encrypted: a cluster's network is trusted with what it carries, as Ray trusts it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Final

NONCE_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a seat's process listens, as it says over Ray. A process that starts again has another
    secret."""

    seat: str
    host: str
    port: int
    secret: bytes = field(repr=False)


def nonce() -> bytes:
    """Something that nobody has said before."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(endpoint: Endpoint, side: str, called: bytes, caller: bytes) -> bytes:
    """What `side` ("called" or "caller") shows, over the nonces of both."""
    parts = (side.encode(), endpoint.seat.encode(), called.hex().encode(), caller.hex().encode())
    return hmac.digest(endpoint.secret, b"\0".join(parts), hashlib.sha256)


def proves(given: bytes, wanted: bytes) -> bool:
    """Whether they are the same, in a time that does not tell how much of them is."""
    return hmac.compare_digest(given, wanted)
