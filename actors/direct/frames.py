"""Frames: what travels over a TCP connection between two processes of a cluster.

    length  4 bytes, lowest first: of the frame
    check   4 bytes, lowest first: every bit of the length turned round
    crc     4 bytes, lowest first: CRC-32 of the frame
    frame   an encoded `link.Frame`

TCP has a checksum of its own, of sixteen bits, which is too weak for what a log is made from.
Whatever is wrong with a frame ends its connection: there is no place to go on from. A wrong length
is told at once by its check: whoever believed it would be deaf, on a connection that looks well,
until as many bytes had come.
"""

from __future__ import annotations

import struct
from typing import Final

from google.protobuf.message import DecodeError
from isal.isal_zlib import crc32

from state_machines.errors import Invalid
from state_machines.wire import link_pb2 as link
from state_machines.wire.codec import ENVELOPE_BYTES_MAX

FRAME_BYTES_MAX: Final = ENVELOPE_BYTES_MAX + 1024  #: an envelope is the largest there is
HEADER: Final = struct.Struct("<III")
HEADER_BYTES: Final = HEADER.size
_BITS: Final = 0xFFFFFFFF


def pack(frame: link.Frame) -> bytes:
    """The bytes of a frame with its header."""
    data = frame.SerializeToString()
    length = len(data)
    return HEADER.pack(length, length ^ _BITS, crc32(data)) + data


class FrameReader:
    """Cuts a stream of bytes into frames.

    It keeps what has come of one frame, and no more than the header promised; a header that
    promises more than `limit` is refused before anything is kept.
    """

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self.limit = limit  #: bytes of one frame, without its header
        self._kept = bytearray()

    def feed(self, data: bytes) -> list[link.Frame]:
        """The frames that are whole with `data`, in order. After Invalid there is no going on."""
        kept = self._kept
        if not kept:  # mostly: a frame or two came whole
            frames, end = self._cut(data)
            if end < len(data):
                kept += data[end:]
            return frames
        kept += data
        with memoryview(kept) as view:
            frames, end = self._cut(view)
        del kept[:end]
        return frames

    def _cut(self, data: bytes | memoryview) -> tuple[list[link.Frame], int]:
        """The whole frames at the beginning of `data`, and where the rest begins."""
        frames: list[link.Frame] = []
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            length, check, crc = HEADER.unpack_from(data, at)
            if length ^ check != _BITS:
                raise Invalid("frame: its length does not match its check")
            if length > self.limit:
                raise Invalid(f"frame: {length} bytes, the limit is {self.limit}")
            begin = at + HEADER_BYTES
            if size - begin < length:
                break
            at = begin + length
            frame = bytes(data[begin:at])
            if crc32(frame) != crc:
                raise Invalid("frame: its checksum does not match")
            try:
                frames.append(link.Frame.FromString(frame))
            except DecodeError:
                raise Invalid("frame: not an encoded Frame") from None
        return frames, at
