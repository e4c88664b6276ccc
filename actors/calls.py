"""How actors are called: by a TCP link where one is up, by a Ray actor call otherwise.

Ray's own retries are off (law 9): a call that fails is retried by us, with the same request id.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import SystemRandom
from typing import Any

import ray
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    ActorUnschedulableError,
    RayError,
    RayTaskError,
)

from actors.direct.links import LinkLost, Links, ProcessEnded
from actors.direct.listener import Service
from actors.direct.secret import Endpoint
from actors.ray_env import NAMESPACE
from actors.seat import Seat
from actors.seat_names import group_of, is_learner
from actors.status import leader_of
from state_machines.errors import MetarayError, Stopped

LOOKUP_SECONDS = 5.0  #: our own deadline for a name lookup at Ray's control service
REPLICA_BYTES = 8  #: of a replica's id on a link, lowest first
YES, NO = b"\x01", b"\x00"


def named_actors() -> set[str]:
    """The names of all living actors of the namespace."""
    return {
        each["name"]
        for each in ray.util.list_named_actors(all_namespaces=True)
        if each["namespace"] == NAMESPACE
    }


def start_again(name: str) -> None:
    """End the process of a named actor, also one that hangs; Ray starts the actor again."""
    with contextlib.suppress(ValueError):
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=False)


def start_again_if_up(name: str) -> bool:
    """The same, only if the actor has begun, by Ray's word; whether it had. One that begins may
    take its time, and one whose node is gone begins elsewhere."""
    try:
        actor = ray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return False
    if ray.state.actors(actor._actor_id.hex()).get("State") != "ALIVE":
        return False
    ray.kill(actor, no_restart=False)
    return True


class Lookups:
    """What Ray's control service is asked, in threads: one for each name, however many wait for it
    and however often they give up, for it hangs as long as that does. A process has few threads,
    which its other work needs, too."""

    def __init__(self) -> None:
        self._under_way: dict[str, asyncio.Future[Any]] = {}

    async def find(self, name: str, ask: Callable[[], Any]) -> Any:
        """What it says. Raises TimeoutError after `LOOKUP_SECONDS`, and what `ask` raises."""
        asked = self._under_way.get(name)
        if asked is None:
            asked = self._under_way[name] = asyncio.ensure_future(asyncio.to_thread(ask))
            asked.add_done_callback(functools.partial(self._answered, name))
        return await asyncio.wait_for(asyncio.shield(asked), LOOKUP_SECONDS)

    def _answered(self, name: str, asked: asyncio.Future[Any]) -> None:
        del self._under_way[name]
        if not asked.cancelled():
            asked.exception()  # whoever waited may have given up


class Handles:
    """Actor handles by name. Looked up off the loop once, then kept (no lookup on the hot path)."""

    def __init__(self) -> None:
        self._handles: dict[str, Any] = {}
        self.lookups = Lookups()

    async def get(self, name: str) -> Any:
        """The handle; raises Stopped when there is no such actor or Ray does not answer."""
        handle = self._handles.get(name)
        if handle is None:
            find = functools.partial(ray.get_actor, name, namespace=NAMESPACE)
            try:
                handle = await self.lookups.find(name, find)
            except ValueError:
                raise Stopped(f"there is no actor {name!r} in namespace {NAMESPACE!r}") from None
            except TimeoutError:
                raise Stopped(f"{name}: Ray's control service does not answer") from None
            self._handles[name] = handle
        return handle

    def drop(self, name: str) -> None:
        """Forget a handle whose actor is gone for good."""
        self._handles.pop(name, None)

    async def call(self, name: str, method: str, *args: Any) -> Any:
        """Call a method and wait for its value. Raises what it raised, not Ray's story of it."""
        handle = await self.get(name)
        try:
            return await getattr(handle, method).remote(*args)
        except ActorDiedError:
            self.drop(name)
            raise
        except RayTaskError as error:
            raise said_by_actor(error) from None


class _Linked:
    """Handles and links of one process."""

    def __init__(self) -> None:
        self._handles = Handles()
        self._links = Links(self._endpoint, SystemRandom())

    async def _endpoint(self, seat: str) -> Endpoint | None:
        found: Endpoint | None = await self._handles.call(seat, "endpoint")
        return found

    def linked(self, seat: str) -> bool:
        """Whether a link to this seat is up. If not, it is worked on."""
        return self._links.get(seat) is not None

    async def close(self) -> None:
        """End the links."""
        await self._links.close()


class LinkedCalls(_Linked):
    """What replicas say to each other (the port `transport.Calls`)."""

    def post(self, seat: str, envelope: bytes) -> bool:
        """Send an envelope by the link."""
        link = self._links.get(seat)
        return link is not None and link.post("take", envelope)

    def deliver(self, seat: str, envelope: bytes) -> Awaitable[bytes]:
        """Hand an envelope over by an actor call."""
        return self._handles.call(seat, "deliver", envelope)

    async def chunk(self, seat: str, chunk: bytes) -> bool:
        """Hand a snapshot chunk over."""
        link = self._links.get(seat)
        if link is None:
            return bool(await self._handles.call(seat, "chunk", chunk))
        return await link.call("chunk", chunk) == YES

    async def attend(self, seat: str, replica: int) -> bool:
        """Stay with the leader."""
        link = self._links.get(seat)
        if link is None:
            return bool(await self._handles.call(seat, "attend", replica))
        return await link.call("attend", replica.to_bytes(REPLICA_BYTES, "little")) == YES

    def expect(self, seat: str) -> None:
        """It is heard of: a link to it is worked on at once."""
        self._links.expect(seat)

    def hello(self, seat: str, replica: int, at: str) -> Awaitable[dict[str, Any]]:
        """Ask who sits there."""
        return self._handles.call(seat, "hello", replica, at)

    def call(self, seat: str, method: str, *args: Any) -> Awaitable[Any]:
        """Any other method of a seat, for the controller and the tools."""
        return self._handles.call(seat, method, *args)

    async def start_again(self, seat: str) -> bool:
        """`start_again_if_up`, off the loop. Raises TimeoutError while Ray does not answer."""
        ask = functools.partial(start_again_if_up, seat)
        return bool(await self._handles.lookups.find(f"{seat}, again", ask))

    def died(self, error: BaseException) -> bool:
        """Ray says so within about ten milliseconds, given `ray_env`; a link within one."""
        return isinstance(
            error, ProcessEnded | ActorDiedError | ActorUnavailableError | ActorUnschedulableError
        )


