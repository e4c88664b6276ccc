"""Everything that can go wrong with a request, in two families and one doubt.

    MetarayError
    ├── Rejected                 part of the history: every replica decided the same
    │   ├── Invalid              a field is out of its limits; nothing was proposed or changed
    │   ├── NotFound
    │   ├── AlreadyExists
    │   ├── Fenced               the caller holds an epoch older than the row's
    │   ├── Conflict             the expected revision is not the row's
    │   ├── QuotaExceeded
    │   ├── WrongShard           the group does not own the slot; fetch the slot map again
    │   ├── SessionExpired       the group has forgotten this client; register again
    │   └── Compacted            the changes since are not kept any more; read, then watch
    ├── Unavailable              not in the history: the client retries within its deadline
    │   ├── NotLeader            says which seat to try
    │   ├── NoQuorum
    │   ├── Overloaded           says after how many milliseconds to try again
    │   ├── Stopped
    │   ├── Transferring
    │   └── Overflow             told to a watcher that is too slow: it goes on from `revision`
    └── Unknown                  the deadline passed after sending: it may have happened, or in part

Anything else that escapes an apply is a local fault, and the replica stops (law 8). Every class
keeps all it says in `args`, so it survives pickling between Ray's processes.
"""

from __future__ import annotations

from typing import ClassVar


class MetarayError(Exception):
    """The root of every error that metaray raises on purpose."""

    code: ClassVar[str] = ""

    @property
    def detail(self) -> str:
        """What was wrong, in words that name the field and the limit."""
        return str(self.args[0]) if self.args else ""


class Rejected(MetarayError):
    """A deterministic refusal. It is data: the same on every replica, kept in the history."""


class Invalid(Rejected):
    """A field is missing, of the wrong type or beyond its limit."""

    code = "INVALID"


class NotFound(Rejected):
    """What the request names does not exist."""

    code = "NOT_FOUND"


class AlreadyExists(Rejected):
    """What the request creates is there already."""

    code = "ALREADY_EXISTS"


class Fenced(Rejected):
    """The caller's epoch is older than the one in force."""

    code = "FENCED"


class Conflict(Rejected):
    """The row's revision is not the expected one."""

    code = "CONFLICT"


class QuotaExceeded(Rejected):
    """A limit on how many or how much would be passed."""

    code = "QUOTA_EXCEEDED"


class WrongShard(Rejected):
    """This group does not own the slot. `version` is the slot map the group goes by."""

    code = "WRONG_SHARD"

    def __init__(self, detail: str, version: int = 0) -> None:
        super().__init__(detail, version)
        self.version = version


class SessionExpired(Rejected):
    """The group no longer knows this client id, so it cannot tell a retry from a new request."""

    code = "SESSION_EXPIRED"


class Compacted(Rejected):
    """The changes after this revision are no longer kept, or there was no such revision yet: read
    the rows again, then watch on.

    `group` is the one to read again, where a watch is of several.
    """

    code = "COMPACTED"

    def __init__(self, detail: str, group: str = "") -> None:
        super().__init__(*((detail, group) if group else (detail,)))
        self.group = group


class Unavailable(MetarayError):
    """Not in the history. The client retries it until its deadline."""


class NotLeader(Unavailable):
    """Another replica leads. `leader` is its replica id or seat, empty when not known."""

    code = "NOT_LEADER"

    def __init__(self, detail: str, leader: str = "") -> None:
        super().__init__(detail, leader)
        self.leader = leader


class NoQuorum(Unavailable):
    """Fewer replicas answer than a majority."""

    code = "NO_QUORUM"


class Overloaded(Unavailable):
    """A bounded queue is full. `retry_after_ms` says when to try again."""

    code = "OVERLOADED"

    def __init__(self, detail: str, retry_after_ms: int = 0) -> None:
        super().__init__(detail, retry_after_ms)
        self.retry_after_ms = retry_after_ms


class Stopped(Unavailable):
    """The replica has stopped, or never started, and says why."""

    code = "STOPPED"


class Transferring(Unavailable):
    """The leader is handing over; ask again in a moment."""

    code = "TRANSFERRING"


class Overflow(Unavailable):
    """The watcher took too little for too long, and its buffer is full. Nothing is lost yet: all up
    to `revision` of `group` was delivered, and a watch from there goes on."""

    code = "OVERFLOW"

    def __init__(self, detail: str, revision: int = 0, group: str = "") -> None:
        super().__init__(detail, revision, group)
        self.revision = revision
        self.group = group


class Unknown(MetarayError):
    """The deadline passed after the request was sent: it may have been applied, or not. Or some of
    the groups that it went to have done their part, and others have not."""

    code = "UNKNOWN"


BY_CODE: dict[str, type[MetarayError]] = {
    cls.code: cls
    for cls in (
        Invalid,
        NotFound,
        AlreadyExists,
        Fenced,
        Conflict,
        QuotaExceeded,
        WrongShard,
        SessionExpired,
        Compacted,
        NotLeader,
        NoQuorum,
        Overloaded,
        Stopped,
        Transferring,
        Overflow,
        Unknown,
    )
}
"""The class of every code of `proto/api.proto`."""
