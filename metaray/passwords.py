"""Passwords: hashed here, at the door, and never sent further.

    verifier = hash_password("secret")      # "$scrypt$ln=14,r=8,p=1$<salt>$<hash>"
    verify_password(verifier, "secret")     # True

The hash is the standard library's scrypt; a verifier says its parameters (PHC string format), so
they may be raised later and old ones still verify. Hashing takes tens of milliseconds and 16 MiB on
purpose: a service does it in a thread, and not for everyone at once.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from typing import Final

from state_machines.errors import Invalid

SCHEME: Final = "scrypt"
LOG_COST: Final = 14  #: 2**14 rounds of 1 KiB: 16 MiB
BLOCK: Final = 8
PARALLEL: Final = 1
SALT_BYTES: Final = 16
HASH_BYTES: Final = 32
MEMORY_MAX: Final = 64 << 20  #: a verifier that asks for more is not computed
WORK_MAX: Final = 1 << 21  #: 2**ln * r * p, sixteen times the default
MIX_MAX: Final = 1 << 10  #: r * p
PASSWORD_BYTES_MAX: Final = 65_535  #: MQTT 5, 3.1.3.6


def hash_password(password: str | bytes) -> str:
    """A verifier for a password, with a salt of its own. Raises Invalid for one too long."""
    salt = secrets.token_bytes(SALT_BYTES)
    digest = _digest(_bytes(password), salt, LOG_COST, BLOCK, PARALLEL)
    return f"${SCHEME}$ln={LOG_COST},r={BLOCK},p={PARALLEL}${_text(salt)}${_text(digest)}"


def verify_password(verifier: str, password: str | bytes) -> bool:
    """Whether it is the password, in a time that does not say how far it was right.

    Raises Invalid for a verifier that is not ours to compute: another scheme, or beyond the limits.
    """
    salt, digest, log_cost, block, parallel = _parsed(verifier)
    try:
        given = _bytes(password)
    except Invalid:
        return False
    try:
        found = _digest(given, salt, log_cost, block, parallel)
    except ValueError as error:  # parameters that scrypt itself does not take
        raise Invalid(f"verifier: {error}") from None
    return hmac.compare_digest(found, digest)


def _bytes(password: str | bytes) -> bytes:
    try:
        data = password.encode() if isinstance(password, str) else password
    except UnicodeEncodeError:
        raise Invalid("password: not UTF-8") from None
    if len(data) > PASSWORD_BYTES_MAX:
        raise Invalid(f"password: {len(data)} bytes, the limit is {PASSWORD_BYTES_MAX}")
    return data


def _digest(password: bytes, salt: bytes, log_cost: int, block: int, parallel: int) -> bytes:
    return hashlib.scrypt(
        password,
        salt=salt,
        n=1 << log_cost,
        r=block,
        p=parallel,
        maxmem=MEMORY_MAX + (1 << 20),
        dklen=HASH_BYTES,
    )


def _parsed(verifier: str) -> tuple[bytes, bytes, int, int, int]:
    refused = Invalid(f"verifier: not ${SCHEME}$ln=…,r=…,p=…$salt$hash within the limits")
    parts = verifier.split("$")
    if len(parts) != 5 or parts[:2] != ["", SCHEME]:
        raise refused
    fields = dict(each.partition("=")[::2] for each in parts[2].split(","))
    try:
        log_cost, block, parallel = (int(fields.pop(name)) for name in ("ln", "r", "p"))
        salt, digest = _data(parts[3]), _data(parts[4])
    except (KeyError, ValueError, binascii.Error):
        raise refused from None
    if fields or not (0 < log_cost < 32 and block > 0 and parallel > 0 and salt):
        raise refused
    if block * parallel > MIX_MAX or (block * parallel) << log_cost > WORK_MAX:
        raise refused
    if (128 * block) << log_cost > MEMORY_MAX or len(digest) != HASH_BYTES:
        raise refused
    return salt, digest, log_cost, block, parallel


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode().rstrip("=")


def _data(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