class LinkedGroups(_Linked):
    """The groups of the connected cluster (the port `caller.Groups`)."""

    def __init__(self) -> None:
        super().__init__()
        self._seats: dict[str, tuple[str, ...]] = {}
        self._learners: dict[str, tuple[str, ...]] = {}
        self._lookups = Lookups()

    def seats(self, group: str) -> Sequence[str]:
        """The seats of a group's voters, in order: whom clients ask, also for what is stale. Who
        wants a learner takes a cut there (`metaray.cuts`)."""
        return self._seats.get(group, ())

    def learners(self, group: str) -> Sequence[str]:
        """The seats of a group's learners, in order."""
        return self._learners.get(group, ())

    def groups(self) -> Sequence[str]:
        """All groups, by name."""
        return tuple(sorted(self._seats))

    async def refresh(self) -> None:
        """Read the namespace's names again. Raises Stopped when Ray does not answer."""
        try:
            names = await self._lookups.find("", named_actors)
        except TimeoutError:
            raise Stopped("Ray's control service does not answer; is the head alive?") from None
        except RayError as error:
            raise Stopped(f"Ray's control service does not say who is there: {error}") from error
        seats: dict[str, list[str]] = {}
        learners: dict[str, list[str]] = {}
        for name in sorted(names):
            if group := group_of(name):
                (learners if is_learner(name) else seats).setdefault(group, []).append(name)
        self._seats = {group: tuple(each) for group, each in seats.items()}
        self._learners = {group: tuple(each) for group, each in learners.items()}

    def _call(self, seat: str, method: str, body: bytes) -> Awaitable[bytes]:
        # The others' links, too, are kept up: when the leader dies, where they listen is known,
        # though Ray's control service may be away with it.
        self._links.keep_up(self.seats(group_of(seat)))
        link = self._links.get(seat)
        if link is not None:
            return link.call(method, body)
        if self._links.silent(seat):
            raise LinkLost(f"{seat}: its machine is not heard")
        return self._handles.call(seat, method, body)

    def propose(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """Propose at a seat."""
        return self._call(seat, "propose", request)

    def query(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """Query at a seat."""
        return self._call(seat, "query", request)

    def watch(self, seat: str, request: bytes) -> Awaitable[bytes]:
        """Watch at a seat."""
        return self._call(seat, "watch", request)


class LinkedCache(_Linked):
    """The cache of this process's node (the port `cached.Cache`)."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def read(self, request: bytes) -> Awaitable[bytes]:
        """Read what it keeps."""
        return self._call("read", request)

    def watch(self, request: bytes) -> Awaitable[bytes]:
        """Watch what it follows."""
        return self._call("watch", request)

    def _call(self, method: str, body: bytes) -> Awaitable[bytes]:
        link = self._links.get(self._name)
        if link is not None:
            return link.call(method, body)
        return self._handles.call(self._name, method, body)


def service(seat: Seat) -> Service:
    """What a seat offers to links: the same that it offers to actor calls."""

    async def chunk(body: bytes) -> bytes:
        return YES if await seat.chunk(body) else NO

    async def attend(body: bytes) -> bytes:
        return YES if await seat.attend(int.from_bytes(body, "little")) else NO

    return Service(
        calls={
            "propose": seat.begin_proposal,
            "query": seat.begin_query,
            "watch": seat.watch,
            "chunk": chunk,
            "attend": attend,
        },
        posts={"take": seat.take},
        polls=frozenset({"watch"}),
    )


def each_call(names: Sequence[str], method: str, *args: Any, seconds: float) -> dict[str, Any]:
    """Call one method on many actors at once; an actor that fails maps to its exception.

    What an actor raises on purpose arrives as itself, not wrapped in Ray's story of it.
    """
    refs = {}
    answers: dict[str, Any] = {}
    for name in names:
        try:
            refs[name] = getattr(ray.get_actor(name, namespace=NAMESPACE), method).remote(*args)
        except ValueError as error:
            answers[name] = error
    return answers | outcomes(refs, seconds)


def outcomes(refs: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """What each of these came to within `seconds`, or why it did not."""
    if refs:
        ray.wait(list(refs.values()), num_returns=len(refs), timeout=seconds)
    answers: dict[str, Any] = {}
    for name, ref in refs.items():
        try:
            answers[name] = ray.get(ref, timeout=0.1)
        except RayError as error:
            answers[name] = said_by_actor(error)
    return answers


def leader_among(seats: Sequence[str], seconds: float) -> dict[str, Any] | None:
    """The status of the leader of a group with these seats; None if nobody is heard in time who
    leads."""
    answers = each_call(seats, "status", seconds=seconds)
    return leader_of(each for each in answers.values() if isinstance(each, dict))


def said_by_actor(error: Exception) -> Exception:
    """The error that an actor's method raised; the given one if that is Ray's own."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, MetarayError | OSError) else error
