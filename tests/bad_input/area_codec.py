"""What peers send, as bytes: envelopes and messages that were cut, changed, or made to burst.

Whatever `decode_envelope` lets through has to be the same once more when it is encoded again, and
the transport has to drop what is for another cluster or group.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import accumulate
from random import Random
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message as Encoded

from state_machines.raft.messages import Message
from state_machines.wire import codec
from state_machines.wire import raft_pb2 as pb
from state_machines.wire.codec import WireError
from tests.bad_input import values
from tests.bad_input.battery import Case, Outcome, Wrong, refused
from tests.bad_input.values import delimited
from tests.wire.test_codec import MESSAGES, envelope

MIB: Final = 1 << 20
HEAD: Final = b"\x18\x07"  #: an envelope's sender
TELLS: Final = b"\x08\x07\x10\x08\x18\x05"  #: a message's sender, receiver and term
CLAIMS: Final = (2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)

Decode = Callable[[bytes], object]
FRAMES: Final[list[tuple[str, Decode, bytes]]] = [
    *(
        (f"message {type(each).__name__}", codec.decode_message, codec.encode_message(each))
        for each in MESSAGES
    ),
    *(
        (f"envelope {type(each).__name__}", codec.decode_envelope, envelope(each))
        for each in MESSAGES
    ),
    ("envelope of all", codec.decode_envelope, envelope(*MESSAGES)),
]


def decode(decoder: Decode, data: bytes) -> Outcome:
    """Refused by name, or the same once more."""
    try:
        found = decoder(data)
    except WireError as error:
        return refused(error)
    messages = (found,) if isinstance(found, Message) else getattr(found, "messages", ())
    for each in messages:
        if codec.decode_message(codec.encode_message(each)) != each:
            raise Wrong("changed", f"another message after a round: {each}")
    return Outcome.TAKEN


def _configuration(packed: bytes) -> bytes:
    return delimited(1, packed)


def bombs() -> list[tuple[str, bytes]]:
    """Envelopes that are small enough to be looked into, and large once they are."""
    many = 15 * MIB
    meta = delimited(3, _configuration(b"\x01" * many))
    repeated = b"\x3a\x00\x4a\x00" * (many // 4)  # append_reply, heartbeat_reply: one of them
    entry = delimited(4, b"\x08\x01\x10\x01\x18\x01" + delimited(4, _configuration(b"\x01" * many)))
    return [
        ("empty messages", HEAD + b"\x2a\x00" * (many // 2)),
        ("empty entries", HEAD + delimited(5, TELLS + delimited(6, b"\x22\x00" * (many // 2)))),
        ("voters of a snapshot", HEAD + delimited(5, TELLS + delimited(11, delimited(1, meta)))),
        ("voters of an entry", HEAD + delimited(5, TELLS + delimited(6, entry))),
        ("bodies one after another", HEAD + delimited(5, TELLS + repeated)),
        ("unknown fields", HEAD + b"\x78\x01" * (many // 2)),
        ("groups", HEAD + b"\x7b\x7c" * (many // 2)),
        ("groups in groups", HEAD + b"\x7b" * many),
        ("a long name", HEAD + delimited(1, b"x" * many)),
        *(
            (f"claims {claim}", HEAD + delimited(field, b"", claim))
            for field in (1, 5)
            for claim in CLAIMS
        ),
    ]


def assigned(found: Encoded, rng: Random) -> str:
    """Set one field somewhere in the message to something else; its name."""
    target: Any = found
    while target.DESCRIPTOR.fields:
        field: FieldDescriptor = rng.choice(target.DESCRIPTOR.fields)
        repeated = field.is_repeated
        if field.type != FieldDescriptor.TYPE_MESSAGE:
            break
        if repeated:
            items = getattr(target, field.name)
            target = rng.choice(items) if len(items) and rng.random() < 0.8 else items.add()
        else:
            target = getattr(target, field.name)
            target.SetInParent()
    else:
        return str(target.DESCRIPTOR.full_name)  # there is nothing in it
    value: Any
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            value = rng.random() < 0.5
        case FieldDescriptor.TYPE_STRING:
            value = values.text(rng)
        case FieldDescriptor.TYPE_BYTES:
            value = values.noise(rng)
        case FieldDescriptor.TYPE_ENUM:
            value = rng.choice((0, 1, 2, 7, 2**31 - 1, -1))
        case FieldDescriptor.TYPE_UINT64:
            value = values.number(rng) % 2**64
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_FIXED32:
            value = values.number(rng) % 2**32
        case FieldDescriptor.TYPE_INT64:
            value = values.number(rng) % 2**63 * rng.choice((1, -1))
        case other:
            raise AssertionError(f"{field.full_name}: {other} is not drawn")
    if repeated:
        getattr(target, field.name).extend([value] * rng.choice((1, 2, 70)))
    else:
        setattr(target, field.name, value)
    return str(field.full_name)


class Codec:
    """Bytes from a peer."""

    name = "codec"
    frame_bytes = codec.ENVELOPE_BYTES_MAX

    def __init__(self) -> None:
        self._bombs = bombs()
        # Cut at every offset, then each bit flipped, frame after frame.
        self._starts = list(accumulate((9 * len(data) for _, _, data in FRAMES), initial=0))
        self.listed = len(self._bombs) + self._starts[-1]

    def case(self, number: int) -> Case:
        if number < len(self._bombs):
            what, data = self._bombs[number]
            return Case(what, partial(decode, codec.decode_envelope, data), bomb=True)
        if number < self.listed:
            return self._damaged(number - len(self._bombs))
        rng = Random(f"codec {number}")
        what, decoder, data = rng.choice(FRAMES)
        match rng.randrange(4):
            case 0:
                return Case("noise", partial(decode, decoder, values.noise(rng)))
            case 1:
                return Case(f"{what} mangled", partial(decode, decoder, values.mangled(rng, data)))
            case _:
                kind = pb.RaftMessage if decoder is codec.decode_message else pb.Envelope
                found = kind.FromString(data)
                fields = [assigned(found, rng) for _ in range(rng.choice((1, 1, 2, 3)))]
                made = found.SerializeToString()
                return Case(f"{what} {fields}", partial(decode, decoder, made))

    def _damaged(self, place: int) -> Case:
        index = max(at for at, start in enumerate(self._starts[:-1]) if start <= place)
        what, decoder, data = FRAMES[index]
        place -= self._starts[index]
        if place < len(data):
            return Case(f"{what} cut at {place}", partial(decode, decoder, data[:place]))
        bit = place - len(data)
        return Case(f"{what} bit {bit}", partial(decode, decoder, values.flipped(data, bit)))
