from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FrameKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CHALLENGE: _ClassVar[FrameKind]
    HELLO: _ClassVar[FrameKind]
    WELCOME: _ClassVar[FrameKind]
    POST: _ClassVar[FrameKind]
    CALL: _ClassVar[FrameKind]
    ANSWER: _ClassVar[FrameKind]
    FAULT: _ClassVar[FrameKind]
CHALLENGE: FrameKind
HELLO: FrameKind
WELCOME: FrameKind
POST: FrameKind
CALL: FrameKind
ANSWER: FrameKind
FAULT: FrameKind

class Frame(_message.Message):
    __slots__ = ("kind", "call", "method", "body")
    KIND_FIELD_NUMBER: _ClassVar[int]
    CALL_FIELD_NUMBER: _ClassVar[int]
    METHOD_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    kind: FrameKind
    call: int
    method: str
    body: bytes
    def __init__(self, kind: _Optional[_Union[FrameKind, str]] = ..., call: _Optional[int] = ..., method: _Optional[str] = ..., body: _Optional[bytes] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("seat", "nonce", "proof")
    SEAT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PROOF_FIELD_NUMBER: _ClassVar[int]
    seat: str
    nonce: bytes
    proof: bytes
    def __init__(self, seat: _Optional[str] = ..., nonce: _Optional[bytes] = ..., proof: _Optional[bytes] = ...) -> None: ...
