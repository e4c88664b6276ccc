from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Code(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OK: _ClassVar[Code]
    INVALID: _ClassVar[Code]
    NOT_FOUND: _ClassVar[Code]
    ALREADY_EXISTS: _ClassVar[Code]
    FENCED: _ClassVar[Code]
    CONFLICT: _ClassVar[Code]
    QUOTA_EXCEEDED: _ClassVar[Code]
    WRONG_SHARD: _ClassVar[Code]
    SESSION_EXPIRED: _ClassVar[Code]
    COMPACTED: _ClassVar[Code]
    NOT_LEADER: _ClassVar[Code]
    NO_QUORUM: _ClassVar[Code]
    OVERLOADED: _ClassVar[Code]
    STOPPED: _ClassVar[Code]
    TRANSFERRING: _ClassVar[Code]
    OVERFLOW: _ClassVar[Code]
    UNKNOWN: _ClassVar[Code]
OK: Code
INVALID: Code
NOT_FOUND: Code
ALREADY_EXISTS: Code
FENCED: Code
CONFLICT: Code
QUOTA_EXCEEDED: Code
WRONG_SHARD: Code
SESSION_EXPIRED: Code
COMPACTED: Code
NOT_LEADER: Code
NO_QUORUM: Code
OVERLOADED: Code
STOPPED: Code
TRANSFERRING: Code
OVERFLOW: Code
UNKNOWN: Code

class Command(_message.Message):
    __slots__ = ("tag", "body", "count")
    TAG_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    tag: str
    body: bytes
    count: int
    def __init__(self, tag: _Optional[str] = ..., body: _Optional[bytes] = ..., count: _Optional[int] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("client", "sequence", "acked", "commands")
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    COMMANDS_FIELD_NUMBER: _ClassVar[int]
    client: int
    sequence: int
    acked: int
    commands: _containers.RepeatedCompositeFieldContainer[Command]
    def __init__(self, client: _Optional[int] = ..., sequence: _Optional[int] = ..., acked: _Optional[int] = ..., commands: _Optional[_Iterable[_Union[Command, _Mapping]]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("now_ms", "proposals")
    NOW_MS_FIELD_NUMBER: _ClassVar[int]
    PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    now_ms: int
    proposals: _containers.RepeatedCompositeFieldContainer[Proposal]
    def __init__(self, now_ms: _Optional[int] = ..., proposals: _Optional[_Iterable[_Union[Proposal, _Mapping]]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("code", "body", "detail", "refusals")
    CODE_FIELD_NUMBER: _ClassVar[int]
    BODY_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    code: Code
    body: bytes
    detail: str
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., body: _Optional[bytes] = ..., detail: _Optional[str] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("place", "code", "detail")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    place: int
    code: Code
    detail: str
    def __init__(self, place: _Optional[int] = ..., code: _Optional[_Union[Code, str]] = ..., detail: _Optional[str] = ...) -> None: ...

class Reply(_message.Message):
    __slots__ = ("code", "detail", "results", "revision", "client", "leader", "slot_version", "retry_after_ms", "changes", "positions", "next", "term", "partners", "replica", "unproposed")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CLIENT_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    SLOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PARTNERS_FIELD_NUMBER: _ClassVar[int]
    REPLICA_FIELD_NUMBER: _ClassVar[int]
    UNPROPOSED_FIELD_NUMBER: _ClassVar[int]
    code: Code
    detail: str
    results: _containers.RepeatedCompositeFieldContainer[Result]
    revision: int
    client: int
    leader: str
    slot_version: int
    retry_after_ms: int
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    positions: _containers.RepeatedCompositeFieldContainer[Position]
    next: bytes
    term: int
    partners: _containers.RepeatedScalarFieldContainer[int]
    replica: int
    unproposed: bool
    def __init__(self, code: _Optional[_Union[Code, str]] = ..., detail: _Optional[str] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., revision: _Optional[int] = ..., client: _Optional[int] = ..., leader: _Optional[str] = ..., slot_version: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., positions: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., next: _Optional[bytes] = ..., term: _Optional[int] = ..., partners: _Optional[_Iterable[int]] = ..., replica: _Optional[int] = ..., unproposed: _Optional[bool] = ...) -> None: ...

class ProposeRequest(_message.Message):
    __slots__ = ("group", "proposal", "timeout_ms")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    group: str
    proposal: Proposal
    timeout_ms: int
    def __init__(self, group: _Optional[str] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class QueryRequest(_message.Message):
    __slots__ = ("group", "stale", "min_revision", "timeout_ms", "queries", "vouched", "vouch", "columns")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    MIN_REVISION_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    VOUCHED_FIELD_NUMBER: _ClassVar[int]
    VOUCH_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    group: str
    stale: bool
    min_revision: int
    timeout_ms: int
    queries: _containers.RepeatedCompositeFieldContainer[Command]
    vouched: bool
    vouch: bool
    columns: bool
    def __init__(self, group: _Optional[str] = ..., stale: _Optional[bool] = ..., min_revision: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., queries: _Optional[_Iterable[_Union[Command, _Mapping]]] = ..., vouched: _Optional[bool] = ..., vouch: _Optional[bool] = ..., columns: _Optional[bool] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("group", "tables", "from_revision", "now", "limit", "timeout_ms", "every_table", "only", "stale", "progress_at")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    FROM_REVISION_FIELD_NUMBER: _ClassVar[int]
    NOW_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    EVERY_TABLE_FIELD_NUMBER: _ClassVar[int]
    ONLY_FIELD_NUMBER: _ClassVar[int]
    STALE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_AT_FIELD_NUMBER: _ClassVar[int]
    group: str
    tables: _containers.RepeatedScalarFieldContainer[str]
    from_revision: int
    now: bool
    limit: int
    timeout_ms: int
    every_table: bool
    only: _containers.RepeatedCompositeFieldContainer[Part]
    stale: bool
    progress_at: int
    def __init__(self, group: _Optional[str] = ..., tables: _Optional[_Iterable[str]] = ..., from_revision: _Optional[int] = ..., now: _Optional[bool] = ..., limit: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., every_table: _Optional[bool] = ..., only: _Optional[_Iterable[_Union[Part, _Mapping]]] = ..., stale: _Optional[bool] = ..., progress_at: _Optional[int] = ...) -> None: ...

class Part(_message.Message):
    __slots__ = ("tenant", "starts")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    starts: str
    def __init__(self, tenant: _Optional[str] = ..., starts: _Optional[str] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("group", "revision")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    group: str
    revision: int
    def __init__(self, group: _Optional[str] = ..., revision: _Optional[int] = ...) -> None: ...

class CacheRequest(_message.Message):
    __slots__ = ("table", "part", "key", "seen", "limit", "after", "timeout_ms")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    table: str
    part: Part
    key: bytes
    seen: _containers.RepeatedCompositeFieldContainer[Position]
    limit: int
    after: bytes
    timeout_ms: int
    def __init__(self, table: _Optional[str] = ..., part: _Optional[_Union[Part, _Mapping]] = ..., key: _Optional[bytes] = ..., seen: _Optional[_Iterable[_Union[Position, _Mapping]]] = ..., limit: _Optional[int] = ..., after: _Optional[bytes] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("revision", "table", "key", "row")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    revision: int
    table: str
    key: bytes
    row: bytes
    def __init__(self, revision: _Optional[int] = ..., table: _Optional[str] = ..., key: _Optional[bytes] = ..., row: _Optional[bytes] = ...) -> None: ...
