"""A client's request as it comes in: bounded and checked before anything is made of it."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from state_machines.errors import Invalid
from state_machines.limits import BATCH_ITEMS_MAX, REQUEST_BYTES_MAX
from state_machines.wire.bounds import Inside, too_many_fields

REQUEST_FIELDS_MAX = BATCH_ITEMS_MAX + 100  #: of a request and its proposal

_REQUEST: Inside = {2: {}}  # a proposal, for its commands


def decoded(request: bytes, kind: Any, *, group: str, seat: str) -> Any:
    """A client's message to this group; `kind` is its protobuf class. Raises Invalid."""
    message = parsed(request, kind)
    if message.group != group:
        raise Invalid(f"group: {message.group[:80]!r} does not live at {seat}")
    return message


def parsed(request: bytes, kind: Any) -> Any:
    """A client's message to whoever is asked. Raises Invalid."""
    if not isinstance(request, bytes):
        raise Invalid(f"request: bytes are wanted, not {type(request).__name__}")
    if len(request) > REQUEST_BYTES_MAX:
        raise Invalid(f"request: {len(request)} bytes, the limit is {REQUEST_BYTES_MAX}")
    if too_many_fields(request, _REQUEST, REQUEST_FIELDS_MAX):
        raise Invalid(f"request: more fields than {REQUEST_FIELDS_MAX}, the limit")
    try:
        return kind.FromString(request)
    except DecodeError:
        raise Invalid(f"request: not an encoded {kind.DESCRIPTOR.name}") from None
