from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NORMAL: _ClassVar[EntryKind]
    CONFIGURATION: _ClassVar[EntryKind]
NORMAL: EntryKind
CONFIGURATION: EntryKind

class Entry(_message.Message):
    __slots__ = ("term", "index", "kind", "data")
    TERM_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    term: int
    index: int
    kind: EntryKind
    data: bytes
    def __init__(self, term: _Optional[int] = ..., index: _Optional[int] = ..., kind: _Optional[_Union[EntryKind, str]] = ..., data: _Optional[bytes] = ...) -> None: ...

class HardState(_message.Message):
    __slots__ = ("term", "vote", "commit")
    TERM_FIELD_NUMBER: _ClassVar[int]
    VOTE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    term: int
    vote: int
    commit: int
    def __init__(self, term: _Optional[int] = ..., vote: _Optional[int] = ..., commit: _Optional[int] = ...) -> None: ...

class Configuration(_message.Message):
    __slots__ = ("voters", "outgoing", "learners")
    VOTERS_FIELD_NUMBER: _ClassVar[int]
    OUTGOING_FIELD_NUMBER: _ClassVar[int]
    LEARNERS_FIELD_NUMBER: _ClassVar[int]
    voters: _containers.RepeatedScalarFieldContainer[int]
    outgoing: _containers.RepeatedScalarFieldContainer[int]
    learners: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, voters: _Optional[_Iterable[int]] = ..., outgoing: _Optional[_Iterable[int]] = ..., learners: _Optional[_Iterable[int]] = ...) -> None: ...

class SnapshotMeta(_message.Message):
    __slots__ = ("index", "term", "configuration")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CONFIGURATION_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    configuration: Configuration
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., configuration: _Optional[_Union[Configuration, _Mapping]] = ...) -> None: ...

class RaftMessage(_message.Message):
    __slots__ = ("sender", "receiver", "term", "request_vote", "vote_reply", "append", "append_reply", "heartbeat", "heartbeat_reply", "timeout_now", "install_snapshot")
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REQUEST_VOTE_FIELD_NUMBER: _ClassVar[int]
    VOTE_REPLY_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    APPEND_REPLY_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_REPLY_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_NOW_FIELD_NUMBER: _ClassVar[int]
    INSTALL_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    sender: int
    receiver: int
    term: int
    request_vote: RequestVote
    vote_reply: VoteReply
    append: Append
    append_reply: AppendReply
    heartbeat: Heartbeat
    heartbeat_reply: HeartbeatReply
    timeout_now: TimeoutNow
    install_snapshot: InstallSnapshot
    def __init__(self, sender: _Optional[int] = ..., receiver: _Optional[int] = ..., term: _Optional[int] = ..., request_vote: _Optional[_Union[RequestVote, _Mapping]] = ..., vote_reply: _Optional[_Union[VoteReply, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., append_reply: _Optional[_Union[AppendReply, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., heartbeat_reply: _Optional[_Union[HeartbeatReply, _Mapping]] = ..., timeout_now: _Optional[_Union[TimeoutNow, _Mapping]] = ..., install_snapshot: _Optional[_Union[InstallSnapshot, _Mapping]] = ...) -> None: ...

class RequestVote(_message.Message):
    __slots__ = ("pre", "last_index", "last_term", "transfer")
    PRE_FIELD_NUMBER: _ClassVar[int]
    LAST_INDEX_FIELD_NUMBER: _ClassVar[int]
    LAST_TERM_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    last_index: int
    last_term: int
    transfer: bool
    def __init__(self, pre: _Optional[bool] = ..., last_index: _Optional[int] = ..., last_term: _Optional[int] = ..., transfer: _Optional[bool] = ...) -> None: ...

class VoteReply(_message.Message):
    __slots__ = ("pre", "granted")
    PRE_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    pre: bool
    granted: bool
    def __init__(self, pre: _Optional[bool] = ..., granted: _Optional[bool] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("prev_index", "prev_term", "commit", "entries")
    PREV_INDEX_FIELD_NUMBER: _ClassVar[int]
    PREV_TERM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    prev_index: int
    prev_term: int
    commit: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, prev_index: _Optional[int] = ..., prev_term: _Optional[int] = ..., commit: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...

class AppendReply(_message.Message):
    __slots__ = ("rejected", "match_index", "conflict_index", "conflict_term")
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    MATCH_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_INDEX_FIELD_NUMBER: _ClassVar[int]
    CONFLICT_TERM_FIELD_NUMBER: _ClassVar[int]
    rejected: bool
    match_index: int
    conflict_index: int
    conflict_term: int
    def __init__(self, rejected: _Optional[bool] = ..., match_index: _Optional[int] = ..., conflict_index: _Optional[int] = ..., conflict_term: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("commit", "round")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    commit: int
    round: int
    def __init__(self, commit: _Optional[int] = ..., round: _Optional[int] = ...) -> None: ...

class HeartbeatReply(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: int
    def __init__(self, round: _Optional[int] = ...) -> None: ...

class TimeoutNow(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InstallSnapshot(_message.Message):
    __slots__ = ("meta",)
    META_FIELD_NUMBER: _ClassVar[int]
    meta: SnapshotMeta
    def __init__(self, meta: _Optional[_Union[SnapshotMeta, _Mapping]] = ...) -> None: ...

class Envelope(_message.Message):
    __slots__ = ("cluster", "group", "sender", "seat", "messages")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    SEAT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    sender: int
    seat: str
    messages: _containers.RepeatedCompositeFieldContainer[RaftMessage]
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., sender: _Optional[int] = ..., seat: _Optional[str] = ..., messages: _Optional[_Iterable[_Union[RaftMessage, _Mapping]]] = ...) -> None: ...

class SnapshotChunk(_message.Message):
    __slots__ = ("cluster", "group", "sender", "receiver", "term", "meta", "number", "data", "crc", "last", "records", "digest")
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    RECEIVER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    META_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    cluster: str
    group: str
    sender: int
    receiver: int
    term: int
    meta: SnapshotMeta
    number: int
    data: bytes
    crc: int
    last: bool
    records: int
    digest: bytes
    def __init__(self, cluster: _Optional[str] = ..., group: _Optional[str] = ..., sender: _Optional[int] = ..., receiver: _Optional[int] = ..., term: _Optional[int] = ..., meta: _Optional[_Union[SnapshotMeta, _Mapping]] = ..., number: _Optional[int] = ..., data: _Optional[bytes] = ..., crc: _Optional[int] = ..., last: _Optional[bool] = ..., records: _Optional[int] = ..., digest: _Optional[bytes] = ...) -> None: ...
