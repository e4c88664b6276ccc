"""Frames come out of a stream as they went in, however it is cut; anything else is refused."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as some

from actors.direct.frames import FRAME_BYTES_MAX, FrameReader, pack
from state_machines.errors import Invalid
from state_machines.wire import link_pb2 as link
from tests.actors.direct.wire import header

frames = some.builds(
    link.Frame,
    kind=some.sampled_from(link.FrameKind.values()),
    call=some.integers(0, 2**64 - 1),
    method=some.text(max_size=20),
    body=some.binary(max_size=3_000),
)


@given(some.lists(frames, max_size=6), some.data())
def test_frames_come_out_as_they_went_in(sent: list[link.Frame], data: some.DataObject) -> None:
    stream = b"".join(map(pack, sent))
    cuts = sorted(data.draw(some.sets(some.integers(0, len(stream)), max_size=12)))
    reader, came = FrameReader(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        came += reader.feed(stream[begin:end])
    assert came == sent


@given(frames, some.data())
def test_a_changed_bit_is_noticed(sent: link.Frame, data: some.DataObject) -> None:
    """At once: who waited for what a changed length promises would hear nothing meanwhile."""
    stream = bytearray(pack(sent))
    bit = data.draw(some.integers(0, len(stream) * 8 - 1))
    stream[bit // 8] ^= 1 << bit % 8
    with pytest.raises(Invalid):
        FrameReader().feed(bytes(stream))


def test_a_header_that_promises_too_much_is_refused_before_anything_is_kept() -> None:
    reader = FrameReader()
    with pytest.raises(Invalid, match=f"{FRAME_BYTES_MAX + 1} bytes, the limit is"):
        reader.feed(header(FRAME_BYTES_MAX + 1, 0))


def test_a_frame_may_be_as_large_as_the_limit_and_no_larger() -> None:
    sent = link.Frame(kind=link.POST, body=b"x" * 50)
    size = sent.ByteSize()
    assert FrameReader(size).feed(pack(sent)) == [sent]
    with pytest.raises(Invalid, match=f"{size} bytes, the limit is {size - 1}"):
        FrameReader(size - 1).feed(pack(sent))


def test_what_is_no_frame_is_refused_though_its_checksum_is_right() -> None:
    data = b"\xff" * 9
    with pytest.raises(Invalid, match="not an encoded Frame"):
        FrameReader().feed(header(len(data), zlib.crc32(data)) + data)


def test_a_frame_in_many_pieces_is_put_together_once() -> None:
    sent = link.Frame(kind=link.POST, body=bytes(1 << 20))
    reader, came = FrameReader(), []
    stream = pack(sent)
    for begin in range(0, len(stream), 999):
        came += reader.feed(stream[begin : begin + 999])
    assert came == [sent]
