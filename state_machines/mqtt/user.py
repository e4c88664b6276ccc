"""Users: who may connect, by a verifier of their password, and who is above the rules.

A password never comes here. Whoever makes a user (`metaray/passwords.py`) hands over a salted hash
that says how it was made, `$scheme$…$salt$hash`, and whoever lets one in reads the verifier and
does the hashing. What looks like no such hash is refused, so that no password is kept by mistake.
Lists do not show verifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from state_machines import names
from state_machines.batch import Batch, Outcome, each
from state_machines.errors import AlreadyExists, Invalid, NotFound
from state_machines.limits import MQTT_STRING_BYTES_MAX
from state_machines.op import Stamp, command, query
from state_machines.tables import Table, Tables

VERIFIER_BYTES_MAX: Final = 512
VERIFIER_PARTS_MIN: Final = 4  #: nothing before the first $; then scheme, salt and hash


@dataclass(frozen=True, slots=True)
class User:
    """A user of a tenant. Times are the group's, Unix milliseconds."""

    tenant: str
    username: str
    verifier: str
    superuser: bool
    created_ms: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NewUser:
    """A user to create."""

    username: str
    verifier: str
    superuser: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UserChange:
    """What is to change of a user; None stays as it is."""

    username: str
    verifier: str | None = None
    superuser: bool | None = None


@dataclass(frozen=True, slots=True)
class UserPage:
    """Users by name, without their verifiers; `next` continues, empty at the end."""

    users: tuple[User, ...]
    next: bytes


USERS: Final = Table("mqtt.user", User, key=("tenant", "username"))


def check_username(value: str, field: str = "username") -> None:
    """Raise Invalid unless this is a user name as CONNECT has it (MQTT 5, 3.1.3.5)."""
    names.name(value, field, MQTT_STRING_BYTES_MAX)


def check_verifier(value: str) -> None:
    """Raise Invalid unless this may be a salted hash: `$scheme$…$salt$hash` in printable ASCII."""
    names.name(value, "verifier", VERIFIER_BYTES_MAX)
    scheme = value.split("$")
    if (
        len(scheme) < VERIFIER_PARTS_MIN
        or scheme[0]
        or not all(scheme[1:])
        or not (value.isascii() and value.isprintable())
        or " " in value
    ):
        raise Invalid(
            f"verifier: a salted hash is wanted, at least {VERIFIER_PARTS_MIN - 1} parts, each"
            " after a $ (scheme, salt, hash), and never a password"
        )


@command("mqtt.user.create")
class CreateUsers(Batch):
    """Create users. One that is there stays as it is: AlreadyExists."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[NewUser, ...]

    def validate(self) -> None:
        """Names and verifiers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            check_username(item.username)
            check_verifier(item.verifier)

    def slot_key_of(self, item: NewUser) -> tuple[str, ...]:
        """Users spread by name."""
        return (self.tenant, item.username)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """One outcome for each, in order."""

        def create(item: NewUser) -> None:
            if db.get(USERS, self.tenant, item.username) is not None:
                raise AlreadyExists(f"username: {item.username[:80]!r} is taken")
            db.put(
                USERS,
                User(
                    tenant=self.tenant,
                    username=item.username,
                    verifier=item.verifier,
                    superuser=item.superuser,
                    created_ms=at.now_ms,
                    updated_ms=at.now_ms,
                ),
            )

        return each(db, self.items, create)


@command("mqtt.user.update")
class UpdateUsers(Batch):
    """Change the verifier of users, or whether they are above the rules."""

    tenant: str = names.DEFAULT_TENANT
    items: tuple[UserChange, ...]

    def validate(self) -> None:
        """Names and verifiers within their limits."""
        names.tenant(self.tenant)
        names.items(self.items, "items")
        for item in self.items:
            check_username(item.username)
            if item.verifier is not None:
                check_verifier(item.verifier)

    def slot_key_of(self, item: UserChange) -> tuple[str, ...]:
        """Users spread by name."""
        return (self.tenant, item.username)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there."""

        def update(item: UserChange) -> None:
            old = _there(db, self.tenant, item.username)
            verifier = old.verifier if item.verifier is None else item.verifier
            superuser = old.superuser if item.superuser is None else item.superuser
            db.put(
                USERS,
                replace(old, verifier=verifier, superuser=superuser, updated_ms=at.now_ms),
            )

        return each(db, self.items, update)


@command("mqtt.user.delete")
class DeleteUsers(Batch):
    """Delete users."""

    many: ClassVar[str] = "usernames"
    tenant: str = names.DEFAULT_TENANT
    usernames: tuple[str, ...]

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.items(self.usernames, "usernames")
        for username in self.usernames:
            check_username(username, "usernames")

    def slot_key_of(self, item: str) -> tuple[str, ...]:
        """Users spread by name."""
        return (self.tenant, item)

    def apply(self, db: Tables, at: Stamp) -> tuple[Outcome, ...]:
        """NotFound for one that is not there."""

        def delete(username: str) -> None:
            _there(db, self.tenant, username)
            db.delete(USERS, self.tenant, username)

        return each(db, self.usernames, delete)


def _there(db: Tables, tenant: str, username: str) -> User:
    user = db.get(USERS, tenant, username)
    if user is None:
        raise NotFound(f"username: there is no {username[:80]!r}")
    return user


@query("mqtt.user.get")
class GetUser:
    """Read a user, verifier and all: for whoever is to let them in."""

    single_row: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    username: str

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        check_username(self.username)

    def slot_key(self) -> tuple[str, ...]:
        """Users spread by name."""
        return (self.tenant, self.username)

    def read(self, db: Tables, at: Stamp) -> User | None:
        """None when there is none."""
        return db.get(USERS, self.tenant, self.username)


@query("mqtt.user.list")
class ListUsers:
    """Users whose name begins with `starts`, a page at a time."""

    every_group: ClassVar[bool] = True
    tenant: str = names.DEFAULT_TENANT
    starts: str = ""
    limit: int = 1_000
    after: bytes = b""

    def validate(self) -> None:
        """Names within their limits."""
        names.tenant(self.tenant)
        names.name(self.starts, "starts", MQTT_STRING_BYTES_MAX, empty=True)

    def read(self, db: Tables, at: Stamp) -> UserPage:
        """By name. Verifiers are left out: nobody needs them all."""
        rows, after = db.page(
            USERS, self.tenant, starts=self.starts, after=self.after, limit=self.limit
        )
        return UserPage(shown([row for row, _ in rows]), after)


def shown(users: Sequence[User]) -> tuple[User, ...]:
    """Users as a list shows them."""
    return tuple([replace(user, verifier="") for user in users])
