"""Who may connect, what they may do, what their topics stand for: metaray's rules, at work here.

Each part is switched on by itself (`Config`): `blacklist` and `authenticate` at CONNECT, `acl` at
CONNECT (for the will), SUBSCRIBE and PUBLISH, `auto_subscribe` and `rewrite`. What is decided, and
how, stands with the rows in `state_machines/mqtt`; here the rows are read and kept for a while.

- The blacklist is asked at every CONNECT, and of connected clients every `rules_s` seconds. Its
  entries are in all `mqtt` groups. If one has no leader, any of its replicas answers, which may
  have missed the newest entries; if none of its replicas does, nobody is let in.
- A user is read, and the password hashed, at every CONNECT, a few at a time, beside the loop.
- ACL rules and users are kept for `rules_s` seconds, at most `KEPT_MAX` lists of them. While
  metaray does not answer the old ones hold; what was never read allows nothing.
- Rewrite and auto-subscribe rules are read when the broker starts and every `rules_s` seconds.

A rule of the ACL speaks of topics as they are inside, after rewriting. It is asked when a client
subscribes: one that is added later takes no subscription away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from amqtt.mqtt.connack import BAD_USERNAME_PASSWORD, NOT_AUTHORIZED, SERVER_UNAVAILABLE
from amqtt.session import Session

from metaray.integrations.amqtt.config import Config
from metaray.integrations.amqtt.refusal import Refused
from metaray.integrations.amqtt.store import Store
from metaray.passwords import hash_password, verify_password
from state_machines.errors import Invalid, MetarayError, Rejected
from state_machines.mqtt import acl, auto_subscribe, rewrite
from state_machines.mqtt.subscription import TopicFilter
from state_machines.mqtt.user import User

KEPT_MAX: Final = 10_000  #: lists of rules, and users; the one unused longest goes first
HASHES_MAX: Final = 2  #: passwords hashed at once: each takes a core and 16 MiB
HASHES_WAITING_MAX: Final = 1_000  #: beyond, clients are told to come back later

log = logging.getLogger(__name__)


class Security:
    """The rules of one broker. `store` is None until metaray has answered."""

    def __init__(self, settings: Config) -> None:
        self.store: Store | None = None
        self._settings = settings
        self._kept: OrderedDict[tuple[str, str], tuple[float, Any]] = OrderedDict()
        self._rewrites: Sequence[rewrite.RewriteRule] = ()
        self._automatic: Sequence[auto_subscribe.AutoSubscribeRule] = ()
        self._hashing = asyncio.Semaphore(HASHES_MAX)
        self._waiting = 0
        self._nobody = ""  #: a verifier to compute when there is no user: it takes as long

    async def load(self, store: Store) -> None:
        """Read what is kept whole. Raises MetarayError."""
        self.store = store
        if self._settings.rewrite:
            self._rewrites = rewrite.ordered(await store.rewrites())
        if self._settings.auto_subscribe:
            self._automatic = await store.auto_subscribe_rules()

    async def refresh(self) -> None:
        """Read it again."""
        if self.store is not None:
            await self.load(self.store)

    # -- at CONNECT --------------------------------------------------------------------------

    async def admit(self, session: Session) -> bool | None:
        """Whether the client may connect, None if that is not ours to say. Raises Refused."""
        if self._settings.blacklist and await self.barred(session):
            raise Refused(NOT_AUTHORIZED, "on the blacklist")
        if not self._settings.authenticate:
            return None
        username, password = session.username or "", session.password
        if not username or password is None:
            raise Refused(BAD_USERNAME_PASSWORD, "no user name, or no password")
        user = await self._answered(lambda store: store.user(username))
        if not await self._verified(user, password):
            raise Refused(BAD_USERNAME_PASSWORD, f"not the password of user {username[:80]!r}")
        self._keep(("", username), user)
        return True

    async def barred(self, session: Session) -> bool:
        """Whether an entry of the blacklist has it. Raises Refused if metaray does not answer."""
        if not self._settings.blacklist:
            return False
        found = await self._answered(
            lambda store: store.barred(
                session.client_id, session.username or "", session.remote_address or ""
            )
        )
        return found is not None

    async def _answered(self, ask: Callable[[Store], Awaitable[Any]]) -> Any:
        if self.store is None:
            raise Refused(SERVER_UNAVAILABLE, "metaray has not answered yet")
        try:
            return await ask(self.store)
        except Rejected as error:  # a name that metaray has no rows for
            raise Refused(BAD_USERNAME_PASSWORD, f"{error!r}") from error
        except MetarayError as error:
            raise Refused(SERVER_UNAVAILABLE, f"{error!r}") from error

    async def _verified(self, user: User | None, password: str) -> bool:
        if self._waiting >= HASHES_WAITING_MAX:
            raise Refused(SERVER_UNAVAILABLE, "too many passwords wait to be looked at")
        self._waiting += 1
        try:
            async with self._hashing:
                return await asyncio.to_thread(self._compare, user, password)
        finally:
            self._waiting -= 1

    def _compare(self, user: User | None, password: str) -> bool:
        if not self._nobody:
            self._nobody = hash_password("")
        try:
            same = verify_password(user.verifier if user is not None else self._nobody, password)
        except Invalid as error:
            log.error("user %r cannot be let in: %s", user and user.username, error.detail)
            return False
        return same and user is not None

    # -- what a client may do ----------------------------------------------------------------

    async def allowed(
        self, session: Session, topic: str, action: str, qos: int = 0, retain: bool = False
    ) -> bool:
        """Whether the client may publish to a topic, or subscribe to a filter."""
        if not self._settings.acl:
            return True
        client_id: str = session.client_id
        try:
            user = await self._user(session.username or "")
            wanted = acl.resources(client_id, user.username if user is not None else "")
            rules = [rule for each in wanted for rule in await self._rules(*each)]
        except MetarayError as error:
            log.warning("client %r: no rules to go by: %r", client_id, error)
            return False
        ip = session.remote_address or ""
        said = acl.decide(rules, user, client_id, ip, topic, action, qos, retain)
        return (self._settings.acl_default if said == acl.NONE else said) == acl.ALLOW

    async def _user(self, username: str) -> User | None:
        """The user as the rules see it: above them only if metaray has looked at the password."""
        if not username:
            return None
        if not self._settings.authenticate:
            return User(self._settings.tenant, username, "", False, 0, 0)
        user: User | None = await self._fresh(("", username), lambda store: store.user(username))
        if user is None:
            raise Invalid("username: the user is no more")
        return user

    async def _rules(self, resource_type: str, resource: str) -> Sequence[acl.AclRule]:
        rules: Sequence[acl.AclRule] = await self._fresh(
            (resource_type, resource), lambda store: store.acl_rules(resource_type, resource)
        )
        return rules

    async def _fresh(self, key: tuple[str, str], read: Callable[[Store], Awaitable[Any]]) -> Any:
        """What is kept, or what metaray says if that is older than it may be, and it answers."""
        kept = self._kept.get(key)
        if kept is not None and asyncio.get_running_loop().time() < kept[0]:
            self._kept.move_to_end(key)
            return kept[1]
        try:
            if self.store is None:
                raise Invalid("the broker has not begun")
            return self._keep(key, await read(self.store))
        except MetarayError:
            if kept is None:
                raise
            return self._keep(key, kept[1])

    def _keep(self, key: tuple[str, str], found: Any) -> Any:
        until = asyncio.get_running_loop().time() + self._settings.rules_s
        self._kept[key] = (until, found)
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)
        return found

    # -- what its topics stand for -----------------------------------------------------------

    def rewritten(self, action: str, topic: str) -> str:
        """The topic or filter inside, of what the client calls it."""
        return rewrite.rewrite(self._rewrites, action, topic) if self._rewrites else topic

    def automatic(self, session: Session) -> tuple[TopicFilter, ...]:
        """What the client is subscribed to without asking."""
        return auto_subscribe.subscriptions(
            self._automatic, session.client_id, session.username or ""
        )
