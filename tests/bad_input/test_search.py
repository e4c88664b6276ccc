"""A search for what costs most: hypothesis is told what a body took, and looks for more."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
from hypothesis import HealthCheck, given, settings, target
from hypothesis import strategies as st

from state_machines import packing
from state_machines.errors import Invalid
from state_machines.limits import REQUEST_BYTES_MAX, VALUES_MAX
from state_machines.wire import codec
from tests.bad_input.values import delimited, varint
from tests.wire.test_codec import A

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=4)
    | st.binary(max_size=4)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=60) | st.dictionaries(st.text(max_size=3), inner, max_size=20)
    ),
    max_leaves=300,
)
VALUE_BYTES = 2 * REQUEST_BYTES_MAX // VALUES_MAX  #: what the limits allow for each
ONCE_BYTES = 8 << 10  #: of a call, whatever is in the body

searching = settings(
    max_examples=60,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def weight(value: Any) -> int:
    """What a value counts as, with all that is in it."""
    if isinstance(value, dict):
        return 2 + sum(2 + weight(each) for each in value.values())
    if isinstance(value, list):
        return len(value) + sum(map(weight, value))
    return 0


@given(VALUES)
@searching
def test_no_value_takes_more_memory_than_it_counts_for(value: Any) -> None:
    data = msgpack.packb(value)
    packing.load(data)  # what is made once is made now
    tracemalloc.start()
    try:
        packing.load(data)
    except Invalid:
        return  # too deep, or text that is none
    finally:
        taken = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    target(taken / (1 + weight(value)), label="bytes a value")
    assert taken <= ONCE_BYTES + VALUE_BYTES * weight(value) + 4 * len(data)


@given(st.lists(st.tuples(st.integers(1, 12), st.binary(max_size=40)), max_size=60))
@searching
def test_a_message_of_any_fields_is_decoded_or_refused(
    parts: list[tuple[int, bytes]],
) -> None:
    message = b"".join(delimited(field, data) for field, data in parts)
    head = b"\x08" + varint(A) + b"\x10\x07\x18\x06"
    data = b"\x18" + varint(A) + delimited(5, head + message)
    try:
        found = codec.decode_envelope(data)
    except codec.WireError as error:
        target(-float(len(error.detail)), label="how soon it is refused")
        return
    target(float(len(found.messages[0].entries) if hasattr(found.messages[0], "entries") else 1))
    assert codec.decode_message(codec.encode_message(found.messages[0])) == found.messages[0]
